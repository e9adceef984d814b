"""A row that is the predictions of a model, read from their file; or of an ensemble, from the files of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.errors import InputError
from hydractl.evaluation.predictions.concatenated import Concatenated
from hydractl.evaluation.predictions.header import Asking
from hydractl.evaluation.predictions.reading import Predictions
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.providers.stored_fit import StoredFit
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, TRAIN, EvalSet
from hydractl.files.model_records import CostRecord
from hydractl.files.predictions_header import DecisiveRecord
from hydractl.jsonio import differences


class PredictedModel(LogitsProvider):
    """A row whose logits were stored by an earlier run.

    Args:
        name: the name of the row; None for the name that the file gives.
        predictions: the file, or the files, that hold the logits.
    """

    def __init__(self, name: str | None, predictions: Predictions | Concatenated) -> None:
        model = predictions.model
        self._predictions = predictions
        self.name = name or model.name
        self.labels = model.labels
        self.members, _, self.classes = predictions.shape(0)
        self.reads = None
        self.heads = model.heads or []
        self.cost = model.cost or CostRecord()
        self.training = model.training
        self.seen = []
        self.stored = StoredFit.from_description(model.to_json(), predictions.origin)
        self.on_features = predictions.scores
        self.conventions = _stored_conventions(model.decisive)
        self.mc_dropout = model.decisive.mc_dropout
        self.probe = model.decisive.probe
        self.cascade = model.decisive.cascade

    @property
    def sha256(self) -> str | list[str] | None:
        """SHA-256 of the models that the predictions are of."""
        digests: str | list[str] | None = self._predictions.model.sha256
        return digests

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets of the file, the ID set first."""
        test_sets = [stored for stored in self._predictions.sets if stored.role in (ID, OOD, CORRUPTION)]
        test_sets.sort(key=lambda stored: stored.role != ID)  # the ID set first; the others stay in their order

        sets = []
        for stored in test_sets:
            entry = {**vars(stored), "seen": 0}  # what was seen is counted anew, by already_seen()
            sets.append(EvalSet(**entry, spec=self._predictions.origin))
        return sets

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Refuse sets that are not in the file, sample for sample; training data are never in it."""
        missing = []
        for dataset in sets:
            if dataset.role == TRAIN or self.has(dataset):
                continue
            missing.append(dataset.name)
        if missing:
            have = ", ".join(stored.name for stored in self._predictions.sets)
            raise InputError(
                f"{self._predictions.origin} has no predictions of {', '.join(missing)}",
                hint=f"it has {have}; a set with other samples, labels or order is another set",
            )

    def has(self, dataset: EvalSet) -> bool:
        """Return whether the file has a set, sample for sample."""
        return self._index_of_set(dataset) is not None

    def check_made_with(self, wanted: Mapping[str, object]) -> None:
        """Refuse logits of other settings.

        Raises:
            InputError: listing the differences.
        """
        model = self._predictions.model.to_json()
        stored = {key: model.get(key) for key in wanted}
        if stored == wanted:
            return
        raise InputError(
            f"--reuse {self._predictions.origin} has predictions of other settings",
            hint="give the settings that it was made with, or leave it out",
            problems=differences(stored, wanted, "in the file"),
        )

    def already_seen(self, dataset: EvalSet) -> int:
        """Return the number that the file gives; 0 for a set that it has not."""
        index = self._index_of_set(dataset)
        if index is None:
            return 0
        return self._predictions.sets[index].seen

    def _index_of_set(self, dataset: EvalSet) -> int | None:
        """Return the index of a data set in the file; None where it has no set of the same samples and labels.

        Of several sets with the same samples it is the one of the same name, else the first.
        """
        same_samples = []
        for index, stored in enumerate(self._predictions.sets):
            if stored.fingerprint != dataset.fingerprint:
                continue
            if stored.name == dataset.name:
                return index
            same_samples.append(index)
        return next(iter(same_samples), None)

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield the stored logits of all samples of the set; ``rows`` is not looked at."""
        index = self._index_of_set(dataset)
        assert index is not None  # check_sets() has been here
        yield from self._predictions.batches(index)


def _stored_conventions(decisive: DecisiveRecord) -> Asking:
    """Return how texts are cut and zero-shot models are asked, where the header says it."""
    asking: Asking = {}
    if decisive.max_length is not None:
        asking["max_length"] = decisive.max_length
    if decisive.prompt is not None:
        asking["prompt"] = list(decisive.prompt)
    return asking
