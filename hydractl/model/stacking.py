"""What every member has for itself, run for all of them: weights that lie one behind the other in memory, so that one
batched product serves all members.

On a GPU a product of few rows takes no longer to compute than to launch, and one for all members is launched once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.context import RunContext, apart, context_of_run
from hydractl.model.projections import (
    ALL_THREE,
    KEYS_AND_VALUES,
    QUERIES,
    MemberProjections,
    project_all,
    project_wanted,
)

PADDED = 4 / 3
"""The most heads that may be computed for each that is there, where members have unequal numbers of them."""


class Stack:
    """One weight of every member as one tensor ``[M, ...]``, with zeros behind those that are smaller.

    It is made when it is first asked for without gradients, and the parameters then become views of it: no weight is
    held twice. What is written into them in place is in it at once; where one was moved or replaced, which its address
    tells, it is made anew. With gradients it is made for each call, as a function of the parameters.

    Members that take parts of parameters they have in common cannot be views: then it is a copy, made anew when a
    parameter was written to.
    """

    def __init__(self) -> None:
        self._kept: _KeptStack | None = None

    def __reduce__(self) -> tuple[type[Stack], tuple[()]]:
        return Stack, ()  # a copy belongs to other parameters, so it begins empty

    def forget(self) -> None:
        """Drop the stack, to make it anew when it is next asked for."""
        self._kept = None

    def stacked(self, weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None = None) -> Tensor:
        """Return the weights of all members as one tensor ``[M, ...]``.

        Args:
            weights: the parameter of each member.
            parts: what each takes of it; None: all of it.
        """
        first = weights[0]
        if parts is None and all(weight is first for weight in weights):
            return first.expand(len(weights), *first.shape)
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            return _stacked(weights, parts)
        kept = self._kept
        if torch.compiler.is_compiling():  # a graph knows neither addresses nor versions
            return _stacked(weights, parts) if kept is None else kept.stack
        distinct = len({id(weight) for weight in weights}) == len(weights)
        views = parts is None and distinct
        if kept is None or kept.key != _key(weights, views):
            with _moving:
                kept = self._kept  # another thread may have made it meanwhile
                if kept is None or kept.key != _key(weights, views):
                    kept = self._make(weights, parts, views)
                    self._kept = kept
        return kept.stack

    @staticmethod
    def _make(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None, views: bool) -> _KeptStack:
        """Stack the weights and, where asked, make the parameters views of the stack."""
        # Outside inference mode: a parameter must not become a tensor of which there are no gradients.
        with torch.inference_mode(False), torch.no_grad():
            stack = _stacked(weights, parts)
            if views:
                for weight, place in zip(weights, stack, strict=True):
                    unpadded = tuple(slice(size) for size in weight.shape)
                    weight.data = place[unpadded]
        return _KeptStack(_key(weights, views), stack)


class _KeptStack(NamedTuple):
    """A stack, and by :func:`_key` the parameters that it was made of."""

    key: tuple[object, ...]
    stack: Tensor


_moving = threading.Lock()
"""Held while weights move to their place in a stack, so that only one of several threads moves them."""


def _key(weights: Sequence[Tensor], views: bool) -> tuple[object, ...]:
    """Return a key that tells whether a stack is still that of these parameters."""
    if views:
        return tuple(weight.data_ptr() for weight in weights)
    return tuple((weight.data_ptr(), times_written(weight)) for weight in weights)


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


class PerMember(nn.Module):
    """One module per member on member-major activations ``[M * B, ...]``: what is not merged.

    Linear layers, and layer norms over the last dimension, can run for all members at once, as one batched product.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self._weight = Stack()
        self._bias = Stack()
        self._stackable = len(modules) > 1 and _runs_as_one_product(modules[0])

    def _apply(self, fn: Any, recurse: bool = True) -> PerMember:
        self._weight.forget()
        self._bias.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there

    def stack(self, context: RunContext) -> None:
        """Stack the weights, see :class:`hydractl.model.attention.HeadAttention`."""
        if self._stackable and context.batches(next(self.parameters()).device):
            with torch.no_grad():
                self._weights()

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m, ``[M * B, ...]``; in the run of one member, its own to ``x``."""
        context = context_of_run()
        if context.member is not None:
            return self.members[context.member](x)
        as_one_product = self._stackable and context.batches(x.device)
        if not as_one_product:
            parts = apart(x, len(self.members))
            return torch.cat([module(part) for module, part in zip(self.members, parts, strict=True)])
        weight, bias = self._weights()
        first = self.members[0]
        if isinstance(first, nn.LayerNorm):
            return members_layer_norm(x, weight, bias, first.eps)
        return members_linear(x, weight, bias)

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        """Return the stacked weight ``[M, ...]`` and bias of all members."""
        modules: list[Any] = list(self.members)
        bias = None
        if modules[0].bias is not None:
            bias = self._bias.stacked([module.bias for module in modules])
        weight = self._weight.stacked([module.weight for module in modules])
        return weight, bias


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
        heads: of each member, those of zeros included.
        possible: whether this gives what the members give: they have heads, not too unequal numbers of them, no gates
            and no relative terms; where heads share keys, each in the same way.
    """

    def __init__(self, members: Sequence[MemberProjections], *, pooled: bool = False) -> None:
        self._members = list(members)
        self.heads = max(member.heads for member in members)
        self.head_dim = members[0].head_dim
        self._all_heads_of_banks = all(member.heads == member.bank.heads for member in members)
        self._shares_keys = members[0].bank.key_heads is not None
        self.possible = self._is_possible(pooled)
        self._stacks = {name: Stack() for name in ("qkv", "qkv_bias", "out", "out_bias")}
        self._index: Tensor | None = None

    def _is_possible(self, pooled: bool) -> bool:
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
        if self._shares_keys and not pooled:  # a head of zeros would share keys with no other head
            ways_of_sharing = {member.bank.key_heads for member in members}
            return self._all_heads_of_banks and len(ways_of_sharing) == 1
        return True

    def forget(self) -> None:
        """Drop what is kept: the weights may have changed unseen."""
        self._index = None
        for stack in self._stacks.values():
            stack.forget()

    def make(self, pooled: bool) -> None:
        """Make everything that is kept from call to call."""
        if not pooled:
            self._input_weights()
        self._output_weights()
        if pooled:
            self._places(self._members[0].bank.out.device)

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [M * B, q, d_model]`` to queries, ``memory [M * B, T, d_model]`` (None: x) to keys and values.

        Returns:
            ``[M * B, heads, q, head_dim]`` and twice ``[M * B, heads, T, head_dim]``.
        """
        if self._shares_keys:
            return self._project_shared(x, x if memory is None else memory)
        if memory is None:
            q, k, v = self._linear(x, ALL_THREE)
        else:
            (q,) = self._linear(x, QUERIES)
            k, v = self._linear(memory, KEYS_AND_VALUES)
        return self._normed(q, "q_norm"), self._normed(k, "k_norm"), v

    def _project_shared(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project as :meth:`project`, where heads share keys and values: these are repeated for each head."""
        weight, bias = self._input_weights()
        query_rows = self.heads * self.head_dim
        query_weight = weight[:, :query_rows]  # [M, heads * head_dim, d_model]
        key_weight = weight[:, query_rows:]  # [M, shared heads * 2 * head_dim, d_model]
        query_bias = None
        key_bias = None
        if bias is not None:
            query_bias = bias[:, :query_rows]
            key_bias = bias[:, query_rows:]
        (q,) = project_all(members_linear, x, query_weight, query_bias, 1, self.head_dim)
        k, v = project_all(members_linear, memory, key_weight, key_bias, 2, self.head_dim)
        q = self._normed(q, "q_norm")
        k = self._normed(k, "k_norm")
        for_each_head = self._members[0].for_each_head
        return q, for_each_head(k), for_each_head(v)

    def _linear(self, x: Tensor, wanted: slice) -> Sequence[Tensor]:
        """Compute the wanted ones of queries, keys and values, ``[M * B, heads, T, head_dim]`` each."""
        weight, bias = self._input_weights()
        return project_wanted(members_linear, x, weight, bias, wanted, self.head_dim)

    def _normed(self, heads: Tensor, side: str) -> Tensor:
        """Normalise each head ``[M * B, heads, T, head_dim]`` by the norm of its member."""
        norms: list[nn.Module] = [getattr(member.bank, side) for member in self._members]
        if all(isinstance(norm, nn.Identity) for norm in norms):
            return heads
        parts = heads.unflatten(0, (len(norms), -1)).unbind(0)
        return torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)])

    def take(self, attended: Tensor) -> Tensor:
        """Select each member's heads from those of the bank, ``[B, heads of the bank, q, head_dim]``.

        Returns:
            ``[M * B, heads, q, head_dim]``.
        """
        selected = attended.index_select(1, self._places(attended.device))  # [B, M * heads, q, head_dim]
        by_member = selected.unflatten(1, (-1, self.heads)).transpose(0, 1)  # [M, B, heads, q, head_dim]
        return by_member.flatten(0, 1)

    def output(self, attended: Tensor) -> Tensor:
        """Project attended heads ``[M * B, heads, q, head_dim]`` to the residual stream, ``[M * B, q, d_model]``."""
        rows = attended.transpose(1, 2).flatten(2)  # [M * B, h, q, dk] -> [M * B, q, h * dk]
        weight, bias = self._output_weights()
        return members_linear(rows, weight, bias)

    def _input_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return ``qkv`` and its bias of all members."""
        width = 3 * self.head_dim
        weight = self._weights("qkv", 0, width)
        bias = self._weights("qkv_bias", 0, width)
        return weight, bias

    def _output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return the output projection and its bias of all members."""
        weight = self._weights("out", 1, self.head_dim)
        bias = self._weights("out_bias", 0, None)
        return weight, bias

    def _weights(self, name: str, dim: int, width: int | None) -> Any:
        """Return one weight of all members.

        Args:
            name: of the weight.
            dim: the dimension along which its heads lie.
            width: what each head has of it along ``dim``; None: it belongs to no head.
        """
        banks = [member.bank for member in self._members]
        weights: list[Any]
        if name == "qkv_bias":
            weights = [bank.trained_bias() for bank in banks]
        else:
            weights = [getattr(bank, name) for bank in banks]
        if weights[0] is None:
            return None
        if width is None or self._all_heads_of_banks:
            return self._stacks[name].stacked(weights)
        parts = [_part_of_member(member, dim, width) for member in self._members]
        return self._stacks[name].stacked(weights, parts)

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
        index = torch.tensor(places, device=device)
        if not torch.compiler.is_compiling():
            self._index = index
        return index


def _part_of_member(member: MemberProjections, dim: int, width: int) -> Callable[[Tensor], Tensor]:
    """Return the function that takes the heads of one member out of a weight of its bank.

    Args:
        member: has some of the heads of the bank.
        dim: the dimension of the weight along which heads lie.
        width: what each head has of it along ``dim``.
    """
    runs = member.runs or [slice(0, 0)]  # a member without heads has an empty part

    def part_of_weight(weight: Tensor) -> Tensor:
        parts = []
        for run in runs:
            heads = run.stop - run.start
            parts.append(weight.narrow(dim, run.start * width, heads * width))
        return torch.cat(parts, dim=dim)

    return part_of_weight


def members_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute one linear layer of every member in one product.

    Args:
        x: member-major, ``[M * B, ..., n]``.
        weight: ``[M, m, n]``.
        bias: ``[M, m]`` or None.

    Returns:
        ``[M * B, ..., m]``.
    """
    rows = x.reshape(weight.shape[0], -1, x.shape[-1])  # [M * B, ..., n] -> [M, B * ..., n]
    if bias is None:
        products = torch.bmm(rows, weight.mT)
    else:
        products = torch.baddbmm(bias[:, None], rows, weight.mT)
    return products.reshape(*x.shape[:-1], weight.shape[1])


def members_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply each member's layer norm over the last dimension, ``x`` member-major, weight and bias ``[M, n]``."""
    normalised = F.layer_norm(x, x.shape[-1:], eps=eps)
    rows = normalised.reshape(weight.shape[0], -1, x.shape[-1])  # [M * B, ..., n] -> [M, B * ..., n]
    if bias is None:
        scaled = rows * weight[:, None]
    else:
        scaled = torch.addcmul(bias[:, None], rows, weight[:, None])
    return scaled.reshape_as(x)
