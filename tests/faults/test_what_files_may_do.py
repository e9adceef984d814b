"""Files that would have something run, or read elsewhere, by a library that opens them for hydractl."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.cli.app import main
from hydractl.errors import InputError
from hydractl.files.state_dict import StateDict
from tests.fuzz.readers import CORPUS
from tests.running import read_json
from tests.spread import spread

EVAL = next((CORPUS / "eval").iterdir())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fault(58)
def test_a_matplotlibrc_of_the_working_folder_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib has TeX draw the texts where such a file says so."""
    import matplotlib

    plot = ["report", str(EVAL), "--html"]
    assert main([*plot, "a.html"]) == 0
    Path("latex").write_text("#!/bin/sh\ntouch pwned\n")
    Path("latex").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.getcwd()}:{os.environ['PATH']}")
    evil = {"text.usetex": True, "text.latex.preamble": r"\input{/etc/passwd}", "font.size": 40.0}
    with matplotlib.rc_context(evil):
        assert main([*plot, "b.html"]) == 0
        assert matplotlib.rcParams["text.usetex"]  # of the caller's own pictures
    page = Path("a.html").read_bytes()
    assert b"<img" in page and page == Path("b.html").read_bytes()
    assert not Path("pwned").exists()


@pytest.mark.fault(58)
def test_images_outside_of_a_set() -> None:
    from hydractl.data.base import UnreadableSample
    from hydractl.data.hub import HubImages

    Path("set").mkdir()
    for file in ("secret.png", "set/own.png"):
        Path(file).write_bytes((CORPUS / "png" / "i.png").read_bytes())
    paths = ["set/own.png", "secret.png", "set/../secret.png", str(Path("secret.png").absolute())]
    column = [{"bytes": None, "path": path} for path in paths]
    images = HubImages("hf:./set/default/train", "--data", [str(i) for i in range(4)], column, ["set"])
    assert images.read(0)
    for index in range(1, 4):
        with pytest.raises(UnreadableSample, match="outside of the set"):
            images.read(index)


@pytest.mark.fault(70)
def test_tensors_without_numbers_in_a_state_dict() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2), "b": torch.zeros(2, device="meta")}, buffer)
    Path("w.pth").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match=r"w.pth is no state dict of plain tensors: 'b' has no numbers"):
        StateDict(Path("w.pth"))


@pytest.mark.fault(70)
@pytest.mark.parametrize(
    ("value", "key"),
    spread([7, True, "x", {"a": 1}, ["a"], [None], [10**400]], ["mean", "std"]),
    ids=lambda value: str(value)[:9],
)
def test_a_timm_configuration_of_other_types(value: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["prune", "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=6&depth=1&num_heads=3"]
    if not Path("f").exists():
        words = [*made, "--method", "magnitude", "--keep", "3", "--layout", "zeroed", "-o", "f/", "-q"]
        assert main(words) == 0
    config = read_json("f/config.json")
    config["pretrained_cfg"][key] = value
    Path("f/config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert main(["prune", "f", "--method", "magnitude", "--keep", "1", "-o", "o.st", "-q"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "internal" not in said and len(said.splitlines()) <= 2
