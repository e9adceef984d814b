"""Class names, members, rows, data sets and files with hostile names, through every output that shows names."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.cli.app import main
from tests.fuzz.readers import CORPUS
from tests.running import control_characters, described, json_lines

NAMES = [
    '=HYPERLINK("http://a.example","x")<script>alert(1)</script>',
    "\x1b[31m| **b** [x](javascript:alert(1))\x9b2J\u202e",
]
CLASSES = [*NAMES, "@SUM(1)", "+1", "-2<img src=x onerror=alert(1)>", "\tx"]
ROW, SET = "@<img>|`x`\x1b[31m", "@set|<b>`x`"
FILES = ["out.json", "p.csv", "p.jsonl", "report.html"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of one eval of a hostile checkpoint on a hostile data set."""
    folder = tmp_path_factory.mktemp("hostile")
    provenance = {"command": NAMES[1], "sources": [], "notes": NAMES[0]}
    change = {"labels": NAMES, "seen": [], "provenance": provenance}
    path = folder / "=vit<b>.st"
    described(CORPUS / "beside" / "vit.st", path, lambda document: document.update(change), **{NAMES[1]: NAMES[0]})
    for index, name in enumerate(("=cmd|<img src=x onerror=alert(1)>", "\x1b[31m`x`")):
        place = folder / SET / f"c{index}"
        place.mkdir(parents=True)
        for number in range(4):
            Image.fromarray(np.full((4, 4), 60 * number, np.uint8)).save(place / f"{name}{number}.png")
    pixels = np.arange(8, dtype=np.uint8)[:, None, None] * np.full((1, 4, 4), 20, np.uint8)
    np.savez(folder / "@numbered.npz", x=pixels, y=np.arange(8) % 2)
    (folder / "map.json").write_text(json.dumps({"c0": NAMES[0], "c1": NAMES[1]}))
    (folder / "ood" / "<script>").mkdir(parents=True)
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(folder / "ood" / "<script>" / "@a.png")
    return folder


@pytest.fixture(scope="module")
def said(made: Path) -> str:
    """What was printed; the outputs lie in the folder."""
    stream = io.StringIO()
    with contextlib.chdir(made), contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        both = ["eval", f"{ROW}==vit<b>.st", "=vit<b>.st", "--label-map", "map.json", "--test", SET]
        ood = ["--ood", "letters=ood/<script>"]
        assert main([*both, *ood, "-o", "out.json"]) == 0, stream.getvalue()
        assert main(["report", "out.json", "--html", "report.html"]) == 0, stream.getvalue()
        for name in ("p.csv", "p.jsonl"):
            assert main(["predict", "=vit<b>.st", "@numbered.npz", "-o", name]) == 0, stream.getvalue()
        assert main(["fuse", "=vit<b>.st", "=vit<b>.st", "-o", "=f.st"]) == 0, stream.getvalue()
        assert main(["--info", "=vit<b>.st", "=f.st", "out.json"]) == 0, stream.getvalue()
    return stream.getvalue()


@pytest.mark.fault(40)
def test_no_output_holds_an_escape_sequence(said: str, made: Path) -> None:
    assert not control_characters(said)
    assert "\u202e" not in said
    for name in ("p.csv", "report.html"):
        text = (made / name).read_text()
        assert "\x1b" not in text and "\x9b" not in text, name
    for name in ("out.json", "p.jsonl"):
        assert b"\x1b" not in (made / name).read_bytes()


@pytest.mark.fault(57)
def test_no_cell_is_a_formula(said: str, made: Path) -> None:
    with open(made / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [row[key] for row in rows for key in ("id", "label", "predicted")]
    assert len(rows) == 8 and not [text for text in texts if text.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert {row["label"][:2] for row in rows} == {"'=", "\\x"}
    plain = json_lines(made / "p.jsonl")
    assert {row["label"] for row in plain} == set(NAMES)
    from hydractl.evaluation.predictions.lines import _cell

    assert [_cell(name) for name in CLASSES[2:]] == ["'@SUM(1)", "'+1", "'-2<img src=x onerror=alert(1)>", "'\\x09x"]
    assert _cell(-1.5) == -1.5
