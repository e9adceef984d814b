"""What ``hydractl serve`` does with clients that ask for too much, too slowly, or for something else."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hydractl.model.runtime import HydraModel
from hydractl.serving.server import MOST_CONNECTIONS
from hydractl.settings.serving import ServeSettings
from tests.served import JSON, PNG, Reply, Served, form, picture, served
from tests.spread import marked_long

SECRET = "a-secret-of-the-input"


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey PNG whose header may tell of other pixels than it has."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind)
    return file.getvalue()


def exchange(service: Served, request: bytes, *, ends: bool = False) -> bytes:
    """Send bytes as they are; return all that comes until the server closes the connection."""
    with service.raw() as connection:
        connection.sendall(request)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def head(body: bytes, type: str = PNG, length: int | None = None, version: str = "1.1") -> bytes:
    length = len(body) if length is None else length
    lines = [f"POST /predict HTTP/{version}", "Host: x", f"Content-Type: {type}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


class Gate:
    """Stands before the model: nothing is predicted until it opens."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.batches: list[int] = []

    def __call__(self, predict: Callable[[Any], Any], inputs: Any) -> Any:
        self.batches.append(len(inputs))
        assert self.opened.wait(30)
        return predict(inputs)


@contextmanager
def gated(service: Served) -> Iterator[Gate]:
    gate = Gate()
    model: Any = service.service.model
    model.predict = lambda inputs: gate(lambda inputs: HydraModel.predict(model, inputs), inputs)
    try:
        yield gate
    finally:
        gate.opened.set()
        del model.predict


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come to pass."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def assert_alive(service: Served) -> None:
    assert len(service.images([picture(0)]).rows) == 1


# --- inputs that cannot be read ---------------------------------------------------------------------------------------

BROKEN = {
    "text": SECRET.encode(),
    "nothing": b"",
    "cut off": picture(0, 64)[:200],
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
    "checksum": picture(0).replace(b"IDAT", b"IDAX"),
}


@pytest.mark.fault(74)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_image_is_named_by_its_place(of_images: Served, broken: bytes) -> None:
    reply = of_images.images([picture(0), broken, picture(1)])
    assert (reply.status, reply.json) == (422, {"error": "input 1 is no image that can be decoded", "input": 1})


@pytest.mark.fault(74)
def test_odd_images_are_read_as_predict_reads_them(of_images: Served) -> None:
    files = [encoded("JPEG", "CMYK"), encoded("PNG", "I;16"), encoded("GIF", "P"), encoded("PNG", size=(1, 1))]
    assert len(of_images.images(files).rows) == 4


@pytest.mark.fault(74)
def test_a_broken_image_of_one_client_leaves_the_others_alone(image_model: Path) -> None:
    with served(image_model, wait=0.2) as service, ThreadPoolExecutor(9) as pool:
        files = [b"broken" if number % 3 == 0 else picture(number) for number in range(9)]
        replies = list(pool.map(lambda file: service.images([file]), files))
    assert [reply.status for reply in replies] == [422, 200, 200] * 3


@pytest.mark.fault(74)
@pytest.mark.parametrize(
    ("body", "type", "status"),
    [
        (picture(0), "text/html", 415),
        (picture(0), "", 415),
        (b'{"texts": ["a"]}', JSON, 415),
        (form([picture(0)])[0], "multipart/form-data", 400),
        (form([picture(0)])[0], "multipart/form-data; boundary=another", 400),
        (form([picture(0)])[0][:-20], "multipart/form-data; boundary=a-boundary", 400),
        (b"--a-boundary--\r\n", "multipart/form-data; boundary=a-boundary", 400),
        (b"", "multipart/form-data; boundary=a-boundary", 400),
        (SECRET.encode(), f"multipart/form-data; boundary={'b' * 300}", 400),
    ],
)
def test_a_body_of_another_form(of_images: Served, body: bytes, type: str, status: int) -> None:
    reply = of_images.ask("/predict", body, type)
    assert reply.status == status and list(reply.json) == ["error"]


@pytest.mark.fault(74)
@pytest.mark.parametrize("query", ["?top=-1", "?top=1001", "?top=x", "?members=perhaps"])
def test_a_query_of_another_form(of_images: Served, query: str) -> None:
    reply = of_images.images([picture(0)], query)
    assert reply.status == 400 and "top is a whole number" in reply.json["error"]


@pytest.mark.fault(74)
def test_other_paths_and_methods(of_images: Served) -> None:
    assert of_images.ask("/../../etc/passwd").status == 404
    assert of_images.ask("/docs").status == 404
    assert of_images.ask("/predict").status == 405
    assert of_images.ask("/health", b"", method="DELETE").status == 405


@pytest.mark.fault(74)
def test_an_old_client_and_no_http_at_all(of_images: Served) -> None:
    body = picture(0)
    answer = exchange(of_images, head(body, version="1.0") + body)
    assert answer.startswith(b"HTTP/1.1 200 OK") and b'"predicted"' in answer
    answer = exchange(of_images, SECRET.encode() + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") and SECRET.encode() not in answer
    exchange(
        of_images, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n"
    )
    assert_alive(of_images)


# --- too much ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault(75)
def test_a_body_that_is_too_large_by_its_head(narrow: Served) -> None:
    reply = narrow.ask("/predict", bytes(50_001))
    assert (reply.status, reply.json) == (413, {"error": "the body has more than 50,000 bytes"})
    assert narrow.ask("/predict", bytes(50_000)).status == 422


@pytest.mark.fault(75)
def test_a_body_that_turns_out_too_large(narrow: Served) -> None:
    chunks = (bytes(10_000) for _ in range(8))
    assert narrow.ask("/predict", chunks).status == 413


@pytest.mark.fault(75)
def test_a_body_without_end_is_not_read_for_ever(narrow: Served) -> None:
    sent = 0
    with narrow.raw() as connection:
        connection.sendall(head(b"", length=10**12))
        try:
            while sent < 50_000_000:
                sent += connection.send(bytes(50_000))
        except OSError:  # the server has closed it
            pass
    assert sent < 50_000_000
    assert_alive(narrow)


@pytest.mark.fault(75)
def test_a_client_that_asks_first_need_not_send_too_much(narrow: Served) -> None:
    expecting = head(b"", length=60_000).replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
    answer = exchange(narrow, expecting)
    assert answer.startswith(b"HTTP/1.1 413") and b"100 Continue" not in answer


@pytest.mark.fault(76)
def test_too_many_images(narrow: Served) -> None:
    assert len(narrow.images([picture(seed) for seed in range(4)]).rows) == 4
    reply = narrow.images([picture(seed) for seed in range(5)])
    assert (reply.status, reply.json) == (413, {"error": "a request has at most 4 inputs"})


@pytest.mark.fault(76)
def test_too_many_texts(of_texts: Served) -> None:
    assert len(of_texts.texts(["a"] * 32).rows) == 32
    assert of_texts.texts(["a"] * 33).json == {"error": "a request has at most 32 inputs"}


@pytest.mark.fault(77)
@pytest.mark.parametrize(("width", "height"), [(101, 100), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_of_too_many_pixels_is_not_decoded(narrow: Served, width: int, height: int) -> None:
    reply = narrow.images([picture(0), png(width, height, bytes(1000))])
    assert (reply.status, reply.json) == (413, {"error": "input 1 has more than 10,000 pixels", "input": 1})


@pytest.mark.fault(77)
def test_an_image_of_just_as_many_pixels_is_decoded(narrow: Served) -> None:
    assert len(narrow.images([picture(0, size=100)]).rows) == 1


@pytest.mark.fault(77)
def test_formats_other_than_png_tell_their_pixels_too(narrow: Served) -> None:
    for kind in ("JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"):
        assert narrow.images([encoded(kind, size=(130, 80))]).status == 413, kind
        assert narrow.images([encoded(kind)]).status == 200, kind


@pytest.mark.fault(78)
def test_too_much_text(of_texts: Served) -> None:
    assert of_texts.texts(["a " * 500, "\u00e9" * 500]).status == 200
    reply = of_texts.texts(["a " * 500, "\u00e9" * 501])
    assert (reply.status, reply.json) == (413, {"error": "a request has at most 2,000 bytes of text"})


@pytest.mark.fault(78)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b'{"texts": ["' + b"\xff" + b'"]}',
        b'{"texts": ["\\ud800"]}',
        b'{"texts": ["a"], "texts": ["b"]}',
        b'{"texts": ["a"], "more": 1}',
        b'{"texts": "a"}',
        b'["a"]',
        b"[" * 10_000,
        b'{"texts": [1]}',
        b'{"texts": [null]}',
        b'{"texts": [["a"]]}',
        b'{"texts": [["a", "b", "c"]]}',
        b'{"texts": [["a", 1]]}',
        b'{"texts": [{"path": "/etc/passwd"}]}',
        b'{"texts": []}',
        b'{"texts": [NaN]}',
    ],
)
def test_json_of_another_form(of_texts: Served, body: bytes) -> None:
    reply = of_texts.ask("/predict", body, JSON)
    assert reply.status == 400 and reply.json["error"]


@pytest.mark.fault(78)
def test_texts_are_taken_as_they_are(of_texts: Served) -> None:
    rows = of_texts.texts(["a\0film", "\u202e \x1b[31m", "", "a" * 1000, "\U0001f600"]).rows
    assert len(rows) == 5


# --- too slow ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault(79)
def test_a_slow_body_is_given_up(hasty: Served) -> None:
    with hasty.raw() as connection:
        connection.sendall(head(b"", length=1000) + b"x")
        answer = connection.recv(65536)
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 408") and b"not here within 1 seconds" in answer


@pytest.mark.fault(79)
@pytest.mark.parametrize(
    "start",
    [b"POST /pre", *marked_long([b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"])],
    ids=["half a head", "nothing", "half a head behind an answer"],
)
def test_half_a_request_is_given_up(hasty: Served, start: bytes) -> None:
    with hasty.raw() as connection:
        connection.sendall(start)
        with pytest.raises(ConnectionResetError):
            while connection.recv(65536):
                pass
            raise ConnectionResetError  # closed without a reset


@pytest.mark.long
@pytest.mark.fault(79)
def test_a_client_that_does_not_read_is_given_up(image_model: Path) -> None:
    """Its answers fill every buffer on the way, which are small here; then it has as long as any request."""
    with served(image_model, max_seconds=1) as service, socket.socket() as connection:
        service.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(service.address)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)

        def is_closed() -> bool:
            try:
                connection.sendall(b"G")
            except ConnectionError:
                return True
            return False

        until(is_closed)


@pytest.mark.fault(79)
def test_others_are_answered_while_a_body_trickles(of_images: Served) -> None:
    slow = [of_images.raw() for _ in range(5)]
    try:
        for connection in slow:
            connection.sendall(head(b"", length=1000) + b"x")
        until(lambda: of_images.metrics()["hydractl_requests_in_hand"] == 5)
        assert_alive(of_images)
    finally:
        for connection in slow:
            connection.close()
    until(lambda: of_images.metrics()["hydractl_requests_in_hand"] == 0)


@pytest.mark.fault(79)
def test_there_are_not_more_connections_than_may_be(of_images: Served) -> None:
    connections = []
    refused = 0
    try:
        for _ in range(MOST_CONNECTIONS + 20):
            connections.append(of_images.raw())
        for connection in connections[-19:]:
            connection.settimeout(10)
            try:
                refused += connection.recv(1) == b""
            except ConnectionResetError:
                refused += 1
    finally:
        for connection in connections:
            connection.close()
    assert refused == 19

    def answered() -> bool:
        try:
            return of_images.ask("/health").status == 200
        except OSError:  # those just closed still count
            return False

    until(answered)


@pytest.mark.fault(80)
def test_a_full_queue_says_so(narrow: Served) -> None:
    with gated(narrow) as gate, ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(narrow.images, [picture(seed)]) for seed in range(3)]
        until(lambda: narrow.metrics()["hydractl_requests_in_hand"] == 3)
        refused = narrow.images([picture(9)])
        assert narrow.ask("/health").status == 200
        gate.opened.set()
        assert [reply.result().status for reply in replies] == [200, 200, 200]
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "too many requests" in refused.json["error"]
    assert_alive(narrow)


@pytest.mark.fault(80)
def test_what_nobody_waits_for_any_more_is_not_computed(hasty: Served) -> None:
    with gated(hasty) as gate, ThreadPoolExecutor(4) as pool:
        first = pool.submit(hasty.images, [picture(0)])
        until(lambda: gate.batches)
        others = [pool.submit(hasty.images, [picture(seed)]) for seed in range(3)]
        late = [reply.result() for reply in [first, *others]]
        gate.opened.set()
    assert [reply.status for reply in late] == [503] * 4
    assert "no answer within 1 seconds" in late[0].json["error"]
    assert hasty.metrics()["hydractl_queue_inputs"] == 0
    assert gate.batches == [1]


@pytest.mark.fault(81)
def test_a_client_that_goes_away_is_forgotten(of_images: Served) -> None:
    with gated(of_images) as gate:
        body, content_type = form([picture(seed) for seed in range(20)])
        connections = [of_images.raw() for _ in range(3)]
        for connection in connections:
            connection.sendall(head(body, content_type) + body)
        until(lambda: of_images.metrics()["hydractl_requests_in_hand"] == 3 and gate.batches)
        for connection in connections:
            connection.close()
        until(lambda: of_images.metrics()["hydractl_requests_in_hand"] == 0)
        gate.opened.set()
    assert_alive(of_images)
    assert sum(gate.batches) < 60


@pytest.mark.fault(81)
def test_the_end_of_the_service_waits_for_the_last_answer(image_model: Path) -> None:
    replies: list[Reply] = []
    with served(image_model) as service, gated(service) as gate:
        client = threading.Thread(target=lambda: replies.append(service.images([picture(0)])))
        client.start()
        until(lambda: gate.batches)
        service.server.stop()
        until(lambda: _is_closed(service))
        gate.opened.set()
        client.join(30)
    assert len(replies[0].rows) == 1


def _is_closed(service: Served) -> bool:
    try:
        service.raw().close()
    except OSError:
        return True
    return False


# --- what is not told -------------------------------------------------------------------------------------------------


@pytest.mark.fault(83)
def test_errors_and_counters_quote_nothing(
    of_images: Served, of_texts: Served, caplog: pytest.LogCaptureFixture
) -> None:
    secret = SECRET.encode()
    named = form([b"broken"])[0].replace(b"0.png", secret)
    replies = [
        of_images.ask("/predict", named, "multipart/form-data; boundary=a-boundary"),
        of_images.ask("/predict", b"--" + secret, "multipart/form-data; boundary=a-boundary"),
        of_images.ask("/predict", secret),
        of_images.ask("/predict", secret, SECRET),
        of_images.ask(f"/predict?top={SECRET}", picture(0)),
        of_images.ask(f"/{SECRET}?{SECRET}"),
        of_texts.ask("/predict", json.dumps({SECRET: 1}).encode(), JSON),
        of_texts.ask("/predict", f'{{"{SECRET}": 1, "{SECRET}": 2}}'.encode(), JSON),
        of_texts.ask("/predict", json.dumps({"texts": [[SECRET]]}).encode(), JSON),
    ]
    for service in (of_images, of_texts):
        replies.append(service.ask("/metrics"))
        assert not [line for line in service.log.warnings if SECRET in line]
    for reply in replies:
        assert secret not in reply.body
        assert SECRET not in str(reply.headers)
    assert [reply.status for reply in replies] == [422, 400, 422, 415, 400, 404, 400, 400, 400, 200, 200]
    assert not caplog.records


@pytest.mark.fault(83)
def test_a_path_or_an_address_is_not_followed(of_images: Served, image_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(picture(0))
    for text in (str(file), file.as_uri(), "http://127.0.0.1:1/image.png"):
        assert of_images.images([text.encode()]).status == 422
        assert of_images.ask("/predict", text.encode(), "application/octet-stream").status == 422


@pytest.mark.fault(83)
def test_the_address_is_of_this_machine_unless_another_is_named() -> None:
    assert ServeSettings(model=["m.st"]).host == "127.0.0.1"
