"""Answers that are shown and not read again: of trainings, prune, export, push and ``--info``, and plans of dry runs.

Their documents hold more than tables show; the records have fields only for the entries that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.files.bench_answer import PlannedBenchRow
from hydractl.files.circuit_answer import CircuitAnswer, MaskRecord
from hydractl.files.fuse_answer import FuseAnswer
from hydractl.files.model_records import EpochRecord, ModelSize
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, described, inline, needed, sparse
from hydractl.files.study_answer import StudyAnswer

# --- trainings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LearningRateTrial(Record):
    """What one learning rate of several reached."""

    lr: float = needed("The learning rate.")
    val_accuracy: Number = described("Accuracy on the validation data.")
    val_nll: Number = described("Negative log-likelihood of the validation data.")


@dataclass(frozen=True, kw_only=True)
class TrainedFile(Record):
    """One of several files of a training, each of which has a member."""

    output: str = needed("The file.")
    member: Count = needed("Number of the member, from 1.")
    sha256: str | None = described("SHA-256 of the file; not of a plan.")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Record):
    """What is known of a training before it begins."""

    output: str = needed("The file that it writes, the last of several.")
    model: str = needed("Name of the model that is trained.")
    samples: Count = needed("Number of training samples.")
    steps: Count = needed("Number of steps.")
    cost: Mapping[str, Count] = needed("What the model takes: parameters, multiply-adds of a sample, bytes.")
    files: Sequence[TrainedFile] | None = described("The files, where the training has several.")
    val_left_out: Count | None = described("Validation samples that are left out, as they are training data.")
    warnings: Sequence[str] = sparse("What is odd about the data and the course, in sentences.", list)


@dataclass(frozen=True, kw_only=True)
class FinetuneAnswer(Record):
    """A finished training."""

    schema: str = needed(SCHEMA_TEXT)
    plan: TrainingPlan = inline()
    epochs: Sequence[EpochRecord] = needed("Its epochs in order.")
    kept_epoch: Count | None = needed("The epoch whose weights were kept; null where none was chosen.")
    stopped_early: bool | None = needed("Whether it ended for want of a better validation accuracy.")
    lr: float = needed("The learning rate.")
    trained_params: Count | None = described("How many numbers were trained; not of one that was finished before.")
    grid: Sequence[LearningRateTrial] | None = described("What each learning rate reached, where several were tried.")
    loss_curve: Sequence[float] | None = described("The loss at even places; not of one that was finished before.")
    sha256: str = needed("SHA-256 of the file, the last of several.")


@dataclass(frozen=True, kw_only=True)
class TrainedMember(Record):
    """One of several finished trainings."""

    name: str = needed("Its output without the ending.")
    seed: int = needed("Seed of the training.")
    training: FinetuneAnswer = inline()


@dataclass(frozen=True, kw_only=True)
class FinetunesAnswer(Record):
    """Several finished trainings."""

    schema: str = needed(SCHEMA_TEXT)
    members: Sequence[TrainedMember] = needed("The trainings in order.")


@dataclass(frozen=True, kw_only=True)
class RecipeSetting(Record):
    """An option of a training in effect."""

    value: Any = needed("Its value.")
    source: str = needed("Where the value comes from.")


@dataclass(frozen=True, kw_only=True)
class PlannedTraining(Record):
    """The plan of a training."""

    schema: str = needed(SCHEMA_TEXT)
    dry_run: bool = needed("That it is a plan.", True)
    plan: TrainingPlan = inline()
    recipe: Mapping[str, RecipeSetting] = described("By name the options in effect.", empty=dict)


@dataclass(frozen=True, kw_only=True)
class PlannedMember(Record):
    """The plan of one of several trainings."""

    name: str = needed("Its output without the ending.")
    seed: int = needed("Seed of the training.")
    plan: TrainingPlan = inline()
    finished: bool | None = described("True where it was done before.")


@dataclass(frozen=True, kw_only=True)
class PlannedTrainings(Record):
    """The plan of several trainings."""

    schema: str = needed(SCHEMA_TEXT)
    dry_run: bool = needed("That it is a plan.", True)
    members: Sequence[PlannedMember] = needed("The trainings in order.")
    recipe: Mapping[str, RecipeSetting] = needed("By name the options in effect.")


# --- posteriors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PosteriorPlan(Record):
    """What is known of a Laplace approximation before it is fitted."""

    output: str = needed("The file that it writes.")
    model: str = needed("Name of the model.")
    arch: str = needed("Its architecture.")
    members: Count = needed("Number of members, each of which has a posterior of its own.")
    samples: Count = needed("Number of training samples.")
    pseudo_data: float = needed("Number of samples that the curvature counts as.")
    warnings: Sequence[str] = sparse("What is odd about the data, in sentences.", list)


@dataclass(frozen=True, kw_only=True)
class LaplaceAnswer(Record):
    """A model with a Laplace approximation over its last linear layers."""

    schema: str = needed(SCHEMA_TEXT)
    plan: PosteriorPlan = inline()
    prior: Sequence[Mapping[str, float]] = needed("By member and tower the precision of the prior.")
    chosen_by: str = needed("What chose it: `given`, `nll` on validation data, or `marginal likelihood`.")
    sha256: str = needed("SHA-256 of the file.")


@dataclass(frozen=True, kw_only=True)
class PlannedLaplace(Record):
    """The plan of a Laplace approximation."""

    schema: str = needed(SCHEMA_TEXT)
    plan: PosteriorPlan = inline()
    dry_run: bool = needed("That it is a plan.", True)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SizeChange(Record):
    """What a model takes before and after pruning."""

    before: ModelSize = needed("Before.")
    after: ModelSize = needed("After.")


@dataclass(frozen=True, kw_only=True)
class PrunedWeights(Record):
    """How many single weights are pruned."""

    share: float = needed("The share of all parameters that is to stay.")
    parameters: Count = needed("Number of all parameters.")
    removable: Count = needed("Those that may be removed.")
    removed: Count = needed("Those that are removed.")


@dataclass(frozen=True, kw_only=True)
class PruneAnswer(Record):
    """A model without some of its heads, or the plan of one."""

    schema: str = needed(SCHEMA_TEXT)
    dry_run: bool | None = described("True of a plan.")
    output: str | None = described("The file or folder that was written.")
    model: str = needed("Name of the model before pruning.")
    arch: str = needed("Its architecture.")
    layout: str = needed("`sliced`, or `zeroed` where removed heads are zeros.")
    files: Sequence[str] | None = described("What a plan would write.")
    note: str | None = described("What is not known beforehand.")
    heads: Sequence[Count] | None = described("By site the number of kept heads.")
    mask: MaskRecord | None = described("The heads that are kept, where they are known.")
    cost: SizeChange | None = described("What the model takes.")
    sha256: str | None = described("SHA-256 of the weights that were written.")


@dataclass(frozen=True, kw_only=True)
class PruneWeightsAnswer(Record):
    """A model without some of its single weights, or the plan of one."""

    schema: str = needed(SCHEMA_TEXT)
    model: str = needed("Name of the model before pruning.")
    arch: str = needed("Its architecture.")
    weights: PrunedWeights = needed("How many weights are removed.")
    dry_run: bool | None = described("True of a plan.")
    output: str | None = described("The file or folder that was written.")
    files: Sequence[str] | None = described("What a plan would write.")
    cost: SizeChange | None = described("What the model takes.")
    sha256: str | None = described("SHA-256 of the weights that were written.")


@dataclass(frozen=True, kw_only=True)
class PlannedFusion(FuseAnswer):
    """The plan of a fusion."""

    averaging: Any = described("What was asked for; what averaging does is known after the self-check.")
    note: str | None = described("What is not known beforehand.")
    dry_run: bool = needed("That it is a plan.", True)


# --- other plans ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedBench(Record):
    """The plan of a bench."""

    results: Sequence[PlannedBenchRow] = needed("A row for each model.")
    calls: Count = needed("How often a model would run.")
    files: Sequence[str] = needed("What it would write.")


@dataclass(frozen=True, kw_only=True)
class PlannedSearch(Record):
    """The plan of a search for circuits."""

    model: str = needed("Name of the model.")
    budget: Count = needed("How many heads it would remove.")
    heads: Count = needed("How many there are.")
    objectives: Sequence[str] = needed("What each circuit maximises.")
    evaluations_per_objective: Count = needed("Evaluations of the whole data for each objective.")
    sample_blocks: Count = needed("About how many blocks run, counted for each sample.")
    sample_blocks_naive: Count = needed("The same of the plain algorithm.")
    seconds: float = needed("About how long that takes.")
    memory_bytes: Count = needed("Size of what is kept between evaluations.")
    chunks: Count = needed("Into how many parts the data are cut.")
    files: Sequence[str] = needed("What it would write.")


@dataclass(frozen=True, kw_only=True)
class CircuitsAnswer(Record):
    """Circuits of several objectives."""

    circuits: Sequence[CircuitAnswer] = needed("One for each objective.")


@dataclass(frozen=True, kw_only=True)
class PlannedStudy(Record):
    """The plan of a study."""

    steps: Sequence[Sequence[str]] = needed("The commands in order, without `hydractl`.")
    cut: Sequence[str] = needed("What is left out to stay within the time.")
    seconds: float = needed("About how long it takes.")


@dataclass(frozen=True, kw_only=True)
class TimeRatio(Record):
    """The time of the model to use over that of the single model."""

    batch_size: Count = needed("Samples of a batch.")
    ratio: float = needed("The ratio.")


@dataclass(frozen=True, kw_only=True)
class FinishedStudy(StudyAnswer):
    """The answer of a study with what a bench measured for it."""

    latency: Sequence[TimeRatio] = described("By batch size the time of the model to use.", empty=list)


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KeptSite(Record):
    """A site of a mask that a file holds; what a broken file does not say is None."""

    site: str = needed("Path of the attention block.")
    heads: Count | None = described("Number of heads before any pruning.", null=True)
    kept: Sequence[int] | None = described("The kept heads, in the original numbering.", null=True)


@dataclass(frozen=True, kw_only=True)
class HeadsOverlap(Record):
    """Two sets of heads compared."""

    counts: Sequence[Count] = needed("Number of heads in the first set and in the second.")
    shared: Count = needed("Number of the heads in both.")
    jaccard: Number = described("Shared heads over heads in either.", null=True)
    overlap: Number = described("Shared heads over those of the smaller set.", null=True)
    divergence: Number = described("Jensen-Shannon divergence over the sites, in bits.", null=True)


@dataclass(frozen=True, kw_only=True)
class ComparedMasks(Record):
    """Two masks compared by what they keep and by what they remove."""

    a: str = needed("Name of the first.")
    b: str = needed("Name of the second.")
    kept: HeadsOverlap = needed("Their kept heads.")
    removed: HeadsOverlap = needed("Their removed heads.")


@dataclass(frozen=True, kw_only=True)
class OverlapAnswer(Record):
    """The masks of several files compared."""

    schema: str = needed(SCHEMA_TEXT)
    pairs: Sequence[ComparedMasks] = needed("Each two of the same sites.")


@dataclass(frozen=True, kw_only=True)
class FileFacts(Record):
    """Base of the records of what only one kind of file tells."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts(FileFacts):
    """What a model says of itself, before its heads."""

    kind: str = needed("`dense`, `pruned` or `fused`.")
    family: str = needed("The library and its version.")
    arch: str = needed("The architecture.")
    layout: str = needed("`sliced`, or `zeroed` where removed heads are zeros.")
    labels: Sequence[str] | None = needed("The class names; null where they are not known.")
    preprocess: Mapping[str, object] = needed("How raw samples become inputs.")
    prompt: Sequence[str] | None = described("The templates that make prompts of the class names.")
    merge: Sequence[str] | None = described("Of a fused model, which parts are averaged.")


@dataclass(frozen=True, kw_only=True)
class PredictionFacts(FileFacts):
    """What a file of predictions says of the model and the data sets."""

    model: str = needed("Name of the model.")
    sha256: Any = needed("SHA-256 of its file; a list where several run one after another.")
    members: Count = needed("Number of members.")
    classes: Count = needed("Number of classes.")
    data_sets: Sequence[str] = needed("Name and number of samples of each set.")


@dataclass(frozen=True, kw_only=True)
class TrainingProgress(FileFacts):
    """How far an unfinished training is; what a broken file does not say is None."""

    step: int | None = described("Number of steps made.")
    steps: int | None = described("Number of all its steps.", key="of")
    learning_rate: str | None = described("Which of the learning rates is being tried, in words.")
    epochs: Sequence[str] = sparse("Its last epochs in words.", list)
    best_epoch: int | None = described("The epoch with the best validation accuracy.")
    best_val_accuracy: Number = described("That accuracy.")


@dataclass(frozen=True, kw_only=True)
class InfoAnswer(Record):
    """What a file says of itself."""

    schema: str = needed(SCHEMA_TEXT)
    file: str = needed("Path of the file or folder.")
    holds: Any = needed("The schema of what is in it, or what else it is; of a broken file anything.")
    bytes: Count | None = described("Size of a file of tensors.")
    tensors: Count | None = described("Number of its tensors.")
    parameters: Count | None = described("Number of their elements.")
    dtypes: Sequence[str] | None = described("Their number formats.")
    content: FileFacts = inline(FileFacts)
    told: Mapping[str, object] = inline()
    """What is passed on as it stands in the file."""
    steps: Count | None = described("Number of heads that a circuit removes.")
    rows: Sequence[Any] | None = described("Names of the rows of an eval or a bench.")
    head_map: Sequence[KeptSite] | None = described("The heads of a model or a mask.")
    head_maps: Sequence[Sequence[KeptSite]] = sparse("Those of each member of a fused model.", list)
    overlap: Sequence[ComparedMasks] | None = described("Its members compared.")
    note: str | None = described("What is not shown, or how the file is used.")
    results: Mapping[str, object] = inline()
    """What was stored with a model by whatever made it, such as the self-check of a fusion."""
    seen: Sequence[str] = sparse("Samples that a model was fitted to, in words.", list)
    training: Sequence[str] = sparse("The trainings that a model went through, in words.", list)
    source: Any = described("How it was made; of a broken file anything.")
