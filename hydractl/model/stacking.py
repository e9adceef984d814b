"""Weights of all members one behind the other in memory, so that one batched product serves them all.

On a GPU a product of few rows takes no longer to compute than to launch, and one for all members is launched once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.projections import MemberProjections

PADDED = 4 / 3
"""How many heads may be computed for one that is there where members have unequal numbers of them."""

_Cut = Callable[[Tensor, slice], Tensor]
"""One run of heads of a weight of a bank."""


class Stack:
    """One weight of every member as one tensor ``[M, ...]``, with zeros behind those that are smaller.

    It is made when it is first asked for without gradients, and the parameters then become views of it: no weight is
    held twice. What is written into them in place is in it at once; where one was moved or replaced, which its address
    tells, it is made anew. With gradients it is made for each call, as a function of the parameters.

    Members that take parts of parameters they have in common cannot be views: then it is a copy, made anew when a
    parameter was written to.
    """

    def __init__(self) -> None:
        self._made: Tensor | None = None
        self._key: tuple[object, ...] = ()

    def forget(self) -> None:
        """Make it anew when it is next asked for."""
        self._made, self._key = None, ()

    def of(self, weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None = None) -> Tensor:
        """The weights of all members.

        Args:
            weights: the parameter of each member.
            parts: what each takes of it; None: all of it.
        """
        first = weights[0]
        if parts is None and all(weight is first for weight in weights):
            return first.expand(len(weights), *first.shape)
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            return _stacked(weights, parts)
        if torch.compiler.is_compiling():  # addresses and versions are none of a graph
            return _stacked(weights, parts) if self._made is None else self._made
        apart = parts is None and len({id(weight) for weight in weights}) == len(weights)
        if self._made is None or self._key != _key(weights, apart):
            # Outside inference mode: a parameter must not become a tensor of which there are no gradients.
            with torch.inference_mode(False), torch.no_grad():
                self._made = _stacked(weights, parts)
                if apart:
                    for weight, place in zip(weights, self._made, strict=True):
                        weight.data = place[tuple(slice(size) for size in weight.shape)]
            self._key = _key(weights, apart)
        return self._made


def _key(weights: Sequence[Tensor], apart: bool) -> tuple[object, ...]:
    """Tells whether a stack is still that of these parameters."""
    if apart:
        return tuple(weight.data_ptr() for weight in weights)
    return tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)


def _stacked(weights: Sequence[Tensor], parts: Sequence[Callable[[Tensor], Tensor]] | None) -> Tensor:
    """All of one shape, zeros behind those that are smaller."""
    each = list(weights) if parts is None else [part(w) for part, w in zip(parts, weights, strict=True)]
    largest = [max(sizes) for sizes in zip(*(tensor.shape for tensor in each), strict=True)]
    return torch.stack([_padded(tensor, largest) for tensor in each])


def _padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [most - size for most, size in zip(shape, tensor.shape, strict=True)]
    return F.pad(tensor, [n for size in reversed(missing) for n in (0, size)]) if any(missing) else tensor


class StackedProjections:
    """The heads of all members of one site, their projections as batched products.

    A member with fewer heads than another has heads of zeros behind its own, which give zeros.

    Args:
        members: the projections of each member.
        pooled: whether the heads of all members are in one bank and have attended already.

    Attributes:
        heads: of each member, those of zeros included.
        possible: whether this gives what the members give: they have heads, not too unequal numbers of them, and no
            gates.
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
        self._stacks = {name: Stack() for name in ("qkv", "qkv_bias", "out", "out_bias")}
        self._index: Tensor | None = None

    def forget(self) -> None:
        """The weights may have changed in ways that cannot be seen."""
        self._index = None
        for stack in self._stacks.values():
            stack.forget()

    def make(self, pooled: bool) -> None:
        """Make everything that is kept from call to call."""
        if not pooled:
            self._in()
        self._out()
        if pooled:
            self._taken(self._members[0].bank.out.device)

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of ``x [M * B, q, d_model]``, keys and values of ``memory [M * B, T, d_model]`` (None: of x as well).

        Returns:
            ``[M * B, heads, q, head_dim]`` and twice ``[M * B, heads, T, head_dim]``.
        """
        if memory is None:
            q, k, v = self._linear(x, slice(0, 3))
        else:
            (q,), (k, v) = self._linear(x, slice(0, 1)), self._linear(memory, slice(1, 3))
        return self._normed(q, "q_norm"), self._normed(k, "k_norm"), v

    def _linear(self, x: Tensor, of: slice) -> Sequence[Tensor]:
        """Some of the three projections of all heads of all members, in one product."""
        weight, bias = self._in()
        kinds = of.stop - of.start
        if kinds < 3:  # as in HeadBank: the rows of each head have to be gathered
            weight = weight.unflatten(1, (self.heads, 3, self.head_dim))[:, :, of].flatten(1, 3)
            bias = None if bias is None else bias.unflatten(1, (self.heads, 3, self.head_dim))[:, :, of].flatten(1, 3)
        packed = members_linear(x, weight, bias).unflatten(-1, (self.heads, kinds, self.head_dim))
        return packed.permute(3, 0, 2, 1, 4).unbind(0)

    def _normed(self, heads: Tensor, side: str) -> Tensor:
        """Each head by the norm of its member."""
        norms: list[nn.Module] = [getattr(member.bank, side) for member in self._members]
        if all(isinstance(norm, nn.Identity) for norm in norms):
            return heads
        parts = heads.unflatten(0, (len(norms), -1)).unbind(0)
        return torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)])

    def take(self, attended: Tensor) -> Tensor:
        """Of all heads of the bank, ``[B, heads of the bank, q, head_dim]``, those of each: ``[M * B, heads, ...]``."""
        taken = attended.index_select(1, self._taken(attended.device))
        return taken.unflatten(1, (-1, self.heads)).transpose(0, 1).flatten(0, 1)

    def output(self, attended: Tensor) -> Tensor:
        """Attended heads ``[M * B, heads, q, head_dim]`` to the residual stream, ``[M * B, q, d_model]``."""
        weight, bias = self._out()
        return members_linear(attended.transpose(1, 2).flatten(2), weight, bias)

    def _in(self) -> tuple[Tensor, Tensor | None]:
        width = 3 * self.head_dim
        weight = self._weights("qkv", lambda w, run: w[run.start * width : run.stop * width], 0)
        assert weight is not None, "a bank has queries, keys and values"
        return weight, self._weights("qkv_bias", lambda b, run: b[run.start * width : run.stop * width], 0)

    def _out(self) -> tuple[Tensor, Tensor | None]:
        weight = self._weights("out", lambda w, run: w[:, run.start * self.head_dim : run.stop * self.head_dim], 1)
        assert weight is not None, "a bank has an output projection"
        return weight, self._weights("out_bias", None, 0)

    def _weights(self, name: str, cut: _Cut | None, dim: int) -> Tensor | None:
        """One weight of all members; ``cut`` takes one run of heads of it, None: it belongs to no head."""
        found = [getattr(member.bank, name) for member in self._members]
        if found[0] is None:
            return None
        if cut is None or self._whole:
            return self._stacks[name].of(found)
        return self._stacks[name].of(found, [_own_heads(member, cut, dim) for member in self._members])

    def _taken(self, device: torch.device) -> Tensor:
        """The places in the bank of the heads of all members, some head in the place of each that is zeros."""
        if self._index is None or self._index.device != device:
            rows = [[head for run in m.runs for head in range(run.start, run.stop)] for m in self._members]
            index = torch.tensor([h for row in rows for h in (row + [0] * self.heads)[: self.heads]], device=device)
            if torch.compiler.is_compiling():
                return index
            self._index = index
        return self._index


def _own_heads(member: MemberProjections, cut: _Cut, dim: int) -> Callable[[Tensor], Tensor]:
    """Of a weight of a bank, the heads of one member."""
    return lambda weight: torch.cat([cut(weight, run) for run in member.runs or [slice(0, 0)]], dim=dim)


def members_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One linear layer of every member in one product.

    Args:
        x: member-major, ``[M * B, ..., n]``.
        weight: ``[M, m, n]``.
        bias: ``[M, m]`` or None.

    Returns:
        ``[M * B, ..., m]``.
    """
    rows = x.reshape(weight.shape[0], -1, x.shape[-1])
    made = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return made.reshape(*x.shape[:-1], weight.shape[1])


def members_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """The layer norm over the last dimension of every member, ``x`` member-major, weight and bias ``[M, n]``."""
    rows = F.layer_norm(x, x.shape[-1:], eps=eps).reshape(weight.shape[0], -1, x.shape[-1])
    made = rows * weight[:, None] if bias is None else torch.addcmul(bias[:, None], rows, weight[:, None])
    return made.reshape_as(x)
