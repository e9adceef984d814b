"""The order in which batches are started, and in which their outputs are waited for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hydractl.model.arriving import Arriving, one_behind


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", ["start 0", "reduce 0", "start 1", "reduce 1", "start 2", "reduce 2"]),
        ("mps", ["start 0", "reduce 0", "start 1", "reduce 1", "start 2", "reduce 2"]),
        ("cuda:1", ["start 0", "start 1", "reduce 0", "start 2", "reduce 1", "reduce 2"]),
    ],
)
def test_only_a_gpu_is_asked_for_the_next_batch_before_a_batch_is_reduced(device: str, expected: list[str]) -> None:
    order = []

    def started() -> Iterator[int]:
        for batch in range(3):
            order.append(f"start {batch}")
            yield batch

    for batch in one_behind(started(), torch.device(device)):
        order.append(f"reduce {batch}")
    assert order == expected


@pytest.mark.parametrize("count", [0, 1])
def test_few_batches(count: int) -> None:
    assert list(one_behind(range(count), torch.device("cuda"))) == list(range(count))


def test_on_a_cpu_nothing_is_copied() -> None:
    outputs = [torch.ones(2), torch.zeros(3, dtype=torch.bfloat16)]
    arrived = Arriving(outputs).arrived()
    assert [tensor.data_ptr() for tensor in arrived] == [tensor.data_ptr() for tensor in outputs]
