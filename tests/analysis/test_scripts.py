"""The scripts of the analyses run on a tiny model and say what they should; their functions are tested beside them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from hydractl.cli.app import main
from tests.running import read_json

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "analyses"
TINY = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1&num_classes=3"
)
DATA = ["--data", "data.npz", "--ood", "noise:far=ood.npz", "-o", "out"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``vit.st``, random scores, a circuit and data."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    random = np.random.default_rng(0)
    np.savez("data.npz", x=random.integers(0, 256, (24, 8, 8), dtype=np.uint8), y=np.arange(24) % 3)
    np.savez("train.npz", x=random.integers(0, 256, (24, 8, 8), dtype=np.uint8), y=np.arange(24) % 3)
    np.savez("val.npz", x=random.integers(0, 256, (9, 8, 8), dtype=np.uint8), y=np.arange(9) % 3)
    np.savez("ood.npz", x=random.integers(0, 99, (20, 8, 8), dtype=np.uint8))
    for words in (
        ["prune", TINY, "--method", "random", "--remove", "0", "-o", "vit.st"],
        ["score", "vit.st", "--method", "random", "-o", "scores.json"],
        [
            "extract-circuit",
            "vit.st",
            "--val",
            "train.npz",
            "--objective",
            "acc",
            "--budget",
            "4",
            "-o",
            "circuit.json",
        ],
        ["prune", "vit.st", "--circuit", "circuit.json", "--remove", "2", "-o", "small.st"],
    ):
        assert main([*words, "-q"]) == 0
    return tmp_path


def run(script: str, *words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The rows of the tables that a script prints."""
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [script, *words])
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("|") and not line.startswith("|---")]


@pytest.mark.release
def test_all_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    both = {"monkeypatch": monkeypatch, "capsys": capsys}
    rankings = ["--ranking", "random=scores.json", "--ranking", "acc=circuit.json"]

    rows = run("head_distances", "vit.st", "small.st", *DATA, "--ranking", "acc=circuit.json", **both)
    assert [row.split("|")[1].strip() for row in rows] == ["OOD set", "noise", "mean", "OOD set", "noise", "noise"]
    assert "vit.st: Euclidean, 3 heads" in rows[0]

    rows = run("heads_removed", "vit.st", *DATA, *rankings, **both)
    assert len(rows) == 9 and rows[0].count("|") == 8, "up to all heads but one"
    assert rows[2].split("|")[-2].strip() == "-", "the circuit is one head short"

    rows = run(
        "proposition1",
        "vit.st",
        "--data",
        "data.npz",
        "-o",
        "out",
        *rankings,
        "--remove",
        "1,2",
        "--draws",
        "2",
        **both,
    )
    assert [row.split("|")[1].strip() for row in rows[1:]] == ["random, 1", "random, 2", "acc, 1", "acc, 2"]

    tuning = ["--tuning", "--steps 2 --lr 1e-2 --batch-size 8", "--train", "train.npz", "--val", "val.npz"]
    rows = run("heads_removed", "vit.st", *DATA, *rankings, "--step", "3", *tuning, **both)
    assert len(rows) == 9 and rows[0].count("|") == 4
    assert rows[1].split("|")[2] == rows[2].split("|")[2], "with all heads the rankings make no difference"

    members = [f"member{number}.st" for number in range(3)]
    for number, member in enumerate(members):
        options = ["--method", "random", "--keep", "1", "--seed", str(number), "-o", member, "-q"]
        assert main(["prune", "vit.st", *options]) == 0
    rows = run("fused_or_not", *members, *DATA, **both)
    assert [row.split("|")[1].strip() for row in rows[4:]] == [
        "everything averaged",
        "MLPs only",
        "nothing averaged",
        "one after another",
    ]
    # The same answers, computed side by side or one after another.
    assert rows[6].split("|")[2:-2] == rows[7].split("|")[2:-2]
    found = {row["name"] for row in read_json("out/fused_or_not/eval.json")["models"]}
    assert len(found) == 7
    assert {path.name for path in Path("out").glob("*.png")} == {
        "head_distances.png",
        "heads_removed.png",
        "heads_removed_tuned.png",
        "proposition1.png",
    }


@pytest.mark.long
def test_the_scores_of_two_towers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.pico_clip import pico_clip, publish_clip

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    Path("clip").mkdir()
    publish_clip(pico_clip("clip"), "clip", tmp_path / "clip")
    assert main(["score", "clip", "--method", "magnitude", "-o", "scores.json", "-q"]) == 0
    both = {"monkeypatch": monkeypatch, "capsys": capsys}
    rows = run("tower_scores", "clip", "--scores", "scores.json", "--remove", "5", "-o", "out", **both)
    found = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    sites = read_json("scores.json")["sites"]
    towers = {
        "visual": [own for path, own in sites.items() if path.startswith("visual.")],
        "text": [own for path, own in sites.items() if path.startswith("transformer.")],
    }
    assert found[:3] == [
        ["layer", "visual, x 1000", "text, x 1000"],
        *([str(i), *(f"{1000 * sum(own[i]) / 3:.4f}" for own in towers.values())] for i in (0, 1)),
    ]
    edge = sorted(score for own in sites.values() for score in own)[4]
    assert found[3][-1] == "of the 5 lowest heads"
    for name, heads, mean, lowest in found[4:]:
        scores = np.array(towers[name])
        assert (heads, mean, lowest) == ("6", f"{1000 * scores.mean():.4f}", str((scores <= edge).sum()))
    assert Path("out/tower_scores.png").is_file()
    assert main(["score", "clip", "--method", "magnitude", "--tower", "text", "-o", "text.json", "-q"]) == 0
    with pytest.raises(SystemExit, match="scores of text only"):
        run("tower_scores", "clip", "--scores", "text.json", **both)
