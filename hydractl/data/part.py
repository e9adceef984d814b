"""Some samples of a data set: ``?from=&take=``, ``?fraction=&seed=``, ``?part=K/N`` and ``?without=INDICES`` after the
SPEC of any set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec, with_setting

_NUMBER = r"[0-9]{1,9}"
_SHARE = r"[0-9]*\.?[0-9]+"


_PATTERNS = {
    "from": _NUMBER,
    "take": _NUMBER,
    "fraction": f"({_SHARE}):({_SHARE})",
    "seed": _NUMBER,
    "part": f"({_NUMBER})/({_NUMBER})",
    "without": f"{_NUMBER}(?:,{_NUMBER})*",
}
"""The form that the value of each setting must have."""

_WORDS = {
    "from": "a number of samples to leave out at the start, 0 or more",
    "take": "a number of samples, 1 or more",
    "fraction": "A:B with 0 <= A < B <= 1, for example 0:0.01 and 0.01:1",
    "seed": "a seed, 0 or more",
    "part": "K/N with K from 1 to N, for example 1/2",
    "without": "places from 0 on, for example 3,7",
}
"""The same in words."""


class DatasetPart(Dataset):
    """Some samples of a data set. They keep the ids, the fingerprints, and the labels or captions of the whole set.

    Args:
        whole: the data set.
        spec: the SPEC of the part.
        rows: the indices of the part's samples in the whole set.
    """

    def __init__(self, whole: Dataset, spec: str, rows: Sequence[int]) -> None:
        """Take over the ids, labels, captions and class names of the samples at ``rows``; no sample is read.

        Fingerprints (hashes of samples) are shared with the whole set: the dict of the one is that of the other.

        Args:
            whole: the set of which this is a part.
            spec: the text (SPEC) that names the part.
            rows: the indices of its samples in the whole set, in the order of the part.
        """
        ids = [whole.ids[row] for row in rows]
        super().__init__(spec, whole.where, ids)
        self._whole = whole
        self._rows = list(rows)
        self.take_over(whole)
        self.fingerprints = whole.fingerprints
        if whole.labels is not None:
            self.labels = whole.labels[self._rows]
        if whole.captions is not None:
            self.captions = [whole.captions[row] for row in self._rows]
        self.label_hint = whole.label_hint

    def _sample(self, i: int) -> Any:
        return self._whole._sample(self._rows[i])

    def lengths(self) -> list[int] | None:
        """Return the lengths of the samples of the part; None if the whole set has no lengths."""
        lengths = self._whole.lengths()
        if lengths is None:
            return None
        return [lengths[row] for row in self._rows]


@dataclass(frozen=True)
class ChosenRows:
    """Which samples of a set its SPEC asks for. The settings apply in the order of the attributes.

    Attributes:
        where: the name of the set in messages.
        start, count: ``from=`` and ``take=``: take ``count`` samples beginning at index ``start``; a count of None
            means all samples to the end.
        share: ``fraction=A:B``: put the samples into a random order in which the classes are mixed evenly, and take
            those from A to B of that order. The pair (A, B).
        seed: seed of that order.
        part: ``part=K/N``: of the samples so far, take the one at index K - 1 and then every N-th. The pair (K, N).
        without: ``without=``: leave out the samples at these indices, which count the samples before ``part`` applies.
    """

    where: str
    start: int
    count: int | None
    share: tuple[Fraction, Fraction]
    seed: int
    part: tuple[int, int]
    without: Sequence[int]

    @property
    def reach(self) -> int | None:
        """How many samples must be read from the start of the set; None means all."""
        if self.count is None:
            return None
        return self.start + self.count

    def chosen_indices(self, labels: Sequence[Any] | np.ndarray | None, total: int) -> list[int]:
        """Return the indices of the chosen samples in the whole set, in ascending order.

        The settings apply one after another: first ``from`` and ``take``, then ``fraction``, then ``part`` and
        ``without``. The last two both count the samples that the earlier settings have left.

        Args:
            labels: the labels of all samples as they stand in the data, ``[total]``; None if there are none.
            total: the number of samples that were read.

        Raises:
            InputError: if the set has too few samples, or no sample is left.
        """
        # From the start on, as many as asked for or all.
        if self.count is None:
            wanted = f"from={self.start}"
            needed = self.start + 1
            end = total
        else:
            wanted = f"from={self.start}&take={self.count}"
            needed = self.start + self.count
            end = needed
        if total < needed:
            raise InputError(f"{self.where}: {wanted} is beyond the end of the set, which has {total} samples")
        indices_from_start = np.arange(self.start, end)
        remaining = self._draw_share(indices_from_start, labels, total)

        # part=K/N: every N-th of the remaining samples, beginning with number K; 2/4 takes the places 1, 5, 9, ...
        part_number, part_count = self.part
        if part_number > len(remaining):
            raise InputError(
                f"{self.where}: part {part_number}/{part_count} is empty, the set has {len(remaining)} samples"
            )
        in_part = slice(part_number - 1, None, part_count)

        # `without` counts the remaining samples before they are divided into parts, so mark them first, and then take
        # the part of the samples and of their marks alike.
        last = max(self.without, default=-1)
        if last >= len(remaining):
            raise InputError(f"{self.where}: without={last} is beyond the last of {len(remaining)} samples")
        is_left = np.ones(len(remaining), dtype=np.bool_)  # [remaining]
        is_left[list(self.without)] = False
        chosen = remaining[in_part][is_left[in_part]]
        if not len(chosen):
            raise InputError(f"{self.where}: without= leaves nothing")
        return [int(index) for index in chosen]

    def _draw_share(self, indices: np.ndarray, labels: Sequence[Any] | np.ndarray | None, total: int) -> np.ndarray:
        """Return the share of some samples that ``fraction=A:B`` asks for, as ascending indices.

        The samples are put into a random order, which depends on ``seed`` and not on A and B, and those from A to B in
        that order are taken: of 10 samples, ``0.2:0.5`` takes the places 2, 3 and 4 of the order. So shares that do not
        overlap have no sample in common.

        Args:
            indices: the indices of the samples in the whole set.
            labels: the labels of all samples of the whole set, ``[total]``; None if there are none.
            total: the number of samples of the whole set.

        Raises:
            InputError: if the share has no samples.
        """
        count = len(indices)
        low, high = self.share
        start = round(low * count)
        end = round(high * count)
        if start == 0 and end == count:
            return indices
        labels_of_indices = None if labels is None else np.asarray(labels)[indices]

        # The order has the class proportions of the whole in every stretch, so every share has them too.
        order = _stratified_order(labels_of_indices, count, self.seed)
        chosen = indices[order[start:end]]
        if not len(chosen):
            raise InputError(f"{self.where}: this fraction is empty, it is of {total} samples")
        return np.sort(chosen)


def _stratified_order(labels: np.ndarray | None, total: int, seed: int) -> np.ndarray:
    """Draw a random order of ``total`` samples in which every stretch has the class proportions of the whole.

    The samples of each class are placed at equal distances on a line from 0 to 1, e.g. two samples at 0.1 and 0.6, and
    four at 0.2, 0.45, 0.7 and 0.95. The order is the order on that line.

    Args:
        labels: ``[total]``; None if there are none, and then any random order is returned.
        total: the number of samples.
        seed: seed of the order.

    Returns:
        A permutation of the indices 0 to ``total - 1``.
    """
    random = np.random.RandomState(seed)  # its stream never changes between numpy versions
    order = random.permutation(total)  # [total]
    if labels is None:
        return order

    # `classes` [total] is the class of each sample, in the drawn order; `counts` is the number of samples per class.
    _, classes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    by_class = np.argsort(classes, kind="stable")  # places in the drawn order, class after class

    # Sample k of the n samples of a class stands at (k + start) / n, with one start below 1 for the class: n = 4 and
    # start = 0.8 give 0.2, 0.45, 0.7, 0.95. The start is random, since otherwise all classes would begin at 0.
    starts = random.uniform(size=len(counts))
    positions = np.empty(total)  # on the line from 0 to 1
    for start, members in zip(starts, np.split(by_class, np.cumsum(counts)[:-1]), strict=True):
        positions[members] = (np.arange(len(members)) + start) / len(members)
    by_position = np.argsort(positions, kind="stable")
    return order[by_position]


def take_rows(spec: DataSpec) -> tuple[DataSpec, ChosenRows | None]:
    """Split a SPEC, the text that names a data set, into the SPEC of the whole set and the samples chosen from it.

    ``photos/?take=100`` gives ``photos/`` and the choice of the first 100 samples.

    Returns:
        The SPEC without the settings ``from``, ``take``, ``fraction``, ``seed``, ``part`` and ``without``, and the
        choice that they ask for; None instead of a choice if the SPEC has none of them.

    Raises:
        UsageError: for settings that make no sense.
    """
    # `asked` is the text of each of these settings, e.g. {"take": "100"}.
    whole_spec, asked = spec.split_query(_PATTERNS)
    if not asked:
        return spec, None
    values: dict[str, Any] = {}
    for key, text in asked.items():
        values[key] = _value_of(key, text)
        if values[key] is None:
            raise UsageError(f"{spec.where}: {key} {text!r} is not {_WORDS[key]}")
    if "seed" in asked and "fraction" not in asked:
        raise UsageError(f"{spec.where}: seed= draws a fraction", hint="for example ?fraction=0:0.01&seed=1")

    # The choice. A setting that is not asked for gets the value that changes nothing, e.g. part 1 of 1.
    chosen = ChosenRows(
        where=spec.where,
        start=values.get("from", 0),
        count=values.get("take"),
        share=values.get("fraction", (Fraction(0), Fraction(1))),
        seed=values.get("seed", 0),
        part=values.get("part", (1, 1)),
        without=values.get("without", ()),
    )
    return whole_spec, chosen


def places_left_out(spec: DataSpec) -> set[int]:
    """Return the indices of the samples that ``without=`` leaves out; they count all samples before it applies."""
    text = spec.query.get("without")
    return set() if text is None else set(_parse_indices(text))


def without_places(spec: str, places: Iterable[int]) -> str:
    """Return the SPEC of a data set, its name as text, with a setting that leaves out samples in place of its own one.

    E.g. ``a/?without=3`` with the indices 0 and 3 is ``a/?without=0,3``; without any index it stays as it is.
    """
    listed = ",".join(map(str, sorted(places)))
    if not listed:
        return spec
    setting = f"without={listed}"
    if "without" not in DataSpec.of_option("", spec).query:
        return with_setting(spec, setting)
    return re.sub(r"(?<=[?&])without=[^&]*", setting, spec, count=1)


def _parse_indices(text: str) -> list[int]:
    """Return the indices that ``without=`` lists: ``3,7`` gives 3 and 7."""
    return [int(index) for index in text.split(",")]


def _value_of(key: str, text: str) -> Any:
    """Return the value of a setting that chooses samples, read from its text; None if the text is not allowed.

    =========  ===========  =============================================================================
    key        text         value
    =========  ===========  =============================================================================
    without    ``3,7``      the indices 3 and 7
    fraction   ``0.2:0.5``  the two bounds as exact fractions; the first below the second, which is at most 1
    part       ``2/4``      (2, 4); the part is one of 1 to 4
    take       ``100``      100; not 0
    from, seed ``100``      100
    =========  ===========  =============================================================================
    """
    match = re.fullmatch(_PATTERNS[key], text)
    if match is None:
        return None
    if key == "without":
        return _parse_indices(text)
    if key == "fraction":
        low, high = map(Fraction, match.groups())
        return (low, high) if low < high <= 1 else None
    if key == "part":
        part, parts = map(int, match.groups())
        return (part, parts) if 1 <= part <= parts else None
    # `take`, `from` and `seed` are one number each.
    number = int(text)
    if key == "take" and number == 0:
        return None
    return number
