"""Which heads stand in a fused file under the names of one member, and that member as a model of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hydractl.checkpoint import TensorSource
from hydractl.families.base import ModelFamily, attention_names
from hydractl.heads import HeadMask, Site
from hydractl.members import MemberTensors
from hydractl.slicing import sliced

if TYPE_CHECKING:
    from hydractl.models import Source


def sites_stored_once(tensors: TensorSource, family: ModelFamily, sites: Sequence[Site]) -> set[str]:
    """The paths of the sites whose attention stands under stock names; all of them in a model of one member."""
    names = [name for name in tensors.names() if not name.startswith("members.")]
    return {site.path for site in sites if attention_names(family, names, sites, site)}


def united(masks: Sequence[HeadMask], path: str) -> tuple[int, ...]:
    """Every head that any member has at a site, ascending."""
    return tuple(sorted({head for mask in masks for head in mask.kept[path]}))


def held_mask(masks: Sequence[HeadMask], member: int, once: Collection[str]) -> HeadMask:
    """The heads that stand under the names of one member: its own, or at the sites of ``once`` those of all members."""
    mask = masks[member]
    return HeadMask(mask.heads, {p: united(masks, p) if p in once else kept for p, kept in mask.kept.items()})


def member_source(source: Source, member: int) -> Source:
    """One member of a fused checkpoint as a model of its own.

    Args:
        source: of a fused model.
        member: its number, from 0.

    Returns:
        A pruned model that holds what the fused model holds for this member, averaged weights included.
    """
    description, family, sites = source.description, source.family, source.sites
    held = held_mask(description.masks, member, sites_stored_once(source.tensors, family, sites))
    mask = description.masks[member]
    return replace(
        source,
        name=f"{source.name}.member{member}",
        description=replace(
            description,
            kind="dense" if mask.is_full else "pruned",
            masks=[mask],
            merge=None,
            members=(),
            extra={},
        ),
        tensors=sliced(MemberTensors(source.tensors, member), family, sites, held, mask),
        file_bytes=None,
    )
