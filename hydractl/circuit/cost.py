"""What a circuit costs in the ensemble that it joins: mult-adds of the fused model, in which shared blocks run once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hydractl.fusion.plan import plan_fusion
from hydractl.heads.mask import Head, HeadMask
from hydractl.model.cost import dense_macs, macs
from hydractl.model.source import Source, pruned


class FusedCost:
    """Mult-adds of one sample through some members fused with a circuit, over those of the model with all its heads.

    Args:
        members: the others, in their order.
        source: the model that the circuit is cut from; its weights and theirs are read, to see what they share.
    """

    def __init__(self, members: Sequence[Source], source: Source) -> None:
        self._members, self._source = members, source
        self._whole = plan_fusion([*members, source])
        self._dense = dense_macs(source.description)
        self._counted: dict[Any, int] = {}

    def without(self, removed: Iterable[Head]) -> Fraction:
        """Return the ratio for a circuit that lacks these heads of the model."""
        mask = self._source.description.mask.without(removed)
        # Shapes decide, not which heads they are: most candidates of a site cost the same.
        key = tuple(self._shape(mask, index) for index in range(len(self._source.sites)))
        if key not in self._counted:
            description, tensors = pruned(self._source, mask, "sliced")
            circuit = replace(self._source, description=description, tensors=tensors)
            plan = plan_fusion([*self._members, circuit], larger=self._whole)
            self._counted[key] = macs(plan.description, plan.tensors)
        return Fraction(self._counted[key], self._dense)

    def _shape(self, mask: HeadMask, index: int) -> tuple[Any, ...]:
        """Return what the cost of one site depends on.

        These are the number of the circuit's heads, that of all members' heads together, how many keys either shares,
        and whether every other member has the same heads as the circuit.
        """
        site = self._source.sites[index]
        kept, others = mask.kept[site.path], [one.description.mask.kept[site.path] for one in self._members]
        union = sorted({*kept, *(head for heads in others for head in heads)})
        keys = [len(site.key_heads(heads) or ()) for heads in (kept, union)]
        return len(kept), len(union), *keys, all(heads == kept for heads in others)
