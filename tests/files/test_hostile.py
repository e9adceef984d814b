"""What a hostile but fair user tries on the command line, each time that it once went wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hydractl.cli.app import main
from tests.running import run

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=2&in_chans=1"
    "&embed_dim=24&depth=3&num_heads=3&mlp_ratio=2&num_classes=10"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that knows its class names."""
    path = tmp_path_factory.mktemp("model") / "vit.st"
    run("finetune", MODEL, "--train", "builtin:digits/val", "--steps", "1", "-q", "-o", str(path))
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
