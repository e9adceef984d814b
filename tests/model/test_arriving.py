"""How inputs go to a device, the order in which batches are started, and in which their outputs are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hydractl.model.arriving import Arriving, one_behind
from hydractl.model.runtime import move


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


class Recorded(torch.Tensor):
    """A tensor on the CPU that notes how it is moved, and stays where it is."""

    moves: list[tuple[Any, ...]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.Tensor.pin_memory, torch.Tensor.to):
            return super().__torch_function__(func, types, args, kwargs)
        tensor, *rest = args
        tensor.moves.append((func.__name__, *rest, kwargs or {}))
        return tensor


def recorded() -> Recorded:
    tensor = torch.ones(2).as_subclass(Recorded)
    tensor.moves = []
    return tensor


def test_inputs_go_to_a_gpu_from_page_locked_memory_and_change_their_type_there() -> None:
    """A copy from other memory, or one that changes the type on the way, would wait for all that the GPU has to do."""
    device = torch.device("cuda:1")
    inputs = recorded()
    move({"image": inputs}, device, torch.bfloat16)
    assert inputs.moves == [
        ("pin_memory", {}),
        ("to", device, {"non_blocking": True}),
        ("to", device, torch.bfloat16, {"non_blocking": True}),
    ]


def test_inputs_for_a_cpu_are_not_copied_to_page_locked_memory() -> None:
    inputs = recorded()
    move(inputs, torch.device("cpu"), torch.float32)
    assert [name for name, *_ in inputs.moves] == ["to"]
