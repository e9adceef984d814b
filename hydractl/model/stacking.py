"""Weights of all members, stacked in one tensor, so that one batched product serves all members.

This is for modules whose weights every member has for itself. On a GPU a product of few rows takes no longer to compute
than to launch, and one product for all members is launched once.

Stacks are cached from run to run. A cached stack is only valid while the parameters are still those from which it was
made. A run of a tower checks this once for all its modules (:class:`StacksOfTower`); a module that runs by itself, or
with gradients, stacks its weights in each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

PADDED = 3 / 2
"""How many heads may be computed for each real head, at most, if members have different numbers of heads.

At this bound, two members with 12 and 4 heads of 12 in two sites and all else in common take 1.08 instead of 1.16 times
the time of the single model on an H200 in bfloat16 at batch 4, and hardly less at batch 128
(docs/numbers/gpu-cost.md).

With more, each member has products of its own. torch.nn.functional.grouped_mm would need no heads of zeros, but it adds
no bias, is one kernel for bfloat16 on GPUs of compute capability 9.0 and 10.0 only, and would need weights and
activations in an order of their own, to save four operators of eight in such a block of two members.
"""


class StackCache:
    """Stacks one weight of all members to ``[M, ...]``, padded with zeros, and caches the result.

    The parameters become views of a stack that is cached, so that no weight is held twice and writing to a parameter
    also changes the stack. If members take parts of a parameter they share, the parameters cannot become views. Then
    the stack is a copy. :class:`StacksOfTower` tells when it must be made again.

    Attributes:
        name: the name of the parameter in its owner, e.g. ``weight``.
        owners: for each member, the module that holds the parameter.
        parts: a function for each member that takes its part out of the parameter; None means all of it.
        cached: the cached stack ``[M, ...]``, or None; it may be out of date.
    """

    def __init__(
        self, name: str, owners: Sequence[nn.Module], parts: Sequence[Callable[[Tensor], Tensor]] | None = None
    ) -> None:
        self.name = name
        self.owners = owners
        self.parts = parts
        self.cached: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "cached": None}  # a copied or unpickled cache belongs to other parameters

    @property
    def possible(self) -> bool:
        """Whether the stack can be cached. It cannot if a weight is computed in each call instead of stored (LoRA)."""
        return all(owner._parameters.get(self.name) is not None for owner in self.owners)

    def parameters(self) -> list[Tensor]:
        """Return the parameter of each member."""
        return [getattr(owner, self.name) for owner in self.owners]

    def forget(self) -> None:
        """Drop the cached stack, so that the next call makes a new one."""
        self.cached = None

    def stacked(self, weights: Sequence[Tensor]) -> Tensor:
        """Return the weights of all members, which are its parameters or computed from them, as one ``[M, ...]``.

        The stack is a function of the weights, through which gradients flow. Only a compiled graph without gradients
        uses what is cached: it can compare neither addresses nor versions, so it does not check whether that fits.
        """
        if self.parts is None and _are_one(weights):
            return _expanded(weights)
        needs_gradients = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        if torch.compiler.is_compiling() and self.cached is not None and not needs_gradients:
            return self.cached
        return _stacked(weights, self.parts)

    def make(self) -> tuple[Tensor, bool]:
        """Stack the parameters, and cache the result in place of an earlier one; see :func:`_make_stack`."""
        self.cached, is_copy = _make_stack(self.parameters(), self.parts)
        return self.cached, is_copy


_stacking_lock = threading.Lock()
"""Held while weights move to their place in a stack, so that only one of several threads moves them."""


def _make_stack(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None) -> tuple[Tensor, bool]:
    """Return the weights of all members as one tensor ``[M, ...]``, padded with zeros, and whether it is a copy.

    =======================================  ======================  ==================================
    the members' weights                     the stack               a later write to a parameter
    =======================================  ======================  ==================================
    one parameter that all share             a view of it            shows in the stack
    a parameter of its own for each          new; they become views  shows in the stack
    parts of parameters, or some share one   a copy                  does not, so versions are compared
    =======================================  ======================  ==================================

    Args:
        weights: the parameter of each member.
        parts: a function for each member that takes its part out of the parameter; None means all of it.
    """
    # Leave inference mode: a parameter that becomes a tensor of that mode could never have gradients again.
    with torch.inference_mode(False), torch.no_grad():
        # All members share one parameter: the stack is an expanded view of it.
        if parts is None and _are_one(weights):
            return _expanded(weights), False

        # Every member has a parameter of its own: move each into the stack. It becomes a view without the padding.
        stack = _stacked(weights, parts)
        are_distinct = len({id(weight) for weight in weights}) == len(weights)
        if parts is None and are_distinct:
            for weight, padded_weight in zip(weights, stack, strict=True):
                without_padding = tuple(slice(size) for size in weight.shape)
                weight.data = padded_weight[without_padding]
            return stack, False

        # Members take only parts of parameters, or some of them share one.
        return stack, True


def _are_one(weights: Sequence[Tensor]) -> bool:
    """Return whether all members have the same parameter object."""
    first = weights[0]
    return all(weight is first for weight in weights)


def _expanded(weights: Sequence[Tensor]) -> Tensor:
    """Return a parameter that all members share as ``[M, ...]``, without a copy."""
    first = weights[0]
    return first.expand(len(weights), *first.shape)


def addresses_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return the memory address of each parameter's data."""
    return list(map(Tensor.data_ptr, parameters))


def versions_of(parameters: Sequence[Tensor]) -> list[int]:
    """Return how often each parameter has been written to in place."""
    return [times_written(parameter) for parameter in parameters]


def times_written(tensor: Tensor) -> int:
    """Return how often a tensor has been written to in place. Tensors of inference mode do not count it; return 0."""
    try:
        return tensor._version
    except RuntimeError:  # is_inference() would not do: it is False for a parameter whose data came from that mode
        return 0


def _stacked(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None) -> Tensor:
    """Return each member's part of its weight, all padded with zeros to one shape, in one tensor ``[M, ...]``.

    Weights ``[4, 8]`` and ``[6, 8]`` give ``[2, 6, 8]``.
    """
    tensors = list(weights)
    if parts is not None:
        tensors = [part(weight) for part, weight in zip(parts, weights, strict=True)]
    sizes_by_dimension = zip(*[tensor.shape for tensor in tensors], strict=True)
    largest = [max(sizes) for sizes in sizes_by_dimension]
    return torch.stack([_padded(tensor, largest) for tensor in tensors])


def _padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor padded to ``shape`` with zeros at the end of each dimension."""
    missing = [wanted - size for wanted, size in zip(shape, tensor.shape, strict=True)]
    if not any(missing):
        return tensor
    padding = []
    for zeros_at_end in reversed(missing):  # pad() takes pairs (at the start, at the end), last dimension first
        padding += [0, zeros_at_end]
    return F.pad(tensor, padding)


# --- linear layers and norms of all members ---------------------------------------------------------------------------


class MembersLinear:
    """The linear layers of all members at one place, computed as one batched product.

    Args:
        weight: ``[M, m, n]``.
        bias: ``[M, m]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self._transposed = weight.mT  # [M, n, m]
        self._bias_row = None if bias is None else bias[:, None]  # [M, 1, m]
        self._is_compiled = torch.compiler.is_compiling()  # asked once: a graph makes its layers anew, and keeps none

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layers to ``x``, ``[M * B, ..., n]`` or ``[M, B, ..., n]``; return ``[M * B, ..., m]`` or alike."""
        members, outputs, inputs = self.weight.shape
        rows = x.reshape(members, -1, inputs)  # [M * B, ..., n] -> [M, rows per member, n]
        if self._bias_row is None:
            products = torch.bmm(rows, self._transposed)
        elif self._is_compiled:
            # A compiler adds the bias where the products are read next, but leaves a baddbmm as it is, see below.
            products = torch.bmm(rows, self._transposed) + self._bias_row
        else:
            # This first fills the output with the bias: of N numbers it writes 2 N and reads N. Product and addition
            # apart move as much with one more operator. An addmm for each member writes only N on a GPU, but launches
            # as many products as there are members; on a CPU it takes 0.90 to 1.06 of the processor time at the widths
            # of ViT-B/16 and 8 tokens or more, and up to 3.8 times with less to compute.
            products = torch.baddbmm(self._bias_row, rows, self._transposed)
        return products.reshape(*x.shape[:-1], outputs)  # [M, rows per member, m] -> [M * B, ..., m]


class MembersLayerNorm:
    """The layer norms of all members at one place, over the last dimension.

    Args:
        weight: ``[M, n]``.
        bias: ``[M, n]`` or None.
        eps: the epsilon of the norms.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._members = weight.shape[0]
        self._weight_row = weight[:, None]  # [M, 1, n]
        self._bias_row = None if bias is None else bias[:, None]  # [M, 1, n]
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the norms to ``x``, member-major ``[M * B, ..., n]``; return the same shape."""
        width = x.shape[-1]
        normalised = F.layer_norm(x, (width,), eps=self._eps)  # the same for every member
        rows = normalised.reshape(self._members, -1, width)  # [M * B, ..., n] -> [M, rows per member, n]
        if self._bias_row is None:
            scaled = rows * self._weight_row
        else:
            scaled = torch.addcmul(self._bias_row, rows, self._weight_row)
        return scaled.reshape_as(x)


# --- the stacks of one tower ------------------------------------------------------------------------------------------


class StackingModule(Protocol):
    """A module whose weights can be stacked over all members."""

    def stack_caches(self) -> Mapping[str, StackCache]:
        """Return the stacks that the module can use, by names of its choice; empty if it cannot use any."""

    def batched_weights(self, stacks: Mapping[str, Tensor]) -> Any:
        """Return an object that computes with what these caches hold, given by the names of :meth:`stack_caches`."""


class StacksOfTower:
    """The stacks that the modules of one tower cache from run to run.

    At the beginning of a run, one check tells for all of them whether they still fit the parameters.
    """

    def __init__(self, modules: Sequence[StackingModule]) -> None:
        self._modules = list(modules)
        self._snapshot: _StackSnapshot | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_modules": self._modules, "_snapshot": None}  # a copied tower has other parameters

    def checked(self) -> Mapping[Any, Any]:
        """Return the stacked weights of all members for each module that can use them, up to date.

        They are those of the last call unless a weight has changed since. A module without stacks is left out.
        """
        snapshot = self._snapshot
        if snapshot is not None and snapshot.is_current():
            return snapshot.weights_by_module
        with _stacking_lock:
            snapshot = self._snapshot
            if snapshot is None or not snapshot.is_current():  # else another thread has made it meanwhile
                snapshot = self._make_snapshot()
                self._snapshot = snapshot
        return snapshot.weights_by_module

    def _make_snapshot(self) -> _StackSnapshot:
        """Stack the weights of all modules that can use stacks."""
        snapshot = _StackSnapshot()
        for module in self._modules:
            caches = module.stack_caches()
            if not caches or not all(cache.possible for cache in caches.values()):
                continue
            stacks = {name: snapshot.stack_of(cache) for name, cache in caches.items()}
            # Leave inference mode: the views that are made here also serve later runs with gradients.
            with torch.inference_mode(False), torch.no_grad():
                snapshot.weights_by_module[module] = module.batched_weights(stacks)
        return snapshot


class _StackSnapshot:
    """All stacks of a tower and the state of the parameters they were made from, to see later whether anything changed.

    Everything that is compared in each run is in flat lists, which ``map`` walks in C, because a run waits for this
    check.

    Attributes:
        weights_by_module: what :meth:`StacksOfTower.checked` returns.
    """

    def __init__(self) -> None:
        self.weights_by_module: dict[Any, Any] = {}

        # One entry per stack: its cache, and the stack that the cache held.
        self._caches: list[StackCache] = []
        self._stacks: list[Tensor] = []

        # One entry per parameter: its owner's parameters by name, its name, the parameter itself, and its address.
        self._owners: list[dict[str, nn.Parameter | None]] = []
        self._names: list[str] = []
        self._parameters: list[Tensor] = []
        self._addresses: list[int] = []

        # One entry per parameter that was copied to a stack: the parameter, how often it had been written to, and its
        # data. Holding these ensures that no other data get their address.
        self._copied: list[Tensor] = []
        self._versions: list[int] = []
        self._data: list[Tensor] = []

    def stack_of(self, cache: StackCache) -> Tensor:
        """Make the stack of a cache, and record everything that :meth:`is_current` compares of it."""
        parameters = cache.parameters()
        stack, is_copy = cache.make()
        self._caches.append(cache)
        self._stacks.append(stack)
        for owner in cache.owners:
            self._owners.append(owner._parameters)
            self._names.append(cache.name)
        self._parameters += parameters
        self._addresses += addresses_of(parameters)
        if is_copy:  # it does not see what is written to the parameters
            self._copied += parameters
            self._versions += versions_of(parameters)
            self._data += [parameter.detach() for parameter in parameters]
        return stack

    def is_current(self) -> bool:
        """Return whether all stacks are still cached and up to date."""
        # `map` over parallel lists compares them pair by pair without a loop in Python, because this runs before every
        # run of a tower. No cache has forgotten or replaced its stack.
        if not all(map(is_, map(_stack_in_cache, self._caches), self._stacks)):
            return False

        # Every owner still has the same parameter objects.
        present_parameters = list(map(dict.get, self._owners, self._names))
        if not all(map(is_, present_parameters, self._parameters)):
            return False

        # No parameter was moved.
        if addresses_of(self._parameters) != self._addresses:
            return False

        # No parameter that was copied has been written to since.
        return not self._copied or versions_of(self._copied) == self._versions


_stack_in_cache = attrgetter("cached")


# --- modules of all members -------------------------------------------------------------------------------------------


class PerMember(nn.Module):
    """One module per member, for a place in the network that was not merged; activations are ``[M * B, ...]``.

    Linear layers, and layer norms over the last dimension, can run for all members at once, as one batched product.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self._each = list(modules)  # the same modules again, because iterating over a ModuleList is slow
        self._stacks: dict[str, StackCache] = {}  # empty for modules that run one after another
        if len(modules) > 1 and _runs_as_one_product(modules[0]):
            self._stacks["weight"] = StackCache("weight", self._each)
            if getattr(modules[0], "bias", None) is not None:
                self._stacks["bias"] = StackCache("bias", self._each)

    def _apply(self, fn: Any, recurse: bool = True) -> PerMember:
        for cache in self._stacks.values():
            cache.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there

    def stack(self, context: RunContext) -> None:
        """Stack the weights now, if batched products are wanted; see :meth:`HeadAttention.stack`."""
        if self._stacks and context.batches(next(self.parameters()).device):
            for cache in self._stacks.values():
                cache.make()

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m.

        Args:
            x: ``[M * B, ...]``, or ``[B, ...]`` in a run of one member (``context.member``), whose module is applied.
        """
        context = context_of_run()
        if context.member is not None:
            return self._each[context.member](x)

        # One product for all members, with stacked weights that were checked for the whole run, or are stacked here.
        # It is None for modules that cannot be stacked, and where members are to run one after another.
        product = context.stacks_of(self)
        if product is None and self._stacks and context.batches(x.device):
            product = self._product()
        if product is not None:
            return product(x)

        # One module after another.
        parts = apart(x, len(self._each))
        return torch.cat([module(part) for module, part in zip(self._each, parts, strict=True)])

    def _product(self) -> MembersLinear | MembersLayerNorm:
        """Return a layer that applies all members' modules at once, with their present weights."""
        return self.batched_weights({name: cache.stacked(cache.parameters()) for name, cache in self._stacks.items()})

    def stack_caches(self) -> Mapping[str, StackCache]:
        """Return the stacks of weight and bias; none if the modules cannot run as one product."""
        return self._stacks

    def batched_weights(self, stacks: Mapping[str, Tensor]) -> MembersLinear | MembersLayerNorm:
        """Return a layer that applies all members' modules at once, with these stacked weights."""
        weight = stacks["weight"]
        bias = stacks.get("bias")
        first = self._each[0]
        if isinstance(first, nn.LayerNorm):
            return MembersLayerNorm(weight, bias, first.eps)
        return MembersLinear(weight, bias)


def _runs_as_one_product(module: nn.Module) -> bool:
    """Return whether modules like this one can run as one product for all members: linear layers and layer norms."""
    if isinstance(module, nn.LayerNorm):  # includes the subclasses that libraries define
        over_last_dimension = len(module.normalized_shape) == 1
        return over_last_dimension and module.weight is not None
    return type(module) is nn.Linear


class Scale(nn.Module):
    """Multiplies by a vector ``[d_model]``, as a block does that holds the vector itself: ``gamma * x``."""

    def __init__(self, vector: nn.Parameter) -> None:
        super().__init__()
        self.vector = vector

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` times the vector, ``[..., d_model]``."""
        return self.vector * x


class StackedProjections:
    """The projections of all members at one site (an attention block), computed as batched products.

    If members have different numbers of heads, the shorter ones are padded with heads of zeros, whose output is zero.

    Args:
        members: the projections of each member.
        pooled: whether the heads of all members are in one bank, which attends once for all members. Then only the
            output projection is computed here.

    Attributes:
        caches: the stack of each weight that the members have, by name (``qkv``, ``out``, ...).
        heads, head_dim: the number of heads of each member including heads of zeros, and their width.
        possible: whether batched products give the same result as the members one by one. Members need heads, not too
            different numbers of them, with keys of their own and no relative terms.
    """

    def __init__(self, members: Sequence[MemberProjections], *, pooled: bool = False) -> None:
        """Find out which part of the weights of its bank each member uses; nothing is stacked yet."""
        self._members = list(members)
        self._banks = [member.bank for member in members]
        self._pooled = pooled
        self._normed = any(bank.normed for bank in self._banks)

        # The shape of the batched products.
        self.heads = max(member.heads for member in members)
        self.head_dim = members[0].head_dim
        self._all_heads_of_banks = all(member.heads == member.bank.heads for member in members)
        self.possible = self._is_possible(pooled)

        # The cached stack of each weight, and the part of the weight that each member uses. Heads lie along dimension 0
        # of `qkv` (3 * head_dim rows each) and along dimension 1 of `out` (head_dim columns each).
        parts_of_rows = self._parts_of_members(0, 3 * self.head_dim)
        parts = {"out": self._parts_of_members(1, self.head_dim), "out_bias": None}
        if not pooled:
            parts |= {"qkv": parts_of_rows, "qkv_bias": parts_of_rows}
        self.caches: dict[str, StackCache] = {}
        for name, parts_of_members in parts.items():
            if getattr(self._banks[0], name) is not None:
                self.caches[name] = StackCache(name, self._banks, parts_of_members)
        self._cached_indices: Tensor | None = None

    def _parts_of_members(self, dim: int, width: int) -> list[Callable[[Tensor], Tensor]] | None:
        """Return functions that take each member's heads out of a weight; None if every member uses all heads.

        Args:
            dim: the dimension of the weight along which the heads lie.
            width: the size of one head along this dimension.
        """
        if self._all_heads_of_banks:
            return None
        return [partial(_part_of_member, member.runs, dim, width) for member in self._members]

    def _is_possible(self, pooled: bool) -> bool:
        """Return whether one batched product gives what the members give, without too many heads of zeros.

        Members with fewer heads than the largest are padded with heads of zeros.
        """
        members = self._members
        if len(members) == 1 or self.heads == 0:
            return False

        # Limit the share of heads of zeros: members with 6 and 2 heads compute 12 for 8 real ones, a ratio of 1.5. In a
        # pool (one attention with the heads of all members) they only cost in the output projection, a small part of
        # the work, so there any share is accepted: the ratio is never above the number of members.
        most_padded = len(members) if pooled else PADDED
        real_heads = sum(member.heads for member in members)
        computed_heads = len(members) * self.heads
        if computed_heads > most_padded * real_heads:
            return False

        # Heads that share keys and values have fewer rows of these than of queries; only a pool stacks none of them.
        shares_keys = members[0].bank.key_heads is not None
        return pooled or not shares_keys

    def forget(self) -> None:
        """Drop everything that is cached, because the weights may have changed in ways that cannot be seen."""
        self._cached_indices = None
        for cache in self.caches.values():
            cache.forget()

    def weights(self) -> StackedWeights:
        """Return the present weights of all members, stacked; a pool has only those of the output projection."""
        stacks = {}
        for name, cache in self.caches.items():
            weights: list[Any] = cache.parameters()
            if name == "qkv_bias":
                weights = [bank.trained_bias() for bank in self._banks]
            stacks[name] = cache.stacked(weights)
        return self.weights_of(stacks)

    def weights_of(self, stacks: Mapping[str, Tensor]) -> StackedWeights:
        """Return the weights of all members from their stacks, by the names of :attr:`caches`."""
        qkv = None
        if "qkv" in stacks:
            qkv = MembersLinear(stacks["qkv"], stacks.get("qkv_bias"))
        output = MembersLinear(stacks["out"], stacks.get("out_bias"))
        return StackedWeights(self, qkv, output)

    def normed(self, heads: Tensor, side: str) -> Tensor:
        """Return normalised queries or keys, each member's by its own norm; unchanged if the bank has no norms.

        Args:
            heads: ``[M * B, heads, T, head_dim]``.
            side: ``q_norm`` or ``k_norm``.
        """
        if not self._normed:
            return heads
        norms: list[nn.Module] = [getattr(bank, side) for bank in self._banks]
        if all(isinstance(norm, nn.Identity) for norm in norms):
            return heads
        parts = heads.unflatten(0, (len(norms), -1)).unbind(0)  # for each member [B, heads, T, head_dim]
        return torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)])

    def take(self, attended: Tensor) -> Tensor:
        """Select each member's heads from the attended heads of the bank, ``[B, heads of the bank, q, head_dim]``.

        Returns:
            ``[M, B, heads, q, head_dim]``.
        """
        # Attention leaves the heads of a token side by side. Kept so, selecting them is the only copy: the output
        # projection reads what is returned as it lies, and would copy heads that lie one behind another.
        by_token = attended.transpose(1, 2)  # [B, q, heads of the bank, head_dim]
        selected = by_token.index_select(2, self._indices_in_bank(attended.device))  # [B, q, M * heads, head_dim]
        by_member = selected.unflatten(2, (-1, self.heads))  # [B, q, M, heads, head_dim]
        return by_member.permute(2, 0, 3, 1, 4)  # [M, B, heads, q, head_dim]

    def make(self) -> None:
        """Make everything that is cached from call to call."""
        for cache in self.caches.values():
            cache.make()
        if self._pooled:
            self._indices_in_bank(self._banks[0].out.device)

    def _indices_in_bank(self, device: torch.device) -> Tensor:
        """Return the index in the common bank of each member's heads, int64 ``[M * heads]``, member after member.

        A member with fewer heads than ``heads`` is filled up with the index 0: any head will do, as the output
        projection multiplies these by zeros. E.g. heads 1, 2 and head 3 with ``heads`` = 2 give 1, 2, 3, 0.
        """
        cached = self._cached_indices  # read once, because another thread may forget it
        if cached is not None and cached.device == device:
            return cached
        indices: list[int] = []
        for member in self._members:
            for run in member.runs:
                indices.extend(range(run.start, run.stop))
            heads_of_zeros = self.heads - member.heads
            indices.extend([0] * heads_of_zeros)
        if torch.compiler.is_compiling():
            return torch.tensor(indices, device=device)
        with torch.inference_mode(False):  # the tensor also serves later runs with gradients
            index = torch.tensor(indices, device=device)
        self._cached_indices = index
        return index


class StackedWeights:
    """The stacked weights of all members at one site (an attention block), for one run or for many.

    Args:
        projections: the projections whose weights these are.
        qkv: computes queries, keys and values, in the order of :class:`hydractl.model.projections.Packing`; None for a
            pool, whose heads have attended already.
        out: projects to the residual stream.
    """

    def __init__(self, projections: StackedProjections, qkv: MembersLinear | None, out: MembersLinear) -> None:
        self.projections = projections
        self._qkv = qkv
        self._out = out

    def _rows(self, wanted: slice) -> MembersLinear:
        """Return a copy of the layer that computes the wanted ones of queries, keys and values."""
        assert self._qkv is not None, "a pool projects nothing"
        weight, bias = wanted_rows(self._qkv.weight, self._qkv.bias, wanted, self.projections.head_dim)
        return MembersLinear(weight, bias)

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of the tokens of all members, by one product or two for all members.

        Args:
            x: the query tokens, ``[M * B, q, d_model]``.
            memory: the key and value tokens, ``[M * B, T, d_model]``; None means ``x``.

        Returns:
            Queries ``[M * B, heads, q, head_dim]``, keys and values ``[M * B, heads, T, head_dim]``.
        """
        projections = self.projections
        assert self._qkv is not None, "a pool projects nothing"
        # If queries, keys and values come from the same tokens, one product computes all three. Otherwise two products.
        if memory is None:
            q, k, v = split_heads(self._qkv(x), 3, projections.head_dim)
        else:
            (q,) = split_heads(self._rows(QUERIES)(x), 1, projections.head_dim)
            k, v = split_heads(self._rows(KEYS_AND_VALUES)(memory), 2, projections.head_dim)
        return projections.normed(q, "q_norm"), projections.normed(k, "k_norm"), v

    def output(self, attended: Tensor) -> Tensor:
        """Project attended heads to the residual stream.

        Args:
            attended: ``[M * B, heads, q, head_dim]`` or ``[M, B, heads, q, head_dim]``.

        Returns:
            ``[M * B, q, d_model]`` or ``[M, B, q, d_model]``.
        """
        rows = attended.transpose(-3, -2).flatten(-2)  # [..., heads, q, head_dim] -> [..., q, heads * head_dim]
        return self._out(rows)


def _part_of_member(runs: Sequence[slice], dim: int, width: int, weight: Tensor) -> Tensor:
    """Return the heads of one member out of a weight of its bank, concatenated from its runs of neighbours.

    Args:
        runs: the heads, as slices of those of the bank; none for a member without heads.
        dim: the dimension of the weight along which the heads lie.
        width: the size of one head along ``dim``.
        weight: the weight.
    """
    parts = [weight.narrow(dim, 0, 0)]  # no heads; the only part of a member without heads
    for run in runs:
        heads = run.stop - run.start
        parts.append(weight.narrow(dim, run.start * width, heads * width))
    return torch.cat(parts, dim=dim)
