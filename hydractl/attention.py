"""The one attention module of hydractl: any number of heads per member, any number of members, side by side.

It names no library. A family reads the weights of its own attention module into :class:`HeadWeights` and puts a
:class:`HeadAttention` in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one attention block, head by head: the only layout the rest of hydractl sees.

    Attributes:
        q, k, v: ``[heads, head_dim, d_model]``.
        q_bias, k_bias, v_bias: ``[heads, head_dim]`` or None.
        o: ``[heads, d_model, head_dim]``, the column blocks of the output projection.
        o_bias: ``[d_model]`` or None; it belongs to no head and survives any pruning.
        gate, gate_bias: like ``q`` and ``q_bias`` where the library gates the attention output, else None.
        extra: what the block holds beside heads (query and key norms), by name relative to the block.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """Number of heads present."""
        return self.q.shape[0]

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.q.shape[1]

    def select(self, positions: Sequence[int]) -> HeadWeights:
        """Only the heads at these positions (positions among the heads present, not original numbers)."""
        index = torch.tensor(list(positions), dtype=torch.long)

        def pick(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.index_select(0, index.to(tensor.device))

        picked = {name: pick(getattr(self, name)) for name in PER_HEAD}
        return replace(self, **picked)  # type: ignore[arg-type]

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """The same shapes with the output columns of these heads set to zero: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int) -> HeadWeights:
        """Put the heads present at ``positions`` of ``heads`` heads; all others are zero."""
        index = torch.tensor(list(positions), dtype=torch.long)

        def scatter(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            full = tensor.new_zeros((heads, *tensor.shape[1:]))
            full[index] = tensor
            return full

        spread = {name: scatter(getattr(self, name)) for name in PER_HEAD}
        return replace(self, **spread)  # type: ignore[arg-type]

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]]) -> HeadWeights:
        """Heads of several blocks as those of one; what belongs to no head is that of the first.

        Args:
            heads: block and position of each head, at least one.
        """
        first = heads[0][0]

        def stack(name: str) -> Tensor | None:
            if getattr(first, name) is None:
                return None
            return torch.stack([getattr(weights, name)[position] for weights, position in heads])

        return replace(first, **{name: stack(name) for name in PER_HEAD})  # type: ignore[arg-type]


PER_HEAD = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "gate", "gate_bias")


class _Output(nn.Module):
    """The output projection of one member at one site.

    Attributes:
        heads, head_dim: how many heads, which may be none, and their width.
        out: ``[d_model, heads * head_dim]``; bias ``[d_model]`` or None.
    """

    def __init__(self, weights: HeadWeights) -> None:
        super().__init__()
        self.heads, self.head_dim = weights.heads, weights.head_dim
        # [h, d, dk] -> [d, h * dk]
        self.out = nn.Parameter(weights.o.permute(1, 0, 2).flatten(1).contiguous())
        self.out_bias = _parameter(weights.o_bias)

    def output(self, joined: Tensor) -> Tensor:
        """Joined heads to the residual stream, ``[B, q, d_model]``."""
        return F.linear(joined, self.out, self.out_bias)

    def bias_only(self, x: Tensor) -> Tensor:
        """What a site without heads adds to the residual stream: the bias of its output projection."""
        zeros = x.new_zeros((x.shape[0], x.shape[1], self.out.shape[0]))
        return zeros if self.out_bias is None else zeros + self.out_bias

    def _output_weights(self) -> tuple[Tensor, Tensor | None]:
        """``o`` and ``o_bias`` of :class:`HeadWeights`."""
        o = self.out.detach().reshape(len(self.out), self.heads, self.head_dim).permute(1, 0, 2)
        return o, None if self.out_bias is None else self.out_bias.detach()


class MemberProjections(_Output):
    """The projections of one member at one site; h heads, which may be none.

    Attributes:
        qkv: ``[3 * h * head_dim, d_model]`` (queries of all heads, then keys, then values); bias alike or None.
        out: ``[d_model, h * head_dim]``; bias ``[d_model]`` or None.
        gate: ``[h * head_dim, d_model]`` or None.
    """

    def __init__(self, weights: HeadWeights, q_norm: nn.Module | None = None, k_norm: nn.Module | None = None) -> None:
        super().__init__(weights)
        self.qkv = nn.Parameter(torch.cat([weights.q, weights.k, weights.v]).flatten(0, 1))
        self.qkv_bias: nn.Parameter | None = None
        biases = (weights.q_bias, weights.k_bias, weights.v_bias)
        like = next((b for b in biases if b is not None), None)
        if like is not None:
            self.qkv_bias = nn.Parameter(torch.cat([_or_zeros(b, like) for b in biases]).flatten())
        self.gate = _parameter(None if weights.gate is None else weights.gate.flatten(0, 1))
        self.gate_bias = _parameter(None if weights.gate_bias is None else weights.gate_bias.flatten())
        self.q_norm = nn.Identity() if q_norm is None else q_norm
        self.k_norm = nn.Identity() if k_norm is None else k_norm

    def weights(self) -> HeadWeights:
        """The current weights, head by head; the inverse of the constructor."""
        h, dk, d = self.heads, self.head_dim, self.qkv.shape[1]
        q, k, v = self.qkv.detach().reshape(3, h, dk, d).unbind(0)
        o, o_bias = self._output_weights()
        biases = (None,) * 3 if self.qkv_bias is None else self.qkv_bias.detach().reshape(3, h, dk).unbind(0)
        return HeadWeights(
            q=q,
            k=k,
            v=v,
            o=o,
            q_bias=biases[0],
            k_bias=biases[1],
            v_bias=biases[2],
            o_bias=o_bias,
            gate=None if self.gate is None else self.gate.detach().reshape(h, dk, d),
            gate_bias=None if self.gate_bias is None else self.gate_bias.detach().reshape(h, dk),
            extra={
                f"{side}.{name}": tensor.detach()
                for side in ("q_norm", "k_norm")
                for name, tensor in getattr(self, side).named_parameters()
            },
        )

    def project(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of ``x [B, q, d_model]``, keys and values of ``memory [B, T, d_model]`` (None: of x as well).

        Returns:
            ``[B, h, q, head_dim]`` and twice ``[B, h, T, head_dim]``.
        """
        if memory is None:
            q, k, v = self._linear(x, 0, 3)
        else:
            (q,), (k, v) = self._linear(x, 0, 1), self._linear(memory, 1, 3)
        return self.q_norm(q), self.k_norm(k), v

    def _linear(self, x: Tensor, first: int, last: int) -> Sequence[Tensor]:
        """Some of the three projections, in one product."""
        width = self.heads * self.head_dim
        rows = slice(first * width, last * width)
        packed = F.linear(x, self.qkv[rows], None if self.qkv_bias is None else self.qkv_bias[rows])
        shape = (*x.shape[:2], last - first, self.heads, self.head_dim)
        return packed.reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)

    def join(self, attended: Tensor, x: Tensor) -> Tensor:
        """The heads ``[B, h, q, head_dim]`` side by side, gated where there is a gate: ``[B, q, h * head_dim]``."""
        batch, _, tokens, _ = attended.shape
        joined = attended.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_dim)
        if self.gate is not None:
            joined = joined * F.linear(x, self.gate, self.gate_bias).sigmoid()
        return joined

    def share(self, joined: Tensor, position: int) -> Tensor:
        """What one head adds to the residual stream, ``[B, q, d_model]``."""
        columns = slice(position * self.head_dim, (position + 1) * self.head_dim)
        return F.linear(joined[..., columns], self.out[:, columns])


class DrawnProjections(_Output):
    """The projections of one member whose heads are drawn from a pool that attends once for all members.

    Args:
        pool: projections of every head that any member has.
        positions: which of them the member has, in its order.
        weights: the member's own, whose queries, keys, values and gates are those of the pool.
    """

    positions: Tensor

    def __init__(self, pool: MemberProjections, positions: Sequence[int], weights: HeadWeights) -> None:
        super().__init__(weights)
        # In a list, so that the pool's parameters are not counted once more here.
        self._pool = [pool]
        self.register_buffer("positions", torch.tensor(list(positions), dtype=torch.long), persistent=False)

    def weights(self) -> HeadWeights:
        """As of :class:`MemberProjections`."""
        o, o_bias = self._output_weights()
        return replace(self._pool[0].weights().select(self.positions.tolist()), o=o, o_bias=o_bias)

    def draw(self, joined: Tensor) -> Tensor:
        """From the joined heads of the pool ``[B, q, pool heads * head_dim]`` to those of the member."""
        return joined.unflatten(-1, (-1, self.head_dim)).index_select(-2, self.positions).flatten(-2)


Projections = MemberProjections | DrawnProjections


@dataclass(frozen=True)
class Cut:
    """A block that runs for some tokens only: they ask, all tokens answer.

    Attributes:
        memory: what the attention reads of all tokens, ``[M * B, T, d_model]``; ``[B, T, d_model]`` for a pool.
        positions: which tokens ask, ``[B, q]``.
    """

    memory: Tensor
    positions: Tensor

    def mask(self, attn_mask: Tensor | None) -> Tensor | None:
        """The rows of a mask that belong to the tokens that ask."""
        if attn_mask is None or attn_mask.shape[-2] == 1:
            return attn_mask
        if attn_mask.dim() == 2:  # the same for every sample
            return attn_mask[self.positions][:, None]
        rows = self.positions[:, None, :, None].expand(-1, attn_mask.shape[1], -1, attn_mask.shape[-1])
        return attn_mask.expand(len(self.positions), -1, -1, -1).gather(2, rows)


class HeadAttention(nn.Module):
    """Self-attention of M members with their own heads, as ONE scaled-dot-product attention (paper section 4.2).

    Activations are member-major: ``[M * B, T, d_model]``, all samples of member 0 first. The heads of all members
    lie side by side in the head dimension, so masks keep the size of one batch and no member sees another.

    Members with the same weights and heads may share one object.

    Attributes:
        members: the projections of each member.
        pool: None, or the projections of every head that any member has: the input is then the same for all members,
            these heads attend to it once, and each member projects its own of them (:class:`DrawnProjections`).
        head_gate: None, or a tensor ``[1 or B, sum of heads]`` that scales each head's output. A zero is the same
            as a zeroed column block of the output projection. Used by the gate criterion.
        observer: None, or a function that is given the joined heads of member 0, ``[B, T, heads * head_dim]`` (none
            where it has no heads), each time they are computed.
        given: None, or what :meth:`forward` answers in the place of attending, ``[M * B, T, d_model]``.
        cut: None, or that the inputs are those of some tokens only.
    """

    def __init__(
        self,
        members: Sequence[Projections],
        *,
        pool: MemberProjections | None = None,
        scale: float | None = None,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.pool = pool
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
        self.given: Tensor | None = None
        self.cut: Cut | None = None

    @property
    def projections(self) -> list[Projections]:
        """The projections of each member."""
        return list(self.members)  # type: ignore[arg-type]

    @property
    def only(self) -> MemberProjections:
        """The projections of a model of one member."""
        (projections,) = self.members
        return projections  # type: ignore[return-value]

    @property
    def head_counts(self) -> list[int]:
        """Heads of each member."""
        return [m.heads for m in self.projections]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend.

        Args:
            x: ``[M * B, T, d_model]``.
            attn_mask: broadcastable to ``[B, heads, T, T]``, boolean (True: may be seen) or additive.
            is_causal: whether a token sees only itself and those before it.

        Returns:
            ``[M * B, T, d_model]``.
        """
        if self.given is not None:
            return self.given
        parts = x.chunk(len(self.members))
        outputs: list[Tensor] = []
        for index, (member, part, joined) in enumerate(
            zip(self.projections, parts, self._joined(parts, attn_mask, is_causal), strict=True)
        ):
            if self.observer is not None and index == 0:
                self.observer(part.new_zeros((*part.shape[:2], 0)) if joined is None else joined)
            outputs.append(member.bias_only(part) if joined is None else member.output(joined))
        together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return F.dropout(together, self.output_dropout, self.training)

    def _joined(self, parts: Sequence[Tensor], attn_mask: Tensor | None, is_causal: bool) -> list[Tensor | None]:
        """The heads of each member side by side, ``[B, q, h * head_dim]``; None where it has no head."""
        counts, cut = self.head_counts, self.cut
        if cut is not None:
            assert not is_causal, "a block that is cut needs its mask written out"
            attn_mask = cut.mask(attn_mask)
        found: list[Tensor | None]
        if self.pool is not None:
            memory = None if cut is None else cut.memory
            (heads,) = self._attend([self.pool], parts[:1], [memory], attn_mask, is_causal)
            joined = None if heads is None else self.pool.join(heads, parts[0])
            found = [None if joined is None or not m.heads else m.draw(joined) for m in self.members]  # type: ignore[operator]
        else:
            memories = [None] * len(counts) if cut is None else cut.memory.chunk(len(counts))
            members: list[MemberProjections] = self.projections  # type: ignore[assignment]
            each = self._attend(members, parts, memories, attn_mask, is_causal)
            found = [None if h is None else m.join(h, part) for m, h, part in zip(members, each, parts, strict=True)]
        if self.head_gate is None:
            return found
        gates = self.head_gate.repeat_interleave(self.projections[0].head_dim, dim=1)
        width = [n * self.projections[0].head_dim for n in counts]
        return [
            None if j is None else j * gate[:, None] for j, gate in zip(found, gates.split(width, dim=1), strict=True)
        ]

    def _attend(
        self,
        projections: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memories: Sequence[Tensor | None],
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> list[Tensor | None]:
        """The attended heads ``[B, h, q, head_dim]`` of each of these; None where there is no head."""
        each = zip(projections, parts, memories, strict=True)
        projected = [heads.project(part, memory) for heads, part, memory in each if heads.heads]
        if not projected:
            return [None] * len(projections)
        q, k, v = (p[0] if len(p) == 1 else torch.cat(p, dim=1) for p in zip(*projected, strict=True))
        attended = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
        )
        split = iter(attended.split([p.heads for p in projections if p.heads], dim=1))
        return [next(split) if p.heads else None for p in projections]


class PerMember(nn.Module):
    """One module per member on member-major activations ``[M * B, ...]``: what is not merged."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m."""
        parts = x.chunk(len(self.members))
        return torch.cat([module(part) for module, part in zip(self.members, parts, strict=True)])


def _or_zeros(tensor: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tensor is None else tensor


def _parameter(tensor: Tensor | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.contiguous())
