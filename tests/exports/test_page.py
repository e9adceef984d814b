"""The snippets of docs/deploy.md, run as they stand: those of files in an environment of their packages alone."""

from __future__ import annotations

import json
import re
import subprocess
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.exports.targets import claimed, plan_exports
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from tests.exports.test_export import TINY, plan_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onnxruntime", "numpy", "pillow", "tokenizers")
SAVE = """
import pickle
pickle.dump({name: value.tolist() for name, value in answer.items()}, open("answer.pickle", "wb"))
"""


def snippets() -> list[str]:
    """The Python snippets of the page: in hydractl, images and texts in ONNX Runtime, images in PyTorch."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


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
def test_the_snippets_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_hydractl, image_onnx, text_onnx, image_pt2 = snippets()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 21, 3), dtype=np.uint8)).save("cat.png")
    labelled = (pixels, np.arange(12) % 3)
    hydractl.calibrate(TINY, val=labelled, temperature="fit", threshold="id:0.5", conformal=0.2, output="best.st")
    hydractl.export("best.st", "images.onnx", input="uint8")
    hydractl.export("best.st", "images.pt2")
    texts = plan_of("bert")
    targets = plan_exports(["onnx"], tmp_path / "texts", texts.description, texts.tensors)
    with claimed(targets, force=False) as claim:
        claim.write(lambda: HydraModel(texts.description, texts.tensors), [], 1, 0, Log())
        claim.commit()

    in_hydractl: dict[str, Any] = {}
    exec(with_hydractl, in_hydractl)
    expected = in_hydractl["answer"]
    in_torch: dict[str, Any] = {}
    exec(image_pt2, in_torch)
    assert np.allclose(in_torch["probabilities"], expected.probabilities, atol=1e-5)

    venv.create(tmp_path / "alone", with_pip=True)
    python = tmp_path / "alone" / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "-q", *constraints, *PACKAGES], check=True, capture_output=True)
    answer = run_alone(python, image_onnx, tmp_path)
    # Pillow resizes as the transform of timm does, to the bit.
    assert np.allclose(answer["probabilities"], expected.probabilities, atol=1e-5)
    assert np.allclose(answer["ood_score"], expected.ood_score, atol=1e-4)
    assert answer["is_ood"] == expected.is_ood.tolist()
    assert answer["conformal_set"] == expected.sets.tolist()

    answer = run_alone(python, text_onnx, tmp_path)
    model = HydraModel(texts.description, texts.tensors)
    with torch.no_grad():
        prediction = model.predict(model.preprocess(["a fine film", "so dull !"]))
    assert prediction.ood_score is not None
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
@pytest.mark.parametrize("kind", ["onnx", pytest.param("pt2", marks=pytest.mark.release)])
def test_predict_gives_the_rows_of_the_checkpoint(
    calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"input": "uint8"} if kind == "onnx" else {}
    hydractl.export(calibrated, f"best.{kind}", **options)
    # Other samples than those whose scores the thresholds are: these lie on them.
    samples = {"data": drawn_images(2), "top": 2, "members": True, "batch_size": 16}
    rows = hydractl.predict(calibrated, **samples).rows
    answer = hydractl.predict(f"best.{kind}", **samples)
    assert len(answer.rows) == 60
    assert 0 < sum(row["is_ood"] for row in rows) < 60
    for row, expected in zip(answer.rows, rows, strict=True):
        assert list(row) == list(expected)
        for key in ("confidence", "entropy", "mi", "ood_score"):
            assert row[key] == pytest.approx(expected[key], abs=1e-4)
        for key in ("id", "predicted", "set"):
            assert row[key] == expected[key]
        assert [entry["label"] for entry in row["top"]] == [entry["label"] for entry in expected["top"]]
    part = hydractl.predict(f"best.{kind}", **samples, part="2/2").rows
    assert part == answer.rows[-len(part) :]
    with pytest.raises(hydractl.errors.UsageError, match="exported files run on the CPU"):
        hydractl.predict(f"best.{kind}", data=drawn_images(0), dtype="bfloat16")
