"""Write corrupted images as files, as the published ImageNet-C has them: JPEG of quality 85, by class.

    python examples/paper/corrupt.py "$IMAGENET/val?corruption=fog&severity=3" --workers 8 -o imagenet-c/fog/3

A killed run goes on where it was: the folder has another name until all of its images are there.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from hydractl.data import open_data
from hydractl.data.base import Dataset


@cache
def _images(spec: str) -> Dataset:
    """The corrupted images, opened once in each process."""
    return open_data(spec)


def write_image(spec: str, i: int, path: Path) -> None:
    """Write image ``i`` unless it is there."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    _images(spec)[i].save(unfinished, "JPEG", quality=85, optimize=True)
    os.replace(unfinished, path)


def main() -> None:
    """Read the arguments and write the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="SPEC", help="a folder of class folders, with ?corruption= and &severity=")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    asked = parser.parse_args()
    unfinished = asked.output.with_name(f"{asked.output.name}.part")
    ids = _images(asked.data).ids
    paths = [(unfinished / name).with_suffix(".JPEG") for name in ids]
    if asked.workers == 1:
        list(map(write_image, [asked.data] * len(ids), range(len(ids)), paths))
    else:
        with ProcessPoolExecutor(asked.workers) as pool:
            list(pool.map(write_image, [asked.data] * len(ids), range(len(ids)), paths, chunksize=64))
    os.replace(unfinished, asked.output)


if __name__ == "__main__":
    main()
