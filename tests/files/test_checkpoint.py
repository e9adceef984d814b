"""Checkpoint files: what is refused, and bytes that depend on nothing but the content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from hydractl.errors import InputError
from hydractl.files.checkpoint import DictTensors, FileTensors, sha256_file, write_tensors
from hydractl.files.header import MAX_HEADER_BYTES, read_header
from tests.running import refused, tensors

# --- files that are refused -------------------------------------------------------------------------------------------


def entry(start: int = 0, end: int = 8, dtype: Any = "F32", shape: Any = (2,)) -> dict[str, Any]:
    shape = list(shape) if isinstance(shape, tuple) else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def raw(header: str | bytes | dict[str, Any], data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    """The bytes of a file with this header, right or wrong."""
    text = json.dumps(header) if isinstance(header, dict) else header
    blob = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(blob) if length is None else length) + blob + data


def refusal(tmp_path: Path, content: bytes) -> InputError:
    """The error that reading the file raises, having checked that it is fit to be shown."""
    path = tmp_path / "broken.st"
    path.write_bytes(content)
    error: InputError = refused(InputError, read_header, path)
    assert str(path) in error.message, "the message must name the file"
    for line in (error.message, *error.problems):
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 400
        line.encode("utf-8")
    return error


WHOLE = {
    "empty": (b"", "is empty, not a safetensors file"),
    "short": (b"\x01\x02", "is only 2 bytes long, not a safetensors file"),
    "nothing after the length": (struct.pack("<Q", 50), "is truncated: its header of 50 bytes does not fit in 8 bytes"),
    "truncated header": (raw({"a": entry()})[:30], "is truncated: its header of"),
    "length 2^63": (raw({"a": entry()}, length=2**63), "claims a header of 9223372036854775808 bytes"),
    "length 2^64 - 1": (raw({"a": entry()}, length=2**64 - 1), "claims a header of 18446744073709551615 bytes"),
    "length of a header over 16 MiB": (raw({"a": entry()}, length=MAX_HEADER_BYTES + 1), "the limit is 16777216"),
    "length one too small": (raw({"a": entry()}, length=len(json.dumps({"a": entry()})) - 1), "not JSON"),
    "header length zero": (raw(""), "is empty"),
    "not JSON": (raw("{nonsense}"), "broken.st is not JSON: "),
    "not UTF-8": (raw(b'{"\xff\xfe": 1}'), "broken.st is not UTF-8 text"),
    "a list": (raw("[1, 2]"), "has a header that is not a JSON object"),
    "a number": (raw("17"), "has a header that is not a JSON object"),
    "deep nesting": (raw("[" * 1_000_000), "is nested too deeply"),
    "integer of 5000 digits": (raw('{"a": ' + "9" * 5000 + "}"), "cannot be read: "),
    "half a character": (raw({"a\ud800": entry()}), "contains half a character (an unpaired surrogate)"),
    "duplicate tensor": (raw('{"a": 1, "a": 2}'), "has the key 'a' twice in one object"),
    "duplicate key in an entry": (raw('{"a": {"dtype": 1, "dtype": 2}}'), "has the key 'dtype' twice in one object"),
    "duplicate metadata": (raw('{"__metadata__": {"x": "1", "x": "2"}}'), "has the key 'x' twice in one object"),
    "no tensors": (raw({}, b""), "contains no tensors"),
    "only metadata": (raw({"__metadata__": {"format": "pt"}}, b""), "contains no tensors"),
    "metadata a list": (raw({"__metadata__": [], "a": entry()}), "has metadata that is not a map of strings"),
    "metadata null": (raw({"__metadata__": None, "a": entry()}), "has metadata that is not a map of strings"),
    "metadata a number": (raw({"__metadata__": {"x": 1}, "a": entry()}), "has metadata that is not a map of strings"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a git-LFS pointer"),
    "JSON": (b'{"schema": "hydractl.mask/1", "sites": {}}', "is JSON, not a checkpoint"),
    "arrays": (b"PK\x03\x04\x14" + b"\0" * 25 + b"x.npy" + b"\0" * 50, "is an .npz file of arrays, not a checkpoint"),
    "GGUF": (b"GGUF\x03" + b"\0" * 50, "is a GGUF file, not safetensors"),
    "zip pickle": (b"PK\x03\x04\x00\x00\x08\x08" + b"\0" * 50, "is a pickle, which hydractl never opens"),
    "bare pickle": (b"\x80\x02}q\x00X\x01\x00\x00\x00a" + b"\0" * 50, "is a pickle, which hydractl never opens"),
    "newest pickle": (b"\x80\x05\x95\x10\0\0\0\0\0\0\0" + b"\0" * 9, "is a pickle, which hydractl never opens"),
    "zeros of the right size": (b"\0" * 512, "is empty"),
}


@pytest.mark.fault(15, 18)
@pytest.mark.parametrize("case", list(WHOLE))
def test_files_that_are_no_checkpoint_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, expected = WHOLE[case]
    error = refusal(tmp_path, content)
    assert expected in error.message
    assert error.exit_code == 3
    assert error.problems == []


@pytest.mark.fault(15, 18)
def test_pointers_and_pickles_come_with_a_way_out(tmp_path: Path) -> None:
    assert refusal(tmp_path, WHOLE["LFS pointer"][0]).hint == "git lfs pull"
    assert "safetensors.torch.save_file" in (refusal(tmp_path, WHOLE["zip pickle"][0]).hint or "")


ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": ({"a": entry(0, 8), "b": entry(4, 12)}, "tensor 'b' overlaps the one before (starts at 4, expected 8)"),
    "hole": ({"a": entry(0, 8), "b": entry(16, 24)}, "tensor 'b' leaves a hole before it (starts at 16, expected 8)"),
    "hole at the start": ({"a": entry(8, 16)}, "tensor 'a' leaves a hole before it (starts at 8, expected 0)"),
    "same range twice": ({"a": entry(), "b": entry()}, "tensor 'b' overlaps the one before (starts at 0, expected 8)"),
    "over-long": ({"a": entry(0, 4, shape=(1,))}, "the file is over-long: 8 bytes of data, 4 described"),
    "truncated": ({"a": entry(0, 16, shape=(4,))}, "the file is truncated: 8 bytes of data, 16 described"),
    "end before start": ({"a": entry(8, 0)}, "tensor 'a' needs 8 bytes, its range has -8"),
    "shape and range": ({"a": entry(shape=(3,))}, "tensor 'a' needs 12 bytes, its range has 8"),
    "shape overflows": ({"a": entry(shape=(2**33, 2**33))}, "tensor 'a' needs 295147905179352825856 bytes"),
    "negative size": ({"a": entry(shape=(-2,))}, "tensor 'a' has the bad shape [-2]"),
    "float size": ({"a": entry(shape=[2.0])}, "tensor 'a' has the bad shape [2.0]"),
    "bool size": ({"a": entry(shape=[True])}, "tensor 'a' has the bad shape [True]"),
    "size over 2^63": ({"a": entry(shape=[10**400, 10**400])}, "tensor 'a' has the bad shape [1000"),
    "65 dimensions": ({"a": entry(0, 4, shape=[1] * 65)}, "tensor 'a' has the bad shape [1, 1"),
    "shape a string": ({"a": entry(shape="2")}, "tensor 'a' has the bad shape '2'"),
    "shape nothing": ({"a": {**entry(), "shape": None}}, "tensor 'a' has the bad shape None"),
    "unknown dtype": ({"a": entry(dtype="F8_E4M3")}, "tensor 'a' has the unknown dtype 'F8_E4M3'"),
    "dtype nothing": ({"a": entry(dtype=None)}, "tensor 'a' has the unknown dtype None"),
    "dtype a list": ({"a": entry(dtype=["F32"])}, "tensor 'a' has the unknown dtype ['F32']"),
    "dtype huge": ({"a": entry(dtype="F" * 100_000)}, "tensor 'a' has the unknown dtype 'FFFF"),
    "one offset": ({"a": {**entry(), "data_offsets": [0]}}, "tensor 'a' has bad offsets [0]"),
    "negative offset": ({"a": entry(-8, 0)}, "tensor 'a' has bad offsets [-8, 0]"),
    "float offset": ({"a": {**entry(), "data_offsets": [0, 8.0]}}, "tensor 'a' has bad offsets [0, 8.0]"),
    "offsets a map": ({"a": {**entry(), "data_offsets": {"0": 8}}}, "tensor 'a' has bad offsets {'0': 8}"),
    "entry a list": ({"a": []}, "tensor 'a' has a malformed entry"),
    "entry too small": ({"a": {"dtype": "F32", "shape": [2]}}, "tensor 'a' has a malformed entry"),
    "entry too large": ({"a": {**entry(), "code": "x"}}, "tensor 'a' has a malformed entry"),
    "name upwards": ({"../a": entry()}, "tensor name '../a' looks like a path"),
    "name upwards inside": ({"a/../../b": entry()}, "tensor name 'a/../../b' looks like a path"),
    "name absolute": ({"/etc/passwd": entry()}, "tensor name '/etc/passwd' looks like a path"),
    "name of Windows": ({"..\\a": entry()}, "tensor name '..\\\\a' looks like a path"),
    "name empty": ({"": entry()}, "tensor name '' looks like a path"),
    "name with NUL": ({"a\0b": entry()}, "tensor name 'a\\x00b' looks like a path"),
    "terminal escape": ({"a\x1b[2J": entry(dtype="X")}, "tensor 'a\\x1b[2J' has the unknown dtype 'X'"),
}


@pytest.mark.fault(15, 16)
@pytest.mark.parametrize("case", list(ENTRIES))
def test_broken_entries_are_refused_with_their_names(case: str, tmp_path: Path) -> None:
    header, expected = ENTRIES[case]
    error = refusal(tmp_path, raw(header))
    assert error.message.endswith("broken.st is not a valid safetensors file")
    assert len(error.problems) == 1
    assert error.problems[0].startswith(expected)


def test_all_broken_entries_are_listed_at_once(tmp_path: Path) -> None:
    error = refusal(tmp_path, raw({"a": entry(dtype="X"), "../b": entry(), "c": entry(shape=(9,)), "d": entry()}))
    assert error.problems == [
        "tensor 'a' has the unknown dtype 'X'",
        "tensor name '../b' looks like a path",
        "tensor 'c' needs 36 bytes, its range has 8",
    ]


@pytest.mark.fault(16)
def test_one_tensor_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header: dict[str, Any] = {"__metadata__": {}, **dict.fromkeys(map(str, range(100_001)), 0)}
    assert "lists 100001 tensors (the limit is 100000)" in refusal(tmp_path, raw(header)).message
    monkeypatch.setattr("hydractl.files.header.MAX_TENSORS", 1)
    most = tmp_path / "most.st"
    most.write_bytes(raw({"__metadata__": {}, "a": entry()}))
    assert list(read_header(most).tensors) == ["a"], "metadata is no tensor"


@pytest.mark.fault(16)
def test_a_header_over_16_mib_is_refused_though_it_is_there(tmp_path: Path) -> None:
    text = json.dumps({"a": entry()})
    text += " " * (MAX_HEADER_BYTES - len(text))
    good = tmp_path / "good.st"
    good.write_bytes(raw(text))
    assert list(read_header(good).tensors) == ["a"]
    assert "claims a header of 16777217 bytes (the limit is 16777216)" in refusal(tmp_path, raw(text + " ")).message


@pytest.mark.parametrize("length", [640, 640 + 65536])
def test_a_header_length_that_looks_like_a_pickle_is_none(length: int, tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(raw(json.dumps({"a": entry()}).ljust(length)))
    assert path.read_bytes()[:1] == b"\x80"
    assert list(read_header(path).tensors) == ["a"]


DESCRIPTIONS = {
    "not JSON": ("{", "the description in {path} is not JSON"),
    "not an object": ("[1]", "{path} has a hydractl description that is not a JSON object"),
    "nested": ("[" * 200_000, "the description in {path} is nested too deeply"),
    "NaN": ('{"a": NaN}', "the description in {path} contains NaN"),
    "beyond floats": ('{"a": 1e999}', "the description in {path} contains 1e999, which is too large for a number"),
    "duplicate key": ('{"a": 1, "a": 2}', "the description in {path} has the key 'a' twice"),
    "half a character": ('{"a": "\\ud800"}', "the description in {path} contains half a character"),
}


@pytest.mark.fault(40)
@pytest.mark.parametrize("case", list(DESCRIPTIONS))
def test_hostile_descriptions_are_refused(case: str, tmp_path: Path) -> None:
    text, expected = DESCRIPTIONS[case]
    error = refusal(tmp_path, raw({"__metadata__": {"hydractl": text}, "a": entry()}))
    assert error.message.startswith(expected.format(path=tmp_path / "broken.st"))


@pytest.mark.fault(40)
def test_metadata_is_data(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    hostile = {"hydractl": '{"labels": ["\\u001b[31m", "/etc/passwd"]}', "x" * 100_000: "y" * 100_000, "../z": "\x1b"}
    path.write_bytes(raw({"__metadata__": hostile, "a": entry()}))
    header = read_header(path)
    assert header.metadata == hostile
    assert header.description == {"labels": ["\x1b[31m", "/etc/passwd"]}


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no such file: .*absent\.st$"):
        read_header(tmp_path / "absent.st")
    with pytest.raises(InputError, match=r"is a folder, not a checkpoint file$"):
        read_header(tmp_path)
    with pytest.raises(InputError, match=r"^cannot read .*File name too long$"):
        read_header(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match=r"^cannot read .*Not a directory$"):
        (tmp_path / "file").write_bytes(b"")
        read_header(tmp_path / "file" / "a.st")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.st")
    with pytest.raises(InputError, match=r"is no regular file$"):
        read_header(tmp_path / "pipe.st")


@pytest.mark.fault(8)
def test_a_file_that_changes_after_its_header_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.st"
    path.write_bytes(raw({"a": entry()}))
    tensors = FileTensors(path)
    path.write_bytes(b"\0" * 20)
    with pytest.raises(InputError, match=r"^cannot read 'a' from .*a\.st"):
        tensors.read("a")


# --- canonical bytes --------------------------------------------------------------------------------------------------

DESCRIPTION = {"schema": "test", "labels": ["Größe", "b"], "z": 1, "a": {"y": [1.5, None], "x": True}}


def every_dtype() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3, 5, generator=generator) * 100
    dtypes = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    tensors = {f"{name}.weight": base.to(getattr(torch, name)) for name in dtypes}
    return {
        **tensors,
        "scalar": torch.tensor(3.25),
        "empty.0": torch.empty(0, 7),
        "empty.1": torch.empty(2, 0, 3, dtype=torch.int16),
        "transposed": base.T,
        "strided": torch.arange(40, dtype=torch.float16).reshape(5, 8)[::2, 1::3],
        "every other": torch.arange(10)[::2],
        "expanded": torch.tensor([[1.0], [-0.0]]).expand(2, 4),
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "Größe": torch.ones(2, requires_grad=True),
    }


def write(path: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any] = DESCRIPTION) -> str:
    with open(path, "wb") as handle:
        return write_tensors(handle, DictTensors(tensors), description)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert bits(found) == bits(expected)


@pytest.mark.fault(19)
def test_every_dtype_and_layout_comes_back_bit_for_bit(tmp_path: Path) -> None:
    expected = every_dtype()
    write(tmp_path / "a.st", expected)
    for found in (tensors(tmp_path / "a.st"), safetensors.torch.load_file(tmp_path / "a.st")):
        assert sorted(found) == sorted(expected)
        for name, tensor in expected.items():
            assert_same(found[name], tensor)


def test_the_library_reads_the_metadata(tmp_path: Path) -> None:
    write(tmp_path / "a.st", every_dtype())
    with safetensors.safe_open(tmp_path / "a.st", framework="pt") as handle:
        metadata = handle.metadata()
    assert metadata["format"] == "pt"
    assert json.loads(metadata["hydractl"]) == DESCRIPTION
    assert read_header(tmp_path / "a.st").description == DESCRIPTION


def test_the_order_of_tensors_and_keys_does_not_matter(tmp_path: Path) -> None:
    tensors = every_dtype()
    digest = write(tmp_path / "a.st", tensors)
    backwards = {key: DESCRIPTION[key] for key in reversed(DESCRIPTION)}
    again = write(tmp_path / "b.st", {name: tensors[name] for name in reversed(tensors)}, backwards)
    assert digest == again
    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    digest = write(tmp_path / "a.st", every_dtype())
    assert digest == hashlib.sha256((tmp_path / "a.st").read_bytes()).hexdigest() == sha256_file(tmp_path / "a.st")
    assert digest != write(tmp_path / "b.st", every_dtype(), {**DESCRIPTION, "z": 2})


def test_every_tensor_is_aligned_and_the_header_keys_are_sorted(tmp_path: Path) -> None:
    write(tmp_path / "a.st", every_dtype())
    header = read_header(tmp_path / "a.st")
    assert header.data_start % 8 == 0
    sizes = {name: info.nbytes // max(info.numel, 1) for name, info in header.tensors.items()}
    assert all(header.tensors[name].start % size == 0 for name, size in sizes.items() if size)
    keys = list(json.loads((tmp_path / "a.st").read_bytes()[8 : header.data_start]))
    assert keys == sorted(keys)


def test_a_description_with_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_tensors(io.BytesIO(), DictTensors({"a": torch.ones(1)}), {"a": float("nan")})
