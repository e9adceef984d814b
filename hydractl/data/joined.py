"""Several inputs of one command as one data set: image files, lines of standard input, and whatever a SPEC opens."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable, with_numbers_if_repeated
from hydractl.data.opening import open_data
from hydractl.data.text import Texts
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec

STANDARD_INPUT = "-"


class JoinedSets(Dataset):
    """Several data sets, one after another, as one data set.

    Ids are those of the sets. If two samples share an id, every id gets the SPEC of its set in front, for example
    ``day1/:cat/3.jpg``. The samples of a set without labels get the label -1.

    Args:
        parts: the sets, at least one, all with the same kind of samples.
    """

    def __init__(self, parts: Sequence[Dataset]) -> None:
        """Join the ids and labels of the sets. The samples stay in their sets and are read there."""
        super().__init__(" ".join(part.spec for part in parts), "INPUT", _joined_ids(parts))
        first = parts[0]
        self.kind = first.kind
        self.is_encoded = any(part.is_encoded for part in parts)
        self.parts = list(parts)
        self.label_names = first.label_names
        self.left_out = sum((Counter(part.left_out) for part in parts), Counter())

        # Where each sample is: its set, and its index there. Labels, int64 [samples], are -1 in a set that has none.
        self._places = [(part, index) for part in parts for index in range(len(part))]
        if any(part.labels is not None for part in parts):
            self.labels = np.concatenate([_labels_or_minus_one(part) for part in parts])
        if first.skipped is not None:
            self.skipped = {}  # filled while samples are read; the index counts over all sets

    def _sample(self, i: int) -> Any:
        part, index = self._places[i]
        return part[index]

    def lengths(self) -> list[int] | None:
        """Return the lengths of the samples of all sets; None if one of the sets has no lengths."""
        lengths: list[int] = []
        for part in self.parts:
            lengths_of_part = part.lengths()
            if lengths_of_part is None:
                return None
            lengths += lengths_of_part
        return lengths


def _joined_ids(parts: Sequence[Dataset]) -> list[str]:
    """Return the ids of all sets, one after another.

    If two are equal, every id gets the SPEC of its set in front, e.g. ``day1/:cat/3.jpg``, and those that are still
    equal are numbered.
    """
    ids: list[str] = []
    for part in parts:
        ids += part.ids
    if len(set(ids)) == len(ids):
        return ids
    ids_with_spec = []
    for part in parts:
        ids_with_spec += [f"{part.spec}:{sample_id}" for sample_id in part.ids]
    return with_numbers_if_repeated(ids_with_spec)


def _labels_or_minus_one(part: Dataset) -> np.ndarray:
    """Return the labels of a set, int64 ``[samples]``; if it has none, -1 for each sample."""
    if part.labels is None:
        return np.full(len(part), -1, dtype=np.int64)
    return part.labels


def open_inputs(
    inputs: Sequence[str | DataSpec],
    *,
    reads: Mapping[str, str],
    labels: Sequence[str],
    limit: int | None = None,
    seed: int = 0,
    on_bad: str = "error",
) -> Dataset:
    """Return all inputs of a command as one data set. Labels that do not fit the model are left out.

    Args:
        inputs: image files, data sets, and ``-`` for standard input. Standard input has the path of an image in each
            line, or a text in each line for a model that reads texts. A single data set keeps its own ids.
        reads: maps the name of the model to what it reads, ``image`` or ``text``; exactly one entry.
        labels: the class names of the model; empty if it has none.
        limit: take only this many samples of each input; neighbouring image files count as one input.
        seed: seed of the random draw of samples from a set that is sorted by class.
        on_bad: what to do with a sample that cannot be read: ``error`` or ``skip``.

    Returns:
        The single input, or a :class:`JoinedSets` of all inputs.

    Raises:
        UsageError, InputError: as for :func:`hydractl.data.open_data`, and if standard input is empty.
    """
    ((model, kind_read),) = reads.items()
    parts: list[Dataset] = []  # the inputs as data sets

    # Image files that follow each other become one set, to which the limit applies as a whole.
    for are_image_files, neighbours in itertools.groupby(inputs, key=_is_image_file):
        if are_image_files:
            paths = [str(item) for item in neighbours]
            parts.append(_open_image_files(paths[:limit]))
            continue

        # Any other input is a set of its own.
        for item in neighbours:
            if str(item) == STANDARD_INPUT:
                part = _read_standard_input(kind_read, limit)
            else:
                part = open_data(
                    DataSpec.of_option("INPUT", str(item), getattr(item, "held", None)),
                    limit=limit,
                    seed=seed,
                    labels=labels,
                    ignore_labels=True,
                    reads=reads,
                    on_bad=on_bad,
                )
            parts.append(part)

    # Check and prepare every set. For sets that open_data opened this changes nothing.
    for part in parts:
        if part.kind != kind_read:
            raise InputError(f"{part.where} holds {part.kind}s, and {model} reads {kind_read}s")
        # Filled while samples are read; with None an unreadable sample is an error.
        part.skipped = {} if on_bad == "skip" else None
    if len(parts) == 1:
        return parts[0]
    return JoinedSets(parts)


def _is_image_file(item: str | DataSpec) -> bool:
    """Return whether an input is an existing file that ends like an image."""
    text = str(item)
    return text.lower().endswith(IMAGE_SUFFIXES) and Path(text).is_file()


def _open_image_files(paths: Sequence[str]) -> FileImages:
    """Return image files as a set. An id is the path; a repeated path gets ``#2``, ``#3``, ..."""
    names = [printable(path) for path in paths]
    ids = with_numbers_if_repeated(names)
    return FileImages("files", "INPUT", ids, paths)


def _read_standard_input(kind_read: str, limit: int | None) -> Dataset:
    """Open the images or texts that standard input lists, one per line; blank lines are skipped.

    Args:
        kind_read: what the model reads. ``text`` means that the lines are texts; otherwise they are paths of images.
        limit: take only this many lines from the start; None means all.

    Raises:
        InputError: if standard input is empty, or has texts that are not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("INPUT - : standard input is closed")

    # Read bytes, because file names need not be valid text.
    all_lines = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
    filled_lines = [line for line in all_lines if line.strip()]
    lines = filled_lines[:limit]
    if not lines:
        raise InputError("INPUT - : standard input is empty", hint="give a path or a text in each line")

    # For a model of images every line is a path.
    if kind_read != "text":
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
