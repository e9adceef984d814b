"""Every row of a study minus the single model, and minus the row ``trained`` where there is one.

    python examples/methods.py fashion-mnist=runs/methods/study bayes-vlm=bayes.json ...

A folder is that of a finished ``hydractl study``, from whose predictions everything is measured; a file is the answer
of ``hydractl eval --bootstrap 1000``. Writes ``methods.json``, from which ``docs/make_results.py`` makes the tables of
docs/numbers/methods.md; what the file has of other studies stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from chain import hydractl
from intervals import measured_by, mult_adds, rows_of, value_at

FIGURES = ("id.accuracy", "id.nll", "id.ece")
AUROC = "ood_avg.auroc"


def evaluated(folder: Path, name: str, scores: dict[str, str]) -> list[Any]:
    """The rows of a study on its test data, each by one score, with their differences to the first."""
    output = folder / f"methods.{name}.json"
    models = [f"{row}={folder}/test/{row}.pred.st" for row in scores]
    chosen = []
    for row, score in scores.items():
        calibration = folder / f"choose/{row}.calibration.json"
        chosen += measured_by(score, calibration, folder / f"methods.{name}.{row}.json")
    hydractl("eval", *models, *chosen, "--bootstrap", "1000", "-q", "-o", str(output))
    return rows_of(output)


def figures(rows: dict[str, Any], key: str) -> dict[str, Any]:
    """A metric, and its differences; of a row to itself none."""
    minus = {f"minus {other}": row.get("difference", {}).get(key) for other, row in rows.items()}
    return {"value": value_at(rows["single"], key), **minus}


def measured(path: Path) -> list[dict[str, Any]]:
    """Every row of a study, or of an evaluation: with MSP for all, and with the score that validation data gave it."""
    if path.is_file():
        plain = chosen = {"single": rows_of(path)}
        own = {row["name"]: row["ood_score"] for row in chosen["single"]}
    else:
        rows = json.loads((path / "study.json").read_text("utf-8"))["rows"]
        own = {row["name"]: row["score"] for row in rows}
        plain = {"single": evaluated(path, "msp", dict.fromkeys(own, "msp"))}
        chosen = {"single": evaluated(path, "own", own)}
        if "trained" in own:
            last = evaluated(path, "trained", {"trained": own["trained"], **own})
            chosen["trained"] = sorted(last, key=lambda row: list(own).index(row["name"]))
    made = []
    for place, (name, score) in enumerate(own.items()):
        by_msp, by_own = ({other: rows[place] for other, rows in each.items()} for each in (plain, chosen))
        cost = {"mac_ratio": mult_adds(by_own["single"], chosen["single"][0])}
        metrics = {key: figures(by_own, key) for key in FIGURES}
        made.append({"name": name, **cost, "score": score, **metrics, "msp": figures(by_msp, AUROC)})
        made[-1]["own"] = figures(by_own, AUROC)
    return made


def main() -> None:
    """Measure every study and write the answer."""
    studies = dict(word.split("=", 1) for word in sys.argv[1:])
    output = Path("methods.json")
    found = json.loads(output.read_text("utf-8")) if output.exists() else {}
    found |= {name: measured(Path(folder)) for name, folder in studies.items()}
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
