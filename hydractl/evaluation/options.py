"""The options of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.expressions.conditions import Requirement
from hydractl.expressions.data_sets import DataSpec, OodSet
from hydractl.files.model_records import DropoutRecord
from hydractl.jsonio import Document
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.requested import ALL_SCORES, Temperature, Threshold


@dataclass(frozen=True, kw_only=True)
class EvalRunOptions:
    """Options for running models.

    Attributes:
        batch_size: the number of samples that run together.
        dtype, device: the values of ``--dtype`` and ``--device``.
        workers: the number of processes that read data; None leaves it to the device and the data.
        whole_last_block: whether the last block runs for all tokens, not only for those that the readout uses.
        dropout: the settings of MC dropout; None without MC dropout.
    """

    batch_size: int
    dtype: str = "float32"
    device: str = "cpu"
    workers: int | None = None
    whole_last_block: bool = False
    dropout: DropoutRecord | None = None


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options about data sets.

    Attributes:
        test: the ID test data; None if the test data of predictions files are used, or nothing is tested.
        tests: whether the command measures its models on test data.
        ood: the OOD test sets.
        val: the ID validation data, or None.
        ood_val: the OOD validation sets.
        train: the training data to which OOD scores are fitted, or None.
        limit: the most samples to use from each set; None means all.
        seed: the seed of these samples, which are drawn from a set that is sorted by class, and of the resamples.
        on_bad: what to do with samples that cannot be read, ``error`` or ``skip``.
        label_map: a JSON object from class names in the data to class names of the model, or None.
        corruptions, severities: the corruptions of the test data to measure, each at every severity.
        allow_seen: whether test data may contain samples to which something was fitted.
    """

    test: DataSpec | None
    tests: bool = True
    ood: Sequence[OodSet] = ()
    val: DataSpec | None = None
    ood_val: Sequence[OodSet] = ()
    train: DataSpec | None = None
    limit: int | None = None
    seed: int = 0
    on_bad: str = "error"
    label_map: Document | None = None
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = ()
    allow_seen: bool = False


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options about everything that is fitted on validation data, or given by the command instead.

    Attributes:
        temperature: None means the calibration in the model's file.
        threshold: None means the threshold in the model's file.
        ood_score: the OOD scores, the leading one first, or ``all``. Empty means that of the checkpoint, else ``msp``.
        knn_k: k of the score ``knn``.
        negative_words: the file with the words for the score ``neglabel``, or None.
        conformal: the share of labels that prediction sets may miss; None means no prediction sets.
        conformal_score: how prediction sets rank classes, ``lac`` or ``aps``.
    """

    temperature: Temperature | None = None
    threshold: Threshold | None = None
    ood_score: Sequence[str] = ()
    knn_k: int = 50
    negative_words: str | None = None
    conformal: float | None = None
    conformal_score: Literal["lac", "aps"] = "lac"

    @property
    def all_scores(self) -> bool:
        """Whether all scores were asked for; a row then leaves out scores that are constant, or that it cannot have."""
        return ALL_SCORES in self.ood_score

    @property
    def scores(self) -> Sequence[str]:
        """The names of the OOD scores that were asked for."""
        if self.all_scores:
            return [*SCORES, *ON_FEATURES]
        return self.ood_score

    @property
    def needs_val_labels(self) -> bool:
        """Whether something is fitted to the labels of the ID validation data, as a threshold is not."""
        fits_calibration = self.temperature is not None and self.temperature.is_fitted
        return fits_calibration or self.conformal is not None

    @property
    def chooses_on_val(self) -> bool:
        """Whether ID validation data are used if there are some: to fit something, or to count what is flagged."""
        return self.needs_val_labels or self.threshold is not None


@dataclass(frozen=True, kw_only=True)
class EvalOptions(EvalRunOptions, DataOptions, FitOptions):
    """All options of one evaluation.

    Attributes:
        bootstrap: the number of resamples for confidence intervals; 0 means no intervals.
        calibration: files of ``calibrate`` with what was chosen for models.
        predictions: the path of the file that the logits on all data sets are written to, from which they can be read
            again; None for none.
        resume: whether to continue unfinished predictions files.
        output: the path of the output; None where the verb says, or for none.
        force: whether files that exist are replaced.
        require: what has to hold in the rows.
    """

    bootstrap: int = 0
    calibration: Sequence[str] = ()
    predictions: str | None = None
    resume: bool = False
    output: str | None = None
    force: bool = False
    require: Sequence[Requirement] = ()

    @property
    def compares_scores(self) -> bool:
        """Whether one of several OOD scores is chosen, as by ``calibrate``, and not each of them measured."""
        return not self.tests and len(self.scores) > 1

    @property
    def runs_val(self) -> bool:
        """Whether ID validation data are run if there are some: to choose something, or to store their predictions."""
        return self.chooses_on_val or self.compares_scores or self.predictions is not None

    @property
    def runs_ood_val(self) -> bool:
        """Whether OOD validation data are run if there are some: to choose something, or to store their predictions."""
        chooses = self.compares_scores or (self.threshold is not None and self.threshold.side == "ood")
        return chooses or self.predictions is not None


@dataclass(frozen=True, kw_only=True)
class PredictOptions(EvalRunOptions):
    """All options of ``predict``.

    Attributes:
        top: the number of most probable classes that the line of a sample lists; 0 lists none.
        flagged: whether only flagged samples are listed; files of predictions hold all.
        limit: the most samples to predict; None for all.
        on_bad: what happens to a sample that cannot be read: ``error`` or ``skip``.
        require: what has to hold of the summary.
        force: whether files may be replaced.
        resume: whether an unfinished file goes on.
    """

    top: int = 0
    flagged: bool = False
    limit: int | None = None
    on_bad: str = "error"
    require: Sequence[Requirement] = ()
    force: bool = False
    resume: bool = False
