"""The page on adding a method, to the letter: a package of somebody else's with a flag and a row of a study."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hydractl.methods import METHODS, ensemble_kinds, read_ensemble
from hydractl.methods.lora import LoraOptions
from hydractl.methods.packed import PackedOptions
from tests.image_data import write_images
from tests.running import install_beside

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
(METHOD,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(PACKAGE,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
ON_CPU = ["--device", "cpu", "--batch-size", "8"]
MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz"]
STUDY = [*DATA, "--val", "val.npz", "--ood-val", "seen.npz", "--test", "test.npz", "--ood", "noise:far=noise.npz"]
COMMANDS: list[list[str]] = [
    ["finetune", "--help"],
    ["finetune", MODEL, *DATA, *ON_CPU, "--epochs", "1", "--lr", "0.01", "--ensemble", "bias-only", "-o", "tuned.st"],
    ["study", MODEL, *STUDY, *ON_CPU, "--rows", "bias-only", "--dry-run", "--json"],
]
# In a process of its own: settings and rows read the methods when they are imported.
PROCESS = """
import json, sys
from hydractl.cli.app import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 0, command
import hydractl
before = hydractl.load(sys.argv[2], device="cpu").stock_tensors()
after = hydractl.load("tuned.st", device="cpu").stock_tensors()
changed = sorted(name for name, tensor in before.items() if not tensor.equal(after[name]))
print("changed:", *changed)
"""


@pytest.mark.long
def test_its_flag_its_training_and_its_row_of_a_study(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "bias_only.py").write_text(METHOD, encoding="utf-8")
    install_beside(place, {"name": "hydractl-bias-only", "version": "1.0", **tomllib.loads(PACKAGE)["project"]})
    with contextlib.chdir(tmp_path):
        write_images(train=40, val=20, seen=20, test=20, noise=20)
    paths = os.pathsep.join([str(ROOT), str(place)])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "100"}
    command = [sys.executable, "-c", PROCESS, json.dumps(COMMANDS), MODEL]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bias-only[:M]" in done.stdout and "Train only the biases and the classifier" in done.stdout
    changed = done.stdout.rpartition("changed: ")[2].split()
    assert "blocks.0.mlp.fc1.bias" in changed and "head.weight" in changed
    assert all(name.endswith("bias") or name.startswith("head.") for name in changed)
    assert '"bias-only"' in done.stdout.partition("changed: ")[0].rpartition("study-plan")[2]


@pytest.mark.parametrize("kind", ensemble_kinds())
def test_what_a_kind_is_asked_for_is_written_as_it_is_read(kind: str) -> None:
    example = ensemble_kinds()[kind].example
    options = read_ensemble(f"{kind}:{example}")
    assert type(options) is ensemble_kinds()[kind] and read_ensemble(str(options)) == options
    assert str(options) == f"{kind}:{example}"
    declared = options.to_json()
    assert declared is None if kind == "deep" else json.loads(json.dumps(declared))["kind"] == kind


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must begin with one of deep, lora, "),
        ("pakced:3,2", "not 'pakced'; did you mean packed?"),
        ("masksembles:3,2", "not 'masksembles'; a package may add it: docs/ensembles.md#to-add-another"),
        ("packed", "must be packed:M,ALPHA, such as packed:3,2, not 'packed'"),
        ("packed:3,2,1", "must be packed:M,ALPHA, such as packed:3,2, not 'packed:3,2,1'"),
        ("packed:1,2", "packed: M must be at least 2, not 1; such as packed:3,2"),
        ("packed:3,x", "packed: ALPHA must be a number or a fraction such as 9/4, not 'x'; such as packed:3,2"),
        ("lora:4.5,8", "lora: RANK must be a whole number, not '4.5'"),
        ("batch-ensemble:-0.1", "batch-ensemble: STD must be at least 0, not -0.1"),
        ("mimo:3,1.5", "mimo: RHO must be at most 1, not 1.5"),
    ],
)
def test_what_is_wrong_with_a_kind_is_told_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_ensemble(text)


def test_options_of_a_method_made_in_python_are_checked() -> None:
    assert str(LoraOptions(4, 8, members=3)) == "lora:4,8,3"
    assert PackedOptions(3, 2).together() == read_ensemble("packed:3,2").together()
    with pytest.raises(ValueError, match="M must be at least 2, not 1"):
        PackedOptions(1, 2)
    with pytest.raises(ValueError, match="RANK must be a whole number, not '4'"):
        LoraOptions("4", 8)  # type: ignore[arg-type]


def test_every_method_trains_or_has_a_row_of_a_study() -> None:
    for method in METHODS.all():
        assert method.options or method.rows
