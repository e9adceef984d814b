"""From the tensors of a file to the modules that run: what members share is read once and runs once where it can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import ModelFamily, Stages, attention_names, read_heads
from hydractl.files.checkpoint import LentTensors, TensorSource, page_buffer
from hydractl.files.description import Description
from hydractl.heads.mask import Site
from hydractl.heads.weights import COMMON, HeadWeights
from hydractl.model.attention import HeadAttention
from hydractl.model.chain import Chain, Start
from hydractl.model.projections import HeadBank, MemberProjections, neighbours
from hydractl.model.stacking import PerMember, PerMemberScale
from hydractl.model.stored import MemberTensors, held_mask, sites_stored_once, union


class Assembly:
    """The networks of all members, in the making.

    Attributes:
        networks: the library's model of each member, with :class:`HeadAttention` in it. Only the blocks of the first
            run; those of the others are wrapped in them, or shared with them.
        attentions: one for each site, in model order.
        chains: one for each tower, in the order of the sites.

    Args:
        description, family: of the model.
        tensors: its weights.
        device: where they go.
        dtype: what they become.
        streamed: leave those of blocks where they are until they run (:class:`LateWeights`).
    """

    def __init__(
        self,
        description: Description,
        family: ModelFamily,
        tensors: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        *,
        streamed: bool = False,
    ) -> None:
        self._family = family
        self._masks = description.masks
        self._sites = family.sites(description.config)
        self._stored_once = sites_stored_once(tensors, family, self._sites)
        self._views = [MemberTensors(tensors, member) for member in range(len(description.masks))]
        self._per_member = self._names_per_member()
        self._reader = _Reader(tensors, device, dtype)
        self._late = LateWeights(tensors, device) if streamed else None
        self.networks = [family.build(description.config) for _ in self._views]
        for network, view in zip(self.networks, self._views, strict=True):
            self._load(network, view)
        self.attentions: list[HeadAttention] = []
        starts = self._starts()
        for start in starts:
            for index in start.sites:
                self._install(self._sites[index], start, index)
        self._wrap_modules_per_member()
        if self._late is not None:
            self._late.attach(self.networks)
        for network in self.networks[1:]:
            self._drop_blocks(network)
        self.chains = self._make_chains(starts)

    def _names_per_member(self) -> set[str]:
        """Return the stock names of the tensors that every member has for itself."""
        names = set()
        for view in self._views:
            for name, stored in view.stored.items():
                if name != stored:
                    names.add(name)
        return names

    def _load(self, network: nn.Module, view: MemberTensors) -> None:
        """Give a network of meta tensors its own, but for the attention, which is replaced."""
        parameters = dict(network.named_parameters())
        late_names = self._late_names(network)
        state: dict[str, Tensor] = {}
        for name in parameters:
            if self._is_attention(name):
                continue
            if self._late is not None and name in late_names:
                state[name] = self._late.parameter(view.stored[name])
            else:
                state[name] = self._reader.parameter(view.stored[name])
        for name in network.state_dict():
            if name not in parameters:  # a statistic, as of a batch norm
                state[name] = self._reader.tensor(view.stored[name])
        network.load_state_dict(state, strict=False, assign=True)

    def _make_chains(self, starts: Sequence[Start]) -> list[Chain]:
        """Return one chain for each tower."""
        merged = not any(self._family.part(name, self._sites) == "mlp" for name in self._per_member)
        chains = []
        for tower, start in enumerate(starts):
            attentions = self.attentions[start.sites.start : start.sites.stop]
            chains.append(Chain(self._family, self.networks, tower, attentions, start, merged))
        return chains

    def _is_attention(self, name: str) -> bool:
        """Return whether a tensor of the library's model belongs to heads, which :class:`HeadAttention` holds."""
        return self._family.part(name, self._sites) == "attention"

    def _late_names(self, network: nn.Module) -> set[str]:
        """Return the parameters that are read only when they run: of blocks, and of tables of a library's own class.

        Such a table computes what it looks up.
        """
        if self._late is None:
            return set()
        prefixes = [f"{path}." for path in self._block_paths]
        for path, module in network.named_modules():
            if isinstance(module, nn.Embedding) and type(module) is not nn.Embedding:
                prefixes.append(f"{path}.")
        return {name for name, _ in network.named_parameters() if name.startswith(tuple(prefixes))}

    # --- what is the same in all members ------------------------------------------------------------------------------

    def _starts(self) -> list[Start]:
        """Return how far the members are the same, for each tower."""
        starts = []
        first = 0
        for stages in self._family.stages(self.networks[0]):
            sites = range(first, first + len(stages.blocks))
            starts.append(self._start(stages, sites))
            first = sites.stop
        return starts

    def _start(self, stages: Stages, sites: range) -> Start:
        """Return how far the members are the same in one tower, whose sites these are."""
        if any(name.startswith(stages.stem_prefixes) for name in self._per_member):
            return Start(sites, shared_stem=False, blocks=0, pool=False)
        for blocks, (index, path) in enumerate(zip(sites, stages.block_paths, strict=True)):
            site = self._sites[index].path
            differing = [name for name in self._per_member if name.startswith(stages.prefixes_of(blocks))]
            if not differing and self._same_heads(site):
                continue
            # All members attend to the same input if nothing before the attention differs: norms, and merging.
            same_input = not any(self._is_before_attention(name, path) for name in differing)
            return Start(sites, shared_stem=True, blocks=blocks, pool=same_input and site in self._stored_once)
        return Start(sites, shared_stem=True, blocks=len(sites), pool=False)

    def _same_heads(self, site: str) -> bool:
        """Return whether all members keep the same heads at a site."""
        first = self._masks[0].kept[site]
        return all(mask.kept[site] == first for mask in self._masks)

    def _is_before_attention(self, name: str, block: str) -> bool:
        """Return whether a tensor acts before the attention of a block: in a norm, or in the merging of tokens."""
        return self._family.part(name, self._sites) == "norm" or not name.startswith(f"{block}.")

    # --- attention ----------------------------------------------------------------------------------------------------

    def _install(self, site: Site, start: Start, index: int) -> None:
        """Put one attention for all members in the place of the library's."""
        if site.path in self._stored_once:
            masks = self._masks[:1] if start.once(index) else self._masks
            members = self._members_of_one_bank(site, [mask.kept[site.path] for mask in masks])
        else:
            members = [MemberProjections(self._bank(site, member)) for member in range(len(self.networks))]
        attention_dropout, output_dropout = self._family.dropouts(self.networks[0], site)
        attention = HeadAttention(
            members,
            pooled=start.pooled(index),
            attention_dropout=attention_dropout,
            output_dropout=output_dropout,
        )
        for network in self.networks:
            self._family.install(network, site, attention)
        self.attentions.append(attention)

    def _members_of_one_bank(self, site: Site, kept: Sequence[tuple[int, ...]]) -> list[MemberProjections]:
        """Return the projections of members whose heads lie in one bank.

        Args:
            site: where.
            kept: the heads of each member. Those with the same heads share one object.
        """
        held = union(self._masks, site.path)
        order = neighbours(kept)
        bank = self._bank(site, 0, [held.index(head) for head in order])
        by_heads: dict[tuple[int, ...], MemberProjections] = {}
        for heads in kept:
            if heads not in by_heads:
                by_heads[heads] = MemberProjections(bank, [order.index(head) for head in heads])
        return [by_heads[heads] for heads in kept]

    def _weights(self, site: Site, member: int, read: Callable[[str], Tensor]) -> HeadWeights:
        """Return the heads that stand under the names of a member at a site, with their original numbers."""
        view = self._views[member]
        names = attention_names(self._family, view, self._sites, site)
        tensors = {name: read(view.stored[name]) for name in names}
        kept = held_mask(self._masks, member, self._stored_once).kept[site.path]
        weights = read_heads(self._family, tensors, site, kept)
        return replace(weights, number=torch.tensor(kept, dtype=torch.long))

    def _bank(self, site: Site, member: int, places: Sequence[int] | None = None) -> HeadBank:
        """Return the heads of a member, or those stored at some places."""
        common = self._family.common(self.networks[member], site)

        def make_bank(read: Callable[[str], Tensor], common: Sequence[nn.Module]) -> HeadBank:
            weights = self._weights(site, member, read)
            if places is not None:
                weights = weights.select(places)
            return _bank_of(weights, common)

        late = self._late
        if late is None:
            return make_bank(self._reader.tensor, common)
        bank = make_bank(late.hollow, common)
        late.register_bank(bank, lambda: make_bank(late.read, copy.deepcopy(common)))
        return bank

    # --- blocks -------------------------------------------------------------------------------------------------------

    @property
    def _block_paths(self) -> list[str]:
        """The module paths of the blocks of all towers, and of what makes fewer tokens before them."""
        paths: list[str] = []
        for stages in self._family.stages(self.networks[0]):
            paths += stages.block_paths
            paths += stages.merging.values()
        return paths

    def _wrap_modules_per_member(self) -> None:
        """Wrap, in the blocks of the first member, each module whose weights every member has for itself."""
        blocks = self._block_paths
        inside_blocks = tuple(f"{path}." for path in blocks)
        names_of_owner: dict[str, list[str]] = {}
        for name in sorted(self._per_member):
            if name.startswith(inside_blocks) and not self._is_attention(name):
                owner = name.rpartition(".")[0]
                names_of_owner.setdefault(owner, []).append(name)
        for owner, names in sorted(names_of_owner.items()):
            if owner in blocks:
                self._replace_scales(owner, names)
                continue
            modules = [network.get_submodule(owner) for network in self.networks]
            self.networks[0].set_submodule(owner, PerMember(modules))

    def _replace_scales(self, block: str, names: Sequence[str]) -> None:
        """Replace the vectors that a block holds itself and multiplies by with one for each member."""
        module = self.networks[0].get_submodule(block)
        for name in names:
            scales = [network.get_parameter(name) for network in self.networks]
            if scales[0].dim() != 1:
                raise InputError(f"weights held by {block} itself cannot be kept per member")
            leaf = name.rpartition(".")[2]
            scale = PerMemberScale(scales)
            delattr(module, leaf)
            behind = self._family.scaled.get(leaf)
            if behind is None:
                module.add_module(leaf, scale)
            else:  # torch.compile cannot trace a module that is multiplied by
                setattr(module, leaf, None)
                module.set_submodule(behind, nn.Sequential(scale, module.get_submodule(behind)))

    def _drop_blocks(self, network: nn.Module) -> None:
        """Remove the blocks: only those of the first member run."""
        for path in self._block_paths:
            network.set_submodule(path, nn.Identity())


def _bank_of(weights: HeadWeights, common: Sequence[nn.Module]) -> HeadBank:
    """Return heads, and what belongs to none of them with the weights that it has here."""
    for name, module in zip(COMMON, common, strict=True):
        stored = {leaf: weights.extra[f"{name}.{leaf}"] for leaf, _ in module.named_parameters()}
        module.load_state_dict(stored, assign=True)
    return HeadBank(weights, *common)


# --- the numbers of a file, read at once or when a module runs --------------------------------------------------------


class _Reader:
    """Stored tensors on the target device and dtype; one parameter object per stored name, so sharing survives."""

    def __init__(self, tensors: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self._parameters: dict[str, nn.Parameter] = {}

    def tensor(self, stored: str) -> Tensor:
        """Read a tensor; only what a source lends may be the source's own memory."""
        tensor = self._tensors.read(stored)
        dtype = self._dtype if tensor.is_floating_point() else None
        lent = isinstance(self._tensors, LentTensors)
        return tensor.to(self._device, dtype, copy=not lent)

    def parameter(self, stored: str) -> nn.Parameter:
        """Return the parameter of a stored name."""
        if stored not in self._parameters:
            self._parameters[stored] = nn.Parameter(self.tensor(stored))
        return self._parameters[stored]


class LateWeights:
    """Stands in for the numbers of a file until a module runs, so that one block is in memory at a time.

    A module's weights are read before it runs and are gone behind it. For inference only. A weight that is read past
    its module is NaN, so that it cannot go unseen.

    Args:
        tensors: the numbers, read again for every run.
        device: where modules run. They compute in float32.
    """

    def __init__(self, tensors: TensorSource, device: torch.device) -> None:
        self._tensors = tensors
        self._device = device
        self._parameters: dict[str, nn.Parameter] = {}
        self._stored_names: dict[int, str] = {}  # by the id of a parameter
        self._make_bank: dict[int, Callable[[], HeadBank]] = {}  # by the id of a bank

    def hollow(self, stored: str) -> Tensor:
        """Return a tensor of the stored shape, and without numbers."""
        return _hollow(self._tensors.info(stored).shape, self._device)

    def read(self, stored: str) -> Tensor:
        """Read a tensor in float32."""
        return _widened(self._tensors.read(stored), self._device)

    def parameter(self, stored: str) -> nn.Parameter:
        """Return the parameter of a stored name, without numbers."""
        if stored not in self._parameters:
            parameter = nn.Parameter(self.hollow(stored), requires_grad=False)
            self._parameters[stored] = parameter
            self._stored_names[id(parameter)] = stored
        return self._parameters[stored]

    def register_bank(self, bank: HeadBank, make: Callable[[], HeadBank]) -> None:
        """Empty a bank, which ``make`` makes anew when its attention runs."""
        _empty(bank.parameters())
        self._make_bank[id(bank)] = make

    def attach(self, networks: Iterable[nn.Module]) -> None:
        """Let every module read its weights before it runs."""
        attached: set[int] = set()
        for network in networks:
            for module in network.modules():
                if id(module) not in attached:
                    attached.add(id(module))
                    self._attach(module)

    def _attach(self, module: nn.Module) -> None:
        """Add hooks to a module that has such weights."""
        parameters = [
            parameter for parameter in module.parameters(recurse=False) if id(parameter) in self._stored_names
        ]
        # Banks and the projections of members are no modules that are called: what has them answers for them.
        banks: list[HeadBank] = []
        if isinstance(module, HeadAttention):
            inner = [part for part in module.modules() if isinstance(part, HeadBank)]
            banks = [bank for bank in inner if id(bank) in self._make_bank]
        if not parameters and not banks:
            return

        def give_weights(*_: Any) -> None:
            for parameter in parameters:
                parameter.data = self.read(self._stored_names[id(parameter)])
            for bank in banks:
                fresh = self._make_bank[id(bank)]()
                for parameter, weights in zip(bank.parameters(), fresh.parameters(), strict=True):
                    parameter.data = weights.data

        def take_weights(*_: Any) -> None:
            _empty(parameters)
            for bank in banks:
                _empty(bank.parameters())

        module.register_forward_pre_hook(give_weights)
        module.register_forward_hook(take_weights)


def _empty(parameters: Iterable[nn.Parameter]) -> None:
    """Leave parameters their shapes, and no numbers."""
    for parameter in parameters:
        parameter.data = _hollow(parameter.shape, parameter.device)


def _hollow(shape: Iterable[int], device: torch.device) -> Tensor:
    """Return NaN in a shape, which takes the memory of one number."""
    return torch.full((), float("nan"), device=device).expand(tuple(shape))


def _widened(stored: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to float32, in memory that is given back at once when the copy is dropped."""
    if device.type != "cpu":
        return stored.to(device, torch.float32)
    pages = page_buffer(4 * stored.numel()).view(torch.float32)
    return pages.reshape(stored.shape).copy_(stored)
