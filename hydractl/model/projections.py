"""The heads of one site: their weights head by head, the bank that holds them, and the heads of one member in it.

It names no library. A family reads the weights of its own attention module into :class:`HeadWeights`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.heads.relative import Relative
from hydractl.heads.weights import COMMON, HEAD_ROWS, HeadWeights

QUERIES = slice(0, 1)
"""The projections that are wanted of a weight that holds, head by head, queries, keys and values."""
QUERIES_AND_KEYS = slice(0, 2)
KEYS_AND_VALUES = slice(1, 3)
ALL_THREE = slice(0, 3)

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
        query_rows = self.heads * self.head_dim
        key_rows = keys * self.head_dim
        return [query_rows, key_rows, key_rows]

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Split rows ``[n, ...]`` to those of queries, of keys and of values.

        Returns:
            Queries ``[heads, head_dim, ...]``; keys and values, alike or where they are shared of fewer heads.
        """
        if self.keys is None:
            by_head = rows.unflatten(0, (self.heads, 3, self.head_dim))
            return by_head.unbind(1)
        query_rows = self.heads * self.head_dim
        key_and_value_rows = 2 * self.keys * self.head_dim
        rows_of_queries, rows_of_pairs = rows.split([query_rows, key_and_value_rows])
        queries = rows_of_queries.unflatten(0, (self.heads, self.head_dim))
        keys, values = rows_of_pairs.unflatten(0, (self.keys, 2, self.head_dim)).unbind(1)
        return queries, keys, values

    def join(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Join queries, keys and values to rows: the inverse of :meth:`split`."""
        if self.keys is None:
            return torch.stack([q, k, v], dim=1).flatten(0, 2)  # 3 times [h, dk, ...] -> [h * 3 * dk, ...]
        queries = q.flatten(0, 1)  # [h, dk, ...] -> [h * dk, ...]
        pairs = torch.stack([k, v], dim=1).flatten(0, 2)  # twice [keys, dk, ...] -> [keys * 2 * dk, ...]
        return torch.cat([queries, pairs])

    def join_rows(self, parts: Iterable[Tensor]) -> Tensor:
        """Join the matrices of queries, keys and values, which have as many :attr:`rows`, as :meth:`join` does."""
        q, k, v = [part.unflatten(0, (-1, self.head_dim)) for part in parts]
        return self.join(q, k, v)


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
        normed: whether one of the two norms does anything.
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
        self.heads = weights.heads
        self.head_dim = weights.head_dim
        self.key_heads = weights.key_heads
        shared_keys = None if self.key_heads is None else weights.k.shape[0]
        self.packing = Packing(self.heads, self.head_dim, shared_keys)
        self.qkv = nn.Parameter(self.packing.join(weights.q, weights.k, weights.v))
        self.qkv_bias = self._packed_bias(weights)
        out = weights.o.permute(1, 0, 2).flatten(1)  # [h, d, dk] -> [d, h * dk]
        self.out = nn.Parameter(out.contiguous())
        self.out_bias = _parameter(weights.o_bias)
        self._row_shapes: dict[str, torch.Size] = {}
        for name in HEAD_ROWS:
            rows: Tensor | None = getattr(weights, name)
            if rows is not None:
                self._row_shapes[name] = rows.shape
                # The rows of all heads are one matrix, biases and tables one vector, which weight decay leaves alone.
                rows = rows.flatten(0, 1)
            self.register_parameter(name, _parameter(rows))
        self.register_buffer("number", weights.number, persistent=False)
        self.q_norm = nn.Identity() if q_norm is None else q_norm
        self.k_norm = nn.Identity() if k_norm is None else k_norm
        self.features = nn.Identity() if features is None else features
        norms_do_nothing = isinstance(self.q_norm, nn.Identity) and isinstance(self.k_norm, nn.Identity)
        self.normed = not norms_do_nothing

    def _packed_bias(self, weights: HeadWeights) -> nn.Parameter | None:
        """Pack the biases of queries, keys and values as their weights, with zeros for one that is left out.

        Notes in ``_missing_biases`` which of them, 0 to 2, are left out.

        Returns:
            The packed biases; None where all three are left out.
        """
        biases = (weights.q_bias, weights.k_bias, weights.v_bias)
        # A library may leave one of them out (EVA: that of the keys). It stays zero in training and is never stored.
        self._missing_biases = [index for index, bias in enumerate(biases) if bias is None]
        if len(self._missing_biases) == len(biases):
            return None
        q_bias, k_bias, v_bias = biases
        if q_bias is None:
            q_bias = torch.zeros_like(weights.q[..., 0])  # [h, dk, d] -> [h, dk]
        if k_bias is None:
            k_bias = torch.zeros_like(weights.k[..., 0])
        if v_bias is None:
            v_bias = torch.zeros_like(weights.v[..., 0])
        return nn.Parameter(self.packing.join(q_bias, k_bias, v_bias))

    def weights(self) -> HeadWeights:
        """Return the current weights, head by head; the inverse of the constructor."""
        q, k, v = self.packing.split(self.qkv.detach())
        q_bias, k_bias, v_bias = self._unpacked_biases()
        d_model = self.out.shape[0]
        out = self.out.detach().reshape(d_model, self.heads, self.head_dim)
        rows = {}
        for name, shape in self._row_shapes.items():
            rows[name] = getattr(self, name).detach().reshape(shape)
        extra = {}
        for side in COMMON:
            module: nn.Module = getattr(self, side)
            for name, tensor in module.named_parameters():
                extra[f"{side}.{name}"] = tensor.detach()
        return HeadWeights(
            q=q,
            k=k,
            v=v,
            o=out.permute(1, 0, 2),  # [d, h, dk] -> [h, d, dk]
            q_bias=q_bias,
            k_bias=k_bias,
            v_bias=v_bias,
            o_bias=None if self.out_bias is None else self.out_bias.detach(),
            **rows,
            number=self.number,
            extra=extra,
            key_heads=self.key_heads,
        )

    def _unpacked_biases(self) -> list[Tensor | None]:
        """Return the biases of queries, keys and values, ``[heads, head_dim]`` each; None for one that is left out."""
        if self.qkv_bias is None:
            return [None, None, None]
        biases: list[Tensor | None] = list(self.packing.split(self.qkv_bias.detach()))
        for index in self._missing_biases:
            biases[index] = None
        return biases

    def project(self, run: slice, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [B, q, d_model]`` to queries, ``memory [B, T, d_model]`` (None: x as well) to keys and values.

        Args:
            run: which heads; n neighbours that have keys of their own.
            x: the query tokens.
            memory: the key and value tokens.

        Returns:
            ``[B, n, q, head_dim]`` and twice ``[B, n, T, head_dim]``.
        """
        if memory is None:
            q, k, v = self._linear(run, x, ALL_THREE)
        else:
            (q,) = self._linear(run, x, QUERIES)
            k, v = self._linear(run, memory, KEYS_AND_VALUES)
        if self.normed:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if self.scale is not None:
            scale = self.scale[run].clamp(max=_MOST_SCALE).exp()
            q = q * scale[:, None, None]  # [B, n, q, dk] * [n, 1, 1]
        return q, k, v

    def project_whole(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``x [B, q, d_model]`` to queries, ``memory [B, T, d_model]`` (None: x) to keys and values.

        For all heads at once, of a bank without shared keys and without scales.

        Returns:
            ``[B, heads, q, head_dim]`` and twice ``[B, heads, T, head_dim]``.
        """
        weight = self.qkv
        bias = self.trained_bias()
        if memory is None:
            q, k, v = project_all(F.linear, x, weight, bias, 3, self.head_dim)
        else:
            (q,) = project_wanted(F.linear, x, weight, bias, QUERIES, self.head_dim)
            k, v = project_wanted(F.linear, memory, weight, bias, KEYS_AND_VALUES, self.head_dim)
        if self.normed:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v

    def relative(self, run: slice, q: Tensor, k: Tensor, relative: Relative) -> Tensor:
        """Return what relative terms add to the scores of a run of n heads, ``[1 or B, n, q, T]``.

        Either a table has a number for each distance and head, or distances have embeddings that queries and keys are
        compared with.

        Args:
            run: which heads.
            q: their queries ``[B, n, q, head_dim]``.
            k: their keys ``[B, n, T, head_dim]``.
            relative: the terms.
        """
        if relative.embeddings is None:
            table = self._distance_table(run, relative)
            original_numbers = None if self.number is None else self.number[run]
            return relative.looked_up(table, original_numbers)
        queries, keys = self._project_distances(run, relative.embeddings)  # of the distances
        queries_of_distances = queries if relative.to_content else None
        keys_of_distances = keys if relative.to_position else None
        return relative.compared(q, k, queries_of_distances, keys_of_distances)

    def _distance_table(self, run: slice, relative: Relative) -> Tensor | None:
        """Return the numbers ``[n, R]`` that the heads of a run have for each distance; None where all are shared."""
        if self.table is None:
            return None
        table = self.table.unflatten(0, (self.heads, -1))[run]  # [heads * R] -> [n, R]
        if relative.coordinates is None:
            return table
        return relative.table_of(self.features, table)

    def _project_distances(self, run: slice, vectors: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Project vectors of distances ``[R, d_model]`` to queries and keys, ``[n, R, head_dim]`` or ``[1, ...]``."""
        if self.pos_q is None and self.pos_k is None:  # the vectors go through the projections of the tokens
            queries, keys = self._linear(run, vectors[None], QUERIES_AND_KEYS)
            return queries, keys
        return (
            self._linear_of_distances(run, vectors, self.pos_q, self.pos_q_bias),
            self._linear_of_distances(run, vectors, self.pos_k, self.pos_k_bias),
        )

    def _linear_of_distances(
        self, run: slice, vectors: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor | None:
        """Project vectors of distances by weights of their own, for the heads of a run; None without weights."""
        if weight is None:
            return None
        rows = self.rows_of(run)
        packed = F.linear(vectors, weight[rows], _rows_of_bias(bias, rows))  # [R, n * dk]
        by_head = packed.unflatten(-1, (-1, self.head_dim))  # [R, n, dk]
        return by_head.transpose(0, 1)  # [n, R, dk]

    def _linear(self, run: slice, x: Tensor, wanted: slice) -> Sequence[Tensor]:
        """Compute the wanted ones of queries, keys and values, ``[B, n, T, head_dim]`` each, for a run of n heads."""
        rows_of_head = 3 * self.head_dim
        rows = slice(run.start * rows_of_head, run.stop * rows_of_head)
        bias = _rows_of_bias(self.trained_bias(), rows)
        return project_wanted(F.linear, x, self.qkv[rows], bias, wanted, self.head_dim)

    def rows_of(self, run: slice) -> slice:
        """Return the rows (in the output projection the columns) of a run of heads that have ``head_dim`` each."""
        return slice(run.start * self.head_dim, run.stop * self.head_dim)

    def project_shared(
        self, runs: Sequence[slice], keys: Sequence[slice], x: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project as :meth:`project` does, for heads that share keys and values.

        Args:
            runs: which heads.
            keys: which of the shared heads of keys and values they use, in runs too.
            x: the query tokens ``[B, q, d_model]``.
            memory: the key and value tokens ``[B, T, d_model]``.

        Returns:
            Queries ``[B, h, q, head_dim]``, keys and values ``[B, number of shared heads, T, head_dim]``.
        """
        bias = self.trained_bias()
        first_key_row = self.heads * self.head_dim
        (q,) = self._linear_of_runs(runs, x, bias, first_row=0, kinds=1)
        k, v = self._linear_of_runs(keys, memory, bias, first_row=first_key_row, kinds=2)
        return self.q_norm(q), self.k_norm(k), v

    def _linear_of_runs(
        self, runs: Sequence[slice], x: Tensor, bias: Tensor | None, *, first_row: int, kinds: int
    ) -> Sequence[Tensor]:
        """Project tokens ``[B, T, d_model]`` by one part of ``qkv``, for several runs of heads side by side.

        Args:
            runs: which heads of the part.
            x: the tokens.
            bias: of all of ``qkv``.
            first_row: where the part begins.
            kinds: how many projections of each head lie in it, one behind the other.

        Returns:
            As many tensors ``[B, heads of all runs, T, head_dim]``.
        """
        rows_of_head = kinds * self.head_dim
        projected_by_run = []
        for run in runs:
            rows = slice(first_row + run.start * rows_of_head, first_row + run.stop * rows_of_head)
            bias_of_run = _rows_of_bias(bias, rows)
            projected_by_run.append(project_all(F.linear, x, self.qkv[rows], bias_of_run, kinds, self.head_dim))
        projected_by_kind = zip(*projected_by_run, strict=True)
        return [cat_parts(parts, dim=1) for parts in projected_by_kind]

    def trained_bias(self) -> Tensor | None:
        """Return ``qkv_bias``, through which no gradient reaches what the library does not have."""
        bias = self.qkv_bias
        if not self._missing_biases or bias is None or not torch.is_grad_enabled():
            return bias
        biases = list(self.packing.split(bias))
        for index in self._missing_biases:
            biases[index] = torch.zeros_like(biases[index])
        q_bias, k_bias, v_bias = biases
        return self.packing.join(q_bias, k_bias, v_bias)


def project_wanted(
    linear: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, wanted: slice, head_dim: int
) -> Sequence[Tensor]:
    """Compute some of the three projections of all n heads of a weight at once.

    Args:
        linear: computes a linear layer of tokens, a weight and a bias.
        x: the tokens ``[B, T, d_model]``.
        weight: ``[..., n * 3 * head_dim, d_model]``.
        bias: ``[..., n * 3 * head_dim]`` or None.
        wanted: :data:`QUERIES`, :data:`KEYS_AND_VALUES` or :data:`ALL_THREE`.
        head_dim: the width of a head.

    Returns:
        For each projection that is wanted ``[B, n, T, head_dim]``.
    """
    kinds = wanted.stop - wanted.start
    if kinds < 3:  # only where a block runs for few tokens: the rows of each head have to be gathered
        weight, bias = wanted_rows(weight, bias, wanted, head_dim)
    return project_all(linear, x, weight, bias, kinds, head_dim)


def wanted_rows(weight: Tensor, bias: Tensor | None, wanted: slice, head_dim: int) -> tuple[Tensor, Tensor | None]:
    """Return copies of the rows of some of the three projections, head by head: queries, keys, values.

    Args:
        weight: of n heads, each with its three projections together, ``[..., n * 3 * head_dim, d_model]``.
        bias: ``[..., n * 3 * head_dim]`` or None.
        wanted: which of the three; ``kinds`` is how many these are.
        head_dim: the width of a head.

    Returns:
        Their weight ``[..., n * kinds * head_dim, d_model]``, and their bias ``[..., n * kinds * head_dim]`` or None.
    """
    *leading, rows, width = weight.shape
    heads = rows // (3 * head_dim)
    weight_by_head = weight.view(*leading, heads, 3, head_dim, width)
    wanted_weight = weight_by_head[..., wanted, :, :].flatten(-4, -2)  # [..., n * kinds * dk, d_model]
    if bias is None:
        return wanted_weight, None
    bias_by_head = bias.view(*leading, heads, 3, head_dim)
    return wanted_weight, bias_by_head[..., wanted, :].flatten(-3)  # [..., n * kinds * dk]


def project_all(
    linear: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, kinds: int, head_dim: int
) -> Sequence[Tensor]:
    """Compute all projections of a weight ``[..., n * kinds * head_dim, d_model]``: kinds times ``[B, n, T, dk]``."""
    projected = linear(x, weight, bias)  # [B, T, n * kinds * dk]
    return split_heads(projected, kinds, head_dim)


def split_heads(projected: Tensor, kinds: int, head_dim: int) -> Sequence[Tensor]:
    """Split projected tokens ``[B, T, n * kinds * head_dim]`` by head: kinds times ``[B, n, T, head_dim]``."""
    batch, tokens, width = projected.shape
    heads = width // (kinds * head_dim)
    by_head = projected.view(batch, tokens, heads, kinds, head_dim)
    return by_head.permute(3, 0, 2, 1, 4).unbind(0)


def cat_parts(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors; of a single one return it itself, not a copy."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts), dim=dim)


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
        plain: whether they are all heads of the bank in its order, without a gate, shared keys, or scales.
    """

    def __init__(self, bank: HeadBank, positions: Sequence[int] | None = None) -> None:
        super().__init__()
        self.bank = bank
        self._positions = list(range(bank.heads) if positions is None else positions)
        self.heads = len(self._positions)
        self.head_dim = bank.head_dim
        self.runs = runs_of(self._positions)
        has_all_heads = self.heads > 0 and self.runs == [slice(0, bank.heads)]
        self.plain = has_all_heads and bank.gate is None and bank.key_heads is None and bank.scale is None

        # Where heads of the bank share keys and values: which of them each head of the member uses.
        key_of_head: list[int] = []
        if bank.key_heads is not None:
            key_of_head = [bank.key_heads[position] for position in sorted(self._positions)]
        keys = sorted(set(key_of_head))
        self._key_runs = runs_of(keys)
        # The place of each key among the keys, with the number of neighbouring heads that use it.
        self._key_uses: list[tuple[int, int]] = []
        for key, neighbours_with_key in groupby(key_of_head):
            self._key_uses.append((keys.index(key), len(list(neighbours_with_key))))

    def weights(self) -> HeadWeights:
        """Return the current weights of its heads, in the order of the member."""
        return self.bank.weights().select(self._positions)

    @property
    def numbers(self) -> Tensor:
        """The original numbers of its heads, of which there must be some: ``[h]``, in the order of their runs."""
        number = self.bank.number
        assert number is not None, "heads with terms of their own are known by their original numbers"
        return torch.cat([number[run] for run in self.runs])

    def project(self, x: Tensor, memory: Tensor | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Project ``x [B, q, d_model]`` to queries, ``memory [B, T, d_model]`` (None: x) to keys and values.

        Returns:
            Of each run of n heads ``[B, n, q, head_dim]`` and twice ``[B, n, T, head_dim]``; where heads share keys and
            values, all of them as one run.
        """
        if self.bank.key_heads is None or not self.heads:
            return [self.bank.project(run, x, memory) for run in self.runs]
        if memory is None:
            memory = x
        q, k, v = self.bank.project_shared(self.runs, self._key_runs, x, memory)
        return [(q, self.for_each_head(k), self.for_each_head(v))]

    def for_each_head(self, keys: Tensor) -> Tensor:
        """Repeat keys or values that heads share ``[B, n, T, head_dim]``, once for each head that uses them."""
        # Not by an index: a GPU adds up the gradient of that in an order that changes from run to run.
        repeated = []
        for key, heads in self._key_uses:
            repeated.append(keys[:, key : key + 1].expand(-1, heads, -1, -1))  # [B, 1, T, dk] -> [B, heads, T, dk]
        return torch.cat(repeated, dim=1)

    def relative(self, projected: Sequence[tuple[Tensor, ...]], relative: Relative) -> list[Tensor]:
        """Return what relative terms add to the scores of every run, given what :meth:`project` gave."""
        terms = []
        for run, (q, k, _) in zip(self.runs, projected, strict=True):
            terms.append(self.bank.relative(run, q, k, relative))
        return terms

    def take(self, attended: Tensor) -> Tensor:
        """Select the member's heads from all attended heads of the bank, ``[B, heads of the bank, q, head_dim]``."""
        return cat_parts([attended[:, run] for run in self.runs], dim=1)

    def concatenate(self, attended: Tensor, x: Tensor) -> Tensor:
        """Concatenate heads ``[B, h, q, head_dim]`` to ``[B, q, h * head_dim]``, gated where there is a gate."""
        heads = attended.transpose(1, 2).flatten(2)  # [B, h, q, dk] -> [B, q, h * dk]
        weight = self.bank.gate
        bias = self.bank.gate_bias
        if weight is None:
            return heads
        gates = []
        for run in self.runs:
            rows = self.bank.rows_of(run)
            gates.append(F.linear(x, weight[rows], _rows_of_bias(bias, rows)))
        return heads * cat_parts(gates, dim=-1).sigmoid()

    def output(self, heads: Tensor) -> Tensor:
        """Project concatenated heads ``[B, q, h * head_dim]`` to the residual stream, ``[B, q, d_model]``."""
        total: Tensor | None = None
        start = 0
        for run in self.runs:
            heads_in_run = run.stop - run.start
            stop = start + heads_in_run * self.head_dim
            heads_of_run = heads if len(self.runs) == 1 else heads[..., start:stop]
            weight = self.bank.out[:, self.bank.rows_of(run)]
            if total is None:
                total = F.linear(heads_of_run, weight, self.bank.out_bias)
            else:
                total = total + F.linear(heads_of_run, weight)
            start = stop
        assert total is not None, "a member without heads has nothing to project"
        return total

    def share(self, heads: Tensor, position: int) -> Tensor:
        """Return what one head of a member with a bank of its own adds to the residual stream, ``[B, q, d_model]``."""
        columns = self.bank.rows_of(slice(position, position + 1))
        return F.linear(heads[..., columns], self.bank.out[:, columns])

    def bias_only(self, x: Tensor) -> Tensor:
        """Return what a site without heads adds to the residual stream: the bias of its output projection."""
        batch, tokens = x.shape[:2]
        d_model = self.bank.out.shape[0]
        zeros = x.new_zeros((batch, tokens, d_model))
        if self.bank.out_bias is None:
            return zeros
        return zeros + self.bank.out_bias


def is_linear(module: nn.Module) -> bool:
    """Return whether this is a linear layer, also one of a library's own, whose weight may be stored transposed."""
    if isinstance(module, nn.Embedding):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2


def runs_of(positions: Collection[int]) -> list[slice]:
    """Group positions into ascending runs of neighbours."""
    runs: list[slice] = []
    for position in sorted(positions):
        if runs and runs[-1].stop == position:
            runs[-1] = slice(runs[-1].start, position + 1)
        else:
            runs.append(slice(position, position + 1))
    return runs


_Group = frozenset[int]
"""The members that have the same heads."""


def neighbours(members: Sequence[Sequence[int]]) -> list[int]:
    """Order all heads such that those of each member lie in few runs.

    Heads that the same members have stay together, and each group is followed by the one most like it.

    Args:
        members: the heads of each.

    Returns:
        Each head that some member has, once.
    """
    heads_of_group: dict[_Group, list[int]] = {}  # a group: the members that have the same heads
    for head in sorted(set().union(*members)):
        group = frozenset(member for member, heads in enumerate(members) if head in heads)
        heads_of_group.setdefault(group, []).append(head)
    groups = sorted(heads_of_group, key=lambda group: (len(group), sorted(group)))
    best: list[_Group] = []
    for first in groups[:_TRIED]:  # each in turn at one end; the order of the fewest runs is taken
        order = _ordered_from(first, groups)
        if not best or _count_runs(order) < _count_runs(best):
            best = order
    ordered_heads = []
    for group in best:
        ordered_heads.extend(heads_of_group[group])
    return ordered_heads


_TRIED = 32
"""The most groups that are tried as the first: enough for every group of five members."""


def _ordered_from(first: _Group, groups: Sequence[_Group]) -> list[_Group]:
    """Order groups of members so that each is followed by the one most like it."""
    order = [first]
    left = [group for group in groups if group != first]
    while left:
        last = order[-1]
        nearest = min(left, key=lambda group: len(group ^ last))
        order.append(nearest)
        left.remove(nearest)
    return order


def _count_runs(order: Sequence[_Group]) -> int:
    """Count the runs of all members together, where the heads of the groups lie in this order."""
    runs = len(order[0])
    for before, group in pairwise(order):
        members_whose_run_begins = group - before
        runs += len(members_whose_run_begins)
    return runs


def _rows_of_bias(bias: Tensor | None, rows: slice) -> Tensor | None:
    """Return some rows of a bias that a layer may be without."""
    if bias is None:
        return None
    return bias[rows]


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    """Return a tensor as a parameter; None for None."""
    if tensor is None:
        return None
    return nn.Parameter(tensor.contiguous())
