"""Low-rank adaptation against a plain training of A and B on timm's own model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hydractl.cli.app import main
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import read_header
from hydractl.methods.lora import LoraOptions
from hydractl.methods.lora.matrices import LoRA
from hydractl.model.loading import build_model
from hydractl.training.options import WeightOptions
from hydractl.training.start import trainable
from tests.image_data import write_images
from tests.pico import close, inputs, mask_of, prune_source, shared_stock, source_of, stock
from tests.spread import marked_release

R, ALPHA = 2, 6.0


@pytest.mark.parametrize("variant", ["map-pooling", "clip", "gpt2", *marked_release(["class-token", "bert"])])
def test_with_b_of_zero_the_model_is_the_base_bit_for_bit(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    pruned = prune_source(source, mask_of(source, [[0, 2], [], [1]]))
    base, adapted = build_model(pruned), build_model(pruned)
    LoRA(LoraOptions(R, ALPHA)).add(adapted, seed=0)
    assert torch.equal(base.member_logits(inputs(variant)), adapted.member_logits(inputs(variant)))
    assert all(torch.equal(t, adapted.stock_tensors()[name]) for name, t in base.stock_tensors().items())


def test_only_low_rank_matrices_and_the_classifier_are_trained() -> None:
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    LoRA(LoraOptions(R, ALPHA)).add(model, seed=0)
    trained = trainable(model, WeightOptions(adapter=LoRA(LoraOptions(R, ALPHA))))
    shapes = sorted(tuple(p.shape) for name, p in trained.items() if "parametrizations" in name)
    assert shapes == sorted([(3, R, 24), (3, 24, R), (1, R, 24), (1, 24, R)] * 3)
    assert {n.removeprefix("networks.0.") for n in trained if "parametrizations" not in n} == {
        "head.weight",
        "head.bias",
    }
    few = trainable(model, WeightOptions(train_last=1, adapter=LoRA(LoraOptions(R, ALPHA))))
    assert len(few) == 4 + 2
    assert all(".blocks.2." in name or ".head." in name for name in few)


def test_every_matrix_is_that_of_the_library_and_the_scaled_product_of_a_and_b() -> None:
    reference = stock("class-token")
    model = build_model(source_of(reference, "class-token"))
    LoRA(LoraOptions(R, ALPHA)).add(model, seed=0)
    expected = reference.state_dict()
    for block, attention in enumerate(model.attentions):
        qkv, out = (attention.only.bank.parametrizations[name][0] for name in ("qkv", "out"))
        with torch.no_grad():
            for matrices in (qkv, out):
                matrices.b.normal_(generator=torch.Generator().manual_seed(block))
            products = [ALPHA / R * b @ a for b, a in zip(qkv.b, qkv.a, strict=True)]
            expected[f"blocks.{block}.attn.qkv.weight"] += torch.cat(products)
            expected[f"blocks.{block}.attn.proj.weight"] += ALPHA / R * out.b[0] @ out.a[0]
    written = model.stock_tensors()
    assert all(torch.allclose(written[name], tensor, atol=1e-5) for name, tensor in expected.items())
    reference.load_state_dict(written)
    with torch.no_grad():
        close(model.member_logits(inputs("class-token"))[0], reference(inputs("class-token")))


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
