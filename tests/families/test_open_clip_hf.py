"""open_clip's models with a tokenizer of transformers, against open_clip itself, without any hub."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from hydractl.errors import InputError
from hydractl.families.open_clip import FAMILY
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import build_model
from hydractl.model.source import Source, open_source, with_labels
from hydractl.model.stored import zeroed
from tests.pico import WORDS, close, images, mask_of, model_of, prune_source, write_tokenizer
from tests.pico_clip import clip_config, publish_clip
from tests.running import refused

import open_clip  # isort: skip - behind the families, which make it importable

LABELS = ["film", "fine film", "dull film!", "not so fine, so dull"]
TEMPLATES = ["a {}.", "{}"]
OWN = {"vocab_size": 40, "no_causal_mask": True, "pool_type": "last"}

# Name -> what the text_cfg says of the tokenizer.
MODELS: dict[str, dict[str, Any]] = {
    "canonicalized": {"clean": "canonicalize"},
    "stripped": {"strip_sep_token": True},
}


def published(name: str, folder: Path, **text: Any) -> tuple[Any, Path]:
    """The library's own model, and a folder as the library saves it, with transformers' tokenizer beside it."""
    text = {"context_length": 12, "hf_tokenizer_name": "ORG/NAME", **OWN, "tokenizer_kwargs": MODELS[name], **text}
    settings = clip_config("custom-text", text_cfg=text)
    settings.pop("custom_text")
    model = open_clip.CustomTextCLIP(**settings).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    write_tokenizer(folder)
    return model, publish_clip(model, "custom-text", folder, text_cfg=text)


def opened(folder: Path) -> Source:
    return with_labels(open_source(str(folder)), LABELS, TEMPLATES)


@torch.no_grad()
def logits(model: Any, folder: Path) -> torch.Tensor:
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    classes = open_clip.build_zero_shot_classifier(
        model, tokenizer, LABELS, [t.replace("{}", "{0}") for t in TEMPLATES]
    )
    return model.logit_scale.exp() * model.encode_image(images(), normalize=True) @ classes


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_folder_is_the_librarys_zero_shot_classifier(name: str, tmp_path: Path) -> None:
    model, folder = published(name, tmp_path)
    source, expected = opened(folder), logits(model, folder)
    assert float((expected - expected[:, :1]).abs().max()) > 1e-2, "the classes must differ"
    close(build_model(source).member_logits(images())[0], expected)
    # Without some heads: sliced, as zeros in the library's own model, and for the tokens that are read only.
    mask = mask_of(source, [[0], [0, 1, 2], [1, 2], []])
    without = copy.deepcopy(model)
    tensors = zeroed(source.tensors, source.family, source.sites, mask_of(source, [range(3)] * 4), mask)
    without.load_state_dict({n: tensors.read(n) for n in tensors.names()})
    pruned = prune_source(source, mask)
    close(build_model(pruned).member_logits(images())[0], logits(without, folder))
    whole, fewer = model_of(plan_fusion([source, pruned])).member_logits(images())
    close(whole, expected)
    close(fewer, logits(without, folder))
    assert {source.family.part(n) for n in source.tensors.names()} == {*("attention", "mlp", "norm", "embed", "own")}


def test_an_exported_folder_loads_in_the_library(tmp_path: Path) -> None:
    model, folder = published("canonicalized", tmp_path)
    source, out = opened(folder), tmp_path / "out"
    out.mkdir()
    weights = FAMILY.export_folder(out, source.description.config, source.description.preprocess, None)
    safetensors.torch.save_file({n: source.tensors.read(n) for n in source.tensors.names()}, out / weights)
    stock = open_clip.create_model(f"local-dir:{out}", require_pretrained=True).eval()
    assert torch.equal(logits(stock, out), logits(model, folder))
    again = open_source(str(out)).description
    assert (again.config, again.preprocess) == (source.description.config, source.description.preprocess)


def test_long_prompts_are_cut_to_the_context(tmp_path: Path) -> None:
    _, folder = published("stripped", tmp_path)
    source = open_source(str(folder))
    config, preprocess = source.description.config, source.description.preprocess
    long = " ".join(WORDS[:6] * 4)
    assert FAMILY.prompts(config, preprocess, ["film", long], ["{}"])["text"].shape == (2, 1, 12)
    assert FAMILY.too_long(config, preprocess, ["film", long]) == (1, 12)


def refusal(folder: Path) -> InputError:
    caught = refused(InputError, open_source, str(folder))
    return caught


def test_a_folder_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    _, folder = published("stripped", tmp_path)
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer that transformers can read" in refusal(folder).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"tokenizer_kwargs": {"language": "eng_Latn"}}, "settings of its HFTokenizer"),
        ({"vocab_size": 10}, "cannot be used"),
    ],
)
def test_settings_that_are_not_supported(text: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(published("stripped", tmp_path, **text)[1]).message
