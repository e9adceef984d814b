"""The metadata of an exported file: written, and read back with checks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from hydractl.errors import InputError
from hydractl.exports.formats import EXPORT_SCHEMA, FORMATS, kind_of
from hydractl.families import FAMILIES
from hydractl.families.reading import refused_as
from hydractl.files.description import Description
from hydractl.files.version import __version__
from hydractl.jsonio import canonical_json, parse_json, shown

_COUNT = re.compile(r"[0-9]{1,18}")
_MOST_PIXELS = 1 << 26
_MOST_TOKENS = 1 << 20
_NEEDED = ("family", "preprocess", "macs", "members", "format")


def metadata_of(description: Description, inputs: list[str], macs: int) -> dict[str, str]:
    """Return the metadata of an exported file, every value a text.

    Args:
        description: of the model.
        inputs: SHA-256 of the models it was made of.
        macs: multiply-adds of one sample.
    """
    labels = None if description.labels is None else list(description.labels)
    return {
        "schema": EXPORT_SCHEMA,
        "hydractl": __version__,
        "torch": torch.__version__.split("+")[0],
        "family": description.family,
        "arch": description.arch,
        "macs": str(macs),
        "members": str(len(description.masks)),
        "labels": json.dumps(labels, ensure_ascii=False),
        "preprocess": canonical_json(dict(description.preprocess)),
        "inputs": json.dumps(inputs),
    }


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an exported file, which is checked but for the numbers of its weights.

    Raises:
        InputError: it cannot be read, holds what no export of hydractl holds, or does not say what it is made of.
    """
    kind = kind_of(path)
    assert kind is not None
    with refused_as(f"cannot read {path}"):
        metadata = FORMATS[kind].metadata(path)
    hint = f"write it with export --format {kind}, of this version"
    if not metadata.keys() >= set(_NEEDED):
        raise InputError(f"{path} does not say what it is made of", hint=hint)
    problems = _metadata_problems(metadata, path)
    if problems:
        raise InputError(f"{path} says of itself what cannot be", hint=hint, problems=problems)
    if metadata["format"] != kind:
        raise InputError(f"{path} ends like a file of {kind} and says it is {shown(metadata['format'])}", hint=hint)
    return metadata


def _metadata_problems(metadata: Mapping[str, str], path: Path) -> list[str]:
    """List each value that :func:`metadata_of` would not write, a line each."""
    problems = []
    for key in ("macs", "members"):
        count = metadata[key]
        if _COUNT.fullmatch(count) is None:
            problems.append(f"{key} {shown(count)}")
    if metadata["family"] not in FAMILIES.names:
        problems.append(f"the unknown family {shown(metadata['family'])}")
    for key in ("labels", "inputs"):
        values = parse_json(metadata.get(key, "null"), f"{key} in {path}")
        if not _are_texts(values):
            problems.append(f"{key} {shown(metadata[key])}")

    preprocess = parse_json(metadata["preprocess"], f"preprocess in {path}")
    if not isinstance(preprocess, dict):
        problems.append(f"preprocess {shown(preprocess)}")
        return problems
    size = preprocess.get("input_size")
    if size is not None and not _are_sizes(size, _MOST_PIXELS):
        problems.append(f"images of {shown(size)}")
    tokens = preprocess.get("max_length")
    if tokens is not None and not _are_sizes([tokens], _MOST_TOKENS):
        problems.append(f"texts of {shown(tokens)} tokens")
    return problems


def _are_texts(values: object) -> bool:
    """Return whether this is a list of texts, or nothing."""
    if values is None:
        return True
    if not isinstance(values, list):
        return False
    return all(isinstance(value, str) for value in values)


def _are_sizes(sizes: object, most: int) -> bool:
    """Return whether these are positive whole numbers whose product is not absurd."""
    if not isinstance(sizes, list):
        return False
    for size in sizes:
        if type(size) is not int:
            return False
        if not 0 < size <= most:
            return False
    return math.prod(sizes) <= most
