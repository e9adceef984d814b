"""From the tensors of a file to the modules that run: what members share is read once and runs once where it can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import ModelFamily, Stages, attention_names, parts_by_name, read_heads
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
        description, family, sites: of the model.
        tensors: its weights.
        device: where they go.
        dtype: what they become.
        streamed: leave those of blocks where they are until they run (:class:`LateWeights`).
    """

    def __init__(
        self,
        description: Description,
        family: ModelFamily,
        sites: Sequence[Site],
        tensors: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        *,
        streamed: bool = False,
    ) -> None:
        self._family = family
        self._masks = description.masks
        self._sites = sites
        self._stored_once = sites_stored_once(tensors, family, self._sites)
        members = range(len(description.masks))
        self._views = [MemberTensors(tensors, member) for member in members]
        self._parts = parts_by_name(family, self._views[0].stored, sites)
        self._per_member = self._names_per_member()
        self._reader = _Reader(tensors, device, dtype)
        self._late: LateWeights | None = None
        if streamed:
            self._late = LateWeights(tensors, device)

        self.networks: list[nn.Module] = []
        for view in self._views:
            network = family.build(description.config)
            self.networks.append(network)
            self._load(network, view)

        self.attentions: list[HeadAttention] = []
        starts = self._starts()
        for start in starts:
            for index in start.sites:
                self._install(index, start)

        self._wrap_modules_per_member()
        if self._late is not None:
            self._late.attach(self.networks)
            self._keep_apart()
        for network in self.networks[1:]:
            self._drop_blocks(network)
        self.chains = self._make_chains(starts)

    def _names_per_member(self) -> set[str]:
        """Return the stock names of the tensors of which every member has its own."""
        names = set()
        for view in self._views:
            for name, stored in view.stored.items():
                if name != stored:
                    names.add(name)
        return names

    def _load(self, network: nn.Module, view: MemberTensors) -> None:
        """Give a network of meta tensors its weights, but for the attention, which is replaced."""
        parameters = dict(network.named_parameters())
        late_names = self._late_names(network)
        state: dict[str, Tensor] = {}
        for name in parameters:
            if self._is_attention(name):
                continue
            stored = view.stored[name]
            if self._late is not None and name in late_names:
                state[name] = self._late.parameter(stored)
            else:
                state[name] = self._reader.parameter(stored)
        for name in network.state_dict():
            if name not in parameters:  # a buffer, such as a mean of a batch norm
                stored = view.stored[name]
                state[name] = self._reader.tensor(stored)
        network.load_state_dict(state, strict=False, assign=True)

    def _make_chains(self, starts: Sequence[Start]) -> list[Chain]:
        """Return one chain for each tower."""
        parts_per_member = {self._parts[name] for name in self._per_member}
        merged = "mlp" not in parts_per_member
        chains = []
        for tower, start in enumerate(starts):
            attentions = [self.attentions[index] for index in start.sites]
            chain = Chain(self._family, self.networks, tower, attentions, start, merged)
            chains.append(chain)
        return chains

    def _is_attention(self, name: str) -> bool:
        """Return whether a tensor of the library's model belongs to heads, which :class:`HeadAttention` holds."""
        return self._parts[name] == "attention"

    def _late_names(self, network: nn.Module) -> set[str]:
        """Return the parameters that are read only when they run: of blocks, and of tables of a library's own class.

        Such a table computes what it looks up.
        """
        if self._late is None:
            return set()
        paths = list(self._block_paths)
        for path, module in network.named_modules():
            is_own_class = type(module) is not nn.Embedding
            if isinstance(module, nn.Embedding) and is_own_class:
                paths.append(path)
        inside_late_modules = tuple(f"{path}." for path in paths)
        late_names = set()
        for name, _ in network.named_parameters():
            if name.startswith(inside_late_modules):
                late_names.add(name)
        return late_names

    # --- what is the same in all members ------------------------------------------------------------------------------

    def _starts(self) -> list[Start]:
        """Return how far the members are the same, for each tower."""
        starts = []
        first_site = 0
        for stages in self._family.stages(self.networks[0]):
            blocks = len(stages.blocks)
            sites = range(first_site, first_site + blocks)
            starts.append(self._start(stages, sites))
            first_site = sites.stop
        return starts

    def _start(self, stages: Stages, sites: range) -> Start:
        """Return how far the members are the same in one tower, whose sites these are."""
        if self._differing(stages.stem_prefixes):
            return Start(sites, shared_stem=False, blocks=0, pool=False)
        for block, block_path in enumerate(stages.block_paths):
            site = self._sites[sites[block]]
            differing = self._differing(stages.prefixes_of(block))
            if not differing and self._same_heads(site.path):
                continue
            # All members attend to the same input if nothing before the attention differs: norms, and merging.
            before_attention = [name for name in differing if self._is_before_attention(name, block_path)]
            pool = not before_attention and site.path in self._stored_once
            return Start(sites, shared_stem=True, blocks=block, pool=pool)
        return Start(sites, shared_stem=True, blocks=len(sites), pool=False)

    def _differing(self, prefixes: tuple[str, ...]) -> list[str]:
        """Return the tensors under some prefixes of which every member has its own."""
        differing = []
        for name in self._per_member:
            if name.startswith(prefixes):
                differing.append(name)
        return differing

    def _same_heads(self, site: str) -> bool:
        """Return whether all members keep the same heads at a site."""
        different_choices = {mask.kept[site] for mask in self._masks}
        return len(different_choices) == 1

    def _is_before_attention(self, name: str, block: str) -> bool:
        """Return whether a tensor acts before the attention of a block: in a norm, or in the merging of tokens."""
        inside_block = name.startswith(f"{block}.")
        if not inside_block:  # it merges tokens
            return True
        return self._parts[name] == "norm"

    # --- attention ----------------------------------------------------------------------------------------------------

    def _install(self, index: int, start: Start) -> None:
        """Put one attention for all members in the place of the library's, at the site of an index."""
        site = self._sites[index]
        if site.path in self._stored_once:
            masks = self._masks
            if start.once(index):  # all members have the same heads
                masks = masks[:1]
            heads_of_members = [mask.kept[site.path] for mask in masks]
            members = self._members_of_one_bank(site, heads_of_members)
        else:
            members = []
            for member in range(len(self.networks)):
                bank = self._bank(site, member)
                members.append(MemberProjections(bank))
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
            kept: the heads of each member. Members with the same heads share one object.
        """
        stored_heads = union(self._masks, site.path)
        heads_in_bank = neighbours(kept)
        places = [stored_heads.index(head) for head in heads_in_bank]
        bank = self._bank(site, 0, places)
        members = []
        by_heads: dict[tuple[int, ...], MemberProjections] = {}
        for heads in kept:
            if heads not in by_heads:
                positions = [heads_in_bank.index(head) for head in heads]
                by_heads[heads] = MemberProjections(bank, positions)
            members.append(by_heads[heads])
        return members

    def _weights(self, site: Site, member: int, read: Callable[[str], Tensor]) -> HeadWeights:
        """Return the heads that stand under the names of a member at a site, with their original numbers."""
        view = self._views[member]
        tensors = {}
        for name in attention_names(self._family, view, self._sites, site):
            stored = view.stored[name]
            tensors[name] = read(stored)
        held = held_mask(self._masks, member, self._stored_once)
        heads = held.kept[site.path]
        weights = read_heads(self._family, tensors, site, heads)
        original_numbers = torch.tensor(heads, dtype=torch.long)
        return replace(weights, number=original_numbers)

    def _bank(self, site: Site, member: int, places: Sequence[int] | None = None) -> HeadBank:
        """Return a bank of the heads that stand under the names of a member: all of them, or those at some places."""
        common = self._family.common(self.networks[member], site)

        def make_bank(read: Callable[[str], Tensor], common: Sequence[nn.Module]) -> HeadBank:
            weights = self._weights(site, member, read)
            if places is not None:
                weights = weights.select(places)
            return _bank_of(weights, common)

        late = self._late
        if late is None:
            return make_bank(self._reader.tensor, common)

        def make_bank_late() -> HeadBank:
            return make_bank(late.read, copy.deepcopy(common))

        bank = make_bank(late.hollow, common)
        late.register_bank(bank, make_bank_late)
        return bank

    # --- blocks -------------------------------------------------------------------------------------------------------

    @property
    def _block_paths(self) -> list[str]:
        """The module paths of the blocks of all towers, and of the modules before blocks that merge tokens."""
        paths: list[str] = []
        for stages in self._family.stages(self.networks[0]):
            paths += stages.block_paths
            paths += stages.merging.values()
        return paths

    def _wrap_modules_per_member(self) -> None:
        """Wrap, in the blocks of the first member, each module whose weights every member has for itself."""
        blocks = self._block_paths
        inside_blocks = tuple(f"{path}." for path in blocks)
        names_of_owner: dict[str, list[str]] = {}  # by the path of the module that holds them
        for name in sorted(self._per_member):
            if not name.startswith(inside_blocks) or self._is_attention(name):
                continue
            owner, _, _ = name.rpartition(".")
            names_of_owner.setdefault(owner, []).append(name)
        for owner, names in sorted(names_of_owner.items()):
            if owner in blocks:
                self._replace_scales(owner, names)
                continue
            modules = [network.get_submodule(owner) for network in self.networks]
            per_member = PerMember(modules)
            self.networks[0].set_submodule(owner, per_member)

    def _replace_scales(self, block: str, names: Sequence[str]) -> None:
        """Replace the vectors that a block holds itself and multiplies by with one for each member."""
        module = self.networks[0].get_submodule(block)
        for name in names:
            scales = [network.get_parameter(name) for network in self.networks]
            if scales[0].dim() != 1:
                raise InputError(f"weights held by {block} itself cannot be kept per member")
            _, _, leaf = name.rpartition(".")
            scale = PerMemberScale(scales)
            delattr(module, leaf)
            scaled_path = self._family.scaled.get(leaf)
            if scaled_path is None:
                module.add_module(leaf, scale)
            else:  # torch.compile cannot trace a module that is multiplied by, so the scale is called before the other
                setattr(module, leaf, None)
                scaled_module = module.get_submodule(scaled_path)
                scale_and_module = nn.Sequential(scale, scaled_module)
                module.set_submodule(scaled_path, scale_and_module)

    def _keep_apart(self) -> None:
        """Let no module stack the weights of members: a stack would stay in memory, or be made of what is not there."""
        for network in self.networks:
            for module in network.modules():
                if isinstance(module, HeadAttention | PerMember):
                    module.keep_apart()

    def _drop_blocks(self, network: nn.Module) -> None:
        """Remove the blocks: only those of the first member run."""
        for path in self._block_paths:
            nothing = nn.Identity()
            network.set_submodule(path, nothing)


def _bank_of(weights: HeadWeights, common: Sequence[nn.Module]) -> HeadBank:
    """Return a bank of heads.

    Args:
        weights: of the heads, and of what belongs to no single head.
        common: the modules of the latter, in the order of :data:`COMMON`. They are given their weights.
    """
    for name, module in zip(COMMON, common, strict=True):
        state = {}
        for leaf, _ in module.named_parameters():
            state[leaf] = weights.extra[f"{name}.{leaf}"]
        module.load_state_dict(state, assign=True)
    q_norm, k_norm, features = common
    return HeadBank(weights, q_norm, k_norm, features)


# --- the numbers of a file, read at once or when a module runs --------------------------------------------------------


class _Reader:
    """Stored tensors on the target device and dtype; one parameter object per stored name, so sharing survives."""

    def __init__(self, tensors: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self._parameters: dict[str, nn.Parameter] = {}

    def tensor(self, stored: str) -> Tensor:
        """Read a tensor: a copy, unless the source lends its memory."""
        tensor = self._tensors.read(stored)
        dtype = None
        if tensor.is_floating_point():
            dtype = self._dtype
        is_lent = isinstance(self._tensors, LentTensors)
        return tensor.to(self._device, dtype, copy=not is_lent)

    def parameter(self, stored: str) -> nn.Parameter:
        """Return the parameter of a stored name."""
        if stored not in self._parameters:
            tensor = self.tensor(stored)
            self._parameters[stored] = nn.Parameter(tensor)
        return self._parameters[stored]


class LateWeights:
    """Stands in for the numbers of a file until a module runs, so that one block is in memory at a time.

    A module's weights are read before it runs and dropped after it. For inference only. A weight that anything else
    reads is NaN, so that the mistake shows.

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
        """Return a tensor of the stored shape without numbers."""
        info = self._tensors.info(stored)
        return _hollow(info.shape, self._device)

    def read(self, stored: str) -> Tensor:
        """Read a tensor in float32."""
        tensor = self._tensors.read(stored)
        return _widened(tensor, self._device)

    def parameter(self, stored: str) -> nn.Parameter:
        """Return the parameter of a stored name, without numbers."""
        if stored not in self._parameters:
            parameter = nn.Parameter(self.hollow(stored), requires_grad=False)
            self._parameters[stored] = parameter
            self._stored_names[id(parameter)] = stored
        return self._parameters[stored]

    def register_bank(self, bank: HeadBank, make: Callable[[], HeadBank]) -> None:
        """Empty a bank and remember ``make``, which makes it anew when its attention runs."""
        parameters = bank.parameters()
        _empty(parameters)
        self._make_bank[id(bank)] = make

    def attach(self, networks: Iterable[nn.Module]) -> None:
        """Let every module read its weights before it runs."""
        attached: set[int] = set()
        for network in networks:
            for module in network.modules():
                if id(module) in attached:
                    continue
                attached.add(id(module))
                self._attach(module)

    def _attach(self, module: nn.Module) -> None:
        """Add hooks to a module that holds parameters or banks without numbers; leave any other as it is."""
        parameters: list[nn.Parameter] = []
        for parameter in module.parameters(recurse=False):
            if id(parameter) in self._stored_names:
                parameters.append(parameter)
        # Banks and the projections of members are never called themselves, so hooks of theirs would not run.
        banks: list[HeadBank] = []
        if isinstance(module, HeadAttention):
            for part in module.modules():
                if isinstance(part, HeadBank) and id(part) in self._make_bank:
                    banks.append(part)
        if not parameters and not banks:
            return

        def give_weights(*_: Any) -> None:
            for parameter in parameters:
                stored = self._stored_names[id(parameter)]
                parameter.data = self.read(stored)
            for bank in banks:
                make_bank = self._make_bank[id(bank)]
                fresh_bank = make_bank()
                pairs = zip(bank.parameters(), fresh_bank.parameters(), strict=True)
                for parameter, fresh_parameter in pairs:
                    parameter.data = fresh_parameter.data

        def drop_weights(*_: Any) -> None:
            _empty(parameters)
            for bank in banks:
                _empty(bank.parameters())

        module.register_forward_pre_hook(give_weights)
        module.register_forward_hook(drop_weights)


def _empty(parameters: Iterable[nn.Parameter]) -> None:
    """Drop the numbers of parameters; they keep their shapes."""
    for parameter in parameters:
        shape = parameter.shape
        parameter.data = _hollow(shape, parameter.device)


def _hollow(shape: Iterable[int], device: torch.device) -> Tensor:
    """Return a tensor of NaN, which takes the memory of one number."""
    nan = float("nan")
    one_number = torch.full((), nan, device=device)
    return one_number.expand(tuple(shape))


def _widened(stored: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to float32, in memory that goes back to the system as soon as the copy is dropped."""
    if device.type != "cpu":
        return stored.to(device, torch.float32)
    bytes_of_float32 = 4
    pages = page_buffer(bytes_of_float32 * stored.numel())
    widened = pages.view(torch.float32).reshape(stored.shape)
    return widened.copy_(stored)
