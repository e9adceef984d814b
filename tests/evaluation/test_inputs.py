"""Batches that rows of one study share: what is kept, within which memory, and what is read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data import open_data
from hydractl.evaluation.inputs import keeping_batches, read_batches
from hydractl.evaluation.sets import TRAIN, EvalSet

BYTES = 10 * 8
"""Of a set of ten samples, each one number in float64."""


class Reader:
    """From samples to the sum of their pixels, which counts the samples that it is given."""

    def __init__(self) -> None:
        self.samples = 0

    def __call__(self, samples: Sequence[Any]) -> torch.Tensor:
        self.samples += len(samples)
        return torch.tensor([float(np.asarray(sample).sum()) for sample in samples], dtype=torch.float64)


def a_set(spec: str) -> EvalSet:
    dataset = open_data(spec, limit=10)
    return EvalSet("train", TRAIN, None, dataset.ids, None, dataset.fingerprint(), spec=spec, dataset=dataset)


DIGITS, LETTERS = "builtin:digits/train", "builtin:letters"


def values(batches: Iterator[Any]) -> list[float]:
    return [float(value) for batch in batches for value in batch.inputs]


def test_a_set_that_is_read_again_as_before_is_not_decoded_again() -> None:
    reader, digits = Reader(), a_set(DIGITS)
    expected = values(read_batches(digits, reader, {}, 4))
    with keeping_batches(BYTES):
        first = list(read_batches(digits, reader, {}, 4))
        again = list(read_batches(a_set(DIGITS), reader, {}, 4))  # opened anew, as each eval does
        assert reader.samples == 20
        assert values(iter(first)) == values(iter(again)) == expected
        assert [batch.indices for batch in again] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert values(read_batches(digits, reader, {}, 4)) == expected and reader.samples == 30


@pytest.mark.parametrize(
    ("spec", "preprocess", "batch_size", "rows"),
    [
        (LETTERS, {}, 4, None),
        (DIGITS, {"mean": 1}, 4, None),
        (DIGITS, {}, 5, None),
        (DIGITS, {}, 4, [*range(10)]),
    ],
)
def test_another_set_or_another_way_to_read_it_is_read(
    spec: str, preprocess: dict[str, Any], batch_size: int, rows: list[int] | None
) -> None:
    reader = Reader()
    expected = values(read_batches(a_set(spec), Reader(), preprocess, batch_size, rows=rows))
    with keeping_batches(10 * BYTES):
        list(read_batches(a_set(DIGITS), reader, {}, 4))
        assert values(read_batches(a_set(spec), reader, preprocess, batch_size, rows=rows)) == expected
    assert reader.samples == 20


def test_what_memory_has_no_room_for_or_is_not_read_to_its_end_is_read_again() -> None:
    reader, digits, letters = Reader(), a_set(DIGITS), a_set(LETTERS)
    with keeping_batches(2 * BYTES - 1):
        next(read_batches(digits, reader, {}, 4))
        for count in (14, 14):  # the set that was kept takes the room of the next one
            list(read_batches(digits, reader, {}, 4))
            assert reader.samples == count
        for count in (24, 34):
            list(read_batches(letters, reader, {}, 4))
            assert reader.samples == count


def test_a_set_with_samples_that_cannot_be_read_is_read_again_so_that_they_are_told(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a process that uses a GPU, workers would read, and count what they read for themselves.
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    Image.new("L", (2, 2), 3).save(tmp_path / "a/good.png")
    (tmp_path / "b/bad.png").write_bytes(b"no picture")
    reader = Reader()
    with keeping_batches(BYTES):
        for _ in range(2):
            dataset = open_data(str(tmp_path), on_bad="skip")
            one = EvalSet("train", TRAIN, None, dataset.ids, None, dataset.fingerprint(), dataset=dataset)
            assert values(read_batches(one, reader, {}, 4)) == [12.0]
            assert len(dataset.skipped or {}) == 1
    assert reader.samples == 2
