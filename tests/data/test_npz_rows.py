"""Images that are read from their ``.npz``, stored or compressed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import open_data
from hydractl.errors import InputError
from tests.running import refused

SAVES = {"stored": np.savez, "compressed": np.savez_compressed}
IMAGES = np.random.default_rng(0).integers(0, 256, (100, 70, 70, 3), dtype=np.uint8)


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
