"""What a cascade costs and loses: the whole model with one circuit, and three circuits, on Fashion-MNIST.

    python examples/study.py DATA           # trains the model and cuts the data
    python examples/cascade.py [runs/study]

Writes ``cascade.json``, from which ``docs/make_results.py`` makes the tables of docs/numbers/cascade.md, and
``cascade.svg``. Every threshold is fitted on one half of the validation images, on whose other half circuits were
chosen; test images and OOD test sets have decided nothing. Logits are computed once and read from predictions files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from chain import hydractl
from matplotlib.figure import Figure

from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.metrics import bootstrap
from hydractl.metrics.cascade import Cascade, fit_cheapest_cascade
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.samples import Samples, samples_of
from hydractl.model.cost import dense_macs, macs, staged_macs
from hydractl.model.source import open_source

SEARCH = "--val val.npz?part=1/2 --ood-val cifar10.npz?part=1/2 --limit 600"
SETS = (
    "--test test.npz --ood cifar100:far=cifar100.npz --ood mnist:far=mnist.npz --val val.npz?part=2/2 "
    "--ood-val cifar10=cifar10.npz?part=2/2 --ood-val auto"
)
MEMBERS = {
    "whole-avg@4": ["vit.st", "avg@4.st"],
    "whole-late@4": ["vit.st", "late@4.st"],
    "circuits": ["acc@8.st", "ood@8.st", "avg@8.st"],
}
SCORE, LOSSES, ROUNDS = "gen", (0.001, 0.003, 0.01, 0.02), 500
KEYS = {"accuracy": "id.accuracy", "nll": "id.nll", "ece": "id.ece", "auroc": "ood_avg.auroc"}
Set = tuple[np.ndarray, np.ndarray | None]


def make() -> None:
    """The members, the fused models and their predictions, each unless it is there."""
    if not Path("circuit.avg.json").exists():
        run(f"extract-circuit vit.st {SEARCH} --objective acc,ood,avg --budget 8 -o circuit.json")
    run(f"extract-circuit vit.st {SEARCH} --objective avg --budget 4 --sites 4,5 -o late.json")
    for name in ("acc", "ood", "avg"):
        run(f"prune vit.st --circuit circuit.{name}.json -o {name}@8.st")
    run("prune vit.st --circuit circuit.avg.json --remove 4 -o avg@4.st")
    run("prune vit.st --circuit late.json -o late@4.st")
    for name, members in MEMBERS.items():
        run(f"fuse {' '.join(members)} -o {name}.st")
        run(f"eval {name}.st {SETS} --predictions {name}.pred.st -o {name}.eval.json")


def run(command: str) -> None:
    """One command, unless its output is there."""
    hydractl(*command.split())


def read(name: str) -> dict[tuple[str, str], Set]:
    """Logits ``[M, N, C]`` and labels of each set, by its role and name."""
    predictions = read_predictions(f"{name}.pred.st")
    found = {}
    for index, one in enumerate(predictions.sets):
        parts = list(predictions.batches(index))
        order = np.argsort(np.concatenate([np.asarray(rows) for rows, _, _ in parts]))
        logits = np.concatenate([logits for _, logits, _ in parts], axis=1)[:, order]
        found[one.role, one.name] = logits, None if one.labels is None else np.asarray(one.labels)
    return found


class Study:
    """One ensemble: its costs relative to the single model, and its figures on the test data."""

    def __init__(self, name: str) -> None:
        source, self.sets = open_source(f"{name}.st"), read(name)
        self.single = dense_macs(source.description)
        self.costs = [(a / self.single, b / self.single) for a, b in staged_macs(source.description, source.tensors)]
        self.whole = macs(source.description, source.tensors) / self.single
        self.full = self.resampled(None)

    def of_role(self, role: str) -> dict[str, np.ndarray]:
        """The logits of the sets of a role."""
        return {name: logits for (own, name), (logits, _) in self.sets.items() if own == role}

    def samples(self, one: Set, cascade: Cascade | None) -> Samples:
        """What is served of a set."""
        logits = one[0] if cascade is None else cascade.served(one[0])
        return samples_of(logits, one[1], score=SCORE, pairs=False)

    def resampled(self, cascade: Cascade | None) -> bootstrap.Resampled:
        """The test figures, on resamples too."""
        outside = {name: self.samples((x, None), cascade) for name, x in self.of_role("ood").items()}
        inside = self.samples(self.sets["id", "id"], cascade)
        return bootstrap.resample(inside, outside, dict.fromkeys(outside, "far"), rounds=ROUNDS)

    def share(self, cascade: Cascade, logits: np.ndarray) -> float:
        """The share of a set that goes on."""
        return float(cascade.goes_on(logits[cascade.member]).mean())

    def row(self, allowed: float, outside: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """The fit of one allowed loss, on the test data."""
        val, labels = self.sets["val", "val"]
        assert labels is not None
        found = fit_cheapest_cascade(val, labels, outside, SCORE, allowed, self.costs)
        if found is None:
            return None
        cascade = found.cascade
        differences = bootstrap.paired_differences(self.full, self.resampled(cascade))
        shares = {name: self.share(cascade, x) for name, x in {**self.of_role("id"), **self.of_role("ood")}.items()}
        first, rest = self.costs[cascade.member]
        return {
            "allowed": allowed,
            "member": cascade.member,
            "share": shares,
            "cost": first + shares["id"] * rest,
            "difference": {name: differences[key] for name, key in KEYS.items()},
        }

    def curve(self, points: int = 25) -> list[dict[str, float]]:
        """Cost and test AUROC for shares of the ID validation samples that go on, with the first member of the fit."""
        found = fit_cheapest_cascade(*self.sets["val", "val"], {}, SCORE, 1.0, self.costs)  # type: ignore[arg-type]
        assert found is not None
        fitted = self.row(LOSSES[1], {"cifar10": self.sets["ood_val", "cifar10"][0]})
        member = found.cascade.member if fitted is None else fitted["member"]
        alone = samples_of(self.sets["val", "val"][0][member : member + 1], score=SCORE, pairs=False).score
        made = []
        for value in np.quantile(alone, np.linspace(0, 1, points)):
            cascade = Cascade(member, SCORE, float(value))
            outside = [self.samples((x, None), cascade) for x in self.of_role("ood").values()]
            inside = self.samples(self.sets["id", "id"], cascade)
            curves = {str(i): x for i, x in enumerate(outside)}
            figures = bootstrap.resample(inside, curves, dict.fromkeys(curves), rounds=1).values
            first, rest = self.costs[member]
            cost = first + self.share(cascade, self.sets["id", "id"][0]) * rest
            made.append({"cost": cost, **{name: float(figures[key] or 0.0) for name, key in KEYS.items()}})
        return made


def draw(studies: Mapping[str, dict[str, Any]]) -> None:
    """Cost against AUROC, accuracy and ECE."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for place, key in enumerate(("auroc", "accuracy", "ece")):
        axis = figure.add_subplot(1, 3, place + 1)
        for name, study in studies.items():
            (line,) = axis.plot([p["cost"] for p in study["curve"]], [p[key] for p in study["curve"]], label=name)
            axis.plot([study["whole"]], [study["full"][key]], "o", color=line.get_color())
        axis.set_xlabel("mult-adds, single model = 1")
        axis.set_title({"auroc": f"OOD AUROC ({SCORE})", "accuracy": "accuracy", "ece": "ECE"}[key])
    axis.legend(fontsize=7)
    figure.savefig("cascade.svg", metadata={"Date": None})


def main() -> None:
    """Make what is missing, fit, and write the tables and the figure."""
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else "runs/study")
    assert SCORE in SCORES
    make()
    studies = {}
    for name in MEMBERS:
        study = Study(name)
        real = {"cifar10": study.sets["ood_val", "cifar10"][0]}
        full = {own: study.full.values[key] for own, key in KEYS.items()}
        rows = [study.row(allowed, real) for allowed in LOSSES]
        without = study.row(LOSSES[1], {})
        studies[name] = {"whole": study.whole, "full": full, "rows": rows, "without": without, "curve": study.curve()}
        print(name, "done", flush=True)
    Path("cascade.json").write_text(json.dumps({"score": SCORE, "studies": studies}, indent=1) + "\n", encoding="utf-8")
    draw(studies)


if __name__ == "__main__":
    main()
