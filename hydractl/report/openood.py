"""The table of one row as OpenOOD's evaluator writes it (``ood.csv``), to be laid beside its leaderboard.

Yang et al. 2022 (arXiv 2210.07242), Zhang et al. 2023 (arXiv 2306.09301). Their FPR@95 takes OOD as positive, as
``fpr95`` does, and their areas under precision-recall curves are by trapezoids. One difference is left: scikit-learn's
ROC curve, from which they read FPR@95, leaves out points on a straight line, so theirs can be higher where many scores
are equal.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from hydractl.report.eval_tables import at

COLUMNS = {"FPR@95": "fpr95", "AUROC": "auroc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_trapezoid"}
"""What the evaluator calls a metric, and its key in the answer of an eval."""


def openood_csv(row: Mapping[str, Any]) -> bytes:
    """A line for each near set and their mean, each far set and their mean, then sets of no group; in percent.

    Empty where a number is missing: without labels there is no accuracy.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["dataset", *COLUMNS, "ACC"])
    accuracy = at(row, "id", "accuracy")
    for name, values in _lines(row):
        table.writerow([name, *map(_percent, (*(values.get(key) for key in COLUMNS.values()), accuracy))])
    return text.getvalue().encode()


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    sets = row.get("ood") or {}
    for group in ("near", "far", None):
        own = {name: values for name, values in sets.items() if values.get("group") == group}
        yield from own.items()
        if own and group is not None:
            yield f"{group}ood", row[f"{group}_avg"]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
