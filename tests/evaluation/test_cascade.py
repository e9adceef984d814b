"""Cascades from end to end: fused, loaded, evaluated, kept and refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.data import batches, open_data
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.files.header import read_header
from hydractl.metrics.cascade import stored_cascade
from hydractl.metrics.rows import id_block
from hydractl.metrics.samples import samples_of
from hydractl.model.cost import macs
from hydractl.model.loading import ModelArgument
from hydractl.model.source import open_source
from tests.evaluation.conftest import BASE, Run
from tests.spread import marked_long

VAL = ["--cascade", "--val", "builtin:digits/val", "--ood-val", "auto"]
TEST = ["--test", "builtin:digits/test", "--ood", "symbols=builtin:symbols"]


@pytest.fixture(scope="module")
def cascade(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole model and a pruned one, with a cascade."""
    path = tmp_path_factory.mktemp("cascade") / "k.st"
    members = [models / "base.st", models / "t0.st"]
    hydractl.fuse(members, cascade=True, val="builtin:digits/val", ood_val=["auto"], output=str(path))
    return path


def extra(path: Path | str) -> Any:
    description = read_header(Path(path)).description
    assert description is not None
    return description["extra"]


@pytest.mark.long
def test_the_same_cascade_for_members_and_for_a_fused_model(cascade: Path, run: Run) -> None:
    run("fuse", "base.st", "t0.st", "-o", "h.st", "-q")
    run("fuse", "h.st", *VAL, "-o", "again.st", "-q")
    assert extra("again.st")["cascade"] == extra(cascade)["cascade"]
    assert extra("again.st")["self_check"] == extra("h.st")["self_check"]
    told = extra(cascade)["cascade"]
    assert told["macs"] == pytest.approx(told["first_macs"] + told["share"] * told["rest_macs"])
    source = open_source("base.st" if told["member"] == 0 else "t0.st")
    shared = told["first_macs"] - macs(source.description, source.tensors)
    assert 0 <= shared < 0.1 * told["first_macs"], "the first member is as dear as it is alone, but for pooled heads"


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    """Inputs [497, 1, 8, 8]."""
    dataset, collate = open_data("builtin:digits/test"), open_source(BASE).family.collate
    return torch.cat([one.inputs for one in batches(dataset, collate(open_source(BASE).description.preprocess), 64)])


@torch.no_grad()
def test_a_loaded_cascade_serves_what_its_members_and_the_threshold_say(cascade: Path, digits: torch.Tensor) -> None:
    served, every = hydractl.load(cascade, "cpu"), hydractl.load(f"{cascade}?cascade=0", "cpu")
    decision = stored_cascade(extra(cascade)["cascade"], 2)
    assert decision is not None and every.cascade is None
    full, found = every.member_logits(digits), served.member_logits(digits)
    stops = ~decision.goes_on(full[decision.member].numpy())
    assert 0 < stops.sum() < len(digits)
    assert torch.allclose(found[:, ~stops], full[:, ~stops], atol=1e-6)
    alone = full[decision.member].log_softmax(-1)
    assert torch.allclose(served(digits)[stops], alone[stops], atol=1e-5)
    assert torch.allclose(served.ood_score(digits)[stops], -alone[stops].exp().max(1).values.double(), atol=1e-6)
    assert torch.allclose(served.train().member_logits(digits), full, atol=1e-6), "in training all members run"
    assert torch.allclose(pickle.loads(pickle.dumps(served.eval()))(digits), served(digits), atol=1e-6)


def test_eval_measures_what_is_served(cascade: Path, answer: Callable[..., Any]) -> None:
    rows = [f"full={cascade}?cascade=0", f"cascade={cascade}"]
    document = answer(*rows, *TEST, "--bootstrap", "20", "--predictions", "p.st")
    full, row = document["models"]
    predictions = {name: read_predictions(f"p.{name}.st") for name in ("full", "cascade")}
    decision = stored_cascade(extra(cascade)["cascade"], 2)
    assert decision is not None and "cascade" not in full
    for index, name in enumerate(("id", "symbols")):
        every = np.concatenate([logits for _, logits, _ in predictions["full"].batches(index)], axis=1)
        goes_on = decision.goes_on(every[decision.member])
        assert row["cascade"]["share"][name] == pytest.approx(goes_on.mean())
        if name == "id":
            labels = open_data("builtin:digits/test").labels
            expected = id_block(samples_of(decision.served(every), labels, score="msp"))
            assert row["id"].pop("accuracy_at") == pytest.approx(expected.pop("accuracy_at"), abs=1e-5)
            assert row["id"] == pytest.approx(expected, abs=1e-5)
            mean = row["cascade"]["first_macs"] + goes_on.mean() * row["cascade"]["rest_macs"]
            assert row["cost"]["macs"] == pytest.approx(mean, abs=1) and mean < full["cost"]["macs"]
    assert row["members"] == [] and row["difference"]["id.accuracy"]["ci"] is not None


@pytest.mark.long
def test_kept_predictions_of_a_cascade_are_those_of_its_members(
    cascade: Path, answer: Callable[..., Any], run: Run
) -> None:
    rows = [f"full={cascade}?cascade=0", f"cascade={cascade}"]
    document = answer(*rows, *TEST, "--bootstrap", "20", "--predictions", "p.st")
    again = answer(*rows, *TEST, "--bootstrap", "20", "--reuse", "p.cascade.st", "--reuse", "p.full.st")
    for one in (document, again):
        one["models"][1]["id"].pop("accuracy_at")  # as above
    for one, other in zip(again["models"], document["models"], strict=True):
        assert {key: one[key] for key in ("id", "ood", "cost")} == {key: other[key] for key in ("id", "ood", "cost")}
    assert answer("cascade=p.cascade.st", *TEST)["models"][0]["cascade"] == document["models"][1]["cascade"]
    run("eval", *rows, *TEST, "--require", "cascade:cascade.share.id<=0.0", "-q", code=4)


@pytest.mark.long
def test_bench_times_the_mixture_of_the_data(cascade: Path, run: Run) -> None:
    rows = [f"full={cascade}?cascade=0", f"k={cascade}"]
    run("bench", *rows, "--data", "builtin:digits/test", "--batch-size", "70", "--rounds", "2", "-o", "b.json", "-q")
    full, row = json.loads(Path("b.json").read_text())["results"]
    run("eval", rows[1], "--test", "builtin:digits/test", "--limit", "490", "-o", "e.json", "-q")  # 7 full batches
    expected = json.loads(Path("e.json").read_text())["models"][0]
    assert row["share"] == pytest.approx(expected["cascade"]["share"]["id"], abs=1e-6) and "share" not in full
    assert row["macs"] == pytest.approx(expected["cost"]["macs"], rel=1e-6)
    assert row["mac_ratio"] == row["macs"] / full["macs"]


REFUSED = {
    "random inputs": (["bench", "{}"], "random inputs say nothing"),
    "a graph": (["bench", "{}", "--data", "builtin:digits/test", "--compile"], "compiled, all its members run"),
    "too few for a batch": (["bench", "{}", "--data", "builtin:digits/test", "--batch-size", "900"], "has 497 samples"),
    "features": (["eval", "{}", *TEST, "--ood-score", "ash"], "k is a cascade"),
    "its own validation data": (["eval", "{}", "--test", "builtin:digits/val"], "300 by fuse (val)"),
    "another option": (["eval", "{}?cascade=1", *TEST], "F.st?cascade=0 runs all members"),
    "a model without one": (["eval", "base.st?cascade=0", *TEST], "base takes no option"),
    "one member": (["fuse", "base.st", *VAL], "no other members could run"),
    "few samples": (["fuse", "base.st", "t0.st", *VAL, "--limit", "50"], "ID has 50"),
    "nothing to gain": (["fuse", "base.st", "c.st", *VAL, "--cascade-loss", "0"], "may stop"),
    "no cascade to lose": (
        ["fuse", "base.st", "t0.st", "--cascade-loss", "0.1"],
        "--cascade-loss (flag) needs --cascade",
    ),
    "without OOD data": (["fuse", "base.st", "t0.st", *VAL[:3]], "fuse --cascade needs --ood-val"),
    "nothing is fused": (["fuse", "hydra.st", *VAL, "--merge", "mlp"], "--merge has no effect with --cascade"),
}
DEAR = "nothing to gain"


@pytest.mark.parametrize("case", [case for case in REFUSED if case != DEAR] + marked_long([DEAR]))
def test_what_is_refused(case: str, cascade: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, message = REFUSED[case]
    output = ["-o", "new.st"] if command[0] == "fuse" else []
    assert main([*(text.format(cascade) for text in command), *output, "-q"]) in (2, 3)
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_elsewhere_all_members_run(cascade: Path, digits: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(cascade), "-o", "k.pt2"]) == 2
    assert "a checkpoint with a cascade cannot be exported" in capsys.readouterr().err
    assert main(["export", f"{cascade}?cascade=0", "-o", "k.pt2"]) == 0
    with torch.no_grad():
        exported = torch.export.load("k.pt2").module()(pixel_values=digits[:2])
        whole = hydractl.load(f"{cascade}?cascade=0", "cpu")
        assert torch.allclose(exported["member_logits"], whole.member_logits(digits[:2]), atol=1e-5)
    with pytest.warns(UserWarning, match="a graph has no cascade"):
        hydractl.load(cascade, "cpu", compile=True)
    assert ModelArgument("two", [open_source(str(cascade))] * 2).build().models[0].cascade is None
