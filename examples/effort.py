"""Every row of studies that differ in their seed: means over the seeds, and what each row gains.

    python examples/effort.py fashion-mnist=runs/study0,runs/study1,runs/study2 ... [-o methods.json]

Each folder is that of a finished ``hydractl study``, from whose predictions everything is measured; those of one name
have the same rows and the same data, and seeds of their own. The answer stands under ``equal effort`` in the file, of
which everything else stays; from it ``docs/make_results.py`` makes tables of docs/numbers/methods.md.

An interval is for another training and other test samples at once: half of it is the root of the sum of two squares,
half of that over the seeds (Student's t of the differences) and half of that over the test samples (normal, with the
deviation of the mean difference on 1,000 resamples, the same ones for all rows and seeds). Of one seed it is the 95 %
interval of the resamples, as everywhere else.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from hydractl.metrics.bootstrap import Resampled, mean_over_sets
from hydractl.studies.measured_rows import fitted_temperature, measure_row

AUROC = "ood_avg.auroc"
AGAINST = ("single", "trained")
"""The rows that every row is compared with."""


@dataclass(frozen=True)
class Figures:
    """One row of one study on its test data, with its temperature.

    Attributes:
        record: the row in ``study.json``.
        by_key: each figure on the data and on their resamples: accuracy, NLL, and the mean AUROC by MSP (``msp``), by
            the score that all rows of this study were compared under (``common``) and by the row's own (``own``).
    """

    record: dict[str, Any]
    by_key: dict[str, Resampled]


def measured(folder: Path) -> dict[str, Figures]:
    """Every row of a study, by its name."""
    document = json.loads((folder / "study.json").read_text("utf-8"))
    common = document["common_score"]
    rows = {}
    for record in document["rows"]:
        name = record["name"]
        calibration = fitted_temperature(folder / f"choose/{name}.calibration.json")
        row = measure_row(folder / f"test/{name}.pred.st", calibration)
        inside = row.on_id({"accuracy", "nll"})
        by_key = {}
        for key in ("id.accuracy", "id.nll"):
            by_key[key] = Resampled({key: inside.values[key]}, {key: inside.rounds[key]})
        for key, score in (("msp", "msp"), ("common", common), ("own", record["score"])):
            if score in row.scores:  # MC dropout has no features
                by_key[key] = mean_over_sets(row.aurocs([score])[score], AUROC)
        rows[name] = Figures(record, by_key)
    return rows


def value_of(resampled: Resampled) -> tuple[float, np.ndarray]:
    """The one metric on the data, and on the resamples, [R]."""
    (value,) = resampled.values.values()
    (rounds,) = resampled.rounds.values()
    assert value is not None
    return value, rounds


def difference(rows: list[Figures], others: list[Figures], key: str) -> dict[str, Any] | None:
    """The mean over seeds of a figure of one row minus that of another, with its interval; None for one itself."""
    differences = []
    rounds = []
    for row, other in zip(rows, others, strict=True):
        if row is other or key not in row.by_key or key not in other.by_key:
            return None
        value, resampled = value_of(row.by_key[key])
        less, resampled_less = value_of(other.by_key[key])
        differences.append(value - less)
        rounds.append(resampled - resampled_less)
    mean = statistics.fmean(differences)
    mean_of_rounds = np.mean(rounds, axis=0)
    seeds = len(differences)
    if seeds == 1:
        low, high = np.quantile(mean_of_rounds, [0.025, 0.975])
        return {"value": mean, "ci": [float(low), float(high)]}
    # Of three seeds the deviation is hardly known, which Student's t allows for; that of the samples is.
    half_of_seeds = float(student.ppf(0.975, seeds - 1)) * statistics.stdev(differences) / seeds**0.5
    half_of_samples = float(norm.ppf(0.975) * np.std(mean_of_rounds))
    half = math.hypot(half_of_seeds, half_of_samples)
    return {"value": mean, "ci": [mean - half, mean + half], "by_seed": differences}


def summary(folders: list[Path]) -> dict[str, Any]:
    """The rows of studies that differ in their seed, and what each study says."""
    documents = [json.loads((folder / "study.json").read_text("utf-8")) for folder in folders]
    plans = [json.loads((folder / "plan.json").read_text("utf-8"))["settings"] for folder in folders]
    studies = [measured(folder) for folder in folders]
    rows = []
    for name in studies[0]:
        figures = [study[name] for study in studies]
        row: dict[str, Any] = {
            "name": name,
            "mac_ratio": statistics.fmean(each.record["mac_ratio"] for each in figures),
            "scores": [each.record["score"] for each in figures],
            "lr": [each.record.get("lr") for each in figures],
        }
        for key in figures[0].by_key:
            row[key] = {"value": statistics.fmean(value_of(each.by_key[key])[0] for each in figures)}
            for other in AGAINST:
                if other in studies[0]:
                    row[key][f"minus {other}"] = difference(figures, [study[other] for study in studies], key)
        rows.append(row)
    verdicts = []
    for document, plan in zip(documents, plans, strict=True):
        verdict = {"seed": plan["seed"], "answer": document["verdict"]["answer"], "lines": document["verdict"]["lines"]}
        for part in ("choice", "use"):
            verdict[part] = {key: document[part][key] for key in ("row", "score")}
        verdicts.append(verdict)
    rates = plans[0]["lr"]  # one number for one rate
    return {"lr": rates if isinstance(rates, list) else [rates], "rows": rows, "verdicts": verdicts}


def main() -> None:
    """Measure all studies and write the answer; what the file has of others stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", metavar="NAME=FOLDER[,FOLDER...]")
    parser.add_argument("-o", "--output", type=Path, default=Path("methods.json"))
    arguments = parser.parse_args()
    found = json.loads(arguments.output.read_text("utf-8")) if arguments.output.exists() else {}
    of_effort = found.setdefault("equal effort", {})
    for word in arguments.studies:
        name, _, folders = word.partition("=")
        of_effort[name] = summary([Path(folder) for folder in folders.split(",")])
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
