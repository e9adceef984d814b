"""``bench --compare``: what is set beside the MODELs is what it says it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydractl.benchmark.rows import StockModel, bench_rows, stock_cost, unsliced
from hydractl.errors import UsageError
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import ModelArgument, build_model
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, pruned
from tests.calls import ran
from tests.pico import (
    close,
    inputs,
    logits,
    mask_of,
    prune_source,
    shared_stock,
    source_of,
    stock,
    zero_columns,
)
from tests.spread import ONE_OF_EACH, marked_release

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []], [[0], [2], [1]]]


def fused(variant: str, merge: list[str]) -> tuple[list[Source], Source]:
    """Three members, and the fused model of them in memory."""
    source = source_of(shared_stock(variant), variant)
    members = [prune_source(source, mask_of(source, kept)) for kept in KEPT]
    plan = plan_fusion(members, merge)
    return members, Source("hydra", "0" * 64, plan.description, plan.tensors)


def write(source: Source, path: str) -> str:
    tensors = DictTensors({name: source.tensors.read(name) for name in source.tensors.names()})
    with open(path, "wb") as handle:
        write_tensors(handle, tensors, source.description.to_json())
    return path


@pytest.fixture
def files() -> list[str]:
    """A whole model, one pruned member, and three members fused."""
    members, hydra = fused("class-token", ["mlp", "norm", "embed"])
    whole = source_of(shared_stock("class-token"), "class-token")
    return [write(whole, "base.st"), write(members[0], "a.st"), write(hydra, "hydra.st")]


def measure(*models: str, compare: list[str], **changes: Any) -> dict[str, Any]:
    few = {"batch_size": [2], "rounds": 2, "warmup": 0, "device": "cpu", "json": True, **changes}
    return ran("bench", {"model": list(models), "compare": compare, **few}).result.to_dict()


# --- the rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("files")
def test_rows_say_what_they_are_and_cost_what_they_hold() -> None:
    document = measure("base.st", "a.st", "h=hydra.st", compare=["stock", "members", "deep"])
    rows = {row["model"]: row for row in document["results"]}
    assert [(name, row["kind"], row["members"]) for name, row in rows.items()] == [
        ("base", "model", 1),
        ("base.stock", "stock", 1),
        ("base.deep", "deep", 3),
        ("a", "model", 1),
        ("h", "model", 3),
        ("h.members", "members", 3),
        ("h.member0", "member", 1),
    ]
    base, deep, member = rows["base"], rows["base.deep"], rows["h.member0"]
    for key in ("params", "macs", "bytes", "checkpoint_bytes"):
        assert deep[key] == 3 * base[key]
    for key in ("params", "macs", "bytes"):
        # The library runs the last block for all tokens.
        assert rows["base.stock"][key] > base[key] if key == "macs" else rows["base.stock"][key] == base[key]
        assert member[key] == rows["a"][key]  # the same heads of the same architecture
    assert rows["h.members"]["macs"] > rows["h"]["macs"]  # the patch embedding runs once in the fused model
    assert rows["h.members"]["checkpoint_bytes"] is None and rows["h.members"]["sha256"] == [rows["h"]["sha256"]] * 3
    assert "warnings" not in document and all(len(row["latency_ms"]["runs"]) == 2 for row in document["results"])


@pytest.mark.usefixtures("files")
def test_requirements_are_about_the_models_unless_a_row_is_named() -> None:
    few = {"batch_size": [1], "rounds": 1, "warmup": 0, "device": "cpu", "json": True}
    require = ["mac_ratio<=2.9", "base.deep:mac_ratio<=2.9"]
    unmet = ran("bench", {"model": ["base.st", "hydra.st"], "compare": ["deep"], "require": require, **few}).unmet
    assert unmet == ["base.deep:mac_ratio<=2.9: mac_ratio of base.deep (batch 1, float32) is 3"]


@pytest.mark.usefixtures("files")
def test_comparisons_that_cannot_be_made_are_refused_together() -> None:
    with pytest.raises(UsageError) as caught:
        measure("a.st", "base.st", compare=["stock", "members", "deep"])
    assert caught.value.problems == [
        "--compare stock needs a first MODEL with all its heads (or --layout zeroed), unlike a",
        "--compare deep needs a fused MODEL, which says how many copies",
        "--compare members needs a fused MODEL",
    ]
    with pytest.raises(UsageError, match="^--compare stock needs .*, unlike hydra$"):
        measure("hydra.st", compare=["stock"])
    with pytest.raises(UsageError, match="one single model as the first MODEL, unlike x$"):
        measure("x=a.st+base.st", "hydra.st", compare=["deep"])
    with pytest.raises(UsageError, match=r"^--compare two rows would be named base.stock$"):
        measure("base.st", "base.stock=a.st", compare=["stock"])


# --- what runs --------------------------------------------------------------------------------------------------------


# One of each library, with statistics of batches, windows, relative terms, and two towers.
FEW = ["class-token", "swin", "bert", "deberta-v3", "clip", "hf-siglip"]
REST = [variant for variant in (*ONE_OF_EACH, "gpt2") if variant not in FEW]


@pytest.mark.parametrize("variant", [*FEW, *marked_release(REST)])
def test_stock_is_the_librarys_own_forward(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as the library's model, by its own attention and not by hydractl's."""
    monkeypatch.setattr("hydractl.model.attention.HeadAttention.forward", None)
    reference = stock(variant)
    source = source_of(reference, variant)
    model = StockModel(source, torch.device("cpu"))
    batch = inputs(variant)
    with torch.inference_mode():
        close(model(batch), F.log_softmax(logits(reference, batch), -1))
    assert type(model.network) is type(reference)
    monkeypatch.undo()
    norms = [module for module in reference.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    statistics = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
    stored = [*reference.parameters(), *statistics]
    assert stock_cost(source)["params"] == sum(tensor.numel() for tensor in stored)


@pytest.mark.fault(91)
def test_stock_of_a_decoder_without_a_padding_token_takes_several_texts() -> None:
    source = source_of(shared_stock("gpt2"), "gpt2")
    config = {**source.description.config, "pad_token_id": None}
    source = replace(source, description=replace(source.description, config=config))
    batch = {"input_ids": torch.tensor([[5, 6, 0], [7, 8, 9]]), "attention_mask": torch.ones(2, 3, dtype=torch.int64)}
    with torch.inference_mode():
        expected = HydraModel(source.description, source.tensors)(batch)
        close(StockModel(source, torch.device("cpu"))(batch), expected)


@pytest.mark.parametrize("variant", ["class-token", "bert", "hf-vit", "clip"])
def test_stock_attends_by_the_fused_operator(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each site, as the library calls it: no attention written out in products and a softmax."""
    source = source_of(shared_stock(variant), variant)
    model = StockModel(source, torch.device("cpu"))
    calls: list[int] = []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or attend(*a, **k))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.requires_grad_(True)  # torch's MultiheadAttention has a faster path of its own for inference
        with torch.enable_grad():
            model(model.example_inputs(2))
    assert len(calls) == sum(site.tower != "text" for site in source.sites)


def test_stock_of_a_zeroed_checkpoint_has_its_removed_heads_as_zeros() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    mask = mask_of(source, KEPT[0])
    description, tensors = pruned(source, mask, "sliced")  # as a zeroed file is opened: sliced, but said to be zeroed
    opened = replace(source, description=replace(description, layout="zeroed"), tensors=tensors)
    whole = unsliced(opened)
    assert whole is not None and stock_cost(whole) == stock_cost(source)
    batch = inputs("class-token")
    removed = [(s.path, h) for s in source.sites for h in range(3) if h not in mask.kept[s.path]]
    with torch.inference_mode():
        expected = F.log_softmax(logits(zero_columns(reference, removed), batch), -1)
        close(StockModel(whole, torch.device("cpu"))(batch), expected)
    assert unsliced(prune_source(source, mask)) is None


def test_copies_of_a_deep_ensemble_share_no_memory() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    _, hydra = fused("class-token", [])
    rows = bench_rows([ModelArgument("base", [source]), ModelArgument("hydra", [hydra])], ["deep"])
    deep = next(row for row in rows if row.kind == "deep").build("cpu", "float32")
    places = [parameter.data_ptr() for parameter in deep.parameters() if parameter.numel()]
    of_one = [parameter for parameter in build_model(source).parameters() if parameter.numel()]
    assert len(places) == len(set(places)) == 3 * len(of_one)


@pytest.mark.usefixtures("files")
def test_the_last_block_for_all_tokens() -> None:
    """Then the single model does the same work as the library's own."""
    few = measure("base.st", "h=hydra.st", compare=["stock"])["results"]
    all_tokens = measure("base.st", "h=hydra.st", compare=["stock"], whole_last_block=True)["results"]
    assert few[0]["macs"] < few[1]["macs"] == all_tokens[0]["macs"] == all_tokens[1]["macs"]
    assert few[2]["macs"] < all_tokens[2]["macs"]
