"""The tasks of a search: which ID set is measured against which OOD set, in which classes, with which weight."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.circuit.memory import WholeData
from hydractl.circuit.objective import shares_of
from hydractl.circuit.samples import ALL_CLASSES, ClassRange
from hydractl.circuit.scope import SearchOptions
from hydractl.data import open_data
from hydractl.data.base import Dataset, report_classes
from hydractl.data.overlap import GivenSet, compare_sets
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.expressions.data_sets import AUTO
from hydractl.log import Log
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.source import Source, with_labels


@dataclass(frozen=True)
class Task:
    """One ID set, and the OOD set it is measured against.

    Attributes:
        data, ood: their names: ``id`` and ``ood``, further ones with a number; None for no OOD set.
        weight: in the mean over tasks.
        columns: the classes of the ID set among the model's.
    """

    data: str
    ood: str | None
    weight: int
    columns: ClassRange

    @property
    def sets(self) -> list[str]:
        """The names of the sets."""
        if self.ood is None:
            return [self.data]
        return [self.data, self.ood]


def role_of(name: str) -> str:
    """Return ``id`` or ``ood``, from the name of a set."""
    return "id" if name.startswith("id") else "ood"


def with_classes_of_data(source: Source, options: SearchOptions) -> tuple[Source, list[list[str]]]:
    """Return the source with the classes of all ID sets, one set's after another's, and the classes of each set.

    The second is empty where all sets have the same classes, as all have with a classifier.
    """
    if source.classes is not None:
        return source, []
    classes_by_set = []
    all_classes: list[str] = []
    for spec in options.val:
        source_with_classes = named_by_data(source, spec, options.limit, "--val")
        classes = list(source_with_classes.description.labels or ())
        classes_by_set.append(classes)
        all_classes += classes
    first = classes_by_set[0]
    if all(classes == first for classes in classes_by_set):
        return with_labels(source, first), []
    return with_labels(source, all_classes), classes_by_set


def open_tasks(
    source: Source, classes: Sequence[Sequence[str]], options: SearchOptions, log: Log
) -> tuple[dict[str, Dataset], list[Task]]:
    """Open all sets by name, ID sets first, and make the tasks.

    Tasks are every pair of an ID and an OOD set, or those given together.

    Args:
        source, classes: as :func:`with_classes_of_data` returns them.
        options: of the search.
        log: where doubts about the data go.

    Raises:
        InputError: for data that do not fit the model.
    """
    id_sets = _open_id_sets(source, classes, options, log)
    ood_sets: dict[str, Dataset] = {}
    tasks = []
    sizes = [len(classes_of_set) for classes_of_set in classes]
    first_columns = [0, *itertools.accumulate(sizes)]
    for number, (data, dataset) in enumerate(id_sets.items()):
        columns = ALL_CLASSES
        if classes:
            columns = (first_columns[number], first_columns[number + 1])
        weight = options.val_weights[number] if options.val_weights else 1
        ood_names: list[str | None] = []
        for index, spec in enumerate(options.ood_val):
            if options.paired and index != number:
                continue
            name = _name("ood", index)
            if spec == AUTO and number:
                name += f" of {data}"
            if name not in ood_sets:
                ood_sets[name] = _open_ood_set(spec, dataset, source, options)
            ood_names.append(name)
        if not ood_names:
            ood_names = [None]
        tasks += [Task(data, ood, weight, columns) for ood in ood_names]
    return {**id_sets, **ood_sets}, tasks


def _open_id_sets(
    source: Source, classes: Sequence[Sequence[str]], options: SearchOptions, log: Log
) -> dict[str, Dataset]:
    """Open the ID sets by name; see :func:`open_tasks`."""
    sets = {}
    for index, spec in enumerate(options.val):
        labels: Sequence[str] = source.description.labels or []  # [], not None: names are never taken by position
        if classes:
            labels = classes[index]
        dataset = open_data(
            spec,
            option="--val",
            labels=labels,
            need_labels=True,
            limit=options.limit,
            seed=options.seed,
            reads={source.name: source.description.reads},
        )
        check_labels_are_classes(dataset, source)
        report_classes(dataset, log)
        sets[_name("id", index)] = dataset
    return sets


def _open_ood_set(spec: str, inside: Dataset, source: Source, options: SearchOptions) -> Dataset:
    """Open one OOD set; ``auto`` makes it of the ID samples."""
    if spec == AUTO:
        return PseudoOod(inside, AUTO, options.seed, "--ood-val auto")
    return open_data(
        spec,
        option="--ood-val",
        ignore_labels=True,
        limit=options.limit,
        seed=options.seed,
        reads={source.name: source.description.reads},
    )


def _name(role: str, index: int) -> str:
    """Return the name of a set: ``id``, ``id2``, ``id3`` and so on."""
    if index == 0:
        return role
    return f"{role}{index + 1}"


def doubts_of_sets(sets: Mapping[str, Dataset]) -> list[str]:
    """Return what is odd about the sets of a search, each and in comparison.

    Raises:
        InputError: two of them share more than half of their samples.
    """
    findings = compare_sets([GivenSet(dataset.where, dataset) for dataset in sets.values()])
    findings.refuse("give OOD validation data that hold none of --val, and each set once")
    doubts = list(findings.warnings)
    for dataset in sets.values():
        if not isinstance(dataset, PseudoOod):
            doubts += sample_doubts(dataset)
    return doubts


@dataclass(frozen=True)
class SetRun:
    """One set as the model runs it: for all tasks with the same classes at once.

    Attributes:
        name: of the set.
        columns: the classes of the tasks.
        tasks: the numbers of the tasks.
    """

    name: str
    columns: ClassRange
    tasks: list[int]


def set_runs(tasks: Sequence[Task]) -> list[SetRun]:
    """List what is run: each set once for all tasks with the same classes, ID sets first."""
    runs: dict[tuple[str, ClassRange], SetRun] = {}

    def add(name: str, number: int) -> None:
        columns = tasks[number].columns
        run = runs.setdefault((name, columns), SetRun(name, columns, []))
        run.tasks.append(number)

    for number, task in enumerate(tasks):
        add(task.data, number)
    for number, task in enumerate(tasks):
        if task.ood is not None:
            add(task.ood, number)
    return list(runs.values())


def whole_of(tasks: Sequence[Task], sizes: Mapping[str, int]) -> WholeData:
    """Count the ID and OOD samples of all tasks; of several tasks, each sample as often as it counts.

    Args:
        tasks: all of them.
        sizes: of the sets, by name.
    """
    if len(tasks) == 1:
        return WholeData(sizes["id"], sizes.get("ood", 0))
    task_sizes = []
    for task in tasks:
        ood_samples = 0 if task.ood is None else sizes[task.ood]
        task_sizes.append((sizes[task.data], ood_samples))
    shares = shares_of(task_sizes, [task.weight for task in tasks])
    n_id = 0
    n_ood = 0
    for share, (id_samples, ood_samples) in zip(shares, task_sizes, strict=True):
        n_id += share.inside * id_samples
        n_ood += share.outside * ood_samples
    return WholeData(n_id, n_ood, several_tasks=True)
