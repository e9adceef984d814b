"""Exported files with rounded weights, measured on data when they are written; exported files as rows of a bench."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.metrics import roc_auc_score

import hydractl
from hydractl.errors import InputError, UsageError
from tests.running import run

TINY = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=48&depth=2&num_heads=3&num_classes=3"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A fused model, its exported files, data of which the model's own answers are most labels, and what was said."""
    folder = tmp_path_factory.mktemp("int8")
    members = [hydractl.prune(TINY, method="random", keep=2, seed=seed) for seed in range(2)]
    hydra = hydractl.fuse(members, output=folder / "h.st")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (60, 8, 8, 3), np.uint8)
    dark_images = generator.integers(0, 256, (60, 8, 8, 3), np.uint8) // 4
    model = hydractl.load(hydra, device="cpu")
    with torch.no_grad():
        labels = model(model.preprocess(list(images))).argmax(-1).numpy()
    labels[:20] = generator.integers(0, 3, 20)
    np.savez(folder / "data.npz", x=images, y=labels)
    np.savez(folder / "ood.npz", x=dark_images)
    words = ["--test", folder / "data.npz", "--ood", f"dark={folder / 'ood.npz'}", "--json", "-o", folder / "h"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run("export", folder / "h.st", "--format", "onnx,onnx-int8,pt2", *words)
    return folder, json.loads(out.getvalue())


@pytest.mark.release
def test_what_rounding_does_on_data_is_what_the_file_does(made: tuple[Path, dict[str, Any]]) -> None:
    folder, document = made
    checks = {entry["format"]: entry["check"] for entry in document["exports"]}
    has_tolerance = [check["tolerance"] is not None for check in checks.values()]
    assert has_tolerance == [True, False, True]
    on_data = checks["onnx-int8"]["on_data"]
    model = hydractl.load(folder / "h.st", device="cpu")
    session = onnxruntime.InferenceSession(str(folder / "h.int8.onnx"), providers=["CPUExecutionProvider"])
    exact = []
    rounded = []
    for name in ("data", "ood"):
        batch = model.preprocess(list(np.load(folder / f"{name}.npz")["x"]))
        with torch.no_grad():
            exact.append(model(batch).exp().numpy())
        (probabilities,) = session.run(["probabilities"], {"pixel_values": batch.numpy()})
        rounded.append(probabilities)
    labels = np.load(folder / "data.npz")["y"]
    for key, (inside, outside) in {"before": exact, "after": rounded}.items():
        accuracy = (inside.argmax(-1) == labels).mean()
        scores = -np.concatenate([inside, outside]).astype(np.float64).max(-1)
        is_ood = np.repeat([0, 1], [len(inside), len(outside)])
        assert on_data[key]["accuracy"] == pytest.approx(accuracy, abs=1e-9)
        assert on_data[key]["auroc"]["dark"] == pytest.approx(roc_auc_score(is_ood, scores), abs=2e-3)
    agreement = (exact[0].argmax(-1) == rounded[0].argmax(-1)).mean()
    assert on_data["agreement"] == pytest.approx(agreement, abs=1e-9)
    assert 0 < checks["onnx-int8"]["probabilities_max_abs"] < 0.1


@pytest.mark.release
def test_every_constant_product_is_rounded_to_seven_bits(made: tuple[Path, dict[str, Any]]) -> None:
    """Queries, keys and values too, whose weights are behind a transposition in the exact file."""
    graph = onnx.load(made[0] / "h.int8.onnx").graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    rounded_products = 0
    for node in graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            assert node.input[1] not in weights
        if node.op_type == "MatMulInteger":
            weight = weights[node.input[1]]
            assert weight.dtype == np.int8
            assert np.abs(weight).max() <= 64
            rounded_products += 1
    assert rounded_products >= 2 * 4 + 1  # of two blocks; attention's own two products are of no constant


@pytest.mark.release
def test_exported_files_are_rows_of_a_bench(made: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = made
    files = [str(folder / f"h{ending}") for ending in (".st", ".onnx", ".int8.onnx", ".pt2")]
    document = hydractl.bench(files, rounds=2, warmup=0, batch_size=2, device="cpu", threads=1)
    rows = document["results"]
    assert [row["kind"] for row in rows] == ["model", "onnx", "onnx-int8", "pt2"]
    assert [row["model"] for row in rows] == ["h", "h.onnx", "h.int8.onnx", "h.pt2"]
    assert len({row["macs"] for row in rows}) == 1
    assert {row["mac_ratio"] for row in rows} == {1.0}
    assert [row["params"] is None for row in rows] == [False, True, True, True]
    assert [row["checkpoint_bytes"] for row in rows] == [Path(file).stat().st_size for file in files]
    assert rows[2]["peak_share"] is None and rows[1]["peak_share"] > 0
    alone = hydractl.bench(files[1:], rounds=1, warmup=0, batch_size=1, device="cpu", compare=[])
    assert len(alone["results"]) == 3
    with pytest.raises(UsageError, match="in float32 and as they were written: h.onnx"):
        hydractl.bench(files[:2], dtype="bfloat16", device="cpu")
    with pytest.raises(UsageError, match="needs one single model as the first model; h.onnx is an exported file"):
        hydractl.bench([files[1], files[0]], compare="deep", device="cpu")


def test_what_is_no_exported_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        hydractl.bench([tmp_path / "none.onnx"], device="cpu")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph_input = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph_output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], "g", [graph_input], [graph_output])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    (tmp_path / "broken.pt2").write_bytes(b"PK nothing")
    refusals = {"other.onnx": "does not say what it is made of", "broken.pt2": "is a damaged .pt2 file"}
    for name, words in refusals.items():
        with pytest.raises(InputError, match=words):
            hydractl.bench([tmp_path / name], device="cpu")
        with pytest.raises(InputError, match="is an exported file") as caught:
            hydractl.open(tmp_path / name)
        assert caught.value.hint == "predict and bench run it; other verbs take the .st file it is of"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--test", "d.npz"], "--test (flag) needs --format onnx-int8"),
        (["--format", "onnx-int8", "--ood", "a=o.npz"], "--ood (flag) needs --test"),
        (["-o", "h.int8.onnx", "--limit", "5"], "--limit (flag) needs --test"),
        (["--format", "onnx-int8", "--test", "d", "--ood", "a=o", "--ood", "a=p"], "--ood has the name 'a' twice"),
    ],
)
def test_data_are_for_rounded_weights(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("export", "a.st", *words, code=2)
    assert message in capsys.readouterr().err
