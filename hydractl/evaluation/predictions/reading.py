"""Reads finished predictions files piece by piece; damage is reported before any logit is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hydractl.errors import InputError
from hydractl.evaluation.predictions.store import (
    LOGIT_FORMATS,
    PREDICTIONS_SCHEMA,
    LogitsBatch,
    is_empty,
    ranges,
    read_samples,
    tensor_infos,
    tensor_name,
)
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, TRAIN, EvalSet
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import Header, read_header
from hydractl.files.predictions_header import PredictedModelRecord, PredictedSetRecord, PredictionsRecord
from hydractl.jsonio import shown
from hydractl.model.prediction import Chosen

_HINT = "write it again with eval --predictions"


class Predictions(LogitsProvider):
    """The stored predictions of a model, as a row.

    Args:
        tensors: the file.
        model: the record of the model in its header.
        sets: the data sets, with their ids and labels.
    """

    def __init__(self, tensors: FileTensors, model: PredictedModelRecord, sets: Sequence[EvalSet]) -> None:
        super().__init__(model)
        self.origin = str(tensors.path)
        self.sets = sets
        self._tensors = tensors
        self.members, _, self.classes = self.shape(0)

        # No model runs, so there are no inputs (images or texts) to read, and no list of the samples that it has seen:
        # already_seen() returns the stored number.
        self.reads = None
        self.seen = []

        # What was fitted for the model, e.g. a temperature, and the scores on features: their values are in the file.
        self.stored = Chosen.of(model.to_dict(), self.origin)
        self.on_features = list(model.feature_scores or ())
        self.scores_fitted_on = model.fitted_on

    @property
    def sha256(self) -> str | list[str] | None:
        """The SHA-256 of the model that made the predictions, or a list for several models."""
        return self.record.sha256

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of the logits of the set at an index, ``(members, N, classes)``."""
        return self._tensors.info(tensor_name(index, "logits")).shape

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets in the file, the in-distribution (ID) set first."""
        test_sets = [dataset for dataset in self.sets if dataset.role in (ID, OOD, CORRUPTION)]
        # The sort is stable, so all other sets stay in their order.
        test_sets.sort(key=lambda dataset: dataset.role != ID)
        # already_seen() returns the stored number.
        return [replace(dataset, seen=0, spec=self.origin) for dataset in test_sets]

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Raise an error if a data set (except training data) is not in the file with exactly the same samples."""
        needed = [dataset for dataset in sets if dataset.role != TRAIN]
        missing_names = [dataset.name for dataset in needed if self._index_of_set(dataset) is None]
        if missing_names:
            names_in_file = ", ".join(dataset.name for dataset in self.sets)
            raise InputError(
                f"{self.origin} has no predictions of {', '.join(missing_names)}",
                hint=f"it has {names_in_file}; a set with other samples, labels or order is another set",
            )

    def already_seen(self, dataset: EvalSet) -> int:
        """Return the number of seen samples that is stored in the file; 0 if the file does not have the set."""
        index = self._index_of_set(dataset)
        return 0 if index is None else self.sets[index].seen

    def _index_of_set(self, dataset: EvalSet) -> int | None:
        """Return the index of a set with the same samples and labels, best one of the same name; None without one."""
        same = [index for index, stored in enumerate(self.sets) if stored.fingerprint == dataset.fingerprint]
        return min(same, key=lambda index: self.sets[index].name != dataset.name, default=None)

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield the stored logits of all samples in a set, in pieces that fit into memory; ``rows`` is ignored.

        Samples without logits, which could not be read (``--on-bad skip``), are left out.
        """
        index = self._index_of_set(dataset)
        assert index is not None  # check_sets() was called before
        for piece_rows in ranges(self.shape(index)):
            logits = read_samples(self._tensors, tensor_name(index, "logits"), piece_rows)
            has_logits = ~is_empty(logits)  # [rows]
            if not has_logits.any():
                continue
            kept_scores = {}
            for score in self.on_features:
                values = read_samples(self._tensors, tensor_name(index, f"scores.{score}"), piece_rows)
                kept_scores[score] = values[:, has_logits, 0]
            kept_rows = np.asarray(piece_rows)[has_logits].tolist()
            yield LogitsBatch(kept_rows, logits[:, has_logits], kept_scores)


def is_predictions(path: str | Path) -> bool:
    """Return whether a path is a safetensors file whose header says that it has predictions; no damaged one is."""
    try:
        return os.path.isfile(path) and holds_predictions(path)
    except InputError:
        return False


def holds_predictions(path: str | Path) -> bool:
    """Return whether the name of a MODEL is that of a safetensors file with predictions.

    Raises:
        InputError: the name is that of a safetensors file that is damaged, or is not there.
    """
    if not str(path).endswith((".st", ".safetensors")) or os.path.isdir(path):
        return False
    description = read_header(path).description or {}
    return str(description.get("schema")).startswith("hydractl.predictions/")


# --- opening ----------------------------------------------------------------------------------------------------------


def read_predictions(path: str | Path) -> Predictions:
    """Return an opened predictions file, whose header, ids and labels are read and checked, but not its logits.

    Raises:
        InputError: if the file is of another kind or version, or its parts do not fit each other; all problems are
            listed.
    """
    # Check the header.
    path = Path(path)
    header = read_header(path)
    document = header.description or {}
    schema = document.get("schema")
    if schema != PREDICTIONS_SCHEMA:
        raise InputError(f"{path} has the schema {shown(schema)}, expected {PREDICTIONS_SCHEMA!r}")
    tensors = FileTensors(path, header)
    record = PredictionsRecord.checked(document, f"{path} is broken", _HINT)
    for gone in ("probe", "cascade"):
        if document["model"].get(gone) is not None:
            raise InputError(f"{path} holds the logits of a {gone}, which hydractl 0.1.0 reads", hint=_HINT)
    model = record.model

    # Check each data set and, if all are right, the data sets together.
    sets, problems = _read_sets(record.sets, header, tensors, model.feature_scores or ())
    if not problems:
        shapes = []
        for index in range(len(sets)):
            shapes.append(tensors.info(tensor_name(index, "logits")).shape)
        roles_and_names = [(dataset.role, dataset.name) for dataset in sets]
        problems += _problems_between_sets(roles_and_names, shapes)
        classes = shapes[0][2]
        if model.labels is not None and len(model.labels) != classes:
            problems.append(f"its model has {len(model.labels)} labels and {classes} classes")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)
    return Predictions(tensors, model, sets)


def _read_sets(
    entries: Sequence[PredictedSetRecord], header: Header, tensors: FileTensors, scores: Sequence[str]
) -> tuple[list[EvalSet], list[str]]:
    """Return the data sets of a file that could be read, with ids and labels, and a sentence for each problem.

    Args:
        entries: the records of the data sets in the header.
        header: the header of the file.
        tensors: the tensors of the file.
        scores: the names of the OOD scores on features that each set must have.
    """
    sets: list[EvalSet] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        # Without correct tensors or ids there is no data set.
        problem = _first_problem_of_set(entry, index, header, scores)
        if problem is not None:
            problems.append(f"set {index}: {problem}")
            continue
        ids = _read_ids(tensors, index)
        if ids is None:
            problems.append(f"set {index}: its ids are broken")
            continue

        # The labels must be numbers of classes.
        labels = None
        if entry.labelled:
            labels = tensors.read(tensor_name(index, "labels")).numpy()
        _, _, classes = tensors.info(tensor_name(index, "logits")).shape
        if labels is not None and len(labels):
            lowest = labels.min()
            highest = labels.max()
            if lowest < 0 or highest >= classes:
                problems.append(f"set {index}: a label is outside 0..{classes - 1}")

        dataset = EvalSet(
            name=entry.name,
            role=entry.role,
            group=entry.group,
            ids=ids,
            labels=labels,
            known_fingerprint=entry.fingerprint,
            seen=entry.seen,
        )
        sets.append(dataset)
    return sets, problems


def _read_ids(tensors: FileTensors, index: int) -> list[str] | None:
    """Return the ids of the samples in the set at an index; None if they are stored wrongly.

    All ids are stored in one text without separators, and a second tensor has the position at which each id ends: the
    ids "a" and "bc" are stored as "abc" and [1, 3]. These positions must not decrease, and the last one must be the
    length of the text.
    """
    id_ends = tensors.read(tensor_name(index, "id_ends")).numpy()
    joined_ids = tensors.read(tensor_name(index, "ids")).numpy().tobytes()

    id_lengths = np.diff(id_ends, prepend=0)
    if (id_lengths < 0).any():
        return None
    has_ids = len(id_ends) > 0
    if has_ids and id_ends[-1] != len(joined_ids):
        return None

    ids = []
    start = 0
    for end in id_ends.tolist():
        encoded_id = joined_ids[start:end]
        ids.append(encoded_id.decode("utf-8", "surrogateescape"))
        start = end
    return ids


def _first_problem_of_set(entry: PredictedSetRecord, index: int, header: Header, scores: Sequence[str]) -> str | None:
    """Return the first problem with the tensors of a set; None if all have the shapes that its record says.

    Args:
        entry: the record of the set in the header.
        index: the index of the set in the file.
        header: the header of the file.
        scores: the names of the OOD scores on features that the set must have.
    """
    samples = entry.n

    # The logits must be [members, samples, classes]. They decide the number of members.
    logits = header.tensors.get(tensor_name(index, "logits"))
    no_logits = f"it has no logits of {samples} samples"
    if logits is None or logits.dtype not in LOGIT_FORMATS:
        return no_logits
    if len(logits.shape) != 3 or logits.shape[1] != samples or 0 in logits.shape:
        return no_logits

    # The scores, ids and labels must have the same number of samples.
    ids = header.tensors.get(tensor_name(index, "ids"))
    if ids is None or len(ids.shape) != 1:
        return "it has no ids"
    for name, expected in tensor_infos(index, logits, ids.shape[0], entry.labelled, scores).items():
        info = header.tensors.get(name)
        if info is None or (info.dtype, info.shape) != (expected.dtype, expected.shape):
            _, _, part = name.rpartition(".")
            return f"its {part} are missing or of another shape"
    return None


def _problems_between_sets(sets: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[str]:
    """Return a sentence for each problem between the data sets of a file; empty if they fit each other.

    Args:
        sets: the role and the name of each set.
        shapes: the shape of the logits of each set, ``(members, N, classes)``.
    """
    problems = []

    # There must be exactly one ID set, and no two sets with the same role and name.
    has_repeats = len(set(sets)) < len(sets)
    roles = [role for role, _ in sets]
    if has_repeats or roles.count("id") != 1:
        problems.append("it has no one ID set, or two sets of one name")

    # The ID set, and only this set, is called "id". In histograms of scores "edges" is a key beside the OOD sets.
    for role, name in sets:
        is_misnamed = (role == "id") != (name == "id")
        is_reserved = role == "ood" and name == "edges"
        if is_misnamed or is_reserved:
            problems.append(f"the set of the role {role} has the name {shown(name)}")

    # All sets were measured with the same model.
    members_and_classes = {(members, classes) for members, _, classes in shapes}
    if len(members_and_classes) > 1:
        problems.append("its sets are of different numbers of members or classes")

    # For each severity there is a mean over all corruptions, so every corruption needs the same severities.
    corruptions = set()
    severities = set()
    corrupted_names = [name for role, name in sets if role == "corruption"]
    for name in corrupted_names:
        corruption, _, severity = name.rpartition("/")
        corruptions.add(corruption)
        severities.add(severity)
    if len(corrupted_names) != len(corruptions) * len(severities):
        problems.append("its corruptions are of different severities")
    return problems
