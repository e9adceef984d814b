"""``hydractl prune``: remove heads for good. Scores, a circuit or a mask choose them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydractl.criteria import Criterion, Decider
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, claimed, file_path, seed_mark, write_json
from hydractl.files.checkpoint import write_checkpoint
from hydractl.files.circuit_answer import MaskRecord
from hydractl.files.description import Description, provenance
from hydractl.files.fingerprints import Entry, merged, seen_in
from hydractl.files.head_documents import mask_from_json, ranking_from_json, scores_from_json
from hydractl.files.header import read_header
from hydractl.files.verb_answers import PruneAnswer, SizeChange
from hydractl.heads.mask import HeadMask, HeadScores
from hydractl.heads.selection import (
    apply_fixed,
    check_scored,
    check_whole,
    lowest,
    sample_ranking,
    select_global,
    select_per_site,
    shared_sites,
    site_budget,
    total_budget,
)
from hydractl.jsonio import Document, json_bytes, shown
from hydractl.log import Log
from hydractl.model.cost import size_of
from hydractl.model.matching import asked_classes, check_base, of_one_member, sites_of
from hydractl.model.source import Source, open_source, pruned, with_max_length, write_folder
from hydractl.model.stored import check_finite_weights
from hydractl.options.call import Call, filled
from hydractl.report.texts import signed_change
from hydractl.verbs.choosing import Selection
from hydractl.verbs.max_drop import HeadChoice, choose_within, removals_of_circuit
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.prune_weights import prune_weights
from hydractl.verbs.score import check_criterion, score_source, site_paths

_MASK_IN_FOLDER = "hydractl.mask.json"

Fixed = dict[str, tuple[int, ...]]
"""By the path of a site (attention module): the heads to keep there, at the sites where ``--with`` decides."""


def run(call: Call) -> Outcome:
    """Return which attention heads of a model were removed and what that saves; the pruned model is written.

    With ``--weights`` single weights are removed instead, by :func:`prune_weights`. A dry run returns what is known
    without reading data.
    """
    values = call.values

    # The model, and how heads are chosen; scope and order by the model, if nobody set them.
    # The length applies only to the texts that heads or weights are scored on; the pruned model keeps its own.
    opening = replace(opening_options(values, bodies=True), max_length=None)
    source = of_one_member(open_source(values["model"][0], opening), "prune")
    if values["weights"] is not None:
        return prune_weights(source, call)
    method = values["method"]
    criterion = method if isinstance(method, Criterion) else None
    wanted = filled(Selection, values, verb="prune", criterion=criterion, reads_weights=not values["dry_run"])
    wanted = settled(source, wanted)
    with_max_length(source, wanted.max_length)  # raises an error for a length that the model cannot take

    # The outputs: a folder (its name ends in a slash) holds the mask of kept heads; a checkpoint has it in a file
    # beside. Removed heads are cut out of a checkpoint (sliced), and zeros in a folder, if nobody set the layout.
    output = values["output"] or default_name(source, wanted)
    as_folder = output.endswith("/")
    if as_folder and values["layout"] == "sliced":
        raise UsageError(
            "--layout sliced: a folder has the shapes of all heads, which its library expects",
            hint="leave --layout out, or write a .st file",
        )
    layout = values["layout"] or ("zeroed" if as_folder else "sliced")
    path = Path(output) if as_folder else file_path(output)
    mask_path = path / _MASK_IN_FOLDER if as_folder else mask_name(path)

    # Claim the outputs before anything is computed.
    force = values["force"]
    with (
        Output(path, force=force, folder=as_folder) as target,
        claimed(None if as_folder else mask_path, force=force) as mask_output,
    ):
        if values["dry_run"]:
            return Outcome(_plan(source, wanted, layout, [path, mask_path]))
        return _write(source, wanted, layout, target, mask_output, call.log)


def default_name(source: Source, wanted: Selection) -> str:
    """Return the name of the output: the model, how it was pruned, and the seed if it decides the result.

    E.g. ``vit.taylor-8.st`` keeps 8 heads by the criterion taylor, ``vit.taylor-minus4.st`` removes 4,
    ``vit.taylor-drop0.01.st`` loses at most 0.01 of accuracy. With a seed other than the usual one the name is
    ``vit.taylor-8.seed1.st``.
    """
    # The name of what decides which heads are removed: the criterion, or a file without its ending ("-" is standard
    # input).
    file = wanted.scores or wanted.circuit or wanted.mask
    if wanted.criterion:
        change = wanted.criterion.name
    elif str(file) == "-":
        change = "scores" if wanted.scores else "mask"
    else:
        change = Path(str(file)).name.removesuffix(".json").removesuffix(".mask")
    change = change.removeprefix(f"{source.name}.")  # the name of vit.circuit.acc.json already begins with "vit."

    # How many heads stay or go, and the seed where samples or an order are drawn by it.
    if wanted.keep is not None:
        change += f"-{wanted.keep}"
    if wanted.remove is not None:
        change += f"-minus{wanted.remove}"
    if wanted.max_drop is not None:
        change += f"-drop{wanted.max_drop:g}"
    if wanted.criterion or wanted.sample_from is not None:
        change += seed_mark(wanted.seed)
    return f"{source.name}.{change}.st"


def mask_name(path: Path) -> Path:
    """Return the path of the mask of a checkpoint, e.g. ``a.mask.json`` for ``a.st``."""
    stem = re.sub(r"\.(st|safetensors)$", "", path.name)
    name = f"{stem}.mask.json"
    return path.with_name(name)


# --- choosing ---------------------------------------------------------------------------------------------------------


def choose(source: Source, wanted: Selection, log: Log) -> HeadChoice:
    """Return the heads that are kept, what decided that, and the samples that the decision and the model have seen.

    ====================================  ==========================================================================
    no ``--max-drop``                     as many are removed as the options or the file say
    ``--max-drop``, scores                budgets 0, 1, 2 and so on are measured; the largest within the drop is taken
    ``--max-drop``, circuit, ``--val``    the same, after each removal of the circuit
    ``--max-drop``, circuit, no --val     nothing is measured: the search has stored the accuracy of each budget
    ====================================  ==========================================================================

    A budget is the number of heads to remove; a circuit the order in which a search removed heads.

    Raises:
        UsageError: ``--val`` is to measure each removal of a circuit, but the circuit's first heads are gone already.
    """
    max_drop = wanted.max_drop
    if max_drop is None:
        return _choose_at_budget(source, wanted, log)

    # One-shot scores do not depend on the budget, so they are measured once for all budgets.
    scores = None
    if wanted.criterion and wanted.order == "one-shot":
        scores = _score(source, wanted, log)

    def choose_for_budget(count: int, log: Log) -> HeadChoice:
        """Return the choice if this many heads are removed."""
        with_budget = replace(wanted, remove=count)
        return _choose_at_budget(source, with_budget, log, scores)

    # Scores: measure at every budget from 0 on.
    if wanted.circuit is None:
        present = source.description.mask.at(site_paths(source, wanted.tower))
        if wanted.scope == "global":
            most = len(present.kept_heads) - 1  # heads of the whole model, of which one must stay
        else:
            most = min(map(len, present.kept.values()))  # heads of each site (attention module), which may lose all
        return choose_within(source, wanted, range(most + 1), choose_for_budget, log)

    # A circuit: its search may have started from a pruned model, with ``gone_at_start`` heads fewer than this one.
    ranking = ranking_from_json(wanted.circuit.content, source.sites, wanted.circuit.text)
    paths = _paths_of_circuit(wanted.circuit, source, wanted.tower)
    heads_present = set(source.description.mask.at(paths).kept_heads)
    gone_at_start = len(heads_present.intersection(ranking.start))
    if wanted.val and gone_at_start:
        raise UsageError(
            f"{wanted.circuit} begins with {gone_at_start} heads gone, so --val cannot tell what each costs"
        )

    # Measure after each removal on --val, or use the counts that the circuit's search stored.
    if wanted.val:
        budgets = range(len(ranking.removed) + 1)
        return choose_within(source, wanted, budgets, choose_for_budget, log)
    removals_within_drop, measured = removals_of_circuit(wanted.circuit, max_drop)
    choice = choose_for_budget(gone_at_start + removals_within_drop, log)
    return replace(choice, details={**choice.details, **measured})


def _choose_at_budget(source: Source, wanted: Selection, log: Log, scores: HeadScores | None = None) -> HeadChoice:
    """Return the heads that a mask, a circuit or scores keep, when the number of heads to remove is known.

    At the sites (attention layers) where ``--with`` decides, its mask replaces that choice.

    Args:
        source: the model.
        wanted: how heads are chosen, with the budget.
        log: receives warnings about odd files.
        scores: scores of ``--method`` that were measured before; None to measure them.
    """
    # The heads at the sites where --with decides.
    fixed: Fixed = {}
    if wanted.share_sites and wanted.with_mask:
        shared_mask = _read_mask(wanted.with_mask, source)  # before scoring, which may take long
        fixed = shared_sites(source.sites, shared_mask, wanted.share_sites)

    # All files must be made from the weights of this model. A dry run reads no weights and skips the check.
    files = [file for file in (wanted.with_mask, wanted.mask, wanted.circuit, wanted.scores) if file]
    if wanted.reads_weights:
        for file in files:
            check_base(file.content, file.text, source, allow_other=wanted.allow_other_base, log=log)

    # The heads that the mask, the circuit or the scores keep, and what the provenance says about that decision. A mask
    # cannot bring back heads that the model has lost, so those stay that both have.
    if wanted.mask:
        mask_in_file = _read_mask(wanted.mask, source)
        _warn_of_other_weights_beside(wanted.mask.text, mask_in_file, log)
        kept_by_both = source.description.mask.intersect(mask_in_file)
        choice = HeadChoice(apply_fixed(kept_by_both, fixed), {}, [])
    elif wanted.circuit:
        choice = _choose_by_circuit(wanted.circuit, source, wanted, fixed)
    else:
        choice = _choose_by_scores(source, wanted, fixed, log, scores)

    # The provenance: the options, and then the decision. The samples seen are those of the model, files and scores.
    details: dict[str, object] = {
        "keep": wanted.keep,
        "remove": wanted.remove,
        "share_sites": wanted.share_sites,
        "allow_other_base": wanted.allow_other_base or None,
    }
    details.update(asked_classes(source, wanted.tower))
    if fixed:
        details["shared"] = {path: list(kept) for path, kept in fixed.items()}
    details.update(choice.details)
    seen_by_files = [seen_in(file.content, file.text) for file in files]
    seen = merged(source.description.seen, *seen_by_files, choice.seen)
    return HeadChoice(choice.mask, details, seen)


def _read_mask(file: Document, source: Source) -> HeadMask:
    """Return the mask in a file, after a check that it fits this model."""
    return mask_from_json(file.content, source.sites, file.text, source.description.arch)


def _choose_by_scores(
    source: Source, wanted: Selection, fixed: Fixed, log: Log, known: HeadScores | None
) -> HeadChoice:
    """Return the heads that scores decide to keep, with the provenance, and the samples that were scored on now.

    The lowest are removed, over the whole model or within each site (attention layer), unless the criterion decides
    itself which heads are kept.

    Args:
        source: the model.
        wanted: how heads are chosen; the scores come from a file, or else from the criterion.
        fixed: by site, the heads to keep at the sites where another mask decides.
        log: receives warnings about odd scores.
        known: scores of ``--method`` that were measured before; None to measure them now.

    Raises:
        InputError: the file has no scores for the tower that is pruned.
    """
    # The scores, and where they come from.
    seen: list[Entry] = []
    if wanted.scores:
        scores = scores_from_json(wanted.scores.content, source.sites, wanted.scores.text)
        _check_order(scores, wanted, log)
        origin = {key: scores.info[key] for key in ("method", "source") if key in scores.info}
    else:
        scores = known or _score(source, wanted, log)
        origin = scores.info["source"]["settings"]
        seen = scores.info["seen"]
    scope = None if isinstance(wanted.criterion, Decider) else wanted.scope
    details: dict[str, object] = {"scores": origin, "scope": scope}

    # Count and remove only heads that have scores and belong to the tower of --tower (if that option is given).
    mask_of_model = source.description.mask
    paths = site_paths(source, wanted.tower)
    scored_paths = [path for path in paths if path in scores.scores]
    mask_of_scored_sites = mask_of_model.at(scored_paths)
    if not mask_of_scored_sites.heads:
        raise InputError(f"{wanted.scores} has no scores of the {wanted.tower} tower")
    check_scored(scores, mask_of_scored_sites)

    # At the sites of --with stay those heads of the model that it keeps. "shared" is a mask of these sites alone,
    # which overrides what scores decide.
    shared = apply_fixed(mask_of_scored_sites.at(fixed), fixed)

    # Some criteria decide which heads are kept: their decision is the mask. The others only score heads: the lowest are
    # removed, over the whole model or within each site.
    if isinstance(wanted.criterion, Decider):
        decided = scores.info[wanted.criterion.name]["kept"]
        # At a site without a decision all heads stay.
        kept = {path: tuple(decided.get(path, heads)) for path, heads in mask_of_scored_sites.kept.items()}
        mask = HeadMask(mask_of_scored_sites.heads, kept).updated(shared)
    elif wanted.scope == "global":
        count = total_budget(mask_of_scored_sites, wanted.keep, wanted.remove)
        lowest_first = lowest(scores, mask_of_scored_sites.kept_heads)
        mask = select_global(lowest_first, mask_of_scored_sites, count, fixed)
    else:
        removals_by_path = site_budget(mask_of_scored_sites, wanted.keep, wanted.remove)
        mask = select_per_site(scores, mask_of_scored_sites, removals_by_path).updated(shared)
    return HeadChoice(mask_of_model.updated(mask), details, seen)


def _warn_of_other_weights_beside(path: str, mask: HeadMask, log: Log) -> None:
    """Warn if a mask ``NAME.mask.json`` is not the mask of the checkpoint ``NAME.st`` beside it.

    Both files are written by one run, which may have been killed after the first. Without such a checkpoint, or if it
    is a fused model, there is no warning.

    Args:
        path: the file of the mask.
        mask: the mask in the file.
        log: receives the warning.
    """
    if not path.endswith(".mask.json"):
        return
    weights = f"{path.removesuffix('.mask.json')}.st"
    try:
        description = Description.from_json(read_header(weights).description or {}, weights)
    except InputError:  # there is no file beside the mask, or it is not a checkpoint, or is broken
        return
    has_one_mask = len(description.masks) == 1  # unlike a fused model
    if has_one_mask and description.mask.kept != mask.kept:
        log.warn(f"{path} is not the mask of {weights} beside it: the run that wrote them may have been killed")


def _check_order(scores: HeadScores, wanted: Selection, log: Log) -> None:
    """Check that the scores in a file fit the scope (heads compared in a site or the whole model) and the budget.

    Scores of the sites (attention modules) were made in one of two orders:

    ===============  ===============================================================================================
    not in the file  nothing is checked
    ``one-shot``     all sites at once; the log says that within a site another order is better
    ``sequential``   site by site, without the lowest heads of the sites before; refused across sites and for several
                     budgets; a warning if the budget (``--keep``, ``--remove``) is not that of the scores
    ===============  ===============================================================================================

    Raises:
        UsageError: scores that were made site by site cannot be compared across sites, or serve several budgets.
    """
    source = scores.info.get("source")
    scoring = source.get("settings") if isinstance(source, Mapping) else None
    if not isinstance(scoring, Mapping):
        return
    # One-shot scores fit any scope and budget; within a site, scoring site by site would be better.
    order = scoring.get("order")
    if order == "one-shot" and wanted.scope == "site":
        log.info(f"{wanted.scores} is one-shot; prune --method scores site by site, and so does score --keep N")
    if order != "sequential":
        return

    # Sequential scores of a site were measured on a model that had already lost heads at earlier sites, as many as
    # the budget said. So they hold within a site, and for that budget.
    if wanted.scope == "global":
        raise UsageError(
            f"{wanted.scores} was scored site by site, so heads of different sites cannot be compared",
            hint="add --scope site, or score with --order one-shot",
        )
    if wanted.max_drop is not None:
        raise UsageError(
            f"{wanted.scores} was scored site by site for one budget, and --max-drop tries several",
            hint="give --method instead of --scores, or score with --order one-shot",
        )
    same_keep = scoring.get("keep") == wanted.keep
    same_remove = scoring.get("remove") == wanted.remove
    if not (same_keep and same_remove):
        flags = [f"--{name} {scoring[name]}" for name in ("keep", "remove") if name in scoring]
        budget = " ".join(flags)  # that of the scores
        log.warn(f"{wanted.scores} was scored site by site for another budget: {shown(budget)}")


def settled(source: Source, wanted: Selection) -> Selection:
    """Return the selection with scope and order filled in from the model, if the user did not set them.

    ==============================================================  ==========  ==============
    model                                                           scope       order
    ==============================================================  ==========  ==============
    two towers (encoders of images and of texts), such as CLIP      ``global``  ``one-shot``
    one tower, such as ViT                                          ``site``    ``sequential``
    any, with a criterion that decides itself which heads are kept  ``global``  ``one-shot``
    ==============================================================  ==========  ==============

    Heads are compared over the whole model, or within each site (attention module), as in the paper. One-shot scores
    all sites at once; sequential scores them one after another, which makes no sense across sites.

    Raises:
        UsageError: the user asks for the sequential order across sites.
    """
    # The scope; the order follows from it.
    towers = {site.tower for site in source.sites}
    scope = wanted.scope
    if scope is None:
        looks_at_whole_model = len(towers) > 1 or isinstance(wanted.criterion, Decider)
        scope = "global" if looks_at_whole_model else "site"
    if scope == "global" and wanted.order == "sequential":
        raise UsageError(
            f"--order sequential cannot compare heads over a whole model, as it is done for {source.name}",
            hint="add --scope site, or leave --order out",
        )
    order = wanted.order or ("one-shot" if scope == "global" else "sequential")
    return replace(wanted, scope=scope, order=order)


def _score(source: Source, wanted: Selection, log: Log) -> HeadScores:
    """Return new scores of the heads by the criterion of ``--method``.

    A warning is logged if heads of the visual and the text tower are compared (scope ``global``) by a criterion whose
    scores have different scales in the two towers.
    """
    towers = {site.tower for site in sites_of(source, wanted.tower)}
    across_towers = wanted.scope == "global" and len(towers) > 1
    if across_towers and wanted.criterion is not None and not wanted.criterion.compares_towers:
        log.warn(
            f"{wanted.criterion} scores of different towers are compared, though their sizes have little in common: "
            "the paper scores the visual tower only (--tower visual), or searches circuits over both"
        )
    source_to_score = with_max_length(source, wanted.max_length)
    return score_source(source_to_score, wanted, log)


def _choose_by_circuit(circuit: Document, source: Source, wanted: Selection, fixed: Fixed) -> HeadChoice:
    """Return the heads that a circuit decides to keep, with its entries of the provenance.

    A circuit is the result of a search: the heads that it removed, in order. As many of them are removed as the options
    say, in this order, or with ``--sample-from`` in an order that is drawn.

    Args:
        circuit: the circuit.
        source: the model.
        wanted: how heads are chosen.
        fixed: by site, the heads to keep at the sites where another mask decides.

    Raises:
        InputError: the circuit belongs to a tower that the model does not have.
        UsageError: the budget is smaller than the number of heads that the search began without.
    """
    # The search may have started from a model without some heads, which are removed first.
    ranking = ranking_from_json(circuit.content, source.sites, circuit.text)
    mask_at_start = source.description.mask.without(ranking.start)

    # If the circuit ranks the heads of one tower, the budget counts only the heads of that tower.
    paths = _paths_of_circuit(circuit, source, wanted.tower)
    mask_of_model = source.description.mask.at(paths)
    mask_at_start_of_tower = mask_at_start.at(paths)

    # How many of its heads to remove.
    if wanted.keep is None and wanted.remove is None:  # all removals of the circuit are made
        count = len(set(mask_at_start_of_tower.kept_heads).intersection(ranking.removed))
    else:
        # The budget counts from the model, so heads that the circuit's start had lost count as well.
        gone_at_start = len(mask_of_model.kept_heads) - len(mask_at_start_of_tower.kept_heads)
        total = total_budget(mask_of_model, wanted.keep, wanted.remove)
        if total < gone_at_start:
            raise UsageError(
                f"{circuit} begins with {gone_at_start} heads gone, more than the {total} to be removed",
                hint=f"remove at least {gone_at_start} heads, or take a circuit that begins with all heads",
            )
        count = total - gone_at_start

    # The entries of the provenance.
    facts_of_search = {key: circuit.content[key] for key in ("objective", "algorithm") if key in circuit.content}
    details: dict[str, object] = {"circuit": facts_of_search}

    # Remove heads in a drawn order, or in the order of the search. A circuit of headmap (which is not nested) ranks no
    # heads, so check_whole() refuses to keep a part of the heads that it removes.
    if wanted.sample_from is not None:
        details["sample_from"] = wanted.sample_from
        drawn_order = sample_ranking(ranking, wanted.sample_from, count, wanted.seed)
        never_drawn = ranking.removed[wanted.sample_from :]
        check_whole(ranking, never_drawn, circuit.text)
        mask = select_global(drawn_order, mask_at_start_of_tower, count, fixed)
    else:
        mask = select_global(list(ranking.removed), mask_at_start_of_tower, count, fixed)
        kept_by_circuit = [(site, head) for site, head in mask.kept_heads if site not in fixed]
        check_whole(ranking, kept_by_circuit, circuit.text)
    return HeadChoice(mask_at_start.updated(mask), details, [])


def _paths_of_circuit(circuit: Document, source: Source, tower: str | None) -> list[str]:
    """Return the paths of the sites (attention modules) whose heads a budget counts: of the tower, if there is one.

    Args:
        circuit: the circuit, which may rank the heads of one tower.
        source: the model.
        tower: ``--tower``; None for that of the circuit.

    Raises:
        InputError: the circuit belongs to a tower that the model does not have.
    """
    tower_of_circuit: str | None = circuit.content.get("tower")
    towers = ("both", *(site.tower for site in source.sites))
    if tower_of_circuit is not None and tower_of_circuit not in towers:
        tower_shown = shown(tower_of_circuit)
        raise InputError(f"circuit {circuit} is of the tower {tower_shown}, which {source.name} does not have")
    return site_paths(source, tower or tower_of_circuit)


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    source: Source, wanted: Selection, layout: str, output: Output, mask_output: Output | None, log: Log
) -> Outcome:
    """Return which heads were removed and what that saves, after the pruned model and its mask were written.

    Args:
        source: the model.
        wanted: how heads are chosen.
        layout: ``sliced`` (removed heads are cut out of the weights) or ``zeroed`` (their weights are set to zero).
        output: the checkpoint or the folder.
        mask_output: the file of the mask; None for a folder, which holds the mask itself.
        log: receives warnings, and what was saved.
    """
    # Choose the heads to keep.
    announce_reading([source], log)
    choice = choose(source, wanted, log)
    mask = choice.mask
    check_finite_weights(source.name, source.tensors)
    _warn_of_mask(source, wanted, mask, log)

    # Prune the model, and make the documents: its description and its mask.
    details = {**choice.details, "layout": layout}
    origin = provenance("prune", wanted.seed, [source.sha256], details, source.lineage)
    description, tensors = pruned(source, mask, layout)
    description = replace(description, provenance=origin, seen=tuple(choice.seen))
    mask_document = mask.to_json(source.description.arch, origin, choice.seen)
    cost = _costs(source, mask)
    heads = len(source.description.mask.kept_heads)
    removed = heads - len(mask.kept_heads)
    fewer_parameters = signed_change(cost.before.params, cost.after.params)
    fewer_mult_adds = signed_change(cost.before.macs, cost.after.macs)
    log.info(f"{removed} of {heads} heads removed: parameters {fewer_parameters}, mult-adds {fewer_mult_adds}")

    # Write a folder in the library's format, with the mask in it; or a checkpoint, and the mask beside it.
    files = [output.path]
    if mask_output is None:
        mask_in_folder = {_MASK_IN_FOLDER: json_bytes(mask_document)}
        digest = write_folder(output, description, tensors, mask_in_folder)
    else:
        digest = write_checkpoint(output, tensors, description.to_json())
        files.append(write_json(mask_output, mask_document))
    answer = PruneAnswer(
        output=str(output.path),
        model=source.name,
        arch=source.description.arch,
        layout=layout,
        heads=mask.counts(),
        mask=MaskRecord.model_validate(mask_document),
        cost=cost,
        sha256=digest,
        warnings=log.warnings,
    )
    return Outcome(answer, files=files)


def _warn_of_mask(source: Source, wanted: Selection, mask: HeadMask, log: Log) -> None:
    """Warn of a mask that is hardly intended: it removes nothing, undoes ``--weights``, or empties whole sites.

    Args:
        source: the model before pruning.
        wanted: how heads are chosen.
        mask: the heads that are kept.
        log: receives the warnings.
    """
    if mask.kept == source.description.mask.kept:
        log.warn(f"no head is removed: every head that {source.name} has is kept")

    # Single weights that were set to zero before are not protected any more: a training would change them.
    has_lost_weights = source.description.params_nonzero is not None
    if has_lost_weights:
        log.warn(f"finetune will train the single weights that {source.name} lost: prune heads first, then --weights")

    # Sites (attention modules) without any head.
    empty_sites = [path for path, kept in mask.kept.items() if not kept]
    if empty_sites:
        listed = ", ".join(empty_sites)
        log.warn(f"{len(empty_sites)} of {len(mask.heads)} sites keep no head: {listed}")


def _costs(source: Source, mask: HeadMask) -> SizeChange:
    """Return the size of the model before and after pruning by a mask, with sliced weights."""
    description, tensors = pruned(source, mask, "sliced")
    before = size_of(source.description, source.tensors)
    after = size_of(description, tensors)
    return SizeChange(before=before, after=after)


def _plan(source: Source, wanted: Selection, layout: str, files: Sequence[Path]) -> PruneAnswer:
    """Return what would be done and written, for a dry run, which reads no data.

    The number of heads that each site (attention layer) keeps is known for a mask, a circuit, a file of scores, and a
    criterion that removes the same number at each site. Otherwise a note says why it is not known.
    """
    plan = PruneAnswer(
        dry_run=True,
        model=source.name,
        arch=source.description.arch,
        layout=layout,
        files_=[str(file) for file in files],
    )

    # Cases in which everything depends on data.
    circuit_tells_accuracy = wanted.circuit is not None and not wanted.val
    if wanted.max_drop is not None and not circuit_tells_accuracy:
        return plan.model_copy(update={"note": "how many heads are removed is known only after measuring accuracy"})
    if isinstance(wanted.criterion, Decider):
        check_criterion(source, wanted.criterion, wanted.tower)  # raises an error if it cannot score this model
        return plan.model_copy(update={"note": "how many heads are kept, and which, is known only after scoring"})

    # A file decides, so the choice can be made. Of a criterion it is not known which heads go, but how many at each
    # site. So all are taken to be equally important: scores of 0. The choice is made in the global scope, too, as it
    # raises the errors of the options.
    if wanted.criterion is None:
        mask = choose(source, wanted, Log()).mask
    else:
        equal = {site.path: (0.0,) * site.heads for site in sites_of(source, wanted.tower)}
        scores = HeadScores(equal, {"source": {"settings": {}}, "seen": []})
        mask = _choose_at_budget(source, wanted, Log(), scores).mask
        if wanted.scope == "global":
            return plan.model_copy(update={"note": "heads per site of a global selection are known only after scoring"})
    return plan.model_copy(update={"heads": mask.counts(), "cost": _costs(source, mask)})
