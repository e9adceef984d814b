"""Image files of which a few bytes keep a decoder busy for minutes, found before anything is decoded.

All else that Pillow does with a file takes a time that grows as the file or as its pixels, which are bounded.
"""

from __future__ import annotations

import re

MOST_SCANS = 64
"""Of a JPEG; each goes over all pixels. Progressive ones of libjpeg have up to ten."""

MOST_COMMENTS = 1000
"""Of a PNM with numbers as text; at each, Pillow copies what follows."""

_PLAIN = (b"P1", b"P2", b"P3")
_JPEG_START = b"\xff\xd8\xff"
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
"""A marker of a JPEG. In the data of a scan, 0xff is followed by 0 or by one of the markers that belong to the scan."""
_SCAN, _END = 0xDA, 0xD9


def refuse_slow(content: bytes) -> None:
    """Refuse an image file that would take minutes to decode, in a time that is a small part of an honest decoding.

    Raises:
        ValueError: saying what there is too much of.
    """
    if content.startswith(_JPEG_START):
        _count_scans(content)
    elif content.startswith(_PLAIN):
        comments = content.count(b"#")
        if comments > MOST_COMMENTS:
            raise ValueError(f"the file has {comments} comments, more than {MOST_COMMENTS}")


def _count_scans(content: bytes) -> None:
    """Refuse a JPEG with more than 64 scans, since a decoder goes over all pixels of the image for each of them.

    What lies between two scans is passed over by its length, as it may hold a whole JPEG, e.g. a small picture.

    Raises:
        ValueError: naming the limit.
    """
    # Go from marker to marker, until there are no more or the marker of the end. Behind a marker stand two bytes with
    # the length of its segment, in which they are counted.
    position = len(_JPEG_START) - 1
    scans = 0
    while True:
        found = _MARKER.search(content, position)
        if found is None:
            return
        marker = found[1][0]  # the byte that says which marker it is
        if marker == _END:
            return
        if marker == _SCAN:
            scans += 1
        if scans > MOST_SCANS:
            raise ValueError(f"the file has more than {MOST_SCANS} scans")
        length = int.from_bytes(content[found.end() : found.end() + 2], "big")
        position = found.end() + length
