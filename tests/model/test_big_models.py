"""What a model costs in memory that is big: weights pass through, and are read no more often than needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hydractl.files.checkpoint
from hydractl.criteria.magnitude import Magnitude
from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.files.checkpoint import FileTensors, read_piece
from hydractl.files.header import tensor_info
from hydractl.model.stored import StoredHeads, check_finite_weights
from tests.image_data import write_images
from tests.pico import keeping, model_of, shared_source
from tests.running import run

SMALL = "pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"
TINY = f"timm:vit_tiny_patch16_224?{SMALL}"


# --- memory -----------------------------------------------------------------------------------------------------------

MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path
import torch
import hydractl.model.cost
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.cli.app import main
from hydractl.model.source import open_source

hydractl.model.cost.macs = lambda *_, **__: 1  # counting takes time, and no memory

def memory(field):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) * 1024

def make(path, options, dtype):
    source = open_source("timm:vit_tiny_patch16_224?pretrained=0&patch_size=16&" + options)
    tensors = DictTensors({n: source.tensors.read(n).to(dtype) for n in source.tensors.names()})
    with open(path, "wb") as handle:
        write_tensors(handle, tensors, source.description.to_json())

def peak(*arguments):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size so far is that of now
    before = memory("VmRSS")
    assert main([*arguments, "-q"]) == 0
    output = Path(arguments[-1]).stat().st_size
    return (memory("VmHWM") - before) / output

def chain(name, keep):
    members = [f"{name}{seed}.st" for seed in range(3)]
    found = {}
    for seed, member in enumerate(members):
        method = "magnitude" if seed == 2 else "random"
        found[f"prune {method}"] = peak(
            "prune", f"{name}.st", "--method", method, "--seed", str(seed), "--keep", keep, "-o", member)
    found["fuse"] = peak("fuse", *members, "--device", "cpu", "-o", f"{name}.hydra.st")
    return found

found = {}
for name, depth in (("float32", 6), ("bfloat16", 12)):
    dtype = getattr(torch, name)
    make(name + "-warm.st", "img_size=32&embed_dim=24&depth=3&num_heads=3&num_classes=5", dtype)
    make(name + ".st", f"img_size=32&embed_dim=576&depth={depth}&num_heads=12&num_classes=10", dtype)
    chain(name + "-warm", "2")  # imports, kernels and whatever else comes with the first call
    gc.collect()
    gc.freeze()
    found[name] = chain(name, "6")
print(json.dumps(found))
"""


@pytest.mark.release
def test_memory_of_prune_and_fuse(tmp_path: Path) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process cannot be reset here")
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # One whole model held by prune would be 1.2 of its output. The members share all heads, so fuse's output is as big
    # as the whole model: a member beside the fused model would be 1.8 of it.
    for dtype, found in json.loads(done.stdout.splitlines()[-1]).items():
        assert found["prune random"] < 0.7, (dtype, found)
        assert found["prune magnitude"] < 0.7, (dtype, found)
        assert found["fuse"] < 1.55, (dtype, found)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    run("prune", TINY, "--method", "random", "--keep", "3", "--seed", "3", "-o", folder / "base.st", "-q")
    for seed in range(2):
        model = f"{TINY}&drop_rate=0.{seed}"
        run("prune", model, "--method", "random", "--keep", "2", "-o", folder / f"m{seed}.st", "-q")
    return folder


@pytest.fixture
def files(made: Path, here: Path) -> Path:
    """A folder with two different members and their base."""
    shutil.copytree(made, here, dirs_exist_ok=True)
    return here


# --- headers first ----------------------------------------------------------------------------------------------------

VAL, TRAIN = ["--data", "data.npz"], ["--train", "data.npz", "--epochs", "1"]
SEARCH = ["--val", "data.npz", "--budget", "1"]
MAGNITUDE = ["--method", "magnitude", "--keep", "2"]


@pytest.fixture
def unread(files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ``files``, with data, of which no weight may be read."""

    def refuse(*_: Any) -> torch.Tensor:
        raise AssertionError("a weight was read")

    write_images(data=10, ood=11)
    monkeypatch.setattr(FileTensors, "_fill", refuse)
    return files


@pytest.mark.parametrize(
    "command",
    [
        ["score", "base.st", "--method", "taylor", *VAL, "-o", "n.json"],
        ["prune", "base.st", *MAGNITUDE, "-o", "n.st"],
        ["finetune", "base.st", *TRAIN, "-o", "n.st"],
        ["finetune", "base.st", *TRAIN, "--ensemble", "deep:2", "-o", "n.st"],
        ["fuse", "base.st", "m0.st", "m1.st", "-o", "n.st"],
        ["export", "base.st", "-o", "n.pt2"],
        ["eval", "base.st", "both=m0.st+m1.st", "--test", "data.npz", "--ood", "o=ood.npz", "-o", "n.json"],
        ["bench", "base.st", "m0.st", "-o", "n.json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_dry_runs_read_no_weights(command: list[str], unread: Path) -> None:
    before = sorted(os.listdir())
    run(*command, "--dry-run", "-q")
    assert sorted(os.listdir()) == before


def test_a_big_model_that_is_read_is_announced(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hydractl.verbs.opening._BIG_BYTES", 1)
    run("prune", "base.st", *MAGNITUDE, "-o", "n.st")
    assert "reading 0.0 GB of weights" in capsys.readouterr().err


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    "command",
    [
        ["score", "base.st", "--method", "random", "-o", "taken"],
        ["prune", "base.st", *MAGNITUDE, "-o", "taken"],
        ["prune", "base.st", *MAGNITUDE, "-o", "m0.new.st", "--mask", "taken"],
        ["finetune", "base.st", *TRAIN, "-o", "taken"],
        ["finetune", "base.st", *TRAIN, "-o", "begun.st"],
        ["finetune", "base.st", *TRAIN, "--ensemble", "deep:2", "-o", "n.st"],
        ["extract-circuit", "base.st", *SEARCH, "--objective", "acc", "-o", "taken"],
        ["extract-circuit", "base.st", *SEARCH, "--objective", "acc", "-o", "begun"],
        ["fuse", "m0.st", "m1.st", "-o", "taken"],
        ["eval", "base.st", "--test", "data.npz", "-o", "taken"],
        ["bench", "base.st", "-o", "taken"],
    ],
    ids=lambda command: " ".join([command[0], *command[-3:]]),
)
def test_a_taken_output_is_refused_before_weights_are_read(command: list[str], unread: Path) -> None:
    for name in ("taken", "begun.st.state", "n.1.st", "begun.journal"):
        Path(name).write_text("{}")
    before = sorted(os.listdir())
    run(*command, code=2 if "--mask" in command else 5)
    if command[-2:] == ["-o", "taken"] and command[0] != "extract-circuit":  # which estimates its time by a step
        run(*command, "--dry-run", code=5)
    assert sorted(os.listdir()) == before and Path("taken").read_text() == "{}"


@pytest.mark.parametrize(
    "command",
    [
        ["score", "base.st", "--method", "taylor", "--data", "none.npz"],
        ["prune", "base.st", *MAGNITUDE, "--share-sites", "1", "--with", "none.json"],
        ["finetune", "base.st", *TRAIN, "--val", "none.npz"],
        ["finetune", "base.st", "none.st", *TRAIN, "-o", "./"],
        ["extract-circuit", "base.st", *SEARCH, "--ood-val", "none.npz"],
        ["fuse", f"{TINY}", "m1.st", "none.st"],
        ["eval", "base.st", "m0.st+none.st", "--test", "data.npz"],
        ["bench", "base.st", "m0.st", "none.st"],
    ],
    ids=lambda command: " ".join([command[0], *command[-2:]]),
)
def test_a_missing_input_is_found_before_weights_are_read(
    command: list[str], unread: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(get_family("timm")), "load_name", lambda *_: pytest.fail("weights were drawn"))
    before = sorted(os.listdir())
    run(*command, code=3)
    assert sorted(os.listdir()) == before


# --- outputs that are inputs ------------------------------------------------------------------------------------------


def test_a_file_that_is_written_to_or_replaced(files: Path) -> None:
    def refused(tensors: FileTensors) -> None:
        with pytest.raises(InputError, match=r"^cannot read '.*' from base\.st: the file has changed since"):
            tensors.read(tensors.names()[0])

    tensors = FileTensors("base.st")
    tensors.read(tensors.names()[0])
    content = Path("base.st").read_bytes()
    written = Path("base.st").stat().st_mtime_ns
    with open("base.st", "r+b") as handle:
        handle.seek(-4, os.SEEK_END)
        handle.write(b"\0\0\0\0")
    os.utime("base.st", ns=(written + 10, written + 10))
    refused(tensors)
    tensors = FileTensors("base.st")
    Path("new.st").write_bytes(content)
    os.replace("new.st", "base.st")
    refused(tensors)


# --- one pass over a file ---------------------------------------------------------------------------------------------


@pytest.mark.fault(17)
@pytest.mark.parametrize("block", [64, 1 << 22])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_pass_hashes_and_finds_what_is_not_finite(
    block: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hydractl.files.checkpoint, "SCAN_BYTES", block)
    tensors = {name: torch.linspace(-3, 3, 150).to(dtype).reshape(3, 50) for name in "abcdef"}
    tensors["a"][2, 49] = float("nan")
    tensors["c"][0, 0] = float("inf")
    tensors["d"][1, 20] = -float("inf")
    tensors["e"] = torch.empty(0, 4, dtype=dtype)
    tensors["g"] = torch.arange(200, dtype=torch.int64)
    entries, data = {}, b""
    for name, tensor in reversed(tensors.items()):  # a header of odd length, tensors in no order: another tool's file
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = tensor_info(tensor).dtype
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(entries).encode()
    header += b" " * (1 - len(header) % 2)
    path = tmp_path / "a.st"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    file = FileTensors(path)
    scan = file.scan()
    assert scan.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert scan.not_finite == ["a", "c", "d"]
    with pytest.raises(Exception, match=r"^m: tensor 'a' holds NaN or infinity$"):
        check_finite_weights("m", file)
    for name, tensor in tensors.items():
        assert torch.equal(torch.nan_to_num(file.read(name)), torch.nan_to_num(tensor))
        if tensor.numel():
            piece = read_piece(file, name, 60, 140)
            assert torch.equal(torch.nan_to_num(piece), torch.nan_to_num(tensor.reshape(-1)[60:140]))


@pytest.mark.parametrize("variant", ["class-token", "eva", "bert", "llama", "clip", "gpt2"])
def test_stored_heads_are_those_of_the_model(variant: str) -> None:
    source = shared_source(variant)
    source = keeping(source, [[0, 2], [], [1]])
    stored = StoredHeads(source.tensors, source.description, source.family, torch.float32)
    model: Any = model_of(source)
    sites = range(len(model.sites))
    found: Any = stored
    assert Magnitude().score(found, None, sites) == Magnitude().score(model, None, sites)  # type: ignore[arg-type]
