"""A model and what a command gives it: the one model of a verb, the heads that are meant, labels that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from hydractl.files.description import bases_of
from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.laplace import KEY
from hydractl.model.source import Source, with_labels

if TYPE_CHECKING:
    from torch import Tensor


def only_one(sources: list[Source], verb: str) -> Source:
    """Return the one dense or pruned model of a verb that takes no ensemble."""
    if len(sources) != 1:
        raise UsageError(f"{verb} takes one model, got {len(sources)}")
    if sources[0].description.kind == "fused":
        raise InputError(f"{sources[0].name} is a fused model", hint=f"{verb} its members before fusing them")
    refuse_posterior(sources, verb)
    return sources[0]


def refuse_posterior(sources: Sequence[Source], verb: str) -> None:
    """Refuse models whose Laplace posterior is of the weights as they are, which a verb would change.

    Raises:
        InputError: naming the first of them.
    """
    for source in sources:
        if KEY in source.description.extra:
            hint = f"{verb} the model it was made of, then hydractl laplace"
            raise InputError(f"{source.name} has a Laplace posterior, which is of its weights as they are", hint=hint)


def named_by_data(source: Source, spec: str, limit: int | None, option: str = "--data") -> Source:
    """Return the source; a zero-shot model whose classes have not been named takes the names of a data set.

    Raises:
        InputError: where the data have no class names either.
    """
    if source.classes is not None:
        return source
    reads = {source.name: source.description.reads}
    names = open_data(spec, option=option, limit=limit, reads=reads).label_names
    if names is None:
        raise InputError(
            f"{source.name} has no classes of its own, and {option} {spec} has no class names",
            hint="name the classes with --labels FILE",
        )
    return with_labels(source, names)


def sites_of(source: Source, tower: str | None) -> list[Site]:
    """Return the sites whose heads are meant.

    Args:
        source: the model.
        tower: ``visual``, ``text``, or None or ``both`` for all.

    Raises:
        UsageError: for a tower of a model that has only one.
    """
    sites = source.sites
    there = list(dict.fromkeys(site.tower for site in sites))
    if tower is None or (tower == "both" and len(there) > 1):
        return sites
    if tower not in there:
        raise UsageError(f"--tower {tower}: {source.name} has one tower" if len(there) == 1 else f"no tower {tower!r}")
    return [site for site in sites if site.tower == tower]


def check_base(document: Any, origin: str, source: Source, *, allow_other: bool, log: Log) -> None:
    """Check whether a mask, scores or a circuit were made from a model, or from one that shares a base with it.

    A file that does not say what it was made from is taken.

    Raises:
        InputError: it was made from a checkpoint of other weights, and ``allow_other`` is false.
    """
    made_from = bases_of(document.get("source")) if isinstance(document, Mapping) else []
    own = source.lineage if made_from else []
    if not made_from or made_from[0] in own or source.sha256 in made_from:
        return
    other = f"{origin} was made from another checkpoint ({made_from[0][:12]}) than {source.name} ({source.sha256[:12]})"
    if common := [base for base in made_from if base in own]:
        log.warn(f"{other}; both go back to {common[0][:12]}")
    elif allow_other:
        log.warn(other)
    else:
        hint = "make it from this model, or add --allow-other-base to use it all the same"
        raise InputError(other, hint=hint)


def check_labels(dataset: Any, source: Source) -> None:
    """Check that labels are classes of the model, also where neither side has names.

    Raises:
        InputError: naming the first sample that is outside.
    """
    classes = source.classes
    assert classes is not None  # named_by_data() has been here
    if dataset.labels is None or int(dataset.labels.max()) < classes:
        return
    first = int((dataset.labels >= classes).argmax())
    raise InputError(
        f"label {int(dataset.labels[first])} of sample {dataset.ids[first]} is outside 0..{classes - 1}, "
        f"the classes of {source.name}"
    )


def known(labels: Tensor | None) -> Tensor:
    """Return the labels of a batch of a set that was opened with ``need_labels``."""
    assert labels is not None
    return labels


def asked_classes(source: Source, tower: str | None) -> dict[str, Any]:
    """Return what a result's provenance says beside every model's settings: prompts, their labels and the tower."""
    description = source.description
    facts: dict[str, Any] = {}
    if source.family.classes(description.config) is None:
        facts = {"labels": list(description.labels or ()) or None, "prompt": list(description.prompt or ()) or None}
    return facts if tower is None else {**facts, "tower": tower}
