"""OOD scores on features: fitted by eval, kept in predictions and checkpoints, and what of it is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import hydractl
from hydractl.data import open_data
from hydractl.evaluation.inputs import keeping_batches
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.files.checkpoint import DictTensors, write_tensors
from hydractl.files.header import read_header
from hydractl.metrics.feature_scores import vilu
from hydractl.metrics.ood_scores import HEDGE, OF_ZERO_SHOT, ON_FEATURES
from hydractl.metrics.rows import ood_metrics
from tests.pico_clip import pico_clip, publish_clip
from tests.running import evaluated, json_lines, read_json, run
from tests.spread import marked_long, marked_release

TEST = ["--test", "builtin:digits/test", "--ood", "l=builtin:letters"]
TRAIN = ["--train", "builtin:digits/train", "--limit", "200"]


def samples(model: Any, spec: str, limit: int | None = None) -> Any:
    data = open_data(spec, limit=limit)
    return model.preprocess([data[i] for i in range(len(data))])


def features(name: str, spec: str) -> np.ndarray:
    """By timm's own forward."""
    model = hydractl.load(name, device="cpu")
    (network,) = model.networks
    with torch.no_grad():
        state = network.forward_features(samples(model, spec, 200))
        return network.forward_head(state, pre_logits=True).double().numpy()


def distances(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distances to the nearest class of training data."""
    means = [x[y == c].mean(axis=0) for c in range(10)]
    centred = np.concatenate([x[y == c] - means[c] for c in range(10)])
    # The norm in front of the classifier leaves one direction without spread.
    precision = np.linalg.pinv(centred.T @ centred / len(x), rcond=1e-11, hermitian=True)
    return np.array([min((v - mean) @ precision @ (v - mean) for mean in means) for v in given])


def layers(name: str, spec: str) -> list[np.ndarray]:
    """By timm: the features, then of each block the class token and the mean of others; not of the last."""
    model = hydractl.load(name, device="cpu")
    (network,) = model.networks
    outputs: list[torch.Tensor] = []
    handles = [block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in network.blocks]
    with torch.no_grad():
        network(samples(model, spec, 200))
    for handle in handles:
        handle.remove()
    of_blocks = [features(name, spec)]
    for hidden in outputs:
        of_blocks += [hidden[:, 0].double().numpy(), hidden[:, 1:].double().mean(dim=1).numpy()]
    return of_blocks[:-1]


@pytest.mark.long
def test_an_ensemble_has_the_mean_of_its_members_and_of_layers_the_sum_of_all_distances() -> None:
    asked = [*TEST, *TRAIN, "--ood-score", "mahalanobis-layers,mahalanobis"]
    run("eval", "t0.st+t1.st", *asked, "--predictions", "p.st", "-o", "e.json")
    row = read_json("e.json")["models"][0]
    assert row["ood_score"] == "mahalanobis-layers" and row["fitted_on"]["n"] == 200
    labels = np.asarray(open_data("builtin:digits/train", limit=200).labels)
    of_layers, of_features = [], []
    for spec in ("builtin:digits/test", "builtin:letters"):
        members = [
            [
                distances(fit, labels, x)
                for fit, x in zip(layers(name, "builtin:digits/train"), layers(name, spec), strict=True)
            ]
            for name in ("t0.st", "t1.st")
        ]
        of_layers.append(np.mean([np.sum(member, axis=0) for member in members], axis=0))
        of_features.append(np.mean([member[0] for member in members], axis=0))
    for name, scores in (("mahalanobis-layers", of_layers), ("mahalanobis", of_features)):
        auroc = row["scores"][name]["ood"]["l"]["auroc"]
        assert auroc == pytest.approx(ood_metrics(*scores).auroc, abs=1e-4)
    stored = read_predictions("p.st")
    batch = next(stored.batches(stored.sets[0]))
    assert batch.scores["mahalanobis-layers"].shape == (2, len(batch.rows))
    again = evaluated("p.st", "--ood-score", "mahalanobis")["models"][0]
    assert again["ood"]["l"] == row["scores"]["mahalanobis"]["ood"]["l"]


@pytest.mark.long
def test_all_scores_are_without_those_of_layers_that_need_too_much_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Of three blocks of width 24 and ten classes: two vectors each, the last as wide as features may be.
    most_needed = 8 * (5 * 24 * (24 + 10) + 48 * (48 + 10))
    asked = [*TEST, *TRAIN, "--ood-score", "all"]
    monkeypatch.setattr("hydractl.model.layers.MOST_BYTES", 2 * most_needed)
    assert LAYERS in evaluated("t0.st+t1.st", *asked)["models"][0]["scores"]
    monkeypatch.setattr("hydractl.model.layers.MOST_BYTES", 2 * most_needed - 1)
    scores = evaluated("t0.st+t1.st", *asked)["models"][0]["scores"]
    assert LAYERS not in scores and "mahalanobis" in scores
    with monkeypatch.context() as patch:
        patch.setattr("hydractl.metrics.feature_scores.layers.MOST_BYTES", 1)
        run("eval", "t0.st", *TEST, *TRAIN, "--ood-score", LAYERS, "-o", "a.json", code=3)
    assert "mahalanobis-layers needs" in capsys.readouterr().err
    monkeypatch.setattr("hydractl.model.layers.MOST_BYTES", most_needed - 1)
    run("calibrate", "t0.st", *TRAIN, "--ood-score", "hedge", "-o", "k.st")
    assert "hedge is without mahalanobis-layers, whose sums over all layers may need" in capsys.readouterr().err
    monkeypatch.setattr("hydractl.model.layers.MOST_BYTES", most_needed)
    run("calibrate", "t0.st", *TRAIN, "--ood-score", "hedge", "-o", "seven.st")
    parts = [safetensors.numpy.load_file(name)["hydractl.ood.0.means"].shape for name in ("k.st", "seven.st")]
    assert parts == [(6,), (7,)]
    assert evaluated("k.st", *TEST)["models"][0]["ood"] != evaluated("seven.st", *TEST)["models"][0]["ood"]


@pytest.mark.long
def test_predictions_keep_the_scores_of_every_member(capsys: Any) -> None:
    asked = [*TEST, *TRAIN, "--ood-score", "all", "--allow-seen"]
    run("eval", "hydra.st", *asked, "--predictions", "p.st", "-o", "e.json")
    row = read_json("e.json")["models"][0]
    again = evaluated("p.st", "--ood-score", "all", "--allow-seen")["models"][0]
    assert again["scores"] == row["scores"] and {*ON_FEATURES} - {*row["scores"]} == {*OF_ZERO_SHOT, HEDGE}
    assert len({block["ood"]["l"]["auroc"] for block in row["scores"].values()}) > 8, "each is a score of its own"
    stored = read_predictions("p.st")
    batch = next(stored.batches(stored.sets[1]))
    assert batch.scores["knn"].shape == (3, 200)
    before = Path("p.st").read_bytes()
    logits = before.find(batch.logits[0, 150].tobytes())
    Path("p.st.part").write_bytes(before[:logits] + b"\xff" * 4 * 10 + before[logits + 4 * 10 :])
    Path("p.st").unlink()
    run("eval", "hydra.st", *asked, "--predictions", "p.st", "-o", "r.json", "--resume")
    assert Path("p.st").read_bytes() == before
    run("eval", "hydra.st", *TEST, "--allow-seen", "--predictions", "q.st", "-o", "f.json")
    run("eval", "q.st", "--ood-score", "knn", "--allow-seen", "-o", "g.json", code=3)
    assert "the predictions of q hold no scores by knn" in capsys.readouterr().err


def test_features_that_a_study_keeps_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [*TEST, "--train", "builtin:digits/train", "--limit", "100", "--allow-seen"]
    asked = [*few, "--ood-score", "all"]
    run("eval", "hydra.st", *asked, "--predictions", "alone.pred.st", "-o", "alone.json")

    def never(*_: Any) -> None:
        raise AssertionError("the training data are run again")

    with keeping_batches(1 << 24):
        run("eval", "hydra.st", *few, "--ood-score", f"vim,{LAYERS}", "-o", "vim.json")
        # Of other scores too, and of another k.
        with monkeypatch.context() as patch:
            patch.setattr("hydractl.evaluation.providers.running.RunningModel._fitting_inputs", never)
            run("eval", "hydra.st", *asked, "--predictions", "kept.st.st", "-o", "kept.json")
            third = evaluated("hydra.st", *few, "--knn-k", "3", "--ood-score", "knn")["models"][0]
            sets = {"test": "builtin:digits/test", "ood": {"l": "builtin:letters"}, "train": "builtin:digits/train"}
            for model, batch_size in (("t0.st", 64), ("hydra.st", 7)):
                with pytest.raises(AssertionError, match="run again"):
                    hydractl.evaluate(model, **sets, limit=100, ood_score="vim", allow_seen=True, batch_size=batch_size)
        layered = evaluated("t0.st", *few, "--ood-score", "mahalanobis-layers")["models"][0]
    with keeping_batches(0), monkeypatch.context() as patch:  # no room for features
        run("eval", "hydra.st", *few, "--ood-score", "vim", "-o", "again.json")
        patch.setattr("hydractl.evaluation.providers.running.RunningModel._fitting_inputs", never)
        with pytest.raises(AssertionError, match="run again"):
            hydractl.evaluate("hydra.st", **sets, limit=100, ood_score="vim", allow_seen=True)
    assert Path("kept.st.st").read_bytes() == Path("alone.pred.st").read_bytes()
    assert third["fitted_on"]["knn_k"] == 3
    assert evaluated("t0.st", *few, "--ood-score", "mahalanobis-layers")["models"][0]["ood"] == layered["ood"]


LAYERS = "mahalanobis-layers"
# They differ from ViM in the metric alone; ViM keeps the most, mutual information nothing.
OTHERS = ("mahalanobis", "ash", "hedge")


@pytest.mark.parametrize("score", ["vim", LAYERS, *marked_long(["mi"]), *marked_release(["knn", *OTHERS])])
def test_a_checkpoint_keeps_its_score(score: str) -> None:
    fitted = TRAIN if score != "mi" else []
    asked = ["--ood-score", score, *fitted, "--val", "builtin:digits/val", "--threshold", "id:0.05"]
    first = evaluated("hydra.st", *TEST, *asked, "--batch-size", "200", "--allow-seen")["models"][0]
    run("calibrate", "hydra.st", *asked, "--batch-size", "200", "-o", "k.st")
    where = ["--batch-size", "200", "--limit", "200", "--device", "cpu"]  # as the model below
    run("eval", "k.st", *TEST, *where, "-o", "e.json")
    run("predict", "k.st", "builtin:digits/test", *where, "-o", "p.jsonl")
    again = read_json("e.json")["models"][0]
    assert again["ood_score"] == score and again["threshold"]["value"] == first["threshold"]["value"]
    assert again["cost"] == first["cost"], "what a score was fitted to is no weight of the model"
    lines = json_lines("p.jsonl")
    model = hydractl.load("k.st", device="cpu")
    given = samples(model, "builtin:digits/test", 200)
    answer = model.predict(given)
    found = answer.ood_score
    assert found.dtype == torch.float64 and found.tolist() == pytest.approx([line["ood_score"] for line in lines])
    assert answer.is_ood.tolist() == [line["is_ood"] for line in lines]


@pytest.mark.long
def test_other_weights_and_other_scores_leave_it_behind(capsys: Any) -> None:
    run("calibrate", "base.st", *TRAIN, "--ood-score", "knn", "--knn-k", "5", "-o", "k.st")
    run("calibrate", "k.st", "--ood-score", "knn", "--temperature", "2", "-o", "k2.st")
    first = evaluated("k.st", *TEST)["models"][0]
    second = evaluated("k2.st", *TEST, "--ood-score", "knn,ash")["models"][0]
    assert second["scores"]["knn"]["ood"]["l"]["n"] == 350 and second["fitted_on"] == first["fitted_on"]
    assert first["fitted_on"]["knn_k"] == 5
    given = samples(hydractl.load("base.st", device="cpu"), "builtin:letters", 9)
    scores = [hydractl.load(name, device="cpu").predict(given).ood_score for name in ("k.st", "k2.st")]
    assert torch.equal(*scores)
    capsys.readouterr()
    for name in ("k.st", "base.st"):
        run("--info", name, "--json")
    kept, plain = (json.loads(text)["parameters"] for text in re.split(r"\n(?={)", capsys.readouterr().out))
    assert kept == plain
    run("prune", "k.st", "--method", "magnitude", "--keep", "2", "-o", "p.st", "-q")
    assert evaluated("p.st", *TEST)["models"][0]["ood_score"] == "msp"
    assert evaluated("k.st", *TEST, "--ood-score", "msp")["models"][0]["ood_score"] == "msp"
    run("eval", "both=k.st+t0.st", *TEST, "-o", "g.json")
    assert "the stored ood_score is left out" in capsys.readouterr().err
    run("eval", "k.st", "--test", "builtin:digits/train", "--limit", "50", "-o", "h.json", code=3)  # it has seen them
    assert hydractl.load("k.st", device="cpu").predict(given).is_ood is None, "there is no threshold"


DAMAGED = (
    ("hydractl.ood.0.centre", "mahalanobis", 9, "what the OOD score was fitted to does not fit the model"),
    ("", "kmn", 9, "there is no OOD score 'kmn'"),
    ("hydractl.ood.0.", "mahalanobis", 9, "the checkpoint holds a broken OOD score 'mahalanobis'"),
    ("", "mahalanobis", "many", "n is 'many'"),
)


def test_a_damaged_score_is_refused(capsys: Any) -> None:
    run("calibrate", "base.st", *TRAIN, "--ood-score", "mahalanobis", "-o", "k.st")
    header = read_header("k.st")
    for part, score, samples_fitted_to, complaint in DAMAGED:
        with safetensors.safe_open("k.st", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if not part or not name.startswith(part)}  # noqa: SIM118
        stored = {"score": score, "fitted_on": {"n": samples_fitted_to}}
        document = {**header.description, "extra": {"ood_score": stored}}
        with open("broken.st", "wb") as handle:
            write_tensors(handle, DictTensors(tensors), document)
        capsys.readouterr()
        run("eval", "broken.st", *TEST, "-o", "f.json", code=3)
        assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["--ood-score", "knn"], 2, "--ood-score knn needs --train SPEC, training data of base"),
        (["--train", "builtin:digits/train"], 2, "--train needs an --ood-score on features"),
        (["--ood-score", "vim", "--train", "builtin:digits/test"], 3, "all of them by eval (train)"),
        (
            ["--ood-score", "knn", "--train", "builtin:digits/train", "--mc-dropout", "0.1"],
            2,
            "is not for --mc-dropout",
        ),
        (
            ["--ood-score", "rmd", "--train", "builtin:letters"],
            3,
            "--train builtin:letters has no labels, which rmd needs",
        ),
        (["--ood-score", "knn", "--train", "builtin:digits/train", "--knn-k", "2000"], 3, "nearest neighbour 2000"),
        (
            ["--ood-score", "knn", *TRAIN, "--val", "builtin:digits/train", "--threshold", "id:0.1"],
            3,
            "--val and --train are the same samples",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], code: int, complaint: str
) -> None:
    run("eval", "base.st", "--test", "builtin:digits/test", *options, code=code)
    assert complaint in capsys.readouterr().err


def test_a_zero_shot_model_is_scored_by_its_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 20)
    (tmp_path / "clip").mkdir()
    publish_clip(pico_clip(), "clip", tmp_path / "clip")
    asked = ["--test", "builtin:digits/test", "--limit", "60", "--ood", "l=builtin:letters", "--batch-size", "60"]
    train = ["--train", "builtin:digits/train"]
    fitted = [*train, "--ood-score", "vilu,vim,mahalanobis,ash"]
    run("eval", "clip", *asked, *fitted, "-o", "e.json")
    run("calibrate", "clip", *train, "--limit", "60", "--batch-size", "60", "--ood-score", "vilu", "-o", "k.st")
    run("predict", "k.st", "builtin:digits/test", "--limit", "60", "--batch-size", "60", "-o", "p.jsonl")
    row = read_json("e.json")["models"][0]
    assert row["ood_score"] == "vilu" and all(block["ood"]["l"]["auroc"] > 0 for block in row["scores"].values())
    model = hydractl.load("k.st", device="cpu")
    lines = json_lines("p.jsonl")
    found = model.predict(samples(model, "builtin:digits/test", 60)).ood_score
    assert found.tolist() == pytest.approx([line["ood_score"] for line in lines], rel=1e-5)
    with torch.no_grad():
        assert torch.isfinite(model.zero_shot(["a", "b"]).predict(samples(model, "builtin:letters", 3)).ood_score).all()
    digits = open_data("builtin:digits/train", limit=60)
    with torch.no_grad():
        told = model(samples(model, "builtin:digits/train", 60)).argmax(dim=1)  # labels that are all right
    np.savez("right.npz", x=np.stack([np.asarray(digits[i]) for i in range(60)]), y=told)
    capsys.readouterr()
    run("eval", "clip", *asked, "--train", "right.npz", "--knn-k", "5", "--ood-score", "all", "-o", "f.json")
    assert (
        "clip: vilu learns from wrong and right predictions, and those on --train are all alike"
        in capsys.readouterr().err
    )
    row = read_json("f.json")["models"][0]
    assert row["scores"]["vilu"]["ood"]["l"]["auroc"] == 0.5
    assert {*ON_FEATURES} - {*row["scores"]} == {"neglabel", HEDGE}


@pytest.mark.fault(111)
def test_scores_of_features_that_are_not_negative_are_doubted_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*TEST, *TRAIN, "--ood-score", "vim,react,ash"]
    run("eval", "a=base.st", "b=t0.st", *asked, "-o", "e.json")
    warned = "made for features that are not negative"
    assert capsys.readouterr().err.count(warned) == 1
    assert sum(warned in text for text in read_json("e.json")["warnings"]) == 1
    run("calibrate", "base.st", *TRAIN, "--ood-score", "vim", "-o", "v.st")
    assert warned not in capsys.readouterr().err
    run("calibrate", "base.st", "--ood-score", "ash", "-o", "k.st")
    assert capsys.readouterr().err.count(warned) == 1


def test_features_that_are_not_negative_are_known_before_anything_is_scored() -> None:
    asked = ["base.st", *TEST, *TRAIN, "--ood-score", "react", "--predictions", "kept.st", "-o", "kept.json"]
    run("eval", *asked)
    before = Path("kept.json").read_bytes()
    run("eval", *asked, "--resume")  # all predictions are there: nothing runs
    assert Path("kept.json").read_bytes() == before
