"""Write the table of OpenOOD's evaluator (``ood.csv``) from an eval, to compare its model with the leaderboard.

    python examples/paper/openood_table.py ood.json -o ood.csv

It has a line for each near set and for their mean, then for each far set and for their mean, in percent, of the first
model and its first OOD score. Yang et al. 2022 (arXiv 2210.07242), Zhang et al. 2023 (arXiv 2306.09301). Like
``fpr95``, their FPR@95 takes OOD as positive; their areas under precision-recall curves are by trapezoids. One
difference is left: they read FPR@95 from scikit-learn's ROC curve, which leaves out points on a straight line, so
theirs can be higher if many scores are equal.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

from hydractl.files.atomic import Output, write_bytes

# The name of a metric in OpenOOD's evaluator, and its key in an eval.
COLUMNS = {"FPR@95": "fpr95", "AUROC": "auroc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_trapezoid"}


def table(model: Any) -> str:
    """Return the table of one model of an eval."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", *COLUMNS, "ACC"])
    for group in ("near", "far"):
        sets = {name: measured for name, measured in model["ood"].items() if measured["group"] == group}
        lines = {**sets, f"{group}ood": model[f"{group}_avg"]}
        for name, metrics in lines.items():
            values = [*(metrics[key] for key in COLUMNS.values()), model["id"]["accuracy"]]
            writer.writerow([name, *(f"{100 * value:.2f}" for value in values)])
    return text.getvalue()


def main() -> None:
    """Read the arguments and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("eval", type=Path, metavar="EVAL.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.csv")
    asked = parser.parse_args()
    models = json.loads(asked.eval.read_text(encoding="utf-8"))["models"]
    with Output(asked.output, force=True) as output:
        write_bytes(output, table(models[0]).encode())


if __name__ == "__main__":
    main()
