"""``hydractl prune``: remove heads for good, chosen by scores, a circuit or a mask."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.files.checkpoint import write_checkpoint, write_tensors
from hydractl.files.circuit_answer import MaskRecord
from hydractl.files.description import Description, provenance
from hydractl.files.fingerprints import Entry, checked, merged, seen_in
from hydractl.files.header import read_header
from hydractl.files.verb_answers import PruneAnswer, SizeChange
from hydractl.heads.mask import HeadMask, HeadScores, mask_from_json, ranking_from_json, scores_from_json
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
from hydractl.jsonio import json_bytes, read_json_file, shown
from hydractl.log import Log
from hydractl.model.cost import size_of
from hydractl.model.matching import asked_classes, check_base, only_one, sites_of
from hydractl.model.source import Source, open_sources, pruned, with_max_length
from hydractl.model.stored import check_finite_weights
from hydractl.report.texts import signed_change
from hydractl.settings.pruning import DECIDE, PruneSettings
from hydractl.verbs.max_drop import Choice, choose_within, from_circuit
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.prune_weights import prune_weights
from hydractl.verbs.score import criterion_of, score_source

_SCHEMA = "hydractl.prune/1"

Fixed = dict[str, tuple[int, ...]]
"""The heads to keep at the sites where another mask decides, by path."""


def run(settings: PruneSettings, log: Log) -> Outcome:
    """Choose the heads, slice the weights, write the checkpoint and its mask."""
    # --max-length is about the texts that heads are scored on: the pruned model keeps its own.
    opened = open_sources(settings.model, replace(model_options(settings, bodies=True), max_length=None))
    source = only_one(opened, "prune")
    if settings.weights is not None:
        return prune_weights(source, settings, log)
    settings = settled(source, settings)
    with_max_length(source, settings.max_length)  # refuses what the model does not take, before anything is read
    output = settings.output or default_name(source, settings)
    as_folder = output.endswith("/")
    layout = settings.layout or ("zeroed" if as_folder else "sliced")
    if as_folder and layout == "sliced":
        _stock_config(source, [1])
    path = Path(output.rstrip("/")) if as_folder else file_path(output)
    mask_path = path / "hydractl.mask.json" if as_folder else mask_name(path)
    if settings.dry_run:
        outputs = [path] if as_folder else [path, mask_path]
        check_outputs(outputs, force=settings.force, folder=as_folder)
        return _dry_run(source, settings, layout, path, mask_path)
    with Output(path, force=settings.force, folder=as_folder) as target:
        if as_folder:
            return _write(source, settings, layout, target, None, log)
        with Output(mask_path, force=settings.force) as mask_output:
            return _write(source, settings, layout, target, mask_output, log)


def default_name(source: Source, settings: PruneSettings) -> str:
    """Name the output by the input, what was done, and another seed where it decides.

    For example ``vit.taylor-8.st``, ``vit.taylor-8.seed1.st``.
    """
    how = _named_after(settings)
    how = how.removeprefix(f"{source.name}.")  # vit.circuit.acc.json made from vit.st names the model already
    if settings.keep is not None:
        how += f"-{settings.keep}"
    if settings.remove is not None:
        how += f"-minus{settings.remove}"
    if settings.max_drop is not None:
        how += f"-drop{settings.max_drop:g}"
    if settings.method or settings.sample_from is not None:
        how += settings.seed_mark
    return f"{source.name}.{how}.st"


def _named_after(settings: PruneSettings) -> str:
    """Return what the output is named after: the criterion, or the file that decides."""
    if settings.method:
        return settings.method
    if settings.scores == "-":
        return "scores"
    if settings.scores:
        return Path(settings.scores).name.removesuffix(".json")
    file = settings.circuit or settings.mask or ""
    if file == "-":
        return "mask"
    return Path(file).name.removesuffix(".json").removesuffix(".mask")


def mask_name(path: Path) -> Path:
    """Return where the mask of a checkpoint is: ``a.mask.json`` for ``a.st``."""
    return path.with_name(re.sub(r"\.(st|safetensors)$", "", path.name) + ".mask.json")


# --- choosing ---------------------------------------------------------------------------------------------------------


def choose(source: Source, settings: PruneSettings, log: Log) -> Choice:
    """Choose the mask of the pruned model, what decided it, and the samples that model and decision have seen."""
    documents: dict[str, Any] = {}
    for path in (settings.with_mask, settings.mask, settings.circuit):
        if path:
            documents[path] = read_json_file(path)
    if settings.max_drop is None:
        return _chosen(source, settings, documents, log)
    scores = None
    if settings.method and settings.order == "one-shot":
        scores = _score(source, settings, log)

    def for_budget(count: int, log: Log) -> Choice:
        return _chosen(source, replace(settings, remove=count), documents, log, scores)

    if settings.circuit is None:
        return choose_within(source, settings, range(_most_removable(source, settings) + 1), for_budget, log)
    document = documents[settings.circuit]
    ranking = ranking_from_json(document, sites=source.sites, origin=settings.circuit)
    heads_here = set(source.description.mask.kept_heads)
    begun = len(heads_here.intersection(ranking.start))
    if settings.val and begun:
        raise UsageError(f"{settings.circuit} begins with {begun} heads gone, so --val cannot tell what each costs")
    if settings.val:
        return choose_within(source, settings, range(len(ranking.removed) + 1), for_budget, log)
    count, measured = from_circuit(document, settings.circuit, settings.max_drop)
    mask, details, seen = for_budget(begun + count, log)
    return mask, {**details, **measured}, seen


def _most_removable(source: Source, settings: PruneSettings) -> int:
    """Return the largest number for ``--remove``: of the whole model one head stays, of single sites none has to."""
    present = source.description.mask.at(site.path for site in sites_of(source, settings.tower))
    if settings.scope == "global":
        return len(present.kept_heads) - 1
    return min(len(kept) for kept in present.kept.values())


def _chosen(
    source: Source, settings: PruneSettings, documents: Mapping[str, Any], log: Log, scores: HeadScores | None = None
) -> Choice:
    """Return the choice of a known budget, from the files that decide it or from ``scores`` where they are known."""
    arch = source.description.arch
    scored: Sequence[Entry] = ()
    fixed: Fixed = {}
    if settings.share_sites and settings.with_mask:
        document = documents[settings.with_mask]
        other = mask_from_json(document, source.sites, settings.with_mask, arch)
        _same_base(document, settings.with_mask, source, settings, log)  # before heads are scored, which may take long
        fixed = shared_sites(source.sites, other, settings.share_sites)
    decided: dict[str, Any] = {}
    if settings.mask:
        document = documents[settings.mask]
        wanted = mask_from_json(document, source.sites, settings.mask, arch)
        _same_base(document, settings.mask, source, settings, log)
        _check_beside(settings.mask, wanted, log)
        mask = apply_fixed(source.description.mask.intersect(wanted), fixed)
    elif settings.circuit:
        document = documents[settings.circuit]
        mask, decided = _from_circuit(document, settings.circuit, source, settings, fixed)
        _same_base(document, settings.circuit, source, settings, log)
    else:
        mask, decided, scored = _from_scores(source, settings, fixed, log, scores)
    details: dict[str, Any] = {
        "keep": settings.keep,
        "remove": settings.remove,
        "share_sites": settings.share_sites,
        "allow_other_base": settings.allow_other_base or None,
    }
    details.update(asked_classes(source, settings.tower))
    if fixed:
        details["shared"] = {path: list(kept) for path, kept in fixed.items()}
    details.update(decided)
    seen_by_files = [seen_in(document, path) for path, document in documents.items()]
    seen = merged(source.description.seen, *seen_by_files, scored)
    return mask, details, seen


def _from_scores(
    source: Source, settings: PruneSettings, fixed: Fixed, log: Log, known: HeadScores | None
) -> tuple[HeadMask, dict[str, Any], Sequence[Entry]]:
    """Return the mask that scores decide, what is to be said of them, and what they saw.

    The scores are those of a file, known ones or ones measured now.
    """
    whole = source.description.mask
    if settings.scores:
        document = read_json_file(settings.scores)
        scores = scores_from_json(document, source.sites, settings.scores)
        _same_base(document, settings.scores, source, settings, log)
        origin = {key: scores.info[key] for key in ("method", "source") if key in scores.info}
        _check_order(scores, settings, log)
    else:
        scores = known or _score(source, settings, log)
        origin = scores.info["source"]["settings"]
    details: dict[str, Any] = {"scores": origin}
    seen = checked(scores.info.get("seen"), settings.scores or "scores")
    # Of a model of two towers, only the heads that are meant, and that have scores, are counted and removed.
    paths = [site.path for site in sites_of(source, settings.tower)]
    present = whole.at(path for path in paths if path in scores.scores)
    fixed = {path: kept for path, kept in fixed.items() if path in present.heads}
    if not present.heads:
        raise InputError(f"{settings.scores} has no scores of the {settings.tower} tower")
    check_scored(scores, present)
    if settings.method in DECIDE:
        kept = dict(present.kept)
        for path, heads in scores.info[settings.method]["kept"].items():
            if path in kept and path not in fixed:
                kept[path] = tuple(heads)
        # At shared sites the other mask decides, and what this model already lost stays lost.
        return whole.updated(apply_fixed(HeadMask(present.heads, kept), fixed)), details, seen
    details["scope"] = settings.scope
    if settings.scope == "global":
        count = total_budget(present, settings.keep, settings.remove)
        mask = select_global(lowest(scores, present.kept_heads), present, count, fixed)
        return whole.updated(mask), details, seen
    mask = select_per_site(scores, present, site_budget(present, settings.keep, settings.remove))
    # At shared sites the other mask decides; what this model already lost stays lost.
    kept = dict(mask.kept)
    for path, heads_of_other in fixed.items():
        kept[path] = tuple(head for head in present.kept[path] if head in heads_of_other)
    return whole.updated(HeadMask(mask.heads, kept)), details, seen


def _same_base(document: Any, path: str, source: Source, settings: PruneSettings, log: Log) -> None:
    if not settings.dry_run:  # that reads no weights, and so knows no digest
        check_base(document, path, source, allow_other=settings.allow_other_base, log=log)


def _check_beside(path: str, mask: HeadMask, log: Log) -> None:
    """Warn of a mask that is not that of the weights beside it: a run may have been killed between writing both."""
    weights = Path(path.removesuffix(".mask.json") + ".st")
    if not path.endswith(".mask.json") or not weights.is_file():
        return
    with contextlib.suppress(InputError):  # what lies there may be anything
        masks = Description.from_json(read_header(weights).description or {}, str(weights)).masks
        if len(masks) == 1 and masks[0].kept != mask.kept:
            log.warn(f"{path} is not the mask of {weights} beside it: the run that wrote them may have been killed")


def _check_order(scores: HeadScores, settings: PruneSettings, log: Log) -> None:
    """Check whether the scores of a file are those that this scope and budget ask for."""
    source = scores.info.get("source")
    made: Any = source.get("settings") if isinstance(source, Mapping) else None
    if not isinstance(made, Mapping):
        return
    order = made.get("order")
    if order == "one-shot" and settings.scope == "site":
        log.info(f"{settings.scores} is one-shot; prune --method scores site by site, and so does score --keep N")
    if order != "sequential":
        return
    if settings.scope == "global":
        raise UsageError(
            f"{settings.scores} was scored site by site, so heads of different sites cannot be compared",
            hint="add --scope site, or score with --order one-shot",
        )
    if settings.max_drop is not None:
        raise UsageError(
            f"{settings.scores} was scored site by site for one budget, and --max-drop tries several",
            hint="give --method instead of --scores, or score with --order one-shot",
        )
    if made.get("keep") != settings.keep or made.get("remove") != settings.remove:
        budget = " ".join(f"--{name} {made[name]}" for name in ("keep", "remove") if name in made)
        log.warn(f"{settings.scores} was scored site by site for another budget: {shown(budget)}")


def settled(source: Source, settings: PruneSettings) -> PruneSettings:
    """Return the settings with the scope and the order that the model decides where the user did not.

    Scores of one tower are compared over all its sites, those of a model of one tower within each site (method of the
    paper for CLIP and for ViT). One-shot is the only order that makes sense across sites.
    """
    towers = {site.tower for site in source.sites}
    scope = settings.scope
    if scope is None:
        scope = "global" if len(towers) > 1 or settings.method in DECIDE else "site"
    order = settings.order
    if order is None:
        order = "one-shot" if scope == "global" else "sequential"
    if scope == "global" and settings.order == "sequential":
        raise UsageError(
            f"--order sequential cannot compare heads over a whole model, as it is done for {source.name}",
            hint="add --scope site, or leave --order out",
        )
    return replace(settings, scope=scope, order=order)


def _score(source: Source, settings: PruneSettings, log: Log) -> HeadScores:
    towers = {site.tower for site in sites_of(source, settings.tower)}
    if settings.scope == "global" and len(towers) > 1 and not criterion_of(source, settings).compares_towers:
        log.warn(
            f"{settings.method} scores of different towers are compared, though their sizes have little in common: "
            "the paper scores the visual tower only (--tower visual), or searches circuits over both"
        )
    return score_source(with_max_length(source, settings.max_length), settings, log)


def _from_circuit(
    document: Any, path: str, source: Source, settings: PruneSettings, fixed: Fixed
) -> tuple[HeadMask, dict[str, Any]]:
    """Return the mask that a circuit decides, and what is to be said of it."""
    ranking = ranking_from_json(document, source.sites, path)
    whole = source.description.mask
    # A circuit of one tower says so; a budget then counts the heads of that tower.
    tower = document.get("tower")
    if tower not in (None, "both") and tower not in [site.tower for site in source.sites]:
        raise InputError(f"circuit {path} is of the tower {shown(tower)}, which {source.name} does not have")
    paths = [site.path for site in sites_of(source, settings.tower or tower)]
    before = whole.at(paths)
    present = whole.without(ranking.start).at(paths)
    fixed = {site: kept for site, kept in fixed.items() if site in present.heads}
    search = {key: document[key] for key in ("objective", "algorithm") if key in document}
    details: dict[str, Any] = {"circuit": search}
    if settings.keep is None and settings.remove is None:
        count = len(set(present.kept_heads).intersection(ranking.removed))
    else:
        # A circuit may start from a mask; the budget counts from the model, so that mask is part of it.
        gone = len(before.kept_heads) - len(present.kept_heads)
        count = total_budget(before, settings.keep, settings.remove) - gone
    order = list(ranking.removed)
    if settings.sample_from is not None:
        order = sample_ranking(ranking, settings.sample_from, count, settings.seed)
        details["sample_from"] = settings.sample_from
        check_whole(ranking, ranking.removed[settings.sample_from :], path)
    mask = select_global(order, present, max(count, 0), fixed)
    if settings.sample_from is None:
        decided_here = [(site, head) for site, head in mask.kept_heads if site not in fixed]
        check_whole(ranking, decided_here, path)
    return whole.without(ranking.start).updated(mask), details


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    source: Source, settings: PruneSettings, layout: str, output: Output, mask_output: Output | None, log: Log
) -> Outcome:
    """Write the pruned model and its mask; of a folder, the mask lies in it."""
    announce_reading([source], log)
    mask, details, seen = choose(source, settings, log)
    check_finite_weights(source.name, source.tensors)
    _warn_of_mask(source, settings, mask, log)
    origin = provenance("prune", settings.seed, [source.sha256], {**details, "layout": layout}, source.lineage)
    description, tensors = pruned(source, mask, layout)
    description = replace(description, provenance=origin, seen=tuple(seen))
    mask_document = mask.to_json(source.description.arch, origin, seen)
    cost = _costs(source, mask)
    answer = PruneAnswer(
        schema=_SCHEMA,
        output=str(output.path),
        model=source.name,
        arch=source.description.arch,
        layout=layout,
        heads=mask.counts(),
        mask=MaskRecord.from_json(mask_document),
        cost=cost,
    )
    log.info(_saving(source.description.mask, mask, cost))
    if mask_output is None:
        config = description.config if layout == "zeroed" else _stock_config(source, mask.counts())
        weights = source.family.export_folder(output.temporary, config, description.preprocess, description.labels)
        with open(output.temporary / weights, "wb") as handle:
            digest = write_tensors(handle, tensors, description.to_json())
        (output.temporary / "hydractl.mask.json").write_bytes(json_bytes(mask_document))
        return Outcome(replace(answer, sha256=digest).to_json(), files=[output.commit()])
    digest = write_checkpoint(output, tensors, description.to_json())
    files = [output.path, write_json(mask_output, mask_document)]
    return Outcome(replace(answer, sha256=digest).to_json(), files=files)


def _warn_of_mask(source: Source, settings: PruneSettings, mask: HeadMask, log: Log) -> None:
    """Say where a mask is hardly what was meant: it removes nothing, or whole sites."""
    amounts = [name for name in ("keep", "remove", "max_drop", "circuit") if settings.given(name)]
    if mask.kept == source.description.mask.kept and amounts:
        asked = f"{settings.called(amounts[0])} {getattr(settings, amounts[0])}"
        log.warn(f"no head is removed: {asked} keeps every head that {source.name} has")
    if source.description.params_nonzero is not None:
        log.warn(f"finetune will train the single weights that {source.name} lost: prune heads first, then --weights")
    empty = [path for path, kept in mask.kept.items() if not kept]
    if empty:
        log.warn(f"{len(empty)} of {len(mask.heads)} sites keep no head: {', '.join(empty)}")


def _stock_config(source: Source, counts: Sequence[int]) -> Mapping[str, object]:
    """Return the library's configuration of a model with so many heads at each site.

    Raises:
        UsageError: the library has no configuration for it.
    """
    hint = "use --layout zeroed, or write a .st file"
    if len(set(counts)) > 1 or not counts[0]:
        numbers = ", ".join(str(count) for count in sorted(set(counts)))
        raise UsageError(f"--layout sliced: a folder has one number of heads, and sites keep {numbers}", hint=hint)
    config = source.family.with_heads(source.description.config, counts[0])
    if config is None:
        library = f"{source.description.family}'s {source.description.arch}"
        raise UsageError(f"--layout sliced: a folder of {library} cannot say how wide fewer heads are", hint=hint)
    return config


def _saving(before: HeadMask, after: HeadMask, cost: SizeChange) -> str:
    """Say how many heads went, and what that saves."""
    heads = len(before.kept_heads)
    removed = heads - len(after.kept_heads)
    parameters = signed_change(cost.before.params, cost.after.params)
    mult_adds = signed_change(cost.before.macs, cost.after.macs)
    return f"{removed} of {heads} heads removed: parameters {parameters}, mult-adds {mult_adds}"


def _costs(source: Source, mask: HeadMask) -> SizeChange:
    description, tensors = pruned(source, mask, "sliced")
    return SizeChange(before=size_of(source.description, source.tensors), after=size_of(description, tensors))


def _dry_run(source: Source, settings: PruneSettings, layout: str, path: Path, mask_path: Path) -> Outcome:
    """Say what would happen. The mask itself is known beforehand only when no data has to be read."""
    whole = source.description.mask
    present = whole.at(site.path for site in sites_of(source, settings.tower))
    plan = PruneAnswer(
        schema=_SCHEMA,
        dry_run=True,
        model=source.name,
        arch=source.description.arch,
        layout=layout,
        files=[str(path), str(mask_path)],
    )
    if settings.max_drop is not None and (settings.val or settings.circuit is None):
        return _noted(plan, "how many heads are removed is known only after measuring accuracy")
    if settings.method in DECIDE:
        criterion_of(source, settings)
        return _noted(plan, "how many heads are kept, and which, is known only after scoring")
    if settings.method and settings.scope == "global":
        total_budget(present, settings.keep, settings.remove)
        return _noted(plan, "heads per site of a global selection are known only after scoring")
    if settings.method:
        budget = site_budget(present, settings.keep, settings.remove)
        removed = []
        for path_of_site, kept in present.kept.items():
            removed += [(path_of_site, head) for head in kept[: budget[path_of_site]]]
        mask = whole.without(removed)  # which heads go is not known, but at which sites
    else:
        mask = choose(source, settings, Log())[0]
    plan = replace(plan, heads=mask.counts(), cost=_costs(source, mask))
    return Outcome(plan.to_json())


def _noted(plan: PruneAnswer, note: str) -> Outcome:
    """Return a plan with what is not known beforehand."""
    return Outcome(replace(plan, note=note).to_json())
