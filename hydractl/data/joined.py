"""Several inputs of one command as one data set: image files, lines of standard input, and whatever a SPEC opens."""

from __future__ import annotations

import itertools
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable, with_numbers_if_repeated
from hydractl.data.opening import open_data
from hydractl.data.text import Texts
from hydractl.errors import InputError

STANDARD_INPUT = "-"


class JoinedSets(Dataset):
    """Data sets one after another, as one.

    Ids are those of the sets; where two sets share one, every id has the SPEC of its set before it, as in
    ``day1/:cat/3.jpg``. A set without labels leaves its samples without: their label is -1.

    Args:
        parts: the sets, at least one, all of the same kind of sample.
    """

    def __init__(self, parts: Sequence[Dataset]) -> None:
        """Join the ids and labels of the sets; their samples are read where they are."""
        specs = [part.spec for part in parts]
        super().__init__(" ".join(specs), "INPUT", _joined_ids(parts))
        first = parts[0]
        self.kind = first.kind
        self.parts = list(parts)
        self.label_names = first.label_names
        # Behind the last sample of each set, counted over all sets before it.
        sizes = [len(part) for part in parts]
        self._ends = list(itertools.accumulate(sizes))
        if any(part.labels is not None for part in parts):
            self.labels = np.concatenate([_labels_or_minus_one(part) for part in parts])
        if first.skipped is not None:
            self.skipped = {}

    def _place(self, i: int) -> tuple[Dataset, int]:
        """Return the set that has sample ``i``, and its place there."""
        number = bisect_right(self._ends, i)
        samples_before = 0
        if number > 0:
            samples_before = self._ends[number - 1]
        return self.parts[number], i - samples_before

    def _sample(self, i: int) -> Any:
        part, place = self._place(i)
        return part[place]

    def _content(self, i: int) -> Iterable[bytes]:
        part, place = self._place(i)
        return part._content(place)

    def lengths(self) -> list[int] | None:
        """Return the lengths of the samples of all sets; None where one of them has none."""
        lengths: list[int] = []
        for part in self.parts:
            lengths_of_part = part.lengths()
            if lengths_of_part is None:
                return None
            lengths += lengths_of_part
        return lengths


def _joined_ids(parts: Sequence[Dataset]) -> list[str]:
    """Return the ids of the samples of all sets; where two sets share one, each with the SPEC of its set before it."""
    ids = []
    for part in parts:
        ids += part.ids
    are_different = len(set(ids)) == len(ids)
    if are_different:
        return ids
    ids_with_spec = []
    for part in parts:
        ids_with_spec += [f"{part.spec}:{sample_id}" for sample_id in part.ids]
    return ids_with_spec


def _labels_or_minus_one(part: Dataset) -> np.ndarray:
    """Return the labels of a set, int64 ``[samples]``; -1 for each sample of one that has none."""
    if part.labels is None:
        return np.full(len(part), -1, dtype=np.int64)
    return part.labels


def open_inputs(
    texts: Sequence[str],
    *,
    reads: Mapping[str, str],
    labels: Sequence[str],
    limit: int | None = None,
    seed: int = 0,
    on_bad: str = "error",
) -> Dataset:
    """Open the inputs of a command that reads them once, without their labels where these are not the model's.

    Args:
        texts: image files, SPECs, and ``-`` for standard input: the path of an image in each line, or a text for a
            model that reads texts. An only SPEC is opened as it is, with the ids that it has everywhere.
        reads: the name of the model, and what it reads.
        labels: the names of its classes; empty where it has none.
        limit: only so many samples of each input; image files one after another are one.
        seed: draws them of a set sorted by class.
        on_bad: what becomes of an image that cannot be read: ``error`` or ``skip``.

    Returns:
        The only input, or all of them joined.

    Raises:
        UsageError, InputError: as :func:`hydractl.data.open_data`, or nothing is in standard input.
    """
    ((model, wanted),) = reads.items()
    open_spec = partial(
        open_data,
        option="INPUT",
        limit=limit,
        seed=seed,
        labels=labels,
        ignore_labels=True,
        reads=reads,
        on_bad=on_bad,
        read_once=True,
    )
    parts: list[Dataset] = []
    for are_files, group in itertools.groupby(texts, key=_is_image_file):
        neighbours = list(group)
        if are_files:
            parts.append(_open_image_files(neighbours[:limit]))
            continue
        for text in neighbours:
            if text == STANDARD_INPUT:
                parts.append(_read_standard_input(wanted, limit))
            else:
                parts.append(open_spec(text))
    for part in parts:
        if part.kind != wanted:
            raise InputError(f"{part.where} holds {part.kind}s, and {model} reads {wanted}s")
        part.skipped = {} if on_bad == "skip" else None
    if len(parts) == 1:
        return parts[0]
    return JoinedSets(parts)


def _is_image_file(text: str) -> bool:
    """Return whether an input is a file with the ending of an image."""
    return text.lower().endswith(IMAGE_SUFFIXES) and Path(text).is_file()


def _open_image_files(paths: Sequence[str]) -> FileImages:
    """Return image files as a set, each with its path as its id; a path that comes again gets ``#2``, ``#3``, ..."""
    names = [printable(path) for path in paths]
    ids = with_numbers_if_repeated(names)
    return FileImages("files", "INPUT", ids, paths)


def _read_standard_input(wanted: str, limit: int | None) -> Dataset:
    """Open what standard input lists: paths of images, or texts, one a line; empty lines are passed over.

    Args:
        wanted: what the model reads: ``text`` for texts, else images.
        limit: so many lines, the first ones; None: all.

    Raises:
        InputError: it lists nothing, or texts that are not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("INPUT - : standard input is closed")
    # As bytes: the name of a file may be no text.
    all_lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    lines = [line for line in all_lines if line.strip()]
    lines = lines[:limit]
    if not lines:
        raise InputError("INPUT - : standard input is empty", hint="give a path or a text in each line")
    if wanted != "text":
        paths = [os.fsdecode(line) for line in lines]
        return _open_image_files(paths)
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError(f"INPUT - : text {number} is not UTF-8") from None
    ids = [f"-#{number}" for number in range(len(texts))]
    return Texts("-", "INPUT -", ids, texts)
