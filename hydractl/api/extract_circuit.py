"""The signature of ``extract-circuit``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.heads import DROP, OTHER_BASE, approx_option
from hydractl.api.making import place_for_model
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
    OneModel,
    Output,
    Prompt,
    Seed,
    Tower,
    Workers,
    running,
)
from hydractl.api.values import JsonDocument, ManyData
from hydractl.api.verb import verb
from hydractl.options.call import (
    checking,
)
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Circuit, Circuits

search = partial(opt, group="Search")
expert = partial(opt, group="Expert")

Objective = Literal["acc", "ood", "avg", "nll"]


@verb(
    "extract-circuit",
    alternatives=[("budget", "keep"), ("start_mask", "share_from")],
)
def extract_circuit(
    model: OneModel,
    *,
    val: ManyData = search(
        "Labelled validation data; several count in the mean over all of them, so repeat it for more",
        default=(),
        often=True,
    ),
    ood_val: ManyData | Sequence[str] = search(
        "Out-of-distribution validation data, as a SPEC; auto makes them of the samples of --val; repeat it for more",
        default=(),
        metavar="SPEC|auto",
        often=True,
    ),
    objective: Objective | Sequence[Objective] = search(
        "What to maximise: accuracy, AUROC against --ood-val, their mean, or minus the NLL; several make one file "
        "each [default: avg; nll with --algorithm headmap]",
        default=(),
        metavar="acc|ood|avg|nll,...",
        split=True,
        often=True,
    ),
    ood_score: Literal["msp", "entropy", "energy", "maxlogit"] = search(
        "The OOD score whose AUROC is measured", default="msp"
    ),
    budget: int | None = search("Heads to remove in all [heads]", at_least=1),
    keep: int | None = search(
        "Heads to keep, mean per site; at each site with --algorithm headmap [heads]", at_least=0, often=True
    ),
    max_drop: float | None = search(
        f"{DROP} --val; --budget or --keep may end it before [fraction]", at_least=0, below=1
    ),
    sites: str | None = search(
        "Where heads may be removed: numbers of sites from 0, such as 3-11 or 0,2,5-7 [default: everywhere]",
        metavar="LIST",
        pattern=r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*",
        example="0-3,7",
    ),
    algorithm: Literal["greedy", "headmap"] = search(
        "Remove heads one by one (Algorithm 1 of the paper), or keep the best of each site in one pass",
        default="greedy",
    ),
    approx: str | None = approx_option(
        "Approximate search, recorded in the file: each step evaluates at most N heads, those that a gradient "
        "suggests [default: exact]",
        group="Search",
        often=True,
    ),
    paired: bool = expert(
        "Measure each --val against the --ood-val in the same place only, instead of against all of them", default=False
    ),
    start_mask: JsonDocument | None = expert(
        "Start from the heads that this mask keeps; those it removes count for the budget "
        "[default: all heads of the model]",
        metavar="MASK",
    ),
    share_from: JsonDocument | None = expert(
        "In the first --share-sites, remove what this circuit removes at the same budget [default: none]",
        metavar="CIRCUIT",
    ),
    share_sites: int | None = expert(
        "Number of sites of each tower that --share-from decides; the rest of the budget goes to later ones "
        "[sites; default: none]",
        at_least=1,
    ),
    allow_other_base: bool = expert(OTHER_BASE, default=False),
    memory: str | None = expert(
        "Memory limit for activations cached between evaluations, such as 8G [default: half of what is free]",
        metavar="SIZE",
        pattern=r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]?",
        example="4G",
    ),
    timeout: float = expert(
        "How long the processes of a distributed search wait for each other [seconds]",
        default=1800.0,
        above=0,
        at_most=10**6,
    ),
    resume: bool = running("Resume the search recorded in the journal beside the output", default=False, often=True),
    output: Output = None,
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
) -> Circuit | Circuits:
    """Rank attention heads by greedy search on validation data: the order in which they can be removed.

    :mod:`hydractl.verbs.extract_circuit` removes one head after another, each time the one without which the
    ``objective`` is best, until ``budget``, ``keep`` or ``max_drop`` ends the search; ``headmap`` is a single pass.

    Returns:
        The circuit, which ``prune(circuit=...)`` takes; for several objectives, all ``circuits``.

    Raises:
        UsageError, InputError: an option, a file, a data set or the model is wrong.
        NonFiniteError: a logit is not finite.
        OutputError: ``output`` or a recorded search is there, and neither ``force`` nor ``resume`` is set.
    """
    is_headmap = algorithm == "headmap"
    with checking() as call:
        given, values = call.given, call.values
        objectives = values["objective"] or ["nll" if is_headmap else "avg"]
        val_sets = values["val"]
        ood_val_sets = values["ood_val"]
        if is_headmap:  # a single pass, which keeps as many heads of each site
            call.unused("approx", "max_drop", "budget", because="algorithm")
            call.needs("keep", "--algorithm headmap")
        call.needs("val")
        call.at_most_one("start_mask", "share_from")
        if paired and not 1 < len(val_sets) == len(ood_val_sets):
            counts = f"{len(ood_val_sets)} and {len(val_sets)}"
            call.add(f"--paired needs as many --ood-val as --val, two or more, not {counts}")

        # A budget or a number of heads ends the search. Accuracy can end it too, but not with --share-from: accuracy
        # counts only the removals of this search.
        if given("max_drop") and not given("share_from"):
            call.at_most_one("budget", "keep")
        elif not is_headmap:
            call.exactly_one("budget", "keep")
        of_ood_data = [one for one in objectives if one in ("ood", "avg")]
        if of_ood_data and "objective" not in call.wrong:
            call.needs("ood_val", f"--objective {of_ood_data[0]}")
        if output == "-" and len(objectives) > 1:
            call.add(f"--output - takes one --objective, not {len(objectives)}", "objective")
        call.goes_with("share_from", "share_sites")
        call.goes_with("share_sites", "share_from")
        if allow_other_base and not (given("start_mask") or given("share_from")):
            call.of("allow_other_base", "needs --start-mask or --share-from")
        if resume and output == "-":
            call.add("--resume needs an output file: a search that goes to standard output keeps no journal")
        call.one_from_stdin("start_mask", "share_from")

    from hydractl.verbs.extract_circuit import run

    values["objective"] = objectives
    # Several circuits are always written to files; for a program that names none, to a folder that is removed here.
    folder = place_for_model(call, "circuit.json") if len(objectives) > 1 else None
    outcome = run(call)
    if folder is not None:
        outcome.files = []
    return outcome.returned()
