"""The one attention module against a per-head implementation that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hydractl.families.base import State
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.rotary import Rotary
from hydractl.heads.weights import HeadWeights
from hydractl.model.attention import HeadAttention
from hydractl.model.context import QueryTokens, RunContext
from hydractl.model.projections import HeadBank, MemberProjections
from tests.spread import spread

declare_operators()

WIDTH, HEAD_DIM, TOKENS, BATCH = 7, 3, 5, 2
"""The width is no multiple of the head width: nothing may assume that it is."""


def weights(heads: int, seed: int = 0, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> HeadWeights:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * 0.7).to(dtype)

    def vector(*shape: int) -> Tensor | None:
        return draw(*shape) if bias else None

    return HeadWeights(
        q=draw(heads, HEAD_DIM, WIDTH),
        k=draw(heads, HEAD_DIM, WIDTH),
        v=draw(heads, HEAD_DIM, WIDTH),
        o=draw(heads, WIDTH, HEAD_DIM),
        q_bias=vector(heads, HEAD_DIM),
        k_bias=vector(heads, HEAD_DIM),
        v_bias=vector(heads, HEAD_DIM),
        o_bias=vector(WIDTH),
    )


def tokens(members: int, seed: int = 5) -> Tensor:
    return torch.randn(members * BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


# --- positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [False, True])
def test_rotary_positions_turn_pairs_as_complex_numbers(neighbours: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    heads, angles = torch.randn(2, 3, TOKENS, 8, generator=draw), torch.randn(TOKENS, 4, generator=draw)
    rotary = rotary_of(angles, neighbours)
    turned = torch.polar(torch.ones(TOKENS, 4), angles) * as_complex(heads, neighbours)
    assert torch.allclose(as_complex(rotary(heads), neighbours), turned, atol=1e-6)
    positions = torch.tensor([[4, 0], [2, 2]])
    some = torch.stack([one[:, at] for one, at in zip(heads, positions, strict=True)])
    expected = torch.stack([one[:, at] for one, at in zip(rotary(heads), positions, strict=True)])
    assert torch.allclose(rotary.at(positions)(some), expected, atol=1e-6)
    assert torch.allclose(rotary.at(positions).repeated(2)(torch.cat([some, some]))[2:], expected, atol=1e-6)


def rotary_of(angles: Tensor, neighbours: bool) -> Rotary:
    each = angles.repeat_interleave(2, dim=-1) if neighbours else angles.repeat(1, 2)
    return Rotary(each.cos()[None, None], each.sin()[None, None], neighbours)


def as_complex(heads: Tensor, neighbours: bool) -> Tensor:
    pairs = heads.unflatten(-1, (-1, 2)) if neighbours else heads.unflatten(-1, (2, -1)).transpose(-1, -2)
    return torch.view_as_complex(pairs.contiguous())


def test_a_bias_that_a_library_leaves_out_stays_out() -> None:
    bank = HeadBank(replace(weights(4), k_bias=None))
    bank.project(slice(0, 4), tokens(1))[1].sum().backward()
    assert bank.weights().k_bias is None
    parts = bank.qkv_bias.grad.reshape(4, 3, HEAD_DIM)  # type: ignore[union-attr]
    assert not parts.any(), "only keys were used, and their bias is none"
    bank.project(slice(0, 4), tokens(1))[0].sum().backward()
    assert parts[:, 0].all()


# --- attention --------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.T if bias is None else x @ weight.T + bias


def of(tensor: Tensor | None, head: int) -> Tensor | None:
    return None if tensor is None else tensor[head]


def naive(
    x: Tensor,
    w: HeadWeights,
    *,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention of one member on ``[B, T, d]``, head by head; ``bias`` is added to the scores of every head."""
    out = torch.zeros_like(x) if w.o_bias is None else torch.zeros_like(x) + w.o_bias
    for head in range(w.heads):
        key = head if w.key_heads is None else w.key_heads[head]
        rows = zip(("q", "k", "v"), (head, key, key), strict=True)
        q, k, v = (linear(x, getattr(w, n)[own], of(getattr(w, f"{n}_bias"), own)) for n, own in rows)
        scores = q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)
        if bias is not None:
            scores = scores + bias.expand(x.shape[0], w.heads, TOKENS, TOKENS)[:, head]
        attended = scores.softmax(-1) @ v
        out = out + attended @ w.o[head].T
    return out


def reference(x: Tensor, members: Sequence[HeadWeights], **options: object) -> Tensor:
    return torch.cat([naive(p, w, **options) for p, w in zip(x.chunk(len(members)), members, strict=True)])  # type: ignore[arg-type]


def attention(members: Sequence[HeadWeights], **options: float) -> HeadAttention:
    return HeadAttention([MemberProjections(HeadBank(w)) for w in members], **options).eval()  # type: ignore[arg-type]


def close(found: Tensor, expected: Tensor) -> None:
    """Equal but for a few roundings of the terms, which are as large as the largest of their sums."""
    assert found.shape == expected.shape
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * largest)


COUNTS = {"one": [4], "single-head": [1], "equal": [2, 2], "unequal": [1, 4, 2], "gap": [3, 0, 2], "ends": [0, 2, 0]}


@torch.no_grad()
@pytest.mark.parametrize(("case", "bias"), spread(COUNTS, [True, False]))
def test_members_attend_side_by_side_as_alone(case: str, bias: bool) -> None:
    members = [weights(n, seed, bias=bias) for seed, n in enumerate(COUNTS[case])]
    module = attention(members)
    assert module.head_counts == COUNTS[case]
    close(module(tokens(len(members))), reference(tokens(len(members)), members))


def padding() -> Tensor:
    """Which keys each of the two samples may see: ``[B, 1, 1, T]``."""
    return torch.tensor([[True, True, True, False, False], [True] * TOKENS])[:, None, None, :]


@torch.no_grad()
@pytest.mark.parametrize("case", ["one", "unequal", "gap", "ends"])
def test_a_boolean_mask_of_one_batch_serves_every_member(case: str) -> None:
    members = [weights(n, seed) for seed, n in enumerate(COUNTS[case])]
    bias = torch.zeros(BATCH, 1, 1, TOKENS).masked_fill(~padding(), -math.inf)
    x = tokens(len(members))
    expected = reference(x, members, bias=bias)
    close(attention(members)(x, attn_mask=padding()), expected)
    close(attention(members)(x, attn_mask=bias), expected)
    hidden = x.clone().reshape(len(members), BATCH, TOKENS, WIDTH)
    hidden[:, 0, 3:] += 100  # what is masked has no influence on what is not
    found = attention(members)(hidden.flatten(0, 1), attn_mask=padding()).reshape_as(hidden)
    close(found[:, 0, :3], expected.reshape_as(hidden)[:, 0, :3])
    assert not torch.allclose(expected, reference(x, members)) or not sum(COUNTS[case])


def sharing(seed: int = 0, *, bias: bool = True) -> HeadWeights:
    """Six heads, three of which share a head of keys and values each."""
    own, two = weights(6, seed, bias=bias), slice(0, 2)
    fields = {n: None if (t := getattr(own, n)) is None else t[two] for n in ("k", "v", "k_bias", "v_bias")}
    return replace(own, **fields, key_heads=(0, 0, 0, 1, 1, 1))


@torch.no_grad()
@pytest.mark.parametrize("kept", [[[1, 3, 4], [], [4, 5]], [[0, 5], [2, 3], [1, 4]]])
def test_heads_share_keys_and_values(kept: list[list[int]]) -> None:
    members = [sharing(seed).select(heads) for seed, heads in enumerate(kept)]
    x = tokens(len(kept))
    expected = reference(x, members)
    module = attention(members)
    last = torch.full((BATCH, 1), TOKENS - 1)
    for batched in (False, True):
        close(RunContext(batched=batched).run(lambda state: module(state.hidden), State(x)), expected)
        context = RunContext(batched=batched, queries=QueryTokens(last, x))
        close(context.run(lambda state: module(state.hidden), State(x[:, -1:])), expected[:, -1:])


@torch.no_grad()
def test_a_bank_of_heads_that_share_keys() -> None:
    """Of several members, in an order that tears apart those that share."""
    order, kept = [0, 3, 1, 4, 2, 5], [[0, 1, 3], [1, 2], [2, 4, 5]]
    bank = HeadBank(sharing().select(order))
    members = [MemberProjections(bank, [order.index(head) for head in heads]) for heads in kept]
    x = tokens(1)
    expected = torch.cat([naive(x, sharing().select(heads)) for heads in kept])
    close(HeadAttention(members).eval()(x.repeat(3, 1, 1)), expected)
    pooled = HeadAttention(members, pooled=True).eval()
    close(pooled(x.repeat(3, 1, 1)), expected)
    close(RunContext(batched=True).run(lambda state: pooled(state.hidden), State(x.repeat(3, 1, 1))), expected)


@torch.no_grad()
def test_a_head_gate_may_differ_between_samples() -> None:
    members = [weights(2, 0), weights(1, 1), weights(0, 2)]
    x = tokens(3)
    module = attention(members)
    module.head_gate = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    by_sample = [
        [members[0].zeroed([1]), members[1], members[2]],
        [members[0].zeroed([0]), members[1].zeroed([0]), members[2]],
    ]
    found = module(x).reshape(3, BATCH, TOKENS, WIDTH)
    for sample, chosen in enumerate(by_sample):
        close(found[:, sample], reference(x, chosen).reshape_as(found)[:, sample])


def test_dropout_acts_in_training_only() -> None:
    members, x = [weights(3, bias=False)], tokens(1)
    for options in ({"attention_dropout": 1.0}, {"output_dropout": 1.0}):
        module = attention(members, **options)
        close(module(x).detach(), reference(x, members))
        assert not module.train()(x).any()
