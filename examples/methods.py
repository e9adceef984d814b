"""Every row of a study minus the single model, and minus the row ``trained`` where there is one.

    python examples/methods.py fashion-mnist=runs/methods/study bayes-vlm=bayes.json ...
    python examples/methods.py sst2=runs/sst2 --scores msp,energy,mahalanobis,mahalanobis-layers

A folder is that of a finished ``hydractl study``, from whose predictions everything is measured, with ``--scores`` all
rows under each of these; a file is the answer of ``hydractl eval --bootstrap 1000``. Writes ``methods.json``, from
which ``docs/make_results.py`` makes the tables of docs/numbers/methods.md, and with ``--scores`` that of MiniLM in
docs/numbers/seeds.md; what the file has of other studies stays.
"""

from __future__ import annotations

import argparse
import json
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


def measured(path: Path, scores: list[str]) -> list[dict[str, Any]]:
    """Every row of a study, or of an evaluation: with MSP for all, and with the score that validation data gave it.

    Args:
        path: the folder of the study, or the file of the evaluation.
        scores: which have all rows of a study, too, under ``scores``.
    """
    under: dict[str, dict[str, list[Any]]] = {}
    if path.is_file():
        plain = chosen = {"single": rows_of(path)}
        own = {row["name"]: row["ood_score"] for row in chosen["single"]}
    else:
        rows = json.loads((path / "study.json").read_text("utf-8"))["rows"]
        own = {row["name"]: row["score"] for row in rows}
        plain = {"single": evaluated(path, "msp", dict.fromkeys(own, "msp"))}
        chosen = {"single": evaluated(path, "own", own)}
        under = {score: {"single": evaluated(path, score, dict.fromkeys(own, score))} for score in scores}
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
        if under:
            measured_under = {common: {"single": each["single"][place]} for common, each in under.items()}
            made[-1]["scores"] = {common: figures(rows, AUROC) for common, rows in measured_under.items()}
    return made


def main() -> None:
    """Measure every study and write the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", metavar="NAME=STUDY")
    parser.add_argument("--scores", help="measure all rows of a study under each of these, by commas")
    arguments = parser.parse_args()
    scores = arguments.scores.split(",") if arguments.scores else []
    studies = dict(word.split("=", 1) for word in arguments.studies)
    output = Path("methods.json")
    found = json.loads(output.read_text("utf-8")) if output.exists() else {}
    found |= {name: measured(Path(folder), scores) for name, folder in studies.items()}
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
