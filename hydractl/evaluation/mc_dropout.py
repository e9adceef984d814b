"""Monte Carlo dropout: one model that runs N times with its dropout left on, measured as an ensemble of N.

Source: Gal and Ghahramani 2016, "Dropout as a Bayesian approximation", section 4: p = mean over passes of the softmax.

Dropout acts where ``finetune --dropout P`` trains with it: behind the positions (or embeddings), behind attention and
in the MLP of each block, and before a classifier whose rate the configuration does not set apart. Attention weights are
never dropped. A library without dropout layers (open_clip) gets one behind attention and one behind the MLP of each
block of its image tower. The prompts of a zero-shot model are read once, without dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.model.attention import HeadAttention
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.start import with_dropout

CONVENTIONS = {
    "mc_dropout": "MC dropout (Gal and Ghahramani 2016): the model runs `passes` times with dropout of rate p, every"
    " pass counts as a member, and macs are those of all passes. Masks are drawn by seed, data set and batch. `heads`"
    " are those of one pass; pairs of passes are left out, as each is a draw like any other.",
}

_MARK = 0.123456789
"""The rate of the layers that are meant, while they are looked for: one that no configuration has."""


def with_layers(source: Source) -> Source:
    """Return the model with dropout layers in its configuration, where its library builds them.

    Raises:
        UsageError: for a model that has none.
    """
    if source.family.adds_dropout:
        return source
    try:
        return with_dropout(source, _MARK)
    except UsageError as error:
        raise UsageError(error.message.replace("--dropout", "--mc-dropout", 1)) from None


class MCDropout:
    """A model that answers with the passes of MC dropout as its members.

    Its norms and everything else but dropout stay as in evaluation.

    Args:
        model: built from what :func:`with_layers` gave; several that run one after another are one ensemble.
        p: rate of dropout, at least 0 and below 1. With 0, each pass is the model's own answer, bit for bit.
        passes: number of passes N.
        seed: the seed of the dropout masks.
    """

    def __init__(self, model: Any, p: float, passes: int, seed: int) -> None:
        self._model = model
        self._passes = passes
        self._seed = seed
        self._device = next(model.parameters()).device
        parts = [module for module in model.modules() if isinstance(module, HydraModel)]
        for part in parts:  # listed before, as layers are added on the way
            _turn_dropout_on(part, p)

    def member_logits(self, inputs: Any, data: str, first: int) -> Tensor:
        """Return the logits of every member in every pass, ``[N * M, B, classes]``, pass by pass.

        The same arguments give the same masks, whatever ran before; the caller's random numbers go on untouched.

        Args:
            inputs: the inputs of one batch, on the model's device.
            data: the fingerprint of the data set.
            first: the position of the batch's first sample in the data set.
        """
        drawn_for = f"{self._seed} {data} {first}"
        digest = hashlib.sha256(drawn_for.encode()).digest()
        batch_seed = int.from_bytes(digest[:7], "big")
        with _seeded_generators(batch_seed, self._device):
            passes = [self._model.member_logits(inputs) for _ in range(self._passes)]
        return torch.cat(passes)


def _turn_dropout_on(model: HydraModel, p: float) -> None:
    """Let the dropout layers that are meant act outside training, with the rate ``p``.

    They are those whose rate is the mark: of the configuration's layers, and of layers that are added here.
    """
    if model.family.adds_dropout:
        model.family.add_dropout(model.networks[0], _MARK)  # the blocks of the first network run for all members
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p == _MARK:
            module.p = p
            module.train()
        elif isinstance(module, HeadAttention) and module.output_dropout == _MARK:
            module.output_dropout = p
            module.drops = True


@contextmanager
def _seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers by a seed, on the CPU or ``device``; afterwards the generators are where they were."""
    forked_devices = []
    if device.type == "cuda":
        forked_devices = [device]
    mps_state = None
    if device.type == "mps":  # fork_rng leaves its generator alone
        mps_state = torch.mps.get_rng_state()
    with torch.random.fork_rng(forked_devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)
