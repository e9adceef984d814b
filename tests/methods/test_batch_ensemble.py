"""BatchEnsemble members against the libraries' own models with the weights W o (s r^T)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hydractl.methods.batch_ensemble import BatchEnsembleOptions
from hydractl.methods.batch_ensemble.factors import BatchEnsemble
from hydractl.model.loading import build_model
from hydractl.model.runtime import HydraModel
from hydractl.training.start import trainable
from tests.pico import close, inputs, logits, mask_of, prune_source, shared_stock, source_of, stock
from tests.spread import marked_release
from tests.training.test_loop import prepare, settings

STD = 0.3
LIBRARIES = ("class-token", "map-pooling", "modernbert", "gpt2")
OTHERS = marked_release(["eva", "llama", "hf-vit", "hf-siglip"])


@pytest.mark.parametrize("variant", [*LIBRARIES, *OTHERS])
def test_with_factors_of_one_the_model_is_the_base_bit_for_bit(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    pruned = prune_source(source, mask_of(source, [[0, 2], [], [1]]))
    base, adapted = build_model(pruned), build_model(pruned)
    BatchEnsemble(BatchEnsembleOptions(0.0)).add(adapted, seed=0)
    assert torch.equal(base.member_logits(inputs(variant)), adapted.member_logits(inputs(variant)))
    before, after = base.stock_tensors(), adapted.stock_tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_layers_of_transposed_weights_have_factors() -> None:
    reference = stock("gpt2")
    model = build_model(source_of(reference, "gpt2"))
    BatchEnsemble(BatchEnsembleOptions(STD)).add(model, seed=4)
    after, before = model.stock_tensors(), reference.state_dict()
    for name in ("mlp.c_fc.weight", "mlp.c_proj.weight", "attn.c_proj.weight"):
        ratio = after[f"transformer.h.1.{name}"] / before[f"transformer.h.1.{name}"]
        assert not torch.allclose(ratio, torch.ones_like(ratio), atol=0.1)
        assert float(torch.linalg.svdvals(ratio)[1]) < 1e-3, "a product of two vectors"


@pytest.mark.parametrize(
    "variant",
    [
        *("class-token", "pre-norm-no-bias", "bert", "hf-vit", "hf-dinov2-swiglu", "clip"),
        *marked_release(["distilbert", "average-pooling", "qk-norm", "custom-text-first-token"]),
    ],
)
def test_the_library_says_the_same_with_the_weights_that_are_written(variant: str) -> None:
    """And these are W o (s r^T), in the layout of the library."""
    reference, batch = stock(variant), inputs(variant)
    model = build_model(source_of(reference, variant))
    BatchEnsemble(BatchEnsembleOptions(STD)).add(model, seed=4)
    before = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    written = model.stock_tensors()
    ours = model.member_logits(batch)[0]
    with torch.no_grad():
        assert float((ours - logits(reference, batch)).abs().max()) > 0.01
    reference.load_state_dict(written)
    with torch.no_grad():
        close(ours, logits(reference, batch))
    changed = [name for name, tensor in written.items() if not torch.equal(tensor, before[name])]
    assert len(changed) >= 3 * 4  # attention and MLP of each block: two matrices at least
    for name in changed:
        for ratio in (written[name] / before[name]).double().chunk(3 if "qkv" in name or "in_proj" in name else 1):
            assert torch.linalg.matrix_rank(ratio, rtol=1e-4) == 1


# --- what is trained --------------------------------------------------------------------------------------------------


def names_of(**options: Any) -> tuple[HydraModel, set[str]]:
    model = build_model(source_of(shared_stock("class-token"), "class-token"))
    s = settings(ensemble=f"batch-ensemble:{STD}", **options)
    prepare(model, s)
    trained = trainable(model, s)
    return model, {name.removeprefix("networks.0.") for name in trained}


def test_what_is_not_trained_has_no_factors() -> None:
    """Else a part that is left as it is would be scaled by what was drawn."""
    for options, kept in (({"train_last": 1}, "blocks.2."), ({"freeze": ["mlp"]}, ""), ({"freeze": ["attention"]}, "")):
        model, names = names_of(**options)
        whole = build_model(source_of(shared_stock("class-token"), "class-token")).stock_tensors()
        changed = {n for n, t in model.stock_tensors().items() if not torch.equal(t, whole[n])}
        assert changed and all(n.startswith(f"{kept or 'blocks.'}") for n in changed)
        if "freeze" in options:
            assert {"mlp" in n for n in changed} == {options["freeze"] == ["attention"]}
        assert {"head.weight", "head.bias"} < names
        assert not [name for name in names if name.endswith(".original")], "pretrained matrices are as they were"


def test_one_tower_can_be_trained() -> None:
    model = build_model(source_of(shared_stock("clip"), "clip"))
    prepare(model, settings(ensemble=f"batch-ensemble:{STD}", tower="visual"))
    whole = build_model(source_of(shared_stock("clip"), "clip")).stock_tensors()
    changed = {n for n, t in model.stock_tensors().items() if not torch.equal(t, whole[n])}
    assert changed and all(n.startswith("visual.transformer.resblocks.") for n in changed)
    assert {n.split("resblocks.")[1].split(".")[1] for n in changed} == {"attn", "mlp"}
