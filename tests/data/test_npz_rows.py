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
import torch

from hydractl.data import batches, open_data
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


@pytest.mark.parametrize("read_once", [False, True])
def test_every_order_gives_the_same_images(save: Callable[..., str], read_once: bool) -> None:
    data = open_data(save(y=np.arange(100) % 7, x=IMAGES), read_once=read_once)
    forward = list(range(100))
    shuffled = np.random.default_rng(1).permutation(100).tolist()
    for rows in (forward, shuffled[:20], forward[::-1][:20], list(range(30, 100, 7)), [99, 0, 1, 99, 75, 74]):
        assert all(read_rows(data, rows))
    copy = pickle.loads(pickle.dumps(data))
    assert all(read_rows(copy, [5, 80, 3]))


@pytest.mark.parametrize("read_once", [False, True])
def test_limits_and_parts_take_their_images(save: Callable[..., str], read_once: bool) -> None:
    path = save(x=IMAGES[..., :1], y=np.arange(100) // 50)
    sorted_by_class = open_data(path, limit=4, read_once=read_once)
    places = [int(sample.partition("#")[2]) for sample in sorted_by_class.ids]
    assert places[1] < 50 <= places[2]
    part = open_data(f"{path}?part=2/3&take=60", read_once=read_once)
    assert part.ids[:2] == ["a.npz#1", "a.npz#4"]
    for data in (sorted_by_class, part):
        for number, sample in enumerate(data.ids):
            place = int(sample.partition("#")[2])
            assert np.array_equal(np.asarray(data[number]), IMAGES[place, ..., 0])


def test_data_workers_read_by_themselves(save: Callable[..., str]) -> None:
    data = open_data(save(x=IMAGES), read_once=True)
    assert all(read_rows(data, [0, 1, 2]))  # the parent has begun

    def collate(samples: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.asarray(sample) for sample in samples]))

    read = torch.cat([batch.inputs for batch in batches(data, collate, 16, workers=2)])
    assert np.array_equal(read.numpy(), IMAGES)


def test_memory_does_not_grow_with_the_array(save: Callable[..., str]) -> None:
    path = save(x=np.zeros((600, 128, 128), np.uint8))  # 10 MB
    tracemalloc.start()
    try:
        data = open_data(path, read_once=True)
        for image in data:
            assert image.size == (128, 128)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6e6  # blocks of 1 MB


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
    error = refused(InputError, open_data, str(path), read_once=True)
    assert "\n" not in error.message


def test_a_file_that_changes_while_it_is_read_is_refused(save: Callable[..., str]) -> None:
    path = save(x=IMAGES)
    data = open_data(path, read_once=True)
    assert all(read_rows(data, [0]))
    np.savez(f"{path}.new.npz", x=IMAGES[::-1])
    os.replace(f"{path}.new.npz", path)
    data = pickle.loads(pickle.dumps(data))  # as in a data worker: a stream that is open goes on in the old file
    with pytest.raises(InputError, match="was changed while it was read"):
        data[90]
