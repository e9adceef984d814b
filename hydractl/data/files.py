"""Images in separate files, read one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import IO

from PIL import Image, UnidentifiedImageError

from hydractl.data.base import Dataset, UnreadableSample

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff", ".webp")
"""Endings (any case) that make a file an image."""

# Named, because Pillow would otherwise also hand a file to outside programs (Ghostscript for EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

_CHUNK_BYTES = 1 << 20


class FileImages(Dataset):
    """Image files.

    Args:
        spec: the SPEC.
        where: what messages call it.
        ids: one per image.
        paths: the files, in the same order.
    """

    def __init__(self, spec: str, where: str, ids: Sequence[str], paths: Sequence[str]) -> None:
        super().__init__(spec, where, ids)
        self.paths = list(paths)

    def _sample(self, i: int) -> Image.Image:
        return read_image(self.paths[i], self.where)

    def _content(self, i: int) -> Iterable[bytes]:
        try:
            with open(self.paths[i], "rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unreadable(self.paths[i], error.strerror or str(error), self.where) from error


def read_image(path: str, where: str) -> Image.Image:
    """Read one image file completely, in the mode it is stored in; of several frames the first.

    Raises:
        UnreadableSample: naming a file that is missing, empty, damaged, of another format, or too large for Pillow.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise _unreadable(path, "the file is empty", where)
            return decode_image(file, path, where)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from error


def decode_image(file: IO[bytes], name: str, where: str) -> Image.Image:
    """The image in an open file, as :func:`read_image` gives it; ``name`` is what messages call it."""
    try:
        image = Image.open(file, formats=_formats())
        image.load()
        return image
    except MemoryError:
        raise
    except UnidentifiedImageError as error:
        raise _unreadable(name, f"not an image in one of the formats {', '.join(_formats())}", where) from error
    # A damaged file makes the decoders raise nearly anything: OSError, SyntaxError, ValueError, struct.error, ...
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable(name, reason or type(error).__name__, where) from error


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    """Those of the formats that this build of Pillow has; it does not take the names of others."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def printable(path: str) -> str:
    """A path as text that any encoder takes: bytes that are no UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _unreadable(path: str, reason: str, where: str) -> UnreadableSample:
    first_line = reason.splitlines()[0] if reason else "unreadable"
    return UnreadableSample(
        f"cannot read image {printable(path)}: {first_line} ({where})",
        hint="replace the file or take it out of the set",
    )
