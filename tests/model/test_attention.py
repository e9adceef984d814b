"""The one attention module against a per-head implementation that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hydractl.families.base import State
from hydractl.families.torchvision_operators import declare_operators
from hydractl.heads.rotary import Rotary
from hydractl.heads.weights import HeadWeights
from hydractl.model.attention import HeadAttention
from hydractl.model.context import QueryTokens, RunContext
from hydractl.model.projections import HeadBank, MemberProjections
from hydractl.model.stacking import PerMember
from tests.spread import spread

declare_operators()

WIDTH, HEAD_DIM, TOKENS, BATCH = 7, 3, 5, 2
"""The width is no multiple of the head width: nothing may assume that it is."""


def weights(
    heads: int, seed: int = 0, *, bias: bool = True, gated: bool = False, dtype: torch.dtype = torch.float32
) -> HeadWeights:
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
        gate=draw(heads, HEAD_DIM, WIDTH) if gated else None,
        gate_bias=vector(heads, HEAD_DIM) if gated else None,
    )


def tokens(members: int, seed: int = 5) -> Tensor:
    return torch.randn(members * BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


FIELDS = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias", "gate", "gate_bias")


def assert_bitwise(found: HeadWeights, expected: HeadWeights) -> None:
    for name in FIELDS:
        one, two = getattr(found, name), getattr(expected, name)
        assert (one is None) == (two is None), name
        if one is not None:
            assert one.dtype == two.dtype, name
            assert torch.equal(one, two), name
    assert sorted(found.extra) == sorted(expected.extra) and found.key_heads == expected.key_heads
    assert all(torch.equal(found.extra[name], expected.extra[name]) for name in found.extra)


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


# --- weights ----------------------------------------------------------------------------------------------------------


def test_selecting_takes_heads_in_the_order_asked_for() -> None:
    full = weights(4, gated=True)
    some = full.select([3, 1])
    assert some.heads == 2
    assert some.head_dim == HEAD_DIM
    for name in set(FIELDS) - {"o_bias"}:
        assert torch.equal(getattr(some, name), torch.stack([getattr(full, name)[3], getattr(full, name)[1]])), name
    assert torch.equal(some.o_bias, full.o_bias), "the output bias belongs to no head"
    assert_bitwise(full.select(range(4)), full)


def test_selecting_nothing_keeps_the_shapes_and_the_output_bias() -> None:
    none = weights(4, gated=True).select([])
    assert none.heads == 0
    assert none.q.shape == (0, HEAD_DIM, WIDTH)
    assert none.o.shape == (0, WIDTH, HEAD_DIM)
    assert none.o_bias is not None
    assert_bitwise(none.expanded([], 4).zeroed(range(4)), none.expanded([], 4))


@pytest.mark.parametrize("gone", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_zeroing_touches_the_output_columns_of_these_heads_only(gone: list[int]) -> None:
    full = weights(4, gated=True)
    before = full.o.clone()
    ablated = full.zeroed(gone)
    assert torch.equal(full.o, before), "weights never change in place"
    for head in range(4):
        assert torch.equal(ablated.o[head], torch.zeros_like(before[head]) if head in gone else before[head])
    for name in set(FIELDS) - {"o"}:
        assert getattr(ablated, name) is getattr(full, name)


def test_expanding_puts_heads_back_in_their_places() -> None:
    full = weights(5, gated=True)
    for kept in ([0, 2, 4], [1], [], [4, 0]):
        spread = full.select(kept).expanded(kept, 5)
        assert_bitwise(spread.select(kept), full.select(kept))
        others = [h for h in range(5) if h not in kept]
        rest = spread.select(others)
        assert all(not getattr(rest, name).any() for name in set(FIELDS) - {"o_bias"})


def test_shapes_can_be_planned_without_weights() -> None:
    plan = HeadWeights(**{n: t.to("meta") for n in FIELDS if (t := getattr(weights(4), n)) is not None})
    assert plan.select([1, 3]).zeroed([0]).expanded([1, 3], 4).o.shape == (4, WIDTH, HEAD_DIM)
    assert plan.select([]).q.device.type == "meta"


@pytest.mark.parametrize(
    ("heads", "dtype", "bias", "gated"),
    spread([0, 1, 4], [torch.float32, torch.bfloat16, torch.float64], [True, False], [True, False], each=2),
)
def test_projections_give_their_weights_back_bitwise(heads: int, bias: bool, gated: bool, dtype: torch.dtype) -> None:
    given = weights(heads, bias=bias, gated=gated, dtype=dtype)
    assert_bitwise(MemberProjections(HeadBank(given)).weights(), given)


def test_projections_keep_norms_and_own_their_memory() -> None:
    given = weights(3)
    q_norm, k_norm = nn.LayerNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)
    member = MemberProjections(HeadBank(given, q_norm, k_norm))
    extra = member.weights().extra
    assert sorted(extra) == ["k_norm.weight", "q_norm.bias", "q_norm.weight"]
    before = given.q.clone()
    with torch.no_grad():
        for parameter in member.parameters():
            parameter.add_(1)
    assert torch.equal(given.q, before)
    assert torch.equal(member.weights().q, before + 1)


def test_a_missing_bias_among_others_stays_missing() -> None:
    given = weights(2)
    for missing in ("q_bias", "k_bias", "v_bias"):
        partial = HeadWeights(**{n: None if n == missing else getattr(given, n) for n in FIELDS})
        back = MemberProjections(HeadBank(partial)).weights()
        assert getattr(back, missing) is None
        for name in {"q_bias", "k_bias", "v_bias"} - {missing}:
            assert torch.equal(getattr(back, name), getattr(given, name))


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
    gains: Sequence[float] | None = None,
    norms: tuple[nn.Module, nn.Module] | None = None,
) -> Tensor:
    """Attention of one member on ``[B, T, d]``, head by head; ``bias`` is added to the scores of every head."""
    out = torch.zeros_like(x) if w.o_bias is None else torch.zeros_like(x) + w.o_bias
    for head in range(w.heads):
        key = head if w.key_heads is None else w.key_heads[head]
        rows = zip(("q", "k", "v"), (head, key, key), strict=True)
        q, k, v = (linear(x, getattr(w, n)[own], of(getattr(w, f"{n}_bias"), own)) for n, own in rows)
        if norms is not None:
            q, k = norms[0](q), norms[1](k)
        scores = q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)
        if bias is not None:
            scores = scores + bias.expand(x.shape[0], w.heads, TOKENS, TOKENS)[:, head]
        attended = scores.softmax(-1) @ v
        if gains is not None:
            attended = attended * gains[head]
        if w.gate is not None:
            attended = attended * torch.sigmoid(linear(x, w.gate[head], of(w.gate_bias, head)))
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


@pytest.mark.fault(22)
@torch.no_grad()
@pytest.mark.parametrize("counts", [[0], [0, 0, 0]])
@pytest.mark.parametrize("bias", [True, False])
def test_a_site_without_any_head_adds_its_bias(counts: list[int], bias: bool) -> None:
    members = [weights(n, seed, bias=bias) for seed, n in enumerate(counts)]
    module = attention(members)
    module.head_gate = torch.ones(1, 0)
    found = module(tokens(len(counts)))
    for part, member in zip(found.chunk(len(counts)), members, strict=True):
        expected = torch.zeros_like(part) if member.o_bias is None else member.o_bias.expand_as(part)
        assert torch.equal(part, expected)


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


@torch.no_grad()
@pytest.mark.parametrize("case", ["one", "unequal", "ends"])
def test_causal_attention_sees_no_later_token(case: str) -> None:
    members = [weights(n, seed) for seed, n in enumerate(COUNTS[case])]
    x = tokens(len(members))
    bias = torch.full((TOKENS, TOKENS), -math.inf).triu(1)[None, None]
    expected = reference(x, members, bias=bias)
    close(attention(members)(x, is_causal=True), expected)
    close(attention(members)(x, attn_mask=bias), expected)


@torch.no_grad()
def test_an_additive_mask_is_added() -> None:
    members = [weights(2, 0), weights(3, 1)]
    bias = torch.randn(BATCH, 1, TOKENS, TOKENS, generator=torch.Generator().manual_seed(9))
    x = tokens(2)
    close(attention(members)(x, attn_mask=bias), reference(x, members, bias=bias))


def sharing(seed: int = 0, *, bias: bool = True) -> HeadWeights:
    """Six heads, three of which share a head of keys and values each."""
    own, two = weights(6, seed, bias=bias), slice(0, 2)
    fields = {n: None if (t := getattr(own, n)) is None else t[two] for n in ("k", "v", "k_bias", "v_bias")}
    return replace(own, **fields, key_heads=(0, 0, 0, 1, 1, 1))


@torch.no_grad()
@pytest.mark.parametrize(
    ("kept", "bias"),
    [([[0, 1, 2, 3, 4, 5]], False), ([[1, 3, 4], [], [4, 5]], True), ([[0, 5], [2, 3], [1, 4]], False)],
)
def test_heads_share_keys_and_values(kept: list[list[int]], bias: bool) -> None:
    whole = [sharing(seed, bias=bias) for seed in range(len(kept))]
    members = [one.select(heads) for one, heads in zip(whole, kept, strict=True)]
    assert [len(one.k) for one in members] == [len({head // 3 for head in heads}) for heads in kept]
    x = tokens(len(kept))
    expected = reference(x, members)
    module = attention(members)
    close(module(x), expected)
    last = torch.full((BATCH, 1), TOKENS - 1)
    for batched in (False, True):
        close(RunContext(batched=batched).run(lambda state: module(state.hidden), State(x)), expected)
        context = RunContext(batched=batched, queries=QueryTokens(last, x))
        close(context.run(lambda state: module(state.hidden), State(x[:, -1:])), expected[:, -1:])
    for one, projections, heads in zip(members, module.projections, kept, strict=True):
        assert_bitwise(projections.weights(), one)
        full = one.expanded(heads, 6, (0, 0, 0, 1, 1, 1))
        assert full.k.shape == (2, HEAD_DIM, WIDTH) and full.key_heads == (0, 0, 0, 1, 1, 1)
        assert_bitwise(full.select(heads), one)


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
@pytest.mark.parametrize(("counts", "bias"), [([3], False), ([2, 0, 3], True)])
def test_gated_output(counts: list[int], bias: bool) -> None:
    members = [weights(n, seed, gated=True, bias=bias) for seed, n in enumerate(counts)]
    close(attention(members)(tokens(len(counts))), reference(tokens(len(counts)), members))


@torch.no_grad()
def test_query_and_key_norms_act_on_each_head() -> None:
    members, modules, expected = [], [], []
    x = tokens(3)
    for seed, (heads, part) in enumerate(zip([2, 0, 3], x.chunk(3), strict=True)):
        norms = nn.LayerNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)
        generator = torch.Generator().manual_seed(seed)
        for parameter in (*norms[0].parameters(), *norms[1].parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        members.append(weights(heads, seed))
        modules.append(MemberProjections(HeadBank(members[-1], *norms)))
        expected.append(naive(part, members[-1], norms=norms))
    found = HeadAttention(modules).eval()(x)
    close(found, torch.cat(expected))
    assert not torch.allclose(found, reference(x, members), atol=1e-2), "the norms must matter"


@torch.no_grad()
def test_a_head_gate_of_zero_is_a_zeroed_head_and_one_is_nothing() -> None:
    members = [weights(2, 0), weights(0, 1), weights(3, 2)]
    x = tokens(3)
    module = attention(members)
    plain = module(x)
    module.head_gate = torch.ones(1, 5)
    assert torch.equal(module(x), plain)
    module.head_gate = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    gone = [members[0].zeroed([1]), members[1], members[2].zeroed([0, 2])]
    close(module(x), reference(x, gone))
    close(module(x), reference(x, [members[0].select([0]), members[1], members[2].select([1])]))
    module.head_gate = torch.tensor([[1.0, 0.5, 2.0, 1.0, -1.0]])
    gains = ([1.0, 0.5], [], [2.0, 1.0, -1.0])
    expected = [naive(p, w, gains=g) for p, w, g in zip(x.chunk(3), members, gains, strict=True)]
    close(module(x), torch.cat(expected))


@torch.no_grad()
def test_a_head_gate_may_differ_between_samples() -> None:
    members = [weights(2, 0), weights(1, 1)]
    x = tokens(2)
    module = attention(members)
    module.head_gate = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    by_sample = [[members[0].zeroed([1]), members[1]], [members[0].zeroed([0]), members[1].zeroed([0])]]
    found = module(x).reshape(2, BATCH, TOKENS, WIDTH)
    for sample, chosen in enumerate(by_sample):
        close(found[:, sample], reference(x, chosen).reshape_as(found)[:, sample])


def test_gradients_reach_every_head_and_its_gate() -> None:
    module = attention([weights(2, 0), weights(0, 1), weights(1, 2)])
    module.head_gate = torch.ones(1, 3, requires_grad=True)
    module(tokens(3)).square().sum().backward()
    assert module.head_gate.grad is not None
    assert bool((module.head_gate.grad != 0).all())
    for index in (0, 2):
        gradient = module.members[index].bank.qkv.grad
        assert isinstance(gradient, Tensor)
        assert bool(gradient.abs().sum(1).all())


def test_dropout_acts_in_training_only() -> None:
    members, x = [weights(3, bias=False)], tokens(1)
    for options in ({"attention_dropout": 1.0}, {"output_dropout": 1.0}):
        module = attention(members, **options)
        close(module(x).detach(), reference(x, members))
        assert not module.train()(x).any()


@torch.no_grad()
def test_members_never_see_each_other() -> None:
    members = [weights(2, 0), weights(3, 1)]
    x = tokens(2)
    other = x.clone()
    other[:BATCH] = 1000.0
    assert torch.equal(attention(members)(x)[BATCH:], attention(members)(other)[BATCH:])


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({}, {}),
        ({"qk_norm": True}, {"is_causal": True}),
        ({"gated": True}, {}),
        ({"qkv_bias": False, "proj_bias": False}, {"is_causal": True}),
    ],
)
def test_it_is_the_library_s_attention_bit_for_bit(options: dict[str, bool], call: dict[str, bool]) -> None:
    from timm.layers import Attention

    from hydractl.families.timm import FAMILY
    from hydractl.heads.mask import Site

    torch.manual_seed(0)
    theirs = Attention(12, num_heads=3, norm_layer=nn.LayerNorm, **{"qkv_bias": True, **options}).eval()
    site = Site("attn", 3, 4, 12)
    given = FAMILY.read({f"attn.{name}": tensor for name, tensor in theirs.state_dict().items()}, site)
    ours = HeadAttention([MemberProjections(HeadBank(given, theirs.q_norm, theirs.k_norm))]).eval()
    x = torch.randn(2, 5, 12)
    assert torch.equal(ours(x, **call), theirs(x, **call))


@torch.no_grad()
def test_one_module_per_member() -> None:
    modules = [nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)]
    x = tokens(3)
    expected = torch.cat([module(part) for module, part in zip(modules, x.split(BATCH), strict=True)])
    assert torch.equal(PerMember(modules)(x), expected)
