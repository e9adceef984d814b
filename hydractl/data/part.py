"""A part of a data set: ``?part=K/N`` after the SPEC of any set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hydractl.data.base import PAIRS, Dataset, Spec
from hydractl.errors import InputError, UsageError

_PART = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Part(Dataset):
    """Some samples of a data set, with the ids, labels and fingerprints that they have in it.

    Args:
        whole: the data set, with its labels.
        spec: of the part.
        rows: places of its samples in the data set.

    Raises:
        UsageError: for pairs of images and captions.
    """

    def __init__(self, whole: Dataset, spec: str, rows: Sequence[int]) -> None:
        if whole.kind == PAIRS:
            raise UsageError(f"{whole.where}: {PAIRS}s are not divided", hint="write the part as a table of its own")
        super().__init__(spec, whole.where, [whole.ids[row] for row in rows])
        self.kind, self._whole, self._rows = whole.kind, whole, list(rows)
        self.labels = None if whole.labels is None else whole.labels[self._rows]
        self.label_names, self.label_hint = whole.label_names, whole.label_hint
        self.skipped = None if whole.skipped is None else {}

    def _sample(self, i: int) -> Any:
        return self._whole._sample(self._rows[i])

    def _content(self, i: int) -> Iterable[bytes]:
        return self._whole._content(self._rows[i])

    def _sample_fingerprint(self, i: int) -> str:
        return self._whole._sample_fingerprint(self._rows[i])

    def lengths(self) -> list[int] | None:
        """Of the samples of the part."""
        lengths = self._whole.lengths()
        return None if lengths is None else [lengths[row] for row in self._rows]


def take_part(spec: Spec) -> tuple[Spec, tuple[int, int] | None]:
    """The SPEC of the whole set, and the K and N of ``part=K/N`` in its query: samples K - 1, K - 1 + N, ...

    Raises:
        UsageError: for what is no part.
    """
    if "part" not in spec.query:
        return spec, None
    text = spec.query["part"]
    match = _PART.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"{spec.where}: part {text!r} is not K/N with K from 1 to N", hint="for example ?part=1/2")
    rest = {key: value for key, value in spec.query.items() if key != "part"}
    return replace(spec, query=rest), (int(match[1]), int(match[2]))


def part_rows(total: int, part: tuple[int, int], where: str) -> range:
    """Places of the samples of part K of N.

    Raises:
        InputError: the set has no such sample.
    """
    rows = range(part[0] - 1, total, part[1])
    if not rows:
        raise InputError(f"{where}: part {part[0]}/{part[1]} is empty, the set has {total} samples")
    return rows
