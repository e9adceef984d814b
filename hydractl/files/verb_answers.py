"""Answers that are shown and not read again: of trainings, posteriors, prune and ``--info``.

Their documents hold more than tables show; the records have fields only for the entries that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hydractl.files.circuit_answer import KeptSite, MaskRecord
from hydractl.files.model_records import EpochRecord, ModelSize
from hydractl.files.results import Count, Number, Record, Result, optional, sparse

# --- trainings --------------------------------------------------------------------------------------------------------


class LearningRateTrial(Record):
    """What one learning rate of several reached."""

    lr: float
    """The learning rate."""
    val_accuracy: Number = None
    """Accuracy on the validation data; null where it failed."""
    val_nll: Number = None
    """Negative log-likelihood of the validation data; null where it failed."""
    error: str | None = optional("Why it failed.")
    kept_epoch: Count | None = optional("The epoch whose weights were kept.")
    stopped_early: bool | None = optional("Whether it ended for want of a better validation accuracy.")
    epochs: Sequence[EpochRecord] | None = optional("Its epochs in order.")
    loss_curve: Sequence[float] | None = optional("The loss at even places.")


class RecipeSetting(Record):
    """An option of a training in effect."""

    value: Any
    """Its value."""
    source: str
    """Where the value comes from."""


class TrainedFile(Record):
    """One of several files of a training, each of which has a member."""

    output: str
    """The file."""
    member: Count
    """Number of the member, from 1."""
    sha256: str | None = optional("SHA-256 of the file; not in a dry run.")


class TrainingPlan(Record):
    """What is known of a training before it begins."""

    output: str
    """The file that it writes, the last of several."""
    model: str
    """Name of the model that is trained."""
    samples: Count
    """Number of training samples."""
    steps: Count
    """Number of steps."""
    cost: Mapping[str, Count]
    """What the model takes: parameters, mult-adds of a sample, bytes."""
    files_: Sequence[TrainedFile] | None = optional("The files, where the training has several.")
    val_left_out: Count | None = optional("Validation samples that are left out, as they are training data.")


class FinetuneAnswer(TrainingPlan, Result):
    """A finished training."""

    schema_: Literal["hydractl.finetune/2"] = "hydractl.finetune/2"
    epochs: Sequence[EpochRecord]
    """Its epochs in order."""
    kept_epoch: Count | None
    """The epoch whose weights were kept; null where none was chosen."""
    stopped_early: bool | None
    """Whether it ended for want of a better validation accuracy."""
    lr: float
    """The learning rate."""
    trained_params: Count | None = optional("How many numbers were trained; not of one that was finished before.")
    grid: Sequence[LearningRateTrial] | None = optional("What each learning rate reached, where several were tried.")
    loss_curve: Sequence[float] | None = optional("The loss at even places; not of one that was finished before.")
    sha256: str
    """SHA-256 of the file, the last of several."""
    recipe: Mapping[str, RecipeSetting] = sparse("By name the options in effect; of a dry run.", {})


class NamedTraining(Record):
    """Which of several trainings it is."""

    name: str
    """Its output without the ending."""
    seed: int
    """Seed of the training."""


class TrainedMember(FinetuneAnswer, NamedTraining):
    """One of several finished trainings."""

    finished: bool | None = optional("True in a dry run where it was done before.")


class FinetunesAnswer(Result):
    """Several finished trainings."""

    schema_: Literal["hydractl.finetunes/2"] = "hydractl.finetunes/2"
    members: Sequence[TrainedMember]
    """The trainings in order."""
    recipe: Mapping[str, RecipeSetting] = sparse("By name the options in effect; of a dry run.", {})


# --- posteriors -------------------------------------------------------------------------------------------------------


class LaplaceAnswer(Result):
    """A model with a Laplace approximation over its last linear layers."""

    schema_: Literal["hydractl.laplace/1"] = "hydractl.laplace/1"
    output: str
    """The file that it writes."""
    model: str
    """Name of the model."""
    arch: str
    """Its architecture."""
    members: Count
    """Number of members, each of which has a posterior of its own."""
    samples: Count
    """Number of training samples."""
    pseudo_data: int | float
    """Number of samples that the curvature counts as."""
    prior: Sequence[Mapping[str, float]]
    """By member and tower the precision of the prior."""
    chosen_by: str
    """What chose it: `given`, `nll` on validation data, or `marginal likelihood`."""
    sha256: str
    """SHA-256 of the file."""


# --- checkpoints ------------------------------------------------------------------------------------------------------


class SizeChange(Record):
    """What a model takes before and after pruning."""

    before: ModelSize
    """Before."""
    after: ModelSize
    """After."""


class PrunedWeights(Record):
    """How many single weights are pruned."""

    share: float
    """The share of all parameters that is to stay."""
    parameters: Count
    """Number of all parameters."""
    removable: Count
    """Those that may be removed."""
    removed: Count
    """Those that are removed."""


class PruneAnswer(Result):
    """A model without some of its heads or of its single weights, or the plan of one."""

    schema_: Literal["hydractl.prune/1"] = "hydractl.prune/1"
    output: str | None = optional("The file or folder that was written.")
    model: str
    """Name of the model before pruning."""
    arch: str
    """Its architecture."""
    layout: str | None = optional("`sliced`, or `zeroed` where removed heads are zeros; not of single weights.")
    weights: PrunedWeights | None = optional("How many single weights are removed.")
    files_: Sequence[str] | None = optional("What a dry run would write.")
    note: str | None = optional("What is not known beforehand.")
    heads: Sequence[Count] | None = optional("By site the number of kept heads.")
    mask: MaskRecord | None = optional("The heads that are kept, where they are known.")
    cost: SizeChange | None = optional("What the model takes.")
    sha256: str | None = optional("SHA-256 of the weights that were written.")


# --- files ------------------------------------------------------------------------------------------------------------


class HeadsOverlap(Record):
    """Two sets of heads compared."""

    counts: Sequence[Count]
    """Number of heads in the first set and in the second."""
    shared: Count
    """Number of the heads in both."""
    jaccard: Number = None
    """Shared heads over heads in either."""
    overlap: Number = None
    """Shared heads over those of the smaller set."""
    divergence: Number = None
    """Jensen-Shannon divergence over the sites, in bits."""


class ComparedMasks(Record):
    """Two masks compared by what they keep and by what they remove."""

    a: str
    """Name of the first."""
    b: str
    """Name of the second."""
    kept: HeadsOverlap
    """Their kept heads."""
    removed: HeadsOverlap
    """Their removed heads."""


class InfoAnswer(Result, extra="allow"):
    """What a file says of itself; what a broken file says may be anything.

    Beside the fields stand the facts that are known, in the order in which they are shown: of the tensors, the model,
    the predictions, the unfinished training or the document that is in it, then a note, and the results that were
    stored with a model by whatever made it, such as the self-check of a fusion.
    """

    schema_: Literal["hydractl.info/2"] = "hydractl.info/2"
    file: str
    """Path of the file or folder."""
    holds: Any
    """The schema of what is in it, or what else it is."""
    head_maps: Sequence[Sequence[KeptSite]] = sparse("The heads of each member of a model, or of a mask.", [])
    overlap: Sequence[ComparedMasks] | None = optional("Its members compared.")
    source: Any = optional("How it was made.")
