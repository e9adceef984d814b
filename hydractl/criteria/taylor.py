"""First-order Taylor importance of heads (paper D.1.1, after Molchanov et al. 2019, arXiv 1906.10771).

For head h with rows R_h of the query, key and value projections and G the gradient of the mean cross-entropy over the
whole calibration sample: ``q = mean over R_h of |W_Q * G_Q|``, k and v alike, and the score is ``(q + k + v) / 3``.
Heads that share keys and values have the k and v of these in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.criteria.base import Calibration, Criterion, ScoredModel


class Taylor(Criterion):
    """|weight x gradient| of the query, key and value projections, averaged."""

    name = "taylor"
    needs_data = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """One pass forward and backward over the sample."""
        import torch

        weights = {i: model.attentions[i].only.bank.qkv for i in sites if model.attentions[i].head_counts[0]}
        gradients = {i: torch.zeros_like(w, dtype=torch.float64) for i, w in weights.items()}
        wanted = [p.requires_grad for p in model.parameters()]
        model.requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
        try:
            with calibration.log.progress("taylor", calibration.size, "samples") as progress:
                for loss, count in calibration.losses(model):
                    if weights:
                        for i, g in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
                            # Batches are summed in float64, so the result does not depend on how many there are.
                            gradients[i] += g.double()
                    progress.advance(count)
        finally:
            for parameter, flag in zip(model.parameters(), wanted, strict=True):
                parameter.requires_grad_(flag)
        scores: dict[int, list[float]] = {i: [] for i in sites}
        for i, weight in weights.items():
            bank = model.attentions[i].only.bank
            product = (weight.detach().double() * gradients[i] / calibration.size).abs()
            # 3 times [h, dk, d] -> [h, 3]: mean over the rows of each projection of a head, then over q, k and v
            q, k, v = (rows.flatten(1).mean(1) for rows in bank.packing.split(product))
            keys = slice(None) if bank.key_heads is None else list(bank.key_heads)
            scores[i] = torch.stack([q, k[keys], v[keys]], dim=1).mean(1).tolist()
        return scores


CRITERION = Taylor()
