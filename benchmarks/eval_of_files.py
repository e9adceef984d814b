"""What a user waits for when ``eval`` reads image files: the whole command, beside a bare loop with the same workers.

    python benchmarks/eval_of_files.py                                       # 2,000 JPEG files, made for the occasion
    python benchmarks/eval_of_files.py --before ../before --device cuda -o FILE.json       # beside another version

Each side is a process of its own and counts from its start to its end: imports, building the model, starting workers.
The bare loop is a ``torch.utils.data.DataLoader`` over the same files with timm's own transform, as many workers as
``eval`` (``--workers``), and memory that a GPU copies from (``pin_memory``); it runs the library's own model and counts
the right answers. A round runs all sides once, in an order drawn by ``--seed``; ratios are medians of the ratios within
a round, with the smallest and the largest; there is no round before the first. BEFORE is a folder with another version
of the source (``git worktree add ../before COMMIT``); it runs with its own defaults, that of ``--workers`` included,
which are part of what is compared. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from data_throughput import make_images

HERE = Path(__file__).resolve().parents[1]
MODEL = "vit_small_patch16_224"
CLASSES = 10
BARE, NOW, BEFORE = "bare loop", "eval", "eval before"

BARE_LOOP = """
import sys
from hydractl.families.torchvision_operators import declare_operators
declare_operators()
import timm, timm.data, torch
from PIL import Image
from pathlib import Path

folder, name, classes, device, batch_size, workers = sys.argv[1:]
model = timm.create_model(name, num_classes=int(classes)).to(device).eval()
transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model), is_training=False)
paths = sorted(Path(folder).glob("*/*.jpg"))
class_names = sorted({path.parent.name for path in paths})

class Files(torch.utils.data.Dataset):
    def __len__(self):
        return len(paths)

    def __getitem__(self, index):
        with Image.open(paths[index]) as image:
            return transform(image.convert("RGB")), class_names.index(paths[index].parent.name)

loader = torch.utils.data.DataLoader(
    Files(), int(batch_size), num_workers=int(workers), pin_memory=device.startswith("cuda"),
    multiprocessing_context="fork" if int(workers) else None,  # Files can be imported from nowhere
)
right = torch.zeros((), device=device)
with torch.inference_mode():
    for images, labels in loader:
        logits = model(images.to(device, non_blocking=True))
        right += (logits.argmax(1) == labels.to(device, non_blocking=True)).sum()
print(float(right) / len(paths))
"""


def make_data(folder: Path, count: int, distinct: int) -> None:
    """A folder of class folders; after ``distinct`` files the same bytes come again, in other files."""
    drawn = folder / "drawn"
    drawn.mkdir()
    make_images(drawn, min(count, distinct))
    class_names = [f"class{index}" for index in range(CLASSES)]
    (folder / "labels.txt").write_text("\n".join(class_names), encoding="utf-8")
    contents = [path.read_bytes() for path in sorted(drawn.iterdir())]
    for index in range(count):
        of_class = folder / "data" / class_names[index % CLASSES]
        of_class.mkdir(parents=True, exist_ok=True)
        (of_class / f"{index:06}.jpg").write_bytes(contents[index % len(contents)])


def command_of(side: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """Return what a side runs."""
    data = str(folder / "data")
    if side == BARE:
        words = [data, MODEL, str(CLASSES), options.device, str(options.batch_size), str(options.workers)]
        return [sys.executable, "-c", BARE_LOOP, *words]
    model = f"timm:{MODEL}?pretrained=0&num_classes={CLASSES}"
    option = options.option_of_before if side == BEFORE else "--test"
    labels = str(folder / "labels.txt")
    words = [option, data, "--labels", labels, "--device", options.device, "--batch-size", str(options.batch_size)]
    if side == NOW:
        words += ["--workers", str(options.workers)]
    return [sys.executable, "-m", "hydractl", "eval", model, *words, "-o", str(folder / "eval.json"), "--force", "-q"]


def seconds_of(side: str, command: list[str], source: Path) -> float:
    """Return the seconds that a process takes.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    begun = time.perf_counter()
    # Python looks for modules in the current folder first.
    process = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if process.returncode:
        sys.exit(f"{side}: {process.stderr}")
    return seconds


def _of_ratios(times: list[dict[str, float]], one: str, other: str) -> str:
    """Return the median of the ratios of two sides within a round, with the smallest and the largest."""
    if one == other or other not in times[0]:
        return ""
    ratios = [of_round[one] / of_round[other] for of_round in times]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def machine(device: str) -> dict[str, Any]:
    """Return what times depend on."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    return {"device": name, "processors": len(os.sched_getaffinity(0)), "torch": torch.__version__}


def main() -> None:
    """Measure, print a table, and write every single time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--option-of-before", default="--test", help="by which eval of BEFORE takes its data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--distinct", type=int, default=500, help="files that differ")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8, help="of eval and of the bare loop; BEFORE has its default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    sources = {BARE: HERE, NOW: HERE}
    if options.before is not None:
        sources[BEFORE] = options.before.resolve()
    dice = random.Random(options.seed)
    times: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), options.images, options.distinct)
        commands = {side: command_of(side, Path(folder), options) for side in sources}
        for _ in range(options.rounds):
            of_round = {}
            for side in dice.sample(sorted(sources), len(sources)):
                of_round[side] = seconds_of(side, commands[side], sources[side])
                print(f"{side}: {of_round[side]:.1f} s", file=sys.stderr, flush=True)
            times.append(of_round)
    print("| side | seconds | over the bare loop | over eval before |\n|---|---:|---:|---:|")
    for side in sources:
        against = [_of_ratios(times, side, other) for other in (BARE, BEFORE)]
        print(f"| {side} | {statistics.median(of_round[side] for of_round in times):.1f} | {' | '.join(against)} |")
    if options.output is not None:
        settings = {key: value for key, value in vars(options).items() if key not in ("output", "before")}
        document = {"machine": machine(options.device), "settings": settings, "seconds": times}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
