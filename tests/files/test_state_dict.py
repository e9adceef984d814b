"""State dicts of torch, read without running anything: tensors, and nothing else."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.errors import InputError
from hydractl.files.state_dict import StateDict


def test_the_tensors_are_those_that_torch_loads(tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))  # which counts, in an integer
    many = torch.arange(24.0).reshape(4, 6)
    found = {
        **layer.state_dict(),
        "parameter": torch.nn.Parameter(many.clone()),
        "turned": many.T,
        "part": many[1:3, ::2],
        "whole": many,
        "none": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
        **{str(kind): torch.arange(5).to(kind) for kind in (torch.float16, torch.bfloat16, torch.float64, torch.uint8)},
    }
    for named in (found, torch.nn.Module.state_dict(layer)):
        torch.save(named, tmp_path / "w.pth")
        ours, theirs = StateDict(tmp_path / "w.pth"), torch.load(tmp_path / "w.pth", weights_only=True)
        assert ours.names() == sorted(theirs)
        for name, tensor in theirs.items():
            assert ours.read(name).dtype == tensor.dtype and torch.equal(ours.read(name), tensor), name


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def rezipped(change: Callable[[str, bytes], bytes], value: Any = None, packed: int = zipfile.ZIP_STORED) -> bytes:
    """The archive of a tensor of four numbers with its parts changed."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(value or {"a": torch.arange(4.0)}))) as there,
        zipfile.ZipFile(file, "w", packed) as now,
    ):
        for name in there.namelist():
            now.writestr(name, change(name.rpartition("/")[2], there.read(name)))
    return file.getvalue()


def in_list(before: bytes, after: bytes) -> bytes:
    def change(name: str, content: bytes) -> bytes:
        assert name != "data.pkl" or before in content
        return content.replace(before, after) if name == "data.pkl" else content

    return rezipped(change)


LARGE = b"J\x00\x00\x00\x10"
REFUSED: dict[str, tuple[bytes, str]] = {
    "no archive": (b"abc", "not a zip file"),
    "another archive": (rezipped(lambda name, content: b"little"), "no newline"),
    "a call": (saved({"a": _Runs()}), "it asks for more than tensors"),
    "an unknown entry": (saved({"net": {"a": torch.ones(1)}}), "'net' is no tensor"),
    "no tensor": (saved({"a": 3}), "'a' is no tensor"),
    "a list": (saved([torch.ones(1)]), "it is no list of tensors"),
    "an older file": (pickle.dumps({"a": 1}), "not a zip file"),
    "packed": (rezipped(lambda name, content: content, {"a": torch.zeros(9999)}, zipfile.ZIP_DEFLATED), "is packed"),
    "more numbers than there are": (
        in_list(b"K\x00K\x04\x85", b"K\x00" + LARGE + b"\x85"),
        "resize|larger than what is stored",
    ),
    "numbers that repeat": (saved({"a": torch.ones(1).expand(1 << 40)}), "larger than what is stored"),
    "no numbers": (in_list(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x007"), "data/7"),
}


@pytest.mark.fault(18, 39)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_plain_tensor_is_refused(case: str, here: Path) -> None:
    Path("w.pth").write_bytes(REFUSED[case][0])
    with pytest.raises(InputError, match=rf"w.pth is no state dict of plain tensors: .*({REFUSED[case][1]})"):
        StateDict(Path("w.pth"))
    assert not Path("ran").exists()


def calling(what: bytes, argument: bytes) -> bytes:
    """An archive whose pickle calls something with one argument, beside a tensor."""

    def change(name: str, content: bytes) -> bytes:
        if name != "data.pkl":
            return content
        # Before the end of the dictionary: a key, and what the call gives.
        return content[:-2] + b"X\x01\x00\x00\x00bc" + what + b"\n" + argument + b"\x85Rs."

    return rezipped(change)


@pytest.mark.fault(93)
@pytest.mark.parametrize("size", [1 << 20, 1 << 36])
@pytest.mark.parametrize(
    "what", ["__builtin__\nbytearray", "builtins\nbytearray", "torch\nempty", "torch\nzeros", "numpy\nzeros"]
)
def test_a_pickle_gets_no_memory_by_asking_for_it(
    what: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    number = size.to_bytes(6, "little")
    Path("w.pth").write_bytes(calling(what.encode(), b"\x8a\x06" + number))
    loaded = []
    monkeypatch.setattr(torch, "load", lambda *_, **settings: loaded.append(settings))
    with pytest.raises(InputError, match=r"w.pth is no state dict of plain tensors: it asks for more than tensors"):
        StateDict(Path("w.pth"))
    assert not loaded


@pytest.mark.fault(93)
def test_a_pickle_that_says_more_than_it_may_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydractl.files.state_dict._LONGEST_PICKLE", 100)
    path = tmp_path / "w.pth"
    path.write_bytes(saved({"a": torch.ones(2)}))
    with pytest.raises(InputError, match=r"it holds \d+ bytes beside its tensors"):
        StateDict(path)
