"""The service of ``examples/serve/``: real requests over loopback have the answers of ``model.predict``."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image

import hydractl
from examples.serve import client, server
from hydractl.errors import InputError, NonFiniteError
from tests.image_data import encoded
from tests.pico import SMALL, published
from tests.running import quiet

ROOT = Path(__file__).resolve().parents[1]
SECRET = "a-secret-of-the-input"
FORM = "multipart/form-data; boundary=a-boundary"
PATIENCE = 240
"""Seconds for what is sure to come: a busy machine takes a minute to start a process that imports torch."""


@pytest.fixture(scope="module")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members, with class names and a threshold."""
    folder = tmp_path_factory.mktemp("served")
    small = SMALL.replace("depth=3", "depth=1").replace("num_classes=5", "num_classes=10")
    names = folder / "names.txt"
    names.write_text("\n".join(map(str, range(10))), encoding="utf-8")
    base = hydractl.open(f"timm:vit_tiny_patch16_224?{small}&in_chans=1", labels=str(names))
    pruned = hydractl.prune(base, method="random", keep=1, output=str(folder / "pruned.st"))
    hydractl.fuse([base, pruned], output=str(folder / "hydra.st"))
    threshold = ["--ood-score", "energy", "--threshold", "id:0.3", "--limit", "60"]
    quiet("calibrate", folder / "hydra.st", "--val", "builtin:digits/val", *threshold, "-o", folder / "cal.st")
    return folder / "cal.st"


@pytest.fixture(scope="module")
def of_images(image_model: Path) -> Iterator[Service]:
    with served(hydractl.load(image_model, device="cpu")) as service:
        yield service


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(hydractl.load(published("bert", tmp_path_factory.mktemp("served") / "bert"), device="cpu")) as service:
        yield service


class Service:
    """A running service.

    Args:
        model: what answers.
        port: where it listens.
    """

    def __init__(self, model: Any, port: int) -> None:
        self.model = model
        self.port = port

    def ask(self, path: str, body: bytes | Iterator[bytes] | None = None, type: str = FORM) -> tuple[int, bytes]:
        """The status and the body of the answer to one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            headers = {} if body is None else {"Content-Type": type}
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def images(self, *files: bytes) -> tuple[int, Any]:
        status, body = self.ask("/predict", form(files))
        return status, json.loads(body)

    def texts(self, *texts: Any) -> tuple[int, Any]:
        status, body = self.ask("/predict", json.dumps({"texts": texts}).encode(), "application/json")
        return status, json.loads(body)


@contextmanager
def served(model: Any) -> Iterator[Service]:
    """Serve a model in a thread of this process until the block ends."""
    config = uvicorn.Config(server.application(model), port=0, log_level="critical", access_log=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    until(lambda: running.started)
    try:
        yield Service(model, running.servers[0].sockets[0].getsockname()[1])
    finally:
        running.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    """Wait until it is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def form(files: Sequence[bytes]) -> bytes:
    """A body of multipart/form-data."""
    head = b'--a-boundary\r\nContent-Disposition: form-data; name="image"; filename="image.png"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--a-boundary--\r\n"


def picture(seed: int) -> bytes:
    """A grey PNG of random pixels."""
    return encoded(np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8))


def assert_answers(rows: list[dict[str, Any]], model: Any, samples: list[Any]) -> None:
    """Rows are what the model says of samples, but for the shape of a batch."""
    answer = model.predict(model.preprocess(samples))
    assert [row["predicted"] for row in rows] == answer.predicted_labels
    for name in ("confidence", "entropy", "mi", "ood_score"):
        values = getattr(answer, name)
        expected = [None] * len(samples) if values is None else pytest.approx(values.tolist(), abs=1e-5)
        assert [row.get(name) for row in rows] == expected, name
    flags = [None] * len(samples) if answer.is_ood is None else answer.is_ood.tolist()
    assert [row.get("is_ood") for row in rows] == flags


# --- answers ----------------------------------------------------------------------------------------------------------


def test_images_have_the_answers_of_the_model(of_images: Service) -> None:
    files = [picture(seed) for seed in range(32)]
    status, document = of_images.images(*files)
    assert status == 200
    assert_answers(document["predictions"], of_images.model, [Image.open(io.BytesIO(file)) for file in files])
    assert {row["is_ood"] for row in document["predictions"]} == {True, False}  # the comparison tells something


def test_texts_and_pairs_of_texts_have_them_too(of_texts: Service) -> None:
    status, document = of_texts.texts("a fine film", ["a film", "so dull !"], "")
    assert status == 200
    assert_answers(document["predictions"], of_texts.model, ["a fine film", ("a film", "so dull !"), ""])
    assert "is_ood" not in document["predictions"][0]  # of a checkpoint without a threshold


@pytest.mark.parametrize("load", [False, True])
def test_the_client(of_images: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], load: bool) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(paths):
        path.write_bytes(picture(seed))
    words = [*map(str, paths), "--url", f"http://127.0.0.1:{of_images.port}"]
    client.main([*words, "--load", "4", "--clients", "2"] if load else words)
    lines = capsys.readouterr().out.splitlines()
    if load:
        assert lines[0].startswith("4 requests by 2 clients") and lines[1] == "by status: 200: 4"
        return
    _, document = of_images.images(*[path.read_bytes() for path in paths])
    for line, path, row in zip(lines, paths, document["predictions"], strict=True):
        assert line.startswith(f"{path}: {row['predicted']} ({row['confidence']:.2f})")
        assert line.endswith("flagged as OOD") == row["is_ood"]


def test_health_and_other_paths(of_images: Service) -> None:
    assert of_images.ask("/health") == (200, b'{"status":"ok"}')
    for path in ("/docs", "/openapi.json", f"/{SECRET}", "/../../etc/passwd"):
        status, body = of_images.ask(path)
        assert status == 404 and SECRET.encode() not in body


# --- requests that are refused ----------------------------------------------------------------------------------------


@pytest.mark.fault(74, 82)
@pytest.mark.parametrize(
    "broken", [b"", b"broken", picture(0)[:60], encoded(np.zeros((8, 8), np.uint8), "ICNS"), b"%!PS-Adobe-3.0\n"]
)
def test_a_broken_image_is_an_error_of_its_request(of_images: Service, broken: bytes) -> None:
    assert of_images.images(picture(0), broken) == (422, {"detail": "input 1 is no image that can be decoded"})


IN_FORMS = [
    (form([picture(0)])[:-20], FORM),
    (form([picture(0)]), "multipart/form-data; boundary=another"),
    (form([picture(0)]), "multipart/form-data"),
    (form([]), FORM),
    (b"", FORM),
    (picture(0), "image/png"),
    (f"--{SECRET}".encode(), FORM),
    (f"{SECRET}=1".encode(), "application/x-www-form-urlencoded"),
    (form([b"x"]).replace(b'; filename="image.png"', b""), FORM),
    (json.dumps({"texts": [SECRET]}).encode(), "application/json"),
]
IN_JSON = [
    *(b"", SECRET.encode(), b'{"texts": ["\xff"]}', b'{"texts": ["\\ud800"]}', b'{"texts": []}', b'{"texts": [NaN]}'),
    b"[" * 50_000,
    json.dumps({"texts": SECRET}).encode(),
    json.dumps({SECRET: ["a"]}).encode(),
    *(json.dumps({"texts": [text]}).encode() for text in ([SECRET], [SECRET, "b", "c"], {"path": "/etc/passwd"})),
    json.dumps({"texts": [1, SECRET]}).encode(),
    json.dumps({"texts": ["a"] * 33}).encode(),
]


@pytest.mark.fault(74, 78, 83)
@pytest.mark.parametrize(
    ("service", "body", "type"),
    [
        *(("of_images", body, type) for body, type in IN_FORMS),
        *(("of_texts", body, "application/json") for body in IN_JSON),
    ],
)
def test_a_body_of_another_form(service: str, body: bytes, type: str, request: pytest.FixtureRequest) -> None:
    status, answer = request.getfixturevalue(service).ask("/predict", body, type)
    assert status == 400 and SECRET.encode() not in answer


@pytest.mark.fault(75)
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large(of_images: Service, declared: bool) -> None:
    body: bytes | Iterator[bytes] = form([bytes(server.MOST_BYTES)])
    if not declared:
        body = iter([body])
    with suppress(OSError):  # the server may have closed the connection before all of it was sent
        assert of_images.ask("/predict", body)[0] == 413
    assert of_images.ask("/health")[0] == 200


@pytest.mark.fault(76)
def test_too_many_images(of_images: Service) -> None:
    status, document = of_images.images(*[picture(0)] * 33)
    assert status == 400 and "1 to 32 files" in document["detail"]


@pytest.mark.fault(77)
@pytest.mark.parametrize("sides", [[(5001, 5000)], [(2501, 5000), (5000, 2500)], [(14_000, 14_000)]])
def test_images_of_too_many_pixels_are_not_decoded(of_images: Service, sides: list[tuple[int, int]]) -> None:
    files = [encoded(Image.new("1", size)) for size in sides]
    cut_off = [file[:60] for file in files]  # whose pixels cannot be decoded
    assert of_images.images(*files)[0] == 413
    assert of_images.images(*cut_off[-1:])[0] == (413 if len(files) == 1 else 422)


@pytest.mark.fault(78)
def test_too_much_text(of_texts: Service) -> None:
    assert of_texts.texts("a" * 99_000)[0] == 200
    assert of_texts.texts("a" * 100_000)[0] == 413


@pytest.mark.fault(78)
def test_what_a_tokenizer_or_the_model_fails_at(of_texts: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Any) -> Any:
        raise InputError(SECRET)

    def fails(_: Any) -> Any:
        raise NonFiniteError(SECRET)

    with monkeypatch.context() as patch:
        patch.setattr(of_texts.model, "preprocess", refuses)
        assert of_texts.texts("a") == (422, {"detail": "the tokenizer cannot read the texts"})
    with monkeypatch.context() as patch:
        patch.setattr(of_texts.model, "predict", fails)
        assert of_texts.texts("a") == (422, {"detail": "the model has no answer for an input"})
    assert of_texts.texts("a")[0] == 200


# --- too many, and too slow -------------------------------------------------------------------------------------------


@pytest.mark.fault(80)
def test_a_full_queue_says_so(image_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_REQUESTS", 3)
    monkeypatch.setattr(server, "MOST_SECONDS", PATIENCE)  # no request may give up its place
    model: Any = hydractl.load(image_model, device="cpu")
    preprocess, predict = model.preprocess, model.predict
    decoded: list[Any] = []
    opened = threading.Event()

    def counts(images: Any) -> Any:
        decoded.append(images)
        return preprocess(images)

    def waits(inputs: Any) -> Any:
        assert opened.wait(PATIENCE)
        return predict(inputs)

    model.preprocess, model.predict = counts, waits
    with served(model) as service, ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(service.images, picture(seed)) for seed in range(3)]
        try:
            # A request is decoded in its place: one that came before all three had theirs would take the third's.
            until(lambda: len(decoded) == 3)
            status, document = service.images(picture(9))
            assert status == 503 and document["detail"].startswith("too many requests are waiting")
            assert service.ask("/health")[0] == 200
        finally:
            opened.set()
        assert [reply.result()[0] for reply in replies] == [200, 200, 200]


@pytest.mark.fault(79, 81)
def test_slow_clients_and_those_that_go_away(image_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of, begun = server.files_of, []

    async def reads(request: Any) -> list[bytes]:
        begun.append(request)
        return await files_of(request)

    monkeypatch.setattr(server, "files_of", reads)
    monkeypatch.setattr(server, "MOST_SECONDS", 1)
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: {FORM}\r\nContent-Length: 1000\r\n\r\n--a-b".encode()
    with served(hydractl.load(image_model, device="cpu")) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as gone:
            gone.sendall(head)
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as slow:
            slow.sendall(head)
            until(lambda: len(begun) == 2)
            # The second is that of the slow client; a busy machine may need more for a whole request.
            monkeypatch.setattr(server, "MOST_SECONDS", PATIENCE)
            assert service.images(picture(0))[0] == 200
            assert slow.recv(65536).startswith(b"HTTP/1.1 503")


@pytest.mark.long
@pytest.mark.fault(74, 81)
def test_concurrent_requests_to_a_process_and_its_end(image_model: Path, tmp_path: Path) -> None:
    """As a user runs it: every request has its own answer, broken ones an error, and SIGTERM ends it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "examples/serve/server.py", str(image_model), "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    model = hydractl.load(image_model, device="cpu")
    service = Service(model, port)
    seeds = [[1000 + number, number] for number in range(server.MOST_REQUESTS - 1)]

    def is_ready() -> bool:
        with suppress(OSError):
            return service.ask("/health")[0] == 200
        return False

    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until(is_ready)
        with ThreadPoolExecutor(server.MOST_REQUESTS) as pool:
            broken = pool.submit(service.images, b"broken")
            answers = list(pool.map(lambda pair: service.images(*map(picture, pair)), seeds))
        assert broken.result()[0] == 422
        for pair, (status, document) in zip(seeds, answers, strict=True):
            assert status == 200
            assert_answers(document["predictions"], model, [Image.open(io.BytesIO(picture(seed))) for seed in pair])
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) in (0, -signal.SIGTERM)
    finally:
        running.kill()
        running.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
