"""torchvision's own layout, from local files only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9], np.uint8)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Six images in MNIST's idx format."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        sizes = b"".join(n.to_bytes(4, "big") for n in IMAGES.shape)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + sizes + IMAGES.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + (6).to_bytes(4, "big") + LABELS.tobytes())
    return tmp_path


def test_local_files(mnist: Path) -> None:
    data = open_data(f"torchvision:MNIST/test?root={mnist}", limit=4)
    assert data.ids[3] == "torchvision:MNIST/test#3" and len(data) == 4
    assert data.labels.tolist() == [3, 1, 4, 1]
    assert data.label_names[3] == "3 - three"
    assert data[2].mode == "L" and np.array_equal(np.asarray(data[2]), IMAGES[2])
    again = open_data(f"torchvision:MNIST/train?root={mnist}", limit=4)
    assert again.fingerprint() == data.fingerprint()


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot open the set") as error:
        open_data(f"torchvision:CIFAR10/test?root={tmp_path}")
    assert error.value.hint and "nothing is downloaded" in error.value.hint and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("torchvision:FakeData/test?root=.", "unknown torchvision set 'FakeData'"),
        ("torchvision:MNIST/test", "the folder of the files is not given"),
        ("torchvision:MNIST/val?root=.", "splits train and test"),
        ("torchvision:SVHN?root=.", "needs a split"),
        ("torchvision:EuroSAT/test?root=.", "has no splits"),
        ("torchvision:MNIST/test?path=.", "unknown setting 'path'"),
    ],
)
def test_wrong_names(spec: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        open_data(spec)
