"""``--info``: what files say of themselves, and how far the heads of members overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.cli.app import main
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.files.description import Description
from hydractl.heads.mask import HeadMask, Site
from tests.pico import published
from tests.running import answer, read_json

SITES = [Site("blocks.0.attn", 4, 4, 16), Site("blocks.1.attn", 3, 4, 16)]
A, B = (site.path for site in SITES)
FULL = HeadMask.full(SITES)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask, a circuit, scores and a mask of another model."""
    monkeypatch.chdir(tmp_path)
    write("a.mask.json", FULL.without([(A, 0), (A, 1)]).to_json())
    steps = [{"step": 1, "site": A, "head": 3}, {"step": 2, "site": B, "head": 2}]
    start = FULL.without([(A, 1)]).to_json()
    write("c.json", {"schema": "hydractl.circuit/2", "sites": FULL.heads, "removed": steps, "start_mask": start})
    write("s.json", {"schema": "hydractl.scores/1", "sites": {A: [1, 2, 3, 4], B: [1, 2, 3]}})
    write("other.mask.json", HeadMask.full(SITES[:1]).to_json())


def write(name: str, document: Any) -> None:
    Path(name).write_text(json.dumps(document), encoding="utf-8")


def test_a_published_folder(tmp_path: Path) -> None:
    document = answer("--info", str(published("bert", tmp_path / "folder")))
    assert document["holds"] == "a folder of hf" and document["arch"] and document["head_maps"]


@pytest.mark.parametrize("rows", [None, {"a": 1}])
def test_a_document_without_rows_is_refused(rows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write("e.json", {"schema": "hydractl.eval/2", "models": rows})
    assert main(["--info", "e.json"]) == 3
    assert "has no list of rows" in capsys.readouterr().err


def test_the_name_of_an_unknown_form_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    write("u.json", {"schema": "x" * 5000})
    assert main(["--info", "u.json"]) == 3
    assert len(capsys.readouterr().err) < 200


def test_several_files_give_a_list() -> None:
    documents = answer("--info", "a.mask.json", "other.mask.json", "s.json")
    assert [document["schema"] for document in documents] == ["hydractl.info/2"] * 3
    assert answer("--info", "a.mask.json")["file"] == "a.mask.json"


def test_members_of_a_fused_file_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    members = [FULL.without([(A, 0)]), FULL.without([(A, 0), (B, 0)]), FULL]
    extra = {"self_check": {"samples": 4}}
    fused = Description("fused", "timm", "1", "vit", {}, {}, None, members, "sliced", [], [{}, {}, {}], extra)
    with open("h.st", "wb") as file:
        write_tensors(file, DictTensors({"w": torch.ones(1)}), fused.to_json())
    alone = answer("--info", "h.st")
    assert alone["self_check"] == {"samples": 4}
    assert [(p["a"], p["b"], p["removed"]["jaccard"]) for p in alone["overlap"]] == [
        ("member 0", "member 1", 1 / 2),
        ("member 0", "member 2", 0),
        ("member 1", "member 2", 0),
    ]
    assert main(["--info", "h.st"]) == 0
    assert "member 0  member 2    0.857    0.000        -" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"heads": 10**12, "kept": [0]}, "heads is 1000000000000: Input should be less than or equal to 4096"),
        ({"heads": "4", "kept": [0]}, "heads is '4': Input should be a valid integer"),
        ({"heads": 4, "kept": [0, 0]}, "kept names a head twice"),
        ({"heads": 4, "kept": [4]}, "kept names a head that is not there: the site has 4"),
        ({"heads": 4, "kept": [[]]}, "kept[0] is []: Input should be a valid integer"),
        ({"heads": 4}, "kept is missing"),
    ],
)
def test_a_broken_mask_is_refused(entry: Any, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = FULL.to_json()
    document["sites"][A] = entry
    write("broken.json", document)
    assert main(["--info", "broken.json"]) == 3
    said = capsys.readouterr().err
    assert f"sites.{A}" in said and problem in said


@pytest.mark.parametrize(
    "change",
    [
        {"sites": {A: 10**12, B: "x"}},
        {"sites": [A]},
        {"start_mask": 3},
        {"start_mask": {"sites": {A: {"kept": 5}, B: []}}},
        {"removed": [{"site": [1], "head": {}}, 3]},
    ],
)
def test_a_broken_circuit_is_refused(change: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write("broken.json", {**read_json("c.json"), **change})
    assert main(["--info", "broken.json"]) == 3
    assert "broken.json is no circuit\n" in capsys.readouterr().err
