"""First-order Taylor importance of heads (paper D.1.1, after Molchanov et al. 2019, arXiv 1906.10771).

For head h with rows R_h of the query, key and value projections, let G be the gradient of the mean cross-entropy over
the whole calibration sample. Then ``q = mean over R_h of |W_Q * G_Q|``, k and v in the same way, and the score is
``(q + k + v) / 3``. Heads that share keys and values have the same k and v.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.criteria.criterion import Calibration, Criterion, ScoredModel, gradients_of


class Taylor(Criterion):
    """|weight x gradient| of the query, key and value projections, averaged."""

    name = "taylor"
    needs_data = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Return the scores of the heads at each site (attention module), by its index.

        The score is the mean magnitude of the product w g over the weights w of the query, key and value projections
        of a head, where g is the gradient of the mean loss of the sample.
        """
        import torch

        # The packed projections of each site that has heads, and the sums of their gradients in float64.
        weights = {}
        summed_gradients = {}
        for site_index in sites:
            if model.attentions[site_index].head_counts[0]:
                weight = model.attentions[site_index].only.bank.qkv
                weights[site_index] = weight
                summed_gradients[site_index] = torch.zeros_like(weight, dtype=torch.float64)

        progress_bar = calibration.log.progress("taylor", calibration.size, "samples")
        with gradients_of(model, weights.values()), progress_bar as progress:
            for loss, count in calibration.losses(model):
                if weights:
                    gradients = torch.autograd.grad(loss, list(weights.values()))
                    for site_index, gradient in zip(weights, gradients, strict=True):
                        # Sum batches in float64, so that their number does not change the result.
                        summed_gradients[site_index] += gradient.double()
                progress.advance(count)

        scores: dict[int, list[float]] = {site_index: [] for site_index in sites}
        for site_index, summed_gradient in summed_gradients.items():
            bank = model.attentions[site_index].only.bank
            weight = bank.qkv.detach().double()
            products = weight * summed_gradient / calibration.size

            # Average over the rows of each projection of a head, then over query, key and value.
            projections = bank.packing.split(products.abs())  # query, key and value: [h, dk, d] each
            q, k, v = [values.flatten(1).mean(1) for values in projections]  # [h] each
            if bank.key_heads is not None:  # several heads share one head of keys and values: repeat its k and v
                key_of_head = list(bank.key_heads)
                k = k[key_of_head]
                v = v[key_of_head]
            means = torch.stack([q, k, v], dim=1)  # [h, 3]
            scores[site_index] = means.mean(1).tolist()
        return scores


CRITERION = Taylor()
