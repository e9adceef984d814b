"""From the tensors of a file to the modules that run: what members share is read once and runs once where it can."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from hydractl.errors import InputError
from hydractl.families.base import ModelFamily, Stages, attention_names, read_heads
from hydractl.files.checkpoint import LentTensors, TensorSource
from hydractl.files.description import Description
from hydractl.heads.mask import Site
from hydractl.heads.weights import COMMON, HeadWeights
from hydractl.model.attention import HeadAttention
from hydractl.model.chain import Chain, Start
from hydractl.model.late import LateWeights
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
        streamed: leave those of blocks where they are until they run (:mod:`hydractl.model.late`).
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
        count = len(description.masks)
        self._family, self._masks = family, description.masks
        self._sites = family.sites(description.config)
        self._once = sites_stored_once(tensors, family, self._sites)
        self._views = [MemberTensors(tensors, m) for m in range(count)]
        self._own = {name for view in self._views for name, stored in view.stored.items() if name != stored}
        self._reader = _Reader(tensors, device, dtype)
        self._late = LateWeights(tensors, device) if streamed else None
        self.networks = [family.build(description.config) for _ in range(count)]
        for network, view in zip(self.networks, self._views, strict=True):
            names = [name for name, _ in network.named_parameters() if not self._is_attention(name)]
            late = self._late_names(network)
            stored: dict[str, Tensor] = {n: late.get(n, self._reader).parameter(view.stored[n]) for n in names}
            statistics = network.state_dict().keys() - dict(network.named_parameters()).keys()
            stored |= {name: self._reader.tensor(view.stored[name]) for name in statistics}
            network.load_state_dict(stored, strict=False, assign=True)  # in the place of meta parameters
        self.attentions: list[HeadAttention] = []
        starts = self._starts()
        for start in starts:
            for index in start.sites:
                self._install(self._sites[index], start, index)
        self._own_blocks()
        if self._late is not None:
            self._late.attach(self.networks)
        merged = not any(family.part(name, self._sites) == "mlp" for name in self._own)
        for network in self.networks[1:]:
            self._drop_blocks(network)
        self.chains = [
            Chain(family, self.networks, tower, self.attentions[start.sites.start : start.sites.stop], start, merged)
            for tower, start in enumerate(starts)
        ]

    def _is_attention(self, name: str) -> bool:
        """Return whether a tensor of the library's model belongs to heads, which :class:`HeadAttention` holds."""
        return self._family.part(name, self._sites) == "attention"

    def _late_names(self, network: nn.Module) -> dict[str, LateWeights]:
        """Return the parameters that are read only when they run: of blocks, and of tables of a library's own class.

        Such a table computes what it looks up.
        """
        if self._late is None:
            return {}
        tables = {path: type(m) for path, m in network.named_modules() if isinstance(m, nn.Embedding)}
        own = [path for path, kind in tables.items() if kind is not nn.Embedding]
        inside = tuple(f"{path}." for path in (*self._block_paths, *own))
        return {name: self._late for name, _ in network.named_parameters() if name.startswith(inside)}

    # --- what is the same in all members ------------------------------------------------------------------------------

    def _starts(self) -> list[Start]:
        """Return how far the members are the same, for each tower."""
        starts, first = [], 0
        for stages in self._family.stages(self.networks[0]):
            sites = range(first, first + len(stages.blocks))
            starts.append(self._start(stages, sites))
            first = sites.stop
        return starts

    def _start(self, stages: Stages, sites: range) -> Start:
        if any(name.startswith(stages.stem_prefixes) for name in self._own):
            return Start(sites, shared_stem=False, blocks=0, pool=False)
        for blocks, (index, path) in enumerate(zip(sites, stages.block_paths, strict=True)):
            site = self._sites[index].path
            own = [name for name in self._own if name.startswith(stages.prefixes_of(blocks))]
            if own or any(mask.kept[site] != self._masks[0].kept[site] for mask in self._masks):
                # The input of the attention is still that of all members, if what is before it is: norms, and merging.
                before = [n for n in own if self._family.part(n, self._sites) == "norm" or not n.startswith(f"{path}.")]
                common = not before
                return Start(sites, shared_stem=True, blocks=blocks, pool=common and site in self._once)
        return Start(sites, shared_stem=True, blocks=len(sites), pool=False)

    # --- attention ----------------------------------------------------------------------------------------------------

    def _install(self, site: Site, start: Start, index: int) -> None:
        """Put one attention for all members in the place of the library's."""
        if site.path in self._once:
            held = union(self._masks, site.path)
            kept = [mask.kept[site.path] for mask in self._masks[: 1 if start.once(index) else None]]
            order = neighbours(kept)
            bank = self._bank(site, 0, [held.index(head) for head in order])
            each = {heads: MemberProjections(bank, [order.index(head) for head in heads]) for heads in kept}
            members = [each[heads] for heads in kept]
        else:
            members = [MemberProjections(self._bank(site, m)) for m in range(len(self.networks))]
        of_weights, of_output = self._family.dropouts(self.networks[0], site)
        pooled = start.pooled(index)
        attention = HeadAttention(members, pooled=pooled, attention_dropout=of_weights, output_dropout=of_output)
        for network in self.networks:
            self._family.install(network, site, attention)
        self.attentions.append(attention)

    def _weights(self, site: Site, member: int, read: Callable[[str], Tensor]) -> HeadWeights:
        view = self._views[member]
        names = attention_names(self._family, view, self._sites, site)
        kept = held_mask(self._masks, member, self._once).kept[site.path]
        weights = read_heads(self._family, {n: read(view.stored[n]) for n in names}, site, kept)
        return replace(weights, number=torch.tensor(kept, dtype=torch.long))

    def _bank(self, site: Site, member: int, places: Sequence[int] | None = None) -> HeadBank:
        """Return the heads of a member, or those stored at some places."""
        common = self._family.common(self.networks[member], site)

        def made(read: Callable[[str], Tensor], common: Sequence[nn.Module]) -> HeadBank:
            weights = self._weights(site, member, read)
            return _filled(weights if places is None else weights.select(places), common)

        late = self._late
        if late is None:
            return made(self._reader.tensor, common)
        bank = made(late.hollow, common)
        late.bank(bank, lambda: made(late.read, copy.deepcopy(common)))
        return bank

    # --- blocks -------------------------------------------------------------------------------------------------------

    @property
    def _block_paths(self) -> list[str]:
        """The module paths of the blocks of all towers, and of what makes fewer tokens before them."""
        towers = self._family.stages(self.networks[0])
        return [path for stages in towers for path in (*stages.block_paths, *stages.merging.values())]

    def _own_blocks(self) -> None:
        """Wrap, in the blocks of the first member, each module whose weights every member has for itself."""
        prefixes = tuple(f"{path}." for path in self._block_paths)
        own = [name for name in self._own if name.startswith(prefixes) and not self._is_attention(name)]
        for owner in sorted({name.rpartition(".")[0] for name in own}):
            if f"{owner}." in prefixes:
                self._own_scales(owner, [name for name in own if name.rpartition(".")[0] == owner])
                continue
            modules = [network.get_submodule(owner) for network in self.networks]
            self.networks[0].set_submodule(owner, PerMember(modules))

    def _own_scales(self, block: str, names: Sequence[str]) -> None:
        """Replace the vectors that a block holds itself and multiplies by with one for each member."""
        module = self.networks[0].get_submodule(block)
        for name in names:
            scales = [network.get_parameter(name) for network in self.networks]
            if scales[0].dim() != 1:
                raise InputError(f"weights held by {block} itself cannot be kept per member")
            leaf, scale = name.rpartition(".")[2], PerMemberScale(scales)
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


def _filled(weights: HeadWeights, common: Sequence[nn.Module]) -> HeadBank:
    """Heads, and what belongs to none of them with the weights that it has here."""
    for name, module in zip(COMMON, common, strict=True):
        stored = {leaf: weights.extra[f"{name}.{leaf}"] for leaf, _ in module.named_parameters()}
        module.load_state_dict(stored, assign=True)
    return HeadBank(weights, *common)


class _Reader:
    """Stored tensors on the target device and dtype; one parameter object per stored name, so sharing survives."""

    def __init__(self, tensors: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self.tensors, self.device, self.dtype = tensors, device, dtype
        self._parameters: dict[str, nn.Parameter] = {}

    def tensor(self, stored: str) -> Tensor:
        tensor, lent = self.tensors.read(stored), isinstance(self.tensors, LentTensors)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None, copy=not lent)

    def parameter(self, stored: str) -> nn.Parameter:
        if stored not in self._parameters:
            self._parameters[stored] = nn.Parameter(self.tensor(stored))
        return self._parameters[stored]
