"""Calls of one model from several threads: none waits for another, and each answers as if it were alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from hydractl.model.runtime import HydraModel
from tests.fusion.test_batched import NEARLY, SHARED, one_weight, own_weights
from tests.pico import images, inputs

LATE = 30.0
"""Seconds after which a thread that waits for another has failed."""


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads take turns after microseconds, not after five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(calls: Sequence[Callable[[], Tensor]], times: int = 1) -> list[list[Tensor]]:
    """What each call gives in each of ``times``, all calls at once in threads of their own."""

    def repeated(call: Callable[[], Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [call() for _ in range(times)]

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=4 * LATE) for future in [pool.submit(repeated, call) for call in calls]]


def same(found: Sequence[Sequence[Tensor]], calls: Sequence[Callable[[], Tensor]]) -> None:
    with torch.no_grad():
        alone = [call() for call in calls]
    assert all(torch.equal(answer, expected) for row, expected in zip(found, alone, strict=True) for answer in row)


def meet_inside(model: HydraModel, path: str, runs: Sequence[int]) -> Callable[[int], None]:
    """Let calls wait inside a block until all of them are there: call i in its ``runs[i]``-th run of the block.

    Where one call is let in at a time, or a block knows of one call only, the test fails.

    Returns:
        What a thread calls first, with the number of its call.
    """
    barrier, own = threading.Barrier(len(runs)), threading.local()

    def wait(*_: object) -> None:
        own.left = getattr(own, "left", 0) - 1
        if own.left == 0:
            barrier.wait(LATE)

    def enter(index: int) -> None:
        own.left = runs[index]

    model.networks[0].get_submodule(path).register_forward_pre_hook(wait)
    return enter


@pytest.mark.parametrize(("runs", "block"), [((1, 1), 0), ((1, 2), 2), ((3, 1), 0)])
def test_two_calls_inside_one_block(runs: tuple[int, int], block: int) -> None:
    model = own_weights("class-token", NEARLY)
    model.side_by_side = False  # a block runs once for each of the three members
    enter = meet_inside(model, f"blocks.{block}", runs)
    calls = [lambda: model.member_logits(images(3, seed=1)), lambda: model.member_logits(images(2, seed=2))]
    same(together([lambda i=i: (enter(i), calls[i]())[1] for i in range(2)]), calls)


def test_views_have_settings_of_their_own() -> None:
    model = own_weights("clip", SHARED)
    view = model.zero_shot(["a", "b"])
    model.side_by_side, view.side_by_side, view.whole_last_block = False, True, True
    assert model.side_by_side is False and not model.whole_last_block
    enter = meet_inside(model, "visual.transformer.resblocks.1", (2, 1))
    calls = [lambda: model.member_logits(images(3, seed=1)), lambda: view.member_logits(images(4, seed=2))]
    same(together([lambda i=i: (enter(i), calls[i]())[1] for i in range(2)]), calls)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("variant", "side_by_side", "batched"),
    [
        ("class-token", True, True),
        ("bert", False, False),
        ("clip", True, False),
        pytest.param("clip", True, True, marks=pytest.mark.long),
    ],
)
def test_many_calls_at_once(variant: str, side_by_side: bool, batched: bool) -> None:
    # Of weights in common, members take their heads of a pool.
    model = own_weights(variant, NEARLY) if variant == "clip" else one_weight(variant, SHARED)
    model.side_by_side, model.batched = side_by_side, batched
    first = inputs(variant)
    second = {name: t[:2] for name, t in first.items()} if isinstance(first, dict) else images(2, seed=2)
    calls = [lambda: model.member_logits(first), lambda: model.member_logits(second)]
    if variant == "clip":
        view = model.zero_shot(["a", "b"], "{}")
        view.side_by_side = True
        calls.append(lambda: view.member_logits(second))
    same(together(calls, times=15), calls)  # the first of them find no stacked weights, and no features of classes
