"""The rows that a study compares: models made from the studied model, each with the commands that make it.

Rows of circuits and of pruned weights are declared here; rows of ensemble methods are declared in ``hydractl/methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from hydractl.errors import InputError
from hydractl.methods import MethodOptions, rows_of_methods
from hydractl.methods.study_rows import (
    MEMBERS,
    AsMeasured,
    ByOneTraining,
    BySeeds,
    ByTraining,
    Recipe,
    StudyRow,
)
from hydractl.studies.steps import Step, Value

_NOTHING_AVERAGED = "none"
"""The value of ``fuse --merge`` for the rivals: their authors run each member as it was trained. Rows of pruned members
are fused by the default, as the paper averages MLPs."""
THREE = ("acc", "ood", "avg")
"""The objectives of the paper's three circuits."""


@dataclass(frozen=True)
class Row:
    """One row of a study: a model or an ensemble that is compared with the others.

    Attributes:
        name: its name in tables and in the names of its files.
        model: its MODEL argument of ``eval``.
        steps: the steps (commands) that make it; empty for the studied model itself.
        options: further options of ``eval`` for this row.
        stored: whether it is a single file, so that it can become ``best.st``.
        circuit: the file of the circuit that it is made with, and how many heads are removed by it; None without one.
    """

    name: str
    model: str
    steps: tuple[Step, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    stored: bool = True
    circuit: tuple[Path, int] | None = None


@dataclass(frozen=True)
class Workshop:
    """The model, the data and the options that rows are made with. Its methods return steps and rows; they run nothing.

    A site is an attention layer of the model, and is given by its index there. A tower is an encoder, of images or of
    texts.

    Attributes:
        model: the MODEL argument of the studied model.
        heads: by site, the number of its heads, for the sites that heads may be removed from.
        late: the sites in the last third of each tower.
        train: the training data; None without them.
        val, ood_val: the data of the search.
        folder: the folder of the study.
        search: further options of ``extract-circuit``.
        common: by verb (subcommand), options that all its commands get; ``prune --circuit`` has a key of its own.
        training: options of ``finetune`` for rows that are trained.
        objectives: the objectives of the search, e.g. ``avg``.
        max_drop: the accuracy that may be lost.
        seed: the seed of the study; the seeds of members follow from it.
        has_classifier: whether the model has a classifier; a zero-shot model has none.
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
    seed: int = 0
    has_classifier: bool = True

    @property
    def seeds(self) -> tuple[str, ...]:
        """The seeds of members that differ only in their seed, as text; studies with different seeds share none."""
        first = MEMBERS * self.seed
        return tuple(str(seed) for seed in range(first, first + MEMBERS))

    @property
    def total(self) -> int:
        """The number of all heads that may be removed."""
        return sum(self.heads.values())

    def share(self, part: float) -> int:
        """Return about this share of the number of all heads, e.g. 1/6; it is at least one, and never all heads."""
        rounded = round(part * self.total)
        at_least_one = max(1, rounded)
        return min(at_least_one, self.total - 1)

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
        """Return the step of one command, with its files in the folder of the study.

        Args:
            verb: the verb (subcommand).
            models: its MODEL arguments.
            options: its options; they override the common options.
            outputs: the names of the files that it writes.
            needs: the steps whose outputs it reads.
            output: the name for ``-o``; None for the first of ``outputs``.
            common: the key of its common options; None for the verb.
        """
        paths = tuple(self.folder / name for name in outputs)
        output_path = None
        if output is not None:
            output_path = self.folder / output
        common_options = self.common.get(common or verb, {})
        return Step(
            verb=verb,
            models=tuple(models),
            options={**common_options, **options},
            outputs=paths,
            needs=tuple(needs),
            output=output_path,
        )

    @cached_property
    def search_of_circuits(self) -> Step:
        """The step that searches the circuits of all objectives, with a file for each.

        It removes as many heads as the row that needs most; the other rows use only its first removals.
        """
        if len(self.objectives) == 1:
            budget = self.share(1 / 4)
            outputs = ["circuit.json"]
        else:
            budget = self.share(1 / 3)
            outputs = [f"circuit.{objective}.json" for objective in self.objectives]
        objectives = ",".join(self.objectives)
        return self._search(objectives, budget, {}, outputs, "circuit.json")

    @cached_property
    def late_search(self) -> Step:
        """The step that searches a circuit only in the late sites (attention layers).

        It removes a sixth of all heads, but leaves at least one head in these sites.
        """
        late_heads = sum(self.heads[site] for site in self.late)
        removable = late_heads - 1  # a head must stay
        budget = max(1, min(self.share(1 / 6), removable))
        site_numbers = [str(site) for site in self.late]
        sites = {"sites": ",".join(site_numbers)}
        return self._search("avg", budget, sites, ["circuit.late.json"], "circuit.late.json")

    def _search(
        self, objectives: str, budget: int, sites: Mapping[str, Value], outputs: Sequence[str], output: str
    ) -> Step:
        """Return the step of a search for circuits.

        Args:
            objectives: the objectives, separated by commas.
            budget: how many heads are removed.
            sites: the option ``sites`` with the attention layers to search; empty for all of them.
            outputs: the files of the circuits.
            output: the value of ``-o``.
        """
        options: dict[str, Value] = {
            "val": self.val,
            "ood_val": self.ood_val,
            "objective": objectives,
            "budget": str(budget),
        }
        options.update(self.search)
        options.update(sites)
        options["resume"] = True
        return self.step("extract-circuit", [self.model], options, outputs, output=output)

    def circuit_file(self, objective: str) -> Path:
        """Return the file that the search writes the circuit of an objective to."""
        objectives = list(self.objectives)
        index = objectives.index(objective)
        return self.search_of_circuits.outputs[index]

    def pruning_step(self, name: str, circuit: Path, remove: int | None, search: Step) -> Step:
        """Return the step that prunes a member by a circuit.

        Args:
            name: the name of the member.
            circuit: the file of the circuit.
            remove: how many heads are removed; None for as many as ``max_drop`` allows.
            search: the step that writes the circuit.
        """
        options: dict[str, Value] = {"circuit": str(circuit)}
        if remove is None:
            options["remove"] = "auto"
            options["max_drop"] = repr(self.max_drop)
        else:
            options["remove"] = str(remove)
        options["force"] = True
        pruned_model = f"{name}.st"
        return self.step(
            "prune",
            [self.model],
            options,
            outputs=[f"{name}.mask.json", pruned_model],
            needs=[search],
            output=pruned_model,
            common="prune --circuit",
        )

    def fused_row(
        self,
        name: str,
        members: Sequence[Step],
        *,
        whole: bool = False,
        circuit: tuple[Path, int] | None = None,
        merge: str | None = None,
    ) -> Row:
        """Return a row whose members are fused into one file.

        Args:
            name: the name of the row.
            members: the steps that make the members; the last output of each is the model.
            whole: whether the unpruned model is added as the first member.
            circuit: the file of the circuit that its members are made with, and how many heads are removed by it; None
                without one.
            merge: the value of ``fuse --merge``; None for the default.
        """
        models = []
        if whole:
            models.append(self.model)
        for member in members:
            models.append(str(member.outputs[-1]))
        options: dict[str, Value] = {"force": True}
        if merge is not None:
            options["merge"] = merge
        step = self.step("fuse", models, options, outputs=[f"{name}.st"], needs=members)
        fused_file = step.outputs[0]
        return Row(name, str(fused_file), (step,), circuit=circuit)

    def _train_and_val(self) -> dict[str, Value]:
        """Return the options that name training and validation data."""
        assert self.train is not None  # rows that are trained are refused without it
        return {"train": self.train, "val": self.val}

    def tuning_step(self, member: Step) -> Step:
        """Return the step that fine-tunes a member."""
        model = member.outputs[-1]
        options = {**self._train_and_val(), **self.training, "resume": True}
        outputs = [f"{model.stem}.tuned.st"]
        return self.step("finetune", [str(model)], options, outputs, [member])

    def training_step(
        self, options: Mapping[str, Value], outputs: Sequence[str], output: str | None = None, seed: str | None = None
    ) -> Step:
        """Return the step of one training of the whole model.

        Args:
            options: options beside those of every training.
            outputs: the names of the files that it writes.
            output: the name for ``-o``; None for the first of ``outputs``.
            seed: the value of ``--seed``; None for the default.
        """
        all_options = {**self._train_and_val(), **self.training, **options, "resume": True}
        if seed is not None:
            all_options["seed"] = seed
        return self.step("finetune", [self.model], all_options, outputs, output=output)

    def trainings_by_seed(self, name: str, options: Mapping[str, Value], members: int = MEMBERS) -> list[Step]:
        """Return the steps of trainings of the whole model that differ only in their seeds.

        Args:
            name: the beginning of the names of their files; the number of the member follows.
            options: the options of every training.
            members: the number of trainings.
        """
        steps = []
        for member, seed in enumerate(self.seeds[:members]):
            outputs = [f"{name}{member}.st"]
            steps.append(self.training_step(options, outputs, seed=seed))
        return steps

    # --- rows that methods declare ------------------------------------------------------------------------------------

    def row_made_by(self, name: str, recipe: Recipe) -> Row:
        """Return the row that an ensemble method declares, with the steps that its recipe asks for."""
        match recipe:
            # Several trainings with different seeds, whose models are fused.
            case BySeeds(options, ensemble, of_classifiers):
                if self.has_classifier:
                    options = {**options, **of_classifiers}
                members = self.trainings_by_seed(name, _with_ensemble(ensemble, options))
                return self.fused_row(name, members, merge=_NOTHING_AVERAGED)
            # One training that leaves several members, which are fused.
            case ByOneTraining(ensemble, options):
                return self._row_of_one_training(name, _with_ensemble(ensemble, options))
            # One training that leaves one file. A method without a training, such as laplace, takes the data alone.
            case ByTraining(ensemble, options) if ensemble.trains:
                step = self.training_step(_with_ensemble(ensemble, options), [f"{name}.st"])
                return _row_of_single_step(name, step)
            case ByTraining(ensemble):
                data = {"ensemble": str(ensemble), **self._train_and_val(), "force": True}
                step = self.step("finetune", [self.model], data, [f"{name}.st"])
                return _row_of_single_step(name, step)
            # No file is made: eval measures the studied model itself with other options, e.g. MC dropout.
            case AsMeasured(options):
                return Row(name, self.model, options=options, stored=False)

    def _row_of_one_training(self, name: str, options: Mapping[str, Value]) -> Row:
        """Return the row of the members that one training of the whole model writes, fused into one file.

        Args:
            name: the name of the row.
            options: the options of the training.
        """
        member_files = [f"{name}.{number}.st" for number in range(1, MEMBERS + 1)]
        training = self.training_step(options, member_files, f"{name}.st")

        fuse_options: dict[str, Value] = {"force": True, "merge": _NOTHING_AVERAGED}
        members = [str(path) for path in training.outputs]
        fusion = self.step("fuse", members, fuse_options, outputs=[f"{name}.fused.st"], needs=[training])
        return _row_of_single_step(name, fusion)


def _row_of_single_step(name: str, step: Step) -> Row:
    """Return the row whose model is the first output of a step."""
    model = step.outputs[0]
    return Row(name, str(model), (step,))


def _with_ensemble(ensemble: MethodOptions | None, options: Mapping[str, str]) -> Mapping[str, Value]:
    """Return the options of a training, with ``ensemble`` first if a method is given."""
    if ensemble is None:
        return options
    return {"ensemble": str(ensemble), **options}


@dataclass(frozen=True)
class Scale:
    """The extent of a study.

    Attributes:
        rows: the names of the rows.
        approx: the approximation of the search; None for an exact search.
        samples: the number of samples of each set in the search; None for all samples.
        cut: sentences on what was left out to save time.
    """

    rows: Sequence[str]
    approx: str | None
    samples: int | None
    cut: Sequence[str] = ()


_FEWEST_SAMPLES = 150
"""The number of samples of each set in the smallest search."""


def smaller(scale: Scale) -> Iterator[Scale]:
    """Yield the scale that was asked for, and then smaller and smaller ones; each makes one more cut."""
    yield scale

    # First approximate the search, then take fewer samples for it.
    if scale.approx is None:
        text = "the search is approximated (lazy:8)"
        scale = replace(scale, approx="lazy:8", cut=[*scale.cut, text])
        yield scale
    for samples in (1000, 400):
        if scale.samples is None or scale.samples > samples:
            text = f"the search takes {samples} samples of each set"
            scale = replace(scale, samples=samples, cut=[*scale.cut, text])
            yield scale

    # Then leave out the rows that need another search, or a search for three objectives.
    rows_of_dear_searches = NEED_THREE | {"whole-late"}
    left_out = [name for name in scale.rows if name in rows_of_dear_searches]
    if left_out:
        kept_rows = [name for name in scale.rows if name not in rows_of_dear_searches]
        text = f"the rows {', '.join(left_out)} are left out"
        scale = replace(scale, rows=kept_rows, cut=[*scale.cut, text])
        yield scale

    # At last take the fewest samples.
    if scale.samples is None or scale.samples > _FEWEST_SAMPLES:
        text = f"the search takes {_FEWEST_SAMPLES} samples"
        yield replace(scale, samples=_FEWEST_SAMPLES, cut=[*scale.cut, text])


NEED_THREE = {"whole-three", "circuits", "circuits-tuned"}
"""The rows that need circuits for three objectives."""

Maker = Callable[[Workshop], list[Row]]
NEED_TRAIN: set[str] = set()
NEED_LABELS: set[str] = set()
NEED_CLASSIFIER: set[str] = set()
NEED_STEPS: dict[str, int] = {}
DEFAULT: list[str] = []
MAKERS: dict[str, Maker] = {}
"""The functions that make rows, by the names of ``--rows``, in the order of the table."""


def row(
    name: str,
    *,
    default: bool = True,
    train: bool = False,
    labels: bool = True,
    classifier: bool = False,
    steps: int = 0,
) -> Callable[[Maker], Maker]:
    """Return a decorator that registers a function as the maker of the rows with this name.

    It adds the name to :data:`MAKERS`, and to the lists of what rows need.

    Args:
        name: the name that ``--rows`` takes.
        default: whether the rows are made by default, or only if they are asked for.
        train: whether they need training data.
        labels: whether they need labels of the training data.
        classifier: whether they need a classifier, which a zero-shot model does not have.
        steps: the smallest number of steps that their training can have; 0 for any number.
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
def single(workshop: Workshop) -> list[Row]:
    """Make the row of the studied model itself."""
    return [Row("single", workshop.model)]


@row("whole-avg")
def whole_avg(workshop: Workshop) -> list[Row]:
    """Make rows of two members: the whole model, and one pruned by the circuit for accuracy and OOD detection.

    A twelfth, a sixth and a quarter of the heads are removed. If two of these are the same number, because the model
    has few heads, there is one row for both.
    """
    circuit = workshop.circuit_file("avg")
    counts = [workshop.share(part) for part in (1 / 12, 1 / 6, 1 / 4)]
    rows = []
    for count in dict.fromkeys(counts):  # without repetition
        member = workshop.pruning_step(f"avg@{count}", circuit, count, workshop.search_of_circuits)
        row_of_count = workshop.fused_row(f"whole-avg@{count}", [member], whole=True, circuit=(circuit, count))
        rows.append(row_of_count)
    return rows


@row("whole-auto", default=False)
def whole_auto(workshop: Workshop) -> list[Row]:
    """Make the row of the whole model and the same circuit, with as many heads removed as ``--max-drop`` allows.

    The search has measured how many these are.
    """
    circuit = workshop.circuit_file("avg")
    member = workshop.pruning_step("auto", circuit, None, workshop.search_of_circuits)
    fused = workshop.fused_row("whole-auto", [member], whole=True)
    return [fused]


@row("whole-late")
def whole_late(workshop: Workshop) -> list[Row]:
    """Make the row of the whole model and a circuit in the last third of the sites (attention layers).

    Both members share everything before these sites, so that part runs only once.
    """
    search = workshop.late_search
    circuit = search.outputs[0]
    budget = str(search.options["budget"])
    count = int(budget)
    member = workshop.pruning_step(f"late@{count}", circuit, count, search)
    fused = workshop.fused_row(f"whole-late@{count}", [member], whole=True, circuit=(circuit, count))
    return [fused]


@row("whole-three")
def whole_three(workshop: Workshop) -> list[Row]:
    """Make the row of the whole model and three circuits: for accuracy, for OOD detection, and for both.

    Each circuit has a sixth of the heads removed.
    """
    count = workshop.share(1 / 6)
    members = _pruned_by_three_circuits(workshop, count)
    circuit = workshop.circuit_file("avg")
    fused = workshop.fused_row(f"whole-three@{count}", members, whole=True, circuit=(circuit, count))
    return [fused]


@row("circuits")
def circuits(workshop: Workshop) -> list[Row]:
    """Make the row of the paper's three circuits, without the whole model; each has a third of the heads removed."""
    count = workshop.share(1 / 3)
    members = _pruned_by_three_circuits(workshop, count)
    circuit = workshop.circuit_file("avg")
    fused = workshop.fused_row("circuits", members, circuit=(circuit, count))
    return [fused]


def _pruned_by_three_circuits(workshop: Workshop, count: int) -> list[Step]:
    """Return the steps that prune one member by each of the three circuits; ``count`` heads are removed from each."""
    members = []
    for objective in THREE:
        circuit = workshop.circuit_file(objective)
        members.append(workshop.pruning_step(f"{objective}@{count}", circuit, count, workshop.search_of_circuits))
    return members


@row("taylor", train=True)
def taylor(workshop: Workshop) -> list[Row]:
    """Make the row of three members, pruned by Taylor scores on different samples."""
    members = _pruned_by_taylor_scores(workshop)
    fused = workshop.fused_row("taylor", members)
    return [fused]


def _pruned_by_taylor_scores(workshop: Workshop) -> list[Step]:
    """Return the steps that prune three members by Taylor scores; a third of the heads is removed from each."""
    assert workshop.train is not None  # rows that are trained are refused without it
    count = workshop.share(1 / 3)
    members = []
    for member, seed in enumerate(workshop.seeds):
        options: dict[str, Value] = {
            "method": "taylor",
            "scope": "global",
            "remove": str(count),
            "samples": "128",  # members differ only in their samples; with more, they would rank the heads alike
            "data": workshop.train,
            "force": True,
            "seed": seed,
        }
        model = f"taylor{member}.st"
        outputs = [f"taylor{member}.mask.json", model]
        members.append(workshop.step("prune", [workshop.model], options, outputs, output=model))
    return members


@row("circuits-tuned", default=False, train=True)
def circuits_tuned(workshop: Workshop) -> list[Row]:
    """Make the row of the three circuits, each fine-tuned."""
    count = workshop.share(1 / 3)
    members = _pruned_by_three_circuits(workshop, count)
    tuned_members = [workshop.tuning_step(member) for member in members]
    fused = workshop.fused_row("circuits-tuned", tuned_members)
    return [fused]


@row("taylor-tuned", default=False, train=True)
def taylor_tuned(workshop: Workshop) -> list[Row]:
    """Make the row of the three Taylor members, each fine-tuned."""
    members = _pruned_by_taylor_scores(workshop)
    tuned_members = [workshop.tuning_step(member) for member in members]
    fused = workshop.fused_row("taylor-tuned", tuned_members)
    return [fused]


@row("trained", default=False, train=True)
def trained(workshop: Workshop) -> list[Row]:
    """Make the row of the whole model, trained like the other rows: it shows how much of their gain is training."""
    (step,) = workshop.trainings_by_seed("trained", {}, members=1)
    return [_row_of_single_step("trained", step)]


def _maker_of(declared: StudyRow) -> Maker:
    """Return the maker of a row that a method declares."""

    def make(workshop: Workshop) -> list[Row]:
        heads_of_sites = list(workshop.heads.values())
        recipe = declared.recipe_for(heads_of_sites[0])
        row_of_method = workshop.row_made_by(declared.name, recipe)
        return [row_of_method]

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


def _row_of_pruned_weights(workshop: Workshop, name: str, method: str) -> list[Row]:
    """Make the row of the model with about a tenth of its single weights pruned by a method, and then fine-tuned.

    OBA is the only method that uses training data for pruning.
    """
    assert workshop.train is not None  # rows that are trained are refused without it
    kept_weights = "0.891"  # the share of weights that a ViT-B/16 keeps if a third of its heads is removed
    options: dict[str, Value] = {"method": method, "weights": kept_weights, "force": True}
    if method == "oba":
        options["data"] = workshop.train
        options["samples"] = "128"  # per step; OBA takes many steps
    pruned = workshop.step("prune", [workshop.model], options, [f"{name}.st"])
    tuned = workshop.tuning_step(pruned)
    return [_row_of_single_step(name, tuned)]


@row("oba", default=False, train=True)
def oba(workshop: Workshop) -> list[Row]:
    """Make the row of single weights pruned by OBA."""
    return _row_of_pruned_weights(workshop, "oba", "oba")


@row("magnitude", default=False, train=True)
def magnitude(workshop: Workshop) -> list[Row]:
    """Make the row of single weights pruned by magnitude."""
    return _row_of_pruned_weights(workshop, "magnitude", "magnitude")


@row("random-weights", default=False, train=True)
def random_weights(workshop: Workshop) -> list[Row]:
    """Make the row of single weights pruned at random."""
    return _row_of_pruned_weights(workshop, "random-weights", "random")
