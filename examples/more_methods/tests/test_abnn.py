"""ABNN members against norms with noise written out on the libraries' own models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hydractl_more_methods.noise import Noise, NoisyNorms, class_weights
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrize

import hydractl
from hydractl.files.checkpoint import FileTensors
from hydractl.methods import read_ensemble
from hydractl.model.loading import build_model
from hydractl.training.options import WeightOptions
from hydractl.training.start import trainable
from tests.calls import training_request
from tests.pico import close, inputs, shared_stock, source_of
from tests.running import quiet

STD = 0.3


@pytest.mark.parametrize("variant", ["class-token", "eva", "bert", "modernbert", "llama", "clip", "hf-siglip", "gpt2"])
def test_without_noise_the_model_is_the_base_bit_for_bit(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    base, adapted = build_model(source), build_model(source)
    NoisyNorms(0.0).add(adapted, seed=0)
    assert torch.equal(base.member_logits(inputs(variant)), adapted.member_logits(inputs(variant)))
    before, after = base.stock_tensors(), adapted.stock_tensors()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_member_has_its_noise_and_a_training_draws_new_noise_in_each_pass() -> None:
    reference = shared_stock("class-token")
    model = build_model(source_of(reference, "class-token"))
    NoisyNorms(STD).add(model, seed=4)
    norms = [name for name, module in reference.named_modules() if isinstance(module, nn.LayerNorm)]
    found, before = model.stock_tensors(), reference.state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, found[name])}
    assert changed == {f"{name}.weight" for name in norms}
    ratios = torch.cat([found[f"{name}.weight"] / before[f"{name}.weight"] for name in norms])
    assert float(ratios.mean()) == pytest.approx(1, abs=0.1) and float(ratios.std()) == pytest.approx(STD, abs=0.1)
    batch = inputs("class-token")
    with torch.no_grad():
        close(model.eval().member_logits(batch)[0], functional_call(reference, found, (batch,)))
        assert torch.equal(model.member_logits(batch), model.member_logits(batch))
        # In training the same norms have other noise, whatever the member's is.
        torch.manual_seed(0)
        first, second = (model.train().member_logits(batch) for _ in range(2))
        assert not torch.equal(first, second)
        torch.manual_seed(0)
        assert torch.equal(model.member_logits(batch), first)


def test_the_noise_is_that_of_the_authors_layer() -> None:
    """torch-uncertainty's BatchNormAdapter2d: weight * normalised * (1 + alpha * noise) + bias."""
    norm = nn.BatchNorm2d(6).eval()
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    weight, bias = norm.weight.detach().clone(), norm.bias.detach().clone()
    noise = Noise(weight, STD, torch.Generator().manual_seed(0))
    parametrize.register_parametrization(norm, "weight", noise)
    x = torch.randn(4, 6, 5, 5)
    normalised = F.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)

    def of_channels(values: torch.Tensor) -> torch.Tensor:
        return values[:, None, None]

    expected = of_channels(weight) * normalised * (1 + STD * of_channels(noise.kept)) + of_channels(bias)
    close(norm(x).detach(), expected)


def test_a_prior_gives_each_training_its_weights_of_classes() -> None:
    options = read_ensemble("abnn:0.1,3,5")
    assert str(options) == "abnn:0.1,3,5" and str(read_ensemble("abnn:0.1,3")) == "abnn:0.1,3"
    assert read_ensemble("abnn:0.1").class_weights(0) is None
    weigh = training_request(ensemble=options.of_one_training(), seed=4).with_method().class_weights
    assert weigh is not None
    weights = weigh(10)
    assert sorted(weights.tolist()) == [1.0] * 7 + [5.0] * 3, "as many as the root of the number of classes"
    assert torch.equal(weights, class_weights(10, 5.0, seed=4))
    assert not torch.equal(weights, class_weights(10, 5.0, seed=5))


def test_norms_and_the_classifier_are_trained() -> None:
    """As the README counts them."""
    page = Path(__file__).resolve().parents[1] / "README.md"
    assert "| 2 d (2 L + 1) + (d + 1) C |" in page.read_text(encoding="utf-8")
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    adapter = NoisyNorms(STD)
    adapter.add(model, seed=0)
    trained = trainable(model, WeightOptions(adapter=adapter))
    d, blocks, classes = 24, 3, 5
    assert sum(p.numel() for p in trained.values()) == 2 * d * (2 * blocks + 1) + (d + 1) * classes


@pytest.mark.long
def test_members_differ_in_norms_and_classifiers_alone_and_are_fused_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    np.savez("d.npz", x=pixels, y=np.arange(20) % 5)
    model = (
        "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
    )
    quiet("finetune", model, "--train", "d.npz", "--steps", "1", "--device", "cpu", "-o", "base.st")
    command = ["finetune", "base.st", "--train", "d.npz", "--steps", "3", "--lr", "0.01", "--device", "cpu"]
    for seed in ("0", "1"):
        quiet(*command, "--ensemble", f"abnn:{STD}", "--seed", seed, "-o", f"a.{seed}.st")
    quiet("fuse", "a.0.st", "a.1.st", "--merge", "none", "-o", "fused.st")
    first, second = FileTensors(Path("a.0.st")), FileTensors(Path("a.1.st"))
    different = {name for name in first.names() if not torch.equal(first.read(name), second.read(name))}
    assert different and all("norm" in name or name.startswith("head.") for name in different)
    fused = hydractl.load("fused.st", device="cpu")
    batch = inputs("class-token")
    with torch.no_grad():
        for member, path in enumerate(("a.0.st", "a.1.st")):
            close(fused.member_logits(batch)[member], hydractl.load(path, device="cpu").member_logits(batch)[0])
    count = sum(p.numel() for p in fused.parameters())
    d, blocks, classes = 24, 2, 5
    single = sum(first.info(name).numel for name in first.names())
    assert count == single + 2 * d * (2 * blocks + 1) + (d + 1) * classes
