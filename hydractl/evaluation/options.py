"""What an evaluation needs to know of its command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.expressions.data_sets import OodSet
from hydractl.files.model_records import DropoutRecord
from hydractl.metrics.ood_scores import ON_FEATURES, says_nothing


@dataclass(frozen=True)
class EvalRunOptions:
    """Options of running models.

    Attributes:
        batch_size: samples that run together.
        dtype, device: as ``--dtype`` and ``--device`` name them.
        workers: processes that read data.
        whole_last_block: whether the last block runs for tokens that are not read out too.
        dropout: the settings of MC dropout; None without.
    """

    batch_size: int
    dtype: str = "float32"
    device: str = "cpu"
    workers: int = 0
    whole_last_block: bool = False
    dropout: DropoutRecord | None = None


@dataclass(frozen=True)
class DataOptions:
    """The data sets.

    Attributes:
        test: SPEC of the ID test data; None where predictions bring their own.
        ood: the OOD test sets.
        val: SPEC of the ID validation data.
        ood_val: the OOD validation sets.
        train: SPEC of the training data that OOD scores are fitted to.
        limit: so many samples of each only.
        seed: draws them of a set sorted by class.
        on_bad: what to do with samples that cannot be read.
        label_map: file of an object from labels of the data to labels of the model.
        corruptions, severities: the corruptions of ``test`` that are measured as well, each at every severity.
        photographs: the folder of photographs for the corruption frost; None without it.
        allow_seen: whether samples that something was chosen on may be test data.
    """

    test: str | None
    ood: Sequence[OodSet] = ()
    val: str | None = None
    ood_val: Sequence[OodSet] = ()
    train: str | None = None
    limit: int | None = None
    seed: int = 0
    on_bad: str = "stop"
    label_map: str | None = None
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = ()
    photographs: str | None = None
    allow_seen: bool = False


@dataclass(frozen=True)
class RowScores:
    """The OOD scores of one row.

    Attributes:
        leading: the score of its OOD blocks, curves and threshold.
        beside: the scores whose metrics are reported beside, where several were asked for.
    """

    leading: str
    beside: Sequence[str] = ()

    @property
    def on_features(self) -> list[str]:
        """The scores among them that are computed from features, each once."""
        names_once = dict.fromkeys([self.leading, *self.beside])
        return [name for name in names_once if name in ON_FEATURES]


MSP = RowScores("msp")


@dataclass(frozen=True)
class ScoreOptions:
    """The OOD scores of all rows.

    Attributes:
        names: the scores of all rows, the leading one first; empty for the score of the checkpoint, else ``msp``.
        of_rows: another leading score for single rows, by the name of the row.
        every: whether all scores were asked for, so that a row leaves out those that it cannot have.
    """

    names: Sequence[str] = ()
    of_rows: Mapping[str, str] = field(default_factory=dict)
    every: bool = False

    @property
    def are_named(self) -> bool:
        """Whether the command names any score, for all rows or for one."""
        return bool(self.names or self.of_rows)

    @property
    def beside(self) -> Sequence[str]:
        """The scores that some row may report beside the one that leads."""
        if len(self.names) < 2:
            return []
        names_once = dict.fromkeys([*self.names, *self.of_rows.values()])
        return list(names_once)

    def scores_of_row(self, name: str, members: int, stored: str | None, on_features: Sequence[str]) -> RowScores:
        """Return the scores of one row: the leading one, and those that are reported beside it if there are several.

        A score that was named is kept even if it is constant for the row; "every" score leaves such scores out.

        Args:
            name: the name of the row.
            members: how many members its model has.
            stored: the score that its file holds; None for a file without one.
            on_features: the scores on features that its model can have.
        """
        leading = self._leading(name, stored)
        if len(self.names) < 2:
            return RowScores(leading)

        # Those that the row can have, and the leading one.
        beside = []
        for score in self.names:
            is_constant = says_nothing(score, members)
            lacks_features = score in ON_FEATURES and score not in on_features
            if self.every and (is_constant or lacks_features):
                continue
            beside.append(score)
        beside.append(leading)
        names_once = dict.fromkeys(beside)
        return RowScores(leading, tuple(names_once))

    def _leading(self, name: str, stored: str | None) -> str:
        """Return the score that leads in one row: its own, else that of all rows, else that of its file."""
        score_of_row = self.of_rows.get(name)
        if score_of_row:
            return score_of_row
        if self.names:
            return self.names[0]
        if stored:
            return stored
        return "msp"


@dataclass(frozen=True)
class FitOptions:
    """Options of what is fitted on validation data, or taken from the command instead.

    Attributes:
        temperature: ``fit``, ``vector``, ``none``, a number, or None for the calibration that the model has.
        temperatures: the number of single rows instead, by the name of the row.
        threshold: ``ood:SHARE``, ``id:SHARE``, a number, or None for the threshold that the model has.
        scores: the OOD scores.
        knn_k: k of the scores ``knn`` and ``nnguide``.
        knn_bank: how many training samples these keep; None: all.
        negative_words: the file of the words of ``neglabel``; None without.
        conformal: share of labels that prediction sets may miss; None for no sets.
        conformal_score: how they rank classes.
        probe: the classifier of features that is measured instead of the model's own; None for its own.
    """

    temperature: str | None = None
    temperatures: Mapping[str, str] = field(default_factory=dict)
    threshold: str | None = None
    scores: ScoreOptions = field(default_factory=ScoreOptions)
    knn_k: int = 50
    knn_bank: int | None = None
    negative_words: str | None = None
    conformal: float | None = None
    conformal_score: str = "lac"
    probe: str | None = None

    def temperature_of(self, row: str) -> str | None:
        """Return the temperature that is asked for in one row."""
        return self.temperatures.get(row, self.temperature)

    @property
    def fits_calibration(self) -> bool:
        """Whether a calibration is fitted."""
        return self.temperature in ("fit", "vector")

    @property
    def needs_val(self) -> bool:
        """Whether something is fitted on the ID validation data."""
        if self.fits_calibration:
            return True
        if self.conformal is not None:
            return True
        return self.threshold is not None and self.threshold.startswith("id:")

    @property
    def needs_ood_val(self) -> bool:
        """Whether something is fitted on the OOD validation data."""
        return self.threshold is not None and self.threshold.startswith("ood:")


@dataclass(frozen=True)
class EvalOptions:
    """One evaluation.

    Attributes:
        run: how models run.
        data: the data sets.
        fit: the options of what is fitted on validation data.
        bootstrap: the number of resamples for intervals; 0 for no intervals.
        seed: the seed of the resamples.
        keep_logits: whether the logits of all data sets are kept in predictions files.
        resume: whether to continue unfinished predictions files.
        reuse: predictions files to read logits from.
    """

    run: EvalRunOptions
    data: DataOptions
    fit: FitOptions = field(default_factory=FitOptions)
    bootstrap: int = 0
    seed: int = 0
    keep_logits: bool = False
    resume: bool = False
    reuse: Sequence[str] = ()
