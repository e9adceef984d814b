"""Labels of a data set, and their mapping to the checkpoint's classes: by name, never by position."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.data.names import index_of_published
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import shown

Labels = npt.NDArray[np.int64]

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
"""Matches a label in a text file that is an integer."""
_MOST_COMPARED = 50_000  # pairs of names to compare for a hint in a message; takes about a second


@dataclass
class RawLabels:
    """The labels of a data set as they were read, before they are checked and mapped to the classes of a checkpoint.

    Attributes:
        values: integers or class names, one for each sample, None where it has none; None for a set without labels.
        names: the data's own class names, of the whole set whatever ``limit`` is. Integers index this list, and all
            labels that are strings are in it.
        problems: why the labels cannot be used, one line each. They are not raised at once, because a set that needs no
            labels may have bad ones.
        hint: how the user can say where the labels are, if there are none.
        from_text: whether all labels are integers from a file that tells no numbers from texts. They stay texts, and
            are names if the classes of the checkpoint have such names.
    """

    values: list[Any] | None = None
    names: list[str] | None = None
    problems: list[str] = field(default_factory=list)
    hint: str | None = None
    from_text: bool = False

    def of_rows(self, rows: Sequence[int]) -> RawLabels:
        """Return the labels of some samples. Class names stay those of the set."""
        if self.values is None:
            return self
        return replace(self, values=[self.values[row] for row in rows])

    def to_choose_by(self) -> list[Any] | None:
        """Return the labels by which samples of every class are chosen, ``[samples]``; None if no sample has a label.

        - If all are integers or all are names: these labels.
        - If any is missing or of another kind, or the two are mixed: all as texts. Bad labels are refused only after
          the choice, since they may belong to samples that are not chosen.
        """
        if self.values is None:
            return None
        kinds = set(map(_kind_of_label, self.values))
        if kinds == {"missing"}:
            return None
        if len(kinds) > 1 or not kinds <= {"integer", "name"}:
            return [str(label) for label in self.values]
        # All are integers, or all are names. Numbers in a text file are names until here.
        return list(map(int, self.values)) if self.from_text else self.values


def labels_of_column(values: list[Any], names: list[str] | None = None, hint: str | None = None) -> RawLabels:
    """Return the labels in a column, whose texts are class names.

    Args:
        values: one for each sample; None where a label is missing.
        names: the class names that integers index; None if they are not known.
        hint: how the user can say where the labels are, for a set without labels.
    """
    texts = {value for value in values if type(value) is str}
    return RawLabels(values, sorted(texts) or names, hint=hint)


def limited(labels: Sequence[Any] | Labels | None, total: int, limit: int | None, seed: int) -> list[int]:
    """Return the indices of the samples that ``--limit`` takes, in ascending order.

    Usually these are the first samples. A set sorted by class would then give only one class, so from such a set the
    same number of samples is drawn at random from every class, as far as a class has enough. A larger limit always
    includes the samples of a smaller one.

    Args:
        labels: the labels of all samples; None if there are none.
        total: the number of samples.
        limit: how many samples to take; None means all.
        seed: seed of the random draw.
    """
    if limit is None or limit >= total:
        return list(range(total))
    class_sizes = _sizes_if_sorted(labels)
    if class_sizes is None:
        return list(range(limit))

    # Draw samples in rounds. In every round, each class that has samples left gives one sample when its turn comes.
    # The samples of a class are assigned to the rounds 0, 1, 2, ... in random order. E.g. a class of three samples may
    # get the rounds 2, 0, 1: its second sample is drawn in the first round.
    random = np.random.default_rng(seed)
    turn_of_class = random.permutation(len(class_sizes))
    round_within_class = [random.permutation(size) for size in class_sizes]
    turns = np.repeat(turn_of_class, class_sizes)  # [samples] the turn of each sample's class
    rounds = np.concatenate(round_within_class)  # [samples] the round of each sample
    order = np.lexsort((turns, rounds))  # sorts by round, and within a round by turn
    return sorted(order[:limit].tolist())


def _sizes_if_sorted(labels: Sequence[Any] | Labels | None) -> list[int] | None:
    """Return the number of samples of each class if the set is sorted by class; None for any other set.

    A set with a single class, or with one sample per class, does not count as sorted.
    """
    if labels is None:
        return None

    # A run is a stretch of equal labels: 0, 0, 0, 1, 1 has two, of lengths 3 and 2. The set is sorted if every class is
    # one run.
    run_lengths = [len(list(run)) for _, run in itertools.groupby(labels)]
    runs = len(run_lengths)
    if runs <= 1 or runs >= len(labels):
        return None
    if runs > len(set(labels)):  # a class has several runs
        return None
    return run_lengths


_PROBLEMS = {"other": "is neither an integer nor a name", "too large": "is beyond 2^63"}
"""What is wrong with the kinds of labels that no set may have."""


def _problems_of_values(values: Sequence[Any], ids: Sequence[str]) -> list[str]:
    """Return what is wrong with labels: one line for each kind of problem, which names the first sample that has it.

    The list is empty if nothing is wrong.

    Args:
        values: integers of 64 bits, or names. Anything else, None, and a mixture of integers and names are problems.
        ids: the ids of the samples, for messages.
    """
    kinds = list(map(_kind_of_label, values))
    first_index = {kind: kinds.index(kind) for kind in set(kinds)}  # of the first label of each kind
    problems = []
    if "missing" in first_index:
        others = kinds.count("missing") - 1
        more = f", and for {others} more" if others else ""
        problems.append(f"no label for sample {ids[first_index['missing']]}{more}")

    # What messages say of the kinds that are wrong. A name is wrong only beside numbers.
    what_is_wrong = dict(_PROBLEMS)
    if "integer" in first_index or "too large" in first_index:
        what_is_wrong["name"] = "is a name, others are numbers"
    for kind, end_of_message in what_is_wrong.items():
        if kind in first_index:
            index = first_index[kind]
            problems.append(f"label {shown(values[index])} of sample {ids[index]} {end_of_message}")
    return problems


def _kind_of_label(value: Any) -> str:
    """Return the kind of a label: ``missing``, ``name``, ``integer``, ``too large`` (for 64 bits) or ``other``."""
    if value is None:
        return "missing"
    if type(value) is str:
        return "name"
    if type(value) is not int:
        return "other"
    return "integer" if abs(value) < 2**63 else "too large"


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
        raw: the labels as they were read.
        ids: the ids of the samples, for messages.
        where: the name of the data set in messages.
        labels: the checkpoint's class names. Empty means a checkpoint without names. None means that there is no
            checkpoint, and the data's own order of classes counts.
        label_map: maps names in the data to names in the checkpoint; None if the command has no option for it.
        need: refuse a set without labels.
        ignore: treat a set whose labels cannot be mapped as unlabelled, without an error.

    Returns:
        The class indices, int64 ``[samples]``, or None for an unlabelled set; and the names that they index, or None.

    Raises:
        InputError: if labels are needed and missing, negative or out of range, or names that cannot be mapped.
        UsageError: if there is a ``label_map`` but no checkpoint with names.
    """
    if label_map and labels is None:
        raise UsageError(f"{where}: --label-map needs a checkpoint with class names to map to")

    # Labels that cannot be mapped are an error, or left out if that is allowed.
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

    # The names that the indices now stand for: the data's own (numbers in a text file have none), or the checkpoint's.
    if labels is None:
        names_of_data = None if raw.from_text else raw.names
        return indices, names_of_data
    if not labels:  # a checkpoint without names
        return indices, None
    return indices, list(labels)


def _class_indices(
    raw: RawLabels, ids: Sequence[str], where: str, labels: Sequence[str] | None, label_map: Mapping[str, str] | None
) -> Labels | None:
    """Return the index of each sample's class, int64 ``[samples]``; None for a set without labels.

    Args:
        raw: integers or names, as they were read.
        ids: the ids of the samples, for messages.
        where: the name of the data set in messages.
        labels: the checkpoint's class names, which the result indexes. Empty means a checkpoint without names. None
            means that the result indexes the data's own names.
        label_map: maps names in the data to names in the checkpoint; None if the command has no option for it.

    Raises:
        InputError: for labels that are negative or out of range, and names that cannot be mapped.
    """
    # Labels may be anything, and all None in a set without labels.
    values = raw.values
    problems = raw.problems
    if values is not None and all(value is None for value in values):
        values = None
    if values is not None:
        problems = problems + _problems_of_values(values, ids)
    if problems:
        raise InputError(f"{where}: the labels cannot be used", problems=problems)
    if values is None:
        return None
    data_names = raw.names
    if raw.from_text and not (labels and set(data_names or ()) <= set(labels)):
        # The labels are numbers. If the checkpoint's class names are such numbers too, they are names: five stars are
        # the class named "5" and not the class at index 5.
        values = list(map(int, values))
        data_names = None

    # The index of a class in the data and in the checkpoint may differ, so there are two steps.
    # First step: indices into the data's own names if there are any, else into the checkpoint's names.
    if type(values[0]) is str:
        index_by_name = {name: index for index, name in enumerate(data_names or [])}
        values = [index_by_name[name] for name in values]
    indices = np.array(values, dtype=np.int64)
    class_names = labels if data_names is None else data_names
    class_count = len(class_names) if class_names else None  # not known for a checkpoint without names
    _check_range(indices, class_count, ids, where)
    if data_names is None or labels is None:
        return indices

    # Second step: from the data's own names to the checkpoint's.
    index_by_data_class = _index_data_classes(data_names, labels, label_map, where)
    return index_by_data_class[indices]


def _check_range(values: Labels, classes: int | None, ids: Sequence[str], where: str) -> None:
    """Refuse labels that are negative or too large.

    Args:
        values: int64 ``[samples]``.
        classes: the number of classes; None if it is not known.
        ids: the ids of the samples, for messages.
        where: the name of the data set in messages.

    Raises:
        InputError: naming the first wrong label, and how many others there are.
    """
    is_bad = values < 0  # [samples]
    what_is_wrong = "negative"
    if classes is not None:
        is_bad |= values >= classes
        what_is_wrong = f"outside 0..{classes - 1}"
    if not is_bad.any():
        return

    # Name the first wrong label, and count the others.
    first = int(is_bad.argmax())  # the index of the first True
    label = int(values[first])
    message = f"{where}: label {label} of sample {ids[first]} is {what_is_wrong}"
    others = int(is_bad.sum()) - 1
    if others:
        message += f", and so are {others} more"
    # Some sets write -1 for an unknown label.
    hint = "give a set without labels where none are known" if label < 0 else None
    raise InputError(message, hint=hint)


def _index_data_classes(
    data_names: list[str], labels: Sequence[str], label_map: Mapping[str, str] | None, where: str
) -> Labels:
    """Return for each of the data's classes its index among the checkpoint's names, int64 ``[classes of data]``.

    Args:
        data_names: the data's own class names.
        labels: the checkpoint's class names.
        label_map: maps names in the data to names in the checkpoint; None if the command has no option for it.
        where: the name of the data set in messages.

    Raises:
        InputError: if a name leads to no class of the checkpoint, or to several.
    """
    if not labels:
        raise InputError(
            f"{where}: the labels are names, and the model has no class names to map them to",
            hint="give the model's class names with --labels",
        )

    # Apply --label-map. `target_names` are the checkpoint's names for the data's classes, in the data's order.
    target_names = data_names
    if label_map:
        targets = ("target of --label-map", "targets of --label-map")
        wrong_targets = sorted(set(label_map.values()) - set(labels))
        _refuse_unknown(targets, wrong_targets, labels, where, "the model's class names")
        target_names = [label_map.get(name, name) for name in data_names]
    if target_names == list(labels):
        return np.arange(len(data_names), dtype=np.int64)

    # Refuse names that are not among the checkpoint's. If its classes are one of the built-in lists, the names that
    # the data set publishes for the same classes are accepted too, e.g. `aquarium_fish` for `aquarium fish`.
    known = set(labels)
    not_labels = [name for name in target_names if name not in known]
    published_indices = index_of_published(labels, not_labels)
    unknown = []
    for name, target in zip(data_names, target_names, strict=True):
        if target not in known and target not in published_indices:
            unknown.append(name)
    way_out = "rename them in the data, or name the model's classes as the data do with --labels FILE; it has"
    if label_map is not None:
        way_out = "map them with --label-map FILE (name in the data: name in the model) to"
    _refuse_unknown(("class name", "class names"), unknown, labels, where, way_out)

    # Refuse names that several classes of the checkpoint share.
    counts = Counter(labels)
    ambiguous = sorted({name for name in target_names if counts[name] > 1})
    if ambiguous:
        raise InputError(
            f"{where}: the model has several classes of one name, so names do not tell them apart",
            hint="name the model's classes differently with --labels",
            problems=list(map(repr, ambiguous)),
        )

    # Now every name leads to exactly one class.
    # Names of the checkpoint go before published ones.
    index_by_name = dict(published_indices)
    for index, name in enumerate(labels):
        index_by_name[name] = index
    indices = [index_by_name[name] for name in target_names]
    return np.array(indices, dtype=np.int64)


def _refuse_unknown(
    what: tuple[str, str], unknown: Sequence[str], labels: Sequence[str], where: str, way_out: str
) -> None:
    """Raise an error that lists names which are no class of the checkpoint, if there are any.

    Args:
        what: how messages call one name, and several, e.g. ``("label", "labels")``.
        unknown: the names.
        labels: the checkpoint's class names.
        where: the name of the data set in messages.
        way_out: the beginning of the hint, which the checkpoint's class names follow.
    """
    if unknown:
        raise InputError(
            f"{where}: {_subject(len(unknown), *what)} not among the model's {len(labels)}",
            hint=f"{way_out}: {some(labels)}",
            problems=_lines_with_similar(unknown, labels),
        )


def _lines_with_similar(names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return each name as a line of a message, with the most similar of the checkpoint's labels if there is one."""
    # Comparing takes the time of (names x labels), so only as many names are compared as take about a second.
    near = similar_names(names[: _MOST_COMPARED // len(labels)], labels)
    return [f"{name!r} (near: {near[name]!r})" if name in near else repr(name) for name in names]


def similar_names(names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return by name the known name that is spelled most like it, whatever the case.

    ``similar_names(["kat", "xyz"], ["Cat", "dog"])`` is ``{"kat": "Cat"}``: names that none resembles are left out.
    """
    # In reverse, since later keys replace earlier ones: of names that differ only in case, the first is suggested.
    known_by_folded = {name.casefold(): name for name in reversed(known)}
    similar = {}
    for name in names:
        for folded in difflib.get_close_matches(name.casefold(), known_by_folded, n=1):  # one, or none
            similar[name] = known_by_folded[folded]
    return similar


def _subject(number: int, singular: str, plural: str) -> str:
    """Return a number, the noun and the verb, e.g. ``1 label is`` or ``2 labels are``."""
    return f"{number} {singular} is" if number == 1 else f"{number} {plural} are"


def some(names: Sequence[str], most: int = 12) -> str:
    """Return the first few names as a text; if there are more, it ends with their total number."""
    first_names = names[:most]
    first = ", ".join(first_names) or "nothing"
    if len(names) <= most:
        return first
    return f"{first}, ... ({len(names)} in all)"
