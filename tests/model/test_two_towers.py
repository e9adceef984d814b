"""CLIP through the verbs: both towers in one ranking, classes by name, and open_clip itself as the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import hydractl
from hydractl.cli.app import main
from hydractl.errors import UsageError
from hydractl.model.chain import Chain
from hydractl.model.source import open_source
from hydractl.verbs.info import describe
from tests.model.conftest import LABELS
from tests.pico import write_stored
from tests.pico_clip import clip_images, pico_clip, zero_shot_logits
from tests.running import quiet as run
from tests.running import read_json

PROMPT = ["A photo of a {}."]  # the default, as open_clip writes it
VISUAL = [f"visual.transformer.resblocks.{i}.attn" for i in range(2)]
TEXT = [f"transformer.resblocks.{i}.attn" for i in range(2)]
VIT = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=3"


def removed(mask_file: str) -> list[tuple[str, int]]:
    sites = read_json(mask_file)["sites"]
    return [(path, h) for path, entry in sites.items() for h in range(entry["heads"]) if h not in entry["kept"]]


# --- Python -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_zero_shot_is_the_classifier_of_the_library(clip: str) -> None:
    model = hydractl.load(clip, device="cpu")
    assert model.labels is None and model.classes is None
    with pytest.raises(UsageError, match="no classes of its own"):
        model(clip_images())
    classifier = model.zero_shot(LABELS)
    expected = zero_shot_logits(pico_clip("clip"), "clip", clip_images(), LABELS, PROMPT)
    assert torch.allclose(classifier.member_logits(clip_images())[0], expected, atol=1e-4)
    assert torch.allclose(classifier(clip_images()), expected.log_softmax(-1), atol=1e-4)
    assert classifier.labels == LABELS and classifier.classes == 3
    assert model.labels is None, "the model itself stays as it was"
    several = model.zero_shot(LABELS[:2], ["a {label}", "two {label}s, {label}!"])
    templates = ["a {}", "two {}s, {}!"]
    expected = zero_shot_logits(pico_clip("clip"), "clip", clip_images(), LABELS[:2], templates)
    assert torch.allclose(several.member_logits(clip_images())[0], expected, atol=1e-4)


def test_the_prompts_are_read_once(clip: str) -> None:
    model = hydractl.load(clip, device="cpu").zero_shot([*LABELS, "moss"], ["a {}", "one {}"])
    calls = []
    plain = Chain.__call__

    def counted(self: Chain, inputs: Any, watch: Any = None) -> torch.Tensor:
        calls.append(self.tower)
        return plain(self, inputs, watch)

    with mock.patch.object(Chain, "__call__", counted), torch.no_grad():
        first = model(clip_images())
        assert torch.equal(model(clip_images()), first)
        assert calls == ["visual", "text", "visual"] or calls == ["text", "visual", "visual"]
        calls.clear()
        with mock.patch("hydractl.model.prompted.PROMPTS_AT_ONCE", 4):  # two classes of two prompts each
            model.eval()  # weights may have changed
            assert torch.allclose(model(clip_images()), first, atol=1e-5)
        assert sorted(calls) == ["text", "text", "visual"]
    with mock.patch.object(Chain, "__call__", counted):
        calls.clear()
        model(clip_images()).sum().backward()
        assert sorted(calls) == ["text", "visual"]
    assert all(a.only.bank.qkv.grad.abs().sum() > 0 for a in model.attentions)


@torch.no_grad()
def test_features_kept_in_inference_mode_serve_gradients_later(clip: str) -> None:
    model = hydractl.load(clip, device="cpu").zero_shot(LABELS)
    with torch.inference_mode():
        expected = model(clip_images())
    model.requires_grad_(False)
    model.attentions[0].only.bank.qkv.requires_grad_(True)
    with torch.enable_grad():
        found = model(clip_images())
        found.sum().backward()
    assert torch.allclose(found, expected, atol=1e-6)


def test_models_with_a_classifier_read_no_prompts(clip: str) -> None:
    with pytest.raises(UsageError, match="classifier of their own"):
        hydractl.load(VIT, device="cpu").zero_shot(LABELS)
    with pytest.raises(UsageError, match="needs class names"):
        hydractl.load(clip, device="cpu").zero_shot([])


# --- whose heads ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_scores_and_budgets_of_one_tower(clip: str) -> None:
    run("score", clip, "--data", "data.npz", "--method", "taylor", "-o", "both.json")
    run("score", clip, "--data", "data.npz", "--method", "taylor", "--tower", "visual", "-o", "visual.json")
    both, visual = read_json("both.json")["sites"], read_json("visual.json")["sites"]
    assert list(both) == VISUAL + TEXT and list(visual) == VISUAL
    assert all(visual[path] == pytest.approx(both[path], rel=1e-5) for path in VISUAL)
    ranked = sorted(((visual[p][h], i, h) for i, p in enumerate(VISUAL) for h in range(3)))
    lowest = sorted((i, h) for _, i, h in ranked[:4])

    run("prune", clip, "--scores", "visual.json", "--remove", "4", "-o", "a.st")
    run("prune", clip, "--scores", "both.json", "--tower", "visual", "--keep", "1", "-o", "b.st")  # mean of two sites
    for name in "ab":
        assert removed(f"{name}.mask.json") == [(VISUAL[i], h) for i, h in lowest]
    run("prune", clip, "--scores", "both.json", "--scope", "site", "--tower", "text", "--keep", "1", "-o", "d.st")
    least = {p: sorted(range(3), key=lambda h: both[p][h])[:2] for p in TEXT}
    assert removed("d.mask.json") == [(p, h) for p in TEXT for h in sorted(least[p])]


@pytest.mark.long
def test_a_ranking_of_both_towers_and_of_one(clip: str) -> None:
    search = ["--val", "data.npz", "--ood-val", "ood.npz", "--objective", "avg"]
    run("extract-circuit", clip, *search, "--budget", "5", "-o", "both.json")
    run("extract-circuit", clip, *search, "--keep", "1", "--tower", "text", "-o", "text.json")
    both, text = read_json("both.json"), read_json("text.json")
    assert both["source"]["settings"]["labels"] == LABELS and "tower" not in both
    assert text["tower"] == "text" and len(text["removed"]) == 4
    assert {step["site"] for step in text["removed"]} <= set(TEXT)
    assert {step["site"] for step in both["removed"]} <= set(VISUAL + TEXT)
    run("prune", clip, "--circuit", "both.json", "-o", "a.st")
    assert sorted(removed("a.mask.json")) == sorted((s["site"], s["head"]) for s in both["removed"])
    run("prune", clip, "--circuit", "text.json", "--keep", "2", "-o", "b.st")  # mean of the two sites of its tower
    assert sorted(removed("b.mask.json")) == sorted((s["site"], s["head"]) for s in text["removed"][:2])
    Path("bad.json").write_text(json.dumps({**text, "tower": ["text"]}))
    run("prune", clip, "--circuit", "bad.json", "-o", "d.st", code=3)


def test_scores_across_towers_come_with_a_warning(clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", clip, "--data", "data.npz", "--method", "taylor", "--remove", "3", "-o", "a.st")
    assert "scores of different towers are compared" in capsys.readouterr().err
    run("prune", clip, "--method", "random", "--remove", "3", "-o", "b.st")
    run("prune", clip, "--data", "data.npz", "--method", "taylor", "--scope", "site", "--keep", "2", "-o", "c.st")
    assert "towers" not in capsys.readouterr().err
    assert [len(e["kept"]) for e in read_json("c.mask.json")["sites"].values()] == [2, 2, 2, 2]


def test_the_order_and_the_scope_that_the_model_decides(clip: str) -> None:
    run("prune", clip, "--method", "magnitude", "--remove", "5", "-o", "a.st")
    assert len(removed("a.mask.json")) == 5
    run("prune", VIT, "--method", "magnitude", "--remove", "1", "-o", "b.st")
    assert len(removed("b.mask.json")) == 2
    run("prune", clip, "--method", "taylor", "--data", "data.npz", "--remove", "1", "--order", "sequential", code=2)


def test_sites_shared_with_another_member(clip: str) -> None:
    run("prune", clip, "--method", "random", "--remove", "6", "--seed", "1", "-o", "a.st")
    with_a = ["--share-sites", "1", "--with", "a.mask.json"]
    run("prune", clip, "--method", "random", "--remove", "7", *with_a, "--seed", "2", "-o", "b.st")
    a, b = read_json("a.mask.json")["sites"], read_json("b.mask.json")["sites"]
    assert a[VISUAL[0]] == b[VISUAL[0]] and a[TEXT[0]] == b[TEXT[0]] and a != b
    assert len(removed("b.mask.json")) == 7


# --- classes by name --------------------------------------------------------------------------------------------------


def test_labels_decide_the_order_of_classes_and_data_are_mapped_by_name(clip: str) -> None:
    Path("turned.json").write_text(json.dumps(LABELS[::-1]))
    run("eval", clip, "--test", "data.npz", "-o", "a.json")
    run("eval", clip, "--test", "data.npz", "--labels", "turned.json", "-o", "b.json")
    run("predict", clip, "data.npz", "--labels", "turned.json", "-o", "p.jsonl")
    run("eval", clip, "--test", "plain.npz", "--labels", "names.txt", "-o", "c.json")
    rows = [read_json(f"{name}.json")["models"][0]["id"] for name in "abc"]
    for key in ("accuracy", "nll", "brier", "ece"):
        assert rows[1][key] == pytest.approx(rows[0][key], abs=1e-6)
        assert rows[2][key] == pytest.approx(rows[0][key], abs=1e-6)
    assert {json.loads(line)["label"] for line in Path("p.jsonl").read_text().splitlines()} <= set(LABELS)


@pytest.mark.long
def test_classes_that_were_named_travel_in_the_file(clip: str) -> None:
    asked = ["--labels", "names.txt", "--prompt", "one {label}"]
    run("prune", clip, "--method", "random", "--remove", "3", *asked, "-o", "a.st")
    run("prune", clip, "--method", "random", "--remove", "3", "--seed", "1", "-o", "b.st")
    run("prune", clip, "--method", "random", "--remove", "3", "--prompt", "two {label}", "-o", "c.st")
    run("fuse", "b.st", "a.st", "-o", "h.st")
    description = open_source("h.st").description
    assert description.labels == LABELS and description.prompt == ["one {label}"]
    assert open_source("b.st").description.labels is None
    assert describe("h.st").to_dict()["prompt"] == ["one {label}"]
    assert "prompt" not in describe("b.st").to_dict()
    model = hydractl.load("h.st", device="cpu")
    with torch.no_grad():
        assert model(clip_images()).shape == (3, 3)
    assert model.labels == LABELS
    assert model.zero_shot(["moss"]).prompted.templates == ["one {label}"]
    run("eval", "h.st", "--test", "plain.npz", "-o", "e.json")
    run("fuse", "a.st", "c.st", "-o", "i.st", code=3)  # they ask differently


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["eval", "CLIP", "--test", "plain.npz"], "no classes of its own", 3),
        (["finetune", "CLIP", "--train", "plain.npz", "--steps", "1"], "no classes of its own", 3),
        (["eval", "CLIP", "--test", "data.npz", "--prompt", "a photo"], "no place for the class name", 2),
        (["eval", "CLIP", "--test", "data.npz", "--labels", "none.txt"], "cannot read the file", 3),
        (["eval", "CLIP", "--test", "data.npz", "--labels", "two.txt"], "not among the model's 2", 3),
        (["eval", "VIT", "--test", "data.npz", "--prompt", "a {label}"], "classifier of its own", 2),
        (["eval", "VIT", "--test", "data.npz", "--labels", "two.txt"], "names 2 classes", 2),
        (["prune", "VIT", "--method", "random", "--keep", "1", "--tower", "visual"], "has one tower", 2),
        (["prune", "CLIP", "--mask", "m.json", "--tower", "text"], "--tower has no effect", 2),
    ],
)
def test_refusals(arguments: list[str], said: str, code: int, clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.txt").write_text("tin\noak\n")
    models = {"CLIP": clip, "VIT": VIT}
    run(*[models.get(a, a) for a in arguments], code=code)
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("model", "prompt", "said"),
    [
        ("CLIP", ["a photo"], "no place for the class name"),
        ("CLIP", [], "prompt is []: "),
        ("CLIP", "a {label}", "prompt is 'a {label}': "),
        ("VIT", ["a {label}"], "classifier of their own"),
    ],
)
def test_files_that_ask_what_cannot_be_asked(
    model: str, prompt: Any, said: str, clip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prune", clip if model == "CLIP" else VIT, "--method", "random", "--remove", "1", "-o", "a.st")
    write_stored(open_source("a.st"), Path("b.st"), prompt=prompt)
    capsys.readouterr()
    run("bench", "b.st", code=3)
    assert said in capsys.readouterr().err


# --- the rest of the chain --------------------------------------------------------------------------------------------


def test_one_tower_is_trained_and_the_other_locked(clip: str) -> None:
    run("prune", clip, "--method", "random", "--remove", "2", "-o", "a.st")
    train: Callable[..., None] = lambda *more: run("finetune", "a.st", "--train", "data.npz", "--steps", "2", *more)  # noqa: E731
    train("--lr", "0.01", "--tower", "text", "-o", "text.st")
    train("--lr", "0.01", "--train-last", "1", "-o", "last.st")
    before, text, last = (open_source(f"{name}.st").tensors for name in ("a", "text", "last"))

    def changed(after: Any, name: str) -> bool:
        return not torch.equal(before.read(name), after.read(name))

    names = before.names()
    assert not any(changed(text, name) for name in names if name.startswith("visual."))
    assert changed(text, f"{TEXT[0]}.in_proj_weight") and changed(text, "logit_scale")
    for tower in (VISUAL, TEXT):
        assert not changed(last, f"{tower[0]}.in_proj_weight") and changed(last, f"{tower[1]}.in_proj_weight")
    assert not changed(last, "token_embedding.weight") and changed(last, "visual.proj")
    description = open_source("text.st").description
    assert description.labels == LABELS  # what it was trained to tell apart


def test_dry_runs_need_no_classes(clip: str) -> None:
    run("fuse", clip, clip, "-o", "h.st")
    assert main(["prune", clip, "--method", "taylor", "--data", "data.npz", "--remove", "1", "--dry-run"]) == 0
    assert main(["eval", clip, "--test", "data.npz", "--dry-run"]) == 0
    assert main(["--info", "h.st"]) == 0
