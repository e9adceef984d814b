"""The interface of everything that an evaluation can measure: a provider gives the logits of its members.

To measure something else, write a subclass of :class:`LogitsProvider` that sets the attributes without a default, and
defines :meth:`~LogitsProvider.batches`. The defaults of the other methods are right for a provider without a file of
stored logits that fits nothing. ``rows.open_rows_and_sets`` opens providers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from hydractl.evaluation.options import FitOptions
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.sets import EvalSet
from hydractl.files.fingerprints import Entry
from hydractl.files.model_records import CostRecord, ScoreDataRecord
from hydractl.files.predictions_header import PredictedModelRecord
from hydractl.model.detection import Detector
from hydractl.model.prediction import Chosen

LogitsBatches = Iterator[LogitsBatch]
"""The batches of a data set: indices of B samples, their logits ``[M, B, C]``, and scores by name, ``[M, B]`` each."""


class LogitsProvider(ABC):
    """One row: M members that answer with logits of C classes.

    Attributes:
        record: what is known of the model, and what decides its logits, as the header of its predictions has it.
        name: the name of the row.
        labels: the names of the classes; None if they are unknown.
        classes: the number of classes C.
        reads: the kind of samples, ``image`` or ``text``; None for stored predictions.
        members: the number of members M.
        cost: the number of parameters (``params``) and of multiply-adds (``macs``; None if unknown).
        seen: fingerprints of the samples to which something was fitted for the model.
        stored: what ``calibrate`` has chosen for it, in its file or in one of ``--calibration``.
        on_features: the names of OOD scores on features that need no training data.
        detector: the fitted OOD scores on features of this command; None if there are none.
        scores_fitted_on: the data that these, or those of a predictions file, are fitted to; None if they need none.
        zero_shot: whether it is measured with its own classifier of class texts.
    """

    classes: int
    reads: str | None = None
    members: int
    seen: Sequence[Entry] = ()
    stored: Chosen
    on_features: Sequence[str] = ()
    detector: Detector | None = None
    scores_fitted_on: ScoreDataRecord | None = None
    zero_shot: bool = False

    def __init__(self, record: PredictedModelRecord) -> None:
        """Take from the record what it knows; the other attributes without a default are left to the subclass."""
        self.record = record
        self.name = record.name
        self.labels = record.labels
        self.cost = record.cost or CostRecord()

    @property
    def sha256(self) -> str | list[str] | None:
        """The SHA-256 of its file, a list for an ensemble of several files; None if it is unknown."""
        return self.record.sha256

    @abstractmethod
    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield the logits of all samples that can be read, ``[M, B, C]``, in any order.

        Args:
            dataset: the data set.
            rows: the indices of the only samples to run, in this order; None means all samples.
        """

    # --- what only stored logits have ---------------------------------------------------------------------------------

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets in a predictions file; a model that runs has none."""
        return []

    def check_sets(self, sets: Sequence[EvalSet]) -> None:  # noqa: B027 - a model that runs takes any set
        """Raise an error if there are data sets for which this row has no logits.

        Raises:
            InputError: with the names of these sets.
        """

    def already_seen(self, dataset: EvalSet) -> int:
        """Return how many samples the model had seen when the logits were stored; 0 if they are computed now."""
        return 0

    # --- what only a model that runs does -----------------------------------------------------------------------------

    def fit_scores(  # noqa: B027 - predictions hold the scores already
        self, names: Sequence[str], data: EvalSet | None, what: FitOptions
    ) -> None:
        """Fit those of some OOD scores that are on features, and set :attr:`detector` and :attr:`scores_fitted_on`.

        Args:
            names: the names of the OOD scores of the row.
            data: the training data; None for scores that need none, or that are in the checkpoint.
            what: the options of fitting, of which k of the neighbours and the words that name no class matter.
        """

    def release(self) -> None:  # noqa: B027 - predictions take none
        """Release everything that takes much memory."""
