"""Weights of blocks that are read when their module runs, and are gone behind it: one block is in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.files.checkpoint import TensorSource, page_buffer
from hydractl.model.attention import HeadAttention
from hydractl.model.projections import HeadBank

Made = tuple[HeadBank, Callable[[], HeadBank]]
"""A bank without numbers, and what makes one like it that has them."""


class LateWeights:
    """Stands in for the numbers of a file until a module runs. For inference only.

    A weight that is read past its module is NaN, so that it cannot go unseen.

    Args:
        tensors: the numbers, read again for every run.
        device: where modules run. They compute in float32.
    """

    def __init__(self, tensors: TensorSource, device: torch.device) -> None:
        self._tensors, self._device = tensors, device
        self._names: dict[int, str] = {}
        self._parameters: dict[str, nn.Parameter] = {}
        self._banks: dict[int, Callable[[], HeadBank]] = {}

    def hollow(self, stored: str) -> Tensor:
        """The shape of a tensor, and not one number."""
        return _hollow(self._tensors.info(stored).shape, self._device)

    def read(self, stored: str) -> Tensor:
        """The numbers, in float32."""
        return _wide(self._tensors.read(stored), self._device)

    def parameter(self, stored: str) -> nn.Parameter:
        """A parameter of a module, one for each stored name."""
        if stored not in self._parameters:
            self._parameters[stored] = nn.Parameter(self.hollow(stored), requires_grad=False)
            self._names[id(self._parameters[stored])] = stored
        return self._parameters[stored]

    def bank(self, bank: HeadBank, make: Callable[[], HeadBank]) -> None:
        """Empty a bank, which ``make`` makes anew when its attention runs."""
        _empty(bank.parameters())
        self._banks[id(bank)] = make

    def attach(self, networks: Iterable[nn.Module]) -> None:
        """Let every module read its weights before it runs."""
        attached: set[int] = set()
        for module in (m for network in networks for m in network.modules()):
            # Banks and the projections of members are no modules that are called: what has them answers for them.
            banks = [(one, self._banks[id(one)]) for one in _banks_of(module) if id(one) in self._banks]
            own = [p for p in module.parameters(recurse=False) if id(p) in self._names]
            if (banks or own) and id(module) not in attached:
                attached.add(id(module))
                self._attach(module, own, banks)

    def _attach(self, module: nn.Module, own: list[nn.Parameter], banks: list[Made]) -> None:
        def give(*_: Any) -> None:
            for parameter in own:
                parameter.data = self.read(self._names[id(parameter)])
            for bank, make in banks:
                for parameter, fresh in zip(bank.parameters(), make().parameters(), strict=True):
                    parameter.data = fresh.data

        def take(*_: Any) -> None:
            _empty(own)
            for bank, _make in banks:
                _empty(bank.parameters())

        module.register_forward_pre_hook(give)
        module.register_forward_hook(take)


def _banks_of(module: nn.Module) -> Iterator[HeadBank]:
    """The banks of an attention, each once."""
    if isinstance(module, HeadAttention):
        yield from (one for one in module.modules() if isinstance(one, HeadBank))


def _empty(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.data = _hollow(parameter.shape, parameter.device)


def _hollow(shape: Iterable[int], device: torch.device) -> Tensor:
    return torch.full((), float("nan"), device=device).expand(tuple(shape))


def _wide(kept: Tensor, device: torch.device) -> Tensor:
    """A copy in float32 that is gone from memory at once when it is dropped."""
    if device.type != "cpu":
        return kept.to(device, torch.float32)
    return page_buffer(4 * kept.numel()).view(torch.float32).reshape(kept.shape).copy_(kept)
