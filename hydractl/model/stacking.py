"""What every member has for itself, run for all of them: weights that lie one behind the other in memory, so that one
batched product serves all members.

On a GPU a product of few rows takes no longer to compute than to launch, and one for all members is launched once.

Stacks are kept from run to run. Whether the parameters are still those that they were made of is looked at once in each
run of a tower (:class:`StacksOfTower`), and by a module that runs by itself in each call (:class:`Stack`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.context import RunContext, apart, context_of_run
from hydractl.model.projections import (
    KEYS_AND_VALUES,
    QUERIES,
    MemberProjections,
    split_heads,
    wanted_rows,
)

PADDED = 4 / 3
"""The most heads that may be computed for each that is there, where members have unequal numbers of them."""


@dataclass(frozen=True, eq=False)
class KeptStack:
    """One weight of every member as one tensor, with what tells whether it still is the weight of the parameters.

    Attributes:
        stack: ``[M, ...]``.
        addresses: where the parameter of each member lies.
        versions: how often each had been written to, of a stack that is a copy; None where the parameters are views of
            the stack, or it of them.
        sources: the numbers that a copy was made of: as long as they are held, no other parameter gets their address.
    """

    stack: Tensor
    addresses: list[int]
    versions: list[int] | None = None
    sources: Sequence[Tensor] = ()

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Return whether it is the stack of these parameters as they are now."""
        if addresses_of(weights) != self.addresses:
            return False
        return self.versions is None or self.versions == versions_of(weights)


class Stack:
    """One weight of every member as one tensor ``[M, ...]``, with zeros behind those that are smaller.

    It is made when it is first asked for without gradients, and the parameters then become views of it: no weight is
    held twice. What is written into them in place is in it at once; where one was moved or replaced, which its address
    tells, it is made anew. With gradients it is made for each call, as a function of the parameters.

    Members that take parts of parameters they have in common cannot be views: then it is a copy, made anew when a
    parameter was written to.
    """

    def __init__(self) -> None:
        self._kept: KeptStack | None = None

    def __reduce__(self) -> tuple[type[Stack], tuple[()]]:
        return Stack, ()  # a copy belongs to other parameters, so it begins empty

    @property
    def kept(self) -> KeptStack | None:
        """The stack that is kept now; None where there is none."""
        return self._kept

    def forget(self) -> None:
        """Drop the stack, to make it anew when it is next asked for."""
        self._kept = None

    def stacked(self, weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None = None) -> Tensor:
        """Return the weights of all members as one tensor ``[M, ...]``.

        Args:
            weights: the parameter of each member.
            parts: what each takes of it; None: all of it.
        """
        if parts is None and _are_one(weights):
            return _expanded(weights)
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            return _stacked(weights, parts)
        if torch.compiler.is_compiling():  # a graph knows neither addresses nor versions
            kept = self._kept
            return _stacked(weights, parts) if kept is None else kept.stack
        return self.keep(weights, parts).stack

    def keep(self, weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None = None) -> KeptStack:
        """Return the stack of the weights, made anew where it is not theirs; see :meth:`stacked`."""
        kept = self._kept
        if kept is not None and kept.fits(weights):
            return kept
        with _moving:
            kept = self._kept  # another thread may have made it meanwhile
            if kept is None or not kept.fits(weights):
                kept = _make(weights, parts)
                self._kept = kept
        return kept


_moving = threading.Lock()
"""Held while weights move to their place in a stack, so that only one of several threads moves them."""


def _make(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None) -> KeptStack:
    """Stack the weights, and where that can be, make the parameters views of the stack.

    There are three kinds of stacks: one weight that is the same for all members, expanded; the memory of the
    parameters, which are its views from then on; and a copy, where a member takes a part of a parameter only, or
    several members share one.

    Args:
        weights: the parameter of each member.
        parts: what takes each member's part out of it; None: it takes the whole.
    """
    # Outside inference mode: a parameter must not become a tensor of which there are no gradients.
    with torch.inference_mode(False), torch.no_grad():
        if parts is None and _are_one(weights):
            return KeptStack(_expanded(weights), addresses_of(weights))
        stack = _stacked(weights, parts)
        distinct = len({id(weight) for weight in weights}) == len(weights)
        if parts is None and distinct:
            for weight, place in zip(weights, stack, strict=True):
                unpadded = tuple(slice(size) for size in weight.shape)
                weight.data = place[unpadded]
            return KeptStack(stack, addresses_of(weights))
        sources = [weight.detach() for weight in weights]
        return KeptStack(stack, addresses_of(weights), versions_of(weights), sources)


def _are_one(weights: Sequence[Tensor]) -> bool:
    """Return whether all members have the same parameter."""
    first = weights[0]
    return all(weight is first for weight in weights)


def _expanded(weights: Sequence[Tensor]) -> Tensor:
    """Return a parameter that all members have in common as ``[M, ...]``, without a copy."""
    first = weights[0]
    return first.expand(len(weights), *first.shape)


def addresses_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return where the numbers of parameters lie."""
    return list(map(Tensor.data_ptr, parameters))


def versions_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return how often parameters have been written to in place."""
    return [times_written(parameter) for parameter in parameters]


def times_written(tensor: Tensor) -> int:
    """Return how often a tensor has been written to in place; 0 for one of inference mode, which counts nothing."""
    try:
        return tensor._version
    except RuntimeError:  # not is_inference(): a parameter of that mode whose data was replaced denies it
        return 0


def _stacked(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None) -> Tensor:
    """Stack the weights, brought to one shape with zeros behind those that are smaller."""
    tensors = list(weights)
    if parts is not None:
        tensors = [part(weight) for part, weight in zip(parts, weights, strict=True)]
    sizes_by_dimension = zip(*[tensor.shape for tensor in tensors], strict=True)
    largest = [max(sizes) for sizes in sizes_by_dimension]
    return torch.stack([_padded(tensor, largest) for tensor in tensors])


def _padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Pad a tensor to a shape, with zeros at the end of every dimension that is smaller."""
    missing = [wanted - size for wanted, size in zip(shape, tensor.shape, strict=True)]
    if not any(missing):
        return tensor
    padding = []
    for zeros_behind in reversed(missing):  # pad() takes pairs (before, behind), from the last dimension on
        padding += [0, zeros_behind]
    return F.pad(tensor, padding)


# --- linear layers and norms of all members ---------------------------------------------------------------------------


class MembersLinear:
    """One linear layer of every member, as one product.

    Args:
        weight: ``[M, m, n]``.
        bias: ``[M, m]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._inputs_first = weight.mT
        self._row = None if bias is None else bias[:, None]

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to ``x``, member-major ``[M * B, ..., n]``; returns ``[M * B, ..., m]``."""
        members, outputs, inputs = self.weight.shape
        rows = x.reshape(members, -1, inputs)  # [M * B, ..., n] -> [M, B * ..., n]
        if self._row is None:
            products = torch.bmm(rows, self._inputs_first)
        else:
            products = torch.baddbmm(self._row, rows, self._inputs_first)
        return products.reshape(*x.shape[:-1], outputs)

    def rows(self, rows: slice) -> MembersLinear:
        """Return the layer of some of its outputs, without a copy."""
        bias = None if self.bias is None else self.bias[:, rows]
        return MembersLinear(self.weight[:, rows], bias)


class MembersLayerNorm:
    """The layer norm of every member over the last dimension.

    Args:
        weight: ``[M, n]``.
        bias: ``[M, n]`` or None.
        eps: of the norms.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._members = weight.shape[0]
        self._weight_row = weight[:, None]
        self._bias_row = None if bias is None else bias[:, None]
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to ``x``, member-major ``[M * B, ..., n]``."""
        width = x.shape[-1]
        normalised = F.layer_norm(x, (width,), eps=self._eps)
        rows = normalised.reshape(self._members, -1, width)  # [M * B, ..., n] -> [M, B * ..., n]
        if self._bias_row is None:
            scaled = rows * self._weight_row
        else:
            scaled = torch.addcmul(self._bias_row, rows, self._weight_row)
        return scaled.reshape_as(x)


# --- what is kept of one tower ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StackOrder:
    """A stack to be kept, and what it is made of.

    Attributes:
        stack: keeps it.
        name: of the parameter.
        owners: the module of each member that holds it.
        parts: what each member takes of it; None: all of it.
    """

    stack: Stack
    name: str
    owners: Sequence[nn.Module]
    parts: Sequence[Callable[[Tensor], Tensor]] | None = None

    @property
    def possible(self) -> bool:
        """Whether it can be kept: not where a weight is no parameter but computed in each call (LoRA)."""
        return all(owner._parameters.get(self.name) is not None for owner in self.owners)

    def parameters(self) -> list[Tensor]:
        """Return the parameter of each member."""
        return [getattr(owner, self.name) for owner in self.owners]


class StackingModule(Protocol):
    """A module of which the weights of all members can be stacked."""

    def stack_orders(self) -> Mapping[str, StackOrder]:
        """Return the stacks that it would keep, by names of its choice; empty where it has none."""

    def computing_with(self, stacks: Mapping[str, KeptStack]) -> Any:
        """Return what it computes with in a run that has these stacks, by the same names."""


class StacksOfTower:
    """The stacks that the modules of one tower keep from run to run.

    Whether they still fit the parameters is looked at for all of them at once, at the beginning of a run.
    """

    def __init__(self, modules: Sequence[StackingModule]) -> None:
        self._modules = list(modules)
        self._seen: _SeenStacks | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_modules": self._modules, "_seen": None}  # a copy has modules of its own

    def checked(self) -> Mapping[Any, Any]:
        """Return what each module that keeps stacks computes with, by module; made anew where it does not fit."""
        seen = self._seen
        if seen is None or not seen.are_current():
            seen = self._made()
            self._seen = seen
        return seen.computing_with

    def _made(self) -> _SeenStacks:
        """Make the stacks of all modules whose weights can be stacked, or find those that still fit."""
        orders: list[StackOrder] = []
        stacks: list[KeptStack] = []
        computing_with: dict[Any, Any] = {}
        for module in self._modules:
            orders_of_module = module.stack_orders()
            if not orders_of_module or not all(order.possible for order in orders_of_module.values()):
                continue
            kept_by_name = {}
            for name, order in orders_of_module.items():
                kept = order.stack.keep(order.parameters(), order.parts)
                kept_by_name[name] = kept
                orders.append(order)
                stacks.append(kept)
            # Outside inference mode: these views serve runs of other modes too.
            with torch.inference_mode(False), torch.no_grad():
                computing_with[module] = module.computing_with(kept_by_name)
        return _SeenStacks(orders, stacks, computing_with)


class _SeenStacks:
    """Stacks as they were when they were last looked at.

    Everything that is compared in each run lies in flat lists, which are walked in C: a run must not wait for this.

    Args:
        orders: of the stacks.
        stacks: the kept ones.
        computing_with: as :meth:`StacksOfTower.checked` returns.
    """

    def __init__(
        self, orders: Sequence[StackOrder], stacks: Sequence[KeptStack], computing_with: Mapping[Any, Any]
    ) -> None:
        """Note everything that :meth:`are_current` compares."""
        self.computing_with = computing_with
        # Each stack, and what keeps it until it is forgotten.
        self._keepers = [order.stack for order in orders]
        self._stacks = list(stacks)
        # The parameters of all stacks: whose each is, by which name, itself, and where it lies in memory.
        self._owners: list[dict[str, nn.Parameter | None]] = []
        self._names: list[str] = []
        self._parameters: list[Tensor] = []
        self._addresses: list[int] = []
        # Those of them that were copied to a stack, and how often each had been written to before.
        self._copied: list[Tensor] = []
        self._versions: list[int] = []
        for order, kept in zip(orders, stacks, strict=True):
            parameters = order.parameters()
            for owner in order.owners:
                self._owners.append(owner._parameters)
                self._names.append(order.name)
            self._parameters += parameters
            self._addresses += kept.addresses
            if kept.versions is not None:  # a copy; a view sees what is written to the parameters
                self._copied += parameters
                self._versions += kept.versions

    def are_current(self) -> bool:
        """Return whether no stack was forgotten, and no parameter replaced, moved, or (of a copy) written to."""
        if not all(map(is_, map(_kept_by, self._keepers), self._stacks)):
            return False
        parameters = list(map(dict.get, self._owners, self._names))
        if not all(map(is_, parameters, self._parameters)):
            return False
        if addresses_of(self._parameters) != self._addresses:
            return False
        return not self._copied or versions_of(self._copied) == self._versions


_kept_by = attrgetter("_kept")


# --- modules of all members -------------------------------------------------------------------------------------------


class PerMember(nn.Module):
    """One module per member on member-major activations ``[M * B, ...]``: what is not merged.

    Linear layers, and layer norms over the last dimension, can run for all members at once, as one batched product.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self._each = list(modules)  # the same modules: a walk over a ModuleList takes long
        self._weight = Stack()
        self._bias = Stack()
        self._stackable = len(modules) > 1 and _runs_as_one_product(modules[0])

    def _apply(self, fn: Any, recurse: bool = True) -> PerMember:
        self._weight.forget()
        self._bias.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there

    def keep_apart(self) -> None:
        """Never stack the weights of members: where they are only there while a member's own module runs."""
        self._stackable = False

    def stack(self, context: RunContext) -> None:
        """Stack the weights, see :class:`hydractl.model.attention.HeadAttention`."""
        if self._stackable and context.batches(next(self.parameters()).device):
            with torch.no_grad():
                self._product()

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m, ``[M * B, ...]``; in the run of one member, its own to ``x``."""
        context = context_of_run()
        if context.member is not None:
            return self._each[context.member](x)

        # One product for all members: of stacks that were looked at for the whole run, else of those of this module.
        product = context.stacks_of(self)
        if product is None and self._stackable and context.batches(x.device):
            product = self._product()
        if product is not None:
            return product(x)

        # One module after another.
        parts = apart(x, len(self._each))
        return torch.cat([module(part) for module, part in zip(self._each, parts, strict=True)])

    def _product(self) -> MembersLinear | MembersLayerNorm:
        """Return what applies all members' modules at once, with their weights as they are now."""
        modules: list[Any] = self._each
        bias = None
        if modules[0].bias is not None:
            bias = self._bias.stacked([module.bias for module in modules])
        weight = self._weight.stacked([module.weight for module in modules])
        return self._product_of(weight, bias)

    def _product_of(self, weight: Tensor, bias: Tensor | None) -> MembersLinear | MembersLayerNorm:
        first = self._each[0]
        if isinstance(first, nn.LayerNorm):
            return MembersLayerNorm(weight, bias, first.eps)
        return MembersLinear(weight, bias)

    def stack_orders(self) -> Mapping[str, StackOrder]:
        """Return the stacks of weight and bias."""
        if not self._stackable:
            return {}
        orders = {"weight": StackOrder(self._weight, "weight", self._each)}
        modules: list[Any] = self._each
        if modules[0].bias is not None:
            orders["bias"] = StackOrder(self._bias, "bias", self._each)
        return orders

    def computing_with(self, stacks: Mapping[str, KeptStack]) -> MembersLinear | MembersLayerNorm:
        """Return what applies all members' modules at once."""
        bias = stacks["bias"].stack if "bias" in stacks else None
        return self._product_of(stacks["weight"].stack, bias)


def _runs_as_one_product(module: nn.Module) -> bool:
    """Return whether all members' modules like this one can run as one product: linear layers and layer norms."""
    if isinstance(module, nn.LayerNorm):  # a library's own subclass too
        over_last_dimension = len(module.normalized_shape) == 1
        return over_last_dimension and module.weight is not None
    return type(module) is nn.Linear


class PerMemberScale(nn.Module):
    """One vector per member, for a factor that the block of a library holds itself: ``gamma * x``, x member-major.

    Args:
        scales: ``[d_model]`` of each member.
    """

    def __init__(self, scales: Sequence[nn.Parameter]) -> None:
        super().__init__()
        for member, scale in enumerate(scales):  # parameters of this module, which is the one that is called
            self.register_parameter(str(member), scale)

    def __mul__(self, x: Tensor) -> Tensor:
        """Scale ``x``, as a call does: the block multiplies by what it takes for a vector."""
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the samples of member m, ``[M * B, T, d_model]``, by vector m."""
        scales = list(self.parameters())
        member = context_of_run().member
        if member is not None:
            return scales[member] * x
        parts = apart(x, len(scales))
        return torch.cat([scale * part for scale, part in zip(scales, parts, strict=True)])


class StackedProjections:
    """The heads of all members of one site, their projections as batched products.

    A member with fewer heads than another has heads of zeros behind its own, which give zeros.

    Args:
        members: the projections of each member.
        pooled: whether the heads of all members are in one bank and have attended already.

    Attributes:
        heads, head_dim: of each member, those of zeros included, and their width.
        shares_keys: whether several of them have keys and values in common.
        possible: whether this gives what the members give: they have heads, not too unequal numbers of them, no gates
            and no relative terms; where heads share keys, each in the same way.
    """

    def __init__(self, members: Sequence[MemberProjections], *, pooled: bool = False) -> None:
        """Note what each member takes of the weights of its bank; nothing is stacked yet."""
        self._members = list(members)
        self._banks = [member.bank for member in members]
        self._pooled = pooled
        self._normed = any(bank.normed for bank in self._banks)
        self.heads = max(member.heads for member in members)
        self.head_dim = members[0].head_dim
        self._all_heads_of_banks = all(member.heads == member.bank.heads for member in members)
        self.shares_keys = members[0].bank.key_heads is not None
        self.possible = self._is_possible(pooled)
        self._stacks = {name: Stack() for name in ("qkv", "qkv_bias", "out", "out_bias")}
        rows_of_head = 3 * self.head_dim
        # What each member takes of the weights of its bank, along the dimension of heads.
        self._parts = {
            "qkv": self._parts_of_members(0, rows_of_head),
            "qkv_bias": self._parts_of_members(0, rows_of_head),
            "out": self._parts_of_members(1, self.head_dim),
            "out_bias": None,
        }
        self._index: Tensor | None = None

    def _parts_of_members(self, dim: int, width: int) -> list[Callable[[Tensor], Tensor]] | None:
        """Return what takes each member's heads out of a weight, ``width`` of ``dim`` each; None where it has all."""
        if self._all_heads_of_banks:
            return None
        return [_PartOfMember(member, dim, width) for member in self._members]

    def _is_possible(self, pooled: bool) -> bool:
        """Return whether one batched product gives what the members give, without too many heads of zeros."""
        members = self._members
        if len(members) == 1 or self.heads == 0:
            return False
        if any(member.bank.gate is not None for member in members):
            return False
        # What is pooled has heads of zeros in its output only, which is a small part of the work.
        most_padded = len(members) if pooled else PADDED
        heads_there = sum(member.heads for member in members)
        heads_computed = len(members) * self.heads
        if heads_computed > most_padded * heads_there:
            return False
        if self.shares_keys and not pooled:  # a head of zeros would share keys with no other head
            ways_of_sharing = {member.bank.key_heads for member in members}
            return self._all_heads_of_banks and len(ways_of_sharing) == 1
        return True

    def forget(self) -> None:
        """Drop what is kept: the weights may have changed unseen."""
        self._index = None
        for stack in self._stacks.values():
            stack.forget()

    def weights(self) -> StackedWeights:
        """Return the weights of all members as they are now."""
        out_bias = self._stacked("out_bias")
        output = MembersLinear(self._stacked("out"), out_bias)
        if self._pooled:
            return StackedWeights(self, None, output)
        return StackedWeights(self, MembersLinear(self._stacked("qkv"), self._stacked("qkv_bias")), output)

    def orders(self) -> dict[str, StackOrder]:
        """Return the stacks of all weights that the members have, by name."""
        orders = {}
        names = ("out", "out_bias") if self._pooled else tuple(self._stacks)
        for name in names:
            first_bank = self._banks[0]
            if getattr(first_bank, name) is not None:
                orders[name] = StackOrder(self._stacks[name], name, self._banks, self._parts[name])
        return orders

    def weights_of(self, stacks: Mapping[str, KeptStack]) -> StackedWeights:
        """Return the weights of all members that lie in kept stacks, by the names of :meth:`orders`."""

        def layer(name: str) -> MembersLinear:
            bias = stacks.get(f"{name}_bias")
            return MembersLinear(stacks[name].stack, None if bias is None else bias.stack)

        output = layer("out")
        if self._pooled:
            return StackedWeights(self, None, output)
        is_copy = all(stack.versions is not None for name, stack in stacks.items() if name.startswith("qkv"))
        return StackedWeights(self, layer("qkv"), output, cut_once=is_copy)

    def _stacked(self, name: str) -> Any:
        """Return one weight of all members ``[M, ...]``; None for a bias that they do not have."""
        weights: list[Any]
        if name == "qkv_bias":
            weights = [bank.trained_bias() for bank in self._banks]
        else:
            weights = [getattr(bank, name) for bank in self._banks]
        if weights[0] is None:
            return None
        return self._stacks[name].stacked(weights, self._parts[name])

    def normed(self, heads: Tensor, side: str) -> Tensor:
        """Normalise each head ``[M * B, heads, T, head_dim]`` by the norm of its member."""
        if not self._normed:
            return heads
        norms: list[nn.Module] = [getattr(bank, side) for bank in self._banks]
        if all(isinstance(norm, nn.Identity) for norm in norms):
            return heads
        parts = heads.unflatten(0, (len(norms), -1)).unbind(0)
        return torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)])

    def for_each_head(self, keys: Tensor) -> Tensor:
        """Repeat keys or values that heads share, as all members share them alike."""
        return self._members[0].for_each_head(keys)

    def take(self, attended: Tensor) -> Tensor:
        """Select each member's heads from those of the bank, ``[B, heads of the bank, q, head_dim]``.

        Returns:
            ``[M * B, heads, q, head_dim]``.
        """
        selected = attended.index_select(1, self._places(attended.device))  # [B, M * heads, q, head_dim]
        by_member = selected.unflatten(1, (-1, self.heads)).transpose(0, 1)  # [M, B, heads, q, head_dim]
        return by_member.flatten(0, 1)

    def make(self) -> None:
        """Make everything that is kept from call to call."""
        self.weights()
        if self._pooled:
            self._places(self._banks[0].out.device)

    def _places(self, device: torch.device) -> Tensor:
        """Return the places in the bank of all members' heads, int64 ``[M * heads]``.

        A head of zeros has the place of some other.
        """
        kept = self._index  # read once: another thread may forget it
        if kept is not None and kept.device == device:
            return kept
        places: list[int] = []
        for member in self._members:
            for run in member.runs:
                places.extend(range(run.start, run.stop))
            heads_of_zeros = self.heads - member.heads
            places.extend([0] * heads_of_zeros)
        if torch.compiler.is_compiling():
            return torch.tensor(places, device=device)
        with torch.inference_mode(False):  # it serves runs with gradients too
            index = torch.tensor(places, device=device)
        self._index = index
        return index


class StackedWeights:
    """The weights of all members of one site: what its attention computes with in one run, or in many.

    Args:
        projections: whose weights they are.
        qkv: computes queries, keys and values, in the order of :class:`hydractl.model.projections.Packing`; None for a
            pool, whose heads have attended already.
        out: projects to the residual stream.
        cut_once: copy the rows of queries, and those of keys and values, once and not in every call. Not where
            parameters are views of what is cut: nothing would tell the copies that these were written to.
    """

    def __init__(
        self, projections: StackedProjections, qkv: MembersLinear | None, out: MembersLinear, *, cut_once: bool = False
    ) -> None:
        self.projections = projections
        self._qkv = qkv
        self._out = out
        self._cut_once = cut_once
        self._cut: tuple[MembersLinear, MembersLinear] | None = None

    def _queries_apart(self) -> tuple[MembersLinear, MembersLinear]:
        """Return what computes the queries, and what computes keys and values, for blocks that run for few tokens."""
        cut = self._cut
        if cut is not None:
            return cut
        if not self._cut_once:
            return self._rows(QUERIES), self._rows(KEYS_AND_VALUES)
        with torch.inference_mode(False), torch.no_grad():  # it serves runs of other modes too
            cut = (self._rows(QUERIES), self._rows(KEYS_AND_VALUES))
        self._cut = cut
        return cut

    def _rows(self, wanted: slice) -> MembersLinear:
        """Return a copy of the layer that computes some of the three projections."""
        assert self._qkv is not None, "a pool projects nothing"
        weight, bias = wanted_rows(self._qkv.weight, self._qkv.bias, wanted, self.projections.head_dim)
        return MembersLinear(weight, bias)

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [M * B, q, d_model]`` to queries, ``memory [M * B, T, d_model]`` (None: x) to keys and values.

        Returns:
            ``[M * B, heads, q, head_dim]`` and twice ``[M * B, heads, T, head_dim]``.
        """
        projections = self.projections
        if projections.shares_keys:
            return self._project_shared(x, x if memory is None else memory)
        assert self._qkv is not None, "a pool projects nothing"
        if memory is None:
            q, k, v = split_heads(self._qkv(x), 3, projections.head_dim)
        else:
            queries, keys_and_values = self._queries_apart()
            (q,) = split_heads(queries(x), 1, projections.head_dim)
            k, v = split_heads(keys_and_values(memory), 2, projections.head_dim)
        return projections.normed(q, "q_norm"), projections.normed(k, "k_norm"), v

    def _project_shared(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [M * B, q, d_model]`` to queries, ``memory [M * B, T, d_model]`` to keys and values.

        Several heads share a head of keys and values, which is repeated for each of them.

        Returns:
            ``[M * B, heads, q, head_dim]`` and twice ``[M * B, heads, T, head_dim]``.
        """
        assert self._qkv is not None, "a pool projects nothing"
        projections = self.projections
        query_rows = projections.heads * projections.head_dim
        queries = self._qkv.rows(slice(0, query_rows))  # [M, heads * head_dim, d_model]
        keys_and_values = self._qkv.rows(slice(query_rows, None))  # [M, shared heads * 2 * head_dim, d_model]
        (q,) = split_heads(queries(x), 1, projections.head_dim)
        k, v = split_heads(keys_and_values(memory), 2, projections.head_dim)
        q = projections.normed(q, "q_norm")
        k = projections.normed(k, "k_norm")
        return q, projections.for_each_head(k), projections.for_each_head(v)

    def output(self, attended: Tensor) -> Tensor:
        """Project attended heads ``[M * B, heads, q, head_dim]`` to the residual stream, ``[M * B, q, d_model]``."""
        rows = attended.transpose(1, 2).flatten(2)  # [M * B, h, q, dk] -> [M * B, q, h * dk]
        return self._out(rows)


class _PartOfMember:
    """Takes the heads of one member out of a weight of its bank.

    Args:
        member: has some of the heads of the bank.
        dim: the dimension of the weight along which heads lie.
        width: what each head has of it along ``dim``.
    """

    def __init__(self, member: MemberProjections, dim: int, width: int) -> None:
        self._runs = member.runs or [slice(0, 0)]  # a member without heads has an empty part
        self._dim = dim
        self._width = width

    def __call__(self, weight: Tensor) -> Tensor:
        parts = []
        for run in self._runs:
            heads = run.stop - run.start
            parts.append(weight.narrow(self._dim, run.start * self._width, heads * self._width))
        return torch.cat(parts, dim=self._dim)
