"""The table of an eval on a terminal: its marks, its intervals, and that it fits."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from hydractl.metrics.declaration import Metric
from hydractl.report.eval_tables import marks
from hydractl.report.terminal import render
from tests.answers import result_of
from tests.report.examples import HOSTILE, everything, sample, without_values
from tests.spread import spread


def shown(document: dict[str, Any], width: int = 80, terminal: bool = False, **more: Any) -> str:
    file = io.StringIO()
    colors = "standard" if terminal else None
    console = Console(file=file, width=width, force_terminal=terminal, color_system=colors, **more)  # type: ignore[arg-type]
    console.print(render(result_of(document), width))
    return file.getvalue()


def lines(document: dict[str, Any], width: int = 80) -> list[str]:
    return [line.rstrip() for line in shown(document, width).splitlines()]


def plain_document() -> dict[str, Any]:
    """Two rows whose numbers are easy to read."""
    rows = []
    for name, accuracy, nll in (("one", 0.5, 0.7), ("two", 0.75, 0.25)):
        inside = {"n": 8, "accuracy": accuracy, "nll": nll, "brier": 0.5, "ece": 0.1, "aece": 0.1, "aurc": None}
        rows.append({"name": name, "id": inside, "ood": {}, "diversity": {"id": {"mi": 0.0, "disagreement": None}}})
    return {"schema": "hydractl.eval/2", "models": rows}


def test_by_hand() -> None:
    assert lines(plain_document()) == [
        "in distribution (n = 8)",
        "model     acc     NLL   Brier     ECE    AECE      mi",
        "one    0.5000  0.7000  0.5000  0.1000  0.1000  0.0000",
        "two    0.7500  0.2500  0.5000  0.1000  0.1000  0.0000",
        "",
    ]


def test_the_best_is_bold_on_a_terminal_only() -> None:
    document = plain_document()
    third = copy.deepcopy(document["models"][0])
    third["name"], third["id"]["accuracy"] = "three", 0.25
    document["models"].append(third)
    text = shown(document, terminal=True)
    assert "\x1b[1m0.7500\x1b[0m" in text and "\x1b[4m" not in text  # accuracy of two
    assert "\x1b[1m0.2500\x1b[0m" in text  # nll of two: lower is better
    assert "\x1b[1m0.1000" not in text  # all alike
    for quiet in (shown(document), shown(everything(), 160)):
        assert "\x1b" not in quiet


def marked(values: Sequence[float | None], direction: str) -> list[str]:
    return marks(values, Metric(len, "id", "x", "x", direction=direction))


def test_marks() -> None:
    assert marked([0.1, 0.3, 0.2], "higher") == ["", "best", ""]
    assert marked([0.1, 0.3, 0.2], "lower") == ["best", "", ""]
    assert marked([0.3, 0.3, 0.2, 0.1], "higher") == ["best", "best", "", ""]
    assert marked([0.30001, 0.30002, 0.1], "higher") == ["best", "best", ""]  # the same to the digits shown
    assert marked([0.1, 0.2], "higher") == ["", "best"]
    assert marked([None, 0.2, None], "higher") == ["", "", ""] and marked([], "lower") == []
    assert marked([None, 0.2, 0.1, 0.3], "lower") == ["", "", "best", ""]
    assert marked([0.1, 0.2, 0.3], "") == ["", "", ""] and marked([0.2, 0.2], "higher") == ["", ""]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_intervals_stand_below_their_numbers(width: int) -> None:
    document = everything()
    found = lines(document, width)
    row = next(i for i, line in enumerate(found) if line.startswith("base"))
    low, high = document["models"][0]["ci"]["id.accuracy"]
    below = f"{low:.3f}-{high:.3f}".replace("0.", ".")
    assert below in found[row + 1]
    at = found[row].index("0.9400") + len("0.9400")
    assert found[row + 1].index(below) + len(below) == at  # aligned to the right
    assert "Intervals cover 95 %, from 20 bootstrap resamples" in " ".join(found)
    together = any("AUROC" in line and "Brier" in line for line in found)
    assert together == (width == 160)


@pytest.mark.parametrize("width", [60, 160])
def test_all_that_was_asked_for_is_shown(width: int) -> None:
    document = everything()
    text = " ".join(" ".join(lines(document, width)).split())
    low, high = document["models"][2]["difference"]["id.accuracy"]["ci"]
    assert "paired difference to base" in text and "+0.0500*" in text
    assert f"{low:.3f} to {high:.3f}".replace("0.", ".") in text
    assert "* the interval of a difference excludes 0" in text
    assert "accuracy under corruptions, by severity" in text and "hydra fog 0.9207 0.8563" in text
    assert "Mean over the corruptions" in text and "ECE 5" in text
    for said in ("temperature 1.2500", "91.0 % of the sets", "msp at least -0.6000"):
        assert said in text
    assert "difference" not in "".join(lines(plain_document()))


NAMES = [["a"], [f"model-{n}" for n in (1, 9, 10, 11)], HOSTILE, ["m" * 60 + str(n) for n in (1, 2)]]


@pytest.mark.parametrize(("names", "width"), spread(NAMES, [160, 80]))
def test_every_line_fits(names: list[str], width: int) -> None:
    document = sample(dict.fromkeys(names, 2), n=60, rounds=3)
    found = lines(document, width)
    assert max(map(len, found)) <= width
    assert not any("…" in line.split("  ", 1)[1] for line in found if "  " in line)  # no number is cut
    for row in document["models"]:
        assert any(f"{row['id']['nll']:.4f}" in line and f"{row['id']['ece']:.4f}" in line for line in found)
        for entry in row["ood"].values():
            assert any(f"{entry['aupr']:.4f}" in line and f"{entry['auroc']:.4f}" in line for line in found)


@pytest.mark.fault(40)
def test_names_cannot_write_to_the_terminal() -> None:
    text = shown(sample(dict.fromkeys(HOSTILE, 1), n=60, rounds=0), 120)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\u2066]", text)


def test_null_and_bare_rows() -> None:
    assert lines({"schema": "hydractl.eval/2", "models": [{"name": "one", "id": {"n": 3}}]}) == [
        "in distribution (n = 3)",
        "model",
        "one",
        "",
    ]
    assert not any(line.split()[1:] == ["-"] for line in lines(without_values(everything())))


def test_groups_and_sizes_of_ood_sets() -> None:
    document = everything()
    found = [line.split() for line in lines(document)]
    row = document["models"][2]
    for name, group, n in (("letters", "near", "100"), ("noise", "-", "120")):
        entry = row["ood"][name]
        values = [f"{entry[key]:.4f}" for key in ("auroc", "fpr95", "aupr")]
        assert ["hydra", name, group, n, *values, f"{row['diversity'][name]['mi']:.4f}"] in found


@pytest.mark.fault(104)
@pytest.mark.parametrize("width", [60, 100, 200])
def test_rows_by_different_scores_say_so(width: int) -> None:
    document = sample({"single": 1, "hydra": 3}, sets={"svhn": "far"}, rounds=0)
    alike = " ".join(shown(document, width).split())
    assert "OOD averages" in alike and " by different scores" not in alike
    for row, score in zip(document["models"], ("msp", "mahalanobis"), strict=True):
        row["ood_score"] = score
    different = " ".join(shown(document, width).split())
    assert "OOD averages by different scores (single by msp, hydra by mahalanobis)" in different
    assert all(len(line) <= width for line in lines(document, width))
