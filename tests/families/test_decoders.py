"""Decoders as classifiers: heads that share keys and values, causal masks, and the last token, against transformers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import hydractl
from hydractl.criteria import read_criterion
from hydractl.criteria.criterion import Calibration
from hydractl.errors import InputError
from hydractl.families.base import attention_names
from hydractl.families.hf.family import FAMILY
from hydractl.files.checkpoint import DictTensors
from hydractl.fusion.plan import common_heads, plan_fusion
from hydractl.log import Log
from hydractl.model.loading import build_model
from hydractl.model.source import open_source
from tests.families.test_contract import TEXTS, alone, padded, rolled_left
from tests.pico import (
    HF,
    close,
    inputs,
    keeping,
    logits,
    mask_of,
    model_of,
    prune_source,
    published,
    shared_source,
    shared_stock,
    source_of,
    zero_columns,
)
from tests.running import read_json

KEPT = [[0, 2, 3], [1], [0, 1, 3]]
"""Of the first two heads, which share keys and values, and of the last two."""


def labels() -> torch.Tensor:
    return torch.tensor([3, 0, 1])


def calibration() -> Calibration:
    batch = inputs("llama")
    return Calibration(lambda: iter([(batch, labels())]), 3, 0, Log())


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(90)
@pytest.mark.parametrize("variant", ["llama", "gpt2", "mistral", "gemma3"])
@torch.no_grad()
def test_padding_of_any_token_and_no_mask(variant: str) -> None:
    reference, source = shared_stock(variant), shared_source(variant)
    model = build_model(source)
    left, right = rolled_left(inputs(variant)), inputs(variant)
    no_mask = {"input_ids": right["input_ids"]}
    close(model.member_logits(no_mask)[0], logits(reference, no_mask))
    # Padding changes nothing, whatever token stands there.
    left["input_ids"][1, 0] = 17
    close(model.member_logits(left)[0], logits(reference, right))


@pytest.mark.fault(91)
def test_a_decoder_is_read_at_the_last_token_that_the_mask_shows() -> None:
    config = shared_source("llama").description.config
    ids = torch.tensor([[5, 0, 0, 0], [5, 6, 7, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    batch = {"input_ids": ids, "attention_mask": mask}
    read = {}
    for padding in (None, 0):
        (stages,) = FAMILY.stages(FAMILY.drawn({**config, "pad_token_id": padding}))
        read[padding] = [stages.reads(stages.stem(given)).tolist() for given in (batch, {"input_ids": ids})]
    assert read[None] == [[[1], [3]], [[3], [3]]]
    assert read[0] == [[[0], [2]], [[0], [2]]]  # the library passes over the token that its configuration names


# --- criteria ---------------------------------------------------------------------------------------------------------


def test_magnitude_counts_shared_keys_for_each_head() -> None:
    reference = shared_stock("llama")
    source = source_of(reference, "llama")
    pruned = keeping(source, KEPT)
    scores = read_criterion("magnitude").score(build_model(pruned), calibration(), [0])[0]
    attention = reference.model.layers[0].self_attn
    for score, head in zip(scores, KEPT[0], strict=True):
        key_head = head // 2
        parts = [
            attention.q_proj.weight.unflatten(0, (-1, 6))[head],
            attention.k_proj.weight.unflatten(0, (-1, 6))[key_head],
            attention.v_proj.weight.unflatten(0, (-1, 6))[key_head],
            attention.o_proj.weight.unflatten(1, (-1, 6))[:, head],
        ]
        magnitudes = [float(part.detach().abs().mean()) for part in parts]
        assert score == pytest.approx(sum(magnitudes) / 4, rel=1e-5)


# --- fusing -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_keys_that_members_have_in_common_are_stored_once_if_they_are_equal() -> None:
    reference = shared_stock("llama")
    source = source_of(reference, "llama")
    masks = [mask_of(source, kept) for kept in ([[0, 3], [0], []], [[1], [2, 3], [1]])]
    first, second = (prune_source(source, mask) for mask in masks)
    plan = plan_fusion([first, second])
    path = source.sites[0].path
    whole = source.tensors.read(f"{path}.k_proj.weight")
    assert torch.equal(plan.tensors.read(f"{path}.k_proj.weight"), whole)  # of heads 0, 1 and 3: both
    fused = model_of(plan)
    for member, mask in zip(fused.member_logits(inputs("llama")), masks, strict=True):
        close(member, logits(zero_columns(reference, mask.removed_heads), inputs("llama")))
    # No head is in both members, but head 0 of the first and head 1 of the second use the same keys.
    tensors = {name: second.tensors.read(name) for name in second.tensors.names()}
    tensors[f"{path}.k_proj.weight"] = tensors[f"{path}.k_proj.weight"] + 1
    other = replace(second, tensors=DictTensors(tensors))
    names = [attention_names(source.family, source.tensors.names(), site) for site in source.sites[:2]]
    assert common_heads([first, other], source.sites[0], names[0]) is None
    assert common_heads([first, other], source.sites[1], names[1]) is not None


# --- refusals, and folders --------------------------------------------------------------------------------------------

STRETCHED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("kind", STRETCHED)
def test_angles_are_stretched_as_the_library_does(kind: str) -> None:
    """As older files say it; the library sets them when it builds its model, which here has no memory."""
    settings = {
        **HF["llama"][2],
        "max_position_embeddings": 64,
        "num_labels": 5,
        "rope_scaling": {"rope_type": kind, **STRETCHED[kind]},
        "rope_theta": 500.0,
    }
    library_config = transformers.LlamaConfig.from_dict(copy.deepcopy(settings))
    library = transformers.LlamaForSequenceClassification(library_config)
    model: Any = FAMILY.build({**settings, "architectures": ["LlamaForSequenceClassification"]})
    hidden = torch.zeros(1, 7, 24)
    positions = torch.arange(7)[None]
    expected_cos, expected_sin = library.model.rotary_emb(hidden, positions)
    cos, sin = model.model.rotary_emb(hidden, positions)
    assert torch.equal(cos, expected_cos)
    assert torch.equal(sin, expected_sin)
    assert not torch.equal(expected_cos, torch.ones_like(expected_cos))


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    folder = changed(published("llama", tmp_path / "a"), "tokenizer.json", post_processor=None)
    source = open_source(str(folder))
    collate = source.family.collate(source.description.preprocess)
    assert collate(["a film", "fine"])["attention_mask"].tolist() == [[1, 1], [1, 0]]
    with pytest.raises(InputError, match=r"^this text has no token that can be read: \('',\)$"):
        collate(["a film", ""])


LONG = {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [1.0]}
LONG |= {"original_max_position_embeddings": 16}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "capped": ("Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16}, "caps the scores of its attention (attn_logit"),
    "both sides": ("Gemma", {"use_bidirectional_attention": True}, "its tokens see those behind them too"),
    "by length": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    "by length of two kinds": ("Llama", {"rope_parameters": LONG}, "(rope_type longrope)"),
    "no kind": (
        "Qwen2",
        {"layer_types": ["full_attention", "chunked_attention", "full_attention"]},
        "chunked_attention",
    ),
    "no window": ("Mistral", {"sliding_window": 0}, "its tokens see 0 tokens"),
    "uneven": ("Llama", {"num_key_value_heads": 3}, "4 heads cannot share 3 heads of keys and values"),
    "scaled": (
        "Gemma3Text",
        {"head_dim": 16, "query_pre_attn_scalar": 24},
        "scales scores by 0.2041, not by 1 / sqrt(16)",
    ),
    "unscaled": ("GPT2", {"scale_attn_weights": False}, "scales scores by 1, not by 1 / sqrt(8)"),
    "unknown": ("Phi", {}, "transformers' PhiForSequenceClassification is not supported"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_opened_is_named_in_one_line(case: str) -> None:
    name, changes, message = REFUSED[case]
    config = {**HF["gpt2" if name == "GPT2" else "llama"][2], "num_labels": 5, **changes}
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        FAMILY.build({**config, "architectures": [f"{name}ForSequenceClassification"]})
    assert "\n" not in caught.value.message


def changed(folder: Path, file: str, **changes: Any) -> Path:
    """A folder with some keys of a JSON file replaced, or with None removed."""
    document = json.loads((folder / file).read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in document.items() if value is not None}
    (folder / file).write_text(json.dumps(kept), encoding="utf-8")
    return folder


def test_the_padding_token_is_that_of_config_and_tokenizer(tmp_path: Path) -> None:
    folder = published("llama", tmp_path / "a")
    changed(folder, "config.json", pad_token_id=None)
    assert _padding(folder) == (None, "[PAD]")  # as published
    changed(folder, "config.json", pad_token_id=3)
    with pytest.raises(InputError, match="the tokenizer pads with token 0, config.json has pad_token_id 3$"):
        open_source(str(folder))
    changed(folder, "tokenizer_config.json", pad_token=None, eos_token="[SEP]")
    assert _padding(folder) == (3, "[SEP]")
    changed(folder, "config.json", pad_token_id=None)
    assert _padding(folder) == (None, "[SEP]")  # the token that ends a text
    changed(folder, "tokenizer_config.json", eos_token=None)
    with pytest.raises(InputError, match="cannot be used") as caught:
        open_source(str(folder))
    assert caught.value.problems == ["it has no padding token"]


@pytest.mark.fault(90, 91)
@torch.no_grad()
def test_an_exported_folder_gives_the_answer_alone(here: Path) -> None:
    """Of a model whose tokenizer pads on the left with the token that ends every text."""
    folder = padded(published("gpt2", here / "a"), "gpt2", "left", "none")
    rows = hydractl.predict("a", data=TEXTS, batch_size=3).rows
    assert [row["confidence"] for row in rows] == pytest.approx(alone(folder).softmax(-1).amax(1).tolist(), abs=1e-5)
    # The library reads such a folder one text at a time; where its texts do not end in padding, together.
    hydractl.prune("a", method="random", keep=2, output="b/")
    assert read_json("b/config.json").get("pad_token_id") is None
    assert read_json("b/tokenizer_config.json")["padding_side"] == "right"
    changed(folder, "tokenizer.json", post_processor=None)
    hydractl.prune("a", method="random", keep=2, output="c/")
    together = transformers.AutoTokenizer.from_pretrained("c")(TEXTS, padding=True, return_tensors="pt")
    model = hydractl.load("c", device="cpu")
    in_batch = transformers.AutoModelForSequenceClassification.from_pretrained("c")(**together).logits
    close(model.member_logits(model.preprocess(TEXTS))[0], in_batch)


def _padding(folder: Path) -> Sequence[Any]:
    description = open_source(str(folder)).description
    return description.config.get("pad_token_id"), description.preprocess["tokenizer"]["special_tokens"]["pad_token"]
