"""The model that runs: one to many members on member-major activations, made of the library's own modules.

Only attention is replaced (:class:`hydractl.attention.HeadAttention`). A single model is the case of one member, so a
ratio of a fused to a single model compares the same code. Paper section 4.2 and equation 6.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.attention import HeadAttention, HeadWeights, MemberProjections, PerMember
from hydractl.checkpoint import TensorSource
from hydractl.description import DEFAULT_PROMPT, Description
from hydractl.errors import InputError, UsageError
from hydractl.families import get_family
from hydractl.families.base import attention_names
from hydractl.fusion.chain import Chain
from hydractl.fusion.prompted import STAND_INS, PromptedClasses
from hydractl.members import MemberTensors


class HydraModel(nn.Module):
    """A dense, pruned or fused classifier.

    Calling it gives log p ``[B, classes]``, the logarithm of the mean over members of their softmax, so softmax and
    argmax work as on any classifier.

    Attributes:
        description: what the checkpoint said of itself.
        labels: class names, or None.
        prompted: of a zero-shot classifier, its classes; else None.
        preprocess: a function from a list of raw samples to inputs.
        attentions: one :class:`HeadAttention` per site, in model order.
        chains: one :class:`Chain` per tower, in the order of the sites.
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
        self.chains = self._make_chains(views)
        for network in list(self.networks)[1:]:
            self._drop_blocks(network)
        self.prompted: PromptedClasses | None = None
        if description.labels and self.classes is None:
            self._ask(description.labels, description.prompt or [DEFAULT_PROMPT])
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
        prefixes = tuple(f"{path}." for path in self._block_paths)
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

    @property
    def _block_paths(self) -> list[str]:
        """The module paths of the blocks of all towers."""
        return [path for stages in self.family.stages(self.networks[0]) for path in stages.block_paths]

    def _make_chains(self, views: Sequence[MemberTensors]) -> list[Chain]:
        """One chain per tower; one stem for all members unless its weights differ between them."""
        chains, first = [], 0
        for stages in zip(*(self.family.stages(network) for network in self.networks), strict=True):
            stem, last = stages[0].stem_prefixes, first + len(stages[0].blocks)
            shared = all(stored == n for v in views for n, stored in v.stored.items() if n.startswith(stem))
            chains.append(Chain(stages, self.attentions[first:last], range(first, last), shared))
            first = last
        return chains

    def _drop_blocks(self, network: nn.Module) -> None:
        """Only the first member's blocks run; those of the others are wrapped in them or shared with them."""
        for path in self._block_paths:
            parent, _, leaf = path.rpartition(".")
            setattr(network.get_submodule(parent), leaf, nn.Identity())

    # --- classes by name ----------------------------------------------------------------------------------------------

    def zero_shot(self, labels: Sequence[str], prompt: str | Sequence[str] | None = None) -> HydraModel:
        """A classifier into classes given by name, for a model that compares images with texts.

        It shares the weights of this model; see :class:`hydractl.fusion.prompted.PromptedClasses`.

        Args:
            labels: class names.
            prompt: one template or several, whose features are averaged; ``{label}`` stands for the name. None: what
                the checkpoint says, else the paper's, ``A photo of a {label}.``

        Raises:
            UsageError: for a model that has a classifier, no labels, or a template without a place for the name.
        """
        view = copy.copy(self)
        known = self.prompted.templates if self.prompted else self.description.prompt
        view._ask(labels, [prompt] if isinstance(prompt, str) else prompt or known or [DEFAULT_PROMPT])
        return view

    def with_classes(self) -> HydraModel:
        """This model, or where it has no classes yet a classifier of ten stand-ins: for measuring and checking it."""
        return self if self.classes is not None else self.zero_shot(STAND_INS)

    def _ask(self, labels: Sequence[str], templates: Sequence[str]) -> None:
        self.prompted = PromptedClasses(self, labels, templates)
        self.labels = list(labels)

    @property
    def chain_of_labels(self) -> Chain:
        """The tower that reads the prompts of the classes."""
        return next(chain for chain in self.chains if chain.of_labels)

    @property
    def chain_of_samples(self) -> Chain:
        """The tower that reads samples."""
        return next(chain for chain in self.chains if not chain.of_labels)

    def label_features(self) -> Tensor:
        """What the tower of the labels reads out for every member: ``[M, classes, D]``.

        Raises:
            UsageError: where the model has no classes yet.
        """
        if self.prompted is None:
            raise UsageError(
                f"{self.description.arch} has no classes of its own",
                hint="name them: --labels FILE, or in Python model.zero_shot(labels)",
            )
        return self.prompted.features()

    def train(self, mode: bool = True) -> HydraModel:
        """As torch's."""
        self._weights_change()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> HydraModel:
        self._weights_change()
        return super()._apply(fn, recurse)

    def _weights_change(self) -> None:
        if self.prompted is not None:
            self.prompted.forget()

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.networks)

    @property
    def classes(self) -> int | None:
        """Number of classes; None for a model whose classes are given by name, before they are."""
        return len(self.prompted.labels) if self.prompted else self.family.classes(self.description.config)

    def logits(self, outputs: Sequence[Tensor]) -> Tensor:
        """Member logits ``[M, B, classes]`` from what each tower reads out, ``[M, ...]`` each."""
        if len(outputs) == 1:
            return outputs[0]
        members = [[output[m] for output in outputs] for m in range(self.members)]
        return torch.stack(
            [self.family.logits(network, given) for network, given in zip(self.networks, members, strict=True)]
        )

    def member_logits(self, inputs: Any) -> Tensor:
        """Logits of every member, ``[M, B, classes]``."""
        return self.logits([self.label_features() if c.of_labels else c(inputs) for c in self.chains])

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
