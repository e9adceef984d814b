"""The examples of other people's tools, each where its library is installed."""

from __future__ import annotations

import json
import re
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score

import hydractl
from tests.image_data import encoded
from tests.pico import SMALL, published

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused model, its exported files, and data with labels that are mostly its answers."""
    where = tmp_path_factory.mktemp("interop")
    small = SMALL.replace("depth=3", "depth=1")
    members = [hydractl.prune(f"timm:vit_tiny_patch16_224?{small}", method="random", keep=2, seed=s) for s in (0, 1)]
    hydra = hydractl.fuse(members, output=where / "h.st")
    for ending in ("onnx", "pt2"):
        hydractl.export(hydra, where / f"h.{ending}")
    draw = np.random.default_rng(0)
    x, outside = (draw.integers(0, 256, (80, 16, 16, 3), np.uint8) // part for part in (1, 3))
    model = hydractl.load(hydra, device="cpu")
    with torch.no_grad():
        y = model(model.preprocess(list(x))).argmax(-1).numpy()
    y[:30] = np.arange(30) % 5
    np.savez(where / "data.npz", x=x, y=y)
    np.savez(where / "ood.npz", x=outside)
    return where


def evaluated(folder: Path) -> dict[str, float]:
    """What ``eval`` says of the same model and data."""
    document = hydractl.evaluate(folder / "h.st", test=folder / "data.npz", ood={"o": folder / "ood.npz"}, device="cpu")
    row = document.models[0]
    return {"accuracy": row.id.accuracy, "nll": row.id.nll, "auroc": row.ood["o"].auroc}


def test_a_server_answers_in_batches(folder: Path) -> None:
    from examples.interop.serve_onnx import server

    model = hydractl.load(folder / "h.st", device="cpu")
    inputs = model.preprocess(list(np.load(folder / "data.npz")["x"][:12]))
    with torch.no_grad():
        expected = model(inputs).exp().numpy()
    served = server(str(folder / "h.onnx"), most=8, wait=0.2)
    address = f"http://127.0.0.1:{served.server_port}"
    threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()

    def ask(start: int) -> dict[str, list[float]]:
        body = json.dumps({"pixel_values": inputs[start : start + 2].tolist()}).encode()
        with urllib.request.urlopen(f"{address}/predict", body, timeout=60) as answer:
            return json.load(answer)

    try:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(0, 12, 2)))
        probabilities = np.concatenate([one["probabilities"] for one in answers])
        assert np.abs(probabilities - expected).max() < 1e-4
        assert min(min(one["mutual_information"]) for one in answers) > -1e-6
        with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
            health = json.load(answer)
        assert health["status"] == "ok" and health["samples"] == 12 and 2 <= health["batches"] < 6
        for body in (b"no json", b'{"pixel_values": [[1.0]]}', b'{"ids": []}'):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{address}/predict", body, timeout=60)
            assert refused.value.code == 400 and json.load(refused.value)["error"]
    finally:
        served.shutdown()
        served.server_close()


def test_an_estimator_of_scikit_learn(folder: Path) -> None:
    from examples.interop.sklearn_classifier import HydraClassifier

    arrays, expected = np.load(folder / "data.npz"), evaluated(folder)
    classifier = HydraClassifier(str(folder / "h.st"), batch_size=32, device="cpu").fit(arrays["x"])
    assert classifier.score(arrays["x"], arrays["y"]) == pytest.approx(expected["accuracy"])
    folds = cross_val_score(classifier, arrays["x"], arrays["y"], cv=4)
    assert folds.mean() == pytest.approx(expected["accuracy"])
    probabilities = classifier.predict_proba(arrays["x"])
    curve = CalibrationDisplay.from_predictions(arrays["y"] == 0, probabilities[:, 0], n_bins=3)
    assert len(curve.prob_true) == len(curve.prob_pred) > 0
    assert log_loss(arrays["y"], probabilities) == pytest.approx(expected["nll"], abs=1e-6)


def test_torch_uncertainty_measures_the_same(folder: Path) -> None:
    hydractl.load(folder / "h.st", device="cpu")  # before torchvision
    pytest.importorskip("torch_uncertainty", reason="torch-uncertainty is not installed")
    from examples.interop.torch_uncertainty_ensemble import measure

    found = measure(*(str(folder / name) for name in ("h.st", "data.npz", "ood.npz")))
    expected = evaluated(folder)
    named = {name.rpartition("/")[2].lower(): value for name, value in found.items()}
    assert named["acc"] == pytest.approx(expected["accuracy"], abs=1e-5)
    assert named["nll"] == pytest.approx(expected["nll"], abs=1e-4)
    assert named["auroc"] == pytest.approx(expected["auroc"], abs=2e-3)


def test_openvino_runs_an_exported_file(folder: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    from examples.interop.openvino_onnx import compare

    assert compare(str(folder / "h.onnx")) < 1e-4


def test_executorch_runs_an_exported_file(folder: Path) -> None:
    pytest.importorskip("executorch.runtime", reason="ExecuTorch is not installed")
    from examples.interop.executorch_pt2 import convert

    assert convert(str(folder / "h.pt2"), str(folder / "h.pte"), batch=2) < 1e-4


@pytest.mark.parametrize("variant", ["class-token", "hf-vit", "bert"])
def test_the_library_loads_a_pruned_folder(folder: Path, tmp_path: Path, variant: str) -> None:
    from examples.interop.published_folders import with_timm, with_transformers

    whole = f"timm:vit_tiny_patch16_224?{SMALL}" if variant == "class-token" else published(variant, tmp_path)
    hydractl.prune(whole, method="random", keep=2, layout="zeroed", output=f"{tmp_path}/pruned/")
    model = hydractl.load(tmp_path / "pruned", device="cpu")
    image = Image.fromarray(np.load(folder / "data.npz")["x"][0])
    sample = "a b" if variant == "bert" else image
    with torch.no_grad():
        expected = sorted(model(model.preprocess([sample])).exp()[0].tolist())
    where = str(tmp_path / "pruned")
    if variant == "class-token":
        found = with_timm(where, image)
    else:
        found = [one["score"] for one in with_transformers(where, sample)]
    assert sorted(found) == pytest.approx(expected, abs=1e-5)


def test_mlflow_answers_as_predict_does(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    hydractl.calibrate(folder / "h.st", val=folder / "data.npz", threshold="id:0.1", device="cpu", output="best.st")
    page = (Path(__file__).resolve().parents[1] / "docs" / "interop.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## MLflow\n")
    code, saving = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    Path("mlflow_hydra.py").write_text(code, encoding="utf-8")
    exec(saving, {})
    pixels = np.load(folder / "data.npz")["x"][:9]
    frame = pandas.DataFrame({"image": list(map(encoded, pixels))})
    answer = mlflow.pyfunc.load_model("best.mlflow").predict(frame)
    rows = hydractl.predict("best.st", data=pixels, device="cpu").rows
    assert answer["is_ood"].tolist() == [row["is_ood"] for row in rows]
    assert answer["ood_score"].tolist() == pytest.approx([row["ood_score"] for row in rows])
    assert [str(label) for label in answer["predicted"]] == [str(row["predicted"]) for row in rows]


def test_ray_data_says_of_every_row_what_a_single_process_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="pip install 'ray[data]' aiohttp")
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from examples.interop.ray_data import predictions, same_answers

    monkeypatch.setenv("RAY_worker_niceness", "0")  # else its processes wait for all others of a busy machine
    model = str(tmp_path / "cal.st")
    hydractl.calibrate(folder / "h.st", val=folder / "data.npz", threshold="id:0.1", device="cpu", output=model)
    pixels = np.load(folder / "data.npz")["x"]
    ids = [f"photo {number}" for number in range(len(pixels))]
    shards = []
    for start, stop in ((0, 30), (30, 37), (37, 80)):  # no multiple of the batch size
        images = list(map(encoded, pixels[start:stop]))
        shard = str(tmp_path / f"shard{start:02}.parquet")
        parquet.write_table(pyarrow.table({"id": ids[start:stop], "image": images}), shard)
        shards.append(shard)

    single = []
    for shard in shards:
        single += hydractl.predict(model, data=shard, batch_size=16, device="cpu").rows
    single = [{**row, "id": sample} for row, sample in zip(single, ids, strict=True)]
    rows = list(predictions(model, shards, actors=2, batch_size=16))
    assert [row["id"] for row in rows] == ids
    assert same_answers(rows, single)
    moved = [*rows[:5], {**rows[5], "ood_score": rows[5]["ood_score"] + 1e-3}, *rows[6:]]
    assert not same_answers(moved, single) and not same_answers(rows[1:], single)
    sys.modules["ray"].shutdown()
