"""The snippets of docs/deploy.md, run as they stand: those of files in an environment of their packages alone."""

from __future__ import annotations

import json
import re
import subprocess
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.exports.targets import plan_exports, write_exports
from hydractl.log import Log
from tests.exports.test_export import TINY, plan_of
from tests.pico import model_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onnxruntime", "numpy", "pillow", "tokenizers")
SAVE = """
import pickle
pickle.dump({name: value.tolist() for name, value in answer.items()}, open("answer.pickle", "wb"))
"""


def snippet(heading: str) -> str:
    """The Python snippet of the page under a heading."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    _, _, section = page.partition(f"\n## {heading}\n")
    found = re.search(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return found[1]


def run_alone(python: Path, snippet: str, folder: Path) -> dict[str, Any]:
    """Run a snippet by another interpreter; return its ``answer``."""
    script = folder / "snippet.py"
    save = "import json\njson.dump({name: v.tolist() for name, v in answer.items()}, open('answer.json', 'w'))\n"
    script.write_text(f"{snippet}\n{save}", encoding="utf-8")
    done = subprocess.run([python, "-I", script], cwd=folder, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


@pytest.mark.release
def test_the_snippets_of_the_page(here: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 21, 3), dtype=np.uint8)).save("cat.png")
    labelled = (pixels, np.arange(12) % 3)
    hydractl.calibrate(TINY, val=labelled, temperature="fit", threshold="id:0.5", conformal=0.2, output="best.st")
    hydractl.export("best.st", "images.onnx", input="uint8")
    hydractl.export("best.st", "images.pt2")
    texts = plan_of("bert")
    targets = plan_exports(["onnx"], here / "texts", texts.description, texts.tensors)
    write_exports(targets, lambda: model_of(texts), [], 1, seed=0, force=False, log=Log())

    in_hydractl: dict[str, Any] = {}
    exec(snippet("In Python"), in_hydractl)
    expected = in_hydractl["answer"]
    in_torch: dict[str, Any] = {}
    exec(snippet("Plain PyTorch"), in_torch)
    assert np.allclose(in_torch["probabilities"], expected.probabilities, atol=1e-5)

    venv.create(here / "alone", with_pip=True)
    python = here / "alone" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "-q", *constraints, *PACKAGES], check=True, capture_output=True)
    answer = run_alone(python, snippet("ONNX Runtime, images"), here)
    # Pillow resizes as the transform of timm does, to the bit.
    assert np.allclose(answer["probabilities"], expected.probabilities, atol=1e-5)
    assert np.allclose(answer["ood_score"], expected.ood_score, atol=1e-4)
    assert answer["is_ood"] == expected.is_ood.tolist()
    assert answer["conformal_set"] == expected.sets.tolist()

    answer = run_alone(python, snippet("ONNX Runtime, texts"), here)
    model = model_of(texts)
    with torch.no_grad():
        prediction = model.predict(model.preprocess(["a fine film", "so dull !"]))
    assert np.allclose(answer["probabilities"], prediction.probabilities, atol=1e-5)
    assert np.allclose(answer["ood_score"], prediction.ood_score, atol=1e-4)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused model with a temperature, a score on features, a threshold and prediction sets."""
    path = tmp_path_factory.mktemp("calibrated") / "best.st"
    members = [hydractl.prune(TINY, method="random", keep=2, seed=seed) for seed in range(2)]
    model = hydractl.fuse(members)
    hydractl.calibrate(
        model,
        val=(drawn_images(0), np.arange(60) % 3),
        train=(drawn_images(1), np.arange(60) % 3),
        ood_score="vim",
        temperature="vector",
        threshold="id:0.5",
        conformal=0.2,
        output=path,
    )
    return path


def drawn_images(seed: int) -> np.ndarray:
    """60 images of noise."""
    return np.random.default_rng(seed).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)


@pytest.mark.long
def test_a_file_gives_the_rows_of_predict(calibrated: Path, tmp_path: Path) -> None:
    hydractl.export(calibrated, tmp_path / "best.onnx", input="uint8")
    # Other samples than those whose scores the thresholds are: these lie on them.
    rows = hydractl.predict(calibrated, data=drawn_images(2)).rows
    session = onnxruntime.InferenceSession(tmp_path / "best.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    answer = dict(zip(names, session.run(None, {"images": drawn_images(2)}), strict=True))
    assert 0 < answer["is_ood"].sum() < 60
    assert [row["is_ood"] for row in rows] == answer["is_ood"].tolist()
    assert [row["ood_score"] for row in rows] == pytest.approx(answer["ood_score"].tolist(), abs=1e-4)
    assert [row["confidence"] for row in rows] == pytest.approx(answer["probabilities"].max(axis=1).tolist(), abs=1e-4)
    sets = [[str(index) for index in np.flatnonzero(classes)] for classes in answer["conformal_set"]]
    assert [sorted(map(str, row["set"])) for row in rows] == sets


@pytest.mark.long
def test_a_file_is_timed(calibrated: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hydractl.export(calibrated, "images.onnx", input="uint8")
    exec(snippet("Time"), {})
    assert re.fullmatch(r"[0-9]+\.[0-9]{2} ms for 8 images\n", capsys.readouterr().out)


@pytest.mark.long
def test_weights_are_rounded_and_what_is_behind_features_is_not(calibrated: Path, here: Path) -> None:
    hydractl.export(calibrated, "best.onnx", input="uint8")
    exec(snippet("8-bit weights"), {})
    answers = {}
    for name in ("best.onnx", "best.int8.onnx"):
        session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
        answers[name] = session.run(["probabilities", "ood_score"], {"images": drawn_images(2)})
    exact, exact_scores = answers["best.onnx"]
    rounded, rounded_scores = answers["best.int8.onnx"]
    assert 0 < np.abs(rounded - exact).max() < 0.1
    assert np.corrcoef(rounded_scores, exact_scores)[0, 1] > 0.9
    graph = onnx.load("best.int8.onnx").graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("MatMul", "MatMulInteger")]
    # Every weight of a product is rounded, but for those in float64.
    kept = [node for node in products if node.op_type == "MatMul" and node.input[1] in kinds]
    assert {kinds[node.input[1]] for node in kept} <= {onnx.TensorProto.DOUBLE}
    assert len(products) - len(kept) > 4
