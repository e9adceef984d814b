"""What a service costs beside a bare loop over the same images: requests of several clients, answered in batches.

    python benchmarks/serving.py [--model MODEL ...] [--images 128] [--rounds 3] [-o serving.json]

The bare loop decodes the same PNG files, preprocesses them and calls ``model.predict`` in batches of ``--batch-size``,
in one thread, and throws the answers away. The service is a process of its own, ``hydractl serve``, which is asked over
HTTP on the loopback address by so many clients at a time, each with so many images a request. Sides take turns within a
round. Counted are the wall time and the processor time of the service's process alone; the clients are in another one,
but on the same processors. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import hydractl

MODELS = ("timm:vit_tiny_patch16_224?pretrained=0&num_classes=10",)
CLIENTS = ((1, 1), (8, 1), (32, 1), (8, 8))
"""How many clients at a time, and images of each request."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Times:
    """Seconds of one side in one round."""

    wall: float
    cpu: float


def png_files(count: int, seed: int) -> list[bytes]:
    """PNG files of smooth random pictures, of 256 x 256 pixels."""
    generator = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        small = Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((256, 256), Image.Resampling.BICUBIC).save(file, "PNG")
        files.append(file.getvalue())
    return files


def bare(model: Any, files: Sequence[bytes], batch_size: int) -> Times:
    """Decode, preprocess and predict, and keep nothing."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        for start in range(0, len(files), batch_size):
            images = [Image.open(io.BytesIO(file)) for file in files[start : start + batch_size]]
            model.predict(model.preprocess(images))
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


@contextmanager
def service(model: str, batch_size: int) -> Iterator[tuple[int, int]]:
    """Serve a model in a process of its own; give its number and its port."""
    words = ["serve", model, "--port", "0", "--device", "cpu", "--batch-size", str(batch_size)]
    words += ["--max-seconds", "600"]  # a busy machine is no reason to refuse
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hydractl", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    )
    assert process.stderr is not None
    said = ""
    while (place := re.search(r"http://127\.0\.0\.1:(\d+)", said)) is None:
        line = process.stderr.readline().decode()
        if not line:
            raise SystemExit(f"error: the service did not start: {said}")
        said += line
    try:
        yield process.pid, int(place[1])
    finally:
        process.terminate()
        process.wait()


def cpu_of(process: int) -> float:
    """Processor seconds of a process, all its threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def form(files: Sequence[bytes]) -> bytes:
    """A body of multipart/form-data."""
    head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="image.png"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--b--\r\n"


def asked(process: int, port: int, files: Sequence[bytes], clients: int, images: int) -> Times:
    """Ask for all images by so many clients at a time, each on one connection."""
    bodies = [form(files[start : start + images]) for start in range(0, len(files), images)]
    lock = threading.Lock()
    answered: list[int] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                if not bodies:
                    break
                body = bodies.pop()
            connection.request("POST", "/predict", body, {"Content-Type": "multipart/form-data; boundary=b"})
            answer = connection.getresponse()
            rows = json.loads(answer.read())["predictions"]
            with lock:
                answered.append(len(rows))
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    wall, cpu = time.perf_counter(), cpu_of(process)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = Times(time.perf_counter() - wall, cpu_of(process) - cpu)
    assert sum(answered) == len(files)
    return times


def measured(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one model: a row for each number of clients."""
    files = png_files(options.images, options.seed)
    loaded = hydractl.load(model, device="cpu")
    ratios: dict[tuple[int, int], list[tuple[float, float, float]]] = {pair: [] for pair in CLIENTS}
    with service(model, options.batch_size) as (process, port):
        asked(process, port, files[: options.batch_size], 4, 1)  # the first ones are slower
        bare(loaded, files[: options.batch_size], options.batch_size)
        for _ in range(options.rounds):
            alone = bare(loaded, files, options.batch_size)
            for pair in CLIENTS:
                times = asked(process, port, files, *pair)
                rate = len(files) / times.wall
                ratios[pair].append((times.wall / alone.wall, times.cpu / alone.cpu, rate))
    rows = []
    for (clients, images), rounds in ratios.items():
        wall, cpu, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
        name = model.partition(":")[2].partition("?")[0]
        row = {"model": name, "clients": clients, "images": images, "wall": wall, "cpu": cpu, "per_second": rate}
        rows.append({**row, "rounds": rounds})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model in options.model:
        for row in measured(model, options):
            print(
                f"{row['model']:28} {row['clients']:3} clients x {row['images']:2} images: wall {row['wall']:.2f}, "
                f"CPU {row['cpu']:.2f} of the bare loop, {row['per_second']:.0f} images/s",
                flush=True,
            )
            rows.append(row)
    if options.output is not None:
        options.output.write_text(json.dumps({"images": options.images, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
