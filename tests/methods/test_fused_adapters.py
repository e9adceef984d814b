"""Members that differ in few numbers, fused: each is what its library says, and what is equal is stored once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.checkpoint import FileTensors
from tests.pico import CLIP_TEXT, LABELS, WORDS, close, inputs, publish, stock
from tests.pico_clip import pico_clip, zero_shot_logits
from tests.spread import marked_release

declare_operators()

import timm  # noqa: E402
import transformers  # noqa: E402

SEEDS = (1, 2, 3)
TEMPLATES = ["A photo of a {}."]  # the default, as open_clip writes it
OF_ATTENTION = re.compile(r"(.*\.(attn|attention))\.(?!output\.LayerNorm\.)")


def write_data(variant: str) -> str:
    draw = np.random.default_rng(0)
    if variant == "bert":
        rows = [f"{' '.join(draw.choice(WORDS[:6], 5))},{i % 5}\n" for i in range(16)]
        Path("d.csv").write_text("text,label\n" + "".join(rows))
        return "d.csv"
    pixels = draw.integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
    np.savez("d.npz", x=pixels, y=np.arange(16) % 5, classes=np.array(LABELS))
    return "d.npz"


def publish_base(variant: str) -> None:
    Path("base").mkdir()
    if variant == "class-token":
        arguments = {"model_args": {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3}}
        timm.models.save_for_hf(stock(variant), "base", model_config=arguments, safe_serialization="both")
    else:
        publish(stock(variant), variant, Path("base"))


def opened(variant: str, folder: str) -> Any:
    """A published folder in the hands of its own library."""
    if variant == "class-token":
        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    if variant == "bert":
        return transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    model = pico_clip(variant, text_cfg=CLIP_TEXT)
    model.load_state_dict(safetensors.torch.load_file(Path(folder) / "open_clip_model.safetensors"))
    return model.eval()


def said(model: Any, variant: str) -> torch.Tensor:
    if variant == "clip":
        return zero_shot_logits(model, variant, inputs(variant), LABELS, TEMPLATES)
    answer = model(**inputs(variant)) if variant == "bert" else model(inputs(variant))
    return answer.logits if variant == "bert" else answer


def stored_once(models: list[Any]) -> int:
    """Numbers of all models, what is equal in all of them counted once; the attention of a block is one thing."""
    states = [model.state_dict() for model in models]
    groups: dict[str, list[str]] = {}
    for name in states[0]:
        found = OF_ATTENTION.match(name)
        groups.setdefault(found[1] if found else name, []).append(name)
    count = 0
    for names in groups.values():
        same = all(torch.equal(state[name], states[0][name]) for state in states for name in names)
        count += sum(states[0][name].numel() for name in names) * (1 if same else len(models))
    return count


@pytest.mark.parametrize(
    ("variant", "what", "merge"),
    [
        ("class-token", ["--ensemble", "lora:4,8"], None),
        ("bert", ["--ensemble", "batch-ensemble:0.1"], "norm,embed"),
        *marked_release([("clip", ["--ensemble", "lora:4,8", "--tower", "visual"], None)]),
    ],
)
@pytest.mark.long
def test_the_fused_model_is_its_members(
    variant: str, what: list[str], merge: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_base(variant)
    train = ["finetune", "base", "--train", write_data(variant), "--steps", "2", "--lr", "0.01", "--batch-size", "8"]
    for seed in SEEDS:
        assert main([*train, *what, "--seed", str(seed), "-o", f"m{seed}/", "--device", "cpu", "-q"]) == 0
    flags = [] if merge is None else ["--merge", merge]
    assert main(["fuse", *(f"m{seed}/" for seed in SEEDS), *flags, "-o", "fused.st", "-q"]) == 0
    members = [opened(variant, f"m{seed}") for seed in SEEDS]
    with torch.no_grad():
        expected = [said(model, variant) for model in members]
        assert float((expected[0] - expected[1]).abs().max()) > 1e-3
        fused = hydractl.load("fused.st", device="cpu")
        for ours, theirs in zip(fused.member_logits(inputs(variant)), expected, strict=True):
            close(ours, theirs)
        close(fused(inputs(variant)).exp(), torch.stack([one.softmax(-1) for one in expected]).mean(0))
    file = FileTensors("fused.st")
    assert sum(file.info(name).numel for name in file.names()) == stored_once(members)
