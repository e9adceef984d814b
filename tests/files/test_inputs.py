"""An output that is one of the inputs, of whatever verb, by whatever path: refused, and the input is as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import hydractl
from hydractl.errors import OutputError
from hydractl.files.atomic import Output
from hydractl.files.inputs import InputFile, reading
from tests.pico import SMALL
from tests.running import run

VIT = f"timm:vit_tiny_patch16_224?{SMALL}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, masks and data."""
    folder = tmp_path_factory.mktemp("made")
    hydractl.save(hydractl.open(VIT), folder / "vit.st")
    for seed in range(2):
        made = folder / f"m{seed}.st"
        words = ["prune", str(folder / "vit.st"), "--method", "random", "--keep", "2", "--seed", str(seed)]
        run(*words, "-o", str(made), "-q")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 16, 16, 3), np.uint8)
    for name, x in zip(("t", "o"), pixels, strict=True):
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(6) % 5)
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    (folder / "map.json").write_text(json.dumps({str(label): label for label in range(5)}))
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    Path("link").symlink_to("t.npz")
    os.link("t.npz", "hard")
    Path("hydra.yaml").write_text("seed: 0\n")
    return tmp_path


EVAL = "eval vit.st --test t.npz"
REFUSED = {
    "t.npz": [
        f"{EVAL} -o t.npz",
        f"{EVAL} -o link",
        f"{EVAL} -o hard",
        f"{EVAL} -o ./../{{folder}}/t.npz",
        f"{EVAL}?limit=3 -o t.npz",
        "score vit.st --method taylor --data t.npz -o t.npz",
        "finetune vit.st --train t.npz --steps 1 -o link",
        "finetune vit.st --train o.npz --val t.npz --steps 1 -o hard",
        "extract-circuit vit.st --val t.npz --objective acc --budget 1 -o t.npz",
    ],
    "o.npz": [
        f"{EVAL} --ood other:far=o.npz -o o.npz",
        f"{EVAL} --temperature fit --val o.npz -o o.npz",
    ],
    "vit.st": [
        f"{EVAL} -o vit.st",
        "bench vit.st -o vit.st",
        "bench NAME=vit.st m0.st -o vit.st",
        "score vit.st --method random -o vit.st",
        f"{EVAL} --predictions vit.st",
    ],
    "m1.st": ["eval m0.st+m1.st --test t.npz -o m1.st"],
    "m0.mask.json": ["prune vit.st --mask m0.mask.json -o m0.st"],
    "labels.txt": [f"{EVAL} --labels labels.txt -o labels.txt"],
    "map.json": [f"{EVAL} --label-map map.json -o map.json"],
    "hydra.yaml": [f"{EVAL} -o hydra.yaml"],
}
CASES = [(name, command) for name, commands in REFUSED.items() for command in commands]


@pytest.mark.fault(67)
@pytest.mark.parametrize(("name", "command"), CASES)
def test_an_input_is_never_replaced(here: Path, capsys: pytest.CaptureFixture[str], name: str, command: str) -> None:
    before = {file.name: file.read_bytes() for file in here.iterdir()}
    words = command.format(folder=here.name).split()
    run(*words, "--force", "--device", "cpu", "-q", code=5)
    said = capsys.readouterr().err
    assert said.startswith("error: the output ") and " is the input of " in said and "\nhint: choose another" in said
    assert {file.name: file.read_bytes() for file in here.iterdir()} == before


@pytest.mark.fault(67)
def test_folders(here: Path) -> None:
    Path("f").mkdir()
    Path("f/labels.txt").write_bytes(Path("labels.txt").read_bytes())
    words = ["prune", "vit.st", "--method", "random", "--keep", "2", "--layout", "zeroed", "--force", "-q"]
    run(*words, "--labels", "f/labels.txt", "-o", "f/", code=5)
    assert Path("f/labels.txt").exists()
    sample = InputFile("data", "--data", samples=True)
    Path("data/cat").mkdir(parents=True)
    for name in ("data/cat/1.png", "data/e.json"):
        Path(name).write_text("x")
    with reading([sample]):
        with pytest.raises(OutputError, match="is one of the files of --data"):
            Output("data/cat/1.png", force=True)
        for free in ("data/e.json", "data/cat/new.json"):
            with Output(free, force=True):
                pass


@pytest.mark.fault(67)
def test_a_model_may_be_replaced_by_what_is_made_of_it(here: Path) -> None:
    before = Path("vit.st").read_bytes()
    run("prune", "vit.st", "--method", "random", "--keep", "1", "-o", "vit.st", "--force", "-q")
    assert Path("vit.st").read_bytes() != before
    run("fuse", "m0.st", "m1.st", "-o", "m0.st", "--force", "-q")
    run("prune", "m1.st", "--method", "random", "--keep", "1", "-o", "m1.st", "-q", code=5)
    hydractl.prune("m1.st", method="random", keep=1, output="m1.st", force=True)
    with pytest.raises(OutputError, match="is the input of test"):
        hydractl.evaluate("vit.st", test="t.npz", output="t.npz", force=True)
