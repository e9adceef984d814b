"""Masks, scores and circuits in files, checked against the sites of a model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hydractl.errors import InputError
from hydractl.files.circuit_answer import (
    CircuitAnswer,
    CircuitHeads,
    MaskHeads,
    MaskRecord,
    ScoredHeads,
    ScoresAnswer,
)
from hydractl.heads.mask import Head, HeadMask, HeadScores, Ranking, Site
from hydractl.jsonio import shown


def mask_from_json(document: Any, sites: Sequence[Site], origin: str, arch: str | None = None) -> HeadMask:
    """Return the mask in a JSON document, checked against the sites of a model.

    Args:
        document: the mask, as read from a file.
        sites: the sites of the model.
        origin: the name of the mask in messages.
        arch: the architecture of the model, if it is to be checked.

    Raises:
        InputError: lists the problems: values of a wrong type, or those of :func:`_mask_at_sites`.
    """
    _check_schema(document, MaskRecord.form(), origin)
    heads = MaskHeads.checked(document, f"mask {origin} has not the form of a mask")
    return _mask_at_sites(heads, sites, origin, arch)


def _mask_at_sites(mask: MaskHeads, sites: Sequence[Site], origin: str, arch: str | None = None) -> HeadMask:
    """Return a mask of the sites of a model, with the kept heads of each in ascending order.

    Raises:
        InputError: lists all problems: unknown or missing sites, head counts of another model, heads out of range.
    """
    problems = _problems_of_sites(mask.sites, sites)
    kept: dict[str, tuple[int, ...]] = {}
    for site in sites:
        if site.path not in mask.sites:
            continue
        entry = mask.sites[site.path]
        if entry.heads not in (None, site.heads):  # a mask need not say how many heads there were
            problems.append(f"site {site.path} has {entry.heads} heads in the mask, {site.heads} in the model")
        beyond = [head for head in entry.kept if head >= site.heads]
        if beyond:
            problems.append(f"site {site.path}: heads {shown(beyond)} are outside 0..{site.heads - 1}")
        kept[site.path] = tuple(sorted(entry.kept))

    # A mask may say which architecture it was made for; without that, any model will do.
    if arch is not None and mask.arch not in (None, arch):
        problems.append(f"made for {shown(mask.arch)}, the model is {arch!r}")
    if problems:
        shape_of_model = _text_of_shape([site.heads for site in sites])
        shape_of_mask = _text_of_shape([entry.heads for entry in mask.sites.values()])
        raise InputError(
            f"mask {origin} does not fit the model ({shape_of_model}; the mask has {shape_of_mask})",
            hint="make the mask from this model, or check the site names with: hydractl --info MODEL",
            problems=problems,
        )
    heads = {site.path: site.heads for site in sites}
    return HeadMask(heads, kept)


def scores_from_json(document: Any, sites: Sequence[Site], origin: str) -> HeadScores:
    """Return the scores of the attention heads in a document, after checking them against a model.

    They are listed by site, an attention module, with one number for each of its heads. A model of images and texts has
    two towers, and the document may leave out all sites of one.

    Args:
        document: the scores, as read from a file.
        sites: the sites (attention modules) of the model.
        origin: the name of the scores in messages.

    Raises:
        InputError: lists the problems: values of a wrong type, or unknown and missing sites and numbers of scores that
            differ from the model's.
    """
    _check_schema(document, ScoresAnswer.form(), origin)
    listed = ScoredHeads.checked(document, f"scores {origin} have not the form of scores").sites
    problems = _problems_of_sites(listed, sites, whole_towers=True)
    scores: dict[str, tuple[float, ...]] = {}
    for site in sites:
        if site.path not in listed:
            continue
        values = listed[site.path]
        if len(values) != site.heads:
            problems.append(f"site {site.path} has {len(values)} scores, the model {site.heads} heads")
        # A null becomes minus infinity: it means that the head was already removed when the scores were made.
        scores[site.path] = tuple(-math.inf if value is None else float(value) for value in values)
    if problems:
        raise InputError(f"scores {origin} do not fit the model", problems=problems)

    # All other entries of the file, e.g. how the scores were made, are kept as they are.
    info = dict(document)
    del info["schema"], info["sites"]
    return HeadScores(scores, info)


def ranking_from_json(document: Any, sites: Sequence[Site], origin: str) -> Ranking:
    """Read the removal order of a circuit file, and check it against the sites of a model.

    Args:
        document: the circuit, as read from a file.
        sites: the sites of the model.
        origin: the name of the circuit in messages.

    Raises:
        InputError: lists the problems, e.g. a removed head that the search already began without.
    """
    _check_schema(document, CircuitAnswer.form(), origin)
    circuit = CircuitHeads.checked(document, f"circuit {origin} has not the form of a circuit")
    heads_of_site = {site.path: site.heads for site in sites}
    problems: list[str] = []
    for path, heads in circuit.sites.items():  # a circuit need not say how many heads there were
        if path in heads_of_site and heads != heads_of_site[path]:
            problems.append(f"site {path} has {heads} heads in the circuit, {heads_of_site[path]} in the model")
    removed: dict[Head, None] = {}  # each once, in their order
    for number, step in enumerate(circuit.removed, start=1):
        if step.site not in heads_of_site:
            problems.append(f"step {number}: unknown site {shown(step.site)}")
        elif step.head >= heads_of_site[step.site]:
            last = heads_of_site[step.site] - 1
            problems.append(f"step {number}: head {step.head} of {step.site} is outside 0..{last}")
        elif (step.site, step.head) in removed:
            problems.append(f"step {number}: head {step.head} of {step.site} is removed twice")
        else:
            removed[step.site, step.head] = None
    if problems:
        raise InputError(f"circuit {origin} does not fit the model", problems=problems)

    # Heads that were removed before the first step cannot be removed again.
    gone_at_start: list[Head] = []
    if circuit.start_mask is not None:
        start_mask = _mask_at_sites(circuit.start_mask, sites, f"{origin} (start_mask)")
        gone_at_start = start_mask.removed_heads
    removed_twice = sorted(removed.keys() & gone_at_start)
    if removed_twice:
        problems = [f"head {head} of {site} is already gone in its start mask" for site, head in removed_twice]
        raise InputError(f"circuit {origin} contradicts itself", problems=problems)

    is_nested = document.get("algorithm") != "headmap"
    return Ranking(tuple(removed), tuple(gone_at_start), is_nested)


def _check_schema(document: Any, schema: str, origin: str) -> None:
    """Check that a document is an object of this schema.

    Raises:
        InputError: it is not an object, or has another schema.
    """
    if not isinstance(document, Mapping):
        raise InputError(f"{origin} is not a JSON object, so it is no {schema} file")
    schema_of_file = document.get("schema")
    if schema_of_file != schema:
        raise InputError(f"{origin} has the schema {shown(schema_of_file)}, expected {schema!r}")


def _problems_of_sites(listed: Collection[str], sites: Sequence[Site], *, whole_towers: bool = False) -> list[str]:
    """Return a sentence for each site (attention module) that a file lists and the model has not, or the reverse.

    Args:
        listed: the paths of the sites in a file.
        sites: the sites of the model.
        whole_towers: whether it is enough to list all sites of one tower; a model of images and texts has two.
    """
    known_paths = {site.path for site in sites}
    problems = [f"unknown site {shown(path)}" for path in listed if path not in known_paths]
    listed_towers = {site.tower for site in sites if site.path in listed}
    for site in sites:
        # A tower is left out, not missing, if none of its sites is listed, but sites of the other tower are.
        is_left_out = whole_towers and listed_towers and site.tower not in listed_towers
        if site.path not in listed and not is_left_out:
            problems.append(f"site {site.path} is missing")
    return problems


def _text_of_shape(counts: Sequence[int | None]) -> str:
    """Describe a model or a mask by its number of sites (attention modules) and the heads of each.

    - a number of heads is not known (None), or there are no sites: ``12 sites``;
    - all are equal: ``12 sites x 6 heads``;
    - they differ: ``3 sites, heads [6, 4, 6]``.
    """
    if not counts or None in counts:
        return f"{len(counts)} sites"
    if len(set(counts)) == 1:
        return f"{len(counts)} sites x {counts[0]} heads"
    return f"{len(counts)} sites, heads {shown(list(counts), 100)}"
