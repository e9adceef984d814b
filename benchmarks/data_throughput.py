"""How many images a second are read, decoded and preprocessed, beside a bare loop of Pillow and timm's transform.

    python benchmarks/data_throughput.py                          # 256 JPEG files of 500x375, made for the occasion
    python benchmarks/data_throughput.py --data FOLDER --limit 2000 --workers 0,2,4 --rounds 5 -o FILE.json

Every round runs the bare loop and hydractl with each number of workers in an order drawn anew; what they make is
compared in the first. Starting the workers counts. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hydractl.data import Dataset, batches, open_data
from hydractl.families.torchvision_operators import declare_operators

declare_operators()
import timm.data  # noqa: E402  (it needs the operators)

MODEL = {"input_size": [3, 224, 224], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9}


def make_images(folder: Path, count: int) -> None:
    """JPEG files of 500x375, quality 90: patches of scikit-learn's photographs, none like another."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    drawn = np.random.RandomState(0)
    for i in range(count):
        photo = photos[i % len(photos)]
        width = int(drawn.randint(300, photo.height * 4 // 3))
        left = int(drawn.randint(0, photo.width - width))
        top = int(drawn.randint(0, photo.height - width * 3 // 4 + 1))
        patch = photo.crop((left, top, left + width, top + width * 3 // 4)).resize((500, 375), Image.Resampling.BICUBIC)
        patch.save(folder / f"{i:05}.jpg", quality=90)


def bare(data: Dataset, transform: Callable[[Any], torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    """A bare loop, as written without hydractl."""
    paths = data.paths  # type: ignore[attr-defined]
    for start in range(0, len(paths), size):
        parts = []
        for path in paths[start : start + size]:
            with Image.open(path) as image:
                parts.append(transform(image.convert("RGB")))
        yield torch.stack(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of images (default: made in a temporary folder)")
    parser.add_argument("--limit", type=int, default=256, help="images")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", help="where to write every single time, as JSON")
    options = parser.parse_args()
    from hydractl.families.timm import TimmViT

    collate = TimmViT().collate(MODEL)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in MODEL.items()}
    transform = timm.data.create_transform(**settings, is_training=False)
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            make_images(Path(folder), options.limit)
        data = open_data(options.data or folder, limit=options.limit)
        size = options.batch_size
        runs: dict[str, Callable[[], Iterator[torch.Tensor]]] = {"bare loop": lambda: bare(data, transform, size)}
        for number in map(int, options.workers.split(",")):
            runs[f"{number} workers"] = lambda n=number: (b.inputs for b in batches(data, collate, size, workers=n))
        check_equal(runs)
        times = measure(runs, options.rounds, options.seed)
    show(times, len(data))
    if options.output:
        document = {"images": len(data), "batch_size": size, "seconds": times}
        Path(options.output).write_text(json.dumps(document, indent=2) + "\n")


def check_equal(runs: dict[str, Callable[[], Iterator[torch.Tensor]]]) -> None:
    """Stop unless every run makes the same numbers; this also warms the file cache."""
    found = {name: [float(part.double().sum()) for part in run()] for name, run in runs.items()}
    for name, sums in found.items():
        if sums != found["bare loop"]:
            raise SystemExit(f"{name} does not make what the bare loop makes")


def measure(runs: dict[str, Callable[[], Iterator[torch.Tensor]]], rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds of each run in each round."""
    order = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in order.sample(list(runs), len(runs)):
            started = time.perf_counter()
            for _ in runs[name]():
                pass
            times[name].append(time.perf_counter() - started)
    return times


def show(times: dict[str, list[float]], images: int) -> None:
    """A table of the medians."""
    print("| reading | images a second | of the bare loop |")
    print("|---|---:|---:|")
    for name, seconds in times.items():
        ratio = statistics.median(b / s for b, s in zip(times["bare loop"], seconds, strict=True))
        print(f"| {name} | {images / statistics.median(seconds):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
