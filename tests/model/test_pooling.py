"""The averaged prediction of logits in any precision."""

from __future__ import annotations

import pytest
import torch

from hydractl.model.runtime import log_mean_softmax


def log_of_mean(logits: torch.Tensor) -> torch.Tensor:
    """The definition, in float64."""
    return logits.double().softmax(-1).mean(0).log()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logits_of_16_bits_are_pooled_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 50, 1000, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    pooled = log_mean_softmax(logits)
    assert pooled.dtype == torch.float32
    # Values of about 10 in float32; in 16 bits they would be off by a hundredth and more.
    assert (pooled.double() - log_of_mean(logits)).abs().max() < 2e-5


def test_float64_stays() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    pooled = log_mean_softmax(logits)
    assert pooled.dtype == torch.float64
    assert (pooled - log_of_mean(logits)).abs().max() < 1e-13
