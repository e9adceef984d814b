"""``calibrate --reference``: what held-out samples look like is stored, of those alone that nothing was fitted to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.cli.app import main
from hydractl.files import fingerprints
from hydractl.metrics.watching import stored_reference
from hydractl.model.source import open_source
from tests.running import run

TEST = "builtin:digits/test"
CHOSEN = ["--val", "builtin:digits/val", "--temperature", "fit", "--threshold", "id:0.05", "--ood-score", "entropy"]


def reference_in(file: str) -> Any:
    return open_source(file).description.extra.get("reference")


def lines_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def test_it_is_what_predict_says_of_the_same_samples() -> None:
    run("calibrate", "base.st", *CHOSEN, "--reference", TEST, "-o", "k.st")
    run("predict", "k.st", TEST, "-o", "p.jsonl")
    rows = lines_of("p.jsonl")
    known = stored_reference(reference_in("k.st"))
    assert known is not None and known.n == len(rows) == 497
    assert known.scores == pytest.approx(sorted(row["ood_score"] for row in rows), abs=1e-6)
    assert known.confidences == pytest.approx(sorted(row["confidence"] for row in rows), abs=1e-6)
    assert known.flagged == sum(row["is_ood"] for row in rows)
    predicted = [row["predicted"] for row in rows]
    assert known.classes == {name: predicted.count(name) for name in open_source("k.st").description.labels or ()}
    assert known.data is not None and known.data.spec == TEST


def test_samples_that_were_seen_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the training data 300 samples were trained on; the others were not."""
    assert main(["calibrate", "base.st", "--reference", "builtin:digits/train", "--threshold", "0", "-o", "k.st"]) == 0
    entry = reference_in("k.st")
    assert entry["n"] == 700 and entry["data"]["left_out"] == 300
    assert "300 of 1,000 samples of --reference were seen, and are left out" in capsys.readouterr().err
    # They stay test data: nothing is fitted to them.
    assert [use["by"] for use in open_source("k.st").description.seen] == ["finetune"]


def test_what_this_command_chooses_on_is_no_reference(capsys: pytest.CaptureFixture[str]) -> None:
    val = ["--val", "builtin:digits/val", "--threshold", "id:0.05", "--reference", "builtin:digits/val"]
    assert main(["calibrate", "base.st", *val, "-o", "k.st"]) == 0
    shown = capsys.readouterr().err
    assert "--reference gives no reference: 0 of its samples are held out, and 200 are needed" in shown
    assert reference_in("k.st") is None


def test_without_one_it_says_what_stores_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "base.st", "--threshold", "0.5", "-o", "k.st"]) == 0
    assert "no reference to compare inputs with is stored; --reference SPEC stores one" in capsys.readouterr().err


def test_of_a_set_that_is_known_in_part_no_sample_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "MOST", 100)  # fewer than the 300 that it was trained on
    run("calibrate", "base.st", "--reference", "builtin:digits/train", "--threshold", "0", "-o", "k.st")
    assert reference_in("k.st") is None


@pytest.mark.long
def test_whatever_changes_flags_drops_it() -> None:
    run("calibrate", "base.st", *CHOSEN, "--reference", TEST, "-o", "k.st")
    known = reference_in("k.st")
    run("calibrate", "k.st", "--conformal", "0.1", "--val", "builtin:digits/val", "-o", "sets.st")
    assert reference_in("sets.st") == known
    for name, changed in (
        ("temperature", ["--temperature", "2"]),
        ("threshold", ["--threshold", "0.3"]),
        ("score", ["--ood-score", "energy"]),
    ):
        run("calibrate", "k.st", *changed, "-o", f"{name}.st")
        assert reference_in(f"{name}.st") is None
    run("prune", "k.st", "--method", "magnitude", "--keep", "2", "-o", "pruned.st")
    run("fuse", "k.st", "pruned.st", "-o", "fused.st")
    posterior = ["--ensemble", "laplace", "-o", "laplace.st"]
    run("finetune", "k.st", "--train", "builtin:digits/train", "--limit", "40", *posterior)
    run("finetune", "k.st", "--train", "builtin:digits/train", "--limit", "32", "--epochs", "1", "-o", "tuned.st")
    for name in ("pruned", "fused", "laplace", "tuned"):
        assert reference_in(f"{name}.st") is None


def test_predict_compares_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    run("calibrate", "base.st", *CHOSEN, "--reference", TEST, "-o", "k.st")
    capsys.readouterr()
    assert main(["predict", "k.st", TEST, "-o", "p.jsonl", "--report", "p.json", "--require", "alarms<=0"]) == 0
    assert "beside 497 ID samples: no shift beyond the margins" in capsys.readouterr().err
    watched = json.loads(Path("p.json").read_text(encoding="utf-8"))["watched"]
    assert watched["whole"]["share"]["difference"] == 0.0 and watched["whole"]["auroc"]["auroc"] == 0.5
    assert watched["whole"]["classes"]["total_variation"] == 0.0

    noise = np.random.default_rng(5).integers(0, 256, (1200, 8, 8), dtype=np.uint8)
    np.savez("noise.npz", x=noise)
    assert main(["predict", "k.st", "noise.npz", "-o", "q.jsonl", "--report", "q.json", "--require", "alarms<=0"]) == 4
    shown = capsys.readouterr().err
    assert "warning: beside 497 ID samples: the inputs have shifted" in shown and "inputs 1 to 1,000: " in shown
    watched = json.loads(Path("q.json").read_text(encoding="utf-8"))["watched"]
    assert [window["n"] for window in watched["windows"]] == [1000, 200] and watched["whole"]["n"] == 1200


def test_without_a_reference_no_alarm_can_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "base.st", TEST, "-o", "p.jsonl", "--require", "alarms<=0"]) == 2
    assert "needs a reference, and base holds none of its classes" in capsys.readouterr().err


def test_other_names_of_classes_have_no_reference(capsys: pytest.CaptureFixture[str]) -> None:
    run("calibrate", "base.st", *CHOSEN, "--reference", TEST, "-o", "k.st")
    Path("names.txt").write_text("".join(f"class {index}\n" for index in range(10)), encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", "k.st", TEST, "--labels", "names.txt", "-o", "p.jsonl"]) == 0
    assert "its reference was predicted with other classes, so nothing is compared" in capsys.readouterr().err
