"""The shared computation of a fused model: how many blocks, where members diverge and why."""

from __future__ import annotations

from typing import Any

from hydractl.families.base import MERGEABLE
from hydractl.files.checkpoint import shapes_only
from hydractl.fusion.plan import FusionPlan
from hydractl.model.runtime import HydraModel

_NAMED = 3
"""Tensors that are named of those that differ."""


def shared_parts(plan: FusionPlan) -> list[dict[str, Any]]:
    """The parts that run once for all members, for each tower.

    Returns:
        For each tower its name and number of ``blocks``; ``stem``: whether what comes before them runs once;
        ``blocks_once``: how many leading blocks do; ``attention_once``: whether the attention behind them does; and
        ``parts_at``, ``differs``, ``hint``: where members part, in what, and what would make them part later (None
        where they never do).
    """
    import torch

    model = HydraModel(plan.description, shapes_only(plan.tensors), torch.device("meta"))
    masks = plan.description.masks
    towers = []
    for chain, stages in zip(model.chains, model.family.stages(model.networks[0]), strict=True):
        start, count = chain.start, len(chain.sites)
        part, differs, hint = None, None, None
        if not start.shared_stem:
            part = "stem"
            own = [name for name in plan.own if name.startswith(stages.stem_prefixes)]
            parts = sorted({model.family.part(name, model.sites) for name in own} & set(MERGEABLE))
            differs = _tensors(own)
            hint = "do not train it (finetune --train-last N)"
            hint = f"average it (--merge {','.join(parts)}), or {hint}" if parts else hint
        elif start.blocks < count:
            part = chain.block_paths[start.blocks]
            own = [name for name in plan.own if name.startswith(f"{part}.")]
            site = model.sites[chain.sites.start + start.blocks].path
            heads = any(mask.kept[site] != masks[0].kept[site] for mask in masks)
            differs = "; ".join([*(["heads"] if heads else []), *([_tensors(own)] if own else [])])
            hints = ["the same heads (prune --share-sites N --with MASK)"] if heads else []
            hints += ["weights left as they are (finetune --train-last N)"] if own else []
            hint = f"members that are the same in more leading blocks: {' and '.join(hints)}"
        towers.append(
            {
                "tower": chain.tower,
                "blocks": count,
                "stem": start.shared_stem,
                "blocks_once": start.blocks,
                "attention_once": start.pool,
                "parts_at": part,
                "differs": differs,
                "hint": hint,
            }
        )
    return towers


def _tensors(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more tensors" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
