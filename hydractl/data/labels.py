"""Labels of a data set: as they stand in it, and mapped to the checkpoint's classes, by name, never by position."""

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
    runs = [] if labels is None else [len(list(run)) for _, run in itertools.groupby(labels)]
    if not 1 < len(runs) < total or len(runs) != len(set(labels or ())):
        return list(range(limit))
    random = np.random.default_rng(seed)
    turn = np.repeat(random.permutation(len(runs)), runs)
    within = np.concatenate([random.permutation(count) for count in runs])
    return sorted(np.lexsort((turn, within))[:limit].tolist())


def raw_labels(
    values: list[Any],
    ids: Sequence[str],
    *,
    names: list[str] | None = None,
    hint: str | None = None,
    texts: list[str] | None = None,
) -> RawLabels:
    """Read the labels of a column: all integers, all names, or none at all.

    Args:
        values: one for each sample; None where there is no label.
        ids: sample ids, for messages.
        names: what integers point into.
        hint, texts: as of :class:`RawLabels`.
    """
    missing = [i for i, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return RawLabels(None, names, hint=hint)
    problems = []
    if missing:
        more = f", and for {len(missing) - 1} more" if len(missing) > 1 else ""
        problems.append(f"no label for sample {ids[missing[0]]}{more}")
    kinds = [type(value) for value in values]
    wrong = next((i for i, kind in enumerate(kinds) if kind not in (int, str, type(None))), None)
    if wrong is not None:
        problems.append(f"label {shown(values[wrong])} of sample {ids[wrong]} is neither an integer nor a name")
    beyond = next((i for i, kind in enumerate(kinds) if kind is int and abs(values[i]) >= 2**63), None)
    if beyond is not None:
        problems.append(f"the label of sample {ids[beyond]} is beyond 2^63")
    if str in kinds and int in kinds:
        i = kinds.index(str)
        problems.append(f"label {shown(values[i])} of sample {ids[i]} is a name, others are numbers")
    if problems:
        return RawLabels(problems=problems)
    if str in kinds:
        return RawLabels(values, sorted(set(values)))
    return RawLabels(np.array(values, dtype=np.int64), names, texts=texts)


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
    """Map the labels of a data set to the checkpoint's classes.

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
        InputError: labels missing while needed, out of range, negative, or names that cannot be mapped.
        UsageError: a ``label_map`` without names to map to.
    """
    if label_map and labels is None:
        raise UsageError(f"{where}: --label-map needs a checkpoint with class names to map to")
    names = raw.names if labels is None else (list(labels) or None)
    try:
        found = _indices(raw, ids, where, labels, label_map)
    except InputError:
        if not ignore:
            raise
        found = None
    if found is None and need:
        raise InputError(
            f"{where}: no label for sample {ids[0]}, nor for any other",
            hint="a labelled set is needed here" + (f"; {raw.hint}" if raw.hint else ""),
        )
    return found, names


def _indices(
    raw: RawLabels, ids: Sequence[str], where: str, labels: Sequence[str] | None, label_map: Mapping[str, str] | None
) -> Labels | None:
    if raw.problems:
        raise InputError(f"{where}: the labels cannot be used", problems=raw.problems)
    if raw.values is None:
        return None
    if raw.texts is not None and labels and set(raw.texts) <= set(labels):
        # Five stars are the class named "5", not the class at position 5.
        raw = RawLabels(raw.texts, sorted(set(raw.texts)))
    own = raw.names
    if isinstance(raw.values, list):
        own = sorted(set(raw.values)) if own is None else own
        values = _index_names(raw.values, own, ids, where)
    else:
        assert raw.values is not None
        values = raw.values
    known = labels if own is None else own
    _check_range(values, len(known) if known else None, ids, where)
    return values if own is None or labels is None else _name_table(own, labels, label_map, where)[values]


def _index_names(values: list[str], own: list[str], ids: Sequence[str], where: str) -> Labels:
    """Position of each sample's name in the data's own names."""
    twice = [name for name, count in Counter(own).items() if count > 1]
    if twice:
        raise InputError(
            f"{where}: class names given more than once", problems=[f"{name!r} is in classes twice" for name in twice]
        )
    position = {name: i for i, name in enumerate(own)}
    unknown = {value: ids[i] for i, value in reversed(list(enumerate(values))) if value not in position}
    if unknown:
        raise InputError(
            f"{where}: {_count(len(unknown), 'label', 'labels')} not among the data's own classes",
            problems=[f"{name!r}, first at sample {unknown[name]}" for name in sorted(unknown)],
        )
    return np.array([position[value] for value in values], dtype=np.int64)


def _check_range(values: Labels, classes: int | None, ids: Sequence[str], where: str) -> None:
    """Refuse negative labels, and those beyond the classes where their number is known."""
    bad = values < 0
    if classes is not None:
        bad |= values >= classes
    if bad.any():
        first = int(bad.argmax())
        allowed = "negative" if classes is None else f"outside 0..{classes - 1}"
        more = int(bad.sum()) - 1
        raise InputError(
            f"{where}: label {int(values[first])} of sample {ids[first]} is {allowed}"
            + (f", and so are {more} more" if more else ""),
            hint="give a set without labels where none are known" if values[first] < 0 else None,
        )


def _name_table(own: list[str], labels: Sequence[str], given: Mapping[str, str] | None, where: str) -> Labels:
    """Return for each of the data's own classes its index among the checkpoint's names: int64 ``[len(own)]``."""
    if not labels:
        raise InputError(
            f"{where}: the labels are names, and the model has no class names to map them to",
            hint="give the model's class names with --labels",
        )
    known, label_map = set(labels), given or {}
    unknown = sorted(set(label_map.values()) - known)
    if unknown:
        count = _count(len(unknown), "target of --label-map", "targets of --label-map")
        raise InputError(
            f"{where}: {count} not among the model's {len(labels)} class names",
            hint=f"the model's class names: {some(labels)}",
            problems=_near(unknown, labels),
        )
    mapped = [label_map.get(name, name) for name in own]
    if mapped == list(labels):
        return np.arange(len(own), dtype=np.int64)
    # A model that knows its classes by a built-in list knows what the data set calls them.
    published = place_of_published(labels, [name for name in mapped if name not in known])
    unknown = [name for name, t in zip(own, mapped, strict=True) if t not in known and t not in published]
    if unknown:
        way = "map them with --label-map FILE (name in the data: name in the model) to"
        if given is None:
            way = "rename them in the data, or name the model's classes as the data do with --labels FILE; it has"
        raise InputError(
            f"{where}: {_count(len(unknown), 'class name', 'class names')} not among the model's {len(labels)}",
            hint=f"{way}: {some(labels)}",
            problems=_near(unknown, labels),
        )
    counts = Counter(labels)
    twice = sorted({name for name in mapped if counts[name] > 1})
    if twice:
        raise InputError(
            f"{where}: the model has several classes of one name, so names do not tell them apart",
            hint="name the model's classes differently with --labels",
            problems=[repr(name) for name in twice],
        )
    position = {**published, **{name: i for i, name in enumerate(labels)}}
    return np.array([position[name] for name in mapped], dtype=np.int64)


def _near(names: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The names, the first ones with the checkpoint's name that is most like it."""
    folded = {label.casefold(): label for label in reversed(list(labels))}
    lines = [repr(name) for name in names]
    for index, name in enumerate(names[: _MOST_COMPARED // len(labels)]):
        near = difflib.get_close_matches(name.casefold(), folded, n=1)
        if near:
            lines[index] += f" (near: {folded[near[0]]!r})"
    return lines


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one} is" if number == 1 else f"{number} {many} are"


def some(names: Sequence[str], most: int = 12) -> str:
    """The first few names, and how many there are in all."""
    first = ", ".join(names[:most]) or "nothing"
    return f"{first}, ... ({len(names)} in all)" if len(names) > most else first
