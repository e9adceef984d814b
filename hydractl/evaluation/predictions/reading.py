"""Finished predictions files, read piece by piece. What is damaged is refused before any logit is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluation.predictions.store import (
    LOGIT_FORMATS,
    PREDICTIONS_SCHEMA,
    SetEntry,
    is_empty,
    ranges,
    score_tensor,
    tensor_names,
)
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import Header, read_header
from hydractl.files.predictions_header import PredictedModelRecord, PredictedSetRecord, PredictionsRecord
from hydractl.jsonio import shown

_HINT = "write it again with eval --predictions"


class LogitsBatch(NamedTuple):
    """Some samples B of a data set.

    Attributes:
        rows: which samples, ``[B]``.
        logits: of every member, ``[M, B, C]``.
        scores: by name the OOD scores on features, ``[M, B]``.
    """

    rows: Sequence[int]
    logits: npt.NDArray[Any]
    scores: Mapping[str, npt.NDArray[np.float64]]


@dataclass
class Predictions:
    """A finished predictions file.

    Attributes:
        path: where it is.
        model: what the header says of the model.
        sets: its data sets, their ids and labels read.
    """

    path: Path
    model: PredictedModelRecord
    sets: list[SetEntry]
    _tensors: FileTensors = field(repr=False)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file, as hex."""
        return self._tensors.scan().sha256

    def shape(self, index: int) -> tuple[int, int, int]:
        """Return ``(members, N, classes)`` of a set."""
        members, samples, classes = self._tensors.info(tensor_names(index)["logits"]).shape
        return members, samples, classes

    @property
    def origin(self) -> str:
        """The name of the file in messages."""
        return str(self.path)

    @property
    def scores(self) -> list[str]:
        """The OOD scores on features that it holds."""
        return list(self.model.feature_scores or ())

    def piece(self, index: int, rows: range, score: str | None = None) -> npt.NDArray[Any]:
        """Return the logits ``[members, rows, classes]`` of neighbouring samples of a set, missing ones too.

        Args:
            index: of the set.
            rows: the samples.
            score: a score instead, ``[members, rows, 1]``.
        """
        name = tensor_names(index)["logits"] if score is None else score_tensor(index, score)
        members, samples, columns = self._tensors.info(name).shape
        pieces = []
        for member in range(members):
            first_row = member * samples + rows.start
            end_row = member * samples + rows.stop
            flat = self._tensors.read_piece(name, first_row * columns, end_row * columns)
            pieces.append(flat.numpy().reshape(len(rows), columns))
        return np.stack(pieces)

    def batches(self, index: int) -> Iterator[LogitsBatch]:
        """Yield a set in pieces.

        Samples that could not be read (``--on-bad skip``) have no logits, and are left out.
        """
        return in_pieces(self.shape(index), lambda rows, score: self.piece(index, rows, score), self.scores)


def in_pieces(
    shape: tuple[int, int, int], piece: Callable[[range, str | None], npt.NDArray[Any]], scores: Sequence[str]
) -> Iterator[LogitsBatch]:
    """Yield pieces that memory has room for, without the samples that a member has no logits of.

    Args:
        shape: ``(members, N, classes)``.
        piece: returns the logits of neighbouring samples, or one of their scores.
        scores: those that are kept.
    """
    for rows in ranges(shape):
        logits = piece(rows, None)
        present = ~is_empty(logits)
        if not present.any():
            continue
        present_rows = [row for row, is_present in zip(rows, present, strict=True) if is_present]
        present_scores = {score: piece(rows, score)[:, present, 0] for score in scores}
        yield LogitsBatch(present_rows, logits[:, present], present_scores)


def is_predictions(path: str | Path) -> bool:
    """Return whether a file describes itself as predictions; False for what is no safetensors file."""
    if not str(path).endswith((".st", ".safetensors")) or not os.path.isfile(path):
        return False
    try:
        description = read_header(path).description or {}
    except InputError:
        return False
    return str(description.get("schema")).startswith("hydractl.predictions/")


# --- opening ----------------------------------------------------------------------------------------------------------


def read_predictions(path: str | Path) -> Predictions:
    """Open a predictions file; its logits are read later.

    Raises:
        InputError: for a file of another kind or version, or one whose parts do not fit each other.
    """
    from hydractl.files.documents import PredictionsHeader, check

    path = Path(path)
    header = read_header(path)
    document = header.description or {}
    if document.get("schema") != PREDICTIONS_SCHEMA:
        raise InputError(f"{path} has the schema {shown(document.get('schema'))}, expected {PREDICTIONS_SCHEMA!r}")
    tensors = FileTensors(path, header)
    check(document, PredictionsHeader, f"{path} is broken", _HINT)
    record = PredictionsRecord.from_json(document)
    model = record.model
    sets, problems = _read_sets(record.sets, header, tensors, model.feature_scores or ())
    if not problems:
        shapes = [tensors.info(tensor_names(index)["logits"]).shape for index in range(len(sets))]
        problems += _problems_between_sets([(dataset.role, dataset.name) for dataset in sets], shapes)
        classes = shapes[0][2]
        if model.labels is not None and len(model.labels) != classes:
            problems.append(f"its model has {len(model.labels)} labels and {classes} classes")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)
    return Predictions(path, model, sets, tensors)


def _read_sets(
    entries: Sequence[PredictedSetRecord], header: Header, tensors: FileTensors, scores: Sequence[str]
) -> tuple[list[SetEntry], list[str]]:
    """Return the data sets that are whole, and what is wrong with the others."""
    sets: list[SetEntry] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        problem = _set_problem(entry, index, header, scores)
        if problem is not None:
            problems.append(f"set {index}: {problem}")
            continue
        ids = _read_ids(tensors, index)
        if ids is None:
            problems.append(f"set {index}: its ids are broken")
            continue
        names = tensor_names(index)
        labels = tensors.read(names["labels"]).numpy() if entry.labelled else None
        classes = header.tensors[names["logits"]].shape[2]
        if labels is not None and len(labels):
            all_are_classes = labels.min() >= 0 and labels.max() < classes
            if not all_are_classes:
                problems.append(f"set {index}: a label is outside 0..{classes - 1}")
        dataset = SetEntry(
            name=entry.name,
            role=entry.role,
            group=entry.group,
            ids=ids,
            labels=labels,
            fingerprint=entry.fingerprint,
            seen=entry.seen,
        )
        sets.append(dataset)
    return sets, problems


def _read_ids(tensors: FileTensors, index: int) -> list[str] | None:
    """Return the ids of a set; None where their bytes do not end where the file says."""
    names = tensor_names(index)
    ends = tensors.read(names["id_ends"]).numpy()
    text = tensors.read(names["ids"]).numpy().tobytes()
    is_rising = not (np.diff(ends, prepend=0) < 0).any()
    is_complete = not len(ends) or ends[-1] == len(text)
    if not is_rising or not is_complete:
        return None
    ids = []
    start = 0
    for end in ends.tolist():
        ids.append(text[start:end].decode("utf-8", "surrogateescape"))
        start = end
    return ids


def _set_problem(entry: PredictedSetRecord, index: int, header: Header, scores: Sequence[str]) -> str | None:
    """Return where the tensors of a set are not what the header says of it; None where they are."""
    names = tensor_names(index)
    samples = entry.n
    logits = header.tensors.get(names["logits"])
    no_logits = f"it has no logits of {samples} samples"
    if logits is None or logits.dtype not in LOGIT_FORMATS:
        return no_logits
    if len(logits.shape) != 3 or logits.shape[1] != samples:
        return no_logits
    members, _, classes = logits.shape
    if min(members, classes) < 1:
        return "its logits have no member or no class"
    for score in scores:
        if not _is_there(header, score_tensor(index, score), "F64", (members, samples, 1)):
            return f"its {score} are missing or of another shape"
    if not _is_there(header, names["id_ends"], "I64", (samples,)):
        return "its id_ends are missing or of another shape"
    if entry.labelled and not _is_there(header, names["labels"], "I64", (samples,)):
        return "its labels are missing or of another shape"
    ids = header.tensors.get(names["ids"])
    if ids is None or ids.dtype != "U8" or len(ids.shape) != 1:
        return "it has no ids"
    return None


def _is_there(header: Header, name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether a file has a tensor of this type and shape."""
    info = header.tensors.get(name)
    return info is not None and info.dtype == dtype and info.shape == shape


def _problems_between_sets(sets: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[str]:
    """List what is wrong with the data sets (role and name) taken together.

    Args:
        shapes: ``(members, N, classes)`` of each.
    """
    problems = []
    roles = [role for role, _ in sets]
    if len(set(sets)) < len(sets) or roles.count("id") != 1:
        problems.append("it has no one ID set, or two sets of one name")
    for role, name in sets:
        is_misnamed = (role == "id") != (name == "id")
        is_reserved = role == "ood" and name == "edges"  # a key beside the sets in histograms of scores
        if is_misnamed or is_reserved:
            problems.append(f"the set of the role {role} has the name {shown(name)}")
    members_and_classes = {(shape[0], shape[2]) for shape in shapes}
    if len(members_and_classes) > 1:
        problems.append("its sets are of different numbers of members or classes")
    severities: dict[str, set[str]] = {}  # by corruption
    for role, name in sets:
        if role == "corruption":
            kind, _, severity = name.rpartition("/")
            severities.setdefault(kind, set()).add(severity)
    if any(of_kind != set().union(*severities.values()) for of_kind in severities.values()):
        problems.append("its corruptions are of different severities")
    return problems
