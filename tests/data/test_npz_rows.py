"""Images that are read from their ``.npz`` one by one, stored or compressed."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.errors import InputError
from tests.running import refused

SAVES = {"stored": np.savez, "compressed": np.savez_compressed}
IMAGES = np.random.default_rng(0).integers(0, 256, (100, 70, 70, 3), dtype=np.uint8)  # 71 images a block


@pytest.fixture(params=SAVES)
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Writes arrays into a file, in each of the two ways."""

    def written(**arrays: Any) -> str:
        path = tmp_path / "a.npz"
        SAVES[request.param](path, **arrays)
        return str(path)

    return written


def read_rows(data: Any, rows: list[int]) -> list[bool]:
    """Whether each of some images is the one of its place."""
    return [np.array_equal(np.asarray(data[row]), IMAGES[row]) for row in rows]


def test_every_order_gives_the_same_images(save: Callable[..., str]) -> None:
    data = open_data(save(y=np.arange(100) % 7, x=IMAGES))
    forward = list(range(100))
    shuffled = np.random.default_rng(1).permutation(100).tolist()
    for rows in (forward, shuffled[:20], forward[::-1][:20], list(range(30, 100, 7)), [99, 0, 1, 99, 75, 74]):
        assert all(read_rows(data, rows))
    copy = pickle.loads(pickle.dumps(data))
    assert all(read_rows(copy, [5, 80, 3]))


def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((600, 128, 128), np.uint8))  # 10 MB
    tracemalloc.start()
    try:
        data = open_data(str(tmp_path / "a.npz"))
        for image in data:
            assert image.size == (128, 128)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.fault(50)
@pytest.mark.parametrize("damage", ["cut", "pixel", "claim"])
def test_damaged_files_are_refused_before_a_sample_is_read(save: Callable[..., str], damage: str) -> None:
    path = Path(save(x=IMAGES))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "pixel":
        content[len(content) // 2] ^= 0x55
    else:  # a header that claims one image more
        place = content.find(b"(100, 70")
        if place < 0:  # compressed, so that the sum of the archive is what no longer fits
            content[200] ^= 0x55
        else:
            content[place : place + 4] = b"(101"
    path.write_bytes(content)
    error = refused(InputError, open_data, str(path))
    assert "\n" not in error.message


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=IMAGES)
    data = open_data(str(path))
    assert all(read_rows(data, [0]))
    np.savez(f"{path}.new.npz", x=IMAGES[::-1])
    os.replace(f"{path}.new.npz", path)
    with pytest.raises(InputError, match="was changed while it was read"):
        data[90]
