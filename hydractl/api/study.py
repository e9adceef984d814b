"""The signature of ``study``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hydractl.api.heads import approx_option
from hydractl.api.options import (
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
    OneFile,
    Output,
    Prompt,
    Seed,
    Tower,
    Workers,
    running,
)
from hydractl.api.values import Data, NamedData, Texts
from hydractl.api.verb import verb
from hydractl.metrics.requested import Threshold
from hydractl.options.call import checking
from hydractl.options.signature import opt
from hydractl.studies.request import ood_val_of_study
from hydractl.studies.rows import KINDS

if TYPE_CHECKING:
    from hydractl.api.results import Study

in_data = partial(opt, group="Data of the study")
in_study = partial(opt, group="Study")

ROWS = ("default", *KINDS)
"""Names of ``--rows``."""


@verb("study", writes="folder")
def study(
    model: OneFile,
    *,
    train: Data | None = in_data(
        "Training data, for rows that are trained or pruned with them and for OOD scores on features "
        "[default: none; rows that need them are left out]",
        often=True,
    ),
    val: Data | None = in_data(
        "In-distribution validation data; one half is for the search, the other one to choose by",
        often=True,
    ),
    ood_val: NamedData = in_data(
        "Out-of-distribution validation data, never the same as a test set, divided likewise; repeat it for more: "
        "the search takes the first one; auto makes them of the samples of --val [default: auto, and the score is "
        "chosen blind]",
        default=(),
        metavar="[NAME=]SPEC|auto",
        reads=ood_val_of_study,
        often=True,
    ),
    test: Data | None = in_data(
        "In-distribution test data, which no model runs on before everything is chosen", often=True
    ),
    ood: NamedData = in_data(
        "Out-of-distribution test data, as NAME[:near|far]=SPEC; repeat it for more [default: made of the samples "
        "of --test]",
        default=(),
        often=True,
    ),
    rows: Texts = in_study(
        f"Rows to make beside the single model: {', '.join(ROWS)}; default stands for those that need no training",
        default=("default",),
        choices=ROWS,
        split=True,
    ),
    max_drop: float = in_study("Accuracy that may be lost on validation data", default=0.01, at_least=0, at_most=1),
    time: str | None = in_study(
        "Time that the study may take, such as 10m, 1h or 8h; where an estimate is longer, the search is "
        "approximated, takes fewer samples, and rows are left out; the plan says what [default: no limit]",
        metavar="TIME",
        pattern=r"[0-9]{1,6}[smh]",
        example="90s, 10m or 8h",
        often=True,
    ),
    search_samples: int | None = in_study(
        "Samples of each set in the search [samples; default: half of the validation data]", at_least=2
    ),
    approx: str | None = approx_option("Approximate the search, as in extract-circuit [default: exact]", group="Study"),
    fit_samples: int = in_study(
        "Samples of --train that OOD scores on features are fitted to, every Nth; 0 leaves these scores out [samples]",
        default=5000,
        at_least=0,
    ),
    epochs: int = in_study("Epochs of rows that are trained [epochs]", default=3, at_least=1),
    lr: float | Sequence[float] = in_study(
        "Learning rate of rows that are trained; of several, each training is made with each and the best on the "
        "first half of --val is kept",
        default=(1e-4,),
        metavar="X[,X...]",
        above=0,
        split=True,
    ),
    threshold: str | Threshold = in_study(
        "Share of in-distribution samples that best.st flags as OOD",
        default="id:0.05",
        metavar="id:P",
        pattern=r"id:0?\.[0-9]+",
        example="id:0.05",
        type=Threshold,
        reads=Threshold.read,
    ),
    bootstrap: int = in_study("Resamples for 95 % intervals [resamples]", default=1000, at_least=100),
    timed: bool = running("Measure the latency of best.st with bench at the end", default=True),
    output: Output = None,
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    tower: Tower = None,
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
) -> Study:
    """Find out whether pruning and fusing help a model: choose variants on ``val``, and compare them on ``test``.

    :mod:`hydractl.verbs.study` calls the other verbs, from pruning to evaluation, and comes to a verdict.

    It goes on where an earlier call was interrupted. The commands that it keeps name samples and a model in memory as
    messages do, such as ``memory:val``: to run them elsewhere, write these to files.

    Returns:
        The verdict; the files are in the folder ``output``, or in one named after the model.

    Raises:
        UsageError, InputError: an option, a data set or the model is wrong, or sets share samples.
        NonFiniteError: a weight, a logit or a loss is not finite.
        OutputError: the folder belongs to another study.
    """
    with checking() as call:
        call.needs("val")
        call.needs("test")

    from hydractl.verbs.study import run

    return run(call).returned()
