"""Centroid distances and principal components, against a few lines written plainly and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA

from examples.analyses.centroids import centroid_distances
from examples.analyses.pca import principal_plane


def outputs(samples: int, shift: float, seed: int, heads: int = 3, width: int = 4) -> np.ndarray:
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(9).normal(size=(heads, width, width))
    return np.einsum("nhd,hde->nhe", random.normal(size=(samples, heads, width)), mixing) + shift


def test_distances_of_every_head() -> None:
    inside, outside = outputs(50, 0.0, 1).astype(np.float32), outputs(30, 0.7, 2).astype(np.float32)
    found = centroid_distances(inside, outside)
    for head in range(3):
        a, b = inside[:, head].astype(float), outside[:, head].astype(float)
        gap = b.mean(0) - a.mean(0)
        assert found.euclidean[head] == pytest.approx(math.sqrt(sum(gap**2)))
        inverse = np.linalg.inv(LedoitWolf().fit(a).covariance_)
        assert found.mahalanobis[head] == pytest.approx(math.sqrt(gap @ inverse @ gap))


def test_the_plane_is_that_of_scikit_learn() -> None:
    inside, outside = outputs(40, 0.0, 1), outputs(25, 1.5, 2)
    plane = principal_plane(inside, outside)
    reference = PCA(2, svd_solver="full").fit(np.concatenate([inside, outside]).reshape(65, 12))
    expected = reference.transform(inside.reshape(40, 12))
    assert plane.explained == pytest.approx(tuple(reference.explained_variance_ratio_))
    for axis in range(2):
        sign = 1.0 if reference.components_[axis][np.abs(reference.components_[axis]).argmax()] > 0 else -1.0
        assert plane.inside[:, axis] == pytest.approx(sign * expected[:, axis])
    assert plane.outside.shape == (25, 2)
    assert np.concatenate([plane.inside, plane.outside]).mean(0) == pytest.approx(0, abs=1e-9)
