"""Real data sets in full, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hydractl.data import open_data


def test_fashion_mnist(real_data: Path) -> None:
    path = real_data / "images/fashion_mnist_test.npz"
    data = open_data(str(path))
    with np.load(path) as arrays:
        names = arrays["classes"].tolist()
        assert data.label_names == names and len(data) == 5000
        assert data.labels is not None and np.array_equal(data.labels, arrays["y"])
        assert np.array_equal(np.asarray(data[4999]), arrays["x"][4999])
    turned = open_data(str(path), labels=names[::-1])
    assert turned.labels is not None and np.array_equal(9 - turned.labels, data.labels)
    assert turned.sample_fingerprints() == data.sample_fingerprints()
    assert turned.fingerprint() != data.fingerprint()


def test_out_of_distribution_sets(real_data: Path) -> None:
    names = open_data(str(real_data / "images/cifar10_test.npz"), limit=1).label_names
    near = open_data(str(real_data / "images/cifar100_test.npz"), labels=names, ignore_labels=True)
    assert near.labels is None
    assert near.label_names == names
    assert near[0].mode == "RGB"
    assert len(near) == 2000
    far = open_data(str(real_data / "images/mnist_test.npz"), labels=names)
    assert far.labels is not None  # digits without names are indices
    assert far[0].mode == "L"
