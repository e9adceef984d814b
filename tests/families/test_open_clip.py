"""open_clip's CLIP in two towers, against the library's own model, tokenizer, transform and classifier."""

from __future__ import annotations

import json
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
from hydractl.model.loading import build_model
from hydractl.model.source import open_source, with_labels
from tests.pico import close, keeping, mask_of, model_of, prune_source, same_tensors, tensors_of
from tests.pico_clip import (
    class_features,
    clip_config,
    clip_images,
    clip_tokenizer,
    pico_clip,
    publish_clip,
    rewrite_clip,
    zero_clip_columns,
    zero_shot_logits,
)
from tests.running import refused

declare_operators()

import open_clip  # noqa: E402
import timm  # noqa: E402

LABELS = ["cat", "great white shark", "aeroplane, or something like it", "{dog}"]
THREE = ["a photo of a {}.", "{}", "a bad picture of the {}, a {}"]
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
TINY = {
    "embed_dim": 16,
    **{f"vision_cfg.{k}": v for k, v in clip_config()["vision_cfg"].items()},
    **{f"text_cfg.{k}": v for k, v in clip_config()["text_cfg"].items()},
}


# One of each kind of tower, for what depends on no more; test_contract.py has others, too.
FEW = ["clip", "clip-attentional-pool", "custom-text-first-token", "siglip", "eva-tower"]


def prompts(variant: str, templates: Sequence[str] = THREE) -> Mapping[str, torch.Tensor]:
    return FAMILY.prompts(clip_config(variant), {}, LABELS, templates)


# --- towers -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("variant", FEW)
def test_a_folder_is_the_librarys_zero_shot_classifier(variant: str, tmp_path: Path) -> None:
    """With all heads, and with other numbers of them in each block."""
    reference = pico_clip(variant)
    source = with_labels(open_source(str(publish_clip(reference, variant, tmp_path))), LABELS, THREE)
    pruned = keeping(source, [range(index % site.heads, site.heads) for index, site in enumerate(source.sites)])
    classes = class_features(reference, variant, LABELS, THREE)
    assert float((classes - classes[:1]).abs().max()) > 1e-2, "the classes must differ"
    stocks = (reference, zero_clip_columns(reference, pruned.description.mask.removed_heads))
    images = clip_images(variant)
    whole, without = (zero_shot_logits(stock, variant, images, LABELS, THREE) for stock in stocks)
    assert not torch.allclose(without, whole, atol=1e-3), "the removed heads must matter"
    close(build_model(source).member_logits(images)[0], whole)
    close(build_model(pruned).member_logits(images)[0], without)


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


# --- structure --------------------------------------------------------------------------------------------------------


def test_skeletons_do_not_share_their_modules() -> None:
    changed = FAMILY.build(clip_config())
    built_before = FAMILY.build(clip_config())
    changed.visual.transformer = torch.nn.Identity()
    built_after = FAMILY.build(clip_config())
    for model in (built_before, built_after):
        assert len(model.visual.transformer.resblocks) == 2


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


def test_templates_name_the_place_of_the_label() -> None:
    config = clip_config()
    expected = FAMILY.prompts(config, {}, LABELS, THREE)["text"]
    named = [template.replace("{}", "{label}") for template in THREE]
    assert torch.equal(FAMILY.prompts(config, {}, LABELS, named)["text"], expected)
    assert len(refused(UsageError, FAMILY.prompts, config, {}, ["cat"], ["a photo", "{}", "{x}"]).problems) == 2
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
    caught = refused(UsageError, FAMILY.prompts, clip_config(), {}, ["cat"], templates)
    assert caught.message == message


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
    assert loaded.preprocess["kind"] == "image"
    # The library's own way from a folder to its transform.
    _, reference = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    collate = FAMILY.collate(json.loads(json.dumps(loaded.preprocess)))
    for mode in ("RGB", "L", "RGBA", "P", "LA", "1", "CMYK"):
        found = collate(pictures(mode))
        assert found.shape == (2, 3, *(size if isinstance(size, list) else (size, size)))
        assert torch.equal(found, torch.stack([reference(image) for image in pictures(mode)])), mode


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "text"}, "kind is 'text'"),
        ({"size": [16, 1 << 20]}, "size[1] is 1048576"),
        ({"mode": "L"}, "mode is 'L'"),
        ({"std": [0.5, 0.5, 0]}, "std[2] is 0"),
        ({"std": [0.5, float("nan"), 1]}, "std[1] is nan"),
        ({"interpolation": "nearest"}, "interpolation is 'nearest'"),
        ({"resize_mode": ["squash"]}, "resize_mode is ['squash']"),
        ({"fill_color": 256}, "fill_color is 256"),
        ({"fill_color": None, "size": None}, "size is None"),
    ],
)
def test_preprocessing_that_the_library_does_not_take_is_refused(changes: dict[str, Any], message: str) -> None:
    preprocess = FAMILY.load_name("ViT-S-32", {"pretrained": False, **TINY}, 0).preprocess
    caught = refused(InputError, FAMILY.collate, {**preprocess, **changes})
    assert caught.message == "open_clip cannot preprocess images so"
    assert caught.problems[0].startswith(message)
    assert len(caught.problems) == len(changes)


# --- folders ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("variant", ["clip", "custom-text-first-token", "siglip"])
def test_an_exported_folder_loads_in_the_library(variant: str, tmp_path: Path) -> None:
    reference = pico_clip(variant)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    settings = {"mean": [0.1, 0.2, 0.3], "resize_mode": "longest", "fill_color": 9}
    published = rewrite_clip(publish_clip(reference, variant, tmp_path / "one"), preprocess_cfg=settings)
    loaded = FAMILY.load_folder(published)
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
    assert (again.config, again.preprocess) == (loaded.config, loaded.preprocess)


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
    caught = refused(InputError, FAMILY.load_folder, folder)
    assert caught.message.startswith(f"{folder} has no {WEIGHTS}, but open_clip_pytorch_model.bin: pickles")
    command = str(caught.hint).partition("where you trust them: ")[2]
    exec(command, {"safetensors": safetensors, "open_clip": open_clip})  # the hint does what it says
    loaded = FAMILY.load_folder(folder)
    assert same_tensors(tensors_of(loaded.tensors), pico_clip().state_dict())


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
    fused = model_of(plan).member_logits(clip_images())
    close(fused[0], zero_shot_logits(reference, "clip", clip_images(), LABELS, THREE))
    pruned_reference = zero_clip_columns(reference, mask.removed_heads)
    close(fused[1], zero_shot_logits(pruned_reference, "clip", clip_images(), LABELS, THREE))
