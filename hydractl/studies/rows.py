"""The rows that a study compares: each a model made of the one that is studied, by the commands that make it.

Those of circuits and of pruned weights are declared here, those of ways of getting members in ``hydractl/methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hydractl.errors import InputError
from hydractl.methods import rows_of_methods
from hydractl.methods.study_rows import (
    MEMBERS,
    AsMeasured,
    ByOneTraining,
    BySeeds,
    ByTraining,
    ByVerb,
    Recipe,
    StudyRow,
)
from hydractl.studies.steps import Step, Value

SEEDS = tuple(str(seed) for seed in range(MEMBERS))
THREE = ("acc", "ood", "avg")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: in the tables, and of its files.
        model: MODEL, as ``eval`` takes it.
        steps: that make it.
        options: more of ``eval`` for this row.
        stored: whether it is one file, so that it can become ``best.st``.
        circuit: the circuit that it is made with, and how many heads that removes.
    """

    name: str
    model: str
    steps: tuple[Step, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    stored: bool = True
    circuit: tuple[Path, int] | None = None


@dataclass(frozen=True)
class Workshop:
    """What rows are made of.

    Attributes:
        model: MODEL.
        heads: how many there are at each site that heads may be removed from, by its number in the model.
        late: the numbers of the sites in the last third of each tower.
        train: training data, None where there are none.
        val, ood_val: the data of the search.
        folder: of the study.
        search: more options of ``extract-circuit``.
        common: options for every command of a verb, by verb; ``prune --circuit`` has its own.
        training: options of ``finetune`` for rows that are trained.
        objectives: of the search.
        max_drop: accuracy that may be lost.
    """

    model: str
    heads: Mapping[int, int]
    late: Sequence[int]
    train: str | None
    val: str
    ood_val: str
    folder: Path
    search: Mapping[str, Value] = field(default_factory=dict)
    common: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    training: Mapping[str, Value] = field(default_factory=dict)
    objectives: Sequence[str] = THREE
    max_drop: float = 0.01

    @property
    def total(self) -> int:
        """All heads."""
        return sum(self.heads.values())

    def share(self, part: float) -> int:
        """Return how many heads are about a part of all: at least one, and never all."""
        about = max(1, round(part * self.total))
        return min(about, self.total - 1)

    def step(
        self,
        verb: str,
        models: Sequence[str],
        options: Mapping[str, Value],
        outputs: Sequence[str],
        needs: Iterable[Step] = (),
        output: str | None = None,
        common: str | None = None,
    ) -> Step:
        """One command; its files are in the folder of the study. ``common`` names its common options."""
        paths = tuple(self.folder / name for name in outputs)
        whole = None if output is None else self.folder / output
        common_options = self.common.get(common or verb, {})
        return Step(verb, tuple(models), {**common_options, **options}, paths, tuple(needs), whole)

    @cached_property
    def circuits(self) -> Step:
        """One search for every objective, as far as the largest row needs; smaller ones take its first removals."""
        objectives = ",".join(self.objectives)
        if len(self.objectives) == 1:
            return self._search(objectives, self.share(1 / 4), {}, ["circuit.json"], "circuit.json")
        names = [f"circuit.{objective}.json" for objective in self.objectives]
        return self._search(objectives, self.share(1 / 3), {}, names, "circuit.json")

    @cached_property
    def late_circuit(self) -> Step:
        """A search in the last sites alone."""
        late_heads = sum(self.heads[site] for site in self.late)
        budget = max(1, min(self.share(1 / 6), late_heads - 1))
        sites = {"sites": ",".join(map(str, self.late))}
        return self._search("avg", budget, sites, ["circuit.late.json"], "circuit.late.json")

    def _search(
        self, objectives: str, budget: int, more: Mapping[str, Value], outputs: Sequence[str], output: str
    ) -> Step:
        data: dict[str, Value] = {"val": self.val, "ood_val": self.ood_val, "objective": objectives}
        options = {**data, "budget": str(budget), **self.search, **more, "resume": True}
        return self.step("extract-circuit", [self.model], options, outputs, output=output)

    def circuit(self, objective: str) -> Path:
        """The file of an objective."""
        return self.circuits.outputs[list(self.objectives).index(objective)]

    def pruned(self, name: str, circuit: Path, remove: int | None, search: Step) -> Step:
        """The member that a circuit leaves after some removals; None: after as many as ``max_drop`` allows."""
        options: dict[str, Value] = {"circuit": str(circuit)}
        if remove is None:
            options |= {"remove": "auto", "max_drop": repr(self.max_drop)}
        else:
            options["remove"] = str(remove)
        options["force"] = True
        return self.step(
            "prune",
            [self.model],
            options,
            [f"{name}.mask.json", f"{name}.st"],
            [search],
            f"{name}.st",
            "prune --circuit",
        )

    def fused(self, name: str, members: Sequence[Step], *, whole: bool = False, **more: object) -> Row:
        """A row of members fused to one file, with or without the whole model."""
        models = [str(member.outputs[-1]) for member in members]
        if whole:
            models.insert(0, self.model)
        step = self.step("fuse", models, {"force": True}, [f"{name}.st"], members)
        return Row(name, str(step.outputs[0]), (step,), **more)  # type: ignore[arg-type]

    def tuned(self, member: Step) -> Step:
        """A member after fine-tuning."""
        model = member.outputs[-1]
        assert self.train is not None  # rows that are trained need it
        options: dict[str, Value] = {"train": self.train, "val": self.val, **self.training, "resume": True}
        return self.step("finetune", [str(model)], options, [f"{model.stem}.tuned.st"], [member])

    def training_step(
        self, options: Mapping[str, Value], outputs: Sequence[str], output: str | None = None, seed: str | None = None
    ) -> Step:
        """One training of the whole model, with more options than those of every training."""
        assert self.train is not None  # rows that are trained need it
        data: dict[str, Value] = {"train": self.train, "val": self.val}
        all_options = {**data, **self.training, **options, "resume": True}
        if seed is not None:
            all_options["seed"] = seed
        return self.step("finetune", [self.model], all_options, outputs, output=output)

    def trained(self, name: str, options: Mapping[str, Value], seeds: Sequence[str] = SEEDS) -> list[Step]:
        """Members of the whole model that differ in the seed of their training."""
        return [self.training_step(options, [f"{name}{seed}.st"], seed=seed) for seed in seeds]

    # --- rows that methods declare ------------------------------------------------------------------------------------

    def made_by(self, name: str, recipe: Recipe) -> Row:
        """The row of this name, made as its method says."""
        match recipe:
            case BySeeds(options, None):
                return self.fused(name, self.trained(name, options))
            case BySeeds(options, ensemble):
                return self.fused(name, self.trained(name, {"ensemble": str(ensemble), **options}))
            case ByOneTraining(ensemble, options, merge):
                return self._of_one_training(name, {"ensemble": str(ensemble), **options}, merge)
            case ByTraining(ensemble, options):
                step = self.training_step({"ensemble": str(ensemble), **options}, [f"{name}.st"])
                return Row(name, str(step.outputs[0]), (step,))
            case ByVerb(verb):
                assert self.train is not None
                data: dict[str, Value] = {"train": self.train, "val": self.val, "force": True}
                step = self.step(verb, [self.model], data, [f"{name}.st"])
                return Row(name, str(step.outputs[0]), (step,))
            case AsMeasured(options):
                return Row(name, self.model, options=options, stored=False)

    def _of_one_training(self, name: str, options: Mapping[str, Value], merge: str | None) -> Row:
        """A row of members that one training of the whole model leaves, fused."""
        names = [f"{name}.{number}.st" for number in range(1, MEMBERS + 1)]
        step = self.training_step(options, names, f"{name}.st")
        fusing: dict[str, Value] = {"force": True}
        if merge is not None:
            fusing["merge"] = merge
        members = [str(path) for path in step.outputs]
        fused = self.step("fuse", members, fusing, [f"{name}.fused.st"], [step])
        return Row(name, str(fused.outputs[0]), (fused,))


@dataclass(frozen=True)
class Scale:
    """How much a study does.

    Attributes:
        rows: names of rows.
        approx: of the search; None for an exact one.
        samples: of each set in the search; None for all.
        cut: in words, what was left out of what was asked for.
    """

    rows: Sequence[str]
    approx: str | None
    samples: int | None
    cut: Sequence[str] = ()


def smaller(scale: Scale) -> Iterator[Scale]:
    """Yield the scale that was asked for, and smaller and smaller ones."""
    yield scale
    if scale.approx is None:
        text = "the search is approximated (lazy:8)"
        scale = replace(scale, approx="lazy:8", cut=[*scale.cut, text])
        yield scale
    for samples in (1000, 400):
        if scale.samples is None or scale.samples > samples:
            text = f"the search takes {samples} samples of each set"
            scale = replace(scale, samples=samples, cut=[*scale.cut, text])
            yield scale
    dear = []
    cheap = []
    for name in scale.rows:
        if name in NEED_THREE or name == "whole-late":
            dear.append(name)
        else:
            cheap.append(name)
    if dear:
        text = f"the rows {', '.join(dear)} are left out"
        scale = replace(scale, rows=cheap, cut=[*scale.cut, text])
        yield scale
    fewest = min(scale.samples or 150, 150)
    yield replace(scale, samples=fewest, cut=[*scale.cut, "the search takes 150 samples"])


NEED_THREE = {"whole-three", "circuits", "circuits-tuned"}
"""Rows of circuits for three objectives."""

Maker = Callable[[Workshop], list[Row]]
NEED_TRAIN: set[str] = set()
NEED_LABELS: set[str] = set()
NEED_CLASSIFIER: set[str] = set()
NEED_STEPS: dict[str, int] = {}
DEFAULT: list[str] = []
MAKERS: dict[str, Maker] = {}
"""The rows by the names of ``--rows``, in the order of the table."""


def row(
    name: str,
    *,
    default: bool = True,
    train: bool = False,
    labels: bool = True,
    classifier: bool = False,
    steps: int = 0,
) -> Callable[[Maker], Maker]:
    """Declare the function below as the maker of the rows of a name.

    Args:
        name: as ``--rows`` has it.
        default: made by default, or only when asked for.
        train: needs training data.
        labels: needs their labels.
        classifier: a zero-shot model cannot have it.
        steps: the fewest steps of a training that it can be had of.
    """

    def declare(maker: Maker) -> Maker:
        MAKERS[name] = maker
        if train:
            NEED_TRAIN.add(name)
            if labels:
                NEED_LABELS.add(name)
        if classifier:
            NEED_CLASSIFIER.add(name)
        if steps:
            NEED_STEPS[name] = steps
        if default:
            DEFAULT.append(name)
        return maker

    return declare


@row("single")
def single(shop: Workshop) -> list[Row]:
    """The model as it is."""
    return [Row("single", shop.model)]


@row("whole-avg")
def whole_avg(shop: Workshop) -> list[Row]:
    """The whole model and one circuit for accuracy and OOD detection, at a twelfth, a sixth and a quarter removed."""
    circuit = shop.circuit("avg")
    rows: dict[int, Row] = {}
    for part in (1 / 12, 1 / 6, 1 / 4):
        count = shop.share(part)  # of few heads, two parts may be as many
        if count not in rows:
            member = shop.pruned(f"avg@{count}", circuit, count, shop.circuits)
            rows[count] = shop.fused(f"whole-avg@{count}", [member], whole=True, circuit=(circuit, count))
    return list(rows.values())


@row("whole-auto", default=False)
def whole_auto(shop: Workshop) -> list[Row]:
    """The whole model and that circuit with as many heads removed as ``--max-drop`` allows, counted by its search."""
    member = shop.pruned("auto", shop.circuit("avg"), None, shop.circuits)
    return [shop.fused("whole-auto", [member], whole=True)]


@row("whole-late")
def whole_late(shop: Workshop) -> list[Row]:
    """The same with a circuit in the last third of the sites: whatever comes before runs once."""
    step = shop.late_circuit
    circuit = step.outputs[0]
    count = int(str(step.options["budget"]))
    member = shop.pruned(f"late@{count}", circuit, count, step)
    return [shop.fused(f"whole-late@{count}", [member], whole=True, circuit=(circuit, count))]


@row("whole-three")
def whole_three(shop: Workshop) -> list[Row]:
    """The whole model and three circuits, for accuracy, for OOD detection and for both, with a sixth removed each."""
    count = shop.share(1 / 6)
    members = _three(shop, count)
    return [shop.fused(f"whole-three@{count}", members, whole=True, circuit=(shop.circuit("avg"), count))]


@row("circuits")
def circuits(shop: Workshop) -> list[Row]:
    """The paper's three circuits, with a third of the heads removed each, without the whole model."""
    count = shop.share(1 / 3)
    return [shop.fused("circuits", _three(shop, count), circuit=(shop.circuit("avg"), count))]


def _three(shop: Workshop, count: int) -> list[Step]:
    """Return the members that three circuits leave after as many removals."""
    members = []
    for objective in THREE:
        circuit = shop.circuit(objective)
        members.append(shop.pruned(f"{objective}@{count}", circuit, count, shop.circuits))
    return members


@row("taylor", train=True)
def taylor(shop: Workshop) -> list[Row]:
    """Three members by Taylor scores of different samples, with a third of the heads removed each."""
    return [shop.fused("taylor", _taylor(shop))]


def _taylor(shop: Workshop) -> list[Step]:
    assert shop.train is not None
    options: dict[str, Value] = {"method": "taylor", "scope": "global", "remove": str(shop.share(1 / 3))}
    # The samples are all that members differ in: of more of them, all rank the heads alike.
    options |= {"samples": "128", "data": shop.train, "force": True}
    members = []
    for seed in SEEDS:
        model = f"taylor{seed}.st"
        outputs = [f"taylor{seed}.mask.json", model]
        members.append(shop.step("prune", [shop.model], {**options, "seed": seed}, outputs, output=model))
    return members


@row("circuits-tuned", default=False, train=True)
def circuits_tuned(shop: Workshop) -> list[Row]:
    """The three circuits, each fine-tuned."""
    members = _three(shop, shop.share(1 / 3))
    tuned_members = [shop.tuned(member) for member in members]
    return [shop.fused("circuits-tuned", tuned_members)]


@row("taylor-tuned", default=False, train=True)
def taylor_tuned(shop: Workshop) -> list[Row]:
    """The three Taylor members, each fine-tuned."""
    tuned_members = [shop.tuned(member) for member in _taylor(shop)]
    return [shop.fused("taylor-tuned", tuned_members)]


@row("trained", default=False, train=True)
def trained(shop: Workshop) -> list[Row]:
    """The whole model trained once more like the other rows: what of their gain is the training's."""
    (step,) = shop.trained("trained", {}, seeds=SEEDS[:1])
    return [Row("trained", str(step.outputs[0]), (step,))]


def _maker_of(declared: StudyRow) -> Maker:
    """Return the maker of a row that a method declares."""

    def make(shop: Workshop) -> list[Row]:
        heads = next(iter(shop.heads.values()))
        return [shop.made_by(declared.name, declared.recipe_for(heads))]

    return make


for _declared in rows_of_methods():
    if _declared.name in MAKERS:
        raise InputError(f"a method declares the row {_declared.name!r} of a study, a name that is taken")
    row(
        _declared.name,
        default=False,
        train=_declared.needs_training_data,
        labels=_declared.needs_labels,
        classifier=_declared.needs_classifier,
        steps=_declared.least_steps,
    )(_maker_of(_declared))


def _weights(shop: Workshop, name: str, method: str) -> list[Row]:
    """One model with the share of its weights that a ViT-B/16 keeps without a third of its heads, fine-tuned."""
    assert shop.train is not None
    options: dict[str, Value] = {"method": method, "weights": "0.891", "force": True}
    if method == "oba":
        options["data"] = shop.train
    tuned = shop.tuned(shop.step("prune", [shop.model], options, [f"{name}.st"]))
    return [Row(name, str(tuned.outputs[0]), (tuned,))]


@row("oba", default=False, train=True)
def oba(shop: Workshop) -> list[Row]:
    """Single weights pruned by OBA."""
    return _weights(shop, "oba", "oba")


@row("magnitude", default=False, train=True)
def magnitude(shop: Workshop) -> list[Row]:
    """Single weights pruned by magnitude."""
    return _weights(shop, "magnitude", "magnitude")


@row("random-weights", default=False, train=True)
def random_weights(shop: Workshop) -> list[Row]:
    """Single weights pruned at random."""
    return _weights(shop, "random-weights", "random")
