"""Some samples of a data set: ``?from=&take=``, ``?fraction=&seed=``, ``?part=K/N`` and ``?without=PLACES`` after the
SPEC of any set.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from hydractl.data.base import Dataset, Spec, parse_spec
from hydractl.data.captions import CaptionedImages
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import with_setting

_SETTINGS = ("from", "take", "fraction", "seed", "part", "without")

_NUMBER = r"[0-9]{1,9}"
_SHARE = r"[0-9]*\.?[0-9]+"
_SPAN = f"{_NUMBER}(?:-{_NUMBER})?"


class _Form(NamedTuple):
    """The form of the value of one setting, as a regular expression and in words for messages."""

    pattern: str
    words: str


_FORMS = {
    "from": _Form(_NUMBER, "a number of samples to leave out at the start, 0 or more"),
    "take": _Form(_NUMBER, "a number of samples, 1 or more"),
    "fraction": _Form(f"({_SHARE}):({_SHARE})", "A:B with 0 <= A < B <= 1, for example 0:0.01 and 0.01:1"),
    "seed": _Form(_NUMBER, "a seed, 0 or more"),
    "part": _Form(f"({_NUMBER})/({_NUMBER})", "K/N with K from 1 to N, for example 1/2"),
    "without": _Form(f"{_SPAN}(?:,{_SPAN})*", "places from 0 on, for example 3,7-9"),
}
"""The forms by key of the query."""


class DatasetPart(Dataset):
    """Some samples of a data set, with the ids, labels and fingerprints that they have in it.

    Args:
        whole: the data set, with its labels.
        spec: of the part.
        rows: places of its samples in the data set.
    """

    def __init__(self, whole: Dataset, spec: str, rows: Sequence[int]) -> None:
        """Take over the ids, labels and names of the samples at ``rows``; none of them is read."""
        ids = [whole.ids[row] for row in rows]
        super().__init__(spec, whole.where, ids)
        self._whole = whole
        self._rows = list(rows)
        self.kind = whole.kind
        if whole.labels is not None:
            self.labels = whole.labels[self._rows]
        self.label_names = whole.label_names
        self.label_hint = whole.label_hint
        if whole.skipped is not None:  # the part notes by itself which of its samples cannot be read
            self.skipped = {}

    def _sample(self, i: int) -> Any:
        row = self._rows[i]
        return self._whole._sample(row)

    def _content(self, i: int) -> Iterable[bytes]:
        row = self._rows[i]
        return self._whole._content(row)

    def _sample_fingerprint(self, i: int) -> str:
        row = self._rows[i]
        return self._whole._sample_fingerprint(row)

    def lengths(self) -> list[int] | None:
        """Return the lengths of the samples of the part; None where the whole has none."""
        lengths = self._whole.lengths()
        if lengths is None:
            return None
        return [lengths[row] for row in self._rows]


def dataset_part(whole: Dataset, spec: str, rows: Sequence[int]) -> Dataset:
    """Return the samples at some places of a data set; the part of images with captions has captions, too.

    Args:
        whole: the data set, with its labels.
        spec: of the part.
        rows: places of its samples in the data set.
    """
    if not isinstance(whole, CaptionedImages):
        return DatasetPart(whole, spec, rows)
    images = DatasetPart(whole.images, spec, rows)
    captions = [whole.captions[row] for row in rows]
    part = CaptionedImages(images, captions)
    if whole.skipped is not None:
        part.skipped = {}
    return part


@dataclass(frozen=True)
class ChosenRows:
    """The samples of a set that its SPEC asks for; the settings apply in the order of the attributes.

    Attributes:
        where: the name of the set in messages.
        start, count: ``count`` samples from place ``start`` on; None: all of them.
        share: A and B: of these samples the share from A to B in an order drawn by ``seed``, spread evenly over the
            classes.
        seed: of that order.
        part: K and N: of these samples those at the places K - 1, K - 1 + N, ...
        without: the first and the last place of each span of samples to leave out, counted before ``part`` applies.
    """

    where: str
    start: int
    count: int | None
    share: tuple[Fraction, Fraction]
    seed: int
    part: tuple[int, int]
    without: tuple[tuple[int, int], ...]

    @property
    def reach(self) -> int | None:
        """The place up to which the set is read; None: to its end."""
        if self.count is None:
            return None
        return self.start + self.count

    def places(self, labels: Sequence[Any] | np.ndarray | None, total: int) -> list[int]:
        """Return the places of the samples in the set, ascending.

        Args:
            labels: of all samples as they stand in the data, ``[total]``; None where there are none.
            total: number of samples that were read.

        Raises:
            InputError: where the set has fewer samples, or nothing is left.
        """
        rows = self._take_from_start(total)
        rows = self._draw_share(rows, labels, total)
        part, parts = self.part
        if part > len(rows):
            raise InputError(f"{self.where}: part {part}/{parts} is empty, the set has {len(rows)} samples")
        # What is left out is counted among all of these, before the part is taken of them.
        is_left = self._is_left(len(rows))
        in_part = slice(part - 1, None, parts)
        rows_of_part = rows[in_part]
        chosen = rows_of_part[is_left[in_part]]
        if not len(chosen):
            raise InputError(f"{self.where}: without= leaves nothing")
        return [int(row) for row in chosen]

    def _take_from_start(self, total: int) -> np.ndarray:
        """Return the places from ``start`` on, ``count`` of them or all, in a set of ``total`` samples.

        Raises:
            InputError: where the set has fewer samples.
        """
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
        return np.arange(self.start, end)

    def _draw_share(self, rows: np.ndarray, labels: Sequence[Any] | np.ndarray | None, total: int) -> np.ndarray:
        """Return the share of some places that ``fraction=A:B`` asks for, drawn by ``seed``, ascending.

        All places are put into an order that is drawn, and those from A to B in it are taken: shares that do not
        overlap have no sample in common.

        Args:
            rows: the places.
            labels: of all samples, ``[total]``; None where there are none.
            total: number of samples of the set.

        Raises:
            InputError: where the share is of no sample.
        """
        count = len(rows)
        low, high = self.share
        start = round(low * count)
        end = round(high * count)
        is_everything = start == 0 and end == count
        if is_everything:
            return rows
        labels_of_rows = None
        if labels is not None:
            labels_of_rows = np.asarray(labels)[rows]
        order = _stratified_order(labels_of_rows, count, self.seed)
        chosen = rows[order[start:end]]
        if not len(chosen):
            raise InputError(f"{self.where}: this fraction is empty, it is of {total} samples")
        return np.sort(chosen)

    def _is_left(self, total: int) -> np.ndarray:
        """Return which samples ``without=`` leaves, bool ``[total]``.

        Raises:
            InputError: where it names a sample beyond the last one.
        """
        is_left = np.ones(total, dtype=np.bool_)
        for first, last in self.without:
            if last >= total:
                raise InputError(f"{self.where}: without={last} is beyond the last of {total} samples")
            is_left[first : last + 1] = False
        return is_left


def _stratified_order(labels: np.ndarray | None, total: int, seed: int) -> np.ndarray:
    """Draw an order of all places, ``[total]``, in which every stretch has the class proportions of the whole.

    The samples of each class are spread at equal distances over a line from 0 to 1, and are then read off in its order.

    Args:
        labels: ``[total]``; None where there are none: any order will do.
        total: how many places there are.
        seed: of the order.
    """
    random = np.random.RandomState(seed)  # its stream never changes between numpy versions
    order = random.permutation(total)
    if labels is None:
        return order
    _, classes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    within = _numbers_within_classes(classes, counts)
    # Each class begins at a place of its own, drawn within the first of its distances.
    starts = random.uniform(size=len(counts))
    places = (within + starts[classes]) / counts[classes]
    by_place = np.argsort(places, kind="stable")
    return order[by_place]


def _numbers_within_classes(classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return how many samples of its own class stand before each sample, float64 ``[total]``.

    Args:
        classes: the class of each sample, from 0, ``[total]``.
        counts: how many samples each class has.
    """
    total = len(classes)
    by_class = np.argsort(classes, kind="stable")
    starts = np.cumsum(counts) - counts  # where each class begins in by_class
    within = np.empty(total)
    within[by_class] = np.arange(total) - np.repeat(starts, counts)
    return within


def take_rows(spec: Spec) -> tuple[Spec, ChosenRows | None]:
    """Take the settings that choose samples (``from``, ``take``, ``fraction``, ...) out of a SPEC.

    A SPEC is the name of a data set, with settings behind ``?``.

    Returns:
        The SPEC of the whole set, without these settings, and the samples that they ask for; None: all.

    Raises:
        UsageError: for settings that make no sense.
    """
    asked = {key: spec.query[key] for key in _SETTINGS if key in spec.query}
    if not asked:
        return spec, None
    _check_settings(spec, asked)
    count = None
    if "take" in asked:
        count = int(asked["take"])
    part, parts = _two_numbers("part", asked.get("part", "1/1"))
    without: tuple[tuple[int, int], ...] = ()
    if "without" in asked:
        without = _parse_spans(asked["without"])
    chosen = ChosenRows(
        where=spec.where,
        start=int(asked.get("from", 0)),
        count=count,
        share=_two_numbers("fraction", asked.get("fraction", "0:1")),
        seed=int(asked.get("seed", 0)),
        part=(int(part), int(parts)),
        without=without,
    )
    other_settings = {key: value for key, value in spec.query.items() if key not in _SETTINGS}
    whole_spec = replace(spec, query=other_settings)
    return whole_spec, chosen


def _check_settings(spec: Spec, asked: Mapping[str, str]) -> None:
    """Refuse values without the form of their settings, and a seed where nothing is drawn.

    Raises:
        UsageError: naming the first of them.
    """
    for key, text in asked.items():
        if not _is_sound(key, text):
            form = _FORMS[key].words
            raise UsageError(f"{spec.where}: {key} {text!r} is not {form}")
    if "seed" in asked and "fraction" not in asked:
        raise UsageError(f"{spec.where}: seed= draws a fraction", hint="for example ?fraction=0:0.01&seed=1")


def _parse_spans(text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and the last place of each span of ``3,7-9``: (3, 3) and (7, 9)."""
    spans = []
    for span in text.split(","):
        first, _, last = span.partition("-")
        if not last:
            last = first
        spans.append((int(first), int(last)))
    return tuple(spans)


def without_places(spec: str, places: Iterable[int]) -> str:
    """Return the SPEC (the name of a data set, with settings behind ``?``) of a set without some of its samples.

    Args:
        spec: of the set, which may lack samples already (``without=3,7-9``).
        places: of the samples to leave out, counted among those that are there.
    """
    unwanted = set(places)
    text_before = parse_spec(spec).query.get("without")
    if text_before is None and not unwanted:
        return spec
    if text_before is None:
        return with_setting(spec, f"without={_spans_text(unwanted)}")

    missing: set[int] = set()
    for first, last in _parse_spans(text_before):
        missing.update(range(first, last + 1))
    left_out = missing | _places_in_whole(unwanted, missing)
    # By its key and not by its value, which the SPEC may spell in another way: %2C for a comma.
    setting = f"without={_spans_text(left_out)}"
    return re.sub(r"(?<=[?&])without=[^&]*", lambda _: setting, spec, count=1)


def _places_in_whole(numbers: Collection[int], missing: Collection[int]) -> set[int]:
    """Return the places in a whole set of samples that are counted without those that are missing.

    Args:
        numbers: of the samples, counted from 0 among those that are there.
        missing: places in the whole set that do not count.
    """
    places = set()
    present = (place for place in itertools.count() if place not in missing)
    last = max(numbers, default=-1)
    for number, place in enumerate(itertools.islice(present, last + 1)):
        if number in numbers:
            places.add(place)
    return places


def _spans_text(places: Iterable[int]) -> str:
    """Return some places as text, with spans of neighbours: ``3,7-9``."""
    spans: list[list[int]] = []  # the first and the last place of each
    place_before: int | None = None
    for place in sorted(places):
        if place_before is not None and place == place_before + 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
        place_before = place
    texts = []
    for first, last in spans:
        if first == last:
            texts.append(str(first))
        else:
            texts.append(f"{first}-{last}")
    return ",".join(texts)


def _two_numbers(key: str, text: str) -> tuple[Fraction, Fraction]:
    """Return the two numbers in a value of ``fraction`` or ``part``, which was checked to have the form of its key."""
    match = re.fullmatch(_FORMS[key].pattern, text)
    assert match is not None
    first, second = match.groups()
    return Fraction(first), Fraction(second)


def _is_sound(key: str, text: str) -> bool:
    """Return whether a setting has the form that its key wants, and its numbers are in order."""
    if re.fullmatch(_FORMS[key].pattern, text) is None:
        return False
    if key == "without":
        return all(first <= last for first, last in _parse_spans(text))
    if key == "fraction":
        low, high = _two_numbers(key, text)
        return low < high <= 1
    if key == "part":
        part, parts = _two_numbers(key, text)
        return 1 <= part <= parts
    if key == "take":
        return int(text) > 0
    return True
