"""Head importance by the gradient of a gate on each head's output (Michel et al. 2019, arXiv 1905.10650, equation 2).

``I_h = mean over samples of |dL(x) / d gate_h|`` at gate 1. The scores of each site are then divided by their l2 norm,
so that sites can be compared, as the authors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydractl.criteria.criterion import Calibration, Criterion, ScoredModel, gates_kept

if TYPE_CHECKING:
    from torch import Tensor


class Gate(Criterion):
    """Mean absolute per-sample gradient of a head's gate."""

    name = "gate"
    needs_data = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Return the scores of the heads at each site (attention module), by its index.

        Each head gets a gate, a factor of its output. The score is the mean over the samples of the absolute gradient
        of the loss with respect to the gate, divided by the l2 norm of the scores of its site.
        """
        import torch
        from torch.nn import functional as F

        # The sums of absolute gradients, [heads] for each site.
        sums: dict[int, Tensor] = {}
        for site_index in sites:
            heads = model.attentions[site_index].head_counts[0]
            sums[site_index] = torch.zeros(heads, dtype=torch.float64)
        sites_with_heads = [site_index for site_index in sites if len(sums[site_index])]

        # The absolute value is taken per sample, so each sample needs its own gradient. Sites that samples run through
        # have one gate per sample and head, and one backward pass is enough. A zero-shot model also has sites for the
        # prompts of classes, which all samples share: one gate per head, and one backward pass per sample.
        sites_of_samples = set(model.chain_of_samples.sites)
        progress_bar = calibration.log.progress("gate", calibration.size, "samples")
        with gates_kept(model) as gates_before, progress_bar as progress:
            for inputs, labels in calibration.batches():
                gates_of_samples: dict[int, Tensor] = {}
                gates_of_prompts: dict[int, Tensor] = {}
                # Set the gates of this batch. They start from the gates that were set before (None: all ones).
                for site_index in sites_with_heads:
                    start = gates_before[site_index]
                    if start is None:
                        start = torch.ones(1, len(sums[site_index]), device=labels.device)
                    start = start.detach()
                    if site_index in sites_of_samples:
                        gate = start.repeat(len(labels), 1)  # [B, heads]
                        gates_of_samples[site_index] = gate
                    else:
                        gate = start.clone()  # [1, heads]
                        gates_of_prompts[site_index] = gate
                    gate.requires_grad_(True)
                    model.attentions[site_index].head_gate = gate

                # Run the batch, and add up its gradients.
                logits = model.member_logits(inputs)[0]  # [B, classes]
                losses = F.cross_entropy(logits.float(), labels, reduction="none")
                if gates_of_samples:
                    _add_gradients(sums, losses.sum(), gates_of_samples)
                if gates_of_prompts:
                    for loss in losses:
                        _add_gradients(sums, loss, gates_of_prompts)
                progress.advance(len(labels))

        # Divide the scores of each site by their l2 norm; scores that are all 0 stay 0.
        scores = {}
        for site_index, total in sums.items():
            mean = total / calibration.size
            norm = float(mean.norm()) or 1.0
            scores[site_index] = (mean / norm).tolist()
        return scores


def _add_gradients(sums: dict[int, Tensor], loss: Tensor, gates: dict[int, Tensor]) -> None:
    """Add the absolute gradients of a loss with respect to some gates to the sums, in place.

    Args:
        sums: the sums so far, ``[heads]`` by the index of the site (attention module).
        loss: a scalar; its graph is kept, since the caller may differentiate it, or other losses, once more.
        gates: the gates of each site, ``[B, heads]`` or ``[1, heads]``; absolute gradients are summed over the first
            axis.
    """
    import torch

    gradients = torch.autograd.grad(loss, list(gates.values()), retain_graph=True)
    for site_index, gradient in zip(gates, gradients, strict=True):
        magnitudes = gradient.abs().double()
        sums[site_index] += magnitudes.sum(0).cpu()


CRITERION = Gate()
