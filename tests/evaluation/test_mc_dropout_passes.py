"""MC dropout: where it acts, with the library's own model and the same random numbers as the reference."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.evaluation.mc_dropout import dropout_logits, turn_on, with_layers
from hydractl.files.model_records import DropoutRecord
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import SequentialEnsemble, build_model
from tests.pico import close, inputs, logits, mask_of, prune_source, shared_stock, source_of, stock, zero_columns
from tests.spread import spread

KINDS = ["class-token", "layer-scale", "bert", "roberta", "distilbert", "hf-vit"]
KEPT = [[0, 2], [1], [0, 1, 2]]


def source(variant: str, seed: int = 0) -> Any:
    return source_of(shared_stock(variant, seed), variant)


def passes(models: list[Any], p: float, samples: int = 2, seed: int = 3) -> Any:
    built = [build_model(with_layers(one), whole_last_block=True) for one in models]
    model = built[0] if len(built) == 1 else SequentialEnsemble(built)
    turn_on(model, p)
    return partial(dropout_logits, model, DropoutRecord(p=p, passes=samples, seed=seed))


def drop_by_hand(model: Any, p: float) -> Any:
    """The library's model with dropout in the places that the documentation names, by the library's own names."""
    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        classifier = not name.startswith(("bert.", "roberta.", "distilbert.", "vit.", "blocks.", "pos_drop"))
        weights = name.endswith(("attention.self.dropout", "attn.attn_drop", "attention.dropout"))
        if isinstance(module, nn.Dropout) and not weights and not (classifier and _set_apart(model, name)):
            module.p = p
            module.train()
    return model


def _set_apart(model: Any, name: str) -> bool:
    """Whether a classifier's dropout has a rate of its own: DistilBERT's, and timm's ``head_drop``."""
    return name == "head_drop" or hasattr(model.config, "seq_classif_dropout")


def seeded(seed: int, data: str, first: int) -> None:
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed} {data} {first}".encode()).digest()[:7], "big"))


@pytest.mark.parametrize("variant", KINDS)
def test_a_pass_is_that_of_the_librarys_model_with_dropout_on(variant: str) -> None:
    model, batch = stock(variant), inputs(variant)
    by_hand = drop_by_hand(model, 0.3)
    seeded(3, "data", 7)
    with torch.no_grad():
        expected = torch.stack([logits(by_hand, batch) for _ in range(2)])
        found = passes([source(variant)], 0.3)(batch, "data", 7)
        plain = logits(model, batch)
    close(found, expected)
    assert (expected[0] - expected[1]).abs().max() > 1e-2 and (expected[0] - plain).abs().max() > 1e-2


@pytest.mark.parametrize("variant", ["class-token", "distilbert"])
def test_a_pruned_model_drops_like_one_with_zeroed_heads(variant: str) -> None:
    batch, pruned = inputs(variant), prune_source(source(variant), mask_of(source(variant), KEPT))
    removed = [(site.path, h) for site, kept in zip(pruned.sites, KEPT, strict=True) for h in {0, 1, 2} - set(kept)]
    by_hand = drop_by_hand(zero_columns(stock(variant), removed), 0.2)
    seeded(3, "d", 0)
    with torch.no_grad():
        expected = torch.stack([logits(by_hand, batch) for _ in range(3)])
        close(passes([pruned], 0.2, samples=3)(batch, "d", 0), expected)


def test_models_one_after_another_run_one_after_another_in_each_pass() -> None:
    batch, both = inputs("class-token"), [source("class-token", 0), source("class-token", 1)]
    by_hand = [drop_by_hand(stock("class-token", seed), 0.4) for seed in (0, 1)]
    seeded(3, "d", 0)
    with torch.no_grad():
        expected = torch.stack([logits(model, batch) for _ in range(2) for model in by_hand])
        close(passes(both, 0.4)(batch, "d", 0), expected)


def fused(variant: str, *, merge: tuple[str, ...] = ()) -> Any:
    """Two members of the same weights, so with a stem in common, or with weights of their own, merged."""
    base = [source(variant, seed if merge else 0) for seed in (0, 1)]
    masks = [mask_of(base[0], KEPT), mask_of(base[0], KEPT[::-1])]
    plan = plan_fusion([prune_source(one, mask) for one, mask in zip(base, masks, strict=True)], list(merge))
    return replace(base[0], description=plan.description, tensors=plan.tensors)


@pytest.mark.parametrize(("kind", "variant"), spread(["one", "fused", "merged", "two"], ["class-token", "bert"]))
def test_without_a_rate_every_pass_is_the_models_own_answer(kind: str, variant: str) -> None:
    models = {
        "one": lambda: [source(variant)],
        "fused": lambda: [fused(variant)],
        "merged": lambda: [fused(variant, merge=("mlp", "norm"))],
        "two": lambda: [source(variant, 0), source(variant, 1)],
    }[kind]()
    batch = inputs(variant)
    with torch.no_grad():
        plain = torch.cat([build_model(one, whole_last_block=True).member_logits(batch) for one in models])
        found = passes(models, 0.0, samples=3)(batch, "d", 0)
    assert torch.equal(found, plain.repeat(3, 1, 1))


@pytest.mark.parametrize("merge", [(), ("mlp", "norm")])
def test_nearly_everything_dropped_leaves_the_readout_of_zeros(merge: tuple[str, ...]) -> None:
    """Positions, attention and MLP of every member add nothing: the final norm and the classifier see zeros."""
    one = fused("class-token", merge=merge)
    with torch.no_grad():
        found = passes([one], 1 - 1e-7)(inputs("class-token"), "d", 0)
        for member, network in enumerate(build_model(one).networks):
            expected = network.forward_head(network.norm(torch.zeros(3, 5, 24)))
            close(found[member::2], expected.expand(2, -1, -1))


def test_masks_depend_on_seed_data_and_place_and_on_nothing_else() -> None:
    batch, built = inputs("class-token"), passes([source("class-token")], 0.3, samples=4)
    with torch.no_grad():
        first = built(batch, "data", 0)
        before = torch.get_rng_state()
        again = built(batch, "data", 0)
        assert torch.equal(torch.get_rng_state(), before) and torch.equal(first, again)
        assert len({one.numpy().tobytes() for one in first}) == 4
        more = passes([source("class-token")], 0.3, samples=5)(batch, "data", 0)
        assert torch.equal(more[:4], first)
        for other in (
            built(batch, "other", 0),
            built(batch, "data", 3),
            passes([source("class-token")], 0.3, samples=4, seed=4)(batch, "data", 0),
        ):
            assert not torch.equal(other, first)


def test_the_last_block_may_run_for_the_class_token_only() -> None:
    """Fewer masks are drawn, from the same distribution: the means of many passes come near each other."""
    batch = inputs("class-token")
    with torch.no_grad():
        whole = passes([source("class-token")], 0.1, samples=80)(batch, "d", 0)
        model = build_model(with_layers(source("class-token")))
        turn_on(model, 0.1)
        short = dropout_logits(model, DropoutRecord(p=0.1, passes=80, seed=3), batch, "d", 0)
    assert not torch.equal(whole, short) and not model.attentions[-1].training
    error = ((whole.var(0) + short.var(0)) / 80).sqrt()
    assert ((whole.mean(0) - short.mean(0)).abs() < 5 * error).all()


def test_a_model_without_dropout_says_so() -> None:
    one = source("bert")
    config = {k: v for k, v in one.description.config.items() if k != "hidden_dropout_prob"}
    bare = replace(one, description=replace(one.description, config=config))
    with pytest.raises(UsageError, match="^--mc-dropout: bert has no dropout behind its layers"):
        with_layers(bare)
    with pytest.raises(UsageError, match="^--mc-dropout: open_clip models have no dropout"):
        with_layers(source("clip"))
