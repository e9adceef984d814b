"""The options of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hydractl.expressions.conditions import Requirement
from hydractl.expressions.data_sets import DataSpec, OodSet, SuiteChoice
from hydractl.files.model_records import DropoutRecord
from hydractl.jsonio import Document
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES, says_nothing
from hydractl.metrics.requested import ALL_SCORES, Temperature, Threshold


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class DataOptions:
    """Options about data sets.

    Attributes:
        test: the ID test data; None if the test data of predictions files are used.
        ood: the OOD test sets.
        val: the ID validation data, or None.
        ood_val: the OOD validation sets.
        train: the training data to which OOD scores are fitted, or None.
        limit: the most samples to use from each set; None means all.
        seed: the seed with which these samples are drawn from a set that is sorted by class.
        on_bad: what to do with samples that cannot be read, ``error`` or ``skip``.
        label_map: a JSON object from class names in the data to class names of the model, or None.
        corruptions, severities: the corruptions of the test data to measure, each at every severity.
        photographs: the folder of photographs for the corruption frost, or None.
        allow_seen: whether test data may contain samples to which something was fitted.
        suite: a suite of OOD sets, which are added after ``ood``; None for no suite.
        suite_root: the folder of its data.
    """

    test: DataSpec | None
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
    photographs: str | None = None
    allow_seen: bool = False
    suite: SuiteChoice | None = None
    suite_root: str = ""


@dataclass(frozen=True)
class RowScores:
    """The OOD scores of one row.

    Attributes:
        leading: the score for the main OOD metrics, the curves and the threshold.
        beside: if several scores were asked for, all scores whose metrics are reported in addition.
    """

    leading: str
    beside: Sequence[str] = ()

    @property
    def on_features(self) -> list[str]:
        """Those of the scores that are computed from features, without repetitions."""
        distinct_names = dict.fromkeys([self.leading, *self.beside])
        return [name for name in distinct_names if name in ON_FEATURES]


MSP = RowScores("msp")


@dataclass(frozen=True)
class ScoreOptions:
    """The OOD scores of all rows.

    Attributes:
        names: the scores, the leading one first. Empty means the score in the checkpoint, or else ``msp``.
        every: whether all scores were asked for; a row then leaves out scores that it cannot have.
    """

    names: Sequence[str] = ()
    every: bool = False

    @classmethod
    def of(cls, names: Sequence[str]) -> ScoreOptions:
        """Return the scores that the values of ``--ood-score`` ask for."""
        if list(names) == [ALL_SCORES]:
            return cls([*SCORES, *ON_FEATURES], every=True)
        return cls(names)

    @property
    def beside(self) -> Sequence[str]:
        """The scores that any row may report in addition to its leading one; empty unless several were named."""
        if len(self.names) < 2:
            return []
        return self.names

    def scores_of_row(self, members: int, stored: str | None, on_features: Sequence[str]) -> RowScores:
        """Return the OOD scores of one row: the leading one, and, if several were asked for, all to report beside it.

        The leading score is that of the main OOD metrics and the threshold; it is also among those beside it. For
        example ``--ood-score energy,msp`` gives energy as the leading score, and energy and msp beside it.

        A score that the user named is kept even if it is constant for the row. If all scores were asked for
        (:attr:`every`), constant scores and scores that the model cannot have are left out.

        Args:
            members: the number of members of its model.
            stored: the score in its file; None if there is none.
            on_features: the scores on features that its model can have.
        """
        if not self.names:
            return RowScores(stored or "msp")
        leading = self.names[0]
        if len(self.names) == 1:
            return RowScores(leading)

        beside = []
        for score in self.names:
            is_constant = says_nothing(score, members)
            lacks_features = score in ON_FEATURES and score not in on_features
            if self.every and (is_constant or lacks_features):
                continue
            beside.append(score)
        return RowScores(leading, tuple(beside))


@dataclass(frozen=True)
class FitOptions:
    """Options about everything that is fitted on validation data, or given by the command instead.

    Attributes:
        temperature: None means the calibration in the model's file.
        threshold: None means the threshold in the model's file.
        scores: the OOD scores.
        knn_k: k of the scores ``knn`` and ``nnguide``.
        knn_bank: the number of training samples that these scores store; None means all.
        negative_words: the file with the words for the score ``neglabel``, or None.
        conformal: the share of labels that prediction sets may miss; None means no prediction sets.
        conformal_score: how prediction sets rank classes, ``lac`` or ``aps``.
    """

    temperature: Temperature | None = None
    threshold: Threshold | None = None
    scores: ScoreOptions = field(default_factory=ScoreOptions)
    knn_k: int = 50
    knn_bank: int | None = None
    negative_words: str | None = None
    conformal: float | None = None
    conformal_score: str = "lac"

    @property
    def needs_val(self) -> bool:
        """Whether something is fitted on the ID validation data."""
        fits_calibration = self.temperature is not None and self.temperature.is_fitted
        return fits_calibration or self.conformal is not None or self._threshold_is_of("id")

    @property
    def uses_val(self) -> bool:
        """Whether ID validation data are run if there are some: to fit something, or to count what a score flags."""
        return self.needs_val or self._threshold_is_of("score")

    @property
    def needs_ood_val(self) -> bool:
        """Whether something is fitted on the OOD validation data."""
        return self._threshold_is_of("ood")

    def _threshold_is_of(self, side: str) -> bool:
        return self.threshold is not None and self.threshold.side == side


@dataclass(frozen=True)
class EvalOptions:
    """All options of one evaluation.

    Attributes:
        run: the options for running models.
        data: the options about data sets.
        fit: the options about fitting.
        bootstrap: the number of resamples for confidence intervals; 0 means no intervals.
        seed: the seed of the resamples.
        calibrations: files of ``calibrate`` with what was chosen for models.
        predictions: the path of the file of predictions; None for none.
        resume: whether to continue unfinished predictions files.
        output: the path of the output; None where the verb says, or for none.
        force: whether files that exist are replaced.
        requirements: what has to hold in the rows.
    """

    run: EvalRunOptions
    data: DataOptions
    fit: FitOptions = field(default_factory=FitOptions)
    bootstrap: int = 0
    seed: int = 0
    calibrations: Sequence[str] = ()
    predictions: str | None = None
    resume: bool = False
    output: str | None = None
    force: bool = False
    requirements: Sequence[Requirement] = ()

    @property
    def keep_logits(self) -> bool:
        """Whether the logits on all data sets are written to predictions files, from which they can be read again."""
        return self.predictions is not None and self.predictions.endswith(".st")


@dataclass(frozen=True)
class PredictOptions:
    """All options of ``predict``.

    Attributes:
        run: the options for running the model.
        top: the number of most probable classes that the line of a sample lists; 0 lists none.
        members: whether it lists the prediction of each member.
        flagged: whether only flagged samples are listed; files of predictions hold all.
        limit: the most samples to predict; None for all.
        on_bad: what happens to a sample that cannot be read: ``error`` or ``skip``.
        requirements: what has to hold of the summary.
        output: the path of the file of the predictions; None to predict line by line.
        report: the path of the file of the summary; None for no file.
        force: whether files may be replaced.
        resume: whether an unfinished file goes on.
    """

    run: EvalRunOptions
    top: int = 0
    members: bool = False
    flagged: bool = False
    limit: int | None = None
    on_bad: str = "error"
    requirements: Sequence[Requirement] = ()
    output: str | None = None
    report: str | None = None
    force: bool = False
    resume: bool = False
