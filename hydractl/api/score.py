"""The signature of ``score``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hydractl.api.heads import CRITERION, SAMPLES, Order
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
    OneModel,
    Output,
    Prompt,
    Seed,
    Tower,
    Workers,
)
from hydractl.api.verb import verb
from hydractl.criteria import CRITERIA, Criterion, Decider, arguments_help, read_criterion
from hydractl.options.call import checking
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Scores

scoring = partial(opt, group="Scoring")


@verb("score", alternatives=[("keep", "remove")], further_help=lambda: {"Scoring": arguments_help()})
def score(
    model: OneModel,
    *,
    method: Criterion | str | None = scoring(
        CRITERION, choices=CRITERIA.names, reads=read_criterion, type=Criterion, often=True
    ),
    samples: int = scoring(f"{SAMPLES} [samples]", default=512, at_least=1, often=True),
    order: Order | None = scoring(
        "Score site by site on the model as pruned so far, which takes --keep or --remove, or all at once on the "
        "full model [default: sequential with --keep or --remove, else one-shot]"
    ),
    keep: int | None = scoring("Heads to keep per site [heads]", at_least=0, often=True),
    remove: int | None = scoring("Heads to remove per site [heads]", at_least=0),
    # Options that most verbs have: each type, declared in hydractl.api.options, holds the flag and its help.
    output: Output = None,
    data: DataSet = None,
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    tower: Tower = None,
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
) -> Scores:
    """Give every attention head an importance score by the criterion ``method``, such as Taylor; a low one goes first.

    :mod:`hydractl.verbs.score` computes the scores. Which ``order`` is taken, and what has no effect:

    - a criterion that itself decides which heads stay: no order, no numbers of heads;
    - ``one-shot``, or no order and a criterion without data: all heads on the full model, no numbers of heads;
    - no order and a criterion with data: ``sequential`` if ``keep`` or ``remove`` is there, else ``one-shot``.

    Returns:
        The scores, which ``prune(scores=...)`` takes.

    Raises:
        UsageError, InputError: an option, a file, a data set or the model is wrong.
        NonFiniteError: a score is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    criterion = method if isinstance(method, Criterion) else None
    reads_no_data = criterion is not None and not criterion.needs_data
    with checking() as call:
        if reads_no_data:
            call.unused("max_length", because="method")

        # Settle the order. ``call.unused`` puts options back to their defaults, and complains of those that were given.
        if isinstance(criterion, Decider):
            call.unused("order", "keep", "remove", because="method")
            order = None
        elif order == "one-shot":
            call.unused("keep", "remove", because="order")
        elif order is None and reads_no_data:
            # Such scores do not depend on the heads that were removed before, so a number of heads changes nothing.
            call.unused("keep", "remove", because="method")
        # The scores at a number of heads are those of ``prune --method`` at this number.
        elif order is None:
            has_count = call.given("keep") or call.given("remove")
            order = "sequential" if has_count else "one-shot"

        # What is needed: a criterion, data if it reads some, and for sequential scoring how many heads go.
        call.needs("method")
        if criterion is not None and criterion.needs_data:
            call.needs("data", f"--method {criterion}")
        if order == "sequential":
            call.exactly_one("keep", "remove")

    from hydractl.verbs.score import run

    call.values["order"] = order or "one-shot"
    return run(call).returned()
