"""Labels of a data set, and their mapping to the checkpoint's classes: by name, never by position."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.data.names import place_of_published
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import shown

Labels = npt.NDArray[np.int64]

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
"""A label in a text that is a number."""
_MOST_COMPARED = 50_000  # pairs of names, for messages: a second of work


@dataclass
class RawLabels:
    """Labels before any mapping.

    Attributes:
        values: int64 ``[samples]``, or one name per sample, or None when there are none.
        names: the data's own class names (of the whole set, whatever ``limit``): integers point into them, strings are
            among them.
        problems: why the labels cannot be used, one line each; kept apart because a set that needs no labels may have
            bad ones.
        hint: where there are none, how to say where they are.
        texts: integers as they stand in a file that does not tell numbers from texts.
    """

    values: Labels | list[str] | None = None
    names: list[str] | None = None
    problems: list[str] = field(default_factory=list)
    hint: str | None = None
    texts: list[str] | None = None


def limited(labels: Sequence[Any] | None, total: int, limit: int | None, seed: int) -> list[int]:
    """Return which samples of a set ``--limit`` takes, in their order.

    These are the first ones; of a set sorted by class, whose first ones are all of one class, as many of every class as
    there are, drawn by ``seed``. A larger limit takes all that a smaller one takes.

    Args:
        labels: of all samples; None where there are none.
        total: number of samples.
        limit: how many are wanted; None: all.
        seed: of the draw.
    """
    if limit is None or limit >= total:
        return list(range(total))
    class_sizes = _sizes_if_sorted(labels)
    if class_sizes is None:
        return list(range(limit))
    # Samples are drawn in rounds: each class has its turn in every round while it has samples left. The samples of a
    # class are given the rounds 0, 1, ... in random order.
    random = np.random.default_rng(seed)
    turn_of_class = random.permutation(len(class_sizes))
    round_within_class = [random.permutation(size) for size in class_sizes]
    turns = np.repeat(turn_of_class, class_sizes)  # [samples]
    rounds = np.concatenate(round_within_class)  # [samples]
    drawn = np.lexsort((turns, rounds))  # by round, and within a round by turn
    return sorted(drawn[:limit].tolist())


def _sizes_if_sorted(labels: Sequence[Any] | None) -> list[int] | None:
    """Return the number of samples of each class of a set sorted by class; None for any other set.

    A set of one class, or of one sample a class, counts as any other.
    """
    if labels is None:
        return None
    run_lengths = []
    for _, run in itertools.groupby(labels):
        run_lengths.append(len(list(run)))
    runs = len(run_lengths)
    if runs <= 1 or runs >= len(labels):
        return None
    if runs > len(set(labels)):  # a class comes again
        return None
    return run_lengths


def raw_labels(
    values: list[Any],
    ids: Sequence[str],
    *,
    names: list[str] | None = None,
    hint: str | None = None,
    texts: list[str] | None = None,
) -> RawLabels:
    """Return the labels of a column: all integers, all names, or none at all; anything else becomes a problem.

    Args:
        values: one for each sample; None where there is no label.
        ids: sample ids, for messages.
        names: what integers point into; None where that is not known.
        hint: how to say where the labels are, where there are none.
        texts: integers as they stand in a file that does not tell numbers from texts.
    """
    if all(value is None for value in values):
        return RawLabels(None, names, hint=hint)
    problems = _problems_of_values(values, ids)
    if problems:
        return RawLabels(problems=problems)
    if any(type(value) is str for value in values):
        return RawLabels(values, sorted(set(values)))
    return RawLabels(np.array(values, dtype=np.int64), names, texts=texts)


def _problems_of_values(values: Sequence[Any], ids: Sequence[str]) -> list[str]:
    """List what is wrong with labels: one line for each kind of problem, about the first sample that has it.

    Args:
        values: integers of 64 bits, or names; anything else, None, and both kinds together are problems.
        ids: of the samples, for messages.
    """
    first_of_kind: dict[str, int] = {}
    missing = 0
    for i, value in enumerate(values):
        kind = _kind_of_label(value)
        first_of_kind.setdefault(kind, i)
        if kind == "missing":
            missing += 1

    problems = []
    if "missing" in first_of_kind:
        first = first_of_kind["missing"]
        problem = f"no label for sample {ids[first]}"
        if missing > 1:
            problem += f", and for {missing - 1} more"
        problems.append(problem)
    if "other" in first_of_kind:
        first = first_of_kind["other"]
        label = shown(values[first])
        problems.append(f"label {label} of sample {ids[first]} is neither an integer nor a name")
    if "too large" in first_of_kind:
        first = first_of_kind["too large"]
        problems.append(f"the label of sample {ids[first]} is beyond 2^63")
    has_integers = "integer" in first_of_kind or "too large" in first_of_kind
    if "name" in first_of_kind and has_integers:
        first = first_of_kind["name"]
        label = shown(values[first])
        problems.append(f"label {label} of sample {ids[first]} is a name, others are numbers")
    return problems


def _kind_of_label(value: Any) -> str:
    """Return what a label is: ``missing``, ``name``, ``integer``, ``too large`` (an integer) or ``other``."""
    if value is None:
        return "missing"
    if type(value) is str:
        return "name"
    if type(value) is not int:
        return "other"
    if abs(value) >= 2**63:
        return "too large"
    return "integer"


def resolve_labels(
    raw: RawLabels,
    ids: Sequence[str],
    where: str,
    *,
    labels: Sequence[str] | None,
    label_map: Mapping[str, str] | None = None,
    need: bool = False,
    ignore: bool = False,
) -> tuple[Labels | None, list[str] | None]:
    """Map the labels of a data set to the checkpoint's classes, by name and never by position.

    Args:
        raw: what the reader found.
        ids: sample ids, for messages.
        where: what messages call the data set.
        labels: the checkpoint's names; empty: a checkpoint without names; None: the data's own order counts.
        label_map: name in the data -> name in the checkpoint; None where there is no option to give one.
        need: refuse a set without labels.
        ignore: a set whose labels cannot be mapped is simply unlabelled.

    Returns:
        Indices int64 ``[samples]`` or None, and the names they point into or None.

    Raises:
        InputError: for labels that are missing while needed, out of range, negative, or names that cannot be mapped.
        UsageError: for a ``label_map`` without names to map to.
    """
    if label_map and labels is None:
        raise UsageError(f"{where}: --label-map needs a checkpoint with class names to map to")
    try:
        indices = _class_indices(raw, ids, where, labels, label_map)
    except InputError:
        if not ignore:
            raise
        indices = None
    if indices is None and need:
        hint = "a labelled set is needed here"
        if raw.hint:
            hint += f"; {raw.hint}"
        raise InputError(f"{where}: no label for sample {ids[0]}, nor for any other", hint=hint)
    if labels is None:
        return indices, raw.names
    if not labels:  # a checkpoint without names
        return indices, None
    return indices, list(labels)


def _class_indices(
    raw: RawLabels, ids: Sequence[str], where: str, labels: Sequence[str] | None, label_map: Mapping[str, str] | None
) -> Labels | None:
    """Return the index of each sample's class, int64 ``[samples]``; None for a set without labels.

    Args:
        raw: integers or names, as the reader found them.
        ids: sample ids, for messages.
        where: what messages call the data set.
        labels: the checkpoint's names, which the indices point into; empty: a checkpoint without names; None: they
            point into the data's own.
        label_map: name in the data -> name in the checkpoint; None where there is no option to give one.

    Raises:
        InputError: for labels that are out of range, negative, or names that cannot be mapped.
    """
    if raw.problems:
        raise InputError(f"{where}: the labels cannot be used", problems=raw.problems)
    if raw.texts is not None and labels and set(raw.texts) <= set(labels):
        # Five stars are the class named "5", not the class at position 5.
        raw = RawLabels(raw.texts, sorted(set(raw.texts)))
    if raw.values is None:
        return None

    # First as indices into the data's own names, where there are such, else into the checkpoint's.
    data_names = raw.names
    if isinstance(raw.values, list):
        if data_names is None:
            data_names = sorted(set(raw.values))
        indices = _index_names(raw.values, data_names, ids, where)
    else:
        indices = raw.values
    class_names = labels if data_names is None else data_names
    class_count = len(class_names) if class_names else None  # None: of a checkpoint without names
    _check_range(indices, class_count, ids, where)
    if data_names is None or labels is None:
        return indices

    # Then from the data's own names to the checkpoint's.
    index_by_data_class = _index_data_classes(data_names, labels, label_map, where)
    return index_by_data_class[indices]


def _index_names(values: list[str], data_names: list[str], ids: Sequence[str], where: str) -> Labels:
    """Return the position of each sample's name in the data's own names, int64 ``[samples]``.

    Args:
        values: the name of each sample's class.
        data_names: the data's own names of its classes.
        ids: sample ids, for messages.
        where: what messages call the data set.

    Raises:
        InputError: for a class name that is there twice, and for labels that are no class names.
    """
    twice = []
    for name, count in Counter(data_names).items():
        if count > 1:
            twice.append(f"{name!r} is in classes twice")
    if twice:
        raise InputError(f"{where}: class names given more than once", problems=twice)

    position_by_name = {name: i for i, name in enumerate(data_names)}
    first_sample_by_unknown: dict[str, str] = {}
    for name, sample in zip(values, ids, strict=True):
        if name not in position_by_name:
            first_sample_by_unknown.setdefault(name, sample)
    if first_sample_by_unknown:
        problems = []
        for name, sample in sorted(first_sample_by_unknown.items()):
            problems.append(f"{name!r}, first at sample {sample}")
        subject = _subject(len(problems), "label", "labels")
        raise InputError(f"{where}: {subject} not among the data's own classes", problems=problems)
    positions = [position_by_name[name] for name in values]
    return np.array(positions, dtype=np.int64)


def _check_range(values: Labels, classes: int | None, ids: Sequence[str], where: str) -> None:
    """Refuse negative labels, and those beyond the classes.

    Args:
        values: int64 ``[samples]``.
        classes: how many classes there are; None where that is not known.
        ids: sample ids, for messages.
        where: what messages call the data set.

    Raises:
        InputError: naming the first such label, and how many others there are.
    """
    is_bad = values < 0
    what_is_wrong = "negative"
    if classes is not None:
        is_bad |= values >= classes
        what_is_wrong = f"outside 0..{classes - 1}"
    if not is_bad.any():
        return
    first = int(is_bad.argmax())
    label = int(values[first])
    message = f"{where}: label {label} of sample {ids[first]} is {what_is_wrong}"
    others = int(is_bad.sum()) - 1
    if others:
        message += f", and so are {others} more"
    hint = None
    if label < 0:  # -1 is what some sets write for an unknown label
        hint = "give a set without labels where none are known"
    raise InputError(message, hint=hint)


def _index_data_classes(
    data_names: list[str], labels: Sequence[str], label_map: Mapping[str, str] | None, where: str
) -> Labels:
    """Return the index of each of the data's own classes among the checkpoint's names, int64 ``[classes of data]``.

    Args:
        data_names: the data's own classes.
        labels: the checkpoint's names.
        label_map: name in the data -> name in the checkpoint; None where there is no option to give one.
        where: what messages call the data set.

    Raises:
        InputError: for a name that leads to no class of the checkpoint, or to several.
    """
    if not labels:
        raise InputError(
            f"{where}: the labels are names, and the model has no class names to map them to",
            hint="give the model's class names with --labels",
        )
    mapped = data_names
    if label_map:
        _check_targets(label_map, labels, where)
        mapped = [label_map.get(name, name) for name in data_names]
    if mapped == list(labels):
        return np.arange(len(data_names), dtype=np.int64)

    known = set(labels)
    not_labels = [name for name in mapped if name not in known]
    # A model that knows its classes by a built-in list knows what the data set calls them.
    published = place_of_published(labels, not_labels)
    unknown = []
    for name, target in zip(data_names, mapped, strict=True):
        if target not in known and target not in published:
            unknown.append(name)
    if unknown:
        raise _unknown_names(unknown, labels, where, can_be_mapped=label_map is not None)

    counts = Counter(labels)
    twice = sorted({name for name in mapped if counts[name] > 1})
    if twice:
        raise InputError(
            f"{where}: the model has several classes of one name, so names do not tell them apart",
            hint="name the model's classes differently with --labels",
            problems=list(map(repr, twice)),
        )
    position_by_name = dict(published)
    for i, name in enumerate(labels):
        position_by_name[name] = i
    positions = [position_by_name[name] for name in mapped]
    return np.array(positions, dtype=np.int64)


def _unknown_names(unknown: Sequence[str], labels: Sequence[str], where: str, *, can_be_mapped: bool) -> InputError:
    """Return the error of class names that lead to no class of a checkpoint.

    Args:
        unknown: names in the data.
        labels: the checkpoint's names.
        where: what messages call the data set.
        can_be_mapped: whether there is an option to map them by.
    """
    way_out = "rename them in the data, or name the model's classes as the data do with --labels FILE; it has"
    if can_be_mapped:
        way_out = "map them with --label-map FILE (name in the data: name in the model) to"
    subject = _subject(len(unknown), "class name", "class names")
    return InputError(
        f"{where}: {subject} not among the model's {len(labels)}",
        hint=f"{way_out}: {some(labels)}",
        problems=_lines_with_similar(unknown, labels),
    )


def _check_targets(label_map: Mapping[str, str], labels: Sequence[str], where: str) -> None:
    """Refuse a ``--label-map`` that leads to names that the model does not have."""
    unknown = sorted(set(label_map.values()) - set(labels))
    if unknown:
        count = _subject(len(unknown), "target of --label-map", "targets of --label-map")
        raise InputError(
            f"{where}: {count} not among the model's {len(labels)} class names",
            hint=f"the model's class names: {some(labels)}",
            problems=_lines_with_similar(unknown, labels),
        )


def _lines_with_similar(names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the names as lines of a message, each with the label that is most similar to it, if any is.

    Only the first ones are compared, as many as are done in a second.

    Args:
        names: those that are not among the labels.
        labels: the checkpoint's names; case does not matter, and of two that differ by it the first is taken.
    """
    label_by_folded: dict[str, str] = {}
    for label in labels:
        label_by_folded.setdefault(label.casefold(), label)
    most_compared = _MOST_COMPARED // len(labels)
    lines = []
    for index, name in enumerate(names):
        line = repr(name)
        similar = []
        if index < most_compared:
            similar = difflib.get_close_matches(name.casefold(), label_by_folded, n=1)
        if similar:
            line += f" (near: {label_by_folded[similar[0]]!r})"
        lines.append(line)
    return lines


def _subject(number: int, singular: str, plural: str) -> str:
    """Return a number of things with its verb."""
    if number == 1:
        return f"{number} {singular} is"
    return f"{number} {plural} are"


def some(names: Sequence[str], most: int = 12) -> str:
    """List the first few names, and say how many there are in all."""
    first_names = names[:most]
    first = ", ".join(first_names) or "nothing"
    if len(names) <= most:
        return first
    return f"{first}, ... ({len(names)} in all)"
