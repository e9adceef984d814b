"""Records that several documents share: the heads, trainings and cost of a model, data sets, and what was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from hydractl.files.records import Checked, Count, Number, Record, Within, described, needed
from hydractl.heads.mask import MOST_HEADS

FILE_HASH = "SHA-256 of its file; a list where several run one after another."


def _heads_gone(kept: Sequence[Sequence[int]], before: Mapping[str, Any]) -> str | None:
    """Return the problem if a member keeps a head whose number the site does not have; None if there is none."""
    heads = before.get("heads", MOST_HEADS)
    for kept_by_member in kept:
        if any(head >= heads for head in kept_by_member):
            return "names a head that is not there"
    return None


@dataclass(frozen=True, kw_only=True)
class SiteHeadsRecord(Record, form="SiteHeads"):
    """The heads at one site."""

    site: str = needed("Path of the attention block in the library's own model.")
    tower: str | None = described("`main`, or `visual` or `text` in a model with two towers.")
    heads: Annotated[Count, Within(most=MOST_HEADS)] = needed("Number of heads before any pruning.")
    kept: Annotated[Sequence[Sequence[Count]], Checked(_heads_gone)] = needed(
        "For each member its kept heads, in the original numbering."
    )

    def kept_by(self, member: int) -> Sequence[int]:
        """Return the heads that one member keeps; empty if the site has fewer members."""
        if member >= len(self.kept):
            return ()
        return self.kept[member]


@dataclass(frozen=True, kw_only=True)
class EpochRecord(Record, form="Epoch"):
    """One epoch of a training."""

    epoch: Count | None = described("Number of the epoch, from 1.")
    steps: Count | None = described("Number of steps made by its end.")
    loss: Number = described("Mean loss of its steps.")
    val_accuracy: Number = described("Accuracy on the validation data at its end.")
    val_nll: Number = described("Negative log-likelihood of the validation data at its end.")


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Record, form="Training"):
    """The training that a member came from."""

    member: Count | None = described("Number of the member, from 0.")
    steps: Count | None = described("Number of steps of the training.")
    kept_epoch: Count | None = described("The epoch whose weights were kept.", null=True)
    n: Count | None = described("Number of training samples, where it is known.", null=True)
    n_val: Count | None = described("Number of validation samples, where it is known.", null=True)
    epochs: Sequence[EpochRecord] | None = described("Its epochs in order; of a long training about 60 of them.")

    @property
    def kept(self) -> EpochRecord | None:
        """The epoch whose weights were kept; None if it is not among the recorded epochs."""
        for epoch in self.epochs or ():
            if epoch.epoch == self.kept_epoch:
                return epoch
        return None


@dataclass(frozen=True, kw_only=True)
class CostRecord(Record, form="Cost"):
    """The cost of one sample."""

    params: Count | None = described("Number of stored parameters.", null=True)
    params_nonzero: Count | None = described("Those that are not zero, where single weights were pruned.")
    macs: Count | None = described("Multiply-adds of one sample.", null=True)
    single_macs: Count | None = described("Multiply-adds of the model with all its heads.")


@dataclass(frozen=True, kw_only=True)
class ModelSize(Record):
    """What a model takes."""

    params: Count | None = described("Number of stored parameters.")
    macs: Count | None = described("Multiply-adds of one sample.")
    bytes: Count | None = described("Size of the stored weights.")
    params_nonzero: Count | None = described("Those that are not zero, where single weights were pruned.")


@dataclass(frozen=True, kw_only=True)
class ProvenanceRecord(Record, form="Provenance"):
    """How something was made, without clock, host, user or path."""

    hydractl: str | None = described("Version of hydractl.")
    torch: str | None = described("Version of torch.")
    verb: str | None = described("The verb that made it.")
    seed: int | None = described("Seed of all that was drawn.")
    inputs: Sequence[str] | None = described("SHA-256 of every input.")
    bases: Sequence[str] | None = described("SHA-256 of the checkpoints that it goes back to, where they are others.")
    settings: Mapping[str, object] | None = described("The settings that decided the result.")


@dataclass(frozen=True, kw_only=True)
class DropoutRecord(Record, form="McDropout"):
    """How the members were drawn by MC dropout."""

    p: float = needed("Probability to drop.")
    passes: Count = needed("Number of passes.")
    seed: Count = needed("Seed of the masks.")


@dataclass(frozen=True, kw_only=True)
class DataSetRecord(Record, form="DataSet"):
    """A data set."""

    spec: str | None = described("The SPEC it was asked for by.")
    n: Count | None = described("Number of samples.")
    fingerprint: str | None = described("SHA-256 of its samples and labels.")
    openood_list: str | None = described("The list of OpenOOD that it is.", key="list")
    skipped: Any = described("`n` and `ids` of samples that could not be read and were left out.")
    left_out: Count | None = described("Number of samples left out, as they are training data, or were seen.")


@dataclass(frozen=True, kw_only=True)
class ScoreDataRecord(DataSetRecord, form="ScoreData"):
    """The training data, and the words, that OOD scores on features were fitted to."""

    knn_k: Count | None = described("The neighbour that `knn` takes, and how many `nnguide` averages.")
    knn_bank: Count | None = described("The number of samples that these keep at most, where they are not all.")
    negative_words: str | None = described("SHA-256 of the words of `neglabel`.")


@dataclass(frozen=True, kw_only=True)
class FittedOnRecord(DataSetRecord, form="FittedOn"):
    """The validation set of a stored calibration."""

    spec: str = needed("The SPEC it was asked for by.")
    n: Count = needed("Number of samples.")
    fingerprint: str = needed("SHA-256 of its samples and labels.")


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord(Record, form="Calibration"):
    """The calibration of an averaged prediction."""

    kind: str | None = described("`temperature` or `vector`.")
    temperature: Number = described("What logarithms are divided by; null of a vector.", null=True)
    scale: Sequence[Number] | None = described("Factor of each class; null of a temperature.", null=True)
    bias: Sequence[Number] | None = described("Summand of each class; null of a temperature.", null=True)
    fitted_on: DataSetRecord | None = described("The validation set; null where it was given.", null=True)
    stored: bool | None = described("Whether it stood in the model's file.")


@dataclass(frozen=True, kw_only=True)
class ThresholdRecord(Record, form="Threshold"):
    """The OOD score from which on a sample counts as OOD."""

    score: str | None = described("Name of the OOD score.")
    value: Number = described("The threshold.")
    rule: str | None = described("How it was chosen.")


@dataclass(frozen=True, kw_only=True)
class MeasuredThreshold(ThresholdRecord):
    """A threshold and what it flags."""

    id_flagged: Number = described("Share of ID samples at or above it.", null=True)
    ood_flagged: Mapping[str, Number] | None = described("By OOD set the share at or above it.")
