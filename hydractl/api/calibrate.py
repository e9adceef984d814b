"""The signature of ``calibrate``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hydractl.api.making import made, place_for_model
from hydractl.api.options import (
    AnyModel,
    Arch,
    BatchSize,
    Config,
    Device,
    DryRun,
    Dtype,
    Force,
    Labels,
    Limit,
    MaxLength,
    OnBad,
    Output,
    Prompt,
    Seed,
    WholeLastBlock,
    Workers,
)
from hydractl.api.validating import (
    KNN_K,
    LABEL_MAP,
    NEGATIVE_WORDS,
    Calibrations,
    Conformal,
    ConformalScore,
    OodVal,
    Val,
    add_problems_of_scores,
    add_problems_of_validation,
    drop_unused_training_data,
    temperature_option,
    threshold_option,
)
from hydractl.api.values import Data, JsonDocument, Path, Texts
from hydractl.api.verb import verb
from hydractl.metrics.ood_scores import ON_FEATURES, needs_training_data
from hydractl.metrics.requested import ALL_SCORES, Threshold, check_ood_score
from hydractl.options.call import (
    checking,
)
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.models import Model

HEADING = "Calibrating"
calibrating = partial(opt, group=HEADING)


@verb("calibrate", writes="weights", or_json=True, before=drop_unused_training_data)
def calibrate(
    model: AnyModel,
    *,
    temperature: str | float | None = temperature_option(
        "Scale the log of the averaged prediction; fit (one temperature by the NLL of --val), vector (a scale and "
        "a bias per class), a number, or none to drop that of the checkpoint [default: what the checkpoint has]",
        group=HEADING,
    ),
    ood_score: Texts = calibrating(
        "The score that separates OOD from ID samples; of several, or all, the one with the highest mean AUROC of "
        "--ood-val against --val, of near ties the one that is named first [default: what the checkpoint has, "
        "else msp]",
        default=(),
        check=check_ood_score,
        split=True,
        often=True,
    ),
    train: Data | None = calibrating(
        f"Training data, which scores on features are fitted to: {', '.join(filter(needs_training_data, ON_FEATURES))}",
    ),
    knn_k: int = KNN_K(default=50, group=HEADING),
    negative_words: Path | None = NEGATIVE_WORDS(group=HEADING),
    label_map: JsonDocument | None = LABEL_MAP(group=HEADING),
    note: str | None = calibrating(
        "A sentence about how this model was chosen, for the provenance of the checkpoint", metavar="TEXT"
    ),
    # Options that eval has, too: each type, declared in hydractl.api.validating, holds the flag and its help.
    val: Val = None,
    ood_val: OodVal = (),
    calibration: Calibrations = (),
    threshold: str | Threshold | None = threshold_option(often=True),
    conformal: Conformal = None,
    conformal_score: ConformalScore = "lac",
    # Options that most verbs have: each type, declared in hydractl.api.options, holds the flag and its help.
    output: Output = None,
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
) -> Model:
    """Choose the temperature, the OOD threshold and the OOD score of a model on validation data.

    :mod:`hydractl.verbs.calibrate` runs the model on ``val`` and ``ood_val``. A temperature minimises the NLL, a
    threshold is a quantile of the OOD scores, and of several OOD scores the one with the highest mean AUROC is taken.

    One checkpoint becomes a new checkpoint that holds what was chosen. For members ``A+B+C`` and stored predictions,
    ``output`` ends in ``.json``, and the file is for the argument ``calibration`` of ``eval``.

    Args:
        model: one checkpoint, members ``A+B+C``, or predictions that ``eval`` has stored.
        ood_val: a mapping from names to data, or ``auto``.

    Returns:
        The calibrated model; ``result`` holds what was chosen. Without ``output`` its file is temporary. Where
        ``output`` ends in ``.json``, it is no model: its ``refs`` are empty.

    Raises:
        UsageError, InputError: an option, a file, a data set or the model is wrong, or samples are too few to fit to.
        NonFiniteError: a logit is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    # ``call.values`` has the value of each option by name; ``call.add`` notes a problem, raised when the block ends.
    with checking() as call:
        scores = call.values["ood_score"]
        add_problems_of_validation(call)

        # Without one of these options there is nothing to choose.
        if not any(map(call.given, ("temperature", "threshold", "ood_score", "conformal", "calibration"))):
            call.add("calibrate needs something to choose: --temperature, --threshold, --conformal or --ood-score")

        # Of several scores the one with the highest AUROC is taken, which takes ID and OOD samples.
        if len(scores) > 1 or ALL_SCORES in scores:
            as_written = ",".join(scores)
            for needed in ("val", "ood_val"):
                if not call.given(needed):
                    option = call.label(needed)
                    if needed == "ood_val":
                        option += " (auto makes some)"
                    call.add(f"--ood-score {as_written} needs {option}, to choose one of them on")
        add_problems_of_scores(call, scores)

    from hydractl.verbs.calibrate import run

    folder = place_for_model(call, "calibrated.st")
    return made(call, run(call), folder)
