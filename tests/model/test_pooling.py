"""The averaged prediction of logits in any precision."""

from __future__ import annotations

import pytest
import torch

from hydractl.model.runtime import log_mean_softmax


@pytest.mark.parametrize(
    ("dtype", "computed", "allowed"),
    [
        # Values of about 10 in float32; in 16 bits they would be off by a hundredth and more.
        (torch.float16, torch.float32, 2e-5),
        (torch.bfloat16, torch.float32, 2e-5),
        (torch.float32, torch.float32, 2e-5),
        (torch.float64, torch.float64, 1e-13),
    ],
)
def test_logits_of_16_bits_are_pooled_in_float32(dtype: torch.dtype, computed: torch.dtype, allowed: float) -> None:
    logits = (torch.randn(3, 50, 1000, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    pooled = log_mean_softmax(logits)
    assert pooled.dtype == computed
    assert (pooled.double() - logits.double().softmax(-1).mean(0).log()).abs().max() < allowed
