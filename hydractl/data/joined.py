"""Several inputs of one command as one data set: image files, lines of standard input, and whatever a SPEC opens."""

from __future__ import annotations

import itertools
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable
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
        ids = []
        for part in parts:
            ids += part.ids
        if len(set(ids)) < len(ids):
            ids = []
            for part in parts:
                ids += [f"{part.spec}:{sample_id}" for sample_id in part.ids]
        super().__init__(" ".join(part.spec for part in parts), "INPUT", ids)
        self.kind = parts[0].kind
        self.parts = list(parts)
        self.label_names = parts[0].label_names
        self._ends = list(itertools.accumulate(len(part) for part in parts))
        if any(part.labels is not None for part in parts):
            self.labels = np.concatenate([_labels_of(part) for part in parts])
        if parts[0].skipped is not None:
            self.skipped = {}

    def _place(self, i: int) -> tuple[Dataset, int]:
        """Return the set that has sample ``i``, and its place there."""
        number = bisect_right(self._ends, i)
        first = self._ends[number - 1] if number else 0
        return self.parts[number], i - first

    def _sample(self, i: int) -> Any:
        part, place = self._place(i)
        return part[place]

    def _content(self, i: int) -> Iterable[bytes]:
        part, place = self._place(i)
        return part._content(place)

    def lengths(self) -> list[int] | None:
        """Return those of all sets; None where one of them has none."""
        lengths: list[int] = []
        for part in self.parts:
            of_part = part.lengths()
            if of_part is None:
                return None
            lengths += of_part
        return lengths


def _labels_of(part: Dataset) -> np.ndarray:
    """Return the labels of a set, -1 for each sample of one that has none."""
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
        lines: gives those of standard input.

    Raises:
        UsageError, InputError: as :func:`hydractl.data.open_data`, or nothing is in standard input.
    """
    (wanted,) = reads.values()
    parts: list[Dataset] = []
    for is_file, group in itertools.groupby(texts, key=_is_image_file):
        if is_file:
            parts.append(_image_files(list(group)[:limit]))
            continue
        for text in group:
            if text == STANDARD_INPUT:
                parts.append(_standard_input(wanted, limit))
                continue
            parts.append(
                open_data(
                    text,
                    option="INPUT",
                    limit=limit,
                    seed=seed,
                    labels=labels,
                    ignore_labels=True,
                    reads=reads,
                    on_bad=on_bad,
                    read_once=True,
                )
            )
    for part in parts:
        if part.kind != wanted:
            name = next(iter(reads))
            raise InputError(f"{part.where} holds {part.kind}s, and {name} reads {wanted}s")
        part.skipped = {} if on_bad == "skip" else None
    return parts[0] if len(parts) == 1 else JoinedSets(parts)


def _is_image_file(text: str) -> bool:
    return text.lower().endswith(IMAGE_SUFFIXES) and Path(text).is_file()


def _image_files(paths: Sequence[str]) -> FileImages:
    """Return image files as a set, each with its path as its id; a path that comes again gets ``#2``, ``#3``, ..."""
    times_met: dict[str, int] = {}
    ids = []
    for path in paths:
        name = printable(path)
        times_met[name] = times_met.get(name, 0) + 1
        ids.append(name if times_met[name] == 1 else f"{name}#{times_met[name]}")
    return FileImages("files", "INPUT", ids, paths)


def _standard_input(wanted: str, limit: int | None) -> Dataset:
    """Return what standard input lists: paths of images, or texts, one a line; empty lines are passed over.

    Raises:
        InputError: it lists nothing, or texts that are not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("INPUT - : standard input is closed")
    # As bytes: the name of a file may be no text.
    lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    lines = [line for line in lines if line.strip()][:limit]
    if not lines:
        raise InputError("INPUT - : standard input is empty", hint="give a path or a text in each line")
    if wanted != "text":
        return _image_files([os.fsdecode(line) for line in lines])
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError(f"INPUT - : text {number} is not UTF-8") from None
    ids = [f"-#{number}" for number in range(len(texts))]
    return Texts("-", "INPUT -", ids, texts)
