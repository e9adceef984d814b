"""Every row of a study minus the single model: with MSP for all, and with the score that validation data gave each.

    python examples/methods.py fashion-mnist=runs/methods/study bayes-vlm=bayes.json ...

A folder is that of a finished ``hydractl study``, from whose predictions everything is measured; a file is the answer
of ``hydractl eval --bootstrap 1000``. Writes ``methods.json``, from which ``docs/make_results.py`` makes the tables of
docs/numbers/methods.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from chain import hydractl
from intervals import mult_adds, rows_of, value_at

FIGURES = ("id.accuracy", "id.nll", "id.ece")
AUROC = "ood_avg.auroc"


def evaluated(folder: Path, name: str, scores: dict[str, str]) -> list[Any]:
    """The rows of a study on its test data, each by one score, with their differences to the first."""
    output = folder / f"methods.{name}.json"
    models = [f"{row}={folder}/test/{row}.pred.st" for row in scores]
    chosen = [word for row, score in scores.items() for word in ("--ood-score", f"{row}={score}")]
    hydractl("eval", *models, *chosen, "--bootstrap", "1000", "-q", "-o", str(output))
    return rows_of(output)


def figures(row: Any, key: str) -> dict[str, Any]:
    """A metric, and its difference to the single model; of that itself none."""
    return {"value": value_at(row, key), "minus single": row.get("difference", {}).get(key)}


def measured(path: Path) -> list[dict[str, Any]]:
    """Every row of a study, or of an evaluation."""
    if path.is_file():
        plain = chosen = rows_of(path)
        own = {row["name"]: row["ood_score"] for row in plain}
    else:
        rows = json.loads((path / "study.json").read_text("utf-8"))["rows"]
        own = {row["name"]: row["score"] for row in rows}
        plain, chosen = evaluated(path, "msp", dict.fromkeys(own, "msp")), evaluated(path, "own", own)
    return [
        {
            "name": row["name"],
            "mac_ratio": mult_adds(row, plain[0]),
            "score": own[row["name"]],
            **{key: figures(row, key) for key in FIGURES},
            "msp": figures(row, AUROC),
            "own": figures(by_own, AUROC),
        }
        for row, by_own in zip(plain, chosen, strict=True)
    ]


def main() -> None:
    """Measure every study and write the answer."""
    studies = dict(word.split("=", 1) for word in sys.argv[1:])
    found = {name: measured(Path(folder)) for name, folder in studies.items()}
    Path("methods.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
