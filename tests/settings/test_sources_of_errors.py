"""An error about a value that nobody typed says where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.cli.app import main
from hydractl.options.call import gather
from hydractl.options.verbs import declared
from hydractl.options.wording import with_sources

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=12&depth=1&num_heads=3&num_classes=3"


@pytest.mark.fault(69)
def test_data_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    asked = ["prune", MODEL, "--method", "taylor", "--keep", "1", "-o", "a.st"]
    monkeypatch.setenv("HYDRACTL_DATA", "folder")
    assert main(asked) == 3
    assert "error: --data folder: no images in the folder (--data from HYDRACTL_DATA)" in capsys.readouterr().err
    monkeypatch.delenv("HYDRACTL_DATA")
    (tmp_path / "hydra.yaml").write_text("data: none.npz")
    assert main(asked) == 3
    assert "error: --data none.npz: no such file or folder (--data from hydra.yaml:data)" in capsys.readouterr().err
    assert main([*asked, "--data", "folder"]) == 3
    assert "error: --data folder: no images" in capsys.readouterr().err


@pytest.mark.fault(69)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no such model: a.st", "no such model: a.st (MODEL from HYDRACTL_MODEL)"),
        ("--ood x far.npz: no such file", "--ood x far.npz: no such file (--ood from hydra.yaml:eval.ood)"),
        ("a.st, --ood x far.npz", "a.st, --ood x far.npz (MODEL from HYDRACTL_MODEL, --ood from hydra.yaml:eval.ood)"),
        ("--val v.npz: no such file", "--val v.npz: no such file"),
    ],
)
def test_every_value_has_its_source(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "hydra.yaml").write_text("eval: {ood: {'x:near': far.npz}}")
    flags = {"test": "d.npz", "val": "v.npz", "temperature": "fit"}
    call = gather(declared("eval"), flags, {"HYDRACTL_MODEL": "a.st"}, tmp_path)
    assert with_sources(call, text) == expected
