"""The answer of export (``hydractl.export/2``): files that run a model without hydractl, and how each was checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hydractl.files.results import Count, Number, Record, Result, optional


class ExportCheck(Record):
    """The check of an exported file against the model; differences have three digits."""

    runtime: str
    """What ran the file."""
    inputs: Sequence[Mapping[str, Sequence[int]]]
    """The shapes of the inputs that it ran on."""
    probabilities_max_abs: float
    """The largest difference of an averaged probability."""
    member_logits_max_abs: float
    """The largest difference of a logit of a member."""
    max_abs_logit: float
    """The largest logit of the model, without its sign."""
    tolerance: float
    """The largest difference that is allowed."""
    score: str | None
    """The OOD score of the graph; null where it has none."""
    score_max_abs: Number
    """The largest difference of an OOD score; null without one."""
    score_tolerance: Number
    """The largest one that was allowed, of the largest score; null without one."""
    flags_changed: Count | None
    """Samples flagged otherwise, all that near the threshold; null without a threshold."""
    sets_changed: Count | None
    """Samples with another prediction set, likewise; null without sets."""


class ExportedFileRecord(Record):
    """A file that is, or would be, exported."""

    format: str
    """Its format: `onnx` or `pt2`."""
    path: str
    """The file."""
    bytes: Count | None = optional("Its size; not in a plan.")
    sha256: str | None = optional("SHA-256 of the file; not in a plan.")
    inputs: Mapping[str, str] | None = optional("By input its number format and shape; not in a plan.")
    outputs: Mapping[str, str] | None = optional("By output the same; not in a plan.")
    check: ExportCheck | None = optional("How it was checked; not in a plan.")


class ExportAnswer(Result):
    """What `hydractl export --json` prints."""

    schema_: Literal["hydractl.export/2"] = "hydractl.export/2"
    rows_in = "exports"
    model: str
    """Name of the model."""
    sha256: str | None = optional("SHA-256 of its checkpoint; not in a plan.")
    arch: str
    """Its architecture."""
    members: Count
    """Number of its members."""
    exports: Sequence[ExportedFileRecord]
    """The files."""
