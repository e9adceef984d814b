"""What a hostile but fair user tries on the command line, each time that it once went wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hydractl.cli.app import main

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=2&in_chans=1"
    "&embed_dim=24&depth=3&num_heads=3&mlp_ratio=2&num_classes=10"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that knows its class names."""
    path = tmp_path_factory.mktemp("model") / "vit.st"
    assert main(["finetune", MODEL, "--train", "builtin:digits/val", "--steps", "1", "-q", "-o", str(path)]) == 0
    return path


@pytest.fixture
def here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing but ``vit.st``, a copy of the model."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(model, "vit.st")
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


PRUNE = ["prune", "vit.st", "--method", "random", "--keep", "1"]


@pytest.mark.parametrize(
    "command",
    [
        PRUNE,
        ["score", "vit.st", "--method", "random"],
        ["fuse", "vit.st", "vit.st"],
        ["finetune", "vit.st", "--train", "builtin:digits/val", "--steps", "1"],
        ["extract-circuit", "vit.st", "--val", "builtin:digits/val", "--objective", "acc", "--budget", "1"],
        ["eval", "vit.st", "--test", "builtin:digits/val"],
        ["bench", "vit.st", "--rounds", "1"],
    ],
    ids=lambda command: command[0],
)
def test_an_output_that_can_only_be_a_folder(
    command: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without its slash, "new/" would silently become a file. A folder from prune needs --layout zeroed, and finetune
    # writes one. All that differs between the others is that they ask.
    outputs = {"prune": [".", "/"], "score": [".", "/", "new/"], "finetune": ["."]}
    for output in outputs.get(command[0], ["new/"]):
        capsys.readouterr()
        code = main([*command, "-o", output])
        said = capsys.readouterr()
        assert code in (2, 5) if (command, output) == (PRUNE, "/") else code == 5, (output, said.err)
        assert "internal" not in said.err
        assert said.out == ""
    assert files(here) == ["vit.st"]


def test_predictions_of_several_models_need_a_file_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "vit.st", "b=vit.st", "--test", "builtin:digits/val", "--predictions", "."]
    assert main(command) in (2, 5)
    assert "internal" not in capsys.readouterr().err
    assert files(here) == ["vit.st"]


def test_every_number_of_a_row_can_be_required(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hydractl.files.results import value_at
    from hydractl.metrics.rows import row_keys

    command = [
        "eval",
        "vit.st",
        "--test",
        "builtin:digits/test",
        "--ood",
        "l.1:near=builtin:letters",
        "--limit",
        "60",
        "--json",
    ]
    assert main(command) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    keys = row_keys(["l.1"])
    assert all(value_at(row, key) is None or value_at(row, key) >= 0 for key in keys)
    numbers = {f"{a}.{b}" for a in ("id", "errors", "near_avg", "far_avg", "ood_avg") for b in row[a]}
    numbers |= {f"{a}.{n}.{b}" for a in ("ood", "diversity") for n in row[a] for b in row[a][n]}
    numbers |= {f"id.accuracy_at.{share}" for share in row["id"]["accuracy_at"]}
    no_numbers = {"id.accuracy_at", "ood.l.1.group", "diversity.id.pairs", "diversity.l.1.pairs"}
    assert set(keys) == numbers - no_numbers
    assert main([*command, "--require", "ood.l.1.auroc>=2"]) == 4
