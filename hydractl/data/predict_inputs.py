"""What ``predict`` reads: image files, lines of standard input, or whatever a SPEC opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable, with_numbers_if_repeated
from hydractl.data.opening import open_data
from hydractl.data.text import Texts
from hydractl.errors import InputError, UsageError, near_path
from hydractl.expressions.data_sets import DataSpec

STANDARD_INPUT = "-"


def open_inputs(
    inputs: Sequence[str | DataSpec],
    *,
    reads: Mapping[str, str],
    labels: Sequence[str],
    limit: int | None,
    seed: int,
    on_bad: str,
) -> Dataset:
    """Return the inputs of a command as a data set. Labels that do not fit the model are left out.

    Args:
        inputs: image files; or one data set; or ``-`` for standard input, which has the path of an image in each line,
            or a text in each line for a model that reads texts.
        reads: maps the name of the model to what it reads, ``image`` or ``text``; exactly one entry.
        labels: the class names of the model; empty if it has none.
        limit: take only this many samples.
        seed: seed of the random draw of samples from a set that is sorted by class.
        on_bad: what to do with a sample that cannot be read: ``error`` or ``skip``.

    Raises:
        UsageError, InputError: as for :func:`hydractl.data.open_data`, if there are several inputs of which one is no
            image file or missing, and if standard input is empty.
    """
    [(model, kind_read)] = reads.items()  # of the one model: its name, and "image" or "text"
    other_inputs = [item for item in inputs if not _is_image_file(item)]
    if len(inputs) > 1 and other_inputs:
        missing = [str(item) for item in other_inputs if str(item).lower().endswith(IMAGE_SUFFIXES)]
        if missing:
            raise InputError(f"INPUT {missing[0]}: no such file", hint=near_path(missing[0]))
        raise UsageError(
            f"INPUT {other_inputs[0]} is no image file: several inputs have to be such files",
            hint="give one data set, with a command for each, or the paths on standard input: predict MODEL -",
        )

    # A data set, which is checked where it is opened.
    first = inputs[0]  # if it is no image file, there is no other input, as was checked
    if other_inputs and str(first) != STANDARD_INPUT:
        spec = first if isinstance(first, DataSpec) else DataSpec.of_option("INPUT", first)
        return open_data(spec, limit=limit, seed=seed, labels=labels, ignore_labels=True, reads=reads, on_bad=on_bad)

    # Standard input, or image files.
    if other_inputs:
        dataset = _read_standard_input(kind_read, limit)
    else:
        paths = [str(item) for item in inputs]
        dataset = _open_image_files(paths[:limit])
    if dataset.kind != kind_read:
        raise InputError(f"{dataset.where} holds {dataset.kind}s, and {model} reads {kind_read}s")
    # Filled while samples are read; with None an unreadable sample is an error.
    dataset.skipped = {} if on_bad == "skip" else None
    return dataset


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
