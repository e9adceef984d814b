"""The heads of one site: their weights head by head, the bank that holds them, and the heads of one member in it.

It names no library. A family reads the weights of its own attention module into :class:`HeadWeights`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.heads.relative import Relative
from hydractl.heads.weights import COMMON, ROWS, HeadWeights

_MOST_SCALE = math.log(100)
"""Liu et al. 2021, Swin v2, https://arxiv.org/abs/2111.09883, section 3.2: a temperature of at least 0.01."""


@dataclass(frozen=True)
class Packing:
    """The order of the rows of queries, keys and values in one weight (or bias): head by head, its three together.

    Where heads share keys and values, the queries of all heads come first, then key head by key head its two.

    Attributes:
        heads, head_dim: how many and how wide.
        keys: heads of keys and values that are shared; None: each head has its own.
    """

    heads: int
    head_dim: int
    keys: int | None = None

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that are queries, keys and values."""
        keys = self.heads if self.keys is None else self.keys
        return [self.heads * self.head_dim, keys * self.head_dim, keys * self.head_dim]

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows ``[n, ...]`` to queries ``[heads, head_dim, ...]``, keys and values alike or of fewer heads."""
        if self.keys is None:
            return rows.unflatten(0, (self.heads, 3, self.head_dim)).unbind(1)
        queries, pairs = rows.split([self.heads * self.head_dim, 2 * self.keys * self.head_dim])
        pair = pairs.unflatten(0, (self.keys, 2, self.head_dim)).unbind(1)
        return queries.unflatten(0, (self.heads, self.head_dim)), *pair

    def join(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Join queries, keys and values to rows: the inverse of :meth:`split`."""
        if self.keys is None:
            return torch.stack([q, k, v], dim=1).flatten(0, 2)  # 3 times [h, dk, ...] -> [h * 3 * dk, ...]
        return torch.cat([q.flatten(0, 1), torch.stack([k, v], dim=1).flatten(0, 2)])  # -> [(h + 2 keys) * dk, ...]

    def join_rows(self, parts: Iterable[Tensor]) -> Tensor:
        """Join matrices with as many :attr:`rows`, as :meth:`join`."""
        return self.join(*(part.unflatten(0, (-1, self.head_dim)) for part in parts))


class HeadBank(nn.Module):
    """The weights of some heads of one site, for one member or for several that have them in common.

    Attributes:
        heads, head_dim: how many heads, which may be none, and their width.
        qkv: ``[heads * 3 * head_dim, d_model]``: of each head its queries, keys and values, so that neighbouring heads
            are one matrix; see ``packing`` for heads that share keys. Bias alike or None.
        packing: of its rows.
        key_heads: as of :class:`hydractl.heads.weights.HeadWeights`.
        out: ``[d_model, heads * head_dim]``; bias ``[d_model]`` or None.
        gate, pos_q, pos_k: ``[heads * head_dim, d_model]`` or None; bias alike.
        table, scale: ``[heads * R]`` and ``[heads]``, or None.
        number: as of :class:`hydractl.heads.weights.HeadWeights`.
        q_norm, k_norm: act on one head at a time.
        features: of coordinates of distances, ``[R, 2]`` to ``[R, F]``.
    """

    gate: Tensor | None
    gate_bias: Tensor | None
    table: Tensor | None
    scale: Tensor | None
    pos_q: Tensor | None
    pos_q_bias: Tensor | None
    pos_k: Tensor | None
    pos_k_bias: Tensor | None
    number: Tensor | None

    def __init__(
        self,
        weights: HeadWeights,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        features: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = weights.heads, weights.head_dim
        self.key_heads = weights.key_heads
        self.packing = Packing(self.heads, self.head_dim, None if self.key_heads is None else weights.k.shape[0])
        self.qkv = nn.Parameter(self.packing.join(weights.q, weights.k, weights.v))
        self.qkv_bias: nn.Parameter | None = None
        biases = (weights.q_bias, weights.k_bias, weights.v_bias)
        # A library may leave one of them out (EVA: of keys). It stays zero in training, and is none of its tensors.
        self._without = [index for index, bias in enumerate(biases) if bias is None]
        if len(self._without) < 3:
            pairs = zip(biases, (weights.q, weights.k, weights.v), strict=True)
            each = [torch.zeros_like(weight[..., 0]) if bias is None else bias for bias, weight in pairs]
            self.qkv_bias = nn.Parameter(self.packing.join(*each))
        # [h, d, dk] -> [d, h * dk]
        self.out = nn.Parameter(weights.o.permute(1, 0, 2).flatten(1).contiguous())
        self.out_bias = _parameter(weights.o_bias)
        # The rows of all heads as one matrix, biases and tables as one vector, which weight decay leaves alone.
        rows = {name: tensor for name in ROWS if (tensor := getattr(weights, name)) is not None}
        self._rows = {name: tensor.shape for name, tensor in rows.items()}
        for name in ROWS:
            self.register_parameter(name, _parameter(rows[name].flatten(0, 1) if name in rows else None))
        self.register_buffer("number", weights.number, persistent=False)
        self.q_norm = nn.Identity() if q_norm is None else q_norm
        self.k_norm = nn.Identity() if k_norm is None else k_norm
        self.features = nn.Identity() if features is None else features

    def weights(self) -> HeadWeights:
        """Return the current weights, head by head; the inverse of the constructor."""
        h, dk = self.heads, self.head_dim
        q, k, v = self.packing.split(self.qkv.detach())
        there = () if self.qkv_bias is None else self.packing.split(self.qkv_bias.detach())
        biases = [there[i] if there and i not in self._without else None for i in range(3)]
        return HeadWeights(
            q=q,
            k=k,
            v=v,
            o=self.out.detach().reshape(self.out.shape[0], h, dk).permute(1, 0, 2),
            q_bias=biases[0],
            k_bias=biases[1],
            v_bias=biases[2],
            o_bias=None if self.out_bias is None else self.out_bias.detach(),
            **{name: getattr(self, name).detach().reshape(shape) for name, shape in self._rows.items()},
            number=self.number,
            extra={
                f"{side}.{name}": tensor.detach()
                for side in COMMON
                for name, tensor in getattr(self, side).named_parameters()
            },
            key_heads=self.key_heads,
        )

    def project(self, run: slice, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [B, q, d_model]`` to queries, ``memory [B, T, d_model]`` (None: x as well) to keys and values.

        Args:
            run: which heads, that have keys of their own; n of them.
            x: the query tokens.
            memory: the key and value tokens.

        Returns:
            ``[B, n, q, head_dim]`` and twice ``[B, n, T, head_dim]``.
        """
        if memory is None:
            q, k, v = self._linear(run, x, slice(0, 3))
        else:
            (q,), (k, v) = self._linear(run, x, slice(0, 1)), self._linear(run, memory, slice(1, 3))
        q = self.q_norm(q)
        if self.scale is not None:
            q = q * self.scale[run].clamp(max=_MOST_SCALE).exp()[:, None, None]  # [B, n, q, dk] * [n, 1, 1]
        return q, self.k_norm(k), v

    def relative(self, run: slice, q: Tensor, k: Tensor, relative: Relative) -> Tensor:
        """Return what relative terms add to the scores of a run of n heads, ``[1 or B, n, q, T]``."""
        vectors = relative.embeddings
        if vectors is None:
            table = None if self.table is None else self.table.unflatten(0, (self.heads, -1))[run]
            if table is not None and relative.coordinates is not None:
                table = relative.table_of(self.features, table)
            return relative.looked_up(table, None if self.number is None else self.number[run])
        if self.pos_q is None and self.pos_k is None:  # the vectors go through the projections of the tokens
            queries, keys = self._linear(run, vectors[None], slice(0, 2))
        else:
            queries = self._of_distances(run, vectors, self.pos_q, self.pos_q_bias)
            keys = self._of_distances(run, vectors, self.pos_k, self.pos_k_bias)
        return relative.compared(q, k, queries if relative.to_content else None, keys if relative.to_position else None)

    def _of_distances(self, run: slice, vectors: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
        if weight is None:
            return None
        rows = slice(run.start * self.head_dim, run.stop * self.head_dim)
        projected = F.linear(vectors, weight[rows], None if bias is None else bias[rows])
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)  # [R, n * dk] -> [n, R, dk]

    def _linear(self, run: slice, x: Tensor, of: slice) -> Sequence[Tensor]:
        rows = slice(run.start * 3 * self.head_dim, run.stop * 3 * self.head_dim)
        bias = self.trained_bias()
        bias = None if bias is None else bias[rows]
        return projected(F.linear, x, self.qkv[rows], bias, of, self.head_dim)

    def project_shared(
        self, runs: Sequence[slice], keys: Sequence[slice], x: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project as :meth:`project`, for heads that share ``keys``.

        Keys and values are ``[B, number of shared heads, T, head_dim]``.
        """
        weight, bias = self.qkv, self.trained_bias()

        def parts(start: int, of: Sequence[slice], kinds: int, x: Tensor) -> Sequence[Tensor]:
            width = kinds * self.head_dim
            rows = [slice(start + run.start * width, start + run.stop * width) for run in of]
            own = [(weight[r], None if bias is None else bias[r]) for r in rows]
            each = [unpacked(F.linear, x, *one, kinds, self.head_dim) for one in own]
            return [p[0] if len(p) == 1 else torch.cat(p, dim=1) for p in zip(*each, strict=True)]

        (q,), (k, v) = parts(0, runs, 1, x), parts(self.heads * self.head_dim, keys, 2, memory)
        return self.q_norm(q), self.k_norm(k), v

    def trained_bias(self) -> Tensor | None:
        """Return ``qkv_bias``, through which no gradient reaches what the library does not have."""
        if self.qkv_bias is None or not self._without or not torch.is_grad_enabled():
            return self.qkv_bias
        parts = self.packing.split(self.qkv_bias)
        return self.packing.join(*(torch.zeros_like(p) if i in self._without else p for i, p in enumerate(parts)))


def projected(
    linear: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, of: slice, head_dim: int
) -> Sequence[Tensor]:
    """Compute some of the three projections of all n heads of a weight ``[..., n * 3 * head_dim, d_model]`` at once."""
    kinds = of.stop - of.start
    if kinds < 3:  # only where a block runs for few tokens: the rows of each head have to be gathered
        weight = weight.unflatten(-2, (-1, 3, head_dim))[..., of, :, :].flatten(-4, -2)
        bias = None if bias is None else bias.unflatten(-1, (-1, 3, head_dim))[..., of, :].flatten(-3)
    return unpacked(linear, x, weight, bias, kinds, head_dim)


def unpacked(
    linear: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, kinds: int, head_dim: int
) -> Sequence[Tensor]:
    """Return a weight's projections, ``[..., n * kinds * head_dim, d_model]``: kinds times ``[B, n, T, head_dim]``."""
    packed = linear(x, weight, bias).unflatten(-1, (-1, kinds, head_dim))
    return packed.permute(3, 0, 2, 1, 4).unbind(0)  # [B, T, n, kinds, dk] -> kinds times [B, n, T, dk]


class MemberProjections(nn.Module):
    """The heads of one member at one site: some of those in a bank.

    Args:
        bank: holds them.
        positions: where they are in it, in the order of the member; None: all of them.

    Attributes:
        bank: as given.
        heads, head_dim: how many, which may be none, and their width.
        runs: neighbouring heads of the bank that the member has, each run one matrix product. Activations hold the
            heads in this order.
    """

    def __init__(self, bank: HeadBank, positions: Sequence[int] | None = None) -> None:
        super().__init__()
        self.bank = bank
        self._positions = list(range(bank.heads) if positions is None else positions)
        self.heads, self.head_dim = len(self._positions), bank.head_dim
        self.runs = runs_of(self._positions)
        # Of the keys that are shared: those that its heads use, and for how many neighbouring heads each in turn.
        used = [] if bank.key_heads is None else [bank.key_heads[position] for position in sorted(self._positions)]
        self._keys = runs_of(set(used))
        places = [sorted(set(used)).index(key) for key in used]
        self._uses = [(place, len(list(heads))) for place, heads in groupby(places)]

    def weights(self) -> HeadWeights:
        """Return the current weights of its heads, in the order of the member."""
        return self.bank.weights().select(self._positions)

    @property
    def numbers(self) -> Tensor:
        """Its heads, of which it has some, in the original numbering: ``[h]``, in the order of their runs."""
        assert self.bank.number is not None, "heads with terms of their own are known by their original numbers"
        return torch.cat([self.bank.number[run] for run in self.runs])

    def project(self, x: Tensor, memory: Tensor | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return queries, keys, values of every run, as :meth:`HeadBank.project`; all as one where keys are shared."""
        if self.bank.key_heads is None or not self.heads:
            return [self.bank.project(run, x, memory) for run in self.runs]
        q, k, v = self.bank.project_shared(self.runs, self._keys, x, x if memory is None else memory)
        return [(q, self.for_each_head(k), self.for_each_head(v))]

    def for_each_head(self, keys: Tensor) -> Tensor:
        """Repeat keys or values that heads share ``[B, n, T, head_dim]``, once for each head that uses them."""
        # Not by an index: its gradient would be added up in an order that a GPU does not keep.
        return torch.cat([keys[:, key : key + 1].expand(-1, heads, -1, -1) for key, heads in self._uses], dim=1)

    def relative(self, projected: Sequence[tuple[Tensor, ...]], relative: Relative) -> list[Tensor]:
        """Return what relative terms add to the scores of every run, given what :meth:`project` gave."""
        each = zip(self.runs, projected, strict=True)
        return [self.bank.relative(run, q, k, relative) for run, (q, k, _) in each]

    def take(self, attended: Tensor) -> Tensor:
        """Select the member's heads from all attended heads of the bank, ``[B, heads of the bank, q, head_dim]``."""
        taken = [attended[:, run] for run in self.runs]
        return taken[0] if len(taken) == 1 else torch.cat(taken, dim=1)

    def concatenate(self, attended: Tensor, x: Tensor) -> Tensor:
        """Concatenate heads ``[B, h, q, head_dim]`` to ``[B, q, h * head_dim]``, gated where there is a gate."""
        heads, gate, bias = attended.transpose(1, 2).flatten(2), self.bank.gate, self.bank.gate_bias
        if gate is None:
            return heads
        columns = map(self._columns, self.runs)
        gates = [F.linear(x, gate[at], None if bias is None else bias[at]) for at in columns]
        return heads * (gates[0] if len(gates) == 1 else torch.cat(gates, dim=-1)).sigmoid()

    def output(self, heads: Tensor) -> Tensor:
        """Project concatenated heads to the residual stream, ``[B, q, d_model]``."""
        bank, start, total = self.bank, 0, None
        for run in self.runs:
            stop = start + (run.stop - run.start) * self.head_dim
            own = heads if len(self.runs) == 1 else heads[..., start:stop]
            part = F.linear(own, bank.out[:, self._columns(run)], bank.out_bias if total is None else None)
            total, start = part if total is None else total + part, stop
        assert total is not None, "a member without heads has nothing to project"
        return total

    def _columns(self, run: slice) -> slice:
        return slice(run.start * self.head_dim, run.stop * self.head_dim)

    def share(self, heads: Tensor, position: int) -> Tensor:
        """Return what one head of a member with a bank of its own adds to the residual stream, ``[B, q, d_model]``."""
        columns = self._columns(slice(position, position + 1))
        return F.linear(heads[..., columns], self.bank.out[:, columns])

    def bias_only(self, x: Tensor) -> Tensor:
        """Return what a site without heads adds to the residual stream: the bias of its output projection."""
        zeros = x.new_zeros((x.shape[0], x.shape[1], self.bank.out.shape[0]))
        return zeros if self.bank.out_bias is None else zeros + self.bank.out_bias


def is_linear(module: nn.Module) -> bool:
    """Return whether this is a linear layer, also one of a library's own, whose weight may stand transposed."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding)


def runs_of(positions: Collection[int]) -> list[slice]:
    """Group positions into ascending runs of neighbours."""
    runs: list[slice] = []
    for position in sorted(positions):
        if runs and runs[-1].stop == position:
            runs[-1] = slice(runs[-1].start, position + 1)
        else:
            runs.append(slice(position, position + 1))
    return runs


def neighbours(members: Sequence[Sequence[int]]) -> list[int]:
    """Order all heads such that those of each member lie in few runs.

    Heads that the same members have stay together, and each group is followed by the one most like it.

    Args:
        members: the heads of each.
    """
    owners: dict[frozenset[int], list[int]] = {}
    for head in sorted({head for heads in members for head in heads}):
        owners.setdefault(frozenset(m for m, heads in enumerate(members) if head in heads), []).append(head)
    groups = sorted(owners, key=lambda group: (len(group), sorted(group)))
    best: list[frozenset[int]] = []
    for first in groups[:_TRIED]:  # each in turn at one end
        order, left = [first], [g for g in groups if g != first]
        while left:
            order.append(min(left, key=lambda g: len(g ^ order[-1])))
            left.remove(order[-1])
        if not best or _breaks(order) < _breaks(best):
            best = order
    return [head for group in best for head in owners[group]]


_TRIED = 32
"""Enough for every group of five members."""


def _breaks(order: Sequence[frozenset[int]]) -> int:
    """Count the runs that the members have together."""
    return len(order[0]) + sum(len(one - other) for one, other in zip(order[1:], order, strict=False))


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.contiguous())
