"""Records that several documents share: the heads, trainings and cost of a model, data sets, and what was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from hydractl.files.results import Count, Number, Record, optional
from hydractl.heads.mask import MOST_HEADS

FILE_HASH = "SHA-256 of its file; a list where several run one after another."


def _heads_there(kept: Sequence[Sequence[int]], info: ValidationInfo) -> Sequence[Sequence[int]]:
    """Return the heads that each member keeps, none of which may have a number that the site does not have."""
    heads = info.data.get("heads", MOST_HEADS)
    for kept_by_member in kept:
        if any(head >= heads for head in kept_by_member):
            raise ValueError("names a head that is not there")
    return kept


class SiteHeadsRecord(Record):
    """The heads at one site."""

    site: str
    """Path of the attention block in the library's own model."""
    tower: str | None = optional("`main`, or `visual` or `text` in a model with two towers.")
    heads: Annotated[Count, Field(le=MOST_HEADS)]
    """Number of heads before any pruning."""
    kept: Annotated[Sequence[Sequence[Count]], AfterValidator(_heads_there)]
    """For each member its kept heads, in the original numbering."""

    def kept_by(self, member: int) -> Sequence[int]:
        """Return the heads that one member keeps; empty if the site has fewer members."""
        if member >= len(self.kept):
            return ()
        return self.kept[member]


class EpochRecord(Record):
    """One epoch of a training."""

    epoch: Count | None = optional("Number of the epoch, from 1.")
    steps: Count | None = optional("Number of steps made by its end.")
    loss: Number = optional("Mean loss of its steps.")
    val_accuracy: Number = optional("Accuracy on the validation data at its end.")
    val_nll: Number = optional("Negative log-likelihood of the validation data at its end.")


class TrainingRecord(Record):
    """The training that a member came from."""

    member: Count | None = optional("Number of the member, from 0.")
    steps: Count | None = optional("Number of steps of the training.")
    kept_epoch: Count | None = None
    """The epoch whose weights were kept."""
    n: Count | None = None
    """Number of training samples, where it is known."""
    n_val: Count | None = None
    """Number of validation samples, where it is known."""
    epochs: Sequence[EpochRecord] | None = optional("Its epochs in order.")

    @property
    def kept(self) -> EpochRecord | None:
        """The epoch whose weights were kept; None if it is not among the recorded epochs."""
        for epoch in self.epochs or ():
            if epoch.epoch == self.kept_epoch:
                return epoch
        return None


class CostRecord(Record):
    """The cost of one sample."""

    params: Count | None = None
    """Number of stored parameters."""
    params_nonzero: Count | None = optional("Those that are not zero, where single weights were pruned.")
    macs: Count | None = None
    """Mult-adds of one sample."""
    single_macs: Count | None = optional("Mult-adds of the model with all its heads.")


class ModelSize(Record):
    """What a model takes."""

    params: Count | None = optional("Number of stored parameters.")
    macs: Count | None = optional("Mult-adds of one sample.")
    bytes: Count | None = optional("Size of the stored weights.")
    params_nonzero: Count | None = optional("Those that are not zero, where single weights were pruned.")


class ProvenanceRecord(Record):
    """How something was made, without clock, host, user or path."""

    hydractl: str | None = optional("Version of hydractl.")
    torch: str | None = optional("Version of torch.")
    verb: str | None = optional("The verb that made it.")
    seed: int | None = optional("Seed of all that was drawn.")
    inputs: Sequence[str] | None = optional("SHA-256 of every input.")
    bases: Sequence[str] | None = optional("SHA-256 of the checkpoints that it goes back to, where they are others.")
    settings: Mapping[str, object] | None = optional("The settings that decided the result.")


class DropoutRecord(Record):
    """How the members were drawn by MC dropout."""

    p: float
    """Probability to drop."""
    passes: Count
    """Number of passes."""
    seed: Count
    """Seed of the masks."""


class DataSetRecord(Record):
    """A data set."""

    spec: str | None = optional("The SPEC it was asked for by.")
    n: Count | None = optional("Number of samples.")
    fingerprint: str | None = optional("SHA-256 of its samples and labels.")
    skipped: Any = optional("`n` and `ids` of samples that could not be read and were left out.")
    left_out: Count | None = optional("Number of samples left out, as they are training data, or were seen.")


class ScoreDataRecord(DataSetRecord):
    """The training data, and the words, that OOD scores on features were fitted to."""

    knn_k: Count | None = optional("The neighbour that `knn` takes.")
    negative_words: str | None = optional("SHA-256 of the words of `neglabel`.")


class FittedOnRecord(DataSetRecord):
    """The validation set of a stored calibration."""

    spec: str
    """The SPEC it was asked for by."""
    n: Count
    """Number of samples."""
    fingerprint: str
    """SHA-256 of its samples and labels."""


class CalibrationRecord(Record):
    """The calibration of an averaged prediction."""

    kind: str | None = optional("`temperature` or `vector`.")
    temperature: Number = None
    """What logarithms are divided by; null of a vector."""
    scale: Sequence[Number] | None = None
    """Factor of each class; null of a temperature."""
    bias: Sequence[Number] | None = None
    """Summand of each class; null of a temperature."""
    fitted_on: DataSetRecord | None = None
    """The validation set; null where it was given."""
    stored: bool | None = optional("Whether it stood in the model's file, or in one of `calibrate`.")


_Factor = Annotated[float, Field(gt=-1e10, lt=1e10)]
"""A scale or bias of a class; no fit needs a larger one."""


class Calibration(CalibrationRecord):
    """A calibration that can be applied: log p over a temperature, or times a scale plus a bias for each class."""

    kind: Literal["temperature", "vector"]
    temperature: Annotated[float, Field(gt=1e-10, lt=1e10)] | None = None
    scale: Sequence[_Factor] | None = None
    bias: Sequence[_Factor] | None = None
    fitted_on: FittedOnRecord | None = None

    @model_validator(mode="after")
    def check_numbers(self) -> Self:
        """Refuse a temperature without its number, and a vector without a scale and a bias for each class."""
        if self.kind == "temperature":
            is_whole = self.temperature is not None
        else:
            is_whole = bool(self.scale) and len(self.scales) == len(self.bias or ())
        if not is_whole:
            raise ValueError("lacks numbers of its kind")
        return self

    @property
    def scales(self) -> Sequence[float]:
        """What log p is multiplied by: one number for all classes, or one for each."""
        if self.kind == "vector":
            return self.scale or ()
        assert self.temperature is not None  # as checked
        return [1.0 / self.temperature]

    @classmethod
    def of_temperature(cls, temperature: float) -> Self:
        """Return the calibration that divides log p by a temperature from 1e-9 to 1e9, rounded to twelve digits."""
        return cls(kind="temperature", temperature=float(f"{temperature:.12g}"), stored=False)


class ThresholdRecord(Record):
    """The OOD score from which on a sample counts as OOD."""

    score: str | None = optional("Name of the OOD score.")
    value: Number = optional("The threshold.")
    rule: str | None = optional("How it was chosen.")


class StoredThreshold(ThresholdRecord):
    """A threshold as a file must hold it, with all of its fields."""

    score: str
    value: Annotated[float, Field(gt=-1e300, lt=1e300)]
    rule: str


class MeasuredThreshold(ThresholdRecord):
    """A threshold and what it flags."""

    id_flagged: Number = None
    """Share of ID samples at or above it."""
    ood_flagged: Mapping[str, Number] | None = optional("By OOD set the share at or above it.")
