"""What every member has for itself, run for all of them: weights that lie one behind the other in memory, so that one
batched product serves all members.

On a GPU a product of few rows takes no longer to compute than to launch, and one for all members is launched once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.context import RunContext, apart, context_of_run
from hydractl.model.projections import MemberProjections, projected, unpacked

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
        self._kept: tuple[tuple[object, ...], Tensor] | None = None  # with the key of the parameters it was made of

    def __reduce__(self) -> tuple[type[Stack], tuple[()]]:
        return Stack, ()  # a copy is one of other parameters

    def forget(self) -> None:
        """Drop the stack, to make it anew when it is next asked for."""
        self._kept = None

    def of(self, weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None = None) -> Tensor:
        """Return the weights of all members.

        Args:
            weights: the parameter of each member.
            parts: what each takes of it; None: all of it.
        """
        first, kept = weights[0], self._kept
        if parts is None and all(weight is first for weight in weights):
            return first.expand(len(weights), *first.shape)
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            return _stacked(weights, parts)
        if torch.compiler.is_compiling():  # addresses and versions are none of a graph
            return _stacked(weights, parts) if kept is None else kept[1]
        views = parts is None and len({id(weight) for weight in weights}) == len(weights)
        if kept is None or kept[0] != _key(weights, views):
            with _moving:
                kept = self._kept
                if kept is None or kept[0] != _key(weights, views):
                    self._kept = kept = self._make(weights, parts, views)
        return kept[1]

    @staticmethod
    def _make(
        weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None, views: bool
    ) -> tuple[tuple[object, ...], Tensor]:
        # Outside inference mode: a parameter must not become a tensor of which there are no gradients.
        with torch.inference_mode(False), torch.no_grad():
            stack = _stacked(weights, parts)
            for weight, place in zip(weights, stack, strict=True) if views else ():
                weight.data = place[tuple(slice(size) for size in weight.shape)]
        return _key(weights, views), stack


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
    """Stack the weights, all of one shape, with zeros behind those that are smaller."""
    each = list(weights) if parts is None else [part(w) for part, w in zip(parts, weights, strict=True)]
    largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in each), strict=True)]
    return torch.stack([_padded(tensor, largest) for tensor in each])


def _padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [most - size for most, size in zip(shape, tensor.shape, strict=True)]
    return F.pad(tensor, [n for size in reversed(missing) for n in (0, size)]) if any(missing) else tensor


class PerMember(nn.Module):
    """One module per member on member-major activations ``[M * B, ...]``: what is not merged.

    Linear layers, and layer norms over the last dimension, can run for all members at once.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self._weight, self._bias = Stack(), Stack()
        first = modules[0]
        one_dimension = isinstance(first, nn.LayerNorm) and len(first.normalized_shape) == 1
        self._possible = len(modules) > 1 and (
            type(first) is nn.Linear or (one_dimension and first.weight is not None)  # any library's layer norm
        )

    def _apply(self, fn: Any, recurse: bool = True) -> PerMember:
        self._weight.forget()
        self._bias.forget()
        return super()._apply(fn, recurse)

    def stack(self, context: RunContext) -> None:
        """Stack the weights, see :class:`hydractl.model.attention.HeadAttention`."""
        if self._possible and context.batches(next(self.parameters()).device):
            with torch.no_grad():
                self._weights()

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m."""
        context, first = context_of_run(), self.members[0]
        if context.member is not None:
            return self.members[context.member](x)
        if not (self._possible and context.batches(x.device)):
            parts = apart(x, len(self.members))
            return torch.cat([module(part) for module, part in zip(self.members, parts, strict=True)])
        if isinstance(first, nn.LayerNorm):
            return members_layer_norm(x, *self._weights(), first.eps)
        return members_linear(x, *self._weights())

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        each: list[Any] = list(self.members)
        bias = None if each[0].bias is None else self._bias.of([module.bias for module in each])
        return self._weight.of([module.weight for module in each]), bias


class PerMemberScale(nn.Module):
    """One vector per member, for a factor that the block of a library holds itself: ``gamma * x``, x member-major.

    Args:
        scales: ``[d_model]`` of each member.
    """

    def __init__(self, scales: Sequence[nn.Parameter]) -> None:
        super().__init__()
        for member, scale in enumerate(scales):  # its own: no other module of it would be called
            self.register_parameter(str(member), scale)

    def __mul__(self, x: Tensor) -> Tensor:
        """Scale ``x``, as a call does: the block multiplies by what it takes for a vector."""
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        """Scale the samples of member m, ``[M * B, T, d_model]``, by vector m."""
        scales, member = list(self.parameters()), context_of_run().member
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
        counts = [member.heads for member in members]
        self.heads, self.head_dim = max(counts), members[0].head_dim
        # What is pooled has heads of zeros in its output only, which is a small part of the work.
        most = len(counts) if pooled else PADDED
        self.possible = (
            len(counts) > 1
            and self.heads > 0
            and len(counts) * self.heads <= most * sum(counts)
            and all(member.bank.gate is None for member in members)
        )
        self._whole = all(member.heads == member.bank.heads for member in members)
        self._shared = members[0].bank.key_heads is not None
        if self._shared and not pooled:  # heads of zeros would be none that share the keys of others
            alike = len({member.bank.key_heads for member in members}) == 1
            self.possible = self.possible and self._whole and alike
        self._stacks = {name: Stack() for name in ("qkv", "qkv_bias", "out", "out_bias")}
        self._index: Tensor | None = None

    def forget(self) -> None:
        """Drop what is kept: the weights may have changed unseen."""
        self._index = None
        for stack in self._stacks.values():
            stack.forget()

    def make(self, pooled: bool) -> None:
        """Make everything that is kept from call to call."""
        if not pooled:
            self._in()
        self._out()
        if pooled:
            self._places(self._members[0].bank.out.device)

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [M * B, q, d_model]`` to queries, ``memory [M * B, T, d_model]`` (None: x) to keys and values.

        Returns:
            ``[M * B, heads, q, head_dim]`` and twice ``[M * B, heads, T, head_dim]``.
        """
        if self._shared:
            return self._project_shared(x, x if memory is None else memory)
        if memory is None:
            q, k, v = self._linear(x, slice(0, 3))
        else:
            (q,), (k, v) = self._linear(x, slice(0, 1)), self._linear(memory, slice(1, 3))
        return self._normed(q, "q_norm"), self._normed(k, "k_norm"), v

    def _project_shared(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self._in()
        rows, spread = self.heads * self.head_dim, self._members[0].for_each_head
        of_q, of_keys = (None, None) if bias is None else (bias[:, :rows], bias[:, rows:])
        (q,) = unpacked(members_linear, x, weight[:, :rows], of_q, 1, self.head_dim)
        k, v = unpacked(members_linear, memory, weight[:, rows:], of_keys, 2, self.head_dim)
        return self._normed(q, "q_norm"), spread(self._normed(k, "k_norm")), spread(v)

    def _linear(self, x: Tensor, of: slice) -> Sequence[Tensor]:
        return projected(members_linear, x, *self._in(), of, self.head_dim)

    def _normed(self, heads: Tensor, side: str) -> Tensor:
        """Normalise each head by the norm of its member."""
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
        taken = attended.index_select(1, self._places(attended.device))  # [B, M * heads, q, head_dim]
        return taken.unflatten(1, (-1, self.heads)).transpose(0, 1).flatten(0, 1)  # -> [M * B, heads, q, head_dim]

    def output(self, attended: Tensor) -> Tensor:
        """Project attended heads ``[M * B, heads, q, head_dim]`` to the residual stream, ``[M * B, q, d_model]``."""
        rows = attended.transpose(1, 2).flatten(2)  # [M * B, h, q, dk] -> [M * B, q, h * dk]
        return members_linear(rows, *self._out())

    def _in(self) -> tuple[Tensor, Tensor | None]:
        width = 3 * self.head_dim
        return self._weights("qkv", 0, width), self._weights("qkv_bias", 0, width)

    def _out(self) -> tuple[Tensor, Tensor | None]:
        return self._weights("out", 1, self.head_dim), self._weights("out_bias", 0, None)

    def _weights(self, name: str, dim: int, width: int | None) -> Any:
        """Return one weight of all members.

        Args:
            name: of the weight.
            dim: the dimension along which its heads lie.
            width: what each head has of it along ``dim``; None: it belongs to no head.
        """
        banks = [member.bank for member in self._members]
        weights: list[Any] = [bank.trained_bias() if name == "qkv_bias" else getattr(bank, name) for bank in banks]
        if weights[0] is None:
            return None
        if width is None or self._whole:
            return self._stacks[name].of(weights)
        return self._stacks[name].of(weights, [_heads_of(member, dim, width) for member in self._members])

    def _places(self, device: torch.device) -> Tensor:
        """Return the places in the bank of all members' heads; a head of zeros has the place of some other."""
        index = self._index
        if index is None or index.device != device:
            rows = [[head for run in m.runs for head in range(run.start, run.stop)] for m in self._members]
            index = torch.tensor([h for row in rows for h in (row + [0] * self.heads)[: self.heads]], device=device)
            if not torch.compiler.is_compiling():
                self._index = index
        return index


def _heads_of(member: MemberProjections, dim: int, width: int) -> Callable[[Tensor], Tensor]:
    """Return the function from a weight of a bank to that of one member."""
    runs = [(run.start * width, (run.stop - run.start) * width) for run in member.runs or [slice(0, 0)]]
    return lambda weight: torch.cat([weight.narrow(dim, *run) for run in runs], dim=dim)


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
    products = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return products.reshape(*x.shape[:-1], weight.shape[1])


def members_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply each member's layer norm over the last dimension, ``x`` member-major, weight and bias ``[M, n]``."""
    rows = F.layer_norm(x, x.shape[-1:], eps=eps).reshape(weight.shape[0], -1, x.shape[-1])
    scaled = rows * weight[:, None] if bias is None else torch.addcmul(bias[:, None], rows, weight[:, None])
    return scaled.reshape_as(x)
