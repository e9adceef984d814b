"""The heads of one site (an attention block): the bank that holds their weights, and the heads of one member in it.

This module names no library. A family reads the weights of its own attention module into :class:`HeadWeights`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.heads.relative import Relative
from hydractl.heads.weights import COMMON, HEAD_ROWS, HeadWeights

QUERIES = slice(0, 1)
"""Index the three projections of a head (queries, keys, values); this and the next slices say which ones are wanted."""
QUERIES_AND_KEYS = slice(0, 2)
KEYS_AND_VALUES = slice(1, 3)
ALL_THREE = slice(0, 3)


@dataclass(frozen=True)
class Packing:
    """The order of the rows of queries, keys and values in one weight or bias.

    Usually the rows are ordered head by head: queries, keys, values of head 0, then of head 1, and so on. If heads
    share keys and values, the queries of all heads come first, then for each shared head its keys and its values.

    Attributes:
        heads, head_dim: the number of heads, and the width of each.
        keys: the number of shared heads of keys and values; None if each head has its own.
    """

    heads: int
    head_dim: int
    keys: int | None = None

    @property
    def rows(self) -> list[int]:
        """The numbers of rows of all queries, all keys and all values."""
        keys = self.heads if self.keys is None else self.keys
        query_rows = self.heads * self.head_dim
        key_rows = keys * self.head_dim
        return [query_rows, key_rows, key_rows]

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """Return the rows of queries, of keys and of values out of one packed matrix.

        Args:
            rows: ``[n, ...]``, packed head by head (queries, keys, values of head 0, then of head 1 ...), or, if heads
                share keys and values, first all queries.

        Returns:
            Queries, keys and values, each ``[heads, head_dim, ...]``. If heads share keys and values, these two have
            fewer heads than the queries.
        """
        # Every head has its own keys and values: its three projections follow each other.
        if self.keys is None:
            by_head = rows.unflatten(0, (self.heads, 3, self.head_dim))  # [heads, 3, head_dim, ...]
            return by_head.unbind(1)  # queries, keys and values, each [heads, head_dim, ...]

        # Shared keys and values: first all queries, then key and value of each shared head.
        query_rows = self.heads * self.head_dim
        key_and_value_rows = 2 * self.keys * self.head_dim
        rows_of_queries, rows_of_pairs = rows.split([query_rows, key_and_value_rows])
        queries = rows_of_queries.unflatten(0, (self.heads, self.head_dim))  # [heads, head_dim, ...]
        pairs = rows_of_pairs.unflatten(0, (self.keys, 2, self.head_dim))  # [keys, 2, head_dim, ...]
        keys, values = pairs.unbind(1)  # [keys, head_dim, ...] each
        return queries, keys, values

    def join(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Pack queries, keys and values, each ``[heads, head_dim, ...]``, into rows; the inverse of :meth:`split`."""
        if self.keys is None:
            return torch.stack([q, k, v], dim=1).flatten(0, 2)  # [heads, 3, head_dim, ...] -> [rows, ...]
        queries = q.flatten(0, 1)  # [heads, head_dim, ...] -> [heads * head_dim, ...]
        pairs = torch.stack([k, v], dim=1).flatten(0, 2)  # [keys, 2, head_dim, ...] -> [keys * 2 * head_dim, ...]
        return torch.cat([queries, pairs])

    def join_rows(self, parts: Iterable[Tensor]) -> Tensor:
        """Pack three matrices (of all queries, all keys and all values, see :attr:`rows`) as :meth:`join` does."""
        q, k, v = [part.unflatten(0, (-1, self.head_dim)) for part in parts]
        return self.join(q, k, v)


class HeadBank(nn.Module):
    """The weights of some heads of one site, for one member or for several members that share them.

    Attributes:
        heads, head_dim: the number of heads (may be 0), and the width of each.
        qkv: ``[heads * 3 * head_dim, d_model]``: the queries, keys and values of each head together, so that the
            weights of neighbouring heads are one matrix. If heads share keys, the rows are fewer, see ``packing``.
        qkv_bias: ``[heads * 3 * head_dim]`` in the same order, or None.
        has_key_bias: whether keys have a bias. If only queries and values have one, that of keys is zero.
        packing: the order of the rows of ``qkv``.
        key_heads: see :class:`hydractl.heads.weights.HeadWeights`.
        out: ``[d_model, heads * head_dim]``; its bias is ``[d_model]`` or None.
        pos_q, pos_k: ``[heads * head_dim, d_model]`` or None, with biases ``[heads * head_dim]`` or None.
        table: ``[heads * R]`` or None.
        q_norm, k_norm: the norms of queries and keys; they act on one head at a time.
        normed: whether at least one of the two norms does anything.
    """

    table: Tensor | None
    pos_q: Tensor | None
    pos_q_bias: Tensor | None
    pos_k: Tensor | None
    pos_k_bias: Tensor | None

    def __init__(self, weights: HeadWeights, q_norm: nn.Module | None = None, k_norm: nn.Module | None = None) -> None:
        """Turn the weights of all heads into parameters in which neighbouring heads are one matrix."""
        super().__init__()
        self.heads = weights.heads
        self.head_dim = weights.head_dim
        self.key_heads = weights.key_heads

        # The weights of the projections.
        shared_keys = None if self.key_heads is None else weights.k.shape[0]
        self.packing = Packing(self.heads, self.head_dim, shared_keys)
        self.qkv = nn.Parameter(self.packing.join(weights.q, weights.k, weights.v))
        self.has_key_bias = weights.k_bias is not None
        self.qkv_bias = self._packed_bias(weights)
        out = weights.o.permute(1, 0, 2).flatten(1)  # [heads, d, head_dim] -> [d, heads * head_dim]
        self.out = nn.Parameter(out.contiguous())
        self.out_bias = _parameter(weights.o_bias)

        # What else a head may have; the shapes are kept for :meth:`weights`.
        self._row_shapes: dict[str, torch.Size] = {}
        for name in HEAD_ROWS:
            rows: Tensor | None = getattr(weights, name)
            if rows is not None:
                self._row_shapes[name] = rows.shape
                # Merge the dimension of heads into the next one: matrices stay matrices, and biases and tables become
                # vectors, to which no weight decay is applied.
                rows = rows.flatten(0, 1)
            self.register_parameter(name, _parameter(rows))

        # What belongs to no single head.
        self.q_norm = nn.Identity() if q_norm is None else q_norm
        self.k_norm = nn.Identity() if k_norm is None else k_norm
        self.normed = not (isinstance(self.q_norm, nn.Identity) and isinstance(self.k_norm, nn.Identity))

    def _packed_bias(self, weights: HeadWeights) -> nn.Parameter | None:
        """Return the biases of queries, keys and values in one vector; None if the library has no such biases.

        It may leave out that of keys alone (EVA, BEiT), which is then zero, stays so in training and is never stored.
        """
        if weights.q_bias is None or weights.v_bias is None:
            return None
        k_bias = torch.zeros_like(weights.v_bias) if weights.k_bias is None else weights.k_bias
        return nn.Parameter(self.packing.join(weights.q_bias, k_bias, weights.v_bias))

    def weights(self) -> HeadWeights:
        """Return the present weights, head by head, without gradients; the inverse of the constructor."""
        # The projections: weights [heads, head_dim, d] and biases [heads, head_dim] or None.
        q, k, v = self.packing.split(self.qkv.detach())
        biases: Sequence[Tensor | None] = (None, None, None)
        if self.qkv_bias is not None:
            biases = self.packing.split(self.qkv_bias.detach())
        q_bias, k_bias, v_bias = biases
        d_model = self.out.shape[0]
        out = self.out.detach().reshape(d_model, self.heads, self.head_dim)  # [d, heads, head_dim]

        # What else a head may have, in its original shape.
        rows = {name: getattr(self, name).detach().reshape(shape) for name, shape in self._row_shapes.items()}

        # The parameters of the modules that belong to no single head, e.g. {"q_norm.weight": ...}.
        extra = {}
        for side in COMMON:
            module: nn.Module = getattr(self, side)
            for name, tensor in module.named_parameters():
                extra[f"{side}.{name}"] = tensor.detach()
        return HeadWeights(
            q=q,
            k=k,
            v=v,
            o=out.permute(1, 0, 2),  # [d, heads, head_dim] -> [heads, d, head_dim]
            q_bias=q_bias,
            k_bias=k_bias if self.has_key_bias else None,
            v_bias=v_bias,
            o_bias=None if self.out_bias is None else self.out_bias.detach(),
            **rows,
            extra=extra,
            key_heads=self.key_heads,
        )

    def project(self, run: slice | None, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens to queries, keys and values, for neighbouring heads with keys of their own.

        Args:
            run: the heads, n neighbours in the bank; None means all heads.
            x: the query tokens, ``[B, q, d_model]``.
            memory: the key and value tokens, ``[B, T, d_model]``; None means ``x``.

        Returns:
            Queries ``[B, n, q, head_dim]``, keys and values ``[B, n, T, head_dim]``.
        """
        if memory is None:
            q, k, v = self._linear(run, x, ALL_THREE)
        else:
            (q,) = self._linear(run, x, QUERIES)
            k, v = self._linear(run, memory, KEYS_AND_VALUES)
        if self.normed:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v

    def relative(self, run: slice, q: Tensor, k: Tensor, relative: Relative) -> Tensor:
        """Return what relative position terms add to the scores of n neighbouring heads, ``[1 or B, n, q, T]``.

        There are two kinds of terms. Either each head has a number for each distance. Or each distance has an embedding
        vector, which is projected and compared with queries and keys.

        Args:
            run: the heads, n neighbours in the bank.
            q: their queries ``[B, n, q, head_dim]``.
            k: their keys ``[B, n, T, head_dim]``.
            relative: the terms.
        """
        # A number for each distance and head.
        if relative.embeddings is None:
            assert self.table is not None, "heads without vectors of distances have numbers"
            table = self.table.unflatten(0, (self.heads, -1))  # [heads * R] -> [heads, R]
            return relative.looked_up(table[run])

        # An embedding for each of R distances. Its query is compared with the keys of tokens, and its key with their
        # queries. Without projections for distances, the embeddings [R, d_model] go through those of the tokens.
        vectors = relative.embeddings
        queries: Tensor | None
        keys: Tensor | None
        if self.pos_q is None and self.pos_k is None:
            queries, keys = self._linear(run, vectors[None], QUERIES_AND_KEYS)
        else:
            queries = self._linear_of_distances(run, vectors, self.pos_q, self.pos_q_bias)
            keys = self._linear_of_distances(run, vectors, self.pos_k, self.pos_k_bias)
        queries_of_distances = queries if relative.to_content else None
        keys_of_distances = keys if relative.to_position else None
        return relative.compared(q, k, queries_of_distances, keys_of_distances)

    def _linear_of_distances(
        self, run: slice, vectors: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor | None:
        """Project vectors of distances by their own weights, for n neighbouring heads; None without weights."""
        if weight is None:
            return None
        rows = self.rows_of(run)
        packed = F.linear(vectors, weight[rows], _rows_of_bias(bias, rows))  # [R, n * head_dim]
        by_head = packed.unflatten(-1, (-1, self.head_dim))  # [R, n, head_dim]
        return by_head.transpose(0, 1)  # [n, R, head_dim]

    def _linear(self, run: slice | None, x: Tensor, wanted: slice) -> Sequence[Tensor]:
        """Return those of queries, keys and values that are wanted, ``[B, n, T, head_dim]`` each.

        Args:
            run: the heads, n neighbours in the bank; None means all, of which no rows need be cut out.
            x: the tokens ``[B, T, d_model]``.
            wanted: :data:`QUERIES`, :data:`QUERIES_AND_KEYS`, :data:`KEYS_AND_VALUES` or :data:`ALL_THREE`.
        """
        weight: Tensor = self.qkv
        bias = self.trained_bias()
        if run is not None:
            rows_of_head = 3 * self.head_dim
            rows = slice(run.start * rows_of_head, run.stop * rows_of_head)
            weight = weight[rows]
            bias = _rows_of_bias(bias, rows)
        kinds = wanted.stop - wanted.start
        if kinds < 3:  # gathers the rows from every head; only needed in a block with few query tokens
            weight, bias = wanted_rows(weight, bias, wanted, self.head_dim)
        return split_heads(F.linear(x, weight, bias), kinds, self.head_dim)

    def rows_of(self, run: slice) -> slice:
        """Return the rows of some heads in a weight with ``head_dim`` rows per head (in ``out``, the columns)."""
        return slice(run.start * self.head_dim, run.stop * self.head_dim)

    def project_shared(
        self, runs: Sequence[slice], keys: Sequence[slice], x: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens to queries, keys and values, for heads that share keys and values.

        Args:
            runs: the heads, as runs of neighbours.
            keys: the shared heads of keys and values that these heads use, also as runs of neighbours.
            x: the query tokens, ``[B, q, d_model]``.
            memory: the key and value tokens, ``[B, T, d_model]``.

        Returns:
            Queries ``[B, h, q, head_dim]``, keys and values ``[B, number of shared heads, T, head_dim]``.
        """
        bias = self.trained_bias()
        first_key_row = self.heads * self.head_dim  # behind the queries of all heads
        (q,) = self._linear_of_runs(runs, x, bias, first_row=0, kinds=1)
        k, v = self._linear_of_runs(keys, memory, bias, first_row=first_key_row, kinds=2)
        return self.q_norm(q), self.k_norm(k), v

    def _linear_of_runs(
        self, runs: Sequence[slice], x: Tensor, bias: Tensor | None, *, first_row: int, kinds: int
    ) -> Sequence[Tensor]:
        """Project tokens by one part of ``qkv`` (the queries, or keys and values), for several runs of heads.

        Args:
            runs: the heads of this part, as runs of neighbours.
            x: the tokens, ``[B, T, d_model]``.
            bias: the bias of all of ``qkv``, or None.
            first_row: the row of ``qkv`` at which the part begins.
            kinds: how many projections the part holds for each head: 1 for queries, 2 for keys and values.

        Returns:
            For each kind a tensor ``[B, heads of all runs, T, head_dim]``.
        """
        rows_of_head = kinds * self.head_dim  # a run of neighbouring heads is one slice of rows
        projected_by_run = []  # for each run, its projections of each kind
        for run in runs:
            rows = slice(first_row + run.start * rows_of_head, first_row + run.stop * rows_of_head)
            projected = F.linear(x, self.qkv[rows], _rows_of_bias(bias, rows))
            projected_by_run.append(split_heads(projected, kinds, self.head_dim))

        # Put the heads of all runs side by side, separately for each kind.
        projected_by_kind = zip(*projected_by_run, strict=True)
        return [cat_parts(parts, dim=1) for parts in projected_by_kind]

    def trained_bias(self) -> Tensor | None:
        """Return ``qkv_bias``; no gradient reaches a bias of keys that the library leaves out."""
        bias = self.qkv_bias
        if self.has_key_bias or bias is None or not torch.is_grad_enabled():
            return bias
        q_bias, k_bias, v_bias = self.packing.split(bias)
        return self.packing.join(q_bias, torch.zeros_like(k_bias), v_bias)


def wanted_rows(weight: Tensor, bias: Tensor | None, wanted: slice, head_dim: int) -> tuple[Tensor, Tensor | None]:
    """Return the rows of some of the three projections (queries, keys, values) of n heads, copied out of the weight.

    Args:
        weight: ``[..., n * 3 * head_dim, d_model]``: the queries, keys and values of each head together.
        bias: ``[..., n * 3 * head_dim]`` or None.
        wanted: which of the three, as a slice of their indices 0 to 2, e.g. :data:`QUERIES`. ``kinds`` is how many.
        head_dim: the width of a head.

    Returns:
        Their weight ``[..., n * kinds * head_dim, d_model]``, and their bias ``[..., n * kinds * head_dim]`` or None.
    """
    *batch_shape, rows, width = weight.shape  # e.g. [M] for the stacked weights of M members, or nothing
    heads = rows // (3 * head_dim)

    # Give the three projections a dimension of their own, select along it, and pack the rows again.
    weight_by_head = weight.view(*batch_shape, heads, 3, head_dim, width)  # [..., n, 3, head_dim, d_model]
    selected_by_head = weight_by_head[..., wanted, :, :]  # [..., n, kinds, head_dim, d_model]
    wanted_weight = selected_by_head.flatten(-4, -2)  # [..., n * kinds * head_dim, d_model]
    if bias is None:
        return wanted_weight, None
    bias_by_head = bias.view(*batch_shape, heads, 3, head_dim)  # [..., n, 3, head_dim]
    return wanted_weight, bias_by_head[..., wanted, :].flatten(-3)  # [..., n * kinds * head_dim]


def split_heads(projected: Tensor, kinds: int, head_dim: int) -> Sequence[Tensor]:
    """Split projected tokens ``[B, T, n * kinds * head_dim]`` by kind and head.

    Args:
        projected: for each token and each head, its projections of all kinds.
        kinds: the number of projections of each head, e.g. 3 for queries, keys and values.
        head_dim: the width of a head.

    Returns:
        For each kind a tensor ``[B, n, T, head_dim]``.
    """
    batch, tokens, width = projected.shape
    heads = width // (kinds * head_dim)
    by_head = projected.view(batch, tokens, heads, kinds, head_dim)  # [B, T, n, kinds, head_dim]
    return by_head.permute(3, 0, 2, 1, 4).unbind(0)  # [kinds, B, n, T, head_dim], then one tensor for each kind


def cat_parts(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors. A single tensor is returned as it is, without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


class MemberProjections(nn.Module):
    """The heads of one member at one site (an attention block): some or all heads of a bank.

    Args:
        bank: holds the weights of the heads.
        positions: the indices of the heads in the bank, in the order of the member; None means all heads.

    Attributes:
        bank: the bank.
        heads, head_dim: the number of heads (may be 0), and the width of each.
        runs: the member's heads as runs of neighbours in the bank; each run is one matrix product. Activations hold
            the heads in the order of the runs.
        plain: whether the member has all heads of the bank, in its order, and these share no keys.
    """

    def __init__(self, bank: HeadBank, positions: Sequence[int] | None = None) -> None:
        """Find the runs of neighbours that the member's heads form in the bank, and the shared keys that they use."""
        super().__init__()
        # Which heads of the bank the member has. Runs are groups of neighbours, e.g. heads 0, 1 and 4 form two runs.
        # The member is plain if it is the whole bank and nothing is done to its heads, so the shortest path can serve
        # it.
        self.bank = bank
        self._positions = list(range(bank.heads) if positions is None else positions)
        self.heads = len(self._positions)
        self.head_dim = bank.head_dim
        self.runs = runs_of(self._positions)
        has_all_heads = self.heads > 0 and self.runs == [slice(0, bank.heads)]
        self.plain = has_all_heads and bank.key_heads is None

        # If heads share keys and values: the shared head that each of the member's heads uses, and all that are used.
        shared_head_of_head: list[int] = []
        if bank.key_heads is not None:
            shared_head_of_head = [bank.key_heads[position] for position in sorted(self._positions)]
        used_shared_heads = sorted(set(shared_head_of_head))
        self._shared_runs = runs_of(used_shared_heads)

        # For each group of neighbouring heads with the same shared head: its index among the used ones, and their
        # number. E.g. for the shared heads 2, 2, 5 these are (0, 2) and (1, 1).
        self._shared_uses: list[tuple[int, int]] = []
        for shared_head, group in groupby(shared_head_of_head):
            index = used_shared_heads.index(shared_head)
            heads_in_group = len(list(group))
            self._shared_uses.append((index, heads_in_group))

    def weights(self) -> HeadWeights:
        """Return the present weights of the member's heads, in the order of the member."""
        return self.bank.weights().select(self._positions)

    def project(self, x: Tensor, memory: Tensor | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the queries, keys and values of tokens, for each run (stretch of neighbouring heads in the bank).

        Args:
            x: the query tokens, ``[B, q, d_model]``.
            memory: the key and value tokens, ``[B, T, d_model]``; None means ``x``.

        Returns:
            For each run of n heads its queries ``[B, n, q, head_dim]``, keys and values ``[B, n, T, head_dim]``. If
            heads share keys and values, all heads are returned as one run.
        """
        if self.bank.key_heads is None or not self.heads:
            return [self.bank.project(run, x, memory) for run in self.runs]
        if memory is None:
            memory = x
        q, k, v = self.bank.project_shared(self.runs, self._shared_runs, x, memory)
        return [(q, self.for_each_head(k), self.for_each_head(v))]

    def for_each_head(self, keys: Tensor) -> Tensor:
        """Repeat shared keys or values ``[B, n, T, head_dim]``, once for each head that uses them."""
        # An index would be simpler, but a GPU sums its gradient in an order that changes from run to run.
        repeated = []
        for index, heads in self._shared_uses:
            shared = keys[:, index : index + 1]  # [B, 1, T, head_dim]
            repeated.append(shared.expand(-1, heads, -1, -1))  # [B, heads, T, head_dim]
        return torch.cat(repeated, dim=1)

    def relative(self, projected: Sequence[tuple[Tensor, ...]], relative: Relative) -> list[Tensor]:
        """Return for each run what relative position terms add to its scores.

        Args:
            projected: queries, keys and values of each run, as :meth:`project` returns them.
            relative: the terms.
        """
        terms = []
        for run, (q, k, _) in zip(self.runs, projected, strict=True):
            terms.append(self.bank.relative(run, q, k, relative))
        return terms

    def take(self, attended: Tensor) -> Tensor:
        """Select the member's heads from the attended heads of the bank, ``[B, heads of the bank, q, head_dim]``.

        Returns:
            ``[B, h, q, head_dim]``, in memory with the heads of a token side by side, as attention leaves them and as
            concatenating them reads them without another copy.
        """
        by_token = attended.transpose(1, 2)  # [B, q, heads of the bank, head_dim]
        selected = cat_parts([by_token[:, :, run] for run in self.runs], dim=2)  # [B, q, h, head_dim]
        return selected.transpose(1, 2)

    def output(self, heads: Tensor) -> Tensor:
        """Return what the member's heads add to the residual stream: the output projection of its concatenated heads.

        A run is a stretch of neighbouring heads, whose columns of ``out`` are one slice: the result is the sum of
        ``out[:, run] @ heads[run]`` over all runs, plus the bias once.

        Args:
            heads: ``[B, q, h * head_dim]``, in the order of the runs.

        Returns:
            ``[B, q, d_model]``.
        """
        total: Tensor | None = None
        start = 0  # the first column of the run in `heads`
        for run in self.runs:
            heads_in_run = run.stop - run.start
            stop = start + heads_in_run * self.head_dim
            heads_of_run = heads if len(self.runs) == 1 else heads[..., start:stop]
            weight = self.bank.out[:, self.bank.rows_of(run)]  # [d_model, heads in run * head_dim]
            if total is None:
                total = F.linear(heads_of_run, weight, self.bank.out_bias)  # adds the bias once, with the first run
            else:
                total = total + F.linear(heads_of_run, weight)
            start = stop
        assert total is not None, "a member without heads has nothing to project"
        return total

    def share(self, heads: Tensor, position: int) -> Tensor:
        """Return what one head adds to the residual stream, for a member with all heads of its bank.

        Args:
            heads: the concatenated heads ``[B, q, h * head_dim]``.
            position: the index of the head.

        Returns:
            ``[B, q, d_model]``.
        """
        columns = self.bank.rows_of(slice(position, position + 1))
        return F.linear(heads[..., columns], self.bank.out[:, columns])

    def bias_only(self, x: Tensor) -> Tensor:
        """Return what a site without heads adds to the residual stream: the bias of its output projection."""
        batch, tokens = x.shape[:2]
        d_model = self.bank.out.shape[0]
        zeros = x.new_zeros((batch, tokens, d_model))
        return zeros if self.bank.out_bias is None else zeros + self.bank.out_bias


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer. A library's own class counts too; its weight may be transposed."""
    if isinstance(module, nn.Embedding):
        return False
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2


def runs_of(positions: Collection[int]) -> list[slice]:
    """Group indices into runs of neighbours, ascending: 1, 2, 5 gives the slices 1:3 and 5:6."""
    runs: list[slice] = []
    for position in sorted(positions):
        if runs and runs[-1].stop == position:  # it follows the last run: make that one longer
            runs[-1] = slice(runs[-1].start, position + 1)
        else:
            runs.append(slice(position, position + 1))
    return runs


def neighbours(members: Sequence[Sequence[int]]) -> list[int]:
    """Return an order of all heads in which the heads of each member form few runs (stretches without gaps).

    Heads that the same members have stay together. These groups follow each other as in a Gray code, whose codes differ
    in one place from one to the next: with three members, those of the third alone, of the second and third, of the
    second alone, of the first and second, and so on. E.g. with the heads 0, 2 of one member and 1, 2 of another, the
    order 1, 2, 0 has one run for each.

    Args:
        members: the heads of each member.

    Returns:
        Every head that some member has, once.
    """

    def position_in_gray_code(head: int) -> int:
        """Return the position of a head's code in the Gray code; bit m of the code says whether member m has the head.

        Each bit of the position is the parity of the bits of the code up to it: code 110 gives binary 100, so 4.
        """
        position = 0
        parity = False
        for heads in members:
            parity ^= head in heads
            position = 2 * position + parity
        return position

    all_heads: set[int] = set().union(*members)
    return sorted(all_heads, key=lambda head: (position_in_gray_code(head), head))


def _rows_of_bias(bias: Tensor | None, rows: slice) -> Tensor | None:
    """Return some rows of a bias; None if the layer has no bias."""
    return None if bias is None else bias[rows]


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    """Return a tensor as a parameter, or None for None."""
    return None if tensor is None else nn.Parameter(tensor.contiguous())
