"""The cross-entropy of logits in any precision, and of classes with weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hydractl.distributed import Processes
from hydractl.training.losses import CrossEntropy
from hydractl.training.options import LossOptions


class Fixed(nn.Module):
    """A model whose logits are its parameters."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def member_logits(self, inputs: Tensor) -> Tensor:
        return self.logits[inputs][None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_of_16_bit_logits_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(64, 100, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    labels = torch.arange(64)
    loss = CrossEntropy(Fixed(logits), LossOptions(label_smoothing=0.1), Processes())
    ((batch, share),) = loss.calls([(torch.arange(64), labels)], [1.0])
    got = loss(batch)
    assert got.dtype == torch.float32 and share == 1.0
    log_p = logits.double().log_softmax(-1)
    smoothed = torch.full((64, 100), 0.1 / 100, dtype=torch.float64)
    smoothed[torch.arange(64), labels] += 0.9
    expected = -(smoothed * log_p).sum(-1).mean()
    # A mean of numbers of about 15.
    assert abs(got.item() - expected.item()) < 1e-5


def test_where_classes_have_weights_the_mean_is_over_the_weights() -> None:
    weights = torch.arange(1.0, 11.0)
    logits = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64) % 10
    loss = CrossEntropy(Fixed(logits), LossOptions(class_weights=lambda classes: weights[:classes]), Processes())
    terms = -logits.log_softmax(-1)[torch.arange(64), labels]
    expected = (weights[labels] * terms).sum() / weights[labels].sum()
    assert loss((torch.arange(64), labels)).item() == pytest.approx(expected.item(), rel=1e-6)
