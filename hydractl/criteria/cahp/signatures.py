"""The separability signature of every head: how far apart the classes are in its output.

A head's output is taken at the tokens that the model reads out, and each class described by a Gaussian in float64. For
classes a and b with means m and covariances S, the Bhattacharyya distance is
``B = (m_a - m_b)^T S^-1 (m_a - m_b) / 8 + ln(|S| / sqrt(|S_a| |S_b|)) / 2`` with ``S = (S_a + S_b) / 2``, and the
Jeffries-Matusita distance is ``2 (1 - exp(-B))``: 0 where the Gaussians are the same, 2 where they do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hydractl.criteria.base import ScoredModel
from hydractl.errors import NonFiniteError
from hydractl.log import Log

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Batches = Sequence[tuple[Any, Tensor]]
"""(inputs, labels ``[B]``), kept in memory."""

MOST_PAIRS = 1000
LEAST_SAMPLES = 3
"""Of a class, for its Gaussian: from two samples Ledoit and Wolf's formula shrinks nothing, and the covariance is
singular."""

_RIDGE = 1e-6
_ROUNDING = 1e-12
_PAIRS_AT_ONCE = 256

# --- outputs of heads -------------------------------------------------------------------------------------------------


def rows(inputs: Any, index: Tensor) -> Any:
    """Some samples of a batch of inputs, a tensor or a mapping of tensors."""
    if isinstance(inputs, Tensor):
        return inputs[index]
    return {name: tensor[index] for name, tensor in inputs.items()}


def part_of(batches: Batches, chosen: npt.NDArray[np.bool_]) -> list[tuple[Any, Tensor]]:
    """The chosen samples, counted through all batches in order; batches of which nothing is left are dropped."""
    parts, start = [], 0
    for inputs, labels in batches:
        here = np.flatnonzero(chosen[start : start + len(labels)])
        start += len(labels)
        if len(here):
            index = torch.from_numpy(here).to(labels.device)
            parts.append((rows(inputs, index), labels[index]))
    return parts


@torch.inference_mode()
def head_outputs(
    model: ScoredModel, batches: Batches, sites: Sequence[int], log: Log
) -> dict[int, npt.NDArray[np.floating]]:
    """The outputs of the heads of a model of one member, before the output projection.

    They are taken at the tokens that the model reads out (the class token of most); where it reads several, their mean.

    Args:
        sites: of the tower that reads samples.

    Returns:
        By site ``[N, heads present, head_dim]``, at least float32.

    Raises:
        NonFiniteError: naming the first site with an output that is not finite.
    """
    chain = model.chain_of_samples
    stages = next(s for s in model.family.stages(model.networks[0]) if s.tower == chain.tower)
    by_site: dict[int, list[npt.NDArray[np.floating]]] = {i: [] for i in sites}
    try:
        with log.progress("cahp: heads", sum(len(labels) for _, labels in batches), "samples") as progress:
            for inputs, labels in batches:
                state = chain.stem(inputs)
                positions = None if stages.reads is None else stages.reads(state)
                for i in sites:
                    width = model.attentions[i].only.head_dim

                    def keep(joined: Tensor, site: int = i, width: int = width, at: Tensor | None = positions) -> None:
                        pooled = _at_tokens(joined, at).unflatten(1, (-1, width))
                        by_site[site].append(pooled.to(torch.promote_types(pooled.dtype, torch.float32)).cpu().numpy())

                    model.attentions[i].observer = keep
                for i in range(chain.sites.start, max(sites) + 1):
                    state = chain.block(i, state)
                progress.advance(len(labels))
    finally:
        for i in sites:
            model.attentions[i].observer = None
    together = {i: np.concatenate(parts) for i, parts in by_site.items()}
    for i, outputs in together.items():
        if not np.isfinite(outputs).all():
            raise NonFiniteError(f"the output of a head of {model.sites[i].path} is not finite")
    return together


def _at_tokens(joined: Tensor, positions: Tensor | None) -> Tensor:
    """The mean over some tokens of each sample, all of them for None: ``[B, T, D]`` to ``[B, D]``."""
    if positions is not None:
        joined = joined.gather(1, positions[:, :, None].expand(-1, -1, joined.shape[2]))
    return joined.mean(dim=1)


# --- distances between classes ----------------------------------------------------------------------------------------


def class_pairs(classes: int, random: np.random.Generator) -> Ints:
    """All pairs of classes, or ``MOST_PAIRS`` of them drawn without replacement where there are more: ``[P, 2]``."""
    pairs = np.stack(np.triu_indices(classes, 1), axis=1).astype(np.int64)
    if len(pairs) > MOST_PAIRS:
        pairs = pairs[np.sort(random.choice(len(pairs), MOST_PAIRS, replace=False))]
    return pairs


def signatures(outputs: npt.NDArray[np.floating], labels: Ints, pairs: Ints) -> Floats:
    """The separability signature of every head: its Jeffries-Matusita distance for each pair of classes.

    Args:
        outputs: ``[N, heads, head_dim]``, finite.
        labels: the class of each sample, ``[N]``; every class of ``pairs`` has ``LEAST_SAMPLES`` or more.
        pairs: ``[P, 2]``.

    Returns:
        ``[heads, P]``, each in 0..2.
    """
    distances = np.empty((outputs.shape[1], len(pairs)))
    for head in range(outputs.shape[1]):
        means, covariances = _gaussians(outputs[:, head].astype(np.float64), labels, int(pairs.max()) + 1)
        distances[head] = jeffries_matusita(means, covariances, pairs)
    return distances


def _gaussians(samples: Floats, labels: Ints, classes: int) -> tuple[Floats, Floats]:
    """Mean ``[C, d]`` and Ledoit-Wolf covariance ``[C, d, d]`` of each class."""
    from sklearn.covariance import LedoitWolf

    width = samples.shape[1]
    means, covariances = np.zeros((classes, width)), np.zeros((classes, width, width))
    for label in np.unique(labels[labels < classes]):
        fit = LedoitWolf(store_precision=False).fit(samples[labels == label])
        means[label], covariances[label] = fit.location_, fit.covariance_
    # A head that says the same to all samples of a class would have no inverse. The ridge is far below what counts in
    # any other head; its second part drowns a variance that is nothing but rounding.
    ridge = _RIDGE * samples.var(axis=0).mean() + _ROUNDING * np.square(samples).mean()
    return means, covariances + (ridge or 1.0) * np.eye(width)


def jeffries_matusita(means: Floats, covariances: Floats, pairs: Ints) -> Floats:
    """The distance of each pair of Gaussians.

    Args:
        means: ``[C, d]``.
        covariances: ``[C, d, d]``, positive definite.
        pairs: ``[P, 2]``.

    Returns:
        ``[P]``, each in 0..2.
    """
    single = _log_determinants(np.linalg.cholesky(covariances))
    distances = np.empty(len(pairs))
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        a, b = pairs[start : start + _PAIRS_AT_ONCE].T
        factors = np.linalg.cholesky((covariances[a] + covariances[b]) / 2)
        whitened = np.linalg.solve(factors, (means[a] - means[b])[:, :, None])[:, :, 0]
        spread = _log_determinants(factors) - (single[a] + single[b]) / 2
        bhattacharyya = np.square(whitened).sum(axis=1) / 8 + spread / 2
        # Rounding may leave a distance of zero a little below it.
        distances[start : start + len(a)] = -2 * np.expm1(-np.maximum(bhattacharyya, 0))
    return distances


def _log_determinants(factors: npt.NDArray[np.floating]) -> Floats:
    """Of matrices by their Cholesky factors ``[..., d, d]``."""
    return 2 * np.log(np.diagonal(factors, axis1=-2, axis2=-1)).sum(axis=-1)
