"""OOD detection against cost: which sites and how many heads, one circuit or two, what they share, fine-tuned or not.

    python examples/cost_curve.py fashion runs/study runs/study1    # each with vit.st and the data of study.py
    python examples/cost_curve.py study runs/sst2 minilm-sst2       # what the study of docs/numbers/study-sst2.md has
    python examples/cost_curve.py clip FOLDER                       # with clip.st of docs/numbers/study-clip.md
    python examples/cost_curve.py draw fashion0=runs/study fashion1=runs/study1 ...

Writes ``curve/curve.json`` in each folder, and ``draw`` all of them as ``cost-curve.json``, from which
``docs/make_results.py`` makes the tables of docs/numbers/cost-curve.md, and ``cost-curve.svg``. The same call goes on
after a break.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from chain import OBJECTIVES, hydractl
from intervals import first_good_score
from matplotlib.figure import Figure

from hydractl.evaluation.predictions.reading import Predictions, read_predictions
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.sets import ID, OOD, OOD_VAL, VAL, EvalSet
from hydractl.fusion.plan import plan_fusion
from hydractl.metrics.bootstrap import Resampled, draw, mean_over_sets, paired_differences
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.model.cost import macs
from hydractl.model.source import open_source
from hydractl.studies.measured_rows import MeasuredRow, measure_row
from hydractl.studies.words import AUROC

ROUNDS, ACCURACY = 1000, "id.accuracy"
PAIR = ("avg", "ood")
DEPTH = 6
"""Sites of each of the models."""


@dataclass(frozen=True)
class Kind:
    """A model and its data.

    Attributes:
        model: MODEL.
        heads: of each site.
        search, data, tuning, longer: data and options of ``extract-circuit``, of ``eval`` (``--val`` chooses scores),
            and of ``finetune``, in short and for longer, if that is tried.
        more: options of every command.
        parts: of the heads of some last sites that a circuit beside the whole model loses.
    """

    model: str
    heads: int
    search: str
    data: str
    tuning: str
    longer: str = ""
    more: str = ""
    parts: tuple[float, ...] = (0.5, 0.75)

    @property
    def third(self) -> int:
        """Heads that each of the paper's circuits loses."""
        return DEPTH * self.heads // 3


KINDS = {
    "fashion": Kind(
        "vit.st",
        4,
        "--val val.npz?part=1/2 --ood-val cifar10.npz?part=1/2 --limit 1000",
        "--test test.npz --ood cifar100:far=cifar100.npz --ood mnist:far=mnist.npz --val val.npz?part=2/2 "
        "--ood-val cifar10=cifar10.npz?part=2/2 --ood-val made=val.npz?ood=auto&part=2/2 --train train.npz?part=1/11 "
        "--batch-size 256",
        "--train train.npz --val val.npz?part=1/2 --limit 6400 --epochs 1 --batch-size 64 --lr 5e-4",
        "--train train.npz --val val.npz?part=1/2 --epochs 1 --batch-size 64 --lr 1e-3",
    ),
    "clip": Kind(
        "clip.st",
        4,
        "--val builtin:digits/val?part=1/2 --ood-val builtin:symbols?part=1/2 --limit 100 --tower visual",
        "--test builtin:digits/test --ood letters:near=builtin:letters --ood photos:far=builtin:photos "
        "--val builtin:digits/val?part=2/2 --ood-val symbols=builtin:symbols?part=2/2 "
        "--ood-val made=builtin:digits/val?ood=auto&part=2/2 --train builtin:digits/train --batch-size 256",
        "--train builtin:digits/train --val builtin:digits/val?part=1/2 --epochs 3 --batch-size 32 --lr 2e-4",
        more="--prompt 'The digit {label}.'",
    ),
}


@dataclass(frozen=True)
class Row:
    """One fused model: its name in the table, the way it is made, and its members."""

    name: str
    way: str
    members: tuple[str, ...]


class Maker:
    """The members of one model, made when they are asked for and kept in ``curve/``."""

    def __init__(self, kind: Kind) -> None:
        """Nothing is made yet."""
        self.kind = kind
        self.more = shlex.split(kind.more)

    def circuit(self, name: str, objectives: str, budget: int, *where: str) -> None:
        """Search ``curve/NAME.OBJECTIVE.json`` for each objective."""
        if not Path(f"curve/{name}.{objectives.split(',')[-1]}.json").exists():
            search = [*shlex.split(self.kind.search), "--objective", objectives, "--budget", str(budget), *where]
            output = f"curve/{name}.json" if "," in objectives else f"curve/{name}.{objectives}.json"
            hydractl("extract-circuit", self.kind.model, *self.more, *search, "--resume", "-q", "-o", output)

    def member(self, circuit: str, removed: int) -> str:
        """What the first removals of a circuit leave."""
        output = f"curve/{circuit}@{removed}.st"
        how = ["--circuit", f"curve/{circuit}.json", "--remove", str(removed)]
        hydractl("prune", self.kind.model, *self.more, *how, "-q", "-o", output)
        return output

    def tuned(self, member: str, last: int) -> str:
        """A member after a short training of its last blocks and its classifier."""
        output = f"{member.removesuffix('.st')}.tuned.st"
        how = [*shlex.split(self.kind.tuning), *(["--train-last", str(last)] if last < DEPTH else [])]
        hydractl("finetune", member, *self.more, *how, "--resume", "-q", "-o", output)
        return output

    def row(self, name: str, way: str, members: list[str], *, whole: bool = False) -> Row:
        """Members as one model, with or without the whole one."""
        return Row(name, way, (*([self.kind.model] if whole else []), *members))

    def paper(self) -> list[str]:
        """The paper's three circuits."""
        self.circuit("circuit", ",".join(OBJECTIVES), self.kind.third)
        return [self.member(f"circuit.{one}", self.kind.third) for one in OBJECTIVES]

    def pruned_rows(self) -> Iterator[Row]:
        """Every row of which nothing is trained, the single model and the paper's three circuits first."""
        yield self.row("single", "single", [self.kind.model])
        yield self.row("three circuits", "three circuits", self.paper())
        for last in (1, 2, 3):
            yield from self.beside(last)
        for removed in (self.kind.third // 2, self.kind.third):
            yield from self.with_and_without(f"all, {removed} heads", [f"circuit.{one}" for one in PAIR], removed)
        yield from self.apart(DEPTH - 2)

    def tuned_rows(self) -> Iterator[Row]:
        """Some of them after a short training."""
        removed = int(self.kind.parts[0] * 3 * self.kind.heads)
        late = self.tuned(self.member("last3.avg", removed), 3)
        yield self.row(f"last 3, {removed} heads, tuned", "whole + one, tuned", [late], whole=True)
        yield self.row(f"last 3, {removed} heads, alone, tuned", "one circuit, tuned", [late])
        members = [self.tuned(member, DEPTH) for member in self.paper()]
        yield self.row("three circuits, tuned", "three circuits, tuned", members)
        yield self.row(f"all, {self.kind.third} heads, alone, tuned", "one circuit, tuned", members[-1:])
        shared, third = DEPTH - 2, self.kind.third
        members = [self.tuned(self.member(f"again.{one}", third), 2) for one in OBJECTIVES]
        yield self.row(f"sharing {shared}, from one start, tuned", "three, one start, tuned", members)
        yield from self.from_tuned(self.tuned(self.member("first.avg", 2 * third // 3), DEPTH), "after", "tuned")

    def longer_rows(self) -> Iterator[Row]:
        """The same from a start that was trained for longer."""
        member, output = self.member("first.avg", 2 * self.kind.third // 3), "curve/first.avg.longer.st"
        hydractl("finetune", member, *self.more, *shlex.split(self.kind.longer), "--resume", "-q", "-o", output)
        yield from self.from_tuned(output, "longer", "trained longer")

    def from_tuned(self, start: str, name: str, how: str) -> Iterator[Row]:
        """A pruned model that is trained before the circuits of its last sites are searched."""
        shared, left = DEPTH - 2, self.kind.third - 2 * self.kind.third // 3
        trained = Maker(replace(self.kind, model=start))
        trained.circuit(name, ",".join(OBJECTIVES), left, "--sites", f"{shared}-{DEPTH - 1}")
        members = [trained.member(f"{name}.{one}", left) for one in OBJECTIVES]
        yield self.row(f"sharing {shared}, from one start, {how} before", "three, one start, tuned", members)
        yield self.row(f"that start and one, {how}", "whole + one, tuned", [start, members[-1]])
        yield self.row(f"that start, alone, {how}", "one circuit, tuned", [start])

    def with_and_without(self, title: str, circuits: list[str], removed: int) -> Iterator[Row]:
        """One circuit and two, beside the whole model and alone."""
        members = [self.member(circuit, removed) for circuit in circuits]
        yield self.row(title, "whole + one", members[:1], whole=True)
        yield self.row(f"{title}, alone", "one circuit", members[:1])
        if len(members) > 1:
            yield self.row(f"{title}, two", "whole + two", members, whole=True)
            yield self.row(f"{title}, two alone", "two circuits", members)

    def beside(self, last: int) -> Iterator[Row]:
        """Rows of circuits of the last sites."""
        heads, name = last * self.kind.heads, f"last{last}"
        counts = [int(part * heads) for part in self.kind.parts]
        for objective, budget in (("avg", counts[-1]), ("ood", counts[0])):
            self.circuit(name, objective, budget, "--sites", f"{DEPTH - last}-{DEPTH - 1}")
        for place, removed in enumerate(counts):
            circuits = [f"{name}.{one}" for one in PAIR[: 1 if place else 2]]
            yield from self.with_and_without(f"last {last}, {removed} heads", circuits, removed)
        if last == 3:
            yield self.from_one_start(last, counts[0])

    def from_one_start(self, last: int, removed: int) -> Row:
        """The whole model with two circuits of the last sites, searched again in the last one from one start."""
        before, name = removed - self.kind.heads // 2, f"last{last}"
        self.circuit(f"{name}.start", "avg", before, "--sites", f"{DEPTH - last}-{DEPTH - 2}")
        mask = mask_of(self.member(f"{name}.start.avg", before))
        where = ["--sites", f"{DEPTH - 1}", "--start-mask", mask]
        self.circuit(f"{name}.next", "avg,ood", removed, *where)
        members = [self.member(f"{name}.next.{one}", removed) for one in PAIR]
        title = f"last {last}, {removed} heads, two from one start"
        return self.row(title, "whole + two, one start", members, whole=True)

    def apart(self, shared: int) -> Iterator[Row]:
        """Three circuits without the whole model that share their first sites."""
        third, objectives = self.kind.third, ",".join(OBJECTIVES)
        how = ["--share-from", "curve/circuit.avg.json", "--share-sites", str(shared)]
        self.circuit("shared", objectives, third, *how)
        members = [self.member(f"shared.{one}", third) for one in OBJECTIVES]
        yield self.row(f"sharing {shared}", "three, shared", members)
        first = 2 * third // 3  # the shared sites searched alone, and the rest again from there
        self.circuit("first", "avg", first, "--sites", f"0-{shared - 1}")
        mask = mask_of(self.member("first.avg", first))
        self.circuit("again", objectives, third, "--sites", f"{shared}-{DEPTH - 1}", "--start-mask", mask)
        members = [self.member(f"again.{one}", third) for one in OBJECTIVES]
        yield self.row(f"sharing {shared}, from one start", "three, one start", members)


def mask_of(member: str) -> str:
    """The mask that ``prune`` writes beside a member."""
    return f"{member.removesuffix('.st')}.mask.json"


@dataclass(frozen=True, eq=False)
class Figures:
    """What is measured of a row: mult-adds, accuracy, and, of scores on logits and of any, the chosen one's AUROC."""

    macs: int
    accuracy: Resampled
    auroc: dict[str, tuple[str, Resampled]]


@dataclass(frozen=True)
class Members:
    """Some members of a predictions file, which :func:`measure_row` reads like the file."""

    of: Predictions
    which: list[int]
    on_validation_data: bool = False

    @property
    def sets(self) -> list[EvalSet]:
        """The test sets, or the validation sets in their place."""
        roles = {VAL: ID, OOD_VAL: OOD} if self.on_validation_data else {ID: ID, OOD: OOD}
        return [replace(one, role=roles[one.role]) for one in self.of.sets if one.role in roles]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    @property
    def members(self) -> int:
        """The number of these members."""
        return len(self.which)

    def batches(self, dataset: EvalSet) -> Iterator[LogitsBatch]:
        """A set in pieces."""
        for rows, logits, scores in self.of.batches(dataset):
            of_which = {name: values[self.which] for name, values in scores.items()}
            yield LogitsBatch(rows, logits[self.which], of_which)


def predicted(kind: Kind, name: str, rows: list[Row]) -> dict[Row, Members]:
    """The predictions of all members of some rows, from one pass of them fused: what they share runs once."""
    pool, more = list(dict.fromkeys(model for row in rows for model in row.members)), shlex.split(kind.more)
    stem = f"curve/{name}"
    hydractl("fuse", *pool, *more, "--merge", "none", "-q", "-o", f"{stem}.st")
    how = [*shlex.split(kind.data), "--ood-score", "all", "--allow-seen", "--predictions", f"{stem}.pred.st"]
    hydractl("eval", f"{stem}.st", *more, *how, "-q", "-o", f"{stem}.eval.json")
    predictions = read_predictions(f"{stem}.pred.st")
    return {row: Members(predictions, [pool.index(model) for model in row.members]) for row in rows}


def best(validation: MeasuredRow, names: list[str]) -> str:
    """The first score not significantly below the best; one that is lower by more than 0.1 is taken to be so."""
    means = validation.mean_aurocs(names)
    near = [name for name in names if means.get(name, 0.0) > max(means.values()) - 0.1]
    return first_good_score(validation.aurocs(near))


def figures(row: Row, validation: MeasuredRow, test: MeasuredRow) -> Figures:
    """Choose the scores of a row on validation data, resample test data, and count the mult-adds of its fused model."""
    logits = [one for one in validation.scores if one not in ON_FEATURES]
    chosen = {"logits": best(validation, logits), "any": best(validation, validation.scores)}
    correct, draws = test.inside.correct, draw(0, "id", len(test.inside))
    rounds = np.array([next(draws) @ correct / len(correct) for _ in range(ROUNDS)])
    accuracy = Resampled({ACCURACY: float(correct.mean())}, {ACCURACY: rounds})
    sources = [open_source(model) for model in row.members]
    model = plan_fusion(sources, []) if len(sources) > 1 else sources[0]
    aurocs = {of: (one, mean_over_sets(test.aurocs([one])[one], AUROC)) for of, one in chosen.items()}
    return Figures(macs(model.description, model.tensors), accuracy, aurocs)


def study(kind: Kind) -> None:
    """Make and measure every row of a model."""
    Path("curve").mkdir(exist_ok=True)
    maker, rows = Maker(kind), {}
    makers = {"pruned": maker.pruned_rows, "tuned": maker.tuned_rows}
    for name, made in (makers | ({"longer": maker.longer_rows} if kind.longer else {})).items():
        for row, found in predicted(kind, name, list(made())).items():
            validation = measure_row(replace(found, on_validation_data=True), None)
            rows[row] = figures(row, validation, measure_row(found, None))
        write(rows)


def studied(model: str) -> None:
    """Measure what a finished study has made: its rows of circuits, and these circuits alone."""
    Path("curve").mkdir(exist_ok=True)
    pools = {path.name.removesuffix(".pred.st"): path for path in sorted(Path("choose").glob("*.pred.st"))}
    whole = {
        name: [model, f"{name.removeprefix('whole-')}.st"]
        for name in pools
        if name.startswith(("whole-avg", "whole-late"))
    }
    (third,) = (path.stem.removeprefix("acc@") for path in Path().glob("acc@*.st"))
    circuits = [f"{one}@{third}.st" for one in OBJECTIVES]
    rows = {Row("single", "single", (model,)): ("single", [model])}
    rows[Row("three circuits", "three circuits", tuple(circuits))] = ("circuits", circuits)
    rows[Row(f"avg@{third}, alone", "one circuit", (circuits[-1],))] = ("circuits", circuits)
    rows[Row(f"avg@{third}, two alone", "two circuits", tuple(circuits[1:]))] = ("circuits", circuits)
    for name, members in whole.items():
        rows[Row(name, "whole + one", tuple(members))] = (name, members)
        rows[Row(f"{name}, alone", "one circuit", tuple(members[1:]))] = (name, members)
    found = {}
    for row, (name, pool) in rows.items():
        own = [pool.index(member) for member in row.members]
        validation, test = (Members(read_predictions(f"{of}/{name}.pred.st"), own) for of in ("choose", "test"))
        found[row] = figures(row, measure_row(validation, None), measure_row(test, None))
    write(found)


def write(rows: dict[Row, Figures]) -> None:
    """Every row on test data, with its differences to the single model and to the paper's circuits."""
    against = dict(zip(("single", "three circuits"), rows.values(), strict=False))
    made = [cells(row, found, against) for row, found in rows.items()]
    Path("curve/curve.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def cells(row: Row, found: Figures, against: dict[str, Figures]) -> dict[str, Any]:
    """One row as it is written."""
    made: dict[str, Any] = {"name": row.name, "way": row.way, "mac_ratio": found.macs / against["single"].macs}
    made["accuracy"] = found.accuracy.values[ACCURACY]
    for of, (score, auroc) in found.auroc.items():
        made[of] = {"score": score, "auroc": auroc.values[AUROC]}
        for other, base in against.items():
            made[of][f"minus {other}"] = paired_differences(base.auroc[of][1], auroc)[AUROC]
    for other, base in against.items():
        made[f"accuracy minus {other}"] = paired_differences(base.accuracy, found.accuracy)[ACCURACY]
    return made


def picture(document: dict[str, list[dict[str, Any]]], path: str) -> None:
    """AUROC against mult-adds of every row: one column a model, scores on logits above, any score below."""
    ways = list(dict.fromkeys(row["way"].removesuffix(", tuned") for rows in document.values() for row in rows))
    figure = Figure(figsize=(3.4 * len(document), 6.4), layout="constrained")
    grid = figure.subplots(2, len(document), squeeze=False)
    for column, (name, rows) in enumerate(document.items()):
        paper = next(row for row in rows if row["way"] == "three circuits")
        for axis, of in zip(grid[:, column], ("logits", "any"), strict=True):
            axis.axhline(paper[of]["auroc"], color="grey", linewidth=0.7)
            axis.axvline(1.3, color="grey", linewidth=0.7, linestyle=":")
            for row in rows:
                point(axis, row, of, f"C{ways.index(row['way'].removesuffix(', tuned'))}")
            axis.set_title(f"{name}: {'scores on logits' if of == 'logits' else 'any score'}", fontsize=9)
        grid[1, column].set_xlabel("mult-adds, single model = 1")
    for place, way in enumerate(ways):
        grid[0, 0].plot([], [], "o", color=f"C{place}", label=way)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def point(axis: Any, row: dict[str, Any], of: str, color: str) -> None:
    """One row: an open circle if it was fine-tuned, a cross if its accuracy is significantly below that of single."""
    high = row["accuracy minus single"]["ci"][1]
    open_ = row["way"].endswith("tuned")
    style = {"marker": "x" if high < 0 else "o", "fillstyle": "none" if open_ else "full"}
    axis.plot([row["mac_ratio"]], [row[of]["auroc"]], color=color, markersize=5, **style)


def main() -> None:
    """Make what is missing in each folder and write the answer; or join answers and draw them."""
    if len(sys.argv) < 3 or sys.argv[1] not in (*KINDS, "study", "draw"):
        sys.exit(__doc__)
    here = Path.cwd()
    if sys.argv[1] == "draw":
        folders = dict(argument.split("=") for argument in sys.argv[2:])
        found = {name: json.loads(Path(at, "curve/curve.json").read_text("utf-8")) for name, at in folders.items()}
        Path("cost-curve.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return picture(found, "cost-curve.svg")
    if sys.argv[1] == "study":
        os.chdir(sys.argv[2])
        return studied(str(here / sys.argv[3]))
    for folder in sys.argv[2:]:
        os.chdir(here / folder)
        study(KINDS[sys.argv[1]])


if __name__ == "__main__":
    main()
