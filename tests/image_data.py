"""Small images as files hold them, and images of a data set as they come in batches."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hydractl.data import Dataset, batches


def write_images(**counts: int) -> None:
    """So many random images of 16 pixels a side with labels of five classes, as NAME.npz in the working folder."""
    draw = np.random.default_rng(0)
    for name, count in counts.items():
        pixels = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(f"{name}.npz", x=pixels, y=np.arange(count) % 5)


def png(value: int) -> bytes:
    """A PNG file of a small grey image."""
    return encoded(Image.new("L", (3, 2), value))


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    """An array of pixels, or an image, as a file."""
    file = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, kind)
    return file.getvalue()


def shard(path: str | Path, members: Mapping[str, bytes]) -> str:
    """A tar file of these members, in a folder that is made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


def png_bomb(side: int) -> bytes:
    """A short PNG file that claims to be so many pixels wide and high."""
    size = side.to_bytes(4, "big")
    header = size + size + b"\x08\0\0\0\0"  # eight bits a pixel, grey
    content = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(b"\0" * 99)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    checksum = zlib.crc32(body)
    return len(content).to_bytes(4, "big") + body + checksum.to_bytes(4, "big")


def stacked(images: list[Any]) -> torch.Tensor:
    """Images of one size and mode, uint8 ``[N, H, W]`` or ``[N, H, W, C]``."""
    return torch.stack([torch.from_numpy(np.array(image)) for image in images])


def first_pixels(data: Dataset, workers: int = 0) -> list[int]:
    """The first pixel of every grey image of a data set, by way of batches of three."""
    pixels = []
    for batch in batches(data, stacked, 3, workers=workers):
        pixels += batch.inputs[:, 0, 0].tolist()
    return pixels
