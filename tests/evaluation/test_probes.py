"""Probes: bodies, and other models, measured by a classifier of their features that is fitted to --train."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from hydractl.data import open_data
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from tests.evaluation.conftest import BASE
from tests.pico_clip import pico_clip, publish_clip
from tests.spread import marked_long

BODY = BASE.replace("num_classes=10", "num_classes=0")
TEST = ["--test", "builtin:digits/test", "--ood", "l=builtin:letters"]
TRAIN = ["--train", "builtin:digits/train", "--limit", "300"]


def read(spec: str) -> tuple[np.ndarray, np.ndarray]:
    """Features by timm's own forward, and labels."""
    source = open_source(BODY, ModelOptions(bodies=True))
    stock = source.family.drawn(source.description.config).eval()
    stock.load_state_dict({name: source.tensors.read(name) for name in source.tensors.names()})
    data = open_data(spec, limit=300)
    with torch.no_grad():
        given = build_model(source).preprocess([data[i] for i in range(len(data))])
        return stock(given).double().numpy(), np.asarray(data.labels)


@pytest.mark.parametrize("probe", ["linear", *marked_long(["knn"])])
def test_a_body_is_measured_as_scikit_learn_would(run: Any, answer: Callable[..., Any], probe: str) -> None:
    x, y = read("builtin:digits/train")
    if probe == "knn":
        weights = {"weights": lambda distance: np.exp((1 - distance) / 0.07)}
        model: Any = KNeighborsClassifier(20, metric="cosine", algorithm="brute", **weights).fit(x, y)
        scaler = StandardScaler(with_mean=False, with_std=False)
    else:
        scaler = StandardScaler()
        model = LogisticRegression(tol=1e-9, max_iter=20_000).fit(scaler.fit_transform(x), y)
    test, labels = read("builtin:digits/test")
    expected = model.predict_proba(scaler.transform(test) if probe == "linear" else test)
    asked = [BODY, *TEST, *TRAIN, "--probe", probe]
    row = answer(*asked, "--predictions", "p.st")["models"][0]
    right = expected[np.arange(len(labels)), labels]
    assert row["id"]["accuracy"] == pytest.approx((expected.argmax(1) == labels).mean(), abs=1e-9)
    assert row["id"]["nll"] == pytest.approx(-np.log(np.maximum(right, np.finfo(np.float32).eps)).mean(), abs=1e-4)
    assert row["probe"]["name"] == probe and row["probe"]["fitted_on"]["n"] == 300
    assert row["probe"].get("c") == ([1.0] if probe == "linear" else None)
    again = answer("p.st")["models"][0]
    assert again["probe"] == row["probe"] and again["id"] == row["id"] and again["ood"] == row["ood"]


@pytest.mark.long
def test_members_have_probes_of_their_own(run: Any, answer: Callable[..., Any], capsys: Any) -> None:
    run("prune", BODY, "--method", "random", "--keep", "1", "-o", "small.st", "-q")
    asked = [*TEST, *TRAIN[:2], "--limit", "120", "--val", "builtin:digits/val"]
    asked += ["--probe", "linear", "--ood-score", "msp,vim,mi"]
    row = answer(f"both={BODY}+small.st", *asked)["models"][0]
    for name, model in (("a", BODY), ("b", "small.st")):
        run("eval", f"{name}={model}", *asked, "--predictions", f"{name}.st", "-o", f"{name}.json", "-q")
    each = [json.loads(Path(f"{name}.json").read_text())["models"][0] for name in "ab"]
    assert row["probe"]["c"] == [one["probe"]["c"][0] for one in each] and row["probe"]["chosen_on"]["n"] == 120
    parts = [torch.from_numpy(read_predictions(f"{name}.st").piece(0, range(120))[0]).double() for name in "ab"]
    averaged = torch.stack(parts).softmax(-1).mean(0).numpy()
    labels = np.asarray(open_data("builtin:digits/test", limit=120).labels)
    assert row["id"]["nll"] == pytest.approx(-np.log(averaged[np.arange(120), labels]).mean(), abs=1e-6)
    run("eval", "a.st+b.st", "--ood-score", "msp,vim,mi", "-o", "both.json")
    assert "linear (C = " in capsys.readouterr().out
    together = json.loads(Path("both.json").read_text())["models"][0]
    assert together["probe"]["c"] == row["probe"]["c"]
    assert {n: one["ood"]["l"]["auroc"] for n, one in together["scores"].items()} == pytest.approx(
        {n: one["ood"]["l"]["auroc"] for n, one in row["scores"].items()}, abs=1e-9
    )


@pytest.mark.long
def test_fused_bodies_are_their_members(run: Any, answer: Callable[..., Any], capsys: Any) -> None:
    for number, method in enumerate(("random", "magnitude")):
        run("prune", BODY, "--method", method, "--keep", "2", "-o", f"m{number}.st", "-q")
    run("fuse", "m0.st", "m1.st", "-o", "bodies.st")
    assert "equal in all members: nothing changes" in capsys.readouterr().err
    fused, apart = answer("bodies.st", "apart=m0.st+m1.st", *TEST, *TRAIN, "--probe", "linear")["models"]
    assert len(fused["members"]) == 2 and fused["cost"]["params"] < apart["cost"]["params"]
    assert fused["id"]["nll"] == pytest.approx(apart["id"]["nll"], abs=1e-4)
    run("prune", BODY, "--method", "random", "--keep", "2", "--seed", "5", "-o", "other.st", "-q")
    run("fuse", "m0.st", "other.st", "-o", "strangers.st")  # drawn by another seed: nothing in common
    assert "keeps members whole: weights lie up to" in capsys.readouterr().err


@pytest.mark.long
def test_models_that_have_classes_are_probed_too(run: Any, answer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    publish_clip(pico_clip(), "clip", tmp_path / "clip")
    rows = answer("base.st", "hydra.st", "clip", *TEST, *TRAIN, "--probe", "linear", "--allow-seen")["models"]
    plain = answer("base.st", *TEST, "--limit", "300")["models"][0]
    assert [len(row["members"]) for row in rows] == [0, 3, 0]
    assert min(row["id"]["accuracy"] for row in rows) > 0.2, "ten classes"
    assert rows[0]["id"]["nll"] < plain["id"]["nll"], "fitted to convergence on the features of a short training"


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        ([], 3, "has no classifier"),
        (["--probe", "knn"], 2, "--probe (flag) needs --train"),
        (["--probe", "knn", *TRAIN, "--mc-dropout", "0.1"], 2, "--mc-dropout is not for --probe (flag)"),
        (["--probe", "knn", *TRAIN, "--ood-score", "vim"], 2, "--ood-score vim is of a linear classifier"),
        (["--probe", "knn", "--train", "builtin:letters"], 3, "--train builtin:letters: "),
        (["--probe", "knn", "--train", "builtin:digits/train", "--limit", "5"], 3, "has no sample of the class"),
        (["--probe", "linear", "--train", "builtin:digits/test"], 3, "all of them chosen on by this eval"),
    ],
)
def test_what_cannot_be_probed_is_refused(
    run: Any, capsys: pytest.CaptureFixture[str], options: list[str], code: int, complaint: str
) -> None:
    run("eval", BODY, "--test", "builtin:digits/test", *options, code=code)
    assert complaint in capsys.readouterr().err
