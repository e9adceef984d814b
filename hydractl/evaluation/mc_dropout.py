"""Monte Carlo dropout: one model runs N times with dropout turned on, and is measured as an ensemble of N members.

Source: Gal and Ghahramani 2016, "Dropout as a Bayesian approximation", section 4: p = mean over passes of the softmax.

Dropout acts where ``finetune --dropout P`` trains with it: after the positions (or embeddings), after attention and in
the MLP of each block, and before the classifier unless the configuration has a separate rate for it. Attention weights
are never dropped. CLIPs have no dropout layers, so they are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.files.model_records import DropoutRecord
from hydractl.model.attention import HeadAttention
from hydractl.model.source import Source
from hydractl.training.start import with_dropout

CONVENTIONS = {
    "mc_dropout": "MC dropout (Gal and Ghahramani 2016): the model runs `passes` times with dropout of rate p, every"
    " pass counts as a member, and macs are those of all passes. Masks are drawn by seed, data set and batch. `heads`"
    " are those of one pass.",
}

_MARK = 0.123456789
"""A dropout rate that no configuration has. It marks the layers to turn on, until they get the real rate."""


def with_layers(source: Source) -> Source:
    """Return the model with the marking dropout rate in its configuration.

    Raises:
        UsageError: if the model can have no dropout.
    """
    try:
        return with_dropout(source, _MARK)
    except UsageError as error:
        raise UsageError(error.message.replace("--dropout", "--mc-dropout", 1)) from None


def turn_on(model: Any, p: float) -> None:
    """Make dropout random in a model in eval mode, with the rate p, in place; all else, e.g. norms, stays in eval mode.

    Only layers of the rate ``_MARK`` are turned on, a rate that no model has by itself and :func:`with_layers` gives
    to the layers that belong to MC dropout.

    Args:
        model: a model that was built from the result of :func:`with_layers`, or an ensemble of such models.
        p: the dropout rate, at least 0 and below 1. With 0, each pass equals the model's own answer bit by bit.
    """
    # Dropout is a layer of its own, or for attention a part of the attention module.
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p == _MARK:
            module.p = p
            module.train()
        elif isinstance(module, HeadAttention) and module.output_dropout == _MARK:
            module.output_dropout = p
            module.drops = True


def dropout_logits(model: Any, dropout: DropoutRecord, inputs: Any, data: str, first: int) -> Tensor:
    """Return the logits of M members in N random passes, ``[N * M, B, classes]``: all members of the first pass first.

    The same arguments always give the same dropout masks. The caller's random generators are not changed.

    Args:
        model: a model whose dropout is on (:func:`turn_on`).
        dropout: the number of passes N, and the seed of the masks.
        inputs: the inputs of one batch, on the model's device.
        data: the fingerprint of the data set.
        first: the index of the batch's first sample in the data set.
    """
    # A seed for each batch of each data set: 56 bits of a hash of the settings.
    digest = hashlib.sha256(f"{dropout.seed} {data} {first}".encode()).digest()
    batch_seed = int.from_bytes(digest[:7], "big")
    with _seeded_generators(batch_seed, next(model.parameters()).device):
        passes = [model.member_logits(inputs) for _ in range(dropout.passes)]
    return torch.cat(passes)


@contextmanager
def _seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random generators of the CPU and of ``device`` for the block; afterwards restore their states."""
    # fork_rng always restores the state of the CPU, and those of the devices that it is given.
    other_devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(other_devices, device_type=device.type):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield
