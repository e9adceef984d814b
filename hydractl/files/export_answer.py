"""The answer of export (``hydractl.export/3``): files that run a model without hydractl, and how each was checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hydractl.files.results import Count, Record, Result, optional


class ExportCheck(Record):
    """The check of an exported file against the model; differences have three digits."""

    runtime: str
    """What ran the file."""
    inputs: Sequence[Mapping[str, Sequence[int]]]
    """The shapes of the inputs that it ran on."""
    max_abs: Mapping[str, float]
    """By output the largest difference; of a flag, or of a class in a prediction set, 1 where any differs."""
    tolerance: Mapping[str, float]
    """By output the largest difference that was allowed."""


class ExportedFileRecord(Record):
    """A file that is, or would be, exported."""

    format: str
    """Its format: `onnx` or `pt2`."""
    path: str
    """The file."""
    bytes: Count | None = optional("Its size; not in a dry run.")
    sha256: str | None = optional("SHA-256 of the file; not in a dry run.")
    check: ExportCheck | None = optional("How it was checked; not in a dry run.")


class ExportAnswer(Result):
    """What `hydractl export --json` prints."""

    schema_: Literal["hydractl.export/3"] = "hydractl.export/3"
    rows_in = "exports"
    model: str
    """Name of the model."""
    sha256: str | None = optional("SHA-256 of its checkpoint; not in a dry run.")
    arch: str
    """Its architecture."""
    members: Count
    """Number of its members."""
    exports: Sequence[ExportedFileRecord]
    """The files."""
