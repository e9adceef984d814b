"""Sums over training samples, from which Gaussians of every layer of a model are fitted; no features are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.probabilities import Floats

MOST_BYTES = 2 << 30
"""The most memory that the sums of all layers and members may need."""


@dataclass(eq=False)
class LayerSums:
    """The sums of one layer's vectors, in float64.

    Attributes:
        origin: what is subtracted from every vector first, so that little is lost where sums cancel: the mean of the
            first batch, [d].
        counts: the samples of each class, [K].
        sums: the sum of each class, [K, d].
        products: the sum of the outer products of all vectors with themselves, [d, d].
    """

    origin: Floats
    counts: NDArray[np.int64]
    sums: Floats
    products: Floats

    @property
    def nbytes(self) -> int:
        """The bytes that they take."""
        return self.origin.nbytes + self.counts.nbytes + self.sums.nbytes + self.products.nbytes

    @classmethod
    def empty(cls, width: int, classes: int) -> LayerSums:
        """Return sums over no samples."""
        counts = np.zeros(classes, dtype=np.int64)
        return cls(np.zeros(width), counts, np.zeros((classes, width)), np.zeros((width, width)))

    def add(self, vectors: Floats, labels: NDArray[np.int64]) -> None:
        """Add a batch of vectors [B, d] with their labels [B] to the sums, in place."""
        # All sums are of differences from one point, which keeps rounding small: the mean of the first batch.
        is_first_batch = not self.counts.any()
        if is_first_batch:
            self.origin = vectors.mean(axis=0)
        from_origin = vectors - self.origin
        self.counts += np.bincount(labels, minlength=len(self.counts))
        np.add.at(self.sums, labels, from_origin)
        self.products += from_origin.T @ from_origin

    def without(self, vectors: Floats, labels: NDArray[np.int64]) -> LayerSums:
        """Return new sums in which the vectors [B, d] with these labels [B] are left out; they were added before."""
        from_origin = vectors - self.origin
        sums = self.sums.copy()  # [C, d]
        np.subtract.at(sums, labels, from_origin)  # from the sum of each vector's class
        return LayerSums(
            origin=self.origin,
            counts=self.counts - np.bincount(labels, minlength=len(self.counts)),
            sums=sums,
            products=self.products - from_origin.T @ from_origin,
        )

    def gaussians(self) -> tuple[Floats, Floats, Floats]:
        """Return the mean of all vectors [d], the means of the K classes with samples [K, d], and a covariance [d, d].

        The covariance is that within classes, one for all: with N vectors x in all, n_k of them of class k,
        1/N sum (x - mean_k)(x - mean_k)^T = 1/N (sum x x^T - sum_k n_k mean_k mean_k^T).
        """
        has_samples = self.counts > 0  # leave out classes without samples, [C]
        counts = self.counts[has_samples]  # n_k, [K]
        samples = counts.sum()  # N
        # All sums are of vectors minus the origin, which leaves the covariance as it is.
        means_from_origin = self.sums[has_samples] / counts[:, None]  # [K, d]
        between_classes = (
            means_from_origin * counts[:, None]
        ).T @ means_from_origin  # sum_k n_k mean_k mean_k^T, [d, d]
        covariance = (self.products - between_classes) / samples
        # Add the origin back to the means.
        centre = self.origin + self.sums.sum(axis=0) / samples
        return centre, self.origin + means_from_origin, covariance


def bytes_of_sums(widths: Iterable[int], classes: int) -> int:
    """Return the bytes of memory that the sums of layers of these widths take."""
    numbers = 0
    for width in widths:
        numbers += width * (width + classes)
    return numbers * np.dtype(np.float64).itemsize


def empty_sums(widths: Sequence[Sequence[int]], classes: int) -> list[list[LayerSums]]:
    """Return empty sums for each layer of each member: a list of layers for each member.

    Args:
        widths: for each member the width of each layer (the length of its vectors).
        classes: the number of classes.

    Raises:
        InputError: they need too much memory.
    """
    widths_of_all: list[int] = []
    for widths_of_member in widths:
        widths_of_all += widths_of_member
    needed = bytes_of_sums(widths_of_all, classes)
    if needed > MOST_BYTES:
        raise InputError(
            f"mahalanobis-layers needs {needed / (1 << 30):.1f} GiB for the covariances and class means of"
            f" {len(widths_of_all)} layers, more than {MOST_BYTES >> 30}",
            hint="take mahalanobis, which is of the last layer alone",
        )
    return [[LayerSums.empty(width, classes) for width in widths_of_member] for widths_of_member in widths]


def by_layer(layers: Sequence[LayerSums], vectors: Floats) -> Iterator[tuple[LayerSums, Floats]]:
    """Yield the sums of each layer of a member with the layer's part of vectors, [B, width].

    Args:
        layers: the sums.
        vectors: those of all layers, one after another, [B, sum of widths].
    """
    start = 0
    for sums in layers:
        stop = start + len(sums.products)
        yield sums, vectors[:, start:stop]
        start = stop


def add_to_sums(layers: Sequence[LayerSums], vectors: Floats, labels: NDArray[np.int64]) -> None:
    """Add a batch of samples with these labels [B]; the other arguments are those of :func:`by_layer`."""
    for sums, vectors_of_layer in by_layer(layers, vectors):
        sums.add(vectors_of_layer, labels)
