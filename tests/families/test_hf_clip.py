"""transformers' CLIP and SigLIP: folders, classifiers of image towers and refusals, against the library itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.model.loading import build_model
from hydractl.model.source import open_source, with_labels
from tests.pico import (
    LABELS,
    TEMPLATES,
    close,
    images,
    inputs,
    keeping,
    logits,
    published,
    shared_stock,
)
from tests.pico_hf_clip import HF_CLIP, publish_hf_clip, tokenizer_of
from tests.spread import marked_long

import transformers  # isort: skip - behind the families, which make it importable
from tests.pico import same_tensors, tensors_of
from tests.running import refused

FAMILY = get_family("hf")


def photos() -> list[Image.Image]:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), dtype=np.uint8)
    return [Image.fromarray(one) for one in pixels]


@pytest.mark.parametrize("variant", ["hf-clip", "hf-siglip", *marked_long(["hf-metaclip2"])])
@torch.no_grad()
def test_a_folder_and_its_export_are_what_the_library_makes_of_them(variant: str, tmp_path: Path) -> None:
    source = with_labels(open_source(str(published(variant, tmp_path / "one"))), LABELS, TEMPLATES)
    weights = FAMILY.export_folder(tmp_path, source.description.config, source.description.preprocess, None)
    safetensors.torch.save_file(tensors_of(source.tensors), tmp_path / weights, {"format": "pt"})
    padding = {"padding": "max_length" if "siglip" in variant else True, "truncation": True, "return_tensors": "pt"}
    for folder in (tmp_path / "one", tmp_path):
        library = getattr(transformers, HF_CLIP[variant][0]).from_pretrained(folder).eval()
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        pixels = build_model(source).preprocess(photos())
        given = processor(photos(), return_tensors="pt")
        found = pixels if isinstance(pixels, dict) else {"pixel_values": pixels}
        assert same_tensors(found, given)
        one = build_model(with_labels(source, LABELS, ["a photo of a {}."]))
        tokens = tokenizer([f"a photo of a {label}." for label in LABELS], **padding)
        close(one.member_logits(pixels)[0], library(**given, **tokens).logits_per_image)


@torch.no_grad()
def test_a_mask_that_the_tokenizer_makes_is_part_of_siglips_texts(tmp_path: Path) -> None:
    model = shared_stock("hf-siglip")
    publish_hf_clip(model, "hf-siglip", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids", "attention_mask"]}))
    source = with_labels(open_source(str(tmp_path)), LABELS, ["{}"])
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(LABELS, padding="max_length", return_tensors="pt")
    assert not tokens["attention_mask"].all()
    expected = model(pixel_values=images(), **tokens).logits_per_image
    assert not torch.allclose(expected, model(pixel_values=images(), input_ids=tokens["input_ids"]).logits_per_image)
    close(build_model(source).member_logits(images())[0], expected)


@torch.no_grad()
def test_files_as_older_versions_wrote_them(tmp_path: Path) -> None:
    """Positions among the weights, an end of texts by mistake, sizes of images as numbers, a tokenizer in parts."""
    weights = published("hf-clip", tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    older = {**tensors, "text_model.embeddings.position_ids": torch.arange(20)[None]}
    safetensors.torch.save_file(older, weights, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] |= {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config | {"text_config_dict": None}))
    images_before = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 16, "crop_size": 16, "resample": 3}
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images_before))
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    source = with_labels(open_source(str(tmp_path)), LABELS, ["{}"])
    assert source.tensors.names() == sorted(tensors)
    tokens = tokenizer_of("hf-clip")(LABELS, padding=True, truncation=True, return_tensors="pt")
    library = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    one = build_model(source)
    close(one.member_logits(images())[0], library(pixel_values=images(), **tokens).logits_per_image)
    assert one.preprocess(photos()).shape == (2, 3, 16, 16)


@pytest.mark.parametrize("variant", HF_CLIP)
@torch.no_grad()
def test_an_image_tower_with_a_classifier(variant: str, tmp_path: Path) -> None:
    name = HF_CLIP[variant][0].replace("Model", "ForImageClassification")
    _, config, settings = HF_CLIP[variant]
    config = getattr(transformers, config)(**json.loads(json.dumps(settings)), num_labels=5)
    model = getattr(transformers, name)._from_config(config, attn_implementation="sdpa").eval()
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    model.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    source = open_source(str(tmp_path))
    assert (source.classes, [site.tower for site in source.sites]) == (5, ["main", "main"])
    close(build_model(source).member_logits(inputs(variant))[0], logits(model, inputs(variant)))
    pruned = keeping(source, [[0, 2], []])
    without = copy.deepcopy(model)
    first, second = (layer.self_attn.out_proj.weight for layer in without.vision_model.encoder.layers)
    first[:, 8:16] = 0
    second.zero_()
    close(build_model(pruned).member_logits(inputs(variant))[0], logits(without, inputs(variant)))


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CLIPTextModelWithProjection", ": it is one tower of a CLIPModel"),
        ("MetaClip2TextModel", ": it is one tower of a MetaClip2Model"),
        ("SiglipVisionModel", ": it is one tower of a SiglipModel"),
        ("AltCLIPModel", ""),
    ],
)  # fmt: skip
def test_other_classes_are_refused_by_name(name: str, message: str, tmp_path: Path) -> None:
    path = published("hf-clip", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]}))
    caught = refused(InputError, open_source, str(tmp_path))
    assert caught.message == f"transformers' {name} is not supported{message}"
    assert "CLIPModel, SiglipModel" in str(caught.hint)


def test_the_file_of_siglips_tokenizer_does_what_the_tokenizer_does(tmp_path: Path) -> None:
    """The one in Python is never run: its file has to make small letters and leave punctuation out."""
    from tokenizers import Regex, normalizers

    publish_hf_clip(shared_stock("hf-siglip"), "hf-siglip", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "SiglipTokenizer"}))
    with pytest.raises(InputError, match="keeps capitals or punctuation, which SiglipTokenizer removes"):
        open_source(str(tmp_path))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")).backend_tokenizer
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\w\s]"), "")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert open_source(str(tmp_path)).description.preprocess["texts"]["max_length"] == 20
