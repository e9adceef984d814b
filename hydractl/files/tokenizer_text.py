"""The text of a tokenizer in the header of a checkpoint."""

from __future__ import annotations

import base64
import zlib

from hydractl.errors import InputError

PACKED = "zlib:"
"""The start of a text that is compressed."""
_MOST_UNPACKED = 1 << 27


def unpacked(text: str) -> str:
    """Return the text of ``tokenizer.json``, which a large one has compressed.

    Raises:
        InputError: if the compressed text is cut off, or would be larger than 128 MiB.
    """
    if not text.startswith(PACKED):
        return text
    inflate = zlib.decompressobj()
    compressed = base64.b64decode(text.removeprefix(PACKED), validate=True)
    plain = inflate.decompress(compressed, _MOST_UNPACKED)
    if not inflate.eof:
        raise InputError(f"the stored tokenizer is cut off, or larger than {_MOST_UNPACKED / 2**20:.0f} MiB")
    return plain.decode("utf-8")
