"""Finished predictions files, read piece by piece. What is damaged is refused before any logit is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    """The logits of some samples of a data set.

    Attributes:
        rows: the numbers of the samples in the data set, ``[B]``.
        logits: the logits of every member, ``[M, B, C]``.
        scores: the OOD scores on features, each ``[M, B]``, by name.
    """

    rows: Sequence[int]
    logits: npt.NDArray[Any]
    scores: Mapping[str, npt.NDArray[np.float64]]


@dataclass
class Predictions:
    """A finished predictions file.

    Attributes:
        path: the path of the file.
        model: the record of the model in the header.
        sets: its data sets, with their ids and labels.
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
        name = tensor_names(index)["logits"]
        members, samples, classes = self._tensors.info(name).shape
        return members, samples, classes

    @property
    def origin(self) -> str:
        """The name of the file in messages."""
        return str(self.path)

    @property
    def scores(self) -> list[str]:
        """The names of the OOD scores on features that the file holds."""
        return list(self.model.feature_scores or ())

    def piece(self, index: int, rows: range, score: str | None = None) -> npt.NDArray[Any]:
        """Return the logits ``[members, rows, classes]`` of neighbouring samples of a set, missing ones too.

        Args:
            index: the number of the set in the file.
            rows: the samples.
            score: the name of a score on features to return instead, ``[members, rows, 1]``.
        """
        if score is None:
            name = tensor_names(index)["logits"]
        else:
            name = score_tensor(index, score)

        # The samples of one member lie behind those of the one before.
        members, samples, columns = self._tensors.info(name).shape
        pieces = []
        for member in range(members):
            first_row = member * samples + rows.start
            end_row = member * samples + rows.stop
            flat = self._tensors.read_piece(name, first_row * columns, end_row * columns)
            values = flat.numpy().reshape(len(rows), columns)
            pieces.append(values)
        return np.stack(pieces)

    def batches(self, index: int) -> Iterator[LogitsBatch]:
        """Yield the logits of a set in pieces that fit into memory.

        Samples that could not be read (``--on-bad skip``) have no logits, and are left out.
        """
        piece_of_set = partial(self.piece, index)
        return in_pieces(self.shape(index), piece_of_set, self.scores)


def in_pieces(
    shape: tuple[int, int, int], piece: Callable[[range, str | None], npt.NDArray[Any]], scores: Sequence[str]
) -> Iterator[LogitsBatch]:
    """Yield logits in pieces that fit into memory, without the samples for which a member has no logits.

    Args:
        shape: ``(members, N, classes)``.
        piece: returns the logits ``[members, rows, classes]`` of neighbouring samples, or, given the name of a score,
            their scores ``[members, rows, 1]``.
        scores: the names of the scores that are stored.
    """
    for rows in ranges(shape):
        logits = piece(rows, None)
        is_present = ~is_empty(logits)  # [rows]
        if not is_present.any():
            continue
        present_rows = [row for row, present in zip(rows, is_present, strict=True) if present]
        present_logits = logits[:, is_present]
        present_scores = {}
        for score in scores:
            values = piece(rows, score)  # [members, rows, 1]
            present_scores[score] = values[:, is_present, 0]
        yield LogitsBatch(present_rows, present_logits, present_scores)


def is_predictions(path: str | Path) -> bool:
    """Return whether a file describes itself as predictions; False for a file that is not in safetensors format."""
    if not str(path).endswith((".st", ".safetensors")):
        return False
    if not os.path.isfile(path):
        return False
    try:
        header = read_header(path)
    except InputError:  # no safetensors header, whatever the file is called
        return False
    description = header.description or {}
    schema = str(description.get("schema"))
    return schema.startswith("hydractl.predictions/")


# --- opening ----------------------------------------------------------------------------------------------------------


def read_predictions(path: str | Path) -> Predictions:
    """Open a predictions file: its header, ids and labels are read and checked now, its logits later.

    Raises:
        InputError: for a file of another kind or version, or one whose parts do not fit each other; it lists all
            problems.
    """
    from hydractl.files.documents import PredictionsHeader, check

    # The header by itself.
    path = Path(path)
    header = read_header(path)
    document = header.description or {}
    schema = document.get("schema")
    if schema != PREDICTIONS_SCHEMA:
        raise InputError(f"{path} has the schema {shown(schema)}, expected {PREDICTIONS_SCHEMA!r}")
    tensors = FileTensors(path, header)
    check(document, PredictionsHeader, f"{path} is broken", _HINT)
    record = PredictionsRecord.from_json(document)
    model = record.model

    # Each data set by itself, and all of them together where each is sound.
    sets, problems = _read_sets(record.sets, header, tensors, model.feature_scores or ())
    if not problems:
        shapes = []
        for index in range(len(sets)):
            logits_name = tensor_names(index)["logits"]
            shapes.append(tensors.info(logits_name).shape)
        roles_and_names = [(dataset.role, dataset.name) for dataset in sets]
        problems += _problems_between_sets(roles_and_names, shapes)
        classes = shapes[0][2]
        if model.labels is not None and len(model.labels) != classes:
            problems.append(f"its model has {len(model.labels)} labels and {classes} classes")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)
    return Predictions(path, model, sets, tensors)


def _read_sets(
    entries: Sequence[PredictedSetRecord], header: Header, tensors: FileTensors, scores: Sequence[str]
) -> tuple[list[SetEntry], list[str]]:
    """Return the data sets whose tensors could be read, and a sentence on each problem; ``scores`` are on features."""
    sets: list[SetEntry] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        problem = _first_problem_of_set(entry, index, header, scores)
        if problem is not None:
            problems.append(f"set {index}: {problem}")
            continue
        ids = _read_ids(tensors, index)
        if ids is None:
            problems.append(f"set {index}: its ids are broken")
            continue

        names = tensor_names(index)
        labels = None
        if entry.labelled:
            labels = tensors.read(names["labels"]).numpy()
        _, _, classes = header.tensors[names["logits"]].shape
        if labels is not None and len(labels):
            lowest = labels.min()
            highest = labels.max()
            if lowest < 0 or highest >= classes:
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
    """Return the ids of a set; None if the stored positions at which they end do not cut their text into ids.

    The ids stand in one text without separators, and the positions must rise up to its length.
    """
    names = tensor_names(index)
    ends = tensors.read(names["id_ends"]).numpy()
    text = tensors.read(names["ids"]).numpy().tobytes()

    lengths = np.diff(ends, prepend=0)
    if (lengths < 0).any():
        return None
    has_ids = len(ends) > 0
    if has_ids and ends[-1] != len(text):
        return None

    ids = []
    start = 0
    for end in ends.tolist():
        encoded = text[start:end]
        ids.append(encoded.decode("utf-8", "surrogateescape"))
        start = end
    return ids


def _first_problem_of_set(entry: PredictedSetRecord, index: int, header: Header, scores: Sequence[str]) -> str | None:
    """Return the first problem with the tensors of a set, compared with its entry in the header; None if all fit."""
    names = tensor_names(index)
    samples = entry.n

    # The logits [members, samples, classes].
    logits = header.tensors.get(names["logits"])
    no_logits = f"it has no logits of {samples} samples"
    if logits is None or logits.dtype not in LOGIT_FORMATS:
        return no_logits
    if len(logits.shape) != 3 or logits.shape[1] != samples:
        return no_logits
    members, _, classes = logits.shape
    if min(members, classes) < 1:
        return "its logits have no member or no class"

    # All that goes with them.
    for score in scores:
        if not _has_tensor(header, score_tensor(index, score), "F64", (members, samples, 1)):
            return f"its {score} are missing or of another shape"
    if not _has_tensor(header, names["id_ends"], "I64", (samples,)):
        return "its id_ends are missing or of another shape"
    if entry.labelled and not _has_tensor(header, names["labels"], "I64", (samples,)):
        return "its labels are missing or of another shape"
    ids = header.tensors.get(names["ids"])
    if ids is None or ids.dtype != "U8" or len(ids.shape) != 1:
        return "it has no ids"
    return None


def _has_tensor(header: Header, name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether a file has a tensor of this type and shape."""
    info = header.tensors.get(name)
    if info is None:
        return False
    return info.dtype == dtype and info.shape == shape


def _problems_between_sets(sets: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[str]:
    """Return the problems of the data sets taken together.

    Args:
        sets: the role and the name of each.
        shapes: the shape of the logits of each, ``(members, N, classes)``.
    """
    problems = []
    has_repeats = len(set(sets)) < len(sets)
    roles = [role for role, _ in sets]
    if has_repeats or roles.count("id") != 1:
        problems.append("it has no one ID set, or two sets of one name")

    for role, name in sets:
        is_misnamed = (role == "id") != (name == "id")
        is_reserved = role == "ood" and name == "edges"  # a key beside the sets in histograms of scores
        if is_misnamed or is_reserved:
            problems.append(f"the set of the role {role} has the name {shown(name)}")

    members_and_classes = {(members, classes) for members, _, classes in shapes}
    if len(members_and_classes) > 1:
        problems.append("its sets are of different numbers of members or classes")

    # Means over corruptions are taken severity by severity, so that each corruption needs all of them.
    corrupted_names = [name for role, name in sets if role == "corruption"]
    if not _have_same_severities(corrupted_names):
        problems.append("its corruptions are of different severities")
    return problems


def _have_same_severities(names: Sequence[str]) -> bool:
    """Return whether all corruptions have the same severities, from the names ``CORRUPTION/SEVERITY`` of their sets."""
    severities_by_corruption: dict[str, set[str]] = {}
    for name in names:
        corruption, _, severity = name.rpartition("/")
        severities_by_corruption.setdefault(corruption, set()).add(severity)
    all_severities = set().union(*severities_by_corruption.values())
    return all(severities == all_severities for severities in severities_by_corruption.values())
