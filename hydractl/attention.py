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

        picked = {name: pick(getattr(self, name)) for name in _PER_HEAD}
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

        spread = {name: scatter(getattr(self, name)) for name in _PER_HEAD}
        return replace(self, **spread)  # type: ignore[arg-type]


_PER_HEAD = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "gate", "gate_bias")


class MemberProjections(nn.Module):
    """The projections of one member at one site; h heads, which may be none.

    Attributes:
        qkv: ``[3 * h * head_dim, d_model]`` (queries of all heads, then keys, then values); bias alike or None.
        out: ``[d_model, h * head_dim]``; bias ``[d_model]`` or None.
        gate: ``[h * head_dim, d_model]`` or None.
    """

    def __init__(self, weights: HeadWeights, q_norm: nn.Module | None = None, k_norm: nn.Module | None = None) -> None:
        super().__init__()
        self.heads, self.head_dim = weights.heads, weights.head_dim
        self.qkv = nn.Parameter(torch.cat([weights.q, weights.k, weights.v]).flatten(0, 1))
        self.qkv_bias: nn.Parameter | None = None
        biases = (weights.q_bias, weights.k_bias, weights.v_bias)
        like = next((b for b in biases if b is not None), None)
        if like is not None:
            self.qkv_bias = nn.Parameter(torch.cat([_or_zeros(b, like) for b in biases]).flatten())
        # [h, d, dk] -> [d, h * dk]
        self.out = nn.Parameter(weights.o.permute(1, 0, 2).flatten(1).contiguous())
        self.out_bias = _parameter(weights.o_bias)
        self.gate = _parameter(None if weights.gate is None else weights.gate.flatten(0, 1))
        self.gate_bias = _parameter(None if weights.gate_bias is None else weights.gate_bias.flatten())
        self.q_norm = nn.Identity() if q_norm is None else q_norm
        self.k_norm = nn.Identity() if k_norm is None else k_norm

    def weights(self) -> HeadWeights:
        """The current weights, head by head; the inverse of the constructor."""
        h, dk, d = self.heads, self.head_dim, self.out.shape[0]
        q, k, v = self.qkv.detach().reshape(3, h, dk, d).unbind(0)
        biases = (None,) * 3 if self.qkv_bias is None else self.qkv_bias.detach().reshape(3, h, dk).unbind(0)
        return HeadWeights(
            q=q,
            k=k,
            v=v,
            o=self.out.detach().reshape(d, h, dk).permute(1, 0, 2),
            q_bias=biases[0],
            k_bias=biases[1],
            v_bias=biases[2],
            o_bias=None if self.out_bias is None else self.out_bias.detach(),
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

    def output(self, joined: Tensor) -> Tensor:
        """Joined heads to the residual stream, ``[B, q, d_model]``."""
        return F.linear(joined, self.out, self.out_bias)

    def share(self, joined: Tensor, position: int) -> Tensor:
        """What one head adds to the residual stream, ``[B, q, d_model]``."""
        columns = slice(position * self.head_dim, (position + 1) * self.head_dim)
        return F.linear(joined[..., columns], self.out[:, columns])

    def bias_only(self, x: Tensor) -> Tensor:
        """What a site without heads adds to the residual stream: the bias of its output projection."""
        zeros = x.new_zeros((x.shape[0], x.shape[1], self.out.shape[0]))
        return zeros if self.out_bias is None else zeros + self.out_bias


@dataclass(frozen=True)
class Cut:
    """A block that runs for some tokens only: they ask, all tokens answer.

    Attributes:
        memory: what the attention reads of all tokens, ``[M * B, T, d_model]``.
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

    Attributes:
        members: the projections of each member.
        head_gate: None, or a tensor ``[1 or B, sum of heads]`` that scales each head's output. A zero is the same
            as a zeroed column block of the output projection. Used by the gate criterion.
        observer: None, or a function that is given the joined heads of member 0, ``[B, T, heads * head_dim]`` (none
            where it has no heads), each time they are computed.
        given: None, or what :meth:`forward` answers in the place of attending, ``[M * B, T, d_model]``.
        cut: None, or that the inputs are those of some tokens only.
    """

    def __init__(
        self,
        members: Sequence[MemberProjections],
        *,
        scale: float | None = None,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
        self.given: Tensor | None = None
        self.cut: Cut | None = None

    @property
    def projections(self) -> list[MemberProjections]:
        """The projections of each member."""
        return list(self.members)  # type: ignore[arg-type]

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
        attended = self._attend(parts, attn_mask, is_causal)
        for index, (member, part, heads) in enumerate(zip(self.projections, parts, attended, strict=True)):
            joined = None if heads is None else member.join(heads, part)
            if self.observer is not None and index == 0:
                self.observer(part.new_zeros((*part.shape[:2], 0)) if joined is None else joined)
            outputs.append(member.bias_only(part) if joined is None else member.output(joined))
        together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return F.dropout(together, self.output_dropout, self.training)

    def _attend(self, parts: Sequence[Tensor], attn_mask: Tensor | None, is_causal: bool) -> list[Tensor | None]:
        """The attended heads ``[B, h, T, head_dim]`` of each member; None where it has no head."""
        counts = self.head_counts
        memories: Sequence[Tensor | None] = [None] * len(counts)
        if self.cut is not None:
            assert not is_causal, "a block that is cut needs its mask written out"
            memories, attn_mask = self.cut.memory.chunk(len(counts)), self.cut.mask(attn_mask)
        each = zip(self.projections, parts, memories, counts, strict=True)
        projected = [member.project(part, memory) for member, part, memory, n in each if n]
        if not projected:
            return [None] * len(counts)
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
        if self.head_gate is not None:
            attended = attended * self.head_gate[:, :, None, None]
        split = iter(attended.split([n for n in counts if n], dim=1))
        return [next(split) if n else None for n in counts]


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
