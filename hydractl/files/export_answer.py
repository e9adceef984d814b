"""The answer of export (``hydractl.export/2``): files that run a model without hydractl, and how each was checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, described, needed


@dataclass(frozen=True, kw_only=True)
class ExportCheck(Record, form="ExportCheck"):
    """The check of an exported file against the model; differences have three digits."""

    runtime: str = needed("What ran the file.")
    inputs: Sequence[Mapping[str, Sequence[int]]] = needed("The shapes of the inputs that it ran on.")
    probabilities_max_abs: float = needed("The largest difference of an averaged probability.")
    member_logits_max_abs: float = needed("The largest difference of a logit of a member.")
    max_abs_logit: float = needed("The largest logit of the model, without its sign.")
    tolerance: float = needed("The largest difference that is allowed.")
    score: str | None = needed("The OOD score of the graph; null where it has none.")
    score_max_abs: Number = needed("The largest difference of an OOD score; null without one.")
    score_tolerance: Number = needed("The largest one that was allowed, of the largest score; null without one.")
    flags_changed: Count | None = needed(
        "Samples flagged otherwise, all that near the threshold; null without a threshold."
    )
    sets_changed: Count | None = needed("Samples with another prediction set, likewise; null without sets.")


@dataclass(frozen=True, kw_only=True)
class ExportedFileRecord(Record, form="ExportedFile"):
    """A file that is, or would be, exported."""

    format: str = needed("Its format: `onnx` or `pt2`.")
    path: str = needed("The file.")
    data: str | None = described("The file that holds its weights, where that is another.")
    bytes: Count | None = described("Its size; not in a plan.")
    sha256: str | None = described("SHA-256 of the file; not in a plan.")
    inputs: Mapping[str, str] | None = described("By input its number format and shape; not in a plan.")
    outputs: Mapping[str, str] | None = described("By output the same; not in a plan.")
    check: ExportCheck | None = described("How it was checked; not in a plan.")


@dataclass(frozen=True, kw_only=True)
class ExportAnswer(Record, form="Export"):
    """What `hydractl export --json` prints."""

    schema: Literal["hydractl.export/2"] = needed(SCHEMA_TEXT, "hydractl.export/2")
    model: str = needed("Name of the model.")
    sha256: str | None = described("SHA-256 of its checkpoint; not in a plan.")
    arch: str = needed("Its architecture.")
    members: Count = needed("Number of its members.")
    exports: Sequence[ExportedFileRecord] = needed("The files.")
    dry_run: bool | None = described("True in a plan.")
