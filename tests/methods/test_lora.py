"""Low-rank adaptation against a plain training of A and B on timm's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from hydractl.cli.app import main
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import read_header
from hydractl.methods.lora.matrices import LoRA
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel
from hydractl.training.options import WeightOptions
from hydractl.training.start import trainable
from tests.image_data import write_images
from tests.pico import inputs, mask_of, prune_source, shared_stock, source_of, stock
from tests.spread import marked_release
from tests.training.test_loop import batches, prepare, settings, train, training_data

R, ALPHA = 2, 6.0


@pytest.mark.parametrize("variant", ["map-pooling", "clip", "gpt2", *marked_release(["class-token", "bert"])])
def test_with_b_of_zero_the_model_is_the_base_bit_for_bit(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    pruned = prune_source(source, mask_of(source, [[0, 2], [], [1]]))
    base, adapted = build_model(pruned), build_model(pruned)
    LoRA(R, ALPHA).add(adapted, seed=0)
    assert torch.equal(base.member_logits(inputs(variant)), adapted.member_logits(inputs(variant)))
    assert all(torch.equal(t, adapted.stock_tensors()[name]) for name, t in base.stock_tensors().items())


def test_only_low_rank_matrices_and_the_classifier_are_trained() -> None:
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    LoRA(R, ALPHA).add(model, seed=0)
    trained = trainable(model, WeightOptions(adapter=LoRA(R, ALPHA)))
    shapes = sorted(tuple(p.shape) for name, p in trained.items() if "parametrizations" in name)
    assert shapes == sorted([(3, R, 24), (3, 24, R), (1, R, 24), (1, 24, R)] * 3)
    assert {n.removeprefix("networks.0.") for n in trained if "parametrizations" not in n} == {
        "head.weight",
        "head.bias",
    }
    few = trainable(model, WeightOptions(train_last=1, adapter=LoRA(R, ALPHA)))
    assert len(few) == 4 + 2
    assert all(".blocks.2." in name or ".head." in name for name in few)


def test_training_equals_a_plain_training_of_a_and_b_on_the_stock_model() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    s = settings(
        ensemble=f"lora:{R},{ALPHA}",
        seed=5,
        optimizer="sgd",
        steps=4,
        lr=0.02,
        clip=0.0,
        weight_decay=0.0,
        momentum=0.9,
        warmup=0,
        schedule="constant",
    )
    model = HydraModel(source.description, source.tensors)
    prepare(model, s)
    factors: dict[str, Any] = {}
    for block, attention in enumerate(model.attentions):
        added = attention.only.bank.parametrizations
        qkv, out = added.qkv[0], added.out[0]
        factors |= {f"{block}.{side}": [qkv.a[i].detach().clone(), qkv.b[i].detach().clone()]
                    for i, side in enumerate("qkv")}  # fmt: skip
        factors[f"{block}.o"] = [out.a[0].detach().clone(), out.b[0].detach().clone()]
    train(model, training_data(), s)

    leaves = [tensor.requires_grad_() for pair in factors.values() for tensor in pair]
    head = [reference.head.weight, reference.head.bias]
    optimizer = torch.optim.SGD([*leaves, *head], lr=0.02, momentum=0.9)

    def weights() -> dict[str, torch.Tensor]:
        found = {}
        for block, module in enumerate(reference.blocks):
            delta = {side: ALPHA / R * factors[f"{block}.{side}"][1] @ factors[f"{block}.{side}"][0] for side in "qkvo"}
            added = torch.cat([delta["q"], delta["k"], delta["v"]])
            found[f"blocks.{block}.attn.qkv.weight"] = module.attn.qkv.weight.detach() + added
            found[f"blocks.{block}.attn.proj.weight"] = module.attn.proj.weight.detach() + delta["o"]
        return found

    for x, y in batches(4, s.seed):
        optimizer.zero_grad()
        F.cross_entropy(functional_call(reference, weights(), (x,)), y).backward()
        optimizer.step()
    trained, expected = model.stock_tensors(), {**reference.state_dict(), **weights()}
    moved = float((trained["blocks.1.attn.qkv.weight"] - reference.blocks[1].attn.qkv.weight.detach()).abs().max())
    assert moved > 1e-3
    for name, tensor in expected.items():
        assert torch.allclose(trained[name], tensor, rtol=1e-4, atol=1e-5), name


def test_what_comes_out_is_an_ordinary_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(d=20)
    model = (
        "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
    )
    command = ["finetune", model, "--train", "d.npz", "--steps", "3", "--lr", "0.01", "--device", "cpu", "-q"]
    for name, more, numbers in (
        # A and B of four matrices in two blocks
        ("lora", ["--ensemble", "lora:4,8"], 2 * 4 * 4 * (24 + 24) + 5 * 24 + 5),
        ("plain", [], None),
    ):
        assert main([*command, *more, "-o", f"{name}.st", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["trained_params"] == numbers if numbers else answer["trained_params"] == answer["cost"]["params"]
    assert FileTensors("lora.st").names() == FileTensors("plain.st").names()
    made = read_header("lora.st").description["provenance"]["settings"]  # type: ignore[index]
    assert made["ensemble"] == {"kind": "lora", "rank": 4, "alpha": 8.0, "members": 1}
    assert main(["prune", "lora.st", "--method", "magnitude", "--keep", "2", "-o", "cut.st"]) == 0
    assert main(["finetune", "cut.st", *command[2:], "--ensemble", "lora:2,2", "-o", "again.st"]) == 0
    assert main([*command, "--ensemble", "lora:4", "-o", "no.st"]) == 2
