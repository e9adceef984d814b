"""Markdown tables of an ``eval.json`` with the intervals that ``--bootstrap`` gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydractl.metrics.bootstrap import Resampled, mean_over_sets, paired_differences

MEAN = "ood_avg.auroc"
Row = Mapping[str, Any]


def rows_of(evaluation: Path) -> list[Row]:
    """The rows of an evaluation."""
    rows: list[Row] = json.loads(evaluation.read_text(encoding="utf-8"))["models"]
    return rows


def value_at(row: Row, key: str) -> float | None:
    """The metric of a dotted key, such as ``ood_avg.auroc``."""
    found: Any = row
    for part in key.split("."):
        found = found[part]
    return None if found is None else float(found)


def measured_by(score: str, calibration: Path, output: Path) -> list[str]:
    """The option of ``eval`` by which a row has this score, and no temperature.

    Args:
        score: the OOD score.
        calibration: what ``calibrate`` wrote of the row, which has its temperature.
        output: the file that gets the score in its place.
    """
    document = json.loads(calibration.read_text(encoding="utf-8"))
    del document["calibration"]
    output.write_text(json.dumps({**document, "ood_score": score}), encoding="utf-8")
    return ["--calibration", str(output)]


def with_interval(row: Row, key: str) -> str:
    """``0.8712 (0.862..0.880)``; without the interval where there is none."""
    value, interval = value_at(row, key), row.get("ci", {}).get(key)
    if value is None:
        return "-"
    return f"{value:.4f}" + (f" ({interval[0]:.4f}..{interval[1]:.4f})" if interval else "")


def difference(row: Row, key: str) -> str:
    """This row minus the first one, in the same form; in bold where the interval leaves out 0."""
    found = row.get("difference", {}).get(key)
    if found is None or found["value"] is None:
        return "-"
    low, high = found["ci"]
    text = f"{found['value']:+.4f} ({low:+.3f}..{high:+.3f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def mult_adds(row: Row, single: Row) -> float:
    """Mult-adds of one sample over those of the single model."""
    return float(row["cost"]["macs"] / single["cost"]["macs"])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; all columns but the first are numbers."""
    print(f"\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def show_intervals(evaluation: Path) -> None:
    """Every row with its metrics and mult-adds, then the differences to the first row."""
    rows = rows_of(evaluation)
    single, sets = rows[0], list(rows[0]["ood"])
    plain = ("id.accuracy", "id.nll", "id.ece", *(f"ood.{name}.auroc" for name in sets), "ood_avg.auroc")
    names = ("accuracy", "NLL", "ECE", *(f"AUROC {name}" for name in sets), "AUROC mean")
    more = ("ood_avg.fpr95", "diversity.id.mi")
    markdown(
        ("model", *names, "FPR95 mean", "MI, ID", "parameters", "mult-adds"),
        [
            (
                row["name"],
                *("-" if (v := value_at(row, key)) is None else f"{v:.4f}" for key in (*plain, *more)),
                f"{row['cost']['params']:,}",
                f"{mult_adds(row, single):.2f}",
            )
            for row in rows
        ],
    )
    markdown(
        (f"minus {single['name']}", *names),
        [(row["name"], *(difference(row, key) for key in plain)) for row in rows[1:]],
    )


def first_good_score(aurocs: Mapping[str, Resampled]) -> str:
    """The first score, in their order, whose mean AUROC is not significantly below the highest one.

    Args:
        aurocs: by score the AUROC against each OOD set, with its resamples.
    """
    means = {score: mean_over_sets(of_sets, MEAN) for score, of_sets in aurocs.items()}
    best = max(means.values(), key=lambda mean: mean.values[MEAN] or 0.0)
    for score, mean in means.items():
        if paired_differences(best, mean)[MEAN]["ci"][1] >= 0:
            return score
    raise AssertionError("the best score is not below itself")
