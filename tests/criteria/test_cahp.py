"""CAHP against naive computations: formulas written out, scikit-learn, the libraries' own models, and by hand."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf

import hydractl
from hydractl.cli.app import main
from hydractl.criteria import Calibration, Decider, read_criterion
from hydractl.criteria.cahp import Cahp
from hydractl.criteria.cahp.head_choice import (
    chosen_samples,
    class_pairs,
    count_correct,
    find_knee,
    head_outputs,
    representatives,
    signatures,
    sizes_to_try,
    split_by_class,
)
from hydractl.errors import InputError, NonFiniteError
from hydractl.files.header import read_header
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from tests.pico import (
    images,
    inputs,
    keeping,
    logits,
    mask_of,
    model_of,
    prune_source,
    shared_source,
    source_of,
    stock,
    zero_columns,
)
from tests.pico_clip import pico_clip, publish_clip
from tests.running import quiet as run
from tests.running import read_json
from tests.spread import spread

# --- Jeffries-Matusita ------------------------------------------------------------------------------------------------


def distance(mean_a: Any, cov_a: Any, mean_b: Any, cov_b: Any) -> float:
    """The formula word for word."""
    mean_covariance = (cov_a + cov_b) / 2
    apart = mean_a - mean_b
    ratio = np.linalg.det(mean_covariance) / math.sqrt(np.linalg.det(cov_a) * np.linalg.det(cov_b))
    bhattacharyya = float(apart @ np.linalg.inv(mean_covariance) @ apart) / 8 + math.log(ratio) / 2
    return 2 * (1 - math.exp(-bhattacharyya))


def test_many_classes_have_a_thousand_pairs_drawn_by_the_seed() -> None:
    pairs = class_pairs(60, np.random.default_rng(1))
    assert len({tuple(p) for p in pairs.tolist()}) == 1000 and all(a < b < 60 for a, b in pairs)
    assert (pairs == class_pairs(60, np.random.default_rng(1))).all()
    assert (pairs != class_pairs(60, np.random.default_rng(2))).any()


def naive_signatures(outputs: Any, labels: Any) -> Any:
    """Ledoit-Wolf by scikit-learn, one head, one pair at a time: ``[heads, pairs]``."""
    by_head = []
    for head in range(outputs.shape[1]):
        gaussians = [LedoitWolf().fit(outputs[labels == label, head]) for label in sorted(set(labels.tolist()))]
        distances = []
        for a, b in itertools.combinations(gaussians, 2):
            distances.append(distance(a.location_, a.covariance_, b.location_, b.covariance_))
        by_head.append(distances)
    return np.array(by_head)


def test_signatures_are_distances_of_shrunk_gaussians() -> None:
    random = np.random.default_rng(0)
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2])
    outputs = random.normal(size=(12, 3, 4)) + labels[:, None, None] * np.array([0, 0.3, 2])[None, :, None]
    found = signatures(outputs, labels, class_pairs(3, random))
    assert found == pytest.approx(naive_signatures(outputs, labels), rel=1e-4)
    assert found[2].min() > found[0].max()  # the last head tells the classes apart, the first does not


def test_a_head_that_always_says_the_same_separates_nothing() -> None:
    outputs = np.zeros((9, 2, 4), dtype=np.float32)
    outputs[:, 1] = np.float32(1 / 3)
    outputs[::2, 1] = np.nextafter(np.float32(1 / 3), np.float32(1))  # rounding is no difference
    found = signatures(outputs, np.arange(9) % 3, class_pairs(3, np.random.default_rng(0)))
    assert (found[0] == 0).all() and found[1].max() < 0.01


# --- the knee ---------------------------------------------------------------------------------------------------------


def test_the_knee_is_the_furthest_point_of_the_scaled_curve() -> None:
    heads = [1, 2, 4, 7, 8, 12, 20, 21, 30]
    accuracy = [0.1, 0.35, 0.3, 0.6, 0.62, 0.8, 0.79, 0.85, 0.84]
    for degree in (2, 3, 4):
        fitted = np.polyval(np.polyfit(heads, accuracy, degree), heads)
        points = np.stack([(np.array(heads) - 1) / 29, (fitted - fitted.min()) / np.ptp(fitted)], axis=1)
        along = (points[-1] - points[0]) / np.linalg.norm(points[-1] - points[0])
        away = points - points[0]
        distances = away[:, 1] * along[0] - away[:, 0] * along[1]  # above the chord is positive
        knee = find_knee(heads, accuracy, degree)
        assert knee.heads == heads[int(distances.argmax())]
        assert knee.distance == pytest.approx(distances.max())
        assert knee.fitted == pytest.approx(fitted)


def test_the_knee_is_where_accuracy_stops_to_rise_not_where_it_begins() -> None:
    x = np.arange(1, 31)
    knee = find_knee(x, 0.1 + 0.85 / (1 + np.exp(-(x - 18) / 1.5)), 5)  # the bend below the chord is the larger
    assert 19 <= knee.heads <= 24


@pytest.mark.parametrize("accuracy", [[0.5] * 9, np.arange(9) / 8, (np.arange(9) / 8) ** 2])
def test_a_curve_without_a_knee_keeps_all_heads(accuracy: Sequence[float]) -> None:
    assert (find_knee(range(1, 10), accuracy, 3).heads, find_knee(range(1, 10), accuracy, 3).distance) == (9, None)


def test_few_heads() -> None:
    assert find_knee([1, 2], [0.1, 0.9], 3).heads == 2
    assert find_knee([1, 2, 3], [0.0, 1.0, 1.0], 5).heads == 2  # three points fix a parabola, no more
    assert sizes_to_try(1) == [1] and sizes_to_try(40) == list(range(1, 41))
    assert len(sizes_to_try(144)) == 40 and {1, 144} <= set(sizes_to_try(144))
    assert max(np.diff(sizes_to_try(144))) <= 4


# --- the model --------------------------------------------------------------------------------------------------------


def test_representatives_are_the_middles_of_clusters() -> None:
    points = np.array([0.0, 1.0, 1.9, 50.0, 51.0, 52.1, 90.0])
    distances = np.abs(points[:, None] - points)
    for seed in (0, 1, 10**17):
        assert representatives(distances, 3, seed) == {1, 4, 6}
        assert representatives(distances, 7, seed) == set(range(7))
    assert representatives(distances, 1, 0) == {3}
    tied = np.zeros((9, 9))  # then the draw decides
    drawn = [representatives(tied, 3, seed) for seed in range(5)]
    assert drawn == [representatives(tied, 3, seed) for seed in range(5)]
    assert any(members != drawn[0] for members in drawn)


def joined_heads(model: Any, variant: str, batch: Any) -> list[torch.Tensor]:
    """What the library's own model gives each output projection, ``[B, T, 24]`` of each site."""
    projection_inputs: list[torch.Tensor] = []

    def keep(_: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        projection_inputs.append(arguments[0])

    hooks = []
    for name, module in model.named_modules():
        if name.endswith(("attn.proj", "attention.output.dense", "out_lin")):
            hooks.append(module.register_forward_pre_hook(keep))
    with torch.no_grad():
        logits(model, batch)
    for hook in hooks:
        hook.remove()
    return projection_inputs


READ: dict[str, Any] = {
    "class-token": [0],
    "distilled": [0, 1],
    "average-pooling": [0, 1, 2, 3],
    "bert": [0],
    "distilbert": [0],
}
READ["swin"] = slice(None)


@pytest.mark.parametrize(("variant", "kept"), spread(READ, [None, [[0, 2], [], [1]]]))
def test_head_outputs_are_what_the_library_projects(variant: str, kept: list[list[int]] | None) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    heads = [[0, 1, 2]] * 3 if kept is None else kept
    if kept is not None:
        mask = mask_of(source, kept)
        source = prune_source(source, mask)
        reference = zero_columns(reference, mask.removed_heads)
    model = model_of(source)
    batch = inputs(variant)
    outputs = head_outputs(model, [(batch, torch.zeros(3))], [0, 2], Log())
    whole = joined_heads(reference, variant, batch)
    for site in (0, 2):
        joined = whole[site].reshape(3, -1, whole[site].shape[2])  # of windows those of each sample together
        by_head = joined[:, READ[variant]].mean(1).unflatten(1, (3, -1))
        assert np.abs(outputs[site] - by_head[:, heads[site]].numpy()).max() < 1e-5
    assert all(attention.observer is None for attention in model.attentions)


def knowing() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A stock model, 80 images, and as their labels what it says of them, which is something of every class."""
    model, x = stock("class-token").double(), images(80, seed=3).double()
    with torch.no_grad():
        model.head.bias -= model(x).mean(0)
        return model, x, model(x).argmax(1)


def loaded(reference: Any) -> HydraModel:
    source = source_of(reference, "class-token")
    return model_of(source, dtype=torch.float64)


def calibration(batch: int, seed: int = 0) -> Calibration:
    _, x, y = knowing()
    return Calibration(lambda: zip(x.split(batch), y.split(batch), strict=True), len(y), seed, Log())


def cahp(arguments: str = "") -> Decider:
    criterion = read_criterion(f"cahp{arguments}")
    assert isinstance(criterion, Decider)
    return criterion


def test_the_decision_is_that_of_a_naive_run_on_the_stock_model() -> None:
    reference, x, y = knowing()
    decision = cahp().decide(loaded(reference), calibration(32, seed=2), range(3))

    first = split_by_class(y.numpy(), np.random.default_rng([2, 1]))
    total = int((~first).sum())
    whole = joined_heads(reference, "class-token", x[first])
    outputs = torch.cat([joined[:, 0].unflatten(1, (3, 8)) for joined in whole], dim=1).numpy()
    signature = naive_signatures(outputs, y.numpy()[first])
    apart = np.array([[np.linalg.norm(a - b) for b in signature] for a in signature])
    heads = [(f"blocks.{block}.attn", head) for block in range(3) for head in range(3)]
    medoids = [representatives(apart, size, 2) for size in range(1, 10)]
    correct = []
    for members in medoids:
        removed = [head for number, head in enumerate(heads) if number not in members]
        smaller = zero_columns(reference, removed)
        with torch.no_grad():
            correct.append(int((smaller(x[~first]).argmax(1) == y[~first]).sum()))
    assert correct[0] < total / 2 and correct[-1] == total  # a curve that says something
    accuracy = [count / total for count in correct]
    knees = {degree: find_knee(range(1, 10), accuracy, degree).heads for degree in (2, 3, 4, 5)}
    assert knees[3] == 2 and knees[5] == 9  # a knee, and none

    info = decision.info
    assert info["samples"] == {"signatures": 80 - total, "accuracy": total}
    assert (info["classes"], info["class_pairs"]) == (5, 10)
    assert [point["heads"] for point in info["curve"]] == list(range(1, 10))
    assert [point["correct"] for point in info["curve"]] == correct
    assert info["knees"] == {str(degree): heads_at_knee for degree, heads_at_knee in knees.items()}
    assert info["knee"]["heads"] == knees[3]
    scores = []
    kept = set()
    for site in range(3):
        scores += decision.scores[site]
        kept.update(site * 3 + head for head in decision.kept[site])
    shares = [sum(number in members for members in medoids) / 9 for number in range(9)]
    assert scores == pytest.approx(shares)
    assert kept == medoids[knees[3] - 1]


def test_the_decision_follows_the_seed_and_not_the_batches() -> None:
    model = loaded(knowing()[0])
    first = cahp().decide(model, calibration(32), range(3))
    assert cahp().decide(model, calibration(7), range(3)) == first
    assert cahp().decide(model, calibration(32, seed=1), range(3)).info != first.info
    assert cahp(":degree=2").decide(model, calibration(32), range(3)).info["knee"]["heads"] == first.info["knees"]["2"]
    assert all(a.head_gate is None and a.observer is None for a in model.attentions)


def test_a_pruned_model_chooses_among_the_heads_it_has() -> None:
    source = source_of(knowing()[0], "class-token")
    pruned = keeping(source, [[0, 2], [], [1]])
    model = model_of(pruned, dtype=torch.float64)
    decision = cahp().decide(model, calibration(32), range(3))
    assert [len(scores) for scores in decision.scores.values()] == [2, 0, 1]
    assert decision.kept[1] == [] and [p["heads"] for p in decision.info["curve"]] == [1, 2, 3]


def test_every_class_is_split() -> None:
    labels = np.array([0] * 4 + [1] * 9 + [2] * 20)
    first = split_by_class(labels, np.random.default_rng(0))
    assert [int(first[labels == c].sum()) for c in range(3)] == [3, 5, 10]
    parts = chosen_samples([(torch.arange(6), torch.zeros(6)), (torch.arange(6, 33), torch.zeros(27))], first)
    assert torch.cat([numbers for numbers, _ in parts]).tolist() == np.flatnonzero(first).tolist()


def test_what_is_not_finite_is_no_class() -> None:
    reference = stock("class-token")
    reference.blocks[1].attn.qkv.weight.data[50] = float("inf")
    source = source_of(reference, "class-token")
    model = model_of(source)
    batch = [(images(), torch.zeros(3, dtype=torch.int64))]
    with pytest.raises(NonFiniteError, match=r"blocks\.1\.attn is not finite"):
        head_outputs(model, batch, [0, 1, 2], Log())
    with pytest.raises(NonFiniteError, match="logit"):
        count_correct(model, batch)


def test_too_few_samples_of_a_class() -> None:
    source = shared_source("class-token")
    model = model_of(source)

    def of_labels(labels: list[int]) -> Calibration:
        batch = (images(len(labels)), torch.tensor(labels))
        return Calibration(lambda: iter([batch]), len(labels), 0, Log())

    with pytest.raises(InputError, match="needs 4 samples of each class") as caught:
        cahp().decide(model, of_labels([0] * 4 + [1] * 3 + [3]), range(3))
    assert caught.value.problems == ["class 1: 3", "class 3: 1"]
    assert "--samples" in str(caught.value.hint)
    with pytest.raises(InputError, match="one class"):
        cahp().decide(model, of_labels([2] * 8), range(3))


# --- the verbs --------------------------------------------------------------------------------------------------------

VIT = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=3"


@pytest.fixture
def data(here: Path) -> Path:
    """A working directory with ``data.npz``, 48 images of three classes."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
    np.savez("data.npz", x=pixels, y=np.arange(48) % 3)
    Path("names.txt").write_text("tin\noak\nsalt")
    return here


CAHP = ["--method", "cahp", "--data", "data.npz"]


def test_prune_keeps_the_representatives_that_score_found(data: Path) -> None:
    run("score", VIT, *CAHP, "--seed", "4", "-o", "a.json")
    found = read_json("a.json")
    kept, sites = found["cahp"]["kept"], ["blocks.0.attn", "blocks.1.attn"]
    assert list(kept) == sites and sum(map(len, kept.values())) == found["cahp"]["knee"]["heads"]
    assert found["source"]["settings"]["method"] == "cahp"
    assert found["cahp"]["degree"] == 3 and found["cahp"]["samples"] == {"signatures": 24, "accuracy": 24}
    for method, degree in (("cahp", "3"), ("cahp:degree=2", "2")):
        run("prune", VIT, "--method", method, "--data", "data.npz", "--seed", "4", "-o", "p.st", "--force")
        mask = read_json("p.mask.json")
        assert mask["source"]["settings"]["scores"]["method"] == method
        heads = sum(len(entry["kept"]) for entry in mask["sites"].values())
        assert heads == found["cahp"]["knees"][degree]
    of_python = hydractl.prune(VIT, method=Cahp(degree=2), data="data.npz", seed=4)
    assert of_python.description.mask == hydractl.open("p.st").description.mask
    run("prune", VIT, *CAHP, "--seed", "4", "-o", "p.st", "--force")
    assert {path: entry["kept"] for path, entry in read_json("p.mask.json")["sites"].items()} == kept
    assert read_header(Path("p.st")).tensors["blocks.0.attn.proj.weight"].shape == (24, 8 * len(kept[sites[0]]))
    # The shares are scores like any others, for those who want a number of their own.
    run("prune", VIT, "--seed", "4", "--scores", "a.json", "--scope", "global", "--remove", "2", "-o", "r.st")
    assert sum(len(entry["kept"]) for entry in read_json("r.mask.json")["sites"].values()) == 4


@pytest.mark.parametrize("degree", [1, 2.5, True, float("nan")])
def test_arguments_in_python_are_checked_when_the_criterion_is_made(degree: Any) -> None:
    with pytest.raises(ValueError, match="^degree must be"):
        Cahp(degree=degree)


def test_shared_sites_have_the_heads_of_the_other_mask(data: Path) -> None:
    sites = {"blocks.0.attn": {"kept": [1]}, "blocks.1.attn": {"kept": []}}
    Path("w.json").write_text(json.dumps({"schema": "hydractl.mask/1", "sites": sites}))
    run("prune", VIT, *CAHP, "-o", "a.st")
    run("prune", VIT, *CAHP, "--share-sites", "1", "--with", "w.json", "-o", "b.st")
    alone, shared = read_json("a.mask.json")["sites"], read_json("b.mask.json")["sites"]
    assert shared["blocks.0.attn"]["kept"] == [1]
    assert shared["blocks.1.attn"] == alone["blocks.1.attn"]


def test_the_curve_and_the_knees_are_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", VIT, *CAHP, "-o", "a.json"]) == 0
    said, info = capsys.readouterr().err, read_json("a.json")["cahp"]
    for point in info["curve"]:
        assert f"{point['heads']}: {point['accuracy']:.4f}" in said
    assert f"{info['knee']['heads']} of 6 heads are kept" in said
    assert f"{info['knees']['5']} with degree 5" in said


def test_two_towers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "clip").mkdir()
    publish_clip(pico_clip("clip", 0), "clip", data / "clip")
    clip = ["clip", "--labels", "names.txt", *CAHP]
    run("score", *clip, "-o", "a.json", code=2)
    assert "--tower visual" in capsys.readouterr().err
    run("prune", *clip, "--tower", "text", "--dry-run", code=2)
    run("prune", *clip, "--tower", "visual", "-o", "a.st")
    sites = read_json("a.mask.json")["sites"]
    assert all(len(entry["kept"]) == entry["heads"] for path, entry in sites.items() if "visual" not in path)
    run("score", *clip, "--tower", "visual", "-o", "a.json")
    assert read_json("a.json")["cahp"]["kept"] == {p: entry["kept"] for p, entry in sites.items() if "visual" in p}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["prune", VIT, *CAHP, "--keep", "2"], "--keep has no effect with --method cahp"),
        (["prune", VIT, *CAHP, "--scope", "site"], "--scope has no effect with --method cahp"),
        (["score", VIT, *CAHP, "--order", "sequential"], "--order has no effect with --method cahp"),
        (["score", VIT, "--method", "gate:degree=4"], "--method gate: takes no argument, not 'degree' (flag)"),
        (["score", VIT, "--method", "cahp:degre=4"], "--method cahp: takes degree, not 'degre'; did you mean degree?"),
        (["score", VIT, "--method", "cahp:degree=4,degree=5"], "--method cahp: has degree twice (flag)"),
        (["score", VIT, "--method", "cahp:degree=x"], "--method cahp: degree must be a whole number, not 'x' (flag)"),
        (["prune", VIT, "--method", "cahp"], "prune --method cahp needs --data"),
        (["score", VIT, "--method", "cahp:degree=1"], "--method cahp: degree must be at least 2, not 1 (flag)"),
    ],
)
def test_wrong_options(arguments: list[str], complaint: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*arguments, code=2)
    assert capsys.readouterr().err.startswith(f"error: {complaint}")  # that one problem and no other


@pytest.mark.parametrize("package", ["sklearn", "kmedoids"])
def test_a_missing_package_is_named_before_anything_is_loaded(
    package: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == package else there(name, *a))
    monkeypatch.setattr("hydractl.verbs.score.build_model", None)  # this imports the verb, whose name is put back
    for verb in (["score"], ["score", "--dry-run"], ["prune"], ["prune", "--dry-run"]):
        run(verb[0], VIT, *CAHP, *verb[1:], code=2)
        assert "pip install 'hydractl[cahp]'" in capsys.readouterr().err


def test_a_dry_run_says_what_is_known_only_later(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", VIT, *CAHP, "--dry-run", "--json")
    assert "known only after scoring" in json.loads(capsys.readouterr().out)["note"]
