"""Images of a few bytes that a decoder is busy with for minutes are refused by name before they are decoded."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from PIL import Image

from examples.serve.server import decoded
from hydractl.data import batches, open_data
from hydractl.data.base import UnreadableSample
from hydractl.data.files import decoded_image
from hydractl.data.slow_images import MOST_COMMENTS, MOST_SCANS, refuse_slow
from tests.image_data import png, stacked


def jpeg(side: int, more_scans: int, thumbnail: bytes = b"") -> bytes:
    """A progressive JPEG of one colour, whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("L", (side, side), 7).save(file, "JPEG", progressive=True, comment=thumbnail)
    content = file.getvalue()
    last_scan = content.rindex(b"\xff\xda")
    return content[:-2] + content[last_scan:-2] * more_scans + content[-2:]


SCANS_OF_PILLOW = jpeg(8, 0).count(b"\xff\xda")
SLOW = {
    "scans": jpeg(1000, 5000),
    "comments": b"P2\n1 1\n255\n" + b"#\n" * 100_000 + b"5\n",
    "comments before its size": b"P3\n" + b"#\n" * 100_000 + b"1 1\n255\n5 5 5\n",
    "comments of bits": b"P1\n1000 1000\n" + b"1#\n" * 100_000,
}


@pytest.mark.fault(92)
@pytest.mark.parametrize("case", SLOW)
def test_they_are_refused_by_name_or_left_out(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "b.jpg").write_bytes(SLOW[case])
    start = time.perf_counter()
    with pytest.raises(UnreadableSample, match=r"cannot read image .*b\.jpg: the file has .* (scans|comments)"):
        list(batches(open_data(str(tmp_path)), stacked, 2))
    data = open_data(str(tmp_path), on_bad="skip")
    assert [batch.indices for batch in batches(data, stacked, 2)] == [[0]]
    assert time.perf_counter() - start < 2


@pytest.mark.fault(92)
@pytest.mark.parametrize("case", SLOW)
def test_the_service_refuses_them(case: str) -> None:
    from starlette.exceptions import HTTPException

    start = time.perf_counter()
    with pytest.raises(HTTPException, match="422"):
        decoded(None, [SLOW[case]])  # type: ignore[arg-type]
    assert time.perf_counter() - start < 1


@pytest.mark.fault(92)
def test_as_many_as_there_may_be() -> None:
    most = MOST_SCANS - SCANS_OF_PILLOW
    assert decoded_image(jpeg(8, most)).size == (8, 8)
    with pytest.raises(ValueError, match=f"more than {MOST_SCANS} scans"):
        decoded_image(jpeg(8, most + 1))
    assert decoded_image(b"P2\n1 1\n255\n" + b"#\n" * MOST_COMMENTS + b"5\n").getpixel((0, 0)) == 5
    with pytest.raises(ValueError, match=f"{MOST_COMMENTS + 1} comments"):
        decoded_image(b"P2\n1 1\n255\n" + b"#\n" * (MOST_COMMENTS + 1) + b"5\n")


@pytest.mark.fault(92)
def test_a_picture_within_another_is_no_scan_of_it() -> None:
    """A camera's small picture, and what a telephone writes behind a picture, may hold the bytes of many scans."""
    inner = b"\xff\xda\0\2" * 1000
    assert decoded_image(jpeg(8, 0, thumbnail=inner)).size == (8, 8)
    assert decoded_image(jpeg(8, 0) + inner).size == (8, 8)


@pytest.mark.fault(92)
def test_pixels_of_a_binary_file_are_no_comments() -> None:
    assert decoded_image(b"P5\n100 100\n255\n" + b"#" * 10_000).getpixel((0, 0)) == ord("#")


@pytest.mark.fault(92)
@pytest.mark.parametrize(
    "content", [b"\xff\xd8\xff", b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe0\0", b"\xff\xd8\xff\xda\xff", b"P2"]
)
def test_what_is_cut_off_is_left_to_the_decoder(content: bytes) -> None:
    refuse_slow(content)
