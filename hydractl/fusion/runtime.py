"""The model that runs: one to many members on member-major activations, made of the library's own modules.

Only attention is replaced (:class:`hydractl.attention.HeadAttention`). A single model is the case of one member, so a
ratio of a fused to a single model compares the same code. Paper section 4.2 and equation 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.attention import HeadAttention, HeadWeights, MemberProjections, PerMember
from hydractl.checkpoint import TensorSource
from hydractl.description import Description
from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.families.base import State, attention_names
from hydractl.members import MemberTensors


class HydraModel(nn.Module):
    """A dense, pruned or fused classifier.

    Calling it gives log p ``[B, classes]``, the logarithm of the mean over members of their softmax, so softmax and
    argmax work as on any classifier.

    Attributes:
        description: what the checkpoint said of itself.
        labels: class names, or None.
        preprocess: a function from a list of raw samples to inputs.
        attentions: one :class:`HeadAttention` per site, in model order.
    """

    def __init__(
        self,
        description: Description,
        tensors: TensorSource,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.description = description
        self.family = get_family(description.family)
        self.sites = self.family.sites(description.config)
        self.labels = None if description.labels is None else list(description.labels)
        self.preprocess = self.family.collate(description.preprocess)
        count = len(description.masks)
        reader = _Reader(tensors, torch.device(device), dtype)
        views = [MemberTensors(tensors, m) for m in range(count)]
        self.networks = nn.ModuleList(self.family.build(description.config) for _ in range(count))
        for network, view in zip(self.networks, views, strict=True):
            _assign(network, view, reader, skip=self._is_attention)
        self.attentions: list[HeadAttention] = []
        for site in self.sites:
            self._install(site, views, reader)
        self._own_blocks(views)
        # One readout per member; one stem for all unless its weights differ between members.
        self._stages = [self.family.stages(network) for network in self.networks]
        stem = self._stages[0].stem_prefixes
        self._shared_stem = all(stored == n for v in views for n, stored in v.stored.items() if n.startswith(stem))
        for network in list(self.networks)[1:]:
            self._drop_blocks(network)
        self.to(device)  # what the library built beside parameters: buffers
        self.eval()

    # --- assembling ---------------------------------------------------------------------------------------------------

    def _install(self, site: Any, views: Sequence[MemberTensors], reader: _Reader) -> None:
        """One attention for all members, in the place of the first member's."""
        members = []
        for network, view in zip(self.networks, views, strict=True):
            names = attention_names(self.family, view, self.sites, site)
            weights = self.family.read({n: reader.tensor(view.stored[n]) for n in names}, site)
            q_norm, k_norm = self.family.norms(network, site)
            for side, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
                for leaf, _ in list(norm.named_parameters()):
                    norm.register_parameter(leaf, nn.Parameter(weights.extra[f"{side}.{leaf}"]))
            members.append(MemberProjections(weights, q_norm, k_norm))
        rates = self.family.dropouts(self.networks[0], site)
        attention = HeadAttention(members, attention_dropout=rates[0], output_dropout=rates[1])
        for network in self.networks:
            self.family.install(network, site, attention)
        self.attentions.append(attention)

    def _is_attention(self, name: str) -> bool:
        """Whether a tensor of the library's model belongs to heads, which :class:`HeadAttention` holds."""
        return self.family.part(name, self.sites) == "attention"

    def _own_blocks(self, views: Sequence[MemberTensors]) -> None:
        """In the blocks of the first member, wrap each module whose weights every member has for itself."""
        if len(views) == 1:
            return
        prefixes = tuple(f"{path}." for path in self.family.stages(self.networks[0]).block_paths)
        owners = {
            name.rpartition(".")[0]
            for name, stored in views[0].stored.items()
            if stored != name and name.startswith(prefixes) and not self._is_attention(name)
        }
        for owner in sorted(owners):
            if f"{owner}." in prefixes:
                raise InputError(f"weights held by {owner} itself cannot be kept per member")
            modules = [network.get_submodule(owner) for network in self.networks]
            parent, _, leaf = owner.rpartition(".")
            setattr(self.networks[0].get_submodule(parent), leaf, PerMember(modules))

    def _drop_blocks(self, network: nn.Module) -> None:
        """Only the first member's blocks run; those of the others are wrapped in them or shared with them."""
        for path in self._stages[0].block_paths:
            parent, _, leaf = path.rpartition(".")
            setattr(network.get_submodule(parent), leaf, nn.Identity())

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.networks)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.family.classes(self.description.config)

    def stem(self, inputs: Any) -> State:
        """Inputs to the member-major state before the first block."""
        if not self._shared_stem:
            states = [stages.stem(inputs) for stages in self._stages]
            return State(torch.cat([s.hidden for s in states]), states[0].context)
        state = self._stages[0].stem(inputs)
        return state if self.members == 1 else State(state.hidden.repeat(self.members, 1, 1), state.context)

    def block(self, index: int, state: State) -> State:
        """Run one block."""
        return self._stages[0].blocks[index](state)

    def readout(self, state: State) -> Tensor:
        """The state after the last block to member logits ``[M, B, classes]``."""
        parts = state.hidden.chunk(self.members)
        return torch.stack(
            [stages.readout(State(p, state.context)) for stages, p in zip(self._stages, parts, strict=True)]
        )

    def member_logits(self, inputs: Any) -> Tensor:
        """Logits of every member, ``[M, B, classes]``."""
        state = self.stem(inputs)
        for index in range(len(self.sites)):
            state = self.block(index, state)
        return self.readout(state)

    def forward(self, inputs: Any) -> Tensor:
        """log p ``[B, classes]``: softmax per member, then the mean over members, as a logarithm."""
        return pooled_log_probs(self.member_logits(inputs))

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Random inputs of the right shape on the model's device and dtype."""
        parameter = next(self.parameters())
        inputs = self.family.example_inputs(self.description.preprocess, batch, seed)
        return move(inputs, parameter.device, parameter.dtype)

    def head_weights(self, site_index: int, member: int = 0) -> HeadWeights:
        """The current attention weights of one member at one site."""
        return self.attentions[site_index].projections[member].weights()

    def stock_tensors(self) -> dict[str, Tensor]:
        """The weights of a model with one member under their stock names, removed heads sliced away."""
        if self.members != 1:
            raise InputError("a fused model has no single set of stock tensors")
        state = self.networks[0].state_dict()
        tensors = {n: t.detach() for n, t in state.items() if not self._is_attention(n)}
        for index, site in enumerate(self.sites):
            self.family.write(tensors, site, self.head_weights(index))
        return tensors


def pooled_log_probs(member_logits: Tensor) -> Tensor:
    """log of the mean over members of the softmax: ``[M, B, C]`` to ``[B, C]``, in at least float32."""
    logits = member_logits if member_logits.dtype == torch.float64 else member_logits.float()
    return torch.logsumexp(logits.log_softmax(-1), dim=0) - math.log(member_logits.shape[0])


def move(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Inputs on the device of a model; floating point inputs also in its dtype."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None, non_blocking=True)
    return {key: move(value, device, dtype) for key, value in inputs.items()}


class _Reader:
    """Stored tensors on the target device and dtype; one parameter object per stored name, so sharing survives."""

    def __init__(self, tensors: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self.tensors, self.device, self.dtype = tensors, device, dtype
        self._parameters: dict[str, nn.Parameter] = {}

    def tensor(self, stored: str) -> Tensor:
        tensor = self.tensors.read(stored)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=True)

    def parameter(self, stored: str) -> nn.Parameter:
        if stored not in self._parameters:
            self._parameters[stored] = nn.Parameter(self.tensor(stored))
        return self._parameters[stored]


def _assign(network: nn.Module, view: MemberTensors, reader: _Reader, skip: Callable[[str], bool]) -> None:
    """Put the stored tensors in the place of the meta parameters of a skeleton."""
    for name, _ in list(network.named_parameters()):
        if not skip(name):
            parent, _, leaf = name.rpartition(".")
            network.get_submodule(parent).register_parameter(leaf, reader.parameter(view.stored[name]))
