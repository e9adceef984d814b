"""Pico CLIPs and SigLIPs of transformers, with random weights, and what the library itself says to images and names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hydractl.families.torchvision_operators import declare_operators

declare_operators()

import transformers  # noqa: E402

_SIZES = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 32}
_TEXT = {**_SIZES, "num_hidden_layers": 1, "max_position_embeddings": 20, "vocab_size": 302}
_VISION = {**_SIZES, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
_ENDS = {"bos_token_id": 300, "eos_token_id": 301, "pad_token_id": 301}

# Name -> the library's class, its configuration class, what is set.
HF_CLIP: dict[str, tuple[str, str, dict[str, Any]]] = {
    "hf-clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**_TEXT, **_ENDS}, "vision_config": _VISION, "projection_dim": 16},
    ),
    "hf-siglip": (
        "SiglipModel",
        "SiglipConfig",
        {"text_config": {**_TEXT, **_ENDS, "projection_size": 24}, "vision_config": _VISION},
    ),
    "hf-metaclip2": (
        "MetaClip2Model",
        "MetaClip2Config",
        {
            "text_config": {**_TEXT, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
            "vision_config": _VISION,
            "projection_dim": 16,
        },
    ),
}


def hf_clip(variant: str) -> Any:
    """The library's own model in eval mode."""
    name, config_name, settings = HF_CLIP[variant]
    config = getattr(transformers, config_name)(**json.loads(json.dumps(settings)))  # which keeps what it is given
    model = getattr(transformers, name)._from_config(config, attn_implementation="sdpa").eval()
    model.pico = variant
    return model


def publish_hf_clip(model: Any, variant: str, folder: Path) -> None:
    """A folder as the library saves model and processor."""
    model.save_pretrained(folder)
    tokenizer, size = tokenizer_of(variant), {"height": 16, "width": 16}
    if variant == "hf-clip":
        images: Any = transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size)
        transformers.CLIPProcessor(images, tokenizer).save_pretrained(folder)
    else:
        tokenizer.save_pretrained(folder)
        if variant == "hf-metaclip2":
            transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=size).save_pretrained(folder)
        else:
            transformers.SiglipImageProcessor(size=size).save_pretrained(folder)


@cache
def tokenizer_of(variant: str) -> Any:
    """CLIP's tokenizer, of byte pairs learned from a few words; for SigLIP the same with an end only; for the others of
    letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    if variant == "hf-metaclip2":
        pieces = [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), ("▁", -1.0)]
        pieces += [(chr(number), -1.0) for number in range(33, 127)] + [("<mask>", 0.0)]
        return transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=20)
    stock = transformers.CLIPTokenizer().backend_tokenizer
    learned = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    learned.normalizer, learned.pre_tokenizer = stock.normalizer, stock.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(["a photo of a kite", "number zero one two three four five six seven"] * 3, trainer)
    model = json.loads(learned.to_str())["model"]
    vocabulary = {**model["vocab"], "<|startoftext|>": 300, "<|endoftext|>": 301}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=16)
    if variant == "hf-clip":
        return tokenizer
    rust = tokenizer.backend_tokenizer
    rust.post_processor = processors.TemplateProcessing("$A <|endoftext|>", None, [("<|endoftext|>", 301)])
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, **names, model_max_length=20, model_input_names=["input_ids"]
    )


@torch.no_grad()
def hf_zero_shot_logits(model: Any, images: Any, labels: list[str], templates: list[str]) -> torch.Tensor:
    """Logits ``[B, classes]`` as the library's own forward makes them, for features averaged over templates."""
    tokenizer, siglip = tokenizer_of(model.pico), "siglip" in model.pico
    each = []
    for template in templates:
        texts = [template.replace("{}", label) for label in labels]
        tokens = tokenizer(texts, padding="max_length" if siglip else True, truncation=True, return_tensors="pt")
        answer = model(**(images if isinstance(images, dict) else {"pixel_values": images}), **tokens)
        if len(templates) == 1:
            return answer.logits_per_image
        each.append(answer.text_embeds)
    classes = torch.stack(each).mean(dim=0)
    logits = model.logit_scale.exp() * answer.image_embeds @ (classes / classes.norm(dim=1, keepdim=True)).T
    return logits + model.logit_bias if siglip else logits
