"""Head importance by the gradient of a gate on each head's output (Michel et al. 2019, arXiv 1905.10650, equation 2).

``I_h = mean over samples of |dL(x) / d gate_h|`` at gate 1, then divided by the l2 norm of the scores of its site, as
the authors do so that sites can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydractl.criteria.base import Calibration, Criterion, ScoredModel, gates_kept

if TYPE_CHECKING:
    from torch import Tensor


class Gate(Criterion):
    """Mean absolute per-sample gradient of a head's gate."""

    name = "gate"
    needs_data = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """One pass forward and backward over the sample."""
        import torch
        from torch.nn import functional as F

        sums = {i: torch.zeros(model.attentions[i].head_counts[0], dtype=torch.float64) for i in sites}
        live = [i for i in sites if len(sums[i])]
        # One gate per sample where samples run through the site, because the absolute value is taken per sample; the
        # prompts of classes are the same for every sample, so their sites have one gate and one gradient at a time.
        through = set(model.chain_of_samples.sites)
        progress_of = calibration.log.progress("gate", calibration.size, "samples")
        with gates_kept(model) as before, progress_of as progress:
            for inputs, labels in calibration.batches():
                gates: dict[int, Tensor] = {}
                for i in live:
                    start = before[i]
                    ones = torch.ones(1, len(sums[i]), device=labels.device) if start is None else start
                    rows = len(labels) if i in through else 1
                    gates[i] = ones.detach().repeat(rows, 1).requires_grad_(True)
                    model.attentions[i].head_gate = gates[i]
                losses = F.cross_entropy(model.member_logits(inputs)[0].float(), labels, reduction="none")
                _add_gradients(sums, losses.sum(), {i: g for i, g in gates.items() if i in through})
                beside = {i: g for i, g in gates.items() if i not in through}
                for loss in losses if beside else ():
                    _add_gradients(sums, loss, beside)
                progress.advance(len(labels))
        means = {i: total / calibration.size for i, total in sums.items()}
        norms = {i: float(mean.norm()) or 1.0 for i, mean in means.items()}
        return {i: (mean / norms[i]).tolist() for i, mean in means.items()}


def _add_gradients(sums: dict[int, Tensor], loss: Tensor, gates: dict[int, Tensor]) -> None:
    """Add the absolute gradients of a loss by some gates ``[rows, heads]``, summed over rows."""
    import torch

    if gates:
        gradients = torch.autograd.grad(loss, list(gates.values()), retain_graph=True)
        for i, gradient in zip(gates, gradients, strict=True):
            sums[i] += gradient.abs().double().sum(0).cpu()


CRITERION = Gate()
