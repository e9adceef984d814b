"""A service in this process, at a free port of the loopback address, and a client that speaks plain HTTP."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import hydractl
from hydractl.evaluation.predicting import predicting_model_record
from hydractl.log import Log
from hydractl.metrics.watching import Reference
from hydractl.model.loading import build_model
from hydractl.model.prediction import Chosen
from hydractl.serving.limits import ServiceLimits
from hydractl.serving.server import HttpServer
from hydractl.serving.service import ModelService
from hydractl.serving.watching import WindowLog

PNG = "image/png"
JSON = "application/json"
_LONG = 30  # seconds that a test waits for an answer


class Heard(Log):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Reply:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def rows(self) -> list[dict[str, Any]]:
        assert self.status == 200, self.body
        return self.json["predictions"]


@dataclass
class Served:
    """A running service."""

    service: ModelService
    server: HttpServer
    log: Heard = field(default_factory=Heard)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.server.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def ask(
        self, path: str, body: bytes | Iterator[bytes] | None = None, type: str = PNG, method: str | None = None
    ) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection(*self.address, timeout=_LONG)
        try:
            headers = {} if body is None else {"Content-Type": type}
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def images(self, files: Sequence[bytes], query: str = "") -> Reply:
        """Ask for images, as the parts of a form."""
        body, content_type = form(files)
        return self.ask(f"/predict{query}", body, content_type)

    def texts(self, texts: Sequence[Any], query: str = "") -> Reply:
        """Ask for texts."""
        return self.ask(f"/predict{query}", json.dumps({"texts": texts}).encode(), JSON)

    def raw(self) -> socket.socket:
        """Open a connection to send anything on."""
        return socket.create_connection(self.address, timeout=_LONG)

    def metrics(self) -> dict[str, float]:
        """The samples that Prometheus would read."""
        samples = {}
        for line in self.ask("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples


@contextmanager
def served(
    model: Path,
    *,
    batch_size: int = 8,
    wait: float = 0.002,
    windows: Path | None = None,
    reference: Reference | None = None,
    **limits: Any,
) -> Iterator[Served]:
    """Serve a checkpoint until the block ends."""
    source = hydractl.open(model).source
    chosen = Chosen.of(source.description.extra)
    record = predicting_model_record(source.name, source.sha256, len(source.description.masks), chosen)
    log = Heard()
    service = ModelService(
        build_model(source),
        record,
        ServiceLimits(**limits),
        batch_size,
        wait,
        log,
        reference or chosen.reference,
        WindowLog(windows, log).add,
    )
    server = HttpServer(service, "127.0.0.1", 0)
    service.warm_up()
    thread = threading.Thread(target=server.run)
    thread.start()
    running = Served(service, server, log)
    try:
        while running.ask("/health").status != 200:
            pass
        yield running
    finally:
        server.stop()
        thread.join(_LONG)
        assert not thread.is_alive()


def form(files: Sequence[bytes], boundary: str = "a-boundary") -> tuple[bytes, str]:
    """A body of multipart/form-data, and its type."""
    parts = []
    for number, file in enumerate(files):
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{number}.png"\r\n\r\n'
        parts.append(head.encode() + file + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def picture(seed: int, size: int = 8) -> bytes:
    """A grey PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
