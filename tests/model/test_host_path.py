"""What a forward pass does beside its arithmetic: how much, and that nothing it keeps is ever out of date."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydractl.methods.lora.matrices import LowRankProjections
from hydractl.model.runtime import HydraModel
from tests.fusion.test_batched import NEARLY, SHARED, batched, one_weight, own_weights
from tests.pico import VARIANTS, close, inputs, model_of, shared_source
from tests.spread import marked_release

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TWELVE = "vit_tiny_patch16_224?pretrained=0&img_size=32&embed_dim=24&depth=12&num_heads=3&num_classes=5"


# --- how much ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def host_path(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that counts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("host_path")


def test_operators_and_calls_of_twelve_blocks(host_path: ModuleType) -> None:
    models = host_path.models_by_name(TWELVE, [0, 10])
    given = models["single"].example_inputs(1)
    counts = {name: host_path.count_of(model, given) for name, model in models.items()}
    stock, single = counts["stock"], counts["single"]
    # The last block alone takes more: its norm runs for the tokens that are attended to and for the one that is read,
    # whose projection and theirs are two layers of four copied parts; and the mean over members has a few.
    assert single.operators <= stock.operators + 10
    assert single.calls <= stock.calls
    for name in ("fused0", "fused10"):
        assert counts[name].operators <= single.operators + 10, name
        assert counts[name].calls < 1.2 * single.calls, name


class OnTheHost(TorchDispatchMode):
    """Collects the operators that a model on the meta device, which stands for a GPU, gives to the host.

    On a GPU each of them copies to the device and waits for it, or a mask as an index is counted, and no CUDA graph can
    hold that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        tensors = [value for value in tree_leaves([args, kwargs, result]) if isinstance(value, Tensor)]
        by_mask = name == "index" and any(tensor.dtype == torch.bool for tensor in tensors[1:])
        if by_mask or any(tensor.device.type == "cpu" for tensor in tensors):
            self.names.add(name)
        return result


HOST = ("dinov3", "sapiens2", "deberta-v3")
"""The models that compute something on the host in every run: the library's positions of tokens."""
WAITING = ("class-token", "eva", "beit", "bert", "modernbert", "llama", "clip")
"""One for each kind of mask and of positions."""


@pytest.mark.parametrize(
    "variant", [*WAITING, *marked_release(v for v in VARIANTS if v not in WAITING and v not in HOST)]
)
@torch.no_grad()
def test_a_gpu_is_never_waited_for(variant: str) -> None:
    model = batched(own_weights(variant, NEARLY)).to("meta")  # batched as on a GPU
    batch: Any = inputs(variant)
    if isinstance(batch, dict):
        batch = {name: tensor.to("meta") for name, tensor in batch.items()}
    else:
        batch = batch.to("meta")
    model.member_logits(batch)  # makes what is kept from run to run
    on_the_host = OnTheHost()
    # While a graph is captured, transformers does not look at the numbers in masks.
    with mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True), on_the_host:
        model.member_logits(batch)
    assert on_the_host.names == set()


# --- nothing is out of date -------------------------------------------------------------------------------------------


def single(variant: str) -> HydraModel:
    source = shared_source(variant)
    return model_of(source)


MODELS: dict[str, Callable[[], HydraModel]] = {
    "single": lambda: single("class-token"),
    "weights of their own": lambda: batched(own_weights("class-token", NEARLY)),
    "weights in common": lambda: batched(one_weight("class-token", SHARED)),
}


def in_place(model: HydraModel) -> None:
    """As an optimiser."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


def data_in_place(model: HydraModel) -> None:
    """As a hand-written average of weights, which torch counts nowhere."""
    for parameter in model.parameters():
        parameter.data.mul_(1.1)


def data_swapped(model: HydraModel) -> None:
    """As an average of weights that is swapped in; the second swap may find the addresses of the first."""
    for _ in range(2):
        averages = [parameter.data * 1.05 for parameter in model.parameters()]
        for parameter, average in zip(model.parameters(), averages, strict=True):
            parameter.data = average


def larger_state(model: HydraModel) -> dict[str, Tensor]:
    return {name: tensor * 1.1 for name, tensor in model.state_dict().items()}


def loaded(model: HydraModel) -> None:
    model.load_state_dict(larger_state(model))


def assigned(model: HydraModel) -> None:
    model.load_state_dict(larger_state(model), assign=True)


def loaded_in_a_part(model: HydraModel) -> None:
    attention = model.attentions[2]
    attention.load_state_dict({name: tensor * 1.5 for name, tensor in attention.state_dict().items()})


def replaced(model: HydraModel) -> None:
    """Other parameters in the place of these."""
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() * 1.1))


def member_replaced(model: HydraModel) -> None:
    """As a search for circuits, which gives a model other heads again and again."""
    for attention in model.attentions:
        projections = copy.deepcopy(attention.projections[0])
        projections.bank.out.mul_(1.5)
        attention.replace_member(0, projections)


def in_bfloat16(model: HydraModel) -> None:
    model.bfloat16()


CHANGES = (
    *(in_place, data_in_place, data_swapped, loaded, assigned, loaded_in_a_part, replaced, member_replaced),
    in_bfloat16,
)


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_weights_that_change_between_two_runs(kind: str) -> None:
    made = MODELS[kind]()
    for change in CHANGES:
        model = copy.deepcopy(made)
        given = inputs("class-token")
        before = model.member_logits(given)
        assert torch.equal(model.member_logits(given), before)
        change(model)
        if change is data_in_place and kind == "weights in common":
            model.eval()  # nothing tells a copy that this happened, as model.train() and eval() do
        given = given.to(next(model.parameters()).dtype)
        expected = copy.deepcopy(model).member_logits(given)  # a copy has kept nothing
        found = model.member_logits(given)
        assert torch.equal(found, expected), change.__name__
        assert not torch.allclose(found.float(), before, rtol=1e-4), change.__name__


# Not with weights in common: their modules have several paths, and torch would put back what it has put in.
@pytest.mark.parametrize("kind", ["single", "weights of their own"])
@torch.no_grad()
def test_weights_given_for_one_call(kind: str) -> None:
    model = MODELS[kind]()
    before = model(inputs("class-token"))
    other = copy.deepcopy(model)
    in_place(other)
    weights = {name: parameter.detach() for name, parameter in other.named_parameters()}
    found = torch.func.functional_call(model, weights, (inputs("class-token"),))
    close(found, other(inputs("class-token")))
    assert torch.equal(model(inputs("class-token")), before)


@pytest.mark.parametrize("kind", ["weights of their own", "weights in common"])
def test_a_run_in_inference_mode_before_one_with_gradients(kind: str) -> None:
    model = MODELS[kind]()
    with torch.inference_mode():
        expected = model.member_logits(inputs("class-token"))
    found = model.member_logits(inputs("class-token"))
    close(found.detach(), expected)
    found.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.attentions[-1].parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer.step()
    with torch.inference_mode():
        stepped = model.member_logits(inputs("class-token"))
        assert torch.equal(stepped, copy.deepcopy(model).member_logits(inputs("class-token")))
    assert not torch.allclose(stepped, expected)


@torch.no_grad()
def test_settings_that_change_between_two_runs() -> None:
    model = batched(own_weights("bert", NEARLY))
    fast = model.member_logits(inputs("bert"))
    model.batched = False
    slow = model.member_logits(inputs("bert"))
    close(fast, slow)
    model.batched = True
    assert torch.equal(model.member_logits(inputs("bert")), fast)
    gates = [torch.zeros(1, sum(attention.head_counts)) for attention in model.attentions]
    for attention, gate in zip(model.attentions, gates, strict=True):
        attention.head_gate = gate
    assert not torch.allclose(model.member_logits(inputs("bert")), fast, rtol=1e-3)
    for attention in model.attentions:
        attention.head_gate = None
    assert torch.equal(model.member_logits(inputs("bert")), fast)


@torch.no_grad()
def test_weights_that_are_computed_are_never_kept() -> None:
    model = batched(own_weights("class-token", NEARLY))
    before = model.member_logits(inputs("class-token"))
    generator = torch.Generator().manual_seed(0)
    for attention in model.attentions:
        for bank in [projections.bank for projections in attention.projections]:
            matrices = LowRankProjections(bank.packing, bank.qkv.detach(), 2, 4.0)
            matrices.draw(generator)
            parametrize.register_parametrization(bank, "qkv", matrices)
    close(model.member_logits(inputs("class-token")), before)  # B is zero at first
    for name, parameter in model.named_parameters():
        if name.endswith(".b"):
            parameter.fill_(0.3)
    found = model.member_logits(inputs("class-token"))
    assert not torch.allclose(found, before, rtol=1e-3)
    model.batched = False
    close(found, model.member_logits(inputs("class-token")))
