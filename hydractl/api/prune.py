"""The signature of ``prune``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.heads import CRITERION, DROP, OTHER_BASE, SAMPLES, Order
from hydractl.api.making import made, place_for_model
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
from hydractl.api.values import Data, JsonDocument
from hydractl.api.verb import verb
from hydractl.criteria import (
    AnyCriterion,
    Criterion,
    Decider,
    any_criterion_names,
    arguments_help,
    read_any_criterion,
)
from hydractl.criteria.weights import WEIGHT_CRITERIA
from hydractl.options.call import Call, checking
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.models import Model

SELECTION = "Head selection (give one)"
choosing = partial(opt, group=SELECTION)
amount = partial(opt, group="How much")
form = partial(opt, group="Sharing and form")

_UNUSED = {
    "weights": (
        *("scores", "circuit", "mask", "allow_other_base", "keep", "remove", "max_drop", "val", "scope", "order"),
        *("sample_from", "share_sites", "with_mask", "layout"),
    ),
    # A mask says everything, a circuit the order of the heads, scores their importance.
    "mask": (
        *("keep", "remove", "max_drop", "val", "scope", "order", "samples", "sample_from", "tower", "max_length"),
    ),
    "circuit": ("scope", "order", "samples", "max_length"),
    "scores": ("order", "samples", "sample_from", "max_length"),
}
"""The options without effect beside the one that decides; of several the first one does."""

OF_WEIGHTS = ", ".join(WEIGHT_CRITERIA)
OBA = WEIGHT_CRITERIA["oba"]


@verb(
    "prune",
    alternatives=[("method", "scores", "circuit", "mask"), ("keep", "remove", "max_drop", "weights")],
    writes="weights",
    further_help=lambda: {SELECTION: arguments_help()},
)
def prune(
    model: OneModel,
    *,
    method: AnyCriterion | str | None = choosing(
        f"{CRITERION}; oba is for --weights",
        choices=any_criterion_names(),
        reads=read_any_criterion,
        type=AnyCriterion,
        often=True,
    ),
    scores: JsonDocument | None = choosing("Scores from the score verb; - is standard input", often=True),
    circuit: JsonDocument | None = choosing("A removal order from extract-circuit; - is standard input", often=True),
    mask: JsonDocument | None = choosing("The heads to keep; - is standard input", often=True),
    allow_other_base: bool = choosing(OTHER_BASE, default=False),
    keep: int | None = amount(
        "Heads to keep per site; mean per site with --scope global [heads]", at_least=0, often=True
    ),
    remove: int | None = amount("Heads to remove per site; in all with --scope global [heads]", at_least=0, often=True),
    max_drop: float | None = amount(
        f"{DROP} --val or else on the samples that chose the heads; the one before is taken [fraction]",
        at_least=0,
        below=1,
    ),
    val: Data | None = amount("Labelled validation data for --max-drop, better not what the heads are chosen with"),
    weights: float | None = amount(
        f"Remove no heads, set single weights to zero: the share of all parameters to keep, with --method "
        f"{OF_WEIGHTS} [fraction]",
        above=0,
        below=1,
    ),
    weight_steps: int | None = amount(
        "Remove the weights of --weights in N steps, each scored anew on what the steps before have left, and each "
        f"to the same share of it [steps; default: {OBA.steps} with --method oba, as its authors do]",
        at_least=1,
    ),
    scope: Literal["site", "global"] | None = amount(
        "Compare heads within each site, or over all sites of the towers; a circuit is always global "
        "[default: site; global for a model of two towers]"
    ),
    order: Order | None = amount(
        "Score site by site on the model as pruned so far, or all at once on the full model "
        "[default: sequential; one-shot with --scope global]"
    ),
    samples: int = amount(f"{SAMPLES} [samples]", default=512, at_least=1),
    sample_from: int | None = amount(
        "Draw the heads to remove by --seed from the first N of the circuit [heads; default: take them in order]",
        at_least=1,
    ),
    share_sites: int | None = form(
        "Keep the same heads as --with in the first N sites of each tower [sites; default: none]", at_least=1
    ),
    with_mask: JsonDocument | None = form("The mask for --share-sites", metavar="MASK", flag="--with"),
    layout: Literal["sliced", "zeroed"] | None = form(
        "Cut the heads out of the weights of a .st file, or set their output columns to zero, as a folder always does "
        "[default: sliced for a .st file, zeroed for a folder]"
    ),
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
) -> Model:
    """Cut attention heads out of a model, or set single weights to zero (``weights``).

    :mod:`hydractl.verbs.prune` ranks the heads by a criterion (``method``) or by ``scores`` and removes those with the
    lowest ones; or it keeps the heads of a ``circuit`` or a ``mask``.

    ``scores``, ``circuit``, ``mask`` and ``with_mask`` take a file or a document.

    Returns:
        The pruned model; ``result`` holds its mask and cost. Without ``output`` its file is temporary.

    Raises:
        UsageError, InputError: an option, a file, a data set or the model is wrong.
        NonFiniteError: a weight or a score is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    criterion = method if isinstance(method, AnyCriterion) else None
    reads_data = criterion is not None and criterion.needs_data
    reads_no_data = criterion is not None and not criterion.needs_data
    with checking() as call:
        given = call.given
        # What decides, and which options then have no effect. ``call.unused`` puts them back to their defaults, and
        # complains of those that were given to this verb.
        decisive = next(filter(given, _UNUSED), None)
        if decisive is not None:
            call.unused(*_UNUSED[decisive], because=decisive)
            if decisive == "weights" and reads_no_data:  # the scores are the same in every step
                call.unused("weight_steps", because="method")
        elif given("method"):
            call.unused("sample_from", because="method")
            if reads_no_data:
                call.unused("max_length", because="method")
            if not given("with_mask"):  # no file is read that could be of another base
                call.unused("allow_other_base", because="method")
            if isinstance(criterion, Decider):  # it says how many heads stay, and where
                call.unused("keep", "remove", "max_drop", "val", "scope", "order", because="method")
            elif scope == "global" and order == "sequential":
                call.unused("order", because="scope")

        # What is needed. Single weights have criteria of their own; whole heads come from exactly one source, and a
        # ranking of heads needs a number, or a limit to the loss of accuracy (``max_drop``).
        if given("weights"):
            _check_criterion_of_weights(call, criterion, dtype)
        elif criterion is not None and not isinstance(criterion, Criterion):
            call.goes_with("method", "weights")
        else:
            call.exactly_one("method", "scores", "circuit", "mask")
            ranks_heads = given("method") and not isinstance(criterion, Decider)
            if given("scores") or ranks_heads:
                call.exactly_one("keep", "remove", "max_drop")
            elif given("circuit"):
                call.at_most_one("keep", "remove", "max_drop")
                if given("sample_from") and not (given("keep") or given("remove")):
                    call.of("sample_from", "needs one of --keep, --remove")
            if reads_data:
                call.needs("data", f"--method {criterion}")

            # Accuracy is measured on the samples that chose the heads, if there are any, else on --val.
            if given("max_drop"):
                if given("share_sites"):
                    call.add("--max-drop cannot be given with --share-sites")
                if given("scores") or reads_no_data:
                    chosen_by = "--scores" if given("scores") else f"--method {criterion}"
                    call.needs("val", f"--max-drop with {chosen_by}")
                # The accuracies in a circuit of another base are those of other weights.
                if given("circuit") and allow_other_base:
                    call.needs("val", "--max-drop with --allow-other-base")
            call.goes_with("share_sites", "with_mask")
            call.goes_with("with_mask", "share_sites")
            call.goes_with("val", "max_drop")
            call.one_from_stdin("scores", "circuit", "mask", "with_mask")
        call.goes_with("weight_steps", "weights")

    from hydractl.verbs.prune import run

    folder = place_for_model(call, "pruned.st")
    return made(call, run(call), folder)


def _check_criterion_of_weights(call: Call, criterion: AnyCriterion | None, dtype: str) -> None:
    """Add a problem to the call if the criterion cannot score single weights, as ``--weights`` asks for.

    - There is none: ``--method`` is needed.
    - It scores heads and not weights.
    - It reads data, and the number format is below 32 bits, or there are no data.
    """
    if criterion is None:
        call.needs("method", "--weights")
        return
    if criterion.name not in WEIGHT_CRITERIA:
        call.add(f"--method {criterion} scores heads, --weights takes {OF_WEIGHTS}", "method")
        return
    if not WEIGHT_CRITERIA[criterion.name].needs_data:
        return
    # OBA is the only one that reads data. Its gradients need 32 bits or more.
    if dtype not in ("float32", "float64"):
        call.add("--method oba needs --dtype float32 or float64")
    call.needs("data", f"--method {criterion}")
