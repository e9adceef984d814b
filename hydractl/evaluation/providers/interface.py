"""The interface of whatever an evaluation can measure: it gives the logits of its members for data sets.

To measure something else, such as an exported file, write a subclass of :class:`LogitsProvider` that sets the
attributes, and defines :attr:`~LogitsProvider.sha256` and :meth:`~LogitsProvider.batches`. The other methods have
defaults that suit whatever has no file of stored logits and fits nothing. ``rows.find_rows`` opens it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from hydractl.errors import UsageError
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.predictions.header import Asking
from hydractl.evaluation.predictions.reading import LogitsBatch
from hydractl.evaluation.providers.stored_fit import StoredFit
from hydractl.evaluation.sets import EvalSet
from hydractl.files.fingerprints import Entry
from hydractl.files.model_records import (
    CascadeRecord,
    CostRecord,
    DropoutRecord,
    ProbeRecord,
    TrainingRecord,
)
from hydractl.files.predictions_header import PredictedSiteRecord
from hydractl.model.detection import Detector

LogitsBatches = Iterator[LogitsBatch]
"""A data set, batch by batch: the rows, their logits ``[M, rows, C]``, and by name their scores ``[M, rows]``."""


class LogitsProvider(ABC):
    """One row: M members that answer with logits of C classes.

    Attributes:
        name: the name of the row.
        labels: names of the classes, None where unknown.
        classes: C.
        reads: ``image`` or ``text``; None for predictions, which read nothing any more.
        members: M.
        heads: for every site (attention layer), how many heads there are and which of them each member keeps.
        cost: ``params`` and ``macs``, the latter None where it is not known.
        seen: the samples behind the model.
        stored: the calibration and the threshold of its file.
        training: the course of the trainings that its members came from (:mod:`hydractl.files.training_history`).
        conventions: at how many tokens it cuts a text, and how it is asked, where that applies.
        mc_dropout: how its members are drawn, where they are passes of MC dropout, else None.
        on_features: the OOD scores on features that can be had without training data.
        detector: what those of this command were fitted to; None for none.
        zero_shot: whether it is measured by its own classifier of class texts.
        probe: the classifier of features that it is measured by; None for its own.
        cascade: when its first member answers alone; None where all members run.
    """

    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    members: int
    heads: Sequence[PredictedSiteRecord]
    cost: CostRecord
    seen: Sequence[Entry]
    stored: StoredFit
    conventions: Asking
    training: Sequence[TrainingRecord] = ()
    mc_dropout: DropoutRecord | None = None
    on_features: Sequence[str] = ()
    detector: Detector | None = None
    zero_shot: bool = False
    probe: ProbeRecord | None = None
    cascade: CascadeRecord | None = None

    @property
    @abstractmethod
    def sha256(self) -> str | list[str] | None:
        """SHA-256 of its file, one for each where several run one after another; None where it is not known."""

    @abstractmethod
    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Yield logits ``[M, B, C]`` of all samples that can be read, in any order.

        Args:
            dataset: the data set.
            rows: only these samples, in this order; None for all.
        """

    # --- what only stored logits have ---------------------------------------------------------------------------------

    def stored_sets(self) -> list[EvalSet]:
        """Return the test sets that a predictions file brings along.

        Raises:
            UsageError: there are none.
        """
        raise UsageError("eval needs --test", hint="hydractl eval --help")

    def check_sets(self, sets: Sequence[EvalSet]) -> None:  # noqa: B027 - a model that runs takes any set
        """Refuse data sets of which this row can say nothing.

        Raises:
            InputError: naming them.
        """

    def already_seen(self, dataset: EvalSet) -> int:
        """Return how many samples had been seen when the logits were computed; 0 where they are computed now."""
        return 0

    # --- what only a model that runs does -----------------------------------------------------------------------------

    def reusable_predictions(self, dataset: EvalSet) -> LogitsProvider | None:
        """Return the predictions that hold its logits of a data set already; None where there are none."""
        return None

    def fit_scores(  # noqa: B027 - predictions hold the scores already
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None = None
    ) -> None:
        """Fit OOD scores on features, and set :attr:`detector`.

        Args:
            names: the names of the scores.
            data: the training data; None for scores that need none, or that the checkpoint holds.
            neighbours: k of the score ``knn``.
            kept: the file that keeps the features of the training data; None for none.
        """

    def fit_probe(self, data: EvalSet, val: EvalSet | None) -> None:  # noqa: B027 - predictions are of a fitted one
        """Fit the classifier of features that takes the place of the model's own, and set :attr:`probe`.

        Args:
            data: the training data.
            val: what a penalty is chosen on; None for the default penalty.
        """

    def release(self) -> None:  # noqa: B027 - predictions take none
        """Let go of what takes memory."""
