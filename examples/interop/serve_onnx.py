"""Serve an exported file over HTTP, with ONNX Runtime and the standard library alone: requests are run in batches.

    hydractl export hydra.st
    python examples/interop/serve_onnx.py hydra.onnx --port 8000
    curl localhost:8000/health
    curl localhost:8000/predict -d '{"pixel_values": [...]}'        # [samples, channels, height, width]

What arrives within a few milliseconds, of samples of one shape, runs as one batch. It listens on this machine only; put
a server with TLS and authentication in front of it.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import onnxruntime

MOST_BYTES = 64 << 20
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


class Batcher:
    """Runs what waits together, in a thread of its own.

    Args:
        path: of the ``.onnx`` file.
        most: samples of one batch.
        wait: seconds that the first request of a batch waits for others.
    """

    def __init__(self, path: str, most: int = 32, wait: float = 0.005) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {one.name: one for one in self.session.get_inputs()}
        known = self.session.get_modelmeta().custom_metadata_map
        self.labels = json.loads(known.get("hydractl.labels", "null"))
        self.most, self.wait, self.batches, self.samples = most, wait, 0, 0
        self._queue: queue.Queue[tuple[dict[str, np.ndarray], Future[Any]]] = queue.Queue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def read(self, document: Any) -> dict[str, np.ndarray]:
        """The arrays of a request; ValueError for what the model does not take."""
        if not isinstance(document, dict) or set(document) != set(self.inputs):
            raise ValueError(f"the inputs are {', '.join(self.inputs)}")
        arrays = {name: np.asarray(value, TYPES[self.inputs[name].type]) for name, value in document.items()}
        for name, array in arrays.items():
            shape = self.inputs[name].shape
            sizes = [own if isinstance(size, str) else size for size, own in zip(shape, array.shape, strict=False)]
            if sizes != list(array.shape) or array.ndim != len(shape) or not 1 <= len(array) <= self.most:
                raise ValueError(f"{name} is {list(array.shape)}, not {shape} with a batch of 1 to {self.most}")
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError("the inputs have batches of different sizes")
        return arrays

    def submit(self, arrays: dict[str, np.ndarray]) -> Future[Any]:
        """Probabilities and member logits of these samples, to come."""
        future: Future[Any] = Future()
        self._queue.put((arrays, future))
        return future

    def _work(self) -> None:
        left = None
        while True:
            waiting = [left or self._queue.get()]
            left, deadline = None, time.monotonic() + self.wait
            while (patience := deadline - time.monotonic()) > 0:
                try:
                    after = self._queue.get(timeout=patience)
                except queue.Empty:
                    break
                if not self._fits(waiting, after):
                    left = after  # begins the next batch
                    break
                waiting.append(after)
            self._run(waiting)

    def _fits(self, waiting: list[Any], after: Any) -> bool:
        first, own = waiting[0][0], after[0]
        size = sum(len(next(iter(arrays.values()))) for arrays, _ in [*waiting, after])
        return size <= self.most and all(first[name].shape[1:] == own[name].shape[1:] for name in first)

    def _run(self, waiting: list[Any]) -> None:
        try:
            batch = {name: np.concatenate([arrays[name] for arrays, _ in waiting]) for name in self.inputs}
            probabilities, logits = self.session.run(["probabilities", "member_logits"], batch)
        except Exception as error:
            for _, future in waiting:
                future.set_exception(error)
            return
        self.batches, self.samples, start = self.batches + 1, self.samples + len(probabilities), 0
        for arrays, future in waiting:
            stop = start + len(next(iter(arrays.values())))
            future.set_result((probabilities[start:stop], logits[:, start:stop]))
            start = stop


class Handler(BaseHTTPRequestHandler):
    """``GET /health``, ``POST /predict``."""

    batcher: Batcher

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        alive = self.path == "/health" and self.batcher.thread.is_alive()
        counts = {"batches": self.batcher.batches, "samples": self.batcher.samples}
        self._answer(200, {"status": "ok", **counts}) if alive else self._answer(404, {"error": "GET /health"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/predict" or size > MOST_BYTES:
            return self._answer(
                404 if size <= MOST_BYTES else 413, {"error": f"POST /predict, up to {MOST_BYTES} bytes"}
            )
        try:
            arrays = self.batcher.read(json.loads(self.rfile.read(size)))
        except (ValueError, TypeError) as error:
            return self._answer(400, {"error": str(error)})
        try:
            probabilities, logits = self.batcher.submit(arrays).result(timeout=60)
        except Exception as error:
            return self._answer(500, {"error": str(error)})
        # Mutual information of the members: high where they disagree, which OOD samples tend to cause.
        members = np.exp(logits - logits.max(-1, keepdims=True))
        members /= members.sum(-1, keepdims=True)
        mean = members.mean(0)
        mutual = (members * np.log(members + 1e-12)).sum(-1).mean(0) - (mean * np.log(mean + 1e-12)).sum(-1)
        best = probabilities.argmax(-1).tolist()
        labels = self.batcher.labels
        answer = {"label": [labels[i] for i in best] if labels else best, "probabilities": probabilities.tolist()}
        return self._answer(200, {**answer, "mutual_information": mutual.tolist()})

    def _answer(self, code: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def server(path: str, port: int = 0, **how: Any) -> ThreadingHTTPServer:
    """A server that is not running yet; port 0 takes a free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"batcher": Batcher(path, **how)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--most", type=int, default=32, help="samples of one batch")
    chosen = parser.parse_args()
    server(chosen.model, chosen.port, most=chosen.most).serve_forever()
