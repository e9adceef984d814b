"""Criteria and families of others: the pages about adding them, followed to the letter."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.errors import InputError
from hydractl.files.plugins import Registry
from tests.running import read_json

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("adding-a-criterion", "adding-a-family")
TOY = "toy:pico?pretrained=0"
COMMANDS: list[list[str]] = [
    ["score", "--help"],
    ["score", TOY, "--method", "vo_norm:order=1", "-o", "scores.json"],
    ["prune", TOY, "--scores", "scores.json", "--keep", "2", "-o", "a.st"],
    ["prune", TOY, "--method", "random", "--keep", "1", "-o", "b/"],
    ["fuse", "a.st", "b", "--merge", "none", "-o", "hydra.st"],
    ["--info", "hydra.st"],
]
# What runs in a process of its own: the commands, then the second member against the library's own model.
PROCESS = """
import json, sys
from hydractl.cli.app import main
for command in json.loads(sys.argv[1]):
    assert main(command) == 0, command
import hydractl, safetensors.torch, toylib, torch
own = toylib.ToyViT(width=24, depth=2, heads=3, classes=5)
own.load_state_dict(safetensors.torch.load_file("b/model.safetensors"))
images = torch.rand(2, 3, 8, 8)
assert torch.allclose(hydractl.load("hydra.st").member_logits(images)[1], own(images), atol=1e-5)
torch.manual_seed(0)
torch.save(toylib.ToyViT(width=24, depth=2, heads=3, classes=5).state_dict(), "toy.pt")
"""


def files_of(page: str) -> dict[str, str]:
    """The files that a page shows, by the names that stand before them; what has none belongs to the file before."""
    files: dict[str, str] = {}
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for name, block in re.findall(r"(?:^`(\S+)`:\n\n)?^```(?:python|toml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        name = name or list(files)[-1]
        files[name] = files.get(name, "") + ("\n" if name in files else "") + block
    return files


def install(page: str, target: Path, folder: Path) -> None:
    """Build the package of a page and install it into a folder, without a network."""
    folder.mkdir()
    for name, text in files_of(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", target]
    command = [sys.executable, "-m", "pip", "install", "-q", *map(str, options), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def add(page: str, tree: Path) -> None:
    """Add the file of a page to a copy of the source, and the toy library beside it: no file that is there changes."""
    if not tree.exists():
        shutil.copytree(ROOT / "hydractl", tree / "hydractl")  # with what is compiled: to compile it anew takes long
    rooms = {"vo_norm.py": "hydractl/criteria", "toy.py": "hydractl/families", "toylib.py": "."}
    for name, text in files_of(page).items():
        if name in rooms:
            assert not (tree / rooms[name] / name).exists()
            (tree / rooms[name] / name).write_text(text, encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("way", [pytest.param("as packages", marks=pytest.mark.release), "in the source"])
def test_a_toy_criterion_and_a_toy_family(way: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    for page in PAGES:
        if way == "as packages":
            install(page, place, tmp_path / page)
        else:
            add(page, place)
    paths = [place] if way == "in the source" else [ROOT, place]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "100"}
    command = [sys.executable, "-c", PROCESS, json.dumps(COMMANDS)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--method cahp|gate|magnitude|random|taylor|vo_norm\n" in done.stdout
    assert "vo_norm:order=N   Order of the Schatten norm [default: 2]" in done.stdout
    scores = read_json(tmp_path / "scores.json")
    assert scores["source"]["settings"]["method"] == "vo_norm:order=1"
    weights = torch.load(tmp_path / "toy.pt", weights_only=True)
    value, out = (weights[f"blocks.1.attention.{name}.weight"] for name in ("value", "out"))
    for head in range(3):
        rows = slice(head * 8, head * 8 + 8)
        expected = float(torch.linalg.matrix_norm(out[:, rows] @ value[rows], ord="nuc"))
        assert scores["sites"]["blocks.1.attention"][head] == pytest.approx(expected, rel=1e-5)


def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> Registry[Any]:
    """A registry of a folder with one module, ``oak``, and these entry points."""
    package = tmp_path / "trees"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "oak.py").write_text("from types import SimpleNamespace\nTREE = SimpleNamespace(name='oak')\n")
    (package / "saw.py").write_text("raise RuntimeError('a helper is not to be imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trees", raising=False)
    monkeypatch.delitem(sys.modules, "trees.oak", raising=False)
    found = [EntryPoint(name, value, "trees") for name, value in points]
    monkeypatch.setattr("hydractl.files.plugins.entry_points_of", lambda group: found if group == "trees" else [])
    return Registry("trees", [str(package)], "TREE", helpers=["saw"])


def test_names_are_known_before_anything_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = registry(tmp_path, monkeypatch, ("elm", "nowhere:TREE"))
    assert trees.names == ["oak", "elm"]
    assert "trees.oak" not in sys.modules
    assert trees.get("oak").name == "oak"  # type: ignore[union-attr]
    assert trees.get("ash") is None


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([("elm", "nowhere:TREE")], "'elm' of nowhere:TREE cannot be imported: ModuleNotFoundError"),
        ([("elm", "elms:TREE")], "elms:TREE declares 'elm' as 'yew' in trees"),
        ([("oak", "nowhere:TREE")], "'oak' in trees, a name that is taken"),
        ([("elm", "nowhere:TREE"), ("elm", "elsewhere:TREE")], "'elm' in trees, a name that is taken"),
    ],
)
def test_a_wrong_package_is_named(
    points: list[tuple[str, str]], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elms.py").write_text("from types import SimpleNamespace\nTREE = SimpleNamespace(name='yew')\n")
    with pytest.raises(InputError, match=message):
        registry(tmp_path, monkeypatch, *points).get("elm")
