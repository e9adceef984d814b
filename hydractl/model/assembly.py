"""Build the modules that run from the tensors of a file. What members share is read once, and runs once if possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import ModelFamily, Stages, attention_names, read_heads
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.files.description import Description
from hydractl.heads.mask import Site
from hydractl.heads.weights import COMMON
from hydractl.model.attention import HeadAttention
from hydractl.model.chain import Chain, Start
from hydractl.model.projections import HeadBank, MemberProjections, neighbours
from hydractl.model.stacking import PerMember, Scale
from hydractl.model.stored import MemberTensors, heads_of_any_member, held_mask, sites_stored_once


class Assembly:
    """Builds the networks of all members.

    Attributes:
        networks: the library's model of each member, with :class:`HeadAttention` in it. Only the blocks of the first
            network run. The blocks of the other networks are removed: their weights are either shared with the first,
            or wrapped into the blocks of the first.
        attentions: one for each site (attention block), in model order.
        chains: one for each tower, in the order of the sites.

    Args:
        description, family, sites: what the model is, and its attention blocks.
        tensors: the weights of the model.
        device: the device of the modules.
        dtype: the dtype of the weights.
    """

    def __init__(
        self,
        description: Description,
        family: ModelFamily,
        sites: Sequence[Site],
        tensors: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Build the networks of all members, put one attention for all members into each, and make the chains."""
        # What members share and what each has for itself. A site is an attention block; a view shows the tensors of one
        # member under the library's names.
        self._family = family
        self._masks = description.masks
        self._sites = sites
        self._stored_once = sites_stored_once(tensors, family, self._sites)
        members = range(len(description.masks))
        self._views = [MemberTensors(tensors, member) for member in members]
        self._parts = {name: family.part(name) for name in self._views[0].stored}
        # The library's names of all tensors that every member has for itself.
        self._per_member = {name for view in self._views for name, stored in view.stored.items() if name != stored}

        self._reader = _Reader(tensors, device, dtype)

        # Build a network for each member, without attention, and then one attention for all members at each site.
        self.networks: list[nn.Module] = []
        for view in self._views:
            network = family.build(description.config)
            self.networks.append(network)
            self._load_weights(network, view)

        self.attentions: list[HeadAttention] = []
        starts = self._starts_of_towers()
        for start in starts:
            for index in start.sites:
                self._install_attention(index, start)

        # Only the blocks of the first network are needed from here on.
        self._wrap_modules_per_member()
        for network in self.networks[1:]:
            for path in self._block_paths:
                network.set_submodule(path, nn.Identity())
        self.chains = self._make_chains(starts)

    def _load_weights(self, network: nn.Module, view: MemberTensors) -> None:
        """Load the weights of a member into its network, whose tensors have shapes but no numbers yet (meta device).

        The weights of attention blocks are left out: these blocks are replaced by hydractl's own attention.

        Args:
            network: the library's model.
            view: the stored tensors of the member.
        """
        parameters = dict(network.named_parameters())
        state: dict[str, Tensor] = {}
        for name in network.state_dict():
            if name not in parameters:  # a buffer, such as the mean in a batch norm
                state[name] = self._reader.tensor(view.stored[name])
            elif not self._is_attention(name):
                state[name] = self._reader.parameter(view.stored[name])

        # Not strict, because the attention blocks are left out.
        network.load_state_dict(state, strict=False, assign=True)

    def _make_chains(self, starts: Sequence[Start]) -> list[Chain]:
        """Return one chain (the blocks of all members, run together) for each tower (encoder)."""
        # Members that were merged have all weights of their MLPs in common.
        kinds_that_differ = {self._parts[name] for name in self._per_member}
        has_mlps_in_common = "mlp" not in kinds_that_differ
        chains = []
        for tower, start in enumerate(starts):
            attentions = [self.attentions[index] for index in start.sites]
            chains.append(Chain(self._family, self.networks, tower, attentions, start, merged=has_mlps_in_common))
        return chains

    def _is_attention(self, name: str) -> bool:
        """Return whether a tensor of the library's model belongs to an attention block, which is replaced."""
        return self._parts[name] == "attention"

    # --- how far the members are the same -----------------------------------------------------------------------------

    def _starts_of_towers(self) -> list[Start]:
        """Return for each tower how far the members are the same."""
        starts = []
        first_site = 0
        for stages in self._family.stages(self.networks[0]):
            blocks = len(stages.blocks)
            sites = range(first_site, first_site + blocks)  # one site in each block
            starts.append(self._start_of_tower(stages, sites))
            first_site = sites.stop
        return starts

    def _start_of_tower(self, stages: Stages, sites: range) -> Start:
        """Return how far the members are the same in one tower (e.g. the image encoder), seen from its input.

        The same may be the stem (all before the first block), then some leading blocks, and then the input and the
        weights of the next block's attention, of which members may have different heads.

        Args:
            stages: the stem and the blocks of the tower.
            sites: the indices of its sites among those of the model; each block has one site.
        """
        # The stem differs, so everything runs for each member.
        if self._names_that_differ(stages.stem_prefixes):
            return Start(sites, shared_stem=False, blocks=0, pool=False)

        # Find the first block that differs, in its weights or in its heads.
        for block, block_path in enumerate(stages.block_paths):
            site = self._sites[sites[block]]
            differing = self._names_that_differ(stages.prefixes_of(block))
            choices_of_heads = {mask.kept[site.path] for mask in self._masks}
            is_same = not differing and len(choices_of_heads) == 1
            if is_same:
                continue

            # The attention of this block gets the same input from all members if nothing before it differs. If its
            # heads are also stored once for all members, it can run once with all of them.
            before_attention = [name for name in differing if self._is_before_attention(name, block_path)]
            pool = not before_attention and site.path in self._stored_once
            return Start(sites, shared_stem=True, blocks=block, pool=pool)

        # All blocks are the same.
        return Start(sites, shared_stem=True, blocks=len(sites), pool=False)

    def _names_that_differ(self, prefixes: tuple[str, ...]) -> list[str]:
        """Return the names of all tensors with one of the prefixes that every member has for itself."""
        return [name for name in self._per_member if name.startswith(prefixes)]

    def _is_before_attention(self, name: str, block: str) -> bool:
        """Return whether a tensor is used before the attention of a block: in a norm, or in the merging of tokens."""
        inside_block = name.startswith(f"{block}.")
        if not inside_block:  # it belongs to the module before the block that merges tokens
            return True
        return self._parts[name] == "norm"

    # --- attention ----------------------------------------------------------------------------------------------------

    def _install_attention(self, index: int, start: Start) -> None:
        """Replace the library's attention at a site by one for all members; also append it to :attr:`attentions`.

        Args:
            index: the index of the site.
            start: how far the members are the same in the tower of the site.
        """
        site = self._sites[index]
        if site.path in self._stored_once:
            # All members choose from one bank of heads. If they run once together, one choice stands for all.
            masks = self._masks[:1] if start.runs_once(index) else self._masks
            heads_of_members = [mask.kept[site.path] for mask in masks]

            # The file holds the heads of any member in ascending order. The bank holds them in another order, in which
            # the heads of each member are neighbours as far as possible.
            stored_heads = heads_of_any_member(self._masks, site.path)
            heads_in_bank = neighbours(heads_of_members)
            indices_in_file = [stored_heads.index(head) for head in heads_in_bank]
            bank = self._build_bank(site, 0, indices_in_file)

            # Make one object for each choice of heads: members with the same heads share it.
            projections_of_heads: dict[tuple[int, ...], MemberProjections] = {}
            for heads in heads_of_members:
                if heads not in projections_of_heads:
                    positions_in_bank = [heads_in_bank.index(head) for head in heads]
                    projections_of_heads[heads] = MemberProjections(bank, positions_in_bank)
            members = [projections_of_heads[heads] for heads in heads_of_members]
        else:
            # Each member has a bank of its own.
            banks = [self._build_bank(site, member) for member in range(len(self.networks))]
            members = [MemberProjections(bank) for bank in banks]

        # Put the attention into the networks of all members.
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

    def _build_bank(self, site: Site, member: int, indices: Sequence[int] | None = None) -> HeadBank:
        """Return a bank (the weights of heads in one module) with a member's stored heads, or with some of them.

        Args:
            site: the attention block.
            member: the index of the member.
            indices: indices of the stored heads, in the order of the bank; None means all, as they are stored.
        """
        # Read the heads that are stored under the member's names.
        view = self._views[member]
        tensors = {}
        for name in attention_names(self._family, view, site):
            tensors[name] = self._reader.tensor(view.stored[name])
        stored_heads = held_mask(self._masks, member, self._stored_once)  # of all members, if they are stored once
        weights = read_heads(self._family, tensors, site, stored_heads.kept[site.path])
        if indices is not None:
            weights = weights.select(indices)

        # The modules that all heads share come from the library, and get the stored weights.
        common = self._family.common(self.networks[member], site)
        for name, module in zip(COMMON, common, strict=True):
            state = {leaf: weights.extra[f"{name}.{leaf}"] for leaf, _ in module.named_parameters()}
            module.load_state_dict(state, assign=True)
        return HeadBank(weights, *common)

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
        """Replace, in the blocks of the first network, each module whose weights differ between members.

        Only the blocks of the first network run, for all members, so the new module holds the weights of every member.
        """
        blocks = self._block_paths
        inside_blocks = tuple(f"{path}." for path in blocks)

        # Find these weights, grouped by the path of the module that holds them.
        names_by_owner: dict[str, list[str]] = {}
        for name in sorted(self._per_member):
            is_inside_block = name.startswith(inside_blocks)
            if not is_inside_block or self._is_attention(name):
                continue
            owner, _, _ = name.rpartition(".")
            names_of_owner = names_by_owner.setdefault(owner, [])
            names_of_owner.append(name)

        # Replace these modules.
        for owner, names in sorted(names_by_owner.items()):
            if owner in blocks:  # a vector that the block holds itself is in no module that could be replaced
                self._replace_scales(owner, names)
                continue
            modules = [network.get_submodule(owner) for network in self.networks]
            per_member = PerMember(modules)
            self.networks[0].set_submodule(owner, per_member)

    def _replace_scales(self, block: str, names: Sequence[str]) -> None:
        """Replace the scale vectors of a block, by which it multiplies, with modules that hold one for each member.

        Args:
            block: the path of the block, which holds the vectors itself.
            names: the names of the vectors.

        Raises:
            InputError: if the block itself holds other weights than the family's :attr:`ModelFamily.scaled`.
        """
        module = self.networks[0].get_submodule(block)
        for name in names:
            _, _, attribute = name.rpartition(".")
            scaled_path = self._family.scaled.get(attribute)
            if scaled_path is None:
                raise InputError(f"weights held by {block} itself cannot be kept per member")

            # The family names the module whose input is scaled: call the scales before that module, and leave no vector
            # for the block to multiply by.
            scales = PerMember([Scale(network.get_parameter(name)) for network in self.networks])
            delattr(module, attribute)
            setattr(module, attribute, None)
            module.set_submodule(scaled_path, nn.Sequential(scales, module.get_submodule(scaled_path)))


# --- reading tensors --------------------------------------------------------------------------------------------------


class _Reader:
    """Reads stored tensors to the target device and dtype.

    There is one parameter object per stored name, so parameters that are shared in the file stay shared.
    """

    def __init__(self, tensors: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._device = device
        self._dtype = dtype
        self._parameters: dict[str, nn.Parameter] = {}

    def tensor(self, stored: str) -> Tensor:
        """Read a tensor: as a copy, or without a copy if the source lends its memory."""
        tensor = self._tensors.read(stored)
        dtype = self._dtype if tensor.is_floating_point() else None
        is_lent = isinstance(self._tensors, LentTensors)
        return tensor.to(self._device, dtype, copy=not is_lent)

    def parameter(self, stored: str) -> nn.Parameter:
        """Return the parameter for a stored name; it is read at the first call."""
        if stored not in self._parameters:
            tensor = self.tensor(stored)
            self._parameters[stored] = nn.Parameter(tensor)
        return self._parameters[stored]
