"""Pico models: the libraries' own classes with random weights, small enough to test every identity exactly.

What is known of a family here is written from its library's definitions and not from hydractl's own code.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import DictTensors, TensorSource, write_tensors
from hydractl.heads.mask import Head, HeadMask
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_source, pruned, with_labels
from tests.pico_clip import merged_clip_names, pico_clip, publish_clip, zero_shot_logits
from tests.pico_hf_clip import HF_CLIP, hf_clip, hf_zero_shot_logits, publish_hf_clip

declare_operators()

SMALL = "pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"

TIMM = {
    "class-token": f"vit_tiny_patch16_224?{SMALL}",
    "average-pooling": f"vit_tiny_patch16_224?{SMALL}&global_pool=avg&class_token=false",
    "distilled": f"deit_tiny_distilled_patch16_224?{SMALL}",
    "registers": f"vit_tiny_patch16_224?{SMALL}&reg_tokens=4&no_embed_class=true",
    "qk-norm": f"vit_tiny_patch16_224?{SMALL}&qk_norm=true",
    "layer-scale": f"vit_tiny_patch16_224?{SMALL}&init_values=0.3",
    "pre-norm-no-bias": f"vit_tiny_patch16_224?{SMALL}&pre_norm=true&qkv_bias=false",
    "map-pooling": f"vit_tiny_patch16_224?{SMALL}&global_pool=map&class_token=false",
    "eva": f"eva02_tiny_patch14_224?{SMALL}",
    "eva-post-norm": f"eva02_tiny_patch14_224?{SMALL}&qkv_fused=false&use_post_norm=true&global_pool=token",
    "dinov3": f"vit_small_patch16_dinov3?{SMALL}&global_pool=token",
    "beit": f"beit_base_patch16_224?{SMALL}&global_pool=token",
    "sapiens2": f"vit_large_patch16_sapiens2?{SMALL}&num_kv_heads=1",
    # Four windows of 16 tokens, at rest and shifted; behind the merging one window of tokens twice as wide.
    "swin": "swin_tiny_patch4_window7_224?pretrained=0&img_size=16&patch_size=2&embed_dim=12&depths=[2,1]"
    "&num_heads=[3,3]&window_size=4&num_classes=5",
    "rope-qk-norm": f"vit_small_patch16_rope_224?{SMALL}&qk_norm=true",
}


_TEXT = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
}
_IMAGE = {**{k: _TEXT[k] for k in list(_TEXT)[1:5]}, "image_size": 16, "patch_size": 8}
_DISTILBERT = {
    "vocab_size": 40,
    "dim": 24,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 32,
    "max_position_embeddings": 20,
}
# The second and third layers see one token to each side.
_MODERNBERT = {**_TEXT, "local_attention": 2, "global_attn_every_n_layers": 3, "pad_token_id": 0}
_MODERNBERT |= {"cls_token_id": 2, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
_ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
_DECODER = {**_TEXT, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_SHARED = {**_DECODER, "num_attention_heads": 4, "num_key_value_heads": 2}
_GPT2 = {"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_inner": 32, "n_positions": 20, "pad_token_id": 0}
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

_DEBERTA = {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_DEBERTA_V3 = {**_DEBERTA, "share_att_key": True, "position_buckets": 2, "norm_rel_ebd": "layer_norm"}
_DEBERTA_V3 |= {"position_biased_input": False, "type_vocab_size": 0}

# Name -> the library's class, its configuration class, what is set.
HF: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", _TEXT),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", {**_TEXT, **_ROBERTA}),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", {**_TEXT, **_ROBERTA}),
    "camembert": ("CamembertForSequenceClassification", "CamembertConfig", {**_TEXT, **_ROBERTA}),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig", _DISTILBERT),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", {**_TEXT, "embedding_size": 16}),
    "electra-unprojected": ("ElectraForSequenceClassification", "ElectraConfig", {**_TEXT, "embedding_size": 24}),
    "modernbert": ("ModernBertForSequenceClassification", "ModernBertConfig", _MODERNBERT),
    "modernbert-mean": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**_MODERNBERT, "classifier_pooling": "mean", "attention_bias": True},
    ),
    "deberta-v3": ("DebertaV2ForSequenceClassification", "DebertaV2Config", _DEBERTA_V3),
    "deberta-v2": ("DebertaV2ForSequenceClassification", "DebertaV2Config", _DEBERTA),
    # Two heads of queries for one of keys and values; then one for all, and heads wider than their share of the width.
    "llama": ("LlamaForSequenceClassification", "LlamaConfig", _SHARED),
    "gpt2": ("GPT2ForSequenceClassification", "GPT2Config", _GPT2),
    "mistral": (
        "MistralForSequenceClassification",
        "MistralConfig",
        {**_DECODER, "num_key_value_heads": 1, "head_dim": 10, "sliding_window": 3},
    ),
    "qwen2": (
        "Qwen2ForSequenceClassification",
        "Qwen2Config",
        {**_SHARED, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForSequenceClassification", "Qwen3Config", {**_SHARED, "head_dim": 8}),
    "gemma": ("GemmaForSequenceClassification", "GemmaConfig", {**_SHARED, "head_dim": 8}),
    "gemma3": (
        "Gemma3TextForSequenceClassification",
        "Gemma3TextConfig",
        {**_SHARED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 3, "layer_types": _LAYER_TYPES},
    ),
    # Part of each head turned, and queries, keys and values in one matrix.
    "phi3": (
        "Phi3ForSequenceClassification",
        "Phi3Config",
        {**_SHARED, "hidden_size": 32, "rope_parameters": _HALF},
    ),
    "arcee": ("ArceeForSequenceClassification", "ArceeConfig", _SHARED),
    # The second layer has no positions.
    "smollm3": ("SmolLM3ForSequenceClassification", "SmolLM3Config", {**_SHARED, "no_rope_layers": [1, 0, 1]}),
    "ministral": (
        "MinistralForSequenceClassification",
        "MinistralConfig",
        {**_SHARED, "head_dim": 8, "sliding_window": 3, "layer_types": _LAYER_TYPES},
    ),
    "seed-oss": ("SeedOssForSequenceClassification", "SeedOssConfig", {**_SHARED, "head_dim": 8}),
    "starcoder2": ("Starcoder2ForSequenceClassification", "Starcoder2Config", {**_SHARED, "sliding_window": 3}),
    # Attention and MLP side by side.
    "stablelm": (
        "StableLmForSequenceClassification",
        "StableLmConfig",
        {**_SHARED, "hidden_size": 32, "use_parallel_residual": True, "use_qkv_bias": True},
    ),
    "ernie": ("ErnieForSequenceClassification", "ErnieConfig", {**_TEXT, "type_vocab_size": 2}),
    "hf-vit-msn": ("ViTMSNForImageClassification", "ViTMSNConfig", _IMAGE),
    "hf-clip-images": ("CLIPForImageClassification", "CLIPConfig", {"vision_config": _IMAGE}),
    "hf-siglip-images": ("SiglipForImageClassification", "SiglipConfig", {"vision_config": _IMAGE}),
    "hf-vit": ("ViTForImageClassification", "ViTConfig", _IMAGE),
    "hf-vit-no-bias": ("ViTForImageClassification", "ViTConfig", {**_IMAGE, "qkv_bias": False}),
    "hf-deit": ("DeiTForImageClassification", "DeiTConfig", _IMAGE),
    "hf-deit-distilled": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", _IMAGE),
    "hf-dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {**_IMAGE, "mlp_ratio": 2}),
    "hf-dinov2-registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {**_IMAGE, "mlp_ratio": 2, "num_register_tokens": 2},
    ),
    "hf-dinov2-swiglu": ("Dinov2ForImageClassification", "Dinov2Config", {**_IMAGE, "use_swiglu_ffn": True}),
}
PAIRS = ("bert", "electra", "electra-unprojected", "ernie")
"""The text models that tell the segments of a pair apart."""

REAL = {"BertForSequenceClassification": "checkpoints/minilm-sst2"}
"""Published checkpoints among the real data, by their class."""

# Two visual sites and one of texts, so that every pico model has three sites of three heads.
OPEN_CLIP = ("clip", "clip-layer-scale", "clip-bias", "custom-text-first-token", "eva-tower")
CLIP = (*OPEN_CLIP, *HF_CLIP)
CLIP_TEXT = {"layers": 1}
LABELS = ["tin", "red oak", "salt and ice", "a very old kite", "moss on a grey stone"]
TEMPLATES = ["a photo of a {}.", "{}!"]
"""What the pico CLIPs are asked for. No two labels have as many tokens: without the heads of the text tower, a text's
features are those of the place where it ends, and labels of the same length would be one class."""

DECODERS = ("phi3", "arcee", "smollm3", "ministral", "seed-oss", "starcoder2", "stablelm")
MORE = ("deberta-v2", "hf-metaclip2", *DECODERS)
"""Of a mechanism that another model of :data:`VARIANTS` has too: in few tests, and marked long."""
VARIANTS = [name for name in (*TIMM, *HF, *CLIP) if name not in MORE]
RELATIVE = ("beit", "swin", "deberta-v3")
"""The models whose heads have terms of their own, which never run as batched products."""

# Which parameters a merged part averages, by patterns on their names.
_TIMM_PARTS = {
    "mlp": r"(layers\.\d\.)?blocks\.\d+\.mlp\.",
    "norm": r"(layers\.\d\.)?(blocks\.\d+\.norm[12]|downsample\.norm)\.|(norm|norm_pre|fc_norm)\.",
    "embed": r"patch_embed\.|layers\.\d\.downsample\.reduction|((cls|reg|dist)_token|pos_embed)$",
}
_HF_PARTS = {
    "BertForSequenceClassification": {
        "mlp": r"\w+\.encoder\.layer\.\d+\.(intermediate|output)\.dense\.",
        "norm": r"\w+\.encoder\.layer\.\d+\.((attention|intermediate|output)\.){1,2}LayerNorm\.",
        "embed": r"\w+\.embeddings(_project)?\.",
    },
    "DistilBertForSequenceClassification": {
        "mlp": r"distilbert\.transformer\.layer\.\d+\.ffn\.",
        "norm": r"distilbert\.transformer\.layer\.\d+\.(sa|output)_layer_norm\.",
        "embed": r"distilbert\.embeddings\.",
    },
    "ModernBertForSequenceClassification": {
        "mlp": r"model\.layers\.\d+\.mlp\.",
        "norm": r"model\.(layers\.\d+\.(attn|mlp)_norm|final_norm)\.",
        "embed": r"model\.embeddings\.",
    },
    "ViTForImageClassification": {
        "mlp": r"(vit|deit)\.layers\.\d+\.mlp\.",
        "norm": r"(vit|deit)\.(layers\.\d+\.layernorm_(before|after)|layernorm)\.",
        "embed": r"(vit|deit)\.embeddings\.",
    },
    "Dinov2ForImageClassification": {
        "mlp": r"dinov2\.encoder\.layer\.\d+\.mlp\.",
        "norm": r"dinov2\.(encoder\.layer\.\d+\.norm[12]|layernorm)\.",
        "embed": r"dinov2\.embeddings\.",
    },
}
_HF_PARTS["DebertaV2ForSequenceClassification"] = {
    "mlp": r"deberta\.encoder\.layer\.\d\.(intermediate|output)\.dense\.",
    "norm": r"deberta\.encoder\.(LayerNorm|layer\.\d\.(attention\.)?output\.LayerNorm)\.",
    "embed": r"deberta\.(embeddings|encoder\.rel_embeddings)\.",
}
_HF_CLIP_PARTS = {
    "mlp": r"(vision|text)_model\.encoder\.layers\.\d+\.mlp\.",
    "norm": r"(vision|text)_model\.(encoder\.layers\.\d+\.layer_norm[12]"
    r"|pre_layrnorm|post_layernorm|final_layer_norm)\.",
    "embed": r"(vision|text)_model\.embeddings\.",
}
for _name in ("CLIP", "Siglip"):
    _HF_PARTS[f"{_name}ForImageClassification"] = _HF_CLIP_PARTS
for _name in ("Roberta", "XLMRoberta", "Camembert", "Electra", "Ernie"):
    _HF_PARTS[f"{_name}ForSequenceClassification"] = _HF_PARTS["BertForSequenceClassification"]
_HF_PARTS["Dinov2WithRegistersForImageClassification"] = {
    part: pattern.replace("dinov2", "dinov2_with_registers")
    for part, pattern in _HF_PARTS["Dinov2ForImageClassification"].items()
}
_HF_PARTS["GPT2ForSequenceClassification"] = {
    "mlp": r"transformer\.h\.\d+\.mlp\.",
    "norm": r"transformer\.(h\.\d+\.ln_[12]|ln_f)\.",
    "embed": r"transformer\.w[tp]e\.",
}
for _name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3", *DECODERS):
    _HF_PARTS[HF[_name][0]] = {
        "mlp": r"model\.layers\.\d+\.mlp\.",
        "norm": r"model\.(layers\.\d+\.\w+_layernorm|norm)\.",
        "embed": r"model\.embed_tokens\.",
    }
for _name in ("DeiT", "ViTMSN"):
    _HF_PARTS[f"{_name}ForImageClassification"] = _HF_PARTS["ViTForImageClassification"]
_HF_PARTS["DeiTForImageClassificationWithTeacher"] = _HF_PARTS["ViTForImageClassification"]


def merged_names(variant: str, model: Any, merge: Iterable[str]) -> list[str]:
    """The parameters that are averaged when these parts are."""
    if variant in OPEN_CLIP:
        return merged_clip_names(model, merge)
    patterns = _HF_CLIP_PARTS if variant in HF_CLIP else _HF_PARTS[HF[variant][0]] if variant in HF else _TIMM_PARTS
    return [n for n, _ in model.named_parameters() if any(re.match(patterns[part], n) for part in merge)]


def stock(variant: str, seed: int = 0) -> Any:
    """The library's own model in eval mode, with weights far enough from zero that every head matters."""
    if variant in OPEN_CLIP:
        model = pico_clip(variant, seed, text_cfg=CLIP_TEXT)
        model.pico = variant
        return model
    make = hf_clip if variant in HF_CLIP else _hf_model if variant in HF else _timm_model
    model = make(variant)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # The libraries' default initialisation (std 0.02, zero biases) would make mistakes invisible.
            if not parameter.dim() or parameter.shape == (1,):  # a temperature that one would meet
                parameter.fill_(2.7 + 0.1 * seed)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def _timm_model(variant: str) -> Any:
    import timm

    name, _, query = TIMM[variant].partition("?")
    options = {k: yaml.safe_load(v) for k, v in (part.split("=") for part in query.split("&"))}
    options.pop("pretrained")
    return timm.create_model(name, pretrained=False, **options).eval()


def _hf_model(variant: str) -> Any:
    import transformers

    name, config_name, settings = HF[variant]
    config = getattr(transformers, config_name)(**settings, num_labels=5)
    cls = getattr(transformers, name)
    return cls._from_config(config, attn_implementation="sdpa" if cls._supports_sdpa else "eager").eval()


@cache
def shared_stock(variant: str, seed: int = 0) -> Any:
    """The stock model, made once: for tests that change nothing of it."""
    # The first caller may be in inference mode, and tensors made there can be written nowhere else.
    with torch.inference_mode(False):
        return stock(variant, seed)


@cache
def stock_logits(variant: str, removed: tuple[Head, ...] = (), seed: int = 0) -> torch.Tensor:
    """What the library says to ``inputs(variant)`` with the output columns of some heads zeroed."""
    with torch.no_grad(), without_heads(shared_stock(variant, seed), removed) as model:
        return logits(model, inputs(variant))


def source_of(model: Any, variant: str, name: str = "pico") -> Source:
    """The hydractl source that holds a copy of the weights of a stock model."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return replace(_opened(variant), name=name, tensors=DictTensors(tensors), digest=name)


@cache
def _opened(variant: str) -> Source:
    if variant in TIMM:
        return open_source(f"timm:{TIMM[variant]}")
    source = open_source(_published(variant).name)
    return with_labels(source, LABELS, TEMPLATES) if variant in CLIP else source


@cache
def _published(variant: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    publish(stock(variant), variant, Path(folder.name))
    return folder


def published(variant: str, folder: Path) -> Path:
    """A folder of its own with the stock model, as the library itself saves it."""
    return Path(shutil.copytree(_published(variant).name, folder, dirs_exist_ok=True))


def publish(model: Any, variant: str, folder: Path) -> None:
    """A folder as the library itself saves a model, with a tokenizer where the model reads text."""
    if variant in OPEN_CLIP:
        publish_clip(model, variant, folder, text_cfg=CLIP_TEXT)
        return
    if variant in HF_CLIP:
        publish_hf_clip(model, variant, folder)
        return
    model.save_pretrained(folder)
    write_inputs(folder, variant)


def write_inputs(folder: Path, variant: str) -> None:
    """The tokenizer or the image processor of a model of transformers, beside it."""
    name, _, settings = HF[variant]
    if "vocab_size" in settings:
        write_tokenizer(folder, pair_types=variant in PAIRS, roberta=settings.get("pad_token_id") == 1)
    elif "Dinov2" in name:
        write_processor(folder, "Bit", size={"shortest_edge": 28}, crop_size={"height": 24, "width": 24})
    elif "DeiT" in name:
        write_processor(folder, "DeiT", size={"height": 18, "width": 18}, crop_size={"height": 16, "width": 16})
    elif "CLIP" in name:
        write_processor(folder, "CLIP", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    else:
        write_processor(folder, "Siglip" if "Siglip" in name else "ViT", size={"height": 16, "width": 16})


def write_processor(folder: Path, kind: str, **settings: Any) -> None:
    """An image processor as the library saves it."""
    import transformers

    getattr(transformers, f"{kind}ImageProcessor")(**settings).save_pretrained(folder)


def named(model: Any, labels: Sequence[str]) -> Any:
    """A stock model of transformers whose classes have these names."""
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: i for i, label in enumerate(labels)}
    return model


WORDS = ["a", "film", "fine", "dull", "not", "so", "##s", "un", "##kind", "!", ".", ","]


def write_tokenizer(folder: Path, *, pair_types: bool = True, roberta: bool = False) -> None:
    """A tokenizer of a few words, as the library saves one; RoBERTa's special tokens stand at other numbers."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    order = names if roberta else [names[1], names[3], names[0], names[2], names[4]]
    vocabulary = {token: number for number, token in enumerate([*order, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=names[3]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    start, end = names[0], names[2]
    pair = f"{start} $A {end} {end} $B {end}" if roberta else f"{start} $A {end} $B:1 {end}:1"
    special = [(token, vocabulary[token]) for token in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(f"{start} $A {end}", pair, special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=names[0],
        pad_token=names[1],
        sep_token=names[2],
        unk_token=names[3],
        mask_token=names[4],
        model_max_length=16,
        model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] if pair_types else [])],
    )
    fast.save_pretrained(folder)
    # Of several versions of the library, each names this class in its own way; this name all of them know.
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(document), encoding="utf-8")


def shared_source(variant: str, seed: int = 0, name: str = "pico") -> Source:
    """The source that holds the weights of :func:`shared_stock`."""
    return source_of(shared_stock(variant, seed), variant, name)


def model_of(stored: Any, **options: Any) -> Any:
    """The model of a source or of a plan for fusing, on the CPU."""
    return HydraModel(stored.description, stored.tensors, **options)


def keeping(source: Source, kept: Sequence[Sequence[int]]) -> Source:
    """The source with only these heads of each site."""
    return prune_source(source, mask_of(source, kept))


def prune_source(source: Source, mask: HeadMask) -> Source:
    """The source with only the heads of ``mask``, by the product's own slicing."""
    description, tensors = pruned(source, mask, "sliced")
    return replace(source, description=description, tensors=tensors, digest=f"{source.sha256}-{mask.counts()}")


def zero_columns(model: Any, removed: Iterable[Head]) -> Any:
    """A copy of the STOCK model with the output columns of some heads zeroed: the reference of every identity."""
    model = copy.deepcopy(model)
    for columns in head_columns(model, removed):
        columns.zero_()
    return model


@contextmanager
def without_heads(model: Any, removed: Iterable[Head]) -> Iterator[Any]:
    """The STOCK model itself, for as long as the output columns of some heads are zeroed."""
    columns = head_columns(model, removed)
    before = [one.clone() for one in columns]
    try:
        for one in columns:
            one.zero_()
        yield model
    finally:
        for one, values in zip(columns, before, strict=True):
            one.copy_(values)


def head_columns(model: Any, heads: Iterable[Head]) -> list[torch.Tensor]:
    """The output columns of heads, as views of the weights of a STOCK model."""
    found = []
    for path, head in dict.fromkeys(heads):
        modules = dict(model.get_submodule(path).named_modules())
        names = ("proj", "output.dense", "out_lin", "o_proj", "out_proj", "Wo", "c_proj", "attention.o_proj", "attn.o")
        (out,) = (modules[name] for name in names if name in modules)
        weight = out.weight.detach().T if "c_proj" in modules else out.weight.detach()
        width = weight.shape[1] // heads_of(model)
        found.append(weight[:, head * width : (head + 1) * width])
    return found


def heads_of(model: Any) -> int:
    """Of each site: three, but where two share keys and values."""
    heads = getattr(getattr(model, "config", None), "num_attention_heads", 3)
    return heads if isinstance(heads, int) else 3  # in every stage


def images(count: int = 3, seed: int = 1) -> torch.Tensor:
    """Random pixels ``[count, 3, 16, 16]``."""
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def inputs(variant: str) -> Any:
    """Three samples. Texts are of unequal length, so two of them are padded; pairs have their second segment marked."""
    if variant not in HF or "vocab_size" not in HF[variant][2]:
        return images()
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 5 + [0] * 2])
    ids = torch.randint(5, 40, (3, 7), generator=torch.Generator().manual_seed(1))
    batch = {
        "input_ids": torch.where(mask == 1, ids, HF[variant][2].get("pad_token_id", 0)),
        "attention_mask": mask,
    }
    if variant in PAIRS:
        types = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0], [0] * 7])
        batch["token_type_ids"] = types
    return batch


def prompts(source: Source) -> Any:
    """What the tower of the labels reads."""
    return source.family.prompts(source.description.config, source.description.preprocess, LABELS, TEMPLATES)


def logits(model: Any, batch: Any) -> torch.Tensor:
    """What the library's own forward, or its own zero-shot classifier, says: ``[B, classes]``."""
    if getattr(model, "pico", None) in HF_CLIP:
        return hf_zero_shot_logits(model, batch, LABELS, TEMPLATES)
    if hasattr(model, "pico"):
        return zero_shot_logits(model, model.pico, batch, LABELS, TEMPLATES)
    answer = model(**batch) if isinstance(batch, dict) else model(batch)
    return answer if isinstance(answer, torch.Tensor) else answer.logits


def mask_of(source: Source, kept: Sequence[Sequence[int]]) -> HeadMask:
    """A mask from the kept heads of each site."""
    heads = {site.path: site.heads for site in source.sites}
    kept_at = {site.path: tuple(numbers) for site, numbers in zip(source.sites, kept, strict=True)}
    return HeadMask(heads, kept_at)


def removed_heads(kept: Mapping[str, Sequence[int]], heads: int = 3) -> list[Head]:
    """The heads that are not kept, of sites that have as many each."""
    removed = []
    for path, numbers in kept.items():
        removed += [(path, head) for head in range(heads) if head not in numbers]
    return removed


def same_tensors(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Whether both hold the same names and, under each, the same bits."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def tensors_of(source: TensorSource) -> dict[str, torch.Tensor]:
    """All tensors of a file, or of what stands for one."""
    return {name: source.read(name) for name in source.names()}


def write_stored(stored: Any, path: Path, **changed: Any) -> Path:
    """A checkpoint of a source or a plan for fusing, with some keys of its description changed."""
    with open(path, "wb") as file:
        write_tensors(file, stored.tensors, stored.description.to_json() | changed)
    return path


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The tolerance of every identity: 1e-5 times max(1, the largest logit)."""
    scale = max(1.0, float(expected.abs().max()))
    assert float((actual - expected).abs().max()) <= 1e-5 * scale
