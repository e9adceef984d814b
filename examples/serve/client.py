"""Ask the service of ``server.py`` for images or texts, and see how much it takes.

    python client.py cat.jpg dog.jpg                       # a line for each image
    python client.py --text 'a fine film' --text 'so dull'
    python client.py cat.jpg --load 500 --clients 8        # the same request again and again, by several clients

Python's own library is enough. The service is at http://127.0.0.1:8000, or where --url says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def request_of_images(url: str, paths: list[Path]) -> urllib.request.Request:
    """A form with a part for each file."""
    parts = []
    for path in paths:
        head = b'--image-boundary\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
        parts.append(head + path.read_bytes() + b"\r\n")
    body = b"".join(parts) + b"--image-boundary--\r\n"
    return urllib.request.Request(url, body, {"Content-Type": "multipart/form-data; boundary=image-boundary"})


def request_of_texts(url: str, texts: list[str]) -> urllib.request.Request:
    """A JSON document with all texts."""
    body = json.dumps({"texts": texts}).encode()
    return urllib.request.Request(url, body, {"Content-Type": "application/json"})


def ask(request: urllib.request.Request) -> tuple[int, Any]:
    """The status and the document of the answer."""
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def load_test(request: urllib.request.Request, count: int, clients: int) -> None:
    """Send the request so many times, by so many clients at a time."""

    def timed(_: int) -> tuple[int, float]:
        start = time.perf_counter()
        status, _answer = ask(request)
        return status, time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(timed, range(count)))
    seconds = time.perf_counter() - start
    by_status = Counter(status for status, _ in answers)
    times = sorted(duration for _, duration in answers)
    print(f"{count} requests by {clients} clients in {seconds:.1f} s: {count / seconds:.0f} a second")
    print("by status:", ", ".join(f"{status}: {number}" for status, number in sorted(by_status.items())))
    print(f"median {statistics.median(times) * 1000:.0f} ms, slowest {times[-1] * 1000:.0f} ms")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--load", type=int, help="send the request so many times")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args(words)
    if bool(options.images) == bool(options.text):
        parser.error("give images, or --text")

    url = f"{options.url}/predict"
    request = request_of_images(url, options.images) if options.images else request_of_texts(url, options.text)
    if options.load:
        load_test(request, options.load, options.clients)
        return
    status, answer = ask(request)
    if status != 200:
        raise SystemExit(f"error: status {status}: {answer['detail']}")
    for name, row in zip(options.images or options.text, answer["predictions"], strict=True):
        flag = "  flagged as OOD" if row.get("is_ood") else ""
        print(f"{name}: {row['predicted']} ({row['confidence']:.2f}), OOD score {row['ood_score']:.3g}{flag}")


if __name__ == "__main__":
    main()
