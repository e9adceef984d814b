"""An exported ONNX file in OpenVINO, beside ONNX Runtime on the same inputs.

hydractl export hydra.st
python examples/interop/openvino_onnx.py hydra.onnx
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import openvino


def compare(path: str, batch: int = 3, tokens: int = 8) -> float:
    """The largest difference of probabilities between the two, on random inputs."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    # In float32: where the processor has bfloat16, OpenVINO would take it.
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    draw = np.random.default_rng(0)
    inputs: dict[str, np.ndarray] = {}
    for one in session.get_inputs():
        shape = [{"batch": batch, "tokens": tokens}.get(size, size) for size in one.shape]
        whole = np.ones(shape, np.int64) if one.name == "attention_mask" else np.zeros(shape, np.int64)
        inputs[one.name] = draw.standard_normal(shape, np.float32) if one.type == "tensor(float)" else whole
    (expected,) = session.run(["probabilities"], inputs)
    return float(np.abs(model(inputs)["probabilities"] - expected).max())


if __name__ == "__main__":
    print(f"probabilities differ by up to {compare(sys.argv[1]):.1e}")
