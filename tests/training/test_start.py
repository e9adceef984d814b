"""What is trained and what training starts from, against the libraries' own models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.model.loading import build_model
from hydractl.model.source import Source
from hydractl.model.stored import check_tensors
from hydractl.training.options import WeightOptions
from hydractl.training.start import drawn, trainable, with_drawn_head, with_dropout, with_new_head
from tests.pico import (
    CLIP,
    HF,
    TIMM,
    inputs,
    mask_of,
    prune_source,
    shared_stock,
    source_of,
)
from tests.spread import ONE_OF_EACH, marked_release, spread

# Each kind of classifier that the libraries have.
HEADS = [variant for variant in ONE_OF_EACH if variant not in (*CLIP, "map-pooling", "eva", "beit", "modernbert")]
HEADS += ["distilled", "swin", "distilbert", "roberta", "gpt2", "hf-deit-distilled"]
RARER_HEADS = ["electra", "deberta-v3"]


@pytest.mark.parametrize(("variant", "classes"), spread(HEADS, [5, 7]) + marked_release(spread(RARER_HEADS, [5, 7])))
def test_a_new_head_is_zeros_and_all_else_is_as_it_was(variant: str, classes: int) -> None:
    source = source_of(shared_stock(variant), variant)
    made = with_new_head(source, [f"c{i}" for i in range(classes)], classes)
    check_tensors("made", made.tensors, made.family, made.description, made.sites)
    assert made.classes == classes
    changed = {n for n in made.tensors.names() if not _equal(made.tensors.read(n), source.tensors.read(n))}
    assert changed and all("classifier" in n or n.startswith(("head", "score")) for n in changed)
    assert all(not made.tensors.read(n).any() for n in changed)
    logits = build_model(made).member_logits(inputs(variant))[0]
    assert logits.shape == (3, classes)
    assert torch.equal(logits, torch.zeros_like(logits))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


@pytest.mark.parametrize("variant", ["class-token", "distilled", "roberta", "hf-deit-distilled"])
def test_a_drawn_head_is_the_librarys(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    made, other = with_drawn_head(source, 3), with_drawn_head(source, 4)
    torch.manual_seed(3)
    library = _as_the_library_draws(variant).state_dict()
    names = [n for n in made.tensors.names() if not torch.equal(made.tensors.read(n), source.tensors.read(n))]
    assert names and all("classifier" in n or n.startswith("head") for n in names)
    assert all(torch.equal(made.tensors.read(n), library[n]) for n in names)
    weights = [n for n in names if n.endswith("weight")]
    assert all(not torch.equal(made.tensors.read(n), other.tensors.read(n)) for n in weights)
    seven = with_drawn_head(with_new_head(source, None, 7), 3)
    assert all(seven.tensors.read(n).shape[0] == 7 and bool(seven.tensors.read(n).any()) for n in weights)


def _as_the_library_draws(variant: str) -> nn.Module:
    if variant in TIMM:
        import timm
        import yaml

        name, _, query = TIMM[variant].partition("?")
        options = {key: yaml.safe_load(value) for key, value in (part.split("=") for part in query.split("&"))}
        return timm.create_model(name, **{**options, "pretrained": False})
    import transformers

    name, config, given = HF[variant]
    made = getattr(transformers, config)(**given, num_labels=5)
    return getattr(transformers, name)._from_config(made)


@pytest.mark.parametrize("variant", ["class-token", "bert", "hf-vit", "clip"])
def test_drawn_weights_are_the_librarys(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    one, same, other = drawn(source, 3), drawn(source, 3), drawn(source, 4)
    check_tensors("drawn", one.tensors, one.family, one.description, one.sites)
    names = [
        n for n in one.tensors.names() if n.endswith(("qkv.weight", "query.weight", "q_proj.weight", "in_proj_weight"))
    ]
    assert names
    for name in names:
        weight = one.tensors.read(name)
        assert torch.equal(weight, same.tensors.read(name))
        assert not torch.equal(weight, other.tensors.read(name))
        assert 0.005 < float(weight.std()) < 0.3  # the libraries draw small numbers, stock() here large ones


def test_drawn_weights_of_a_pruned_model_stay_pruned() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    pruned = prune_source(source, mask_of(source, [[0, 2], [], [1]]))
    whole, cut = drawn(source, 1), drawn(pruned, 1)
    check_tensors("cut", cut.tensors, cut.family, cut.description, cut.sites)
    full = whole.tensors.read("blocks.0.attn.qkv.weight").reshape(3, 3, 8, 24)
    assert torch.equal(cut.tensors.read("blocks.0.attn.qkv.weight").reshape(3, 2, 8, 24), full[:, [0, 2]])


@pytest.mark.parametrize("variant", ["class-token", "bert", "distilbert", "hf-vit"])
def test_dropout_in_each_layer(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    batch = inputs(variant)
    plain, dropped = build_model(source), build_model(with_dropout(source, 0.3))
    assert torch.equal(plain.member_logits(batch), dropped.member_logits(batch))  # not in evaluation
    blocks = tuple(f"{path}." for path in dropped.block_paths)
    rates = [m.p for n, m in dropped.networks[0].named_modules() if n.startswith(blocks) and isinstance(m, nn.Dropout)]
    if variant == "class-token":  # the library's own module behind the attention has been replaced
        assert [a.output_dropout for a in dropped.attentions] == [0.3] * 3
        rates = [rate for rate in rates if rate]
    assert len(rates) >= 3
    assert set(rates) == {0.3}
    dropped.train()
    torch.manual_seed(0)
    assert not torch.equal(dropped.member_logits(batch), dropped.member_logits(batch))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda clip: with_drawn_head(clip, 0), "--init head: .* has no classifier"),
        (lambda clip: with_dropout(clip, 0.1), "--dropout: open_clip models have no dropout"),
    ],
)
def test_what_a_clip_does_not_have_is_told(change: Callable[[Source], Source], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        change(source_of(shared_stock("clip"), "clip"))


FROZEN = {
    ("class-token", "patch"): ["patch_embed.proj.weight", "patch_embed.proj.bias"],
    ("class-token", "position"): ["pos_embed"],
    ("class-token", "class_token"): ["cls_token"],
    ("class-token", "stem"): ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"],
    ("class-token", "head"): ["head.weight", "head.bias"],
    ("hf-vit", "position"): ["vit.embeddings.position_embeddings"],
    ("hf-vit", "class_token"): ["vit.embeddings.cls_token"],
    ("bert", "words"): ["bert.embeddings.word_embeddings.weight"],
    ("bert", "position"): ["bert.embeddings.position_embeddings.weight"],
    ("roberta", "head"): ["classifier.out_proj.weight", "classifier.out_proj.bias"],
    ("layer-scale", "layer_scale"): [f"blocks.{block}.ls{i}.gamma" for block in range(3) for i in (1, 2)],
    ("beit", "layer_scale"): [f"blocks.{block}.gamma_{i}" for block in range(3) for i in (1, 2)],
    ("hf-dinov2", "layer_scale"): [
        f"dinov2.encoder.layer.{block}.layer_scale{i}.lambda1" for block in range(3) for i in (1, 2)
    ],
    ("clip-layer-scale", "layer_scale"): [
        f"{tower}transformer.resblocks.{block}.ls_{i}.gamma"
        for tower, blocks in (("visual.", 2), ("", 1))
        for block in range(blocks)
        for i in (1, 2)
    ],
    ("clip", "patch"): ["visual.conv1.weight"],
    ("clip", "words"): ["token_embedding.weight"],
    ("clip", "position"): ["visual.positional_embedding", "positional_embedding"],
}


@pytest.mark.parametrize(("variant", "part"), FROZEN)
def test_a_part_is_frozen(variant: str, part: str) -> None:
    model = build_model(source_of(shared_stock(variant), variant))
    trainable(model, WeightOptions(freeze=(part,)))
    left = [n for n, p in model.networks[0].named_parameters() if not p.requires_grad]
    assert sorted(left) == sorted(FROZEN[variant, part])


# Names of parts are those of the library in test_fused.py.
@pytest.mark.parametrize(
    ("variant", "part"),
    [("class-token", "attention"), ("bert", "attention"), ("clip", "mlp"), ("bert", "norm"), ("clip", "norm")],
)
def test_the_parts_of_blocks(variant: str, part: str) -> None:
    """By shape: what has the width of the MLP, what is 1-D and of the stream, and the banks of heads."""
    model = build_model(source_of(shared_stock(variant), variant))
    trainable(model, WeightOptions(freeze=(part,)))
    left = {n for n, p in model.networks[0].named_parameters() if not p.requires_grad}
    by_module = {n for n, m in model.networks[0].named_modules() if isinstance(m, nn.LayerNorm)}
    norms = {n for n, _ in model.networks[0].named_parameters() if n.rpartition(".")[0] in by_module}
    if part == "norm":
        assert left == {n for n in norms if not n.startswith("bert.embeddings.")}  # those belong to the stem
    elif part == "attention":
        banks = {id(p) for a in model.attentions for p in a.parameters()}
        assert left == {n for n, p in model.networks[0].named_parameters() if id(p) in banks}
    else:
        assert len(left) == 4 * len(model.sites)
        assert not left & norms


def test_a_part_that_is_not_there() -> None:
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    with pytest.raises(UsageError, match="--freeze words: vit_tiny_patch16_224 has no such part"):
        trainable(model, WeightOptions(freeze=("words",)))
    trained = trainable(model, WeightOptions(freeze=("words", "head"), lenient=True))
    assert not [name for name in trained if ".head." in name]
    with pytest.raises(UsageError, match="nothing is left to train"):
        trainable(model, WeightOptions(train_last=0, freeze=("norm", "head")))
