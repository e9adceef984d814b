"""What a SPEC may not be, and what the message then says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.errors import HydraError, InputError
from hydractl.expressions.data_sets import DataSpec
from tests.running import refused


def error_of(spec: str) -> HydraError:
    return refused(HydraError, open_data, DataSpec.of_option("--ood", spec))


def test_near_names(tmp_path: Path) -> None:
    for name in ("calibration.npz", "calibrations.npz", "other.npz"):
        (tmp_path / name).touch()
    error = error_of(f"{tmp_path}/calibraton.npz")
    assert isinstance(error, InputError)
    assert error.message == f"--ood {tmp_path}/calibraton.npz: no such file or folder"
    assert error.hint == f"in {tmp_path}/ there is: calibration.npz, calibrations.npz"


def test_missing_folder(here: Path) -> None:
    assert error_of(f"{here}/no/such/x.npz").hint == f"the path exists up to {here}/"


@pytest.mark.parametrize("name", ["model.pt", "weights.st", "x.npy"])
def test_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1")
    error = error_of(str(tmp_path / name))
    assert isinstance(error, InputError) and "not a kind of data set" in error.message


def test_strange_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in error_of(str(tmp_path / "pipe")).message
    assert isinstance(error_of("a" * 5000), InputError)
    assert isinstance(error_of("a\0b"), InputError)
