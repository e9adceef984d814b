"""All members in one batched product, forced on a CPU: what it gives, what it keeps in memory, and when it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydractl.exports.graph import traced
from hydractl.fusion.plan import FusionPlan, plan_fusion
from hydractl.model.projections import MemberProjections
from hydractl.model.runtime import HydraModel, move
from hydractl.model.stacking import PerMember, StackedWeights
from tests.pico import (
    RELATIVE,
    close,
    inputs,
    keeping,
    mask_of,
    model_of,
    shared_source,
    stock_logits,
)
from tests.spread import ONE_OF_EACH, marked_release, spread

EQUAL = [[[0, 2], [1], [0, 1]], [[1, 2], [0], [0, 2]], [[0, 1], [2], [1, 2]]]
NEARLY = [[[0, 2], [1, 2], [0, 1, 2]], [[1, 2], [0], [0, 2]], [[0, 1], [2], [0, 1, 2]]]
"""As unequal as may be in the second site, where six heads are computed for four."""
EMPTY = [[[], [1], [0, 1]], [[], [0], [0, 2]], [[], [2], [1, 2]]]
SHARED = [[[0, 2], [0, 1], [0, 1]], [[0, 2], [1, 2], [0, 2]], [[0, 2], [0, 2], [1, 2]]]
"""The first block is that of all members."""
UNEVEN = [[[0, 2], [1, 2], [0]], [[0, 2], [0], [0, 1, 2]], [[0, 2], [0, 2], [1]]]
"""In the last site too unequal, in the one before padded; the first block is that of all members."""
FEW = ["class-token", "qk-norm", "bert", "clip"]
OTHERS = ["layer-scale", "registers", "eva", "dinov3", "distilbert"]


def own_weights(variant: str, kept: Sequence[Sequence[Sequence[int]]], merge: Sequence[str] = ()) -> HydraModel:
    """Members of different weights."""
    plan = planned(variant, kept, merge)
    return model_of(plan)


def planned(variant: str, kept: Sequence[Sequence[Sequence[int]]], merge: Sequence[str] = ()) -> FusionPlan:
    """Those, not yet read."""
    sources = [shared_source(variant, m, name=f"member{m}") for m in range(len(kept))]
    return plan_fusion([keeping(s, heads) for s, heads in zip(sources, kept, strict=True)], merge)


def one_weight(variant: str, kept: Sequence[Sequence[Sequence[int]]]) -> HydraModel:
    """Members that are the same but for their heads."""
    source = shared_source(variant)
    plan = plan_fusion([keeping(source, heads) for heads in kept])
    return model_of(plan)


def library(variant: str, kept: Sequence[Sequence[Sequence[int]]], *, seeds: bool) -> list[Tensor]:
    """What the library says of each member, its heads removed by zeroed columns."""
    masks = [mask_of(shared_source(variant), heads) for heads in kept]
    return [stock_logits(variant, tuple(m.removed_heads), i if seeds else 0) for i, m in enumerate(masks)]


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of heads of each attention that ran batched."""
    ran: list[int] = []
    original = StackedWeights.output

    def output(self: StackedWeights, attended: Tensor) -> Tensor:
        ran.append(self.projections.heads)
        return original(self, attended)

    monkeypatch.setattr(StackedWeights, "output", output)
    return ran


def batched(model: HydraModel) -> HydraModel:
    model.batched = model.side_by_side = True
    return model


def answers(model: HydraModel, variant: str, expected: Sequence[Tensor]) -> None:
    for member, reference in zip(model.member_logits(inputs(variant)), expected, strict=True):
        close(member, reference)


RAN = {"equal": [2, 1, 2], "nearly": [2, 2, 3], "empty": [1, 2], "shared": [2, 2, 2], "uneven": [2, 2]}
KEPT = {"equal": EQUAL, "nearly": NEARLY, "empty": EMPTY, "shared": SHARED, "uneven": UNEVEN}
# What is stacked does not depend on the library: one of the ten ways with each model, each way with one or two.
CASES = spread((v for v in ONE_OF_EACH if v not in RELATIVE), KEPT, [False, True])
# How unequal heads may be is seen where each member has weights of its own and heads share no keys.
CASES.append(("class-token", "nearly", False))


@pytest.mark.parametrize(("variant", "case", "same"), CASES)
@torch.inference_mode()
def test_members_equal_the_library(variant: str, case: str, same: bool, sites: list[int]) -> None:
    kept = KEPT[case]
    model = batched(one_weight(variant, kept) if same else own_weights(variant, kept))
    for _ in range(2):  # the second call finds the stacks made
        answers(model, variant, library(variant, kept, seeds=not same))
    if not same and model.sites[0].sharing > 1:  # only where all share keys in the same way
        return
    assert sites, "nothing ran batched"
    if not same and model.prompted is None:
        assert sites == RAN[case] * 2
    elif not same:  # the prompts of a zero-shot model are read once, and its tower of the labels comes first
        assert set(sites) == set(RAN[case])


@torch.inference_mode()
def test_heads_with_relative_terms_run_one_member_after_another(sites: list[int]) -> None:
    answers(batched(own_weights("beit", EQUAL)), "beit", library("beit", EQUAL, seeds=True))
    assert not sites


def test_on_a_cpu_it_is_not_the_default(sites: list[int]) -> None:
    model = own_weights("class-token", EQUAL)
    model.side_by_side = True
    assert model.batched is None
    with torch.no_grad():
        model.member_logits(inputs("class-token"))
        model.batched = False
        model.member_logits(inputs("class-token"))
    assert sites == []


@pytest.mark.parametrize(
    ("variant", "same"), spread(FEW, [False, True]) + marked_release(spread(OTHERS, [False, True]))
)
def test_gradients(variant: str, same: bool) -> None:
    found = []
    for together in (False, True):
        model = one_weight(variant, SHARED) if same else own_weights(variant, NEARLY, ["norm"])
        model.batched, model.side_by_side = together, True
        model.train()
        with torch.no_grad():
            model.member_logits(inputs(variant))  # stacks that are there already must not be taken
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for attention in model.attentions:
            attention.attention_dropout = attention.output_dropout = 0.0
        model.whole_last_block = True
        model.member_logits(inputs(variant)).square().sum().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    apart, together = found
    assert apart.keys() == together.keys()
    assert sum(gradient is not None for gradient in together.values()) > 10
    for name, gradient in apart.items():
        if gradient is None:
            assert together[name] is None, name
        else:
            scale = max(1.0, float(gradient.abs().max()))
            assert float((together[name] - gradient).abs().max()) <= 1e-5 * scale, name


# --- memory and weights -----------------------------------------------------------------------------------------------


def held(model: HydraModel) -> int:
    """Bytes of everything that the parameters and stacks of a model keep in memory."""
    tensors = [*model.parameters()]
    for module in model.modules():
        stacks = module.stack_caches().values() if hasattr(module, "stack_caches") else ()
        tensors += [stack.cached for stack in stacks if stack.cached is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("variant", ["class-token", "bert", "clip"])
def test_no_weight_is_held_twice(variant: str) -> None:
    model = own_weights(variant, EQUAL, [])
    names, before = list(model.state_dict()), held(model)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        batched(model).member_logits(inputs(variant))
    assert held(model) == before
    assert list(model.state_dict()) == names
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())
    assert all(isinstance(p, nn.Parameter) and not p.is_inference() for p in model.parameters())


@torch.inference_mode()
def test_bfloat16_and_weights_moved_after_the_first_call() -> None:
    model = batched(own_weights("class-token", NEARLY))
    expected = model.member_logits(inputs("class-token"))
    model.bfloat16()
    found = model.member_logits(inputs("class-token").bfloat16())
    assert found.dtype == torch.bfloat16
    assert float((found.float() - expected).abs().max()) < 0.1 * float(expected.abs().max())
    assert held(model) < 1.2 * sum(2 * p.numel() for p in model.parameters())


# --- where it must not run --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_gates_see_single_heads(sites: list[int]) -> None:
    model = batched(own_weights("class-token", EQUAL))
    for attention in model.attentions:
        attention.head_gate = torch.zeros(1, sum(attention.head_counts))
    found = model.member_logits(inputs("class-token"))
    assert sites == []
    for member, reference in zip(found, library("class-token", [[[], [], []]] * 3, seeds=True), strict=True):
        close(member, reference)


@pytest.mark.long
def test_an_exported_graph_holds_no_stack() -> None:
    model = batched(own_weights("class-token", EQUAL))
    with torch.no_grad():
        model.member_logits(inputs("class-token"))
    graph = traced(model, None)
    constants = [*graph.program.constants.values(), *graph.program.buffers()]
    assert sum(t.numel() for t in constants if isinstance(t, Tensor)) < 2000
    found = graph.program.module()(pixel_values=inputs("class-token"))["member_logits"]
    for member, reference in zip(found, library("class-token", EQUAL, seeds=True), strict=True):
        close(member, reference)


# --- compiled ---------------------------------------------------------------------------------------------------------


def wide(batch: Any) -> Any:
    return move(batch, torch.device("cpu"), torch.float64)


@pytest.fixture
def forgotten() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


GRAPHS = ["class-token", "bert"]
GRAPHS_BEFORE_A_RELEASE = ["beit", "dinov3", "swin", "deberta-v3", "gpt2"]


@pytest.mark.long
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("variant", "same"), spread(GRAPHS, [False, True]) + marked_release(spread(GRAPHS_BEFORE_A_RELEASE, [False, True]))
)
@torch.inference_mode()
def test_compiled_as_one_graph_that_stacks_nothing(variant: str, same: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = batched(one_weight(variant, SHARED) if same else own_weights(variant, NEARLY))
    expected = model.double().member_logits(wide(inputs(variant)))
    model.compile(backend=backend)
    model.to(torch.float32).eval().double()  # all of these forget the stacks
    for _ in range(2):
        close(model.member_logits(wide(inputs(variant))), expected)
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert variant in RELATIVE or any("bmm" in name for name in called)
    assert not any("baddbmm" in name for name in called), "the bias is written first, where it could be added later"
    assert variant == "swin" or not any("pad" in name for name in called), "a stack is made in every call"
    # What is no input of the model stays where it is, so that CUDA graphs need no copy of it.
    given = {id(tensor) for tensor in (torch.utils._pytree.tree_leaves(inputs(variant)))}
    fixed = [
        node.meta["tensor_dict"].get("_dynamo_static_input_type")
        for node in graph.graph.nodes
        if node.op == "placeholder"
    ]
    assert fixed.count(None) == len(given)


def test_one_member_is_never_batched(sites: list[int]) -> None:
    source = shared_source("class-token")
    model = batched(model_of(source))
    with torch.no_grad():
        model.member_logits(inputs("class-token"))
    assert sites == [] and not any(isinstance(m, PerMember) for m in model.modules())
    assert all(isinstance(p, MemberProjections) for a in model.attentions for p in a.members)
