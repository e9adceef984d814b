"""What every family must hold, with the library's own model as the reference."""

from __future__ import annotations

import pytest
import torch

from hydractl.fusion.runtime import HydraModel
from hydractl.heads import HeadMask
from hydractl.slicing import zeroed
from tests.pico import VARIANTS, close, images, mask_of, prune_source, source_of, stock, zero_columns

MASKS = {
    "unequal": [[0, 2], [1], [0, 1, 2]],
    "one-site-empty": [[1, 2], [], [0]],
    "first-and-last-empty": [[], [0, 1], []],
    "all-empty": [[], [], []],
}


@pytest.fixture(params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


@torch.no_grad()
def test_full_mask_gives_the_original_logits(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors)
    close(model.member_logits(images())[0], reference(images()))


@torch.no_grad()
@pytest.mark.parametrize("name", list(MASKS))
def test_slicing_equals_the_stock_model_with_zeroed_columns(variant: str, name: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    mask = mask_of(source, MASKS[name])
    sliced = prune_source(source, mask)
    model = HydraModel(sliced.description, sliced.tensors)
    assert [a.head_counts[0] for a in model.attentions] == mask.counts()
    expected = zero_columns(reference, mask.removed_heads)(images())
    assert not torch.allclose(expected, reference(images()), atol=1e-3), "the removed heads must matter"
    close(model.member_logits(images())[0], expected)


@torch.no_grad()
def test_gating_equals_the_stock_model_with_zeroed_columns(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    mask = mask_of(source, MASKS["unequal"])
    model = HydraModel(source.description, source.tensors)
    for attention, (path, heads) in zip(model.attentions, mask.heads.items(), strict=True):
        gate = [1.0 if h in mask.kept[path] else 0.0 for h in range(heads)]
        attention.head_gate = torch.tensor([gate])
    close(model.member_logits(images())[0], zero_columns(reference, mask.removed_heads)(images()))


@torch.no_grad()
def test_the_zeroed_layout_loads_in_the_stock_model(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    mask = mask_of(source, MASKS["one-site-empty"])
    tensors = zeroed(source.tensors, source.family, source.sites, HeadMask.full(source.sites), mask)
    loaded = stock(variant, seed=9)
    loaded.load_state_dict({name: tensors.read(name) for name in tensors.names()})
    close(loaded(images()), zero_columns(reference, mask.removed_heads)(images()))


@torch.no_grad()
def test_a_sliced_model_expands_to_the_stock_shapes(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    mask = mask_of(source, MASKS["unequal"])
    sliced = prune_source(source, mask)
    tensors = zeroed(sliced.tensors, source.family, source.sites, mask, mask)
    loaded = stock(variant, seed=9)
    loaded.load_state_dict({name: tensors.read(name) for name in tensors.names()})
    close(loaded(images()), zero_columns(reference, mask.removed_heads)(images()))


def test_read_then_write_is_bitwise_identity(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    before = reference.state_dict()
    for site in source.sites:
        after = {n: t for n, t in before.items() if n.startswith(site.path + ".")}
        written: dict[str, torch.Tensor] = {}
        source.family.write(written, site, source.family.read(after, site))
        assert sorted(written) == sorted(after)
        assert all(torch.equal(written[name], after[name]) for name in after)


def test_the_runtime_gives_its_weights_back_bitwise(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    sliced = prune_source(source, mask_of(source, MASKS["one-site-empty"]))
    back = HydraModel(sliced.description, sliced.tensors).stock_tensors()
    assert sorted(back) == sliced.tensors.names()
    assert all(torch.equal(back[name], sliced.tensors.read(name)) for name in back)


@torch.no_grad()
def test_pruning_twice_composes_in_original_numbers(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    first = prune_source(source, mask_of(source, [[0, 2], [1, 2], [0, 1, 2]]))
    second = prune_source(first, mask_of(source, [[2], [1, 2], [0, 2]]))
    removed = second.description.mask.removed_heads
    assert second.description.mask.kept["blocks.0.attn"] == (2,)
    model = HydraModel(second.description, second.tensors)
    close(model.member_logits(images())[0], zero_columns(reference, removed)(images()))


@torch.no_grad()
def test_stages_put_together_are_the_model(variant: str) -> None:
    reference = stock(variant)
    stages = source_of(reference, variant).family.stages(reference)
    state = stages.stem(images())
    for block in stages.blocks:
        state = block(state)
    assert torch.equal(stages.readout(state), reference(images()))


def test_every_parameter_belongs_to_a_part(variant: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    parts = {name: source.family.part(name, source.sites) for name, _ in reference.named_parameters()}
    assert set(parts.values()) <= {"attention", "mlp", "norm", "embed", "own"}
    assert parts["head.weight"] == "own"
    assert parts["patch_embed.proj.weight"] == "embed"
    assert parts["blocks.1.mlp.fc1.weight"] == "mlp"
    assert parts["blocks.1.attn.qkv.weight"] == "attention"
    assert parts["blocks.1.norm2.bias"] == "norm"
    if variant == "layer-scale":
        assert parts["blocks.1.ls1.gamma"] == "own"
