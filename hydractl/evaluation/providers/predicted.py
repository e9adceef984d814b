"""A row whose logits are read from a predictions file, or for an ensemble from the files of several models."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.errors import InputError
from hydractl.evaluation.fitted import Fit
from hydractl.evaluation.predictions.reading import Predictions
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.sets import CORRUPTION, ID, OOD, TRAIN, EvalSet
from hydractl.files.model_records import CostRecord


class PredictedModel(LogitsProvider):
    """A row whose logits were stored by an earlier run.

    Args:
        name: the name of the row; None means the name in the file.
        predictions: the file, or the concatenated files of an ensemble.
    """

    def __init__(self, name: str | None, predictions: Predictions) -> None:
        self._predictions = predictions
        model = predictions.model  # the record of the model in the header of the file

        # The name of the row and its classes.
        self.name = name or model.name
        self.labels = model.labels
        self.members, _, self.classes = predictions.shape(0)  # [members, samples, classes] of the first data set

        # No model runs, so there are no inputs (images or texts) to read, and no list of the samples that it has seen:
        # already_seen() returns the stored number.
        self.reads = None
        self.seen = []

        # Facts about the model that the file repeats for reports.
        self.heads = model.heads or []
        self.cost = model.cost or CostRecord()
        self.training = model.training

        # What was fitted for the model, e.g. a temperature, and the scores on features: their values are in the file.
        self.stored = Fit.in_file(model.to_dict(), predictions.origin)
        self.on_features = predictions.scores
        self.scores_fitted_on = model.fitted_on

        # The settings that decided the logits, e.g. the length at which texts were cut.
        self.max_length = model.max_length
        self.prompt = model.prompt
        self.mc_dropout = model.mc_dropout

    @property
    def sha256(self) -> str | list[str] | None:
        """The SHA-256 of the model that made the predictions, or a list for several models."""
        digests: str | list[str] | None = self._predictions.model.sha256
        return digests

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets in the file, the in-distribution (ID) set first."""
        test_sets = [stored_set for stored_set in self._predictions.sets if stored_set.role in (ID, OOD, CORRUPTION)]
        # The sort is stable, so all other sets stay in their order.
        test_sets.sort(key=lambda stored_set: stored_set.role != ID)

        sets = []
        for stored_set in test_sets:
            entry = {**vars(stored_set), "seen": 0}  # already_seen() returns the stored number
            sets.append(EvalSet(**entry, spec=self._predictions.origin))
        return sets

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Raise an error if a data set (except training data) is not in the file with exactly the same samples."""
        missing_names = []
        for dataset in sets:
            if dataset.role == TRAIN or self._index_of_set(dataset) is not None:
                continue
            missing_names.append(dataset.name)
        if missing_names:
            names_in_file = ", ".join(stored_set.name for stored_set in self._predictions.sets)
            raise InputError(
                f"{self._predictions.origin} has no predictions of {', '.join(missing_names)}",
                hint=f"it has {names_in_file}; a set with other samples, labels or order is another set",
            )

    def already_seen(self, dataset: EvalSet) -> int:
        """Return the number of seen samples that is stored in the file; 0 if the file does not have the set."""
        index = self._index_of_set(dataset)
        if index is None:
            return 0
        return self._predictions.sets[index].seen

    def _index_of_set(self, dataset: EvalSet) -> int | None:
        """Return the index in the file of a set with the same samples and labels; None if there is none.

        If there are several, the one with the same name is returned, otherwise the first.
        """
        indices_with_same_samples = []
        for index, stored_set in enumerate(self._predictions.sets):
            if stored_set.fingerprint != dataset.fingerprint:
                continue
            if stored_set.name == dataset.name:
                return index
            indices_with_same_samples.append(index)
        return next(iter(indices_with_same_samples), None)

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield the stored logits of all samples in the set; ``rows`` is ignored."""
        index = self._index_of_set(dataset)
        assert index is not None  # check_sets() was called before
        yield from self._predictions.batches(index)
