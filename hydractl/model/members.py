"""How the tensors of members stand in one file: shared ones under stock names, the rest under ``members.M.``.

The heads of a site that are equal in all members that have them are stored once too: the tensors of its attention then
stand under their stock names and hold every head that any member has, in ascending order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hydractl.families.base import ModelFamily, attention_names
from hydractl.files.checkpoint import MappedTensors, TensorSource
from hydractl.heads.mask import HeadMask, Site


def member_name(name: str, member: int) -> str:
    """Where the tensor ``name`` of one member stands in a fused file; what all share keeps its stock name."""
    return f"members.{member}.{name}"


class MemberTensors(MappedTensors):
    """The tensors of one member of a fused source under their stock names, as they are stored.

    Attributes:
        stored: by stock name, the name in the file.
    """

    def __init__(self, tensors: TensorSource, member: int) -> None:
        prefix = member_name("", member)
        names = tensors.names()
        self.stored = {n: n for n in names if not n.startswith("members.")}
        self.stored.update({n.removeprefix(prefix): n for n in names if n.startswith(prefix)})
        infos = {name: tensors.info(stored) for name, stored in self.stored.items()}
        super().__init__(infos, lambda name: tensors.read(self.stored[name]))


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
