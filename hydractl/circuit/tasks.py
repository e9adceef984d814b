"""The tasks of a search: which ID set is measured against which OOD set, in which classes, with which weight."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.circuit.objective import shares_of
from hydractl.circuit.samples import EVERY, Columns
from hydractl.circuit.scope import SearchOptions
from hydractl.data import open_data
from hydractl.data.base import Dataset, report_classes
from hydractl.data.overlap import GivenSet, compare_sets
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.expressions.data_sets import AUTO
from hydractl.log import Log
from hydractl.model.matching import check_labels, named_by_data
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
    columns: Columns


def role_of(name: str) -> str:
    """Return ``id`` or ``ood``, from the name of a set."""
    return "id" if name.startswith("id") else "ood"


def with_classes(source: Source, options: SearchOptions) -> tuple[Source, list[list[str]]]:
    """Return the source with the classes of all ID sets, one set's after another's, and the classes of each set.

    The second is empty where all sets have the same classes, as all have with a classifier.
    """
    if source.classes is not None:
        return source, []
    own = [list(named_by_data(source, spec, options.limit).description.labels or ()) for spec in options.data]
    if all(names == own[0] for names in own):
        return with_labels(source, own[0]), []
    return with_labels(source, [name for names in own for name in names]), own


def open_tasks(
    source: Source, classes: Sequence[Sequence[str]], options: SearchOptions, log: Log
) -> tuple[dict[str, Dataset], list[Task]]:
    """Open all sets by name, ID sets first, and make the tasks.

    Tasks are every pair of an ID and an OOD set, or those given together.

    Args:
        source: of the model, and ``classes``, as :func:`with_classes` gives them.

    Raises:
        InputError: for data that do not fit the model.
    """
    reads = {source.name: source.description.reads}
    few: dict[str, Any] = {"limit": options.limit, "seed": options.seed, "reads": reads}
    inside: dict[str, Dataset] = {}
    for index, spec in enumerate(options.data):
        labels = classes[index] if classes else source.description.labels or []  # names are never taken by position
        dataset = inside[_name("id", index)] = open_data(spec, labels=labels, need_labels=True, **few)
        check_labels(dataset, source)
        report_classes(dataset, log)
    starts = [0, *itertools.accumulate(map(len, classes))]
    outside: dict[str, Dataset] = {}
    tasks = []
    for number, (data, dataset) in enumerate(inside.items()):
        columns = (starts[number], starts[number + 1]) if classes else EVERY
        weight = options.weights[number] if options.weights else 1
        against: list[str | None] = []
        for index, spec in enumerate(options.ood):
            if options.paired and index != number:
                continue
            name = _name("ood", index) + (f" of {data}" if spec == AUTO and number else "")
            if name not in outside:
                if spec == AUTO:
                    outside[name] = PseudoOod(dataset, AUTO, options.seed, "--ood auto")
                else:
                    outside[name] = open_data(spec, option="--ood", ignore_labels=True, **few)
            against.append(name)
        tasks += [Task(data, ood, weight, columns) for ood in against or [None]]
    return {**inside, **outside}, tasks


def _name(role: str, index: int) -> str:
    return f"{role}{index + 1}" if index else role


def data_doubts(sets: Mapping[str, Dataset]) -> list[str]:
    """Return what is odd about the sets of a search, each and in comparison.

    Raises:
        InputError: two of them share more than half of their samples.
    """
    findings = compare_sets([GivenSet(dataset.where, dataset) for dataset in sets.values()])
    findings.refuse("give OOD validation data that hold none of --data, and each set once")
    doubts = list(findings.warnings)
    for dataset in sets.values():
        doubts += [] if isinstance(dataset, PseudoOod) else sample_doubts(dataset)
    return doubts


def run_once(tasks: Sequence[Task]) -> dict[tuple[str, Columns], list[int]]:
    """List what is run: each set once for all tasks with the same classes, ID sets first, and those tasks' numbers."""
    shared: dict[tuple[str, Columns], list[int]] = {}
    for names in ([task.data for task in tasks], [task.ood for task in tasks]):
        for number, name in enumerate(names):
            if name is not None:
                shared.setdefault((name, tasks[number].columns), []).append(number)
    return shared


def whole_of(tasks: Sequence[Task], sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """Count the ID and OOD samples of several tasks, as often as they count; None for a single task.

    Args:
        sizes: of the sets, by name.
    """
    if len(tasks) == 1:
        return None
    own = [(sizes[task.data], sizes.get(task.ood or "", 0)) for task in tasks]
    pairs = list(zip(shares_of(own, [task.weight for task in tasks]), own, strict=True))
    return sum(share.inside * n for share, (n, _) in pairs), sum(share.outside * n for share, (_, n) in pairs)
