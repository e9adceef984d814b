"""A predictions file that was stopped while it got its size, and one that does not fit on the disk."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from hydractl.errors import OutputError, StorageError
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet

ONE = EvalSet("id", "id", None, [str(i) for i in range(2000)], np.zeros(2000, np.int64), "f")


def writer(path: Path, resume: bool = False) -> PredictionsWriter:
    return PredictionsWriter(path, {"name": "m"}, [ONE], members=2, classes=10, resume=resume)


def test_a_file_without_a_header_is_begun_anew(tmp_path: Path) -> None:
    with writer(tmp_path / "whole.part") as file:
        file.write(0, range(2000), np.ones((2, 2000, 10), np.float32))
    (tmp_path / "p.part").write_bytes(bytes(5000))
    with writer(tmp_path / "p.part", resume=True) as file:
        assert not file.resumed and file.missing(0).all()
        file.write(0, range(2000), np.ones((2, 2000, 10), np.float32))
    assert (tmp_path / "p.part").read_bytes() == (tmp_path / "whole.part").read_bytes()
    with writer(tmp_path / "p.part", resume=True) as file:
        assert file.resumed and not file.missing(0).any()


def test_what_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(StorageError):
            writer(tmp_path / "p.part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not list(tmp_path.glob("p.*"))


@pytest.mark.fault(49)
@pytest.mark.parametrize("resume", [False, True])
def test_a_symbolic_link_is_never_followed(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "precious").write_bytes(bytes(16))
    (tmp_path / "p.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match=r"cannot write .*p\.part: .*symbolic link"):
        writer(tmp_path / "p.part", resume=resume)
    assert (tmp_path / "precious").read_bytes() == bytes(16)
