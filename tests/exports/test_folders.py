"""Exports that are folders: a model repository for Triton, and a model of MLflow."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from PIL import Image

import hydractl
from hydractl.errors import HydraError, InputError
from hydractl.evaluation.predicting import LineForm, prediction_rows
from hydractl.exports.triton import triton_config
from hydractl.model.runtime import move
from hydractl.serving.mlflow_model import _load_pyfunc
from tests.pico import SMALL, published
from tests.running import quiet, run

TYPES = {"TYPE_FP32": np.float32, "TYPE_FP64": np.float64, "TYPE_INT64": np.int64, "TYPE_BOOL": np.bool_}
TYPES |= {"TYPE_UINT8": np.uint8, "TYPE_INT32": np.int32, "TYPE_FP16": np.float16}
NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None,
    reason="tritonclient is not installed: its extra grpc asks for an older protobuf than onnx's",
)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model with class names, a score on logits and a threshold."""
    folder = tmp_path_factory.mktemp("folders")
    names = folder / "names.txt"
    names.write_text("\n".join(map(str, range(10))), encoding="utf-8")
    small = SMALL.replace("depth=3", "depth=1").replace("num_classes=5", "num_classes=10")
    model = ["calibrate", f"timm:vit_tiny_patch16_224?{small}&in_chans=1", "--labels", names]
    data = ["--val", "builtin:digits/val", "--limit", "60"]
    quiet(
        *model, *data, "--ood-score", "energy", "--threshold", "id:0.3", "--conformal", "0.2", "-o", folder / "vit.st"
    )
    return folder / "vit.st"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- Triton -----------------------------------------------------------------------------------------------------------


def fields_of(text: str) -> dict[str, list[Any]]:
    """The fields of a message in protobuf's text format, as far as a configuration uses it; all are lists."""
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', text)

    def message(position: int) -> tuple[dict[str, list[Any]], int]:
        fields: dict[str, list[Any]] = {}
        while position < len(tokens) and tokens[position] != "}":
            name = tokens[position]
            position += 1
            if tokens[position] == "{":
                value, position = message(position + 1)
                fields.setdefault(name, []).append(value)
                position += 1
                continue
            assert tokens[position] == ":"
            position += 1
            if tokens[position] == "[":
                end = tokens.index("]", position)
                values = [token for token in tokens[position + 1 : end] if token != ","]
                position = end + 1
            else:
                values = [tokens[position]]
                position += 1
            fields.setdefault(name, []).extend(
                json.loads(value) if value[0] in '"-0123456789' else value for value in values
            )
        return fields, position

    return message(0)[0]


def check_repository(folder: Path, name: str) -> list[str]:
    """Compare a repository with its ONNX file and run that; return the names of the outputs."""
    config = fields_of((folder / name / "config.pbtxt").read_text(encoding="utf-8"))
    session = onnxruntime.InferenceSession(folder / name / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    assert config["name"] == [name] and config["backend"] == ["onnxruntime"]
    assert [entry["name"][0] for entry in config["input"]] == [entry.name for entry in session.get_inputs()]
    batch = 3
    arrays = {}
    for entry in config["input"]:
        sizes = [7 if size == -1 else size for size in entry["dims"]]
        arrays[entry["name"][0]] = np.ones([batch, *sizes], TYPES[entry["data_type"][0]])
    names = [entry["name"][0] for entry in config["output"]]
    outputs = session.run(names, arrays)
    for entry, output in zip(config["output"], outputs, strict=True):
        assert output.dtype == TYPES[entry["data_type"][0]]
        if "reshape" in entry:
            assert entry["dims"] == [1] and entry["reshape"][0]["shape"] == [] and output.shape == (batch,)
        else:
            assert output.shape == (batch, *entry["dims"])
    every = {output.name: output.shape for output in session.get_outputs()}
    assert set(names) == {output for output, shape in every.items() if shape[0] == session.get_inputs()[0].shape[0]}
    return names


@pytest.mark.long
def test_a_repository_for_triton_says_what_its_graph_takes_and_gives(vit: Path) -> None:
    run("export", vit, "--format", "triton", "--batch-size", "16", "-o", "digits.triton")
    names = check_repository(Path("digits.triton"), "digits")
    assert "probabilities" in names and "member_logits" not in names
    config = fields_of(Path("digits.triton/digits/config.pbtxt").read_text())
    assert config["max_batch_size"] == [16]
    assert Path("digits.triton/digits/labels.txt").read_text().split() == [str(digit) for digit in range(10)]
    assert {path.name for path in Path("digits.triton").rglob("*") if path.is_file()} == {
        "config.pbtxt",
        "labels.txt",
        "model.onnx",
    }


@pytest.mark.release
def test_a_repository_of_texts_takes_texts_of_any_length(tmp_path: Path) -> None:
    run("export", str(published("bert", tmp_path / "bert")), "--format", "triton")
    check_repository(Path("bert.triton"), "bert")
    config = fields_of(Path("bert.triton/bert/config.pbtxt").read_text())
    assert [entry["dims"] for entry in config["input"]] == [[-1]] * len(config["input"])


def graph(outputs: dict[str, tuple[int, list[Any]]]) -> onnx.ModelProto:
    """A graph of one input whose outputs say of themselves what they like."""
    made = [onnx.helper.make_tensor_value_info(name, numbers, shape) for name, (numbers, shape) in outputs.items()]
    pixels = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["batch", 8, 8, 3])
    return onnx.helper.make_model(onnx.helper.make_graph([], "graph", [pixels], made))


def test_outputs_with_the_batch_first_are_listed_by_type_and_shape() -> None:
    outputs = {
        "probabilities": (onnx.TensorProto.FLOAT, ["batch", 10]),
        "ood_score": (onnx.TensorProto.DOUBLE, ["batch"]),
        "is_ood": (onnx.TensorProto.BOOL, ["batch"]),
        "conformal_set": (onnx.TensorProto.BOOL, ["batch", 10]),
        "member_logits": (onnx.TensorProto.FLOAT, [3, "batch", 10]),
    }
    onnx.save(graph(outputs), "m.onnx")
    config = fields_of(triton_config(Path("m.onnx"), 'a "name"', 4))
    assert config["input"] == [{"name": ["x"], "data_type": ["TYPE_UINT8"], "dims": [8, 8, 3]}]
    assert [(entry["name"][0], entry["data_type"][0], entry["dims"]) for entry in config["output"]] == [
        ("probabilities", "TYPE_FP32", [10]),
        ("ood_score", "TYPE_FP64", [1]),
        ("is_ood", "TYPE_BOOL", [1]),
        ("conformal_set", "TYPE_BOOL", [10]),
    ]


@pytest.mark.long
@NEEDS_TRITON
def test_tritons_own_reader_takes_the_configuration(vit: Path) -> None:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    outputs = {"probabilities": (onnx.TensorProto.FLOAT, ["batch", 10]), "is_ood": (onnx.TensorProto.BOOL, ["batch"])}
    onnx.save(graph(outputs), "m.onnx")
    config = text_format.Parse(triton_config(Path("m.onnx"), 'é "name"', 4), model_config_pb2.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ('é "name"', "onnxruntime", 4)
    assert [list(output.dims) for output in config.output] == [[10], [1]]
    assert config.output[1].HasField("reshape") and config.output[1].data_type == model_config_pb2.TYPE_BOOL
    run("export", vit, "--format", "triton", "-o", "v.triton")
    config = text_format.Parse(Path("v.triton/v/config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    session = onnxruntime.InferenceSession("v.triton/v/1/model.onnx", providers=["CPUExecutionProvider"])
    assert [list(entry.dims) for entry in config.input] == [session.get_inputs()[0].shape[1:]]


def test_a_graph_without_a_batch_of_any_size_is_refused() -> None:
    model = graph({"y": (onnx.TensorProto.FLOAT, [2, 10])})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, "m.onnx")
    with pytest.raises(HydraError, match="no batch of any size"):
        triton_config(Path("m.onnx"), "m", 4)


# --- MLflow -----------------------------------------------------------------------------------------------------------


def test_a_model_of_mlflow_is_data_and_the_same_bytes_each_time(vit: Path) -> None:
    run("export", vit, "--format", "mlflow", "-o", "a.mlflow")
    run("export", vit, "--format", "mlflow", "-o", "b.mlflow")
    files = sorted(path.name for path in Path("a.mlflow").iterdir())
    assert files == ["MLmodel", "model.st", "python_env.yaml", "requirements.txt"]
    for name in files:
        assert (Path("a.mlflow") / name).read_bytes() == (Path("b.mlflow") / name).read_bytes()
    described = yaml.safe_load(Path("a.mlflow/MLmodel").read_text())
    assert described["flavors"]["python_function"]["loader_module"] == "hydractl.serving.mlflow_model"
    assert json.loads(described["signature"]["inputs"]) == [{"type": "binary", "name": "image", "required": True}]
    names = [column["name"] for column in json.loads(described["signature"]["outputs"])]
    assert names == ["predicted", "confidence", "entropy", "mi", "ood_score", "is_ood", "set"]


def expected_rows(path: Path, samples: list[Any]) -> list[dict[str, Any]]:
    """Return what a model answers on the device that a loader takes too."""
    model = hydractl.load(path)
    inputs = move(model.preprocess(samples), model.device, model.dtype)
    nothing = [""] * len(samples)
    rows = prediction_rows(model.predict(inputs), nothing, [None] * len(samples), LineForm())
    return [{key: value for key, value in row.items() if key not in ("id", "label")} for row in rows]


def test_its_loader_answers_with_the_rows_of_predict(vit: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run("export", vit, "--format", "mlflow", "-o", "m.mlflow")
    loaded = _load_pyfunc("m.mlflow/model.st")
    files = [picture(seed) for seed in range(3)]
    table = loaded.predict(pandas.DataFrame({"image": files}))
    expected = expected_rows(vit, [Image.open(io.BytesIO(file)) for file in files])
    assert table.to_dict("records") == expected
    with pytest.raises(InputError, match="input 1 is no image") as refused:
        loaded.predict(pandas.DataFrame({"image": [files[0], b"a-secret"]}))
    assert "secret" not in str(refused.value)
    with pytest.raises(InputError, match="a column named image"):
        loaded.predict(pandas.DataFrame({"x": files}))


def test_its_loader_takes_texts_and_pairs(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    run("export", str(published("bert", tmp_path / "bert")), "--format", "mlflow")
    loaded = _load_pyfunc("bert.mlflow/model.st")
    table = loaded.predict(pandas.DataFrame({"text": ["a film", "dull"], "text_b": ["so fine", None]}))
    expected = expected_rows(tmp_path / "bert", [("a film", "so fine"), "dull"])
    assert table.to_dict("records") == expected


@pytest.mark.release
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow-skinny is not installed")
def test_mlflow_models_serve_answers(vit: Path) -> None:
    run("export", vit, "--format", "mlflow", "-o", "m.mlflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # No usage reports; uvicorn, which MLflow starts, is beside the interpreter.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "PATH": path}
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "m.mlflow", "--env-manager", "local"]
    with open("log", "wb") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        answer = ask(server, f"http://127.0.0.1:{port}/invocations", picture(0))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    model = hydractl.load(vit, device="cpu")
    assert answer == {"predictions": expected_rows(model, [Image.open(io.BytesIO(picture(0)))])}


def picture(seed: int) -> bytes:
    """A grey PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def ask(server: subprocess.Popen[bytes], url: str, file: bytes) -> Any:
    """What a server of MLflow answers to one image, as soon as it runs."""
    table = {"columns": ["image"], "data": [[base64.b64encode(file).decode()]]}
    request = urllib.request.Request(
        url, json.dumps({"dataframe_split": table}).encode(), {"Content-Type": "application/json"}
    )
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError:
            raise
        except OSError:  # not yet there
            assert server.poll() is None and time.monotonic() < end, Path("log").read_text()
            time.sleep(0.2)
