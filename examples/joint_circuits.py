"""Circuits chosen for the ensemble that they join, beside circuits chosen alone, by what the fused model costs.

    python examples/study.py DATA              # cuts the data and trains the model; the rest of it is not needed
    python examples/joint_circuits.py [runs/study ...]

Several folders are studies of models trained with other seeds. Writes ``recipe/joint.json`` in each. The same call goes
on after a break.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chain import hydractl
from intervals import rows_of
from late_sites import SEARCH, SETS, cells, fused, member

WHOLE = "vit.st"
PLACES: dict[str, tuple[str, int]] = {"last1": ("5", 3), "last3": ("3-5", 4), "all": ("0-5", 4)}
"""Where heads may go, and how many: of the four heads of one site, one stays."""
SCORES = ("msp", "gen", "mahalanobis")
COSTS = ("1.2", "1.5")


def circuit(name: str, count: int, *more: str, others: tuple[str, ...] = (), objective: str = "avg") -> str:
    """The member that a search leaves, for the ensemble with others or alone."""
    beside = [word for other in others for word in ("--ensemble-with", other)]
    search = ["--ood", "cifar10.npz?part=1/2", "--objective", objective, "--budget", str(count), *more, *beside]
    hydractl("extract-circuit", WHOLE, *SEARCH, *search, "-o", f"recipe/joint.{name}.json")
    removed = len(json.loads(Path(f"recipe/joint.{name}.json").read_text(encoding="utf-8"))["removed"])
    return member(f"joint.{name}", f"recipe/joint.{name}.json", removed)


def ensembles() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The members of each row but the first, by its name."""
    for place, (sites, count) in PLACES.items():
        where = ("--sites", sites)
        alone = circuit(f"{place}.alone", count, *where)
        joint = circuit(f"{place}.joint", count, *where, others=(WHOLE,))
        yield f"{place}, alone", (WHOLE, alone)
        yield f"{place}, joint", (WHOLE, joint)
    second = circuit("all.alone.ood", count, *where, objective="ood")
    yield "two alone", (WHOLE, alone, second)
    yield "two joint", (WHOLE, joint, circuit("all.joint.next", count, *where, others=(WHOLE, joint)))
    for cost in COSTS:
        yield f"joint within {cost}", (WHOLE, circuit(f"cost{cost}", 4, "--max-cost", cost, others=(WHOLE,)))


def study() -> list[dict[str, Any]]:
    """The rows of the models of one folder on test data."""
    models = {"single": WHOLE} | {
        name: fused(f"fused.{name.replace(', ', '.').replace(' ', '-')}", *members) for name, members in ensembles()
    }
    rows = [f"{name}={model}" for name, model in models.items()]
    how = ["--limit", "2000", "--batch-size", "250", "--ood-score", ",".join(SCORES), "--fit", "train.npz?part=1/27"]
    hydractl("eval", *rows, *SETS["test"], *how, "--bootstrap", "500", "-q", "-o", "recipe/joint.test.json")
    found = rows_of(Path("recipe/joint.test.json"))
    return [cells(row, found[0], {name: f"scores.{name}.ood_avg.auroc" for name in SCORES}) for row in found]


def main() -> None:
    """Make what is missing in each folder and write the answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="*", default=[Path("runs/study")])
    here = Path.cwd()
    for folder in parser.parse_args().folder:
        os.chdir(here / folder)
        Path("recipe").mkdir(exist_ok=True)
        Path("recipe/joint.json").write_text(json.dumps(study(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
