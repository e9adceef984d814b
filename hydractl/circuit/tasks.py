"""The tasks of a search: each is an ID set with the OOD set it is measured against, and its classes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.circuit.samples import ALL_CLASSES, ClassRange
from hydractl.circuit.scope import SearchOptions
from hydractl.data import open_data
from hydractl.data.base import Dataset, one_class_warning
from hydractl.data.overlap import GivenSet, compare_sets
from hydractl.data.plausibility import sample_warnings
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.expressions.data_sets import AUTO
from hydractl.log import Log
from hydractl.model.matching import check_labels_are_classes, named_by_data, open_labelled
from hydractl.model.source import Source, with_labels


@dataclass(frozen=True)
class Task:
    """One ID set, and the OOD set it is measured against.

    Attributes:
        data: the name of the ID set: ``id``, ``id2`` and so on.
        ood: the name of the OOD set: ``ood``, ``ood2`` and so on; None for no OOD set.
        columns: the range of the ID set's classes among the classes of the model.
    """

    data: str
    ood: str | None
    columns: ClassRange

    @property
    def sets(self) -> list[str]:
        """The names of the sets of this task, the ID set first."""
        if self.ood is None:
            return [self.data]
        return [self.data, self.ood]


def role_of(name: str) -> str:
    """Return ``id`` or ``ood``, from the name of a set."""
    return "id" if name.startswith("id") else "ood"


def with_classes_of_data(source: Source, options: SearchOptions) -> tuple[Source, list[list[str]]]:
    """Return the model with its classes, and the classes of each ID set (``--val``) if the sets differ in them.

    ================================  ==================================  =======================
    model                             its classes                         the list
    ================================  ==================================  =======================
    a classifier                      as they are                         empty
    zero-shot, sets of equal classes  those of the sets                   empty
    zero-shot, sets that differ       of all sets, one set after another  the classes of each set
    ================================  ==================================  =======================
    """
    if source.classes is not None:  # a classifier: its classes are fixed
        return source, []

    # A zero-shot model: the data name its classes.
    classes_by_set = []
    all_classes: list[str] = []
    for spec in options.val:
        source_with_classes = named_by_data(source, spec, options.limit)
        classes = list(source_with_classes.description.labels or ())
        classes_by_set.append(classes)
        all_classes += classes

    first_classes = classes_by_set[0]
    if all(classes == first_classes for classes in classes_by_set):
        return with_labels(source, first_classes), []
    return with_labels(source, all_classes), classes_by_set


def open_tasks(
    source: Source, classes: Sequence[Sequence[str]], options: SearchOptions, log: Log
) -> tuple[dict[str, Dataset], list[Task]]:
    """Open all sets, and combine them into tasks.

    The tasks are all pairs of an ID and an OOD set; with ``--paired`` only the first of both, the second of both and
    so on.

    Args:
        source: the model, with the classes of all sets.
        classes: the classes of each ID set; empty if all sets have the model's classes.
        options: the options of the search.
        log: receives warnings about the data.

    Returns:
        The sets by name, ID sets first, and the tasks.

    Raises:
        InputError: for data that do not fit the model.
    """
    labels_of_model = source.description.labels or []  # [] instead of None: class names must match, not positions
    reads = {source.name: source.description.reads}
    id_sets: dict[str, Dataset] = {}
    for index, spec in enumerate(options.val):
        labels = classes[index] if classes else labels_of_model
        dataset = open_labelled(spec, source, labels, limit=options.limit, seed=options.seed)
        check_labels_are_classes(dataset, source)
        log.warn_all([one_class_warning(dataset)])
        id_sets[_numbered_name("id", index)] = dataset

    # The classes of the model are those of one set after another.
    ends = itertools.accumulate(map(len, classes))
    columns_by_set: list[ClassRange] = list(itertools.pairwise([0, *ends]))
    ood_sets: dict[str, Dataset] = {}
    tasks = []
    for id_index, data in enumerate(id_sets):
        columns = columns_by_set[id_index] if classes else ALL_CLASSES

        # Collect the OOD sets that this ID set is measured against, and open them if they are not open yet.
        ood_names: list[str | None] = []
        for ood_index, spec in enumerate(options.ood_val):
            if options.paired and ood_index != id_index:
                continue
            name = _numbered_name("ood", ood_index)
            if spec.text == AUTO and id_index > 0:  # "auto" samples are made from each ID set: a separate set for each
                name += f" of {data}"
            if name not in ood_sets and spec.text == AUTO:
                ood_sets[name] = PseudoOod(id_sets[data], AUTO, options.seed, spec.where)
            elif name not in ood_sets:
                ood_sets[name] = open_data(
                    spec, ignore_labels=True, limit=options.limit, seed=options.seed, reads=reads
                )
            ood_names.append(name)

        # Without an OOD set, the ID set alone is a task.
        if not ood_names:
            ood_names = [None]
        tasks += [Task(data, ood, columns) for ood in ood_names]
    return {**id_sets, **ood_sets}, tasks


def _numbered_name(role: str, index: int) -> str:
    """Return the name of a set from its role and index: ``id``, ``id2``, ``id3`` and so on."""
    return role if index == 0 else f"{role}{index + 1}"


def warnings_of_sets(sets: Mapping[str, Dataset]) -> list[str]:
    """Return warnings about the sets of a search: about each set, and about samples that several sets share.

    Raises:
        InputError: two sets share more than half of their samples.
    """
    # Samples in several sets: many of them raise an error, a few give a warning.
    given_sets = [GivenSet(dataset.where, dataset) for dataset in sets.values()]
    findings = compare_sets(given_sets)
    findings.refuse("give OOD validation data that hold none of --val, and each set once")
    warnings = list(findings.warnings)

    # Samples that are odd in themselves.
    for dataset in sets.values():
        if not isinstance(dataset, PseudoOod):  # those are made of ID samples
            warnings += sample_warnings(dataset)
    return warnings


def set_runs(tasks: Sequence[Task]) -> dict[tuple[str, ClassRange], list[int]]:
    """Return the runs of the model over data: by the set and the range of classes, the indices of the tasks served.

    A task is an ID set, the OOD set it is measured against, and the ID set's classes among those of the model. Tasks
    that read the same set with the same classes share one run. ID sets come first. E.g. if two tasks compare the
    sets a and b with the same OOD set c, and have all classes: {(a, all): [0], (b, all): [1], (c, all): [0, 1]}.
    """
    runs: dict[tuple[str, ClassRange], list[int]] = {}
    for index, task in enumerate(tasks):
        runs.setdefault((task.data, task.columns), []).append(index)
    for index, task in enumerate(tasks):
        if task.ood is not None:
            runs.setdefault((task.ood, task.columns), []).append(index)
    return runs
