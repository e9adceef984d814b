"""How good a model in training is on data it is not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.distributed import Processes
from hydractl.errors import NonFiniteError
from hydractl.model.runtime import HydraModel


class Broken(Exception):
    """The validation was left in its midst, because the run was interrupted."""


@torch.inference_mode()
def validate(
    model: HydraModel,
    batches: Callable[[], Iterator[tuple[Any, Tensor]]],
    team: Processes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Accuracy and mean negative log-likelihood on the validation set.

    Args:
        model: set to eval mode.
        batches: the samples of this process.
        team: all processes, each with samples of its own.
        stop: asked before each batch; True ends the validation.

    Raises:
        Broken: ``stop`` said so.
        NonFiniteError: the loss is not finite.
    """
    model.eval()
    right, loss, count = 0, 0.0, 0
    for inputs, labels in batches():
        if stop():
            raise Broken
        log_p = model(inputs)
        right += int((log_p.argmax(-1) == labels).sum())
        loss += float(F.nll_loss(log_p.double(), labels, reduction="sum"))
        count += len(labels)
    if team is not None and team.size > 1:
        # As text: a sum that is not finite is told as well.
        parts = [(r, float.fromhex(text), n) for r, text, n in team.gather([right, loss.hex(), count])]
        right, loss, count = (sum(values) for values in zip(*parts, strict=True))
    if not math.isfinite(loss):
        raise NonFiniteError(f"the validation loss is {loss}", hint="lower --lr, or raise --warmup")
    return {"val_accuracy": right / count, "val_nll": loss / count}
