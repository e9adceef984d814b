"""What every head says of every sample: its output at the tokens that the model reads out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hydractl.errors import NonFiniteError
from hydractl.log import Log
from hydractl.model.runtime import HydraModel

Batches = Sequence[tuple[Any, Tensor]]
"""(inputs, labels ``[B]``), kept in memory."""


def rows(inputs: Any, index: Tensor) -> Any:
    """Some samples of a batch of inputs, a tensor or a mapping of tensors."""
    if isinstance(inputs, Tensor):
        return inputs[index]
    return {name: tensor[index] for name, tensor in inputs.items()}


def part_of(batches: Batches, chosen: npt.NDArray[np.bool_]) -> list[tuple[Any, Tensor]]:
    """The chosen samples, counted through all batches in order; batches of which nothing is left are dropped."""
    found, start = [], 0
    for inputs, labels in batches:
        here = np.flatnonzero(chosen[start : start + len(labels)])
        start += len(labels)
        if len(here):
            index = torch.from_numpy(here).to(labels.device)
            found.append((rows(inputs, index), labels[index]))
    return found


@torch.inference_mode()
def head_outputs(
    model: HydraModel, batches: Batches, sites: Sequence[int], log: Log
) -> dict[int, npt.NDArray[np.floating]]:
    """The outputs of the heads of a model of one member, before the output projection.

    They are taken at the tokens that the model reads out (the class token of most); where it reads several, their mean.

    Args:
        sites: of the tower that reads samples.

    Returns:
        By site ``[N, heads present, head_dim]``, at least float32.

    Raises:
        NonFiniteError: naming the first site with an output that is not finite.
    """
    chain = model.chain_of_samples
    stages = next(s for s in model.family.stages(model.networks[0]) if s.tower == chain.tower)
    found: dict[int, list[npt.NDArray[np.floating]]] = {i: [] for i in sites}
    try:
        with log.progress("cahp: heads", sum(len(labels) for _, labels in batches), "samples") as progress:
            for inputs, labels in batches:
                state = chain.stem(inputs)
                positions = None if stages.reads is None else stages.reads(state)
                for i in sites:
                    width = model.attentions[i].only.head_dim

                    def keep(joined: Tensor, site: int = i, width: int = width, at: Tensor | None = positions) -> None:
                        pooled = _at_tokens(joined, at).unflatten(1, (-1, width))
                        found[site].append(pooled.to(torch.promote_types(pooled.dtype, torch.float32)).cpu().numpy())

                    model.attentions[i].observer = keep
                for i in range(chain.sites.start, max(sites) + 1):
                    state = chain.block(i, state)
                progress.advance(len(labels))
    finally:
        for i in sites:
            model.attentions[i].observer = None
    together = {i: np.concatenate(parts) for i, parts in found.items()}
    for i, outputs in together.items():
        if not np.isfinite(outputs).all():
            raise NonFiniteError(f"the output of a head of {model.sites[i].path} is not finite")
    return together


def _at_tokens(joined: Tensor, positions: Tensor | None) -> Tensor:
    """The mean over some tokens of each sample, all of them for None: ``[B, T, D]`` to ``[B, D]``."""
    if positions is not None:
        joined = joined.gather(1, positions[:, :, None].expand(-1, -1, joined.shape[2]))
    return joined.mean(dim=1)


@torch.inference_mode()
def count_correct(model: HydraModel, batches: Batches) -> int:
    """How many samples a model of one member classifies right.

    Raises:
        NonFiniteError: where a logit is not finite.
    """
    correct = 0
    for inputs, labels in batches:
        logits = model.member_logits(inputs)[0]
        if not bool(logits.isfinite().all()):
            raise NonFiniteError("a logit is not finite while the model runs with some of its heads")
        correct += int((logits.argmax(dim=-1) == labels).sum())
    return correct
