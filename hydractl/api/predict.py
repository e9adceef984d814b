"""The signature of ``predict``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.options import (
    Arch,
    BatchSize,
    Config,
    DataSet,
    Device,
    DryRun,
    Dtype,
    Force,
    Labels,
    Limit,
    MaxLength,
    ModelAndInputs,
    Prompt,
    Seed,
    Workers,
    io,
    requiring,
)
from hydractl.api.values import Path, Texts
from hydractl.api.verb import verb
from hydractl.options.call import checking
from hydractl.options.option import ends_in
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Predictions

predicting = partial(opt, group="Predicting")

LINE_FILES = (".jsonl", ".csv")
"""The endings of files that predictions are written to, a line or a row for each sample."""


@verb("predict")
def predict(
    model: ModelAndInputs,
    data: DataSet = None,
    *,
    on_bad: Literal["error", "skip"] = predicting(
        "A sample that cannot be read: error stops and names it; skip leaves it out, counts and lists it",
        default="error",
    ),
    top: int = predicting(
        "List the N most probable classes of each sample [classes]", default=0, at_least=0, often=True
    ),
    flagged: bool = predicting(
        "List only the samples that are flagged; a file of predictions holds all", default=False, often=True
    ),
    report: Path | None = predicting(
        "Write the summary, which is else only printed: how many samples are flagged, with an interval",
        metavar="FILE.json",
        check=ends_in(".json"),
        writes=True,
        often=True,
    ),
    resume: bool = predicting("Resume the unfinished file of the same command", default=False),
    require: Texts = requiring(
        "Exit with 4 unless it holds: ood_share, confidence, n or skipped, as KEY<=NUMBER; repeat it for more",
        default=(),
        group="Predicting",
    ),
    output: Path | None = io(
        "File of the predictions, .jsonl or .csv, a line for each sample [default: lines on standard "
        "output, on a terminal a table of the first]",
        metavar="FILE",
        short="-o",
        writes=True,
        often=True,
    ),
    # Options that most verbs have: each type, declared in hydractl.api.options, holds the flag and its help.
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
) -> Predictions:
    """Predict the class of each sample of unlabelled data, and flag the samples that are out of distribution (OOD).

    :mod:`hydractl.verbs.predict` runs the model. A sample is flagged if its OOD score reaches the threshold that the
    checkpoint holds. A loaded model predicts a batch by its own method ``predict``.

    Args:
        model: one checkpoint, preferably one that :func:`calibrate` wrote, which holds a threshold.
        data: the samples.

    Returns:
        The summary, with a row for each sample; with ``output`` the rows are only in that file.

    Raises:
        UsageError, InputError: an option, a sample or the model is wrong.
        NonFiniteError: a logit is not finite.
        RequirementError: one of ``require`` is not met.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    path = None if output == "-" else output  # None: the predictions are printed or returned
    # ``call.add`` notes a problem of the options; all of them are raised together when the block ends.
    with checking() as call:
        # The data are either the INPUTs, which follow the MODEL on the command line as in `predict a.st x.png y.png`,
        # or those of --data.
        models = call.values["model"]  # [MODEL, INPUT, INPUT, ...]
        inputs = [item.text for item in models[1:]]
        if inputs and call.of_this_verb("data"):
            call.add("give only one of INPUT, --data", "data")
        elif models and not inputs and data is None:
            call.add("predict needs an INPUT: a folder, a file, - for standard input, or --data SPEC")

        # The file of predictions: one line a sample, in a format that the ending names.
        if path is not None and not str(path).lower().endswith(LINE_FILES):
            endings = ", ".join(LINE_FILES)
            call.add(f"--output {path}: predictions are written to {endings}", "output")
        if flagged and path is not None:
            call.add("--flagged is for what is printed: the file of --output holds every sample, with is_ood")
        if resume and path is None:
            call.add("--resume needs --output: what was printed is not kept")

    from hydractl.verbs.predict import run

    return run(call).returned()
