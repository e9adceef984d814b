"""The library's own model with its own attention: the fastest single model, untouched by hydractl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.files.checkpoint import TensorSource, shapes_only
from hydractl.files.description import DEFAULT_PROMPT
from hydractl.heads.mask import HeadMask
from hydractl.model.cost import parameters, weight_bytes
from hydractl.model.loading import resolve_device, resolve_dtype
from hydractl.model.prompted import STAND_INS
from hydractl.model.runtime import move, pooled_log_probs
from hydractl.model.source import Source
from hydractl.model.stored import check_finite, zeroed


class StockModel(nn.Module):
    """The library's own class on the weights of an unsliced source; called like a ``HydraModel``.

    Attributes:
        network: the library's model, as it builds it itself.

    Args:
        source: a model of one member with stock shapes, see :func:`unsliced`.
        device: where it runs; on the meta device it has shapes and no numbers.
        dtype: the dtype to compute in.
    """

    def __init__(self, source: Source, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.family, self.description = source.family, source.description
        self.network = self.family.build(self.description.config)
        for name, _ in list(self.network.named_parameters()):
            parent, _, leaf = name.rpartition(".")
            tensor = source.tensors.read(name).to(device, dtype, copy=True)
            self.network.get_submodule(parent).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
        self.to(device).eval()
        self._features = None if self.family.classes(self.description.config) is not None else self._label_features()

    @torch.no_grad()
    def _label_features(self) -> Tensor:
        """What the tower of the labels makes of the class names, once: ``[classes, D]``."""
        labels, templates = self.description.labels or STAND_INS, self.description.prompt or [DEFAULT_PROMPT]
        tower = next(stages for stages in self.family.stages(self.network) if stages.of_labels)
        prompts = self.family.prompts(self.description.config, labels, templates)
        state = tower.stem(self._moved(prompts))
        for block in tower.blocks:
            state = block(state)
        return tower.readout(state)

    def forward(self, inputs: Any) -> Tensor:
        """log p ``[B, classes]``, by the library's own forward."""
        if self._features is not None:
            # A model that compares images with texts: its own encoder, which every such model of the library has.
            images: Tensor = self.network.encode_image(inputs, normalize=True)  # type: ignore[operator]
            logits = self.family.logits(self.network, [images, self._features])
        else:
            answer = self.network(**inputs) if isinstance(inputs, Mapping) else self.network(inputs)
            logits = answer if isinstance(answer, Tensor) else answer.logits
        return pooled_log_probs(logits[None])

    def with_classes(self) -> StockModel:
        """The model itself: it always has classes."""
        return self

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Random inputs of the right shape on the model's device and dtype."""
        return self._moved(self.family.example_inputs(self.description.preprocess, batch, seed))

    def _moved(self, inputs: Any) -> Any:
        parameter = next(self.parameters())
        inputs = move(inputs, parameter.device, parameter.dtype)
        if parameter.is_meta and isinstance(inputs, Mapping):
            # Libraries look at the numbers of a mask; where there are none, only shapes are asked for.
            return {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
        return inputs


def unsliced(source: Source) -> Source | None:
    """The model with stock shapes: itself where all heads are there, a zeroed one with zeros in the removed places.

    Returns:
        None for a fused model, and for one whose removed heads are gone.
    """
    description = source.description
    if len(description.masks) != 1:
        return None
    if description.mask.is_full:
        return source
    if description.layout != "zeroed":
        return None
    mask = description.mask
    tensors = zeroed(source.tensors, source.family, source.sites, mask, mask)
    whole = replace(description, kind="dense", layout="sliced", masks=[HeadMask.full(source.sites)])
    return replace(source, description=whole, tensors=tensors)


def build_stock(source: Source, device: str, dtype: str) -> StockModel:
    """Read the weights and build the library's own model."""
    check_finite(source.name, source.tensors)
    return StockModel(source, resolve_device(device), resolve_dtype(dtype))


def stock_cost(source: Source) -> dict[str, int]:
    """``params``, ``macs`` of one sample by torch's counter, and ``bytes``, as :func:`hydractl.model.cost.cost_of`."""
    from torch.utils.flop_counter import FlopCounterMode

    tensors: TensorSource = shapes_only(source.tensors)
    model = StockModel(replace(source, tensors=tensors), torch.device("meta"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.example_inputs(1))
    macs = int(counter.get_total_flops()) // 2
    return {"params": parameters(tensors), "macs": macs, "bytes": weight_bytes(tensors)}
