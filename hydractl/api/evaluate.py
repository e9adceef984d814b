"""The signature of ``eval``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hydractl.api.options import (
    SPEC_FORMS,
    Arch,
    BatchSize,
    Config,
    Device,
    DryRun,
    Dtype,
    Figures,
    Force,
    Labels,
    Limit,
    MaxLength,
    Models,
    OnBad,
    Prompt,
    Seed,
    WholeLastBlock,
    Workers,
    io,
    requiring,
)
from hydractl.api.validating import (
    KNN_K,
    LABEL_MAP,
    NEGATIVE_WORDS,
    VALIDATION,
    Calibrations,
    Conformal,
    ConformalScore,
    OodVal,
    Val,
    add_problems_of_scores,
    add_problems_of_validation,
    drop_unused_training_data,
    fits_to_training_data,
    temperature_option,
    threshold_option,
)
from hydractl.api.values import Data, JsonDocument, NamedData, Path, Texts
from hydractl.api.verb import verb
from hydractl.expressions.data_sets import (
    ALL_CORRUPTIONS,
    CORRUPTIONS,
    SEVERITIES,
    OodSet,
)
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.requested import ALL_SCORES, PASSES, Threshold, check_ood_score
from hydractl.options.call import (
    Call,
    checking,
)
from hydractl.options.option import ends_in
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Evaluation

HEADING = "Evaluation"
evaluating = partial(opt, group=HEADING)
dropping = partial(opt, group="MC dropout")


def _check_ood(ood_set: OodSet) -> None:
    """Check a data set of ``--ood``; ValueError for a name with another meaning in the answer."""
    if ood_set.name in ("id", "edges"):
        raise ValueError(f"cannot be named {ood_set.name!r}, which the answer has a use for")


@verb("eval", before=drop_unused_training_data)
def evaluate(
    models: Models = (),
    *,
    ood: NamedData = evaluating(
        "Out-of-distribution data, as NAME[:near|far]=SPEC; repeat it for more",
        default=(),
        check=_check_ood,
        often=True,
    ),
    ood_score: Texts = evaluating(
        f"The score that separates OOD from ID samples, on logits: {', '.join(SCORES)}; on features, with --train: "
        f"{', '.join(ON_FEATURES)}; several, or {ALL_SCORES}, to compare them in every row [default: what the "
        "checkpoint has, else msp]",
        default=(),
        check=check_ood_score,
        split=True,
    ),
    train: Data | None = evaluating("Training data, which --ood-score on features are fitted to"),
    knn_k: int = KNN_K(default=50, group=HEADING),
    negative_words: Path | None = NEGATIVE_WORDS(group=HEADING),
    label_map: JsonDocument | None = LABEL_MAP(group=HEADING),
    bootstrap: int = evaluating(
        "Resamples for 95 % intervals of every metric and of its difference to the first MODEL; 0: none",
        default=0,
        at_least=0,
        often=True,
    ),
    predictions: Path | None = evaluating(
        "Also write the logits of every member on all data, as predictions that eval takes as a MODEL",
        metavar="FILE",
        check=ends_in(".st"),
        writes=True,
    ),
    resume: bool = evaluating(
        "Resume the unfinished predictions of the same command (--predictions F.st)", default=False
    ),
    allow_seen: bool = evaluating(
        "Measure on samples that scores, a circuit, a fine-tuning or a calibration have seen, and mark them",
        default=False,
    ),
    require: Texts = requiring(
        "Exit with 4 unless it holds in every row, as [NAME:]KEY>=NUMBER; repeat it for more", default=(), group=HEADING
    ),
    corruptions: Texts = evaluating(
        f"Also measure on corrupted images of --test: {ALL_CORRUPTIONS}, or some of {', '.join(CORRUPTIONS)}",
        default=(),
        choices=(ALL_CORRUPTIONS, *CORRUPTIONS),
        split=True,
    ),
    severities: int | Sequence[int] = evaluating(
        "How strong the corruptions are, 1 to 5",
        default=SEVERITIES,
        at_least=SEVERITIES[0],
        at_most=SEVERITIES[-1],
        split=True,
    ),
    # What is chosen on validation data: types of hydractl.api.validating hold the flags and their help.
    val: Val = None,
    ood_val: OodVal = (),
    temperature: str | float | None = temperature_option(
        "Scale the log of the averaged prediction; fit (one temperature by the NLL of --val), vector (a scale and "
        "a bias per class), a number, or none to ignore that of the checkpoint [default: what the checkpoint has]",
        group=VALIDATION,
    ),
    calibration: Calibrations = (),
    threshold: str | Threshold | None = threshold_option(),
    conformal: Conformal = None,
    conformal_score: ConformalScore = "lac",
    mc_dropout: float | None = dropping(
        "Run every MODEL --passes times with dropout of rate P in the places of finetune --dropout, and measure "
        "the passes as an ensemble",
        metavar="P",
        at_least=0,
        below=1,
    ),
    passes: int | None = dropping(f"Passes with --mc-dropout [passes; default: {PASSES}]", at_least=2),
    test: Data | None = io(f"The data set that is tested on: {SPEC_FORMS}", often=True),
    # Options that most verbs have: each type, declared in hydractl.api.options, holds the flag and its help.
    output: Figures = None,
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    on_bad: OnBad = "error",
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
    whole_last_block: WholeLastBlock = False,
) -> Evaluation:
    """Measure accuracy, calibration, OOD detection and diversity of models on the same test data.

    :mod:`hydractl.verbs.eval` runs each model, or reads the logits that an earlier call has stored.

    Args:
        models: one model, several, or a mapping from the names of rows to models. A list in the mapping is an ensemble
            whose models run one after another.
        ood: a mapping from names (``NAME``, ``NAME:near`` or ``NAME:far``) to data.
        ood_val: a mapping from names to data, or ``auto``.

    Returns:
        The rows, one for each model, in its ``models``.

    Raises:
        UsageError, InputError: an option, a file, a data set or a model is wrong, or test samples have been seen.
        NonFiniteError: a logit is not finite.
        RequirementError: one of ``require`` is not met.
        OutputError: ``output`` or ``predictions`` exists, and ``force`` is not set.
    """
    # ``call.values`` has the value of each option by name; problems that are noted are raised when the block ends.
    with checking() as call:
        values = call.values
        scores = values["ood_score"]
        add_problems_of_validation(call)
        call.goes_with("passes", "mc_dropout")

        # OOD scores on features, such as Mahalanobis, are fitted to training data; scores on logits need none.
        if call.given("train") and not fits_to_training_data(scores):
            call.add(f"--train needs an --ood-score on features: {', '.join(ON_FEATURES)}", "ood_score")
        add_problems_of_scores(call, scores)

        # Further data sets.
        _add_problems_of_corruptions(call, values["corruptions"])

        if resume and predictions is None:
            call.add("--resume needs --predictions F.st, which keeps what has been computed")

        # Without --test the test sets are those of a predictions file. --limit also applies to validation data.
        for name in ("ood", "corruptions", "train"):
            call.goes_with(name, "test")
        if not call.given("val") and not call.given("ood_val"):
            call.goes_with("limit", "test")

    from hydractl.verbs.eval import run

    return run(call).returned()


def _add_problems_of_corruptions(call: Call, names: Sequence[str]) -> None:
    """Add the problems of ``--corruptions`` and ``--severities`` with each other.

    Severities from a file are no problem without corruptions: they may be meant for another command.
    """
    if ALL_CORRUPTIONS in names and len(names) > 1:
        call.add(f"--corruptions {ALL_CORRUPTIONS} names every corruption: leave out the others", "corruptions")
    if call.sources["severities"] == "flag" and not call.given("corruptions"):
        call.of("severities", "needs --corruptions")
