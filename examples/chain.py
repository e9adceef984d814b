"""The whole chain as a study of one model: train, prune in several ways, fine-tune, fuse, evaluate, measure the cost.

Every line printed after ``$`` is a command that can be typed as it stands. ``fashion_mnist.py`` and ``sst2.py`` are
two such studies; copy one of them to study a model of your own.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from intervals import show_intervals
from rich.console import Console
from rich.table import Table

from hydractl.cli.app import main

OBJECTIVES = ("acc", "ood", "avg")
SEEDS = ("0", "1", "2")


@dataclass
class Study:
    """The definition of a study.

    Attributes:
        runs: the folder of all results; emptied at the start.
        base: MODEL to start from; trained first with ``pretraining``, or used as it is where that is empty.
        train, val, test: labelled SPECs; members are chosen and tuned on the first two, figures come from the third.
        ood_val: OOD SPEC for the circuits only. ``ood_test`` are the ``NAME:group=SPEC`` of the test.
        remove: heads removed from each member, in all.
        samples: calibration samples of a Taylor member.
        pretraining, tuning: options of ``finetune`` for the base and for each member; empty leaves them as they are.
        everywhere: options of every command, for example the ``--labels`` of a zero-shot model.
        scoring, search, bench: options of score-based ``prune``, of ``extract-circuit`` and of ``bench``; they win over
            ``everywhere``. With ``--keep`` in ``scoring``, ``remove`` counts for the circuits only.
        criteria: which score-based ensembles to make beside the circuits.
        deep: options of ``finetune`` for a deep ensemble of three whole models; empty makes none. With ``pretraining``
            they are the trained base and two more of other seeds, without it the base trained on with three seeds.
        evaluation: options of ``eval``.
        apart: whether the members of each fused model are also evaluated one after another.
        timed: whether ``bench`` measures times; if not, the table has the mult-adds that ``eval`` counts.
        resume: keep what an earlier run left in ``runs`` and make what is missing.
    """

    runs: Path
    base: str
    train: str
    val: str
    test: str
    ood_val: str
    ood_test: list[str]
    remove: int
    samples: int = 512
    pretraining: str = ""
    tuning: str = ""
    everywhere: str = ""
    scoring: str = "--scope global"
    search: str = ""
    criteria: tuple[str, ...] = ("taylor",)
    bench: str = ""
    deep: str = ""
    evaluation: str = ""
    apart: bool = True
    timed: bool = True
    resume: bool = False


def hydractl(*arguments: str) -> None:
    """Run one command of the tool in this process, as a shell would, and show it; not if its output is there."""
    if Path(arguments[arguments.index("-o") + 1]).exists():
        return
    print(f"\n$ hydractl {shlex.join(arguments)}", flush=True)
    code = main(arguments)
    if code:
        sys.exit(code)


def over(everywhere: str, own: str) -> list[str]:
    """Options of every command and those of one, which win: no option may be given twice."""
    words, kept = shlex.split(own), True
    given = {word for word in words if word.startswith("--")}
    common = []
    for word in shlex.split(everywhere):
        kept = word not in given if word.startswith("--") else kept
        common += [word] if kept else []
    return [*common, *words]


def run(study: Study) -> None:
    """The study from nothing to the table."""
    started = time.monotonic()
    if not study.resume:
        shutil.rmtree(study.runs, ignore_errors=True)
    study.runs.mkdir(parents=True, exist_ok=True)
    base, more = study.base, shlex.split(study.everywhere)
    if study.pretraining:
        base = f"{study.runs}/base.st"
        data = ["--train", study.train, "--val", study.val]
        hydractl(
            "finetune", study.base, *data, *over(study.everywhere, study.pretraining), *again(study), "-o", base, "-q"
        )
    ensembles = {kind: scored(study, base, kind) for kind in study.criteria}
    ensembles["circuit"] = circuits(study, base)
    models = [f"single={base}"]
    if study.deep:
        whole = deep(study, base)
        models += [f"{Path(path).stem}={path}" for path in whole if path != base]
        models.append(f"deep={'+'.join(whole)}")
    for members in ensembles.values():
        models += [f"{Path(path).stem}={path}" for path in members]
    for kind, members in ensembles.items():
        hydractl("fuse", *members, *more, "-o", f"{study.runs}/hydra-{kind}.st")
        models.append(f"hydra-{kind}={study.runs}/hydra-{kind}.st")
        if study.apart:
            models.append(f"ensemble-{kind}={'+'.join(members)}")
    ood = [word for spec in study.ood_test for word in ("--ood", spec)]
    measure = over(study.everywhere, study.evaluation)
    hydractl("eval", *models, "--test", study.test, *ood, *measure, "-o", f"{study.runs}/eval.json")
    if study.timed:
        hydractl("bench", *models, *over(study.everywhere, study.bench), "-o", f"{study.runs}/bench.json")
        show(study.runs)
    else:
        show_intervals(study.runs / "eval.json")
    print(f"{time.monotonic() - started:.0f} s")


def scored(study: Study, base: str, kind: str) -> list[str]:
    """Three members by the same criterion, each with a seed of its own."""
    members = []
    for seed in SEEDS:
        pruned = f"{study.runs}/{kind}{seed}.pruned.st"
        amount = [] if "--keep" in study.scoring else ["--remove", str(study.remove)]
        how = ["--method", kind, *over(study.everywhere, study.scoring), *amount, "--seed", seed]
        data = ["--data", study.train, "--samples", str(study.samples)] if kind in ("taylor", "gate") else []
        hydractl("prune", base, *how, *data, "-o", pruned)
        members.append(tuned(study, pruned, f"{study.runs}/{kind}{seed}.st"))
    return members


def deep(study: Study, base: str) -> list[str]:
    """Three whole models: the base and two trained like it, or three trained on from the base."""
    members = [base] if study.pretraining else []
    for seed in SEEDS[len(members) :]:
        members.append(f"{study.runs}/deep{seed}.st")
        how = [*over(study.everywhere, study.deep), "--seed", seed, *again(study)]
        hydractl("finetune", study.base, "--train", study.train, "--val", study.val, *how, "-o", members[-1], "-q")
    return members


def circuits(study: Study, base: str) -> list[str]:
    """Three members by what their circuits keep best: accuracy, OOD detection, both."""
    more = shlex.split(study.everywhere)
    data = ["--val", study.val, "--ood-val", study.ood_val, "--objective", ",".join(OBJECTIVES)]
    how = ["--budget", str(study.remove), *over(study.everywhere, study.search)]
    if not all((study.runs / f"circuit.{objective}.json").exists() for objective in OBJECTIVES):
        hydractl("extract-circuit", base, *data, *how, *again(study), "-o", f"{study.runs}/circuit.json", "-q")
    members = []
    for objective in OBJECTIVES:
        pruned = f"{study.runs}/circuit-{objective}.pruned.st"
        hydractl("prune", base, "--circuit", f"{study.runs}/circuit.{objective}.json", *more, "-o", pruned)
        members.append(tuned(study, pruned, f"{study.runs}/circuit-{objective}.st"))
    return members


def tuned(study: Study, pruned: str, path: str) -> str:
    """The pruned member after fine-tuning, or as it is."""
    if not study.tuning:
        return pruned
    data = ["--train", study.train, "--val", study.val]
    hydractl(
        "finetune",
        pruned,
        *data,
        *over(study.everywhere, study.tuning),
        *again(study),
        "-o",
        path,
        "-q",
    )
    return path


def again(study: Study) -> list[str]:
    """The option that resumes a long command."""
    return ["--resume"] if study.resume else []


def show(runs: Path) -> None:
    """One table from the two JSON files."""
    evaluated = {row["name"]: row for row in json.loads((runs / "eval.json").read_text())["models"]}
    measured = {row["model"]: row for row in json.loads((runs / "bench.json").read_text())["results"]}
    table = Table(title=f"{runs}: test set, averages over the OOD sets, cost", box=None)
    for column in ("model", "accuracy", "NLL", "ECE", "OOD AUROC", "FPR95", "params", "mult-adds", "time ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in evaluated.items():
        inside, ood, cost = row["id"], row["ood_avg"], measured[name]
        low, high = cost["ratio_ci"]
        figures = (inside["accuracy"], inside["nll"], inside["ece"], ood["auroc"], ood["fpr95"])
        table.add_row(
            name,
            *(f"{value:.4f}" for value in figures),
            f"{cost['params']:,}",
            f"{cost['macs']:,}",
            f"{cost['ratio']:.2f} ({low:.2f}..{high:.2f})",
        )
    console = Console(width=max(Console().width, 130))
    console.print()
    console.print(table)
    console.print(f"\nTime ratio to the single model: median over paired rounds, 95 % interval. All files: {runs}/")
