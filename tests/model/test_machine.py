"""The peak of the machine and the warning of slow number formats, by a clock that only matrix products move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hydractl.model import machine
from hydractl.model.machine import peak_macs_per_s, slow_format

CPU = torch.device("cpu")


class Clock:
    """Products of two square matrices take their mult-adds over the rate of their dtype; nothing else takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **rates: float) -> None:
        self.now, self.sizes, self.rates = 0.0, [], rates
        self.best = machine._best_seconds
        monkeypatch.setattr(machine, "_best_seconds", self.product)

    def product(self, size: int, dtype: torch.dtype, device: torch.device, runs: int) -> float:
        self.sizes.append(size)
        seconds = size**3 / self.rates[str(dtype).removeprefix("torch.")]
        self.now += runs * seconds
        return seconds


@pytest.fixture(autouse=True)
def nothing_is_known_yet() -> Iterator[None]:
    """What a test pretends to measure is kept for none of the others."""
    slow_format.cache_clear()
    yield
    slow_format.cache_clear()


@pytest.mark.parametrize("rate", [1e8, 2e10, 4e14])
def test_the_peak_is_that_of_a_product_of_a_tenth_of_a_second(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, float32=rate)
    assert peak_macs_per_s(CPU, torch.float32) == pytest.approx(rate)
    assert clock.sizes[-1] == 16_384 or 0.05 <= clock.sizes[-1] ** 3 / rate <= 0.15
    assert clock.now < 1


@pytest.mark.parametrize("factor", [0.5, 1.05, 3.26, 480])
def test_slow_formats_are_found_in_a_moment(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, float32=2e10, bfloat16=2e10 / factor, float64=1.0)
    text = slow_format(torch.bfloat16, CPU)
    assert clock.now < 2
    expected = {3.26: "bfloat16 is 3.3 times slower than float32", 480: "bfloat16 is 480 times slower"}.get(factor)
    assert text is None if expected is None else text is not None and text.startswith(expected)
    assert slow_format(torch.float64, CPU) is None and slow_format(torch.bfloat16, torch.device("cuda")) is None


def test_a_real_product_is_timed_at_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert machine._best_seconds(8, torch.float32, CPU, 3) == 2.0


def test_formats_the_device_does_not_multiply_have_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, runs: int) -> float:
        raise RuntimeError('"addmm_impl_cpu_" not implemented for this')

    monkeypatch.setattr(machine, "_best_seconds", refuse)
    assert peak_macs_per_s(CPU, torch.float16) is None and slow_format(torch.float16, CPU) is None
