"""Reads finished predictions files piece by piece; damage is reported before any logit is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
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
from hydractl.files.header import read_header
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
        self.members, _, self.classes = self.shape(0)  # of the first set's logits; all sets have the same

        # No model runs, so there are no inputs (images or texts) to read, and no list of the samples that it has seen
        # (was trained or fitted on): already_seen() returns their stored number.
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
        """Return the index of a set with the same samples and labels, and so the same logits; None without one."""
        wanted = dataset.fingerprint
        return next((index for index, stored in enumerate(self.sets) if stored.fingerprint == wanted), None)

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield the stored logits of all samples in a set, in pieces that fit into memory.

        Samples without logits, which could not be read when the file was written (``--on-bad skip``), are left out.

        Args:
            dataset: the data set, which the file has.
            rows: ignored; a model that runs takes the indices of samples here.
        """
        index = self._index_of_set(dataset)
        assert index is not None  # check_sets() was called before
        for piece in ranges(self.shape(index)):  # B neighbouring samples
            logits = read_samples(self._tensors, tensor_name(index, "logits"), piece)  # [M, B, C]
            has_logits = ~is_empty(logits)  # [B]
            if not has_logits.any():
                continue
            scores = {}
            for name in self.on_features:
                values = read_samples(self._tensors, tensor_name(index, f"scores.{name}"), piece)  # [M, B, 1]
                scores[name] = values[:, has_logits, 0]
            indices = np.asarray(piece)[has_logits].tolist()
            yield LogitsBatch(indices, logits[:, has_logits], scores)


def is_predictions(path: str | Path) -> bool:
    """Return whether a path is a safetensors file whose header says that it has predictions; no damaged one is."""
    try:
        return holds_predictions(path)
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
    sets = []
    problems = []
    for index, entry in enumerate(record.sets):
        try:
            sets.append(_read_set(entry, index, tensors, model.feature_scores or ()))
        except InputError as error:
            problems.append(f"set {index}: {error.message}")
    if not problems:
        shapes = [tensors.info(tensor_name(index, "logits")).shape for index in range(len(sets))]
        problems = _problems_between_sets([(dataset.role, dataset.name) for dataset in sets], shapes)
        classes = shapes[0][2]
        if model.labels is not None and len(model.labels) != classes:
            problems.append(f"its model has {len(model.labels)} labels and {classes} classes")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)
    return Predictions(tensors, model, sets)


def _read_set(entry: PredictedSetRecord, index: int, tensors: FileTensors, scores: Sequence[str]) -> EvalSet:
    """Return a data set of a file with its ids and labels, after checking that all its tensors are as its record says.

    Args:
        entry: the record of the set in the header.
        index: the index of the set in the file.
        tensors: the tensors of the file.
        scores: the names of the OOD scores on features that the set must have.

    Raises:
        InputError: with the first problem.
    """
    # The logits must be [members, samples, classes]. They decide the number of members.
    infos = tensors.header.tensors
    logits = infos.get(tensor_name(index, "logits"))
    has_logits = logits is not None and logits.dtype in LOGIT_FORMATS and len(logits.shape) == 3
    if logits is None or not has_logits or logits.shape[1] != entry.n or 0 in logits.shape:
        raise InputError(f"it has no logits of {entry.n} samples")

    # The scores, ids and labels must have the same number of samples.
    ids = infos.get(tensor_name(index, "ids"))
    id_bytes = 0 if ids is None else ids.numel
    for name, expected in tensor_infos(index, logits, id_bytes, entry.labelled, scores).items():
        info = infos.get(name)
        if info is None or (info.dtype, info.shape) != (expected.dtype, expected.shape):
            _, _, part = name.rpartition(".")
            raise InputError(f"its {part} are missing or of another shape")

    # The labels must be numbers of classes.
    labels = None
    if entry.labelled:
        labels = tensors.read(tensor_name(index, "labels")).numpy()
        _, _, classes = logits.shape
        if labels.min() < 0 or labels.max() >= classes:
            raise InputError(f"a label is outside 0..{classes - 1}")
    return EvalSet(
        name=entry.name,
        role=entry.role,
        group=entry.group,
        ids=_read_ids(tensors, index),
        labels=labels,
        known_fingerprint=entry.fingerprint,
        seen=entry.seen,
    )


def _read_ids(tensors: FileTensors, index: int) -> list[str]:
    """Return the ids of the samples in the set at an index.

    All ids are stored in one text without separators, and a second tensor has the position at which each id ends: the
    ids "a" and "bc" are stored as "abc" and [1, 3]. These positions must not decrease, and the last one must be the
    length of the text.

    Raises:
        InputError: they are stored in another way.
    """
    joined_ids = tensors.read(tensor_name(index, "ids")).numpy().tobytes()
    id_ends = tensors.read(tensor_name(index, "id_ends")).tolist()
    bounds = [0, *id_ends]
    never_decrease = bounds == sorted(bounds)
    if not never_decrease or bounds[-1] != len(joined_ids):
        raise InputError("its ids are broken")
    return [joined_ids[start:end].decode("utf-8", "surrogateescape") for start, end in pairwise(bounds)]


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

    # For each severity there is a mean over all corruptions, so every corruption needs the same severities. The name
    # of a set is CORRUPTION/SEVERITY, and no name occurs twice: 2 corruptions with 3 severities each are 6 sets.
    corrupted = [name.rpartition("/") for role, name in sets if role == "corruption"]
    corruptions = {corruption for corruption, _, _ in corrupted}
    severities = {severity for _, _, severity in corrupted}
    if len(corrupted) != len(corruptions) * len(severities):
        problems.append("its corruptions are of different severities")
    return problems
