"""Which of open_clip's models can be opened, from a folder or by name, and what is said of the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.errors import InputError, UsageError
from hydractl.families.open_clip import FAMILY
from hydractl.families.torchvision_operators import declare_operators
from hydractl.model.source import open_source
from tests.families.test_open_clip import CONFIG, TINY, WEIGHTS
from tests.pico import same_tensors, tensors_of
from tests.pico_clip import (
    clip_config,
    pico_clip,
    publish_clip,
    rewrite_clip,
)
from tests.running import refused

declare_operators()

import open_clip  # noqa: E402
from open_clip.transform import PreprocessCfg  # noqa: E402

# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "timm": (
        {"vision_cfg": {"timm_model_name": "resnet50"}},
        "CLIP is not supported: its visual tower is a TimmModel: timm's ResNet is not supported: it has no attention",
    ),
    "timm-size": (
        {"vision_cfg": {"timm_model_name": "vit_pico_map", "timm_pool": "map", "image_size": 32}},
        "CLIP is not supported: its image_size is [32, 32], its timm tower takes [16, 16]",
    ),
    "timm-width": (
        {"vision_cfg": {"timm_model_name": "vit_pico_map", "timm_pool": "map", "timm_proj": "none"}},
        "CLIP is not supported: its timm tower has features of 24 numbers and no projection to 16",
    ),
    "resnet": ({"vision_cfg": {"layers": [1, 1, 1, 1]}}, "CLIP is not supported: its visual tower is a ModifiedResNet"),
    "text-tower": (
        {"text_cfg": {"hf_model_name": "roberta-base"}},
        "CLIP is not supported: its text tower is a model of transformers",
    ),
    "decoder": (
        {"multimodal_cfg": {"width": 24}},
        "CoCa is not supported: its decoder of captions attends across the towers",
    ),
    "tokenizer-mode": (
        {"text_cfg": {"hf_tokenizer_name": "bert-base-uncased", "tokenizer_mode": "clips"}},
        "CLIP is not supported: its HFTokenizer has a mode of its own (tokenizer_mode)",
    ),
    "class-token": (
        {"text_cfg": {"embed_cls": True}},
        "CLIP is not supported: its TextTransformer has a class token (embed_cls)",
    ),
    "image-tokens": (
        {"vision_cfg": {"output_tokens": True}},
        "CLIP is not supported: its VisionTransformer gives tokens beside features (output_tokens)",
    ),
    "text-tokens": (
        {"text_cfg": {"output_tokens": True}},
        "CLIP is not supported: its TextTransformer gives tokens beside features (output_tokens)",
    ),
    "own-attention": (
        {"vision_cfg": {"qk_norm": True}},
        "CLIP is not supported: visual.transformer.resblocks.0 is a CustomResidualAttentionBlock with Attention, "
        "expected ResidualAttentionBlock with MultiheadAttention",
    ),
    "two-poolers": (
        {"vision_cfg": {"attentional_pool": "parallel", "attn_pooler_heads": 2}},
        "CLIP is not supported: its VisionTransformer has an AttentionalPooler for tokens, so there is no one feature "
        "of an image",
    ),
    "no-image-pool": (
        {"vision_cfg": {"pool_type": "none"}},
        "CLIP is not supported: its VisionTransformer has no pooling, so there is no one feature of an image",
    ),
    "no-text-pool": (
        {"text_cfg": {"pool_type": "none"}},
        "CLIP is not supported: its TextTransformer does not pool, so there is no one feature of a text",
    ),
    "another-end": (
        {"text_cfg": {"pool_type": "eos"}},
        "CLIP is not supported: its TextTransformer pools at token 2, "
        "open_clip's SimpleTokenizer ends a text with 49407",
    ),
    "widths": (
        {"text_cfg": {"proj_type": "none"}},
        "CLIP is not supported: its TextTransformer has no projection, and another width than the features of images",
    ),
    "vocabulary": (
        {"text_cfg": {"vocab_size": 32000}},
        "CLIP is not supported: it knows 32000 tokens, open_clip's SimpleTokenizer has 49408",
    ),
    "more-special-tokens": (
        {"text_cfg": {"tokenizer_kwargs": {"additional_special_tokens": ["<one>"]}}},
        "CLIP is not supported: it knows 49408 tokens, open_clip's SimpleTokenizer has 49409",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_apart_is_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    folder = rewrite_clip(publish_clip(pico_clip(), "clip", tmp_path), **json.loads(json.dumps(changes)))
    caught = refused(InputError, FAMILY.load_folder, folder)
    assert caught.message == f"open_clip's {message}"
    assert "ViT-B-32" in str(caught.hint) and "\n" not in caught.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text_cfg": {"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}},
            "SimpleTokenizer are not supported: bpe_path",
        ),
        ({"text_cfg": {"tokenizer_kwargs": {"reduction_mask": "random"}}}, "not supported: reduction_mask"),
        ({"text_cfg": {"tokenizer_kwargs": ["clean"]}}, "not supported: ['clean']"),
        ({"text_cfg": {"tokenizer_kwargs": {"clean": "wash"}}}, "cannot make a SimpleTokenizer of"),
        ({"vision_cfg": {"layers": 10**9}}, "cannot build this model: vision_cfg has 1000000000 layers"),
        ({"text_cfg": {"layers": 0}}, "cannot build this model: text_cfg has 0 layers"),
        ({"text_cfg": {"context_length": 10**9}}, "text_cfg has a context of 1000000000 tokens"),
        ({"text_cfg": {"heads": 5}}, "cannot build this model: embed_dim must be divisible by num_heads"),
        ({"vision_cfg": {"colour": "red"}}, "cannot build this model: "),
        ({"embed_dim": "wide"}, "cannot build this model: "),
    ],
)
def test_configurations_that_make_no_model_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = rewrite_clip(publish_clip(pico_clip(), "clip", tmp_path), **json.loads(json.dumps(changes)))
    caught = refused(InputError, FAMILY.load_folder, folder)
    assert message in caught.message


def test_configurations_without_towers_are_refused() -> None:
    for section in ("vision_cfg", "text_cfg"):
        with pytest.raises(InputError, match=f"has no {section}"):
            FAMILY.build({**clip_config(), section: None})


# --- names ------------------------------------------------------------------------------------------------------------


def test_random_weights_are_drawn_by_the_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (FAMILY.load_name("ViT-S-32", {"pretrained": False, **TINY}, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers go on"
    names = one.tensors.names()
    assert names == sorted(FAMILY.build(one.config).state_dict())
    assert same_tensors(tensors_of(one.tensors), tensors_of(same.tensors))
    drawn = "visual.transformer.resblocks.0.attn.in_proj_weight"
    assert not torch.equal(one.tensors.read(drawn), other.tensors.read(drawn))
    torch.manual_seed(1)
    reference = open_clip.CLIP(**clip_config()).state_dict()
    assert same_tensors(tensors_of(one.tensors), reference)
    assert one.config == clip_config() and one.labels is None
    defaults = json.loads(json.dumps(dataclasses.asdict(PreprocessCfg(size=(16, 16)))))
    assert one.preprocess == {"kind": "image", **defaults}


def test_architectures_keep_the_librarys_names() -> None:
    loaded = FAMILY.load_name("ViT-S-32", {"pretrained": False}, 0)
    assert loaded.arch == "ViT-S-32" and loaded.config == open_clip.get_model_config("ViT-S-32")
    assert [(s.heads, s.head_dim, s.tower) for s in FAMILY.sites(loaded.config)] == [
        *[(6, 64, "visual")] * 12,
        *[(6, 64, "text")] * 12,
    ]
    assert loaded.preprocess["size"] == [224, 224]


def test_a_tag_gives_random_weights_its_preprocessing_and_activation() -> None:
    loaded = FAMILY.load_name("ViT-B-32/openai", {"pretrained": False, **TINY}, 0)
    assert loaded.config["quick_gelu"] is True
    plain = FAMILY.load_name("ViT-L-14/laion2b_s32b_b82k", {"pretrained": False, **TINY}, 0)
    assert "quick_gelu" not in plain.config and plain.preprocess["mean"] == [0.5, 0.5, 0.5]


@pytest.mark.fault(109)
@pytest.mark.parametrize(
    ("name", "options", "is_said"),
    [
        ("ViT-B-32", {}, True),  # OpenAI's need another activation
        ("ViT-L-14", {}, True),
        ("ViT-B-32/openai", {}, False),
        ("ViT-B-32", {"quick_gelu": True}, False),
        ("ViT-B-32-quickgelu", {}, False),
        ("ViT-S-32", {}, False),  # of which none are published
    ],
)
def test_weights_in_a_file_may_need_another_activation_or_other_images(
    name: str, options: dict[str, Any], is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(FAMILY), "initial", lambda *_: {})
    loaded = FAMILY.load_name(name, {"pretrained": False, **options}, 0)
    assert [f"--arch open_clip:{name}/TAG" in warning for warning in loaded.warnings] == [True] * is_said


def test_weights_that_are_drawn_began_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_clip, "list_pretrained_tags_by_model", lambda arch: ["openai"])
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda arch, tag: {"quick_gelu": True})
    assert FAMILY.load_name("ViT-S-32", {"pretrained": False}, 0).warnings
    assert open_source("open_clip:ViT-S-32?pretrained=0").warnings == ()


@pytest.mark.parametrize(
    ("name", "options", "kind", "message", "hint"),
    [
        ("ViT-B-23", {}, InputError, "has no architecture 'ViT-B-23'; did you mean ViT-B-32?", "list them"),
        ("zzz", {"pretrained": False}, InputError, "has no architecture 'zzz'", "list them with: "),
        ("ViT-B-32", {}, InputError, "open_clip:ViT-B-32 does not say which weights", "laion2b_s34b_b79k"),
        ("ViT-B-32/laion", {}, InputError, "open_clip:ViT-B-32 has no weights 'laion'", "laion2b_s34b_b79k"),
        ("ViT-S-32", {}, InputError, "does not say which weights", "random weights: 'open_clip:ViT-S-32?pretrained=0'"),
        ("ViT-B-32/no", {"pretrained": False}, InputError, "ViT-B-32 has no weights 'no'", "/TAG with one of"),
        ("ViT-B-32/openai", {"embed_dim": 8}, UsageError, "takes no options (embed_dim)", "pretrained=0"),
        ("ViT-B-32", {"pretrained": False, "x": 1, "text_cfg.y": 2}, UsageError, "no setting text_cfg.y, x", "_cfg."),
        ("RN50/openai", {}, InputError, "its visual tower is a ModifiedResNet", "ViT-B-32"),
        ("EVA02-B-16", {"pretrained": False}, InputError, "an EvaAttention that normalises across heads", "ViT-B-32"),
        ("ViT-H-14-CLIPA", {"pretrained": False}, InputError, "a tokenizer of transformers", "open a folder"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_opened_say_what_can(
    name: str, options: dict[str, Any], kind: type[InputError | UsageError], message: str, hint: str
) -> None:
    caught = refused(kind, FAMILY.load_name, name, options, 0)
    assert message in caught.message and hint in str(caught.hint)


class Hub:
    """A hub on this machine: it gives what a folder holds and notes what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, list[str]]] = []

    def __call__(self, repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append((repo, allow_patterns))
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    import huggingface_hub

    found = Hub(publish_clip(pico_clip(), "clip", tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    return found


def test_pretrained_weights_are_the_safetensors_of_the_hub(hub: Hub) -> None:
    loaded = FAMILY.load_name("ViT-B-32/laion2b_s34b_b79k", {}, 0)
    repo = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    assert hub.asked == [(repo, [CONFIG, WEIGHTS])]
    assert loaded.config == clip_config()
    assert same_tensors(tensors_of(loaded.tensors), pico_clip().state_dict())
    FAMILY.load_name("ViT-B-32/LAION2B-s34b-b79k", {"pretrained": True}, 0)  # the library folds tags too
    assert hub.asked[1] == hub.asked[0]


def test_a_repository_without_safetensors_is_refused(hub: Hub) -> None:
    (hub.folder / WEIGHTS).unlink()
    caught = refused(InputError, FAMILY.load_name, "ViT-B-32/laion2b_s34b_b79k", {}, 0)
    assert f"has no {WEIGHTS}" in caught.message
    assert WEIGHTS in str(caught.hint)


@pytest.mark.parametrize("entry", [{"url": "https://x/ViT-B-32.pt", "hf_hub": ""}, {"hf_hub": "org/name/weights.bin"}])
def test_weights_that_are_a_pickle_are_refused(
    hub: Hub, entry: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda arch, tag: entry)
    caught = refused(InputError, FAMILY.load_name, "ViT-B-32/old", {}, 0)
    assert caught.message == "open_clip:ViT-B-32/old is published as a pickle only, which hydractl never opens"
    assert WEIGHTS in str(caught.hint) and hub.asked == []


def test_a_doubt_about_the_activation_is_refused(hub: Hub) -> None:
    with pytest.raises(InputError, match=r"disagree on the activation of ViT-B-32/openai \(quick_gelu\)"):
        FAMILY.load_name("ViT-B-32/openai", {}, 0)
    rewrite_clip(hub.folder, quick_gelu=True)
    assert FAMILY.load_name("ViT-B-32/openai", {}, 0).config["quick_gelu"] is True
