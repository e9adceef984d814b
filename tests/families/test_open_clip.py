"""open_clip's CLIP in two towers, against the library's own model, tokenizer, transform and classifier."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from hydractl.errors import InputError, UsageError
from hydractl.families.open_clip import FAMILY
from hydractl.families.torchvision_operators import declare_operators
from hydractl.fusion.plan import plan_fusion
from hydractl.heads.mask import Site
from hydractl.heads.weights import COMMON
from hydractl.model.attention import HeadAttention
from hydractl.model.loading import build_model
from hydractl.model.projections import HeadBank, MemberProjections
from hydractl.model.runtime import HydraModel
from hydractl.model.source import open_source, with_labels
from tests.pico import close, mask_of, prune_source, same_tensors, tensors_of
from tests.pico_clip import (
    CLIP,
    class_features,
    clip_config,
    clip_images,
    clip_tokenizer,
    merged_clip_names,
    pico_clip,
    publish_clip,
    rewrite_clip,
    zero_clip_columns,
    zero_shot_logits,
)

declare_operators()

import open_clip  # noqa: E402
import timm  # noqa: E402
from open_clip.transform import PreprocessCfg, image_transform_v2  # noqa: E402

LABELS = ["cat", "great white shark", "aeroplane, or something like it", "{dog}"]
ONE = ["a photo of a {}."]
THREE = ["a photo of a {}.", "{}", "a bad picture of the {}, a {}"]
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
TINY = {
    "embed_dim": 16,
    **{f"vision_cfg.{k}": v for k, v in clip_config()["vision_cfg"].items()},
    **{f"text_cfg.{k}": v for k, v in clip_config()["text_cfg"].items()},
}


# One of each kind of tower, for what depends on no more; test_contract.py has others, too.
FEW = ["clip", "clip-attentional-pool", "custom-text-own-attention", "siglip", "eva-tower"]
TWO = ["clip", "siglip"]


def assembled(reference: Any, variant: str, kept: Mapping[str, Sequence[int]] | None = None) -> Any:
    """The family's model with the weights of a stock one, its attention replaced as the runtime does."""
    config, tensors = clip_config(variant), reference.state_dict()
    model, sites = FAMILY.build(config), FAMILY.sites(config)
    for name, _ in list(model.named_parameters()):
        if FAMILY.part(name, sites) != "attention":
            parent, _, leaf = name.rpartition(".")
            model.get_submodule(parent).register_parameter(leaf, torch.nn.Parameter(tensors[name]))
    for site in sites:
        weights = FAMILY.read(tensors, site)
        if kept is not None:
            weights = weights.select(kept[site.path])
        norms = FAMILY.common(model, site)
        for side, norm in zip(COMMON, norms, strict=True):
            for leaf, _ in list(norm.named_parameters()):
                norm.register_parameter(leaf, torch.nn.Parameter(weights.extra[f"{side}.{leaf}"]))
        assert FAMILY.dropouts(model, site) == (0.0, 0.0)
        FAMILY.install(model, site, HeadAttention([MemberProjections(HeadBank(weights, *norms))]))
    return model


def read_out(model: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """What each tower reads out, stage by stage."""
    outputs = []
    for stages, given in zip(FAMILY.stages(model), inputs, strict=True):
        state = stages.stem(given)
        for block in stages.blocks:
            state = block(state)
        outputs.append(stages.readout(state))
    return outputs


def prompts(variant: str, templates: Sequence[str] = THREE) -> Mapping[str, torch.Tensor]:
    return FAMILY.prompts(clip_config(variant), {}, LABELS, templates)


# --- towers -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("variant", TWO)
def test_towers_equal_the_librarys_encoders(variant: str) -> None:
    reference = pico_clip(variant)
    texts = clip_tokenizer(variant)(["a cat", "a great white shark", "", "a dog " * 30])
    images, features = read_out(
        assembled(reference, variant), [clip_images(variant), {"text": texts.reshape(4, 1, texts.shape[1])}]
    )
    close(images, reference.encode_image(clip_images(variant), normalize=True))
    close(features, reference.encode_text(texts, normalize=True))


@torch.no_grad()
@pytest.mark.parametrize("variant", CLIP)
def test_classes_and_logits_equal_the_librarys_zero_shot_classifier(variant: str) -> None:
    reference = pico_clip(variant)
    model = assembled(reference, variant)
    outputs = read_out(model, [clip_images(variant), prompts(variant)])
    expected = class_features(reference, variant, LABELS, THREE)
    assert float((expected - expected[:1]).abs().max()) > 1e-2, "the classes must differ"
    close(outputs[1], expected)
    logits = FAMILY.logits(model, outputs)
    assert logits.shape == (3, len(LABELS))
    close(logits, zero_shot_logits(reference, variant, clip_images(variant), LABELS, THREE))


@torch.no_grad()
@pytest.mark.parametrize("variant", TWO)
def test_logits_of_one_prompt_equal_the_librarys_own(variant: str) -> None:
    reference = pico_clip(variant)
    model = assembled(reference, variant)
    texts = clip_tokenizer(variant)([f"a photo of a {label}." for label in LABELS])
    expected, _ = reference.get_logits(clip_images(variant), texts)
    close(FAMILY.logits(model, read_out(model, [clip_images(variant), prompts(variant, ONE)])), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("variant", "drop"),
    [("clip-own-attention", "unequal"), ("siglip", "one-site-empty"), ("clip-attentional-pool", "all-empty")],
)
def test_slicing_equals_the_stock_model_with_zeroed_columns(variant: str, drop: str) -> None:
    reference = pico_clip(variant)
    removed = []
    kept = {}
    for index, site in enumerate(FAMILY.sites(clip_config(variant))):
        counts = {"unequal": index % site.heads, "one-site-empty": site.heads * (index == 2), "all-empty": site.heads}
        count = counts[drop]
        removed += [(site.path, head) for head in range(count)]
        kept[site.path] = list(range(count, site.heads))
    model = assembled(reference, variant, kept)
    attentions = [module for module in model.modules() if isinstance(module, HeadAttention)]
    assert [attention.members[0].heads for attention in attentions] == list(map(len, kept.values()))
    images = clip_images(variant)
    full = zero_shot_logits(reference, variant, images, LABELS, THREE)
    expected = zero_shot_logits(zero_clip_columns(reference, removed), variant, images, LABELS, THREE)
    assert not torch.allclose(expected, full, atol=1e-3), "the removed heads must matter"
    close(FAMILY.logits(model, read_out(model, [clip_images(variant), prompts(variant)])), expected)


@torch.no_grad()
def test_members_side_by_side_read_out_one_by_one() -> None:
    references = [pico_clip(seed=seed) for seed in (0, 1)]
    networks = [assembled(reference, "clip") for reference in references]
    for stages, others, given in zip(*map(FAMILY.stages, networks), [clip_images(), prompts("clip")], strict=True):
        state = stages.stem(given)
        state.hidden = state.hidden.repeat(2, 1, 1)
        for block in stages.blocks:
            state = block(state)
        first, second = state.hidden.chunk(2)
        assert torch.allclose(first, second, atol=1e-6) and state.context.keys() == others.stem(given).context.keys()
        state.hidden = first
        close(stages.readout(state), read_out(networks[0], [clip_images(), prompts("clip")])[int(stages.of_labels)])


@pytest.mark.parametrize("variant", FEW)
def test_stages_name_their_parameters(variant: str) -> None:
    model = pico_clip(variant).requires_grad_()  # the library holds positions by sine and cosine fixed
    names = [name for name, _ in model.named_parameters()]

    def starting(prefixes: str | tuple[str, ...]) -> set[str]:
        return {name for name in names if name.startswith(prefixes)}

    visual, text = FAMILY.stages(model)
    assert (visual.tower, visual.of_labels) == ("visual", False)
    assert (text.tower, text.of_labels) == ("text", True)
    of_visual = starting(visual.prefixes)
    of_text = starting(text.prefixes)
    assert not of_visual & of_text
    assert set(names) - of_visual - of_text == starting("logit_")
    paths = [*visual.block_paths, *text.block_paths]
    assert [f"{path}.attn" for path in paths] == [site.path for site in FAMILY.sites(clip_config(variant))]
    # Exactly the parameters that act before the blocks.
    for stages, inputs in ((visual, clip_images(variant)), (text, prompts(variant))):
        hidden = stages.stem(inputs).hidden
        gradients = torch.autograd.grad(hidden.sum(), list(model.parameters()), allow_unused=True)
        used = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        assert used == starting(stages.stem_prefixes)
        assert used < starting(stages.prefixes)


@pytest.mark.parametrize("variant", TWO)
def test_gradients_reach_both_towers(variant: str) -> None:
    model = assembled(pico_clip(variant), variant)
    logits = FAMILY.logits(model, read_out(model, [clip_images(variant), prompts(variant)]))
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    attentions = [module for module in model.modules() if isinstance(module, HeadAttention)]
    for attention in attentions:
        assert float(attention.members[0].bank.qkv.grad.abs().sum()) > 0
    assert float(model.logit_scale.grad.abs().sum()) > 0


@torch.no_grad()
@pytest.mark.parametrize(("variant", "dtype"), [("clip", torch.float64), ("siglip", torch.bfloat16)])
def test_towers_run_in_another_dtype(variant: str, dtype: torch.dtype) -> None:
    reference = pico_clip(variant).to(dtype)
    model = assembled(reference, variant).to(dtype)
    outputs = read_out(model, [clip_images(variant).to(dtype), prompts(variant)])
    assert {output.dtype for output in outputs} == {dtype}
    texts = clip_tokenizer(variant)([template.replace("{}", label) for label in LABELS for template in THREE])
    expected = reference.encode_text(texts, normalize=True).reshape(4, 3, -1).mean(1)
    expected = expected / expected.norm(dim=1, keepdim=True)
    tolerance = 1e-12 if dtype == torch.float64 else 0.1
    assert float((outputs[1] - expected).abs().max()) < tolerance


# --- structure --------------------------------------------------------------------------------------------------------


def test_sites_are_in_model_order() -> None:
    expected = []
    for index in range(2):
        path = f"visual.transformer.resblocks.{index}.attn"
        expected.append(Site(path, heads=4, head_dim=8, d_model=32, tower="visual"))
    for index in range(3):
        path = f"transformer.resblocks.{index}.attn"
        expected.append(Site(path, heads=2, head_dim=10, d_model=20, tower="text"))
    assert FAMILY.sites(clip_config("clip-unlike")) == expected
    custom = [site.path for site in FAMILY.sites(clip_config("custom-text"))]
    assert custom[2:] == ["text.transformer.resblocks.0.attn", "text.transformer.resblocks.1.attn"]


@pytest.mark.parametrize("variant", ["clip", "clip-own-attention", "siglip"])
def test_write_is_the_inverse_of_read(variant: str) -> None:
    tensors = pico_clip(variant).state_dict()
    of_heads = [name for name in tensors if ".attn." in name and "attn_pool" not in name]
    assert of_heads
    written = {name: tensor for name, tensor in tensors.items() if name not in of_heads}
    for site in FAMILY.sites(clip_config(variant)):
        FAMILY.write(written, site, FAMILY.read(tensors, site))
    assert same_tensors(written, tensors)


@pytest.mark.parametrize("kept", [[0, 2], []])
def test_shapes_of_any_number_of_heads_on_meta_tensors(kept: list[int]) -> None:
    config = clip_config("clip-own-attention")
    tensors = dict(FAMILY.build(config).state_dict())
    site = FAMILY.sites(config)[0]
    FAMILY.write(tensors, site, FAMILY.read(tensors, site).select(kept))
    shapes = {}
    for name, tensor in tensors.items():
        if site.path in name:
            shapes[name.removeprefix(f"{site.path}.")] = list(tensor.shape)
    rows = 8 * len(kept)
    assert shapes == {
        "in_proj_weight": [3 * rows, 24],
        "in_proj_bias": [3 * rows],
        "out_proj.weight": [24, rows],
        "out_proj.bias": [24],
        **{f"ln_{side}.{leaf}": [8] for side in "qk" for leaf in ("weight", "bias")},
    }
    again = FAMILY.read(tensors, site)
    assert again.heads == len(kept) and again.q.is_meta


@pytest.mark.parametrize("variant", [*FEW, "clip-both-ways"])
def test_skeletons_have_the_buffers_of_the_library(variant: str) -> None:
    reference = dict(pico_clip(variant).named_buffers())
    skeleton = FAMILY.build(clip_config(variant))
    built = dict(skeleton.named_buffers())
    assert same_tensors(built, reference)
    assert bool(built) == (variant not in ("clip-both-ways", CUSTOM_BOTH_WAYS, "siglip"))
    assert all(parameter.is_meta for parameter in skeleton.parameters()) and not skeleton.training
    assert list(skeleton.state_dict()) == list(pico_clip(variant).state_dict())


CUSTOM_BOTH_WAYS = "custom-text-own-attention"


def test_skeletons_do_not_share_their_modules() -> None:
    changed = FAMILY.build(clip_config())
    built_before = FAMILY.build(clip_config())
    changed.visual.transformer = torch.nn.Identity()
    built_after = FAMILY.build(clip_config())
    for model in (built_before, built_after):
        assert len(model.visual.transformer.resblocks) == 2


# Name -> what is a member's own in its model, beside what every model has.
OWN: dict[str, set[str]] = {
    "clip-bias": {"text_projection.weight", "text_projection.bias", "logit_bias"},
    "clip-layer-scale": {"text_projection", "ls_1", "ls_2"},
    "clip-own-attention": {"text_projection", "ls_1", "ls_2"},
    "clip-last": set(),
    "clip-attentional-pool": {"text_projection", "attn_pool"},
    CUSTOM_BOTH_WAYS: {"text_projection", "logit_bias"},
    "siglip": {"text_projection.weight", "text_projection.bias", "logit_bias", "attn_pool"},
    "eva-tower": {"text_projection", "visual.trunk.head.weight", "visual.trunk.head.bias"},
    "timm-projected": {"text_projection", *(f"visual.head.mlp.fc{n}" for n in ("1.bias", "1.weight", "2.weight"))},
}


@torch.no_grad()
@pytest.mark.parametrize("variant", TWO)
def test_towers_run_on_meta_tensors(variant: str) -> None:
    model = FAMILY.build(clip_config(variant)).to("meta")
    texts = {"text": prompts(variant)["text"].to("meta")}
    outputs = read_out(model, [clip_images(variant).to("meta"), texts])
    assert FAMILY.logits(model, outputs).shape == (3, len(LABELS))


@pytest.mark.parametrize("variant", ["clip", "custom-text", *OWN])
def test_every_parameter_belongs_to_a_part(variant: str) -> None:
    model = pico_clip(variant)
    sites = FAMILY.sites(clip_config(variant))
    parts = {name: FAMILY.part(name, sites) for name, _ in model.named_parameters()}
    paths = tuple(f"{site.path}." for site in sites)
    assert {n for n, part in parts.items() if part == "attention"} == {n for n in parts if n.startswith(paths)}
    for part in ("mlp", "norm", "embed"):
        names = {name for name, part_of_name in parts.items() if part_of_name == part}
        assert names == set(merged_clip_names(model, [part])) != set()
    own = {re.sub(r".*(ls_\d|attn_pool).*", r"\1", n).removeprefix("text.") for n, p in parts.items() if p == "own"}
    proj = set() if "timm_model_name" in clip_config(variant)["vision_cfg"] else {"visual.proj"}
    assert own == {"logit_scale"} | proj | OWN.get(variant, {"text_projection"})


def test_there_is_no_classifier() -> None:
    assert FAMILY.classes(clip_config()) is None
    assert FAMILY.name == "open_clip" and FAMILY.version == open_clip.__version__


# --- prompts ----------------------------------------------------------------------------------------------------------


# Of each tokenizer, and of each place where a text is read.
@pytest.mark.parametrize("variant", ["clip", "siglip", "clip-unlike", "clip-eos", "clip-last", "clip-both-ways"])
def test_prompts_are_the_librarys_tokens(variant: str) -> None:
    found = prompts(variant)["text"]
    expected = clip_tokenizer(variant)([template.replace("{}", label) for label in LABELS for template in THREE])
    length = found.shape[-1]
    assert found.shape[:2] == (4, 3) and found.dtype == torch.int64
    assert torch.equal(found.flatten(0, 1), expected[:, :length])
    text = clip_config(variant)["text_cfg"]
    if text.get("no_causal_mask") or text.get("pool_type", "argmax") in ("last", "first"):
        assert length == text["context_length"]
    else:  # cut behind the longest end of text, and not before
        assert length < text["context_length"] or bool((expected[:, -1] != 0).any())
        assert bool((found[..., -1] == 49407).any())
        assert not bool(expected[:, length:].any())


def test_short_prompts_are_cut_and_long_ones_truncated() -> None:
    assert FAMILY.prompts(clip_config(), {}, ["cat"], ["{}"])["text"].shape == (1, 1, 3)
    long = FAMILY.prompts(clip_config(), {}, ["cat", "dog " * 40], ["{}"])["text"]
    assert long.shape == (2, 1, 16) and long[1, 0, -1] == 49407


def test_templates_name_the_place_of_the_label() -> None:
    config = clip_config()
    expected = FAMILY.prompts(config, {}, LABELS, THREE)["text"]
    named = [template.replace("{}", "{label}") for template in THREE]
    assert torch.equal(FAMILY.prompts(config, {}, LABELS, named)["text"], expected)
    labels = ["cat", "{label}", "x{}"]  # a name may look like a place
    mixed = FAMILY.prompts(config, {}, labels, ["a {} and a {label}"])["text"]
    tokens = clip_tokenizer()([f"a {label} and a {label}" for label in labels])[:, : mixed.shape[-1]]
    assert torch.equal(mixed[:, 0], tokens)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        (["a photo"], "prompt 'a photo' has no place for the class name"),
        (["a {} in {place}"], "prompt 'a {} in {place}' has braces that are no place for the class name"),
        (["{{}}"], "prompt '{{}}' has braces that are no place for the class name"),
        (["{label"], "prompt '{label' has no place for the class name"),
        ([], "prompts need class names and templates"),
    ],
)
def test_templates_without_a_place_are_refused(templates: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        FAMILY.prompts(clip_config(), {}, ["cat"], templates)
    assert caught.value.message == message


def test_all_bad_templates_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        FAMILY.prompts(clip_config(), {}, ["cat"], ["a photo", "{}", "{x}"])
    assert len(caught.value.problems) == 2 and "{label}" in str(caught.value.hint)


# --- images -----------------------------------------------------------------------------------------------------------


def pictures(mode: str) -> list[Image.Image]:
    generator = np.random.default_rng(0)
    images = []
    for height, width in ((40, 30), (9, 50)):
        pixels = generator.integers(0, 256, (height, width, 4), dtype=np.uint8)
        image = Image.fromarray(pixels, "RGBA")
        images.append(image.convert("RGB").quantize(32) if mode == "P" else image.convert(mode))
    return images


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": [16, 24]},
        {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear", "resize_mode": "squash"},
        {"resize_mode": "longest", "fill_color": 7},
    ],
    ids=["plain", "wide", "squash", "longest"],
)
def test_collate_is_the_librarys_own_transform(settings: dict[str, Any], tmp_path: Path) -> None:
    size = settings.get("size", 16)
    folder = publish_clip(pico_clip(vision_cfg={"image_size": size}), "clip", tmp_path, vision_cfg={"image_size": size})
    loaded = FAMILY.load_folder(rewrite_clip(folder, preprocess_cfg=settings))
    assert loaded is not None and loaded.preprocess["kind"] == "image"
    # The library's own way from a folder to its transform.
    _, reference = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    collate = FAMILY.collate(json.loads(json.dumps(loaded.preprocess)))
    for mode in ("RGB", "L", "RGBA", "P", "LA", "1", "CMYK"):
        found = collate(pictures(mode))
        assert found.shape == (2, 3, *(size if isinstance(size, list) else (size, size)))
        assert torch.equal(found, torch.stack([reference(image) for image in pictures(mode)])), mode


def test_images_of_16_bits_keep_their_upper_byte() -> None:
    upper = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)
    preprocess = FAMILY.load_name("ViT-S-32", {"pretrained": False, **TINY}, 0).preprocess
    of_16_bits = Image.fromarray(upper.astype(np.uint16) * 256 + 3)
    pixels = FAMILY.collate(preprocess)([of_16_bits])
    transform = image_transform_v2(PreprocessCfg(size=(16, 16)), is_train=False)
    assert torch.equal(pixels[0], transform(Image.fromarray(upper)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "text"}, "it is not of images but of 'text'"),
        ({"size": [16, 1 << 20]}, "its size is [16, 1048576], not [height, width]"),
        ({"mode": "L"}, "its mode is 'L', not one of RGB"),
        ({"std": [0.5, 0.5, 0]}, "its std is [0.5, 0.5, 0], which cannot be divided by"),
        ({"std": [0.5, float("nan"), 1]}, "its std is [0.5, nan, 1], not three numbers"),
        ({"interpolation": "nearest"}, "its interpolation is 'nearest', not one of bicubic, bilinear, random"),
        ({"resize_mode": ["squash"]}, "its resize_mode is ['squash'], not one of shortest, longest, squash"),
        ({"fill_color": 256}, "its fill_color is 256, not 0 to 255"),
        ({"fill_color": None, "size": None}, "its size is None, not [height, width]"),
    ],
)
def test_preprocessing_that_the_library_does_not_take_is_refused(changes: dict[str, Any], message: str) -> None:
    preprocess = FAMILY.load_name("ViT-S-32", {"pretrained": False, **TINY}, 0).preprocess
    with pytest.raises(InputError) as caught:
        FAMILY.collate({**preprocess, **changes})
    assert caught.value.message == f"open_clip cannot preprocess images so: {message}"
    assert len(caught.value.problems) == max(1, len(changes))
    with pytest.raises(InputError, match="it lacks resize_mode"):
        FAMILY.collate({key: value for key, value in preprocess.items() if key != "resize_mode"})


def test_example_inputs_are_drawn_by_the_seed() -> None:
    preprocess = FAMILY.load_name("ViT-S-32", {"pretrained": False, **TINY}, 0).preprocess
    one = FAMILY.example_inputs(preprocess, 64, 3)
    assert one.shape == (64, 3, 16, 16)
    assert abs(float(one.mean())) < 0.02
    assert abs(float(one.std()) - 1) < 0.02
    assert torch.equal(one, FAMILY.example_inputs(preprocess, 64, 3))
    assert not torch.equal(one, FAMILY.example_inputs(preprocess, 64, 4))


# --- folders ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("variant", "dtype"), [("clip", torch.float32), ("custom-text-own-attention", torch.float16)])
def test_a_published_folder_holds_the_model(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = pico_clip(variant).to(dtype)
    loaded = FAMILY.load_folder(publish_clip(reference, variant, tmp_path))
    assert loaded is not None and loaded.labels is None and loaded.config == clip_config(variant)
    state = reference.state_dict()
    assert sorted(state) == sorted(FAMILY.build(loaded.config).state_dict())
    assert same_tensors(tensors_of(loaded.tensors), state)
    assert loaded.arch == ("CustomTextCLIP" if clip_config(variant).get("custom_text") else "CLIP")
    size = clip_config(variant)["vision_cfg"]["image_size"]
    assert loaded.preprocess["size"] == (size if isinstance(size, list) else [size, size])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["clip", "custom-text-own-attention", "siglip"])
def test_an_exported_folder_loads_in_the_library(variant: str, tmp_path: Path) -> None:
    reference = pico_clip(variant)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    settings = {"mean": [0.1, 0.2, 0.3], "resize_mode": "longest", "fill_color": 9}
    published = rewrite_clip(publish_clip(reference, variant, tmp_path / "one"), preprocess_cfg=settings)
    loaded = FAMILY.load_folder(published)
    assert loaded is not None
    exported = tmp_path / "two"
    weights = FAMILY.export_folder(exported, loaded.config, loaded.preprocess, None)
    assert weights == WEIGHTS and [path.name for path in exported.iterdir()] == [CONFIG]
    safetensors.torch.save_file({n: loaded.tensors.read(n) for n in loaded.tensors.names()}, exported / weights)
    stock = open_clip.create_model(f"local-dir:{exported}", require_pretrained=True).eval()
    given = (variant, clip_images(variant), LABELS, THREE)
    assert torch.equal(zero_shot_logits(stock, *given), zero_shot_logits(reference, *given))
    assert {key: stock.visual.preprocess_cfg[key] for key in settings} == settings
    tokenizer = open_clip.get_tokenizer(f"local-dir:{exported}")
    assert torch.equal(tokenizer(LABELS), clip_tokenizer(variant)(LABELS))
    again = FAMILY.load_folder(exported)
    assert again is not None and (again.config, again.preprocess) == (loaded.config, loaded.preprocess)


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    assert FAMILY.load_folder(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    assert FAMILY.load_folder(tmp_path) is None
    (tmp_path / CONFIG).write_text('{"embed_dim": 16}')
    with pytest.raises(InputError, match=f"{CONFIG} has no model_cfg"):
        FAMILY.load_folder(tmp_path)


def test_a_folder_of_pickles_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    folder = publish_clip(pico_clip(), "clip", tmp_path)
    torch.save(safetensors.torch.load_file(folder / WEIGHTS), folder / "open_clip_pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(InputError) as caught:
        FAMILY.load_folder(folder)
    assert caught.value.message.startswith(f"{folder} has no {WEIGHTS}, but open_clip_pytorch_model.bin: pickles")
    command = str(caught.value.hint).partition("where you trust them: ")[2]
    exec(command, {"safetensors": safetensors, "open_clip": open_clip})  # the hint does what it says
    loaded = FAMILY.load_folder(folder)
    assert loaded is not None
    assert same_tensors(tensors_of(loaded.tensors), pico_clip().state_dict())


@torch.no_grad()
@pytest.mark.parametrize("variant", ["siglip", "eva-tower"])
def test_dropout_in_the_blocks_of_a_tower_of_timm(variant: str) -> None:
    model, images = pico_clip(variant), clip_images(variant)
    before = model.encode_image(images)
    FAMILY.add_dropout(model, 0.5)
    assert torch.equal(model.encode_image(images), before), "off until turned on"
    added = [
        module for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout) and module.p == 0.5
    ]
    assert len(added) == 4 and not any(module.training for module in added)
    added[0].train()
    assert not torch.allclose(model.encode_image(images), before)


@timm.models.register_model
def swin_pico(pretrained: bool = False, **kwargs: Any) -> Any:
    given = {key: value for key, value in kwargs.items() if key in ("num_classes", "global_pool")}
    sizes = {"img_size": 16, "patch_size": 2, "embed_dim": 12, "depths": (1, 1), "num_heads": (3, 3), "window_size": 4}
    model = timm.models.SwinTransformer(**sizes, **given)
    model.default_cfg = {}
    return model


@torch.no_grad()
def test_a_tower_of_timm_in_windows(tmp_path: Path) -> None:
    changes = {"vision_cfg": {"timm_model_name": "swin_pico", "timm_proj": "linear"}}
    reference = pico_clip(**json.loads(json.dumps(changes)))
    folder = publish_clip(reference, "clip", tmp_path, **changes)
    source = with_labels(open_source(str(folder)), LABELS, THREE)
    mask = mask_of(source, [[0, 2], [1], [0], [1, 2]])
    plan = plan_fusion([source, prune_source(source, mask)])
    fused = HydraModel(plan.description, plan.tensors).member_logits(clip_images())
    close(fused[0], zero_shot_logits(reference, "clip", clip_images(), LABELS, THREE))
    pruned_reference = zero_clip_columns(reference, mask.removed_heads)
    close(fused[1], zero_shot_logits(pruned_reference, "clip", clip_images(), LABELS, THREE))


@torch.no_grad()
def test_the_two_towers_of_a_coca(tmp_path: Path) -> None:
    """Without the decoder of captions, as zero-shot classifier."""
    text, decoder = {"embed_cls": True, "output_tokens": True}, {"width": 24, "heads": 3, "layers": 1}
    pooled = {"attentional_pool": True, "attn_pooler_queries": 3, "attn_pooler_heads": 2, "output_tokens": True}
    changes = {"text_cfg": text, "vision_cfg": pooled, "multimodal_cfg": {"context_length": 16, **decoder}}
    reference = open_clip.CoCa(**clip_config("clip", **json.loads(json.dumps(changes)))).eval()
    for parameter in reference.parameters():
        if parameter.dim():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.3)
    folder = publish_clip(reference, "clip", tmp_path, **changes)
    source = with_labels(open_source(str(folder)), LABELS, THREE)
    assert source.left == ("text_decoder.*",) and source.description.config["custom_text"]
    expected = zero_shot_logits(reference, "clip", clip_images(), LABELS, THREE)
    close(build_model(source).member_logits(clip_images())[0], expected)
    # The first head of every block is gone, and one block has none.
    kept = [[1, 2], [1, 2], [], [1, 2]]
    mask = mask_of(source, kept)
    without = zero_clip_columns(reference, mask.removed_heads)
    expected = zero_shot_logits(without, "clip", clip_images(), LABELS, THREE)
    pruned = prune_source(source, mask)
    close(build_model(pruned).member_logits(clip_images())[0], expected)
    plan = plan_fusion([source, pruned])
    close(HydraModel(plan.description, plan.tensors).member_logits(clip_images())[1], expected)
    own = [name for name in source.tensors.names() if source.family.part(name, source.sites) == "own"]
    assert any(name.startswith("visual.attn_pool.") for name in own)
