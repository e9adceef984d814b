"""transformers' DeBERTa v2 and v3, whose scores of attention also compare tokens with vectors of their distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydractl.heads.relative import Relative

BODY = "DebertaV2Model"
"""The class of the encoder."""
PER_MEMBER = ("rel_embeddings",)
"""The keys of the context whose tensors depend on weights."""


class DisentangledInPlace(nn.Module):
    """Replaces DeBERTa's attention.

    Args:
        attention: the :class:`hydractl.model.attention.HeadAttention` to call.
        library: transformers' attention module that is replaced.
    """

    def __init__(self, attention: Any, library: Any) -> None:
        super().__init__()
        self.attention = attention
        attention.keep_apart()  # each ensemble member runs by itself, because distances belong to single heads

        # How distances enter the scores: their greatest number in one direction, and the two terms that a model may
        # have (c2p compares queries with vectors of distances, p2c compares keys with them).
        self.pos_dropout = library.pos_dropout
        self.span = library.pos_ebd_size
        self.to_position = "c2p" in library.pos_att_type
        self.to_content = "p2c" in library.pos_att_type
        # Scores are q k plus up to two terms of distances, times 1 / sqrt(head_dim * number of terms).
        terms = 1 + self.to_position + self.to_content
        self.scale = (library.attention_head_size * terms) ** -0.5

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Return the attention of M ensemble members over B samples, ``[M * B, T, d_model]``, and None (no weights).

        Args:
            hidden_states: ``[M * B, T, d_model]``.
            attention_mask: nonzero where a query may attend to a key.
            output_attentions, query_states: ignored.
            relative_pos: the distance from each query to each key, ``[1, T, T]``, negative if the key comes later.
            rel_embeddings: the vectors of the R distances, ``[R, d_model]`` or ``[M, R, d_model]``.
        """
        assert relative_pos is not None and rel_embeddings is not None
        # The row in `rel_embeddings` for each pair. Rows are for distances from -span to span - 1; all smaller
        # distances share the first row, all greater ones the last.
        rows = (relative_pos[0] + self.span).clamp(0, 2 * self.span - 1)  # [T, T]
        relative = Relative(
            rows,
            embeddings=self.pos_dropout(rel_embeddings),
            to_position=self.to_position,
            to_content=self.to_content,
            scale=self.scale,
        )
        return self.attention(hidden_states, attn_mask=attention_mask.bool(), relative=relative), None


def layer_arguments(base: Any, hidden: Tensor, mask: Tensor | None) -> dict[str, object]:
    """Return what DeBERTa's layers take beside the tokens, by transformers' names: mask, distances, and their vectors.

    A layer compares tokens also with one vector for each distance between two tokens.

    Args:
        base: the encoder.
        hidden: the tokens before the first layer, ``[B, T, d_model]``.
        mask: 1 for tokens that are not padding, ``[B, T]``; None if no token is padding.
    """
    encoder = base.encoder
    # The vectors of all distances, [R, d_model]. The module is called, because its weight may be in 16 bits.
    rows = torch.arange(encoder.rel_embeddings.num_embeddings, device=hidden.device)
    vectors = encoder.rel_embeddings(rows)
    if "layer_norm" in encoder.norm_rel_ebd:
        vectors = encoder.LayerNorm(vectors)
    if mask is None:
        mask = torch.ones_like(hidden[..., 0])
    return {
        "attention_mask": encoder.get_attention_mask(mask),
        "relative_pos": encoder.get_rel_pos(hidden),
        "rel_embeddings": vectors,
    }


def problems(base: Any) -> list[str]:
    """List the reasons why a DeBERTa is not supported; empty if it is."""
    messages = []
    if base.encoder.conv is not None:
        messages.append("it has a convolution beside its first layer (conv_kernel_size)")
    terms = {"c2p", "p2c"} & set(base.config.pos_att_type or ())
    if not base.config.relative_attention or not terms:
        messages.append("it has no relative attention (relative_attention with c2p or p2c as pos_att_type)")
    return messages
