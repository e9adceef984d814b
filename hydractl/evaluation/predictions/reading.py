"""Reads finished predictions files piece by piece; damage is reported before any logit is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hydractl.errors import InputError
from hydractl.evaluation.predictions.store import (
    LOGIT_FORMATS,
    PREDICTIONS_SCHEMA,
    stored_batches,
    tensor_infos,
    tensor_name,
)
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, TRAIN, EvalSet, of_role
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import TensorInfo, read_header
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
        # The place of each set in the file by its fingerprint, of samples and labels. Equal sets have the same logits;
        # of these the first counts, as test sets come first.
        self._places = {dataset.fingerprint: place for place, dataset in reversed([*enumerate(sets)])}
        self.members, _, self.classes = tensors.info(tensor_name(0, "logits")).shape  # all sets have the same

        # Of the samples that it has seen (was trained or fitted on) there is no list: already_seen() returns the stored
        # number. What was fitted for the model, e.g. a temperature, and the values of scores on features are there.
        self.stored = Chosen.of(model.to_dict(), self.origin)
        self.on_features = list(model.feature_scores or ())
        self.scores_fitted_on = model.fitted_on

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets in the file, the in-distribution (ID) set first."""
        return [*of_role(self.sets, ID), *of_role(self.sets, OOD, CORRUPTION)]

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Raise an error if a data set (except training data) is not in the file with exactly the same samples."""
        needed = [dataset for dataset in sets if dataset.role != TRAIN]
        missing_names = [dataset.name for dataset in needed if dataset.fingerprint not in self._places]
        if missing_names:
            names_in_file = ", ".join(dataset.name for dataset in self.sets)
            raise InputError(
                f"{self.origin} has no predictions of {', '.join(missing_names)}",
                hint=f"it has {names_in_file}; a set with other samples, labels or order is another set",
            )

    def already_seen(self, dataset: EvalSet) -> int:
        """Return the number of seen samples that is stored in the file; 0 if the file does not have the set."""
        place = self._places.get(dataset.fingerprint)
        return 0 if place is None else self.sets[place].seen

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Return an iterator over the stored logits of all samples in a set, in pieces that fit into memory.

        Samples without logits, which could not be read when the file was written (``--on-bad skip``), are left out.

        Args:
            dataset: the data set, which the file has (:meth:`check_sets`).
            rows: ignored; a model that runs takes the indices of samples here.
        """
        return stored_batches(self._tensors, self._places[dataset.fingerprint], self.on_features)


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

    # The tensors must be those that the header promises. The logits of the first set have the members and classes of
    # all; the number of bytes that the ids take stands nowhere else.
    logits = header.tensors.get(tensor_name(0, "logits"))
    if logits is None or logits.dtype not in LOGIT_FORMATS or len(logits.shape) != 3 or 0 in logits.shape:
        raise InputError(f"{path} is broken", _HINT, ["its first set has no logits"])
    members, _, classes = logits.shape
    problems = _problems_between_sets([(entry.role, entry.name) for entry in record.sets])
    if model.labels is not None and len(model.labels) != classes:
        problems.append(f"its model has {len(model.labels)} labels and {classes} classes")
    for index, entry in enumerate(record.sets):
        ids = header.tensors.get(tensor_name(index, "ids"))
        id_bytes = 0 if ids is None else ids.numel
        logits_of_set = TensorInfo(logits.dtype, (members, entry.n, classes))
        expected = tensor_infos(index, logits_of_set, id_bytes, entry.labelled, model.feature_scores or ())
        for name, info in expected.items():
            there = header.tensors.get(name)
            if there is None or (there.dtype, there.shape) != (info.dtype, info.shape):
                problems.append(f"{name} is missing or of another shape")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)

    # Ids and labels.
    try:
        sets = [_read_set(entry, index, tensors, classes) for index, entry in enumerate(record.sets)]
    except InputError as error:
        raise InputError(f"{path} is broken", _HINT, [error.message]) from None
    return Predictions(tensors, model, sets)


def _read_set(entry: PredictedSetRecord, index: int, tensors: FileTensors, classes: int) -> EvalSet:
    """Return a data set of a file with its ids and labels.

    Args:
        entry: the record of the set in the header.
        index: the index of the set in the file.
        tensors: the tensors of the file, which are those that the record promises.
        classes: the number of classes.

    Raises:
        InputError: the ids or labels are broken.
    """
    labels = None
    if entry.labelled:
        labels = tensors.read(tensor_name(index, "labels")).numpy()
        if ((labels < 0) | (labels >= classes)).any():
            raise InputError(f"a label of {entry.name} is outside 0..{classes - 1}")

    # All ids are one text without separators, and a second tensor has the position at which each id ends: the ids "a"
    # and "bc" are stored as "abc" and [1, 3].
    joined_ids = tensors.read(tensor_name(index, "ids")).numpy().tobytes()
    id_ends = tensors.read(tensor_name(index, "id_ends")).tolist()
    bounds = [0, *id_ends]
    never_decrease = bounds == sorted(bounds)
    if not never_decrease or bounds[-1] != len(joined_ids):
        raise InputError(f"the ids of {entry.name} are broken")
    return EvalSet(
        name=entry.name,
        role=entry.role,
        group=entry.group,
        ids=[joined_ids[start:end].decode("utf-8", "surrogateescape") for start, end in pairwise(bounds)],
        labels=labels,
        known_fingerprint=entry.fingerprint,
        seen=entry.seen,
        spec=str(tensors.path),
    )


def _problems_between_sets(sets: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each problem between the data sets of a file, whose roles and names these are."""
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

    # For each severity there is a mean over all corruptions, so every corruption needs the same severities. The name
    # of a set is CORRUPTION/SEVERITY, and no name occurs twice: 2 corruptions with 3 severities each are 6 sets.
    corrupted = [name.rpartition("/") for role, name in sets if role == "corruption"]
    corruptions = {corruption for corruption, _, _ in corrupted}
    severities = {severity for _, _, severity in corrupted}
    if len(corrupted) != len(corruptions) * len(severities):
        problems.append("its corruptions are of different severities")
    return problems
