"""What each recipe gives under every OOD score, and what circuits in the last sites alone give at which cost.

    python examples/study.py DATA           # trains the model and makes most of the members
    python examples/late_sites.py [runs/study]

Writes ``recipe/recipe.json`` there, from which ``docs/make_results.py`` makes the tables of docs/numbers/recipe.md. The
same call goes on after a break.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from chain import OBJECTIVES, hydractl
from intervals import first_good_score, measured_by, mult_adds, rows_of, value_at

from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.studies.measured_rows import fitted_temperature, measure_row

VAL = "val.npz?part=2/2"
SETS = {
    "choose": ["--test", VAL, "--ood", "cifar10=cifar10.npz?part=2/2", "--ood", "made=val.npz?ood=auto&part=2/2"],
    "test": ["--test", "test.npz", "--ood", "cifar100:far=cifar100.npz", "--ood", "mnist:far=mnist.npz"],
}
FITTED = ["--train", "train.npz?part=1/11", "--ood-score", "all", "--allow-seen"]
SEARCH = ["--val", "val.npz?part=1/2", "--limit", "1000", "--resume", "-q"]
STUDIED = ("single", "taylor", "circuits", "whole-avg@4", "whole-three@4")
DEPTH, REMOVED = 6, 4
LATE = {1: 3, 2: REMOVED, 3: REMOVED, 4: REMOVED, DEPTH: REMOVED}
"""Heads to remove in the last sites, by their number: of the four heads of one site, one stays."""


def member(name: str, circuit: str, count: int) -> str:
    """The member that some removals of a circuit leave."""
    hydractl("prune", "vit.st", "--circuit", circuit, "--remove", str(count), "-q", "-o", f"recipe/{name}.st")
    return f"recipe/{name}.st"


def fused(name: str, *models: str) -> str:
    """Members as one model."""
    hydractl("fuse", *models, "-q", "-o", f"recipe/{name}.st")
    return f"recipe/{name}.st"


def made() -> dict[str, str]:
    """The models that the study has not made, by name."""
    ood = ["--ood-val", "val.npz?ood=jigsaw&part=1/2", "--objective", ",".join(OBJECTIVES)]
    if not Path("recipe/jigsaw.avg.json").exists():
        hydractl("extract-circuit", "vit.st", *SEARCH, *ood, "--budget", "8", "-o", "recipe/jigsaw.json")
    circuits = [member(f"jigsaw-{one}@8", f"recipe/jigsaw.{one}.json", 8) for one in OBJECTIVES]
    models = {
        "jigsaw-circuits": fused("jigsaw-circuits", *circuits),
        "jigsaw-whole-avg@4": fused(
            "jigsaw-whole-avg@4", "vit.st", member("jigsaw-avg@4", "recipe/jigsaw.avg.json", REMOVED)
        ),
        "ood@4": "study/ood@4.st",
    }
    for sites, count in LATE.items():
        numbers = ",".join(str(site) for site in range(DEPTH - sites, DEPTH))
        search = ["--ood-val", "cifar10.npz?part=1/2", "--objective", "avg", "--budget", str(count), "--sites", numbers]
        circuit = f"recipe/late{sites}.json"
        hydractl("extract-circuit", "vit.st", *SEARCH, *search, "-o", circuit)
        models[f"late{sites}"] = fused(f"late{sites}", "vit.st", member(f"late{sites}.pruned", circuit, count))
    return models


def table(rows: dict[str, str], name: str, *options: str) -> list[Any]:
    """The rows of one evaluation of predictions on test data, with their intervals."""
    path = Path(f"recipe/{name}.json")
    models = [f"{row}={folder}/test/{row}.pred.st" for row, folder in rows.items()]
    hydractl("eval", *models, *options, "--bootstrap", "1000", "-q", "-o", str(path))
    return rows_of(path)


def cells(row: Any, single: Any, scores: dict[str, str]) -> dict[str, Any]:
    """Of one row what the tables show: accuracy, mult-adds, and the mean AUROC by every score of ``scores``."""
    gained = row.get("difference", {})
    return {
        "name": row["name"],
        "mac_ratio": mult_adds(row, single),
        "accuracy": row["id"]["accuracy"],
        "accuracy_minus_single": gained.get("id.accuracy"),
        "auroc": {score: value_at(row, key) for score, key in scores.items()},
        "auroc_minus_single": {score: gained.get(key) for score, key in scores.items()},
    }


def calibration(folder: Path, row: str) -> Path:
    """The file that holds the temperature of a row."""
    return folder / "choose" / f"{row}.calibration.json"


def best(folder: Path, row: str, *, features: bool) -> str:
    """The first score not significantly below the best on validation data, of those on logits or of all."""
    predictions = folder / "choose" / f"{row}.pred.st"
    found = measure_row(predictions, fitted_temperature(calibration(folder, row)))
    names = [name for name in found.scores if features or name not in ON_FEATURES]
    return first_good_score(found.aurocs(names))


def main() -> None:
    """Make what is missing and write the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/study"))
    os.chdir(parser.parse_args().folder)
    Path("recipe").mkdir(exist_ok=True)
    models = made()
    for of, sets in SETS.items():
        Path("recipe", of).mkdir(exist_ok=True)
        for name, model in models.items():
            predictions = ["--predictions", f"recipe/{of}/{name}.pred.st", "--resume", "-q"]
            hydractl("eval", f"{name}={model}", *sets, *FITTED, *predictions, "-o", f"recipe/{of}/{name}.json")
    for name in models:
        stored = f"{name}=recipe/choose/{name}.pred.st"
        output = str(calibration(Path("recipe"), name))
        hydractl("calibrate", stored, "--val", VAL, "--temperature", "fit", "--force", "-q", "-o", output)
    late = {"single": "study"} | {f"late{sites}": "recipe" for sites in LATE}
    recipes = dict.fromkeys(STUDIED, "study") | {name: "recipe" for name in models if name not in late}

    rows = table(recipes, "recipes", "--ood-score", "all")
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    keys = {name: f"scores.{name}.ood_avg.auroc" for name in names}
    found = [cells(row, rows[0], {name: key for name, key in keys.items() if name in row["scores"]}) for row in rows]
    document: dict[str, Any] = {"recipes": found, "late": {}}
    for which in ("logits", "features"):
        features = which == "features"
        scores = {name: best(Path(at), name, features=features) for name, at in late.items()}
        each = []
        for name, score in scores.items():
            each += measured_by(score, calibration(Path(late[name]), name), Path(f"recipe/{name}.{which}.score.json"))
        rows = table(late, f"late.{which}", *each)
        document["late"][which] = [cells(row, rows[0], {scores[row["name"]]: "ood_avg.auroc"}) for row in rows]
    Path("recipe/recipe.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
