"""Grey images of more than 8 bits: scaled where the file says which pixel is white, else refused by name."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.data import batches, open_data
from hydractl.data.base import UnreadableSample
from hydractl.data.files import decoded_image
from hydractl.errors import InputError
from hydractl.families.pixels import images_of, in_mode
from tests.image_data import encoded, png, stacked

DEEP = np.array([[0, 255, 256], [4095, 32768, 65535]], dtype=np.uint16)
UPPER_BYTES = [[0, 0, 1], [15, 128, 255]]
MODES = ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"]


def tiff(
    pixels: bytes, bits: int, *, white_is_zero: bool = False, numbers: int = 1, order: str = "<", width: int = 3
) -> bytes:
    """A TIFF of two rows of grey pixels, with tags that Pillow writes no file with."""
    tags = [
        *[(256, width), (257, 2), (258, bits), (259, 1), (262, 0 if white_is_zero else 1), (273, 8), (277, 1)],
        *[(278, 2), (279, len(pixels)), (339, numbers)],
    ]
    start = 8 + len(pixels)
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", start)
    entries = [struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags]
    return header + pixels + struct.pack(f"{order}H", len(tags)) + b"".join(entries) + bytes(4)


def pgm(kind: str, most: int) -> bytes:
    """A PGM of a black and a white pixel, in numbers as bytes or as text."""
    if kind == "P2":
        return f"P2\n2 1\n{most}\n0 {most}\n".encode()
    width = 1 if most < 256 else 2
    return f"P5\n2 1\n{most}\n".encode() + bytes(width) + most.to_bytes(width, "big")


def grey(content: bytes) -> list[list[int]]:
    image = decoded_image(content)
    assert image.mode == "L"
    return np.asarray(image).tolist()


@pytest.mark.fault(98)
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(encoded(DEEP), id="PNG"),
        pytest.param(tiff(DEEP.tobytes(), 16), id="TIFF, little-endian"),
        pytest.param(tiff(DEEP.astype(">u2").tobytes(), 16, order=">"), id="TIFF, big-endian"),
        pytest.param(tiff((65535 - DEEP).tobytes(), 16, white_is_zero=True), id="TIFF, white is zero"),
        pytest.param(b"P5\n3 2\n65535\n" + DEEP.astype(">u2").tobytes(), id="PGM"),
        pytest.param(b"P2\n3 2\n65535\n" + " ".join(map(str, DEEP.ravel())).encode(), id="PGM as text"),
    ],
)
def test_the_upper_byte_is_taken(content: bytes) -> None:
    assert grey(content) == UPPER_BYTES


@pytest.mark.fault(98)
@pytest.mark.parametrize("kind", ["P2", "P5"])
@pytest.mark.parametrize("most", [1, 15, 255, 256, 1023, 4095, 65535])
def test_a_pgm_is_scaled_by_its_largest_number(kind: str, most: int) -> None:
    assert grey(pgm(kind, most)) == [[0, 255]]


@pytest.mark.fault(98)
def test_twelve_bits_of_a_tiff_fill_eight() -> None:
    packed = bytes([0x00, 0x0F, 0xFF, 0x10, 0x08, 0x00])  # 0x000 0xfff, 0x100 0x800
    assert grey(tiff(packed, 12, width=2)) == [[0, 255], [16, 128]]


UNKNOWN = {
    "32 bits": tiff(DEEP.astype("<u4").tobytes(), 32),
    "floating point": tiff(DEEP.astype("<f4").tobytes(), 32, numbers=3),
    "numbers with a sign": tiff(DEEP.astype("<i2").tobytes(), 16, numbers=2),
    "numbers with a sign, 8 bits": tiff(bytes(6), 8, numbers=2),
    "numbers with a sign, 32 bits": tiff(DEEP.astype("<i4").tobytes(), 32, numbers=2),
    "floating point of a PFM": b"Pf\n1 1\n-1.0\n" + struct.pack("<f", 0.5),
}


@pytest.mark.fault(98)
@pytest.mark.parametrize("case", UNKNOWN)
def test_pixels_of_an_unknown_range_are_refused_by_name(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "b.tif").write_bytes(UNKNOWN[case])
    kind = case.split(",")[0].removesuffix(" of a PFM")
    with pytest.raises(UnreadableSample, match=rf"cannot read image .*b\.tif: pixels of {kind} may mean"):
        list(batches(open_data(str(tmp_path)), stacked, 1))
    data = open_data(str(tmp_path), on_bad="skip")
    assert [batch.indices for batch in batches(data, stacked, 1)] == [[0]]


@pytest.mark.fault(98)
@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I;16N"])
def test_images_in_memory_of_16_bits(mode: str) -> None:
    image = Image.new(mode, (2, 1))
    image.putpixel((1, 0), 65535)
    (prepared,) = images_of([image])
    assert np.asarray(prepared).tolist() == [[0, 255]]


@pytest.mark.fault(98)
@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_in_memory_of_an_unknown_range(mode: str) -> None:
    with pytest.raises(InputError, match=r"pixels of (32 bits|floating point) may mean any brightness"):
        images_of([Image.new(mode, (2, 1))])


@pytest.mark.fault(98)
@pytest.mark.parametrize("mode", MODES)
def test_every_other_mode_is_taken_as_it_is(mode: str) -> None:
    image = Image.new(mode, (2, 1))
    (prepared,) = images_of([image])
    assert prepared is image
    assert in_mode(image, "L").mode == "L" and in_mode(image, "RGB").mode == "RGB"


@pytest.mark.fault(98)
def test_every_mode_of_pillow_is_in_one_of_these_tests() -> None:
    """``La`` alone can be converted to nothing; such a TIFF is refused by name."""
    assert set(Image.MODES) <= {*MODES, "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"}


@pytest.mark.fault(98)
def test_what_is_known_of_an_image_stays_with_it() -> None:
    file = io.BytesIO()
    Image.fromarray(DEEP).save(file, "PNG", dpi=(7, 7))
    assert decoded_image(file.getvalue()).info["dpi"] == pytest.approx((7, 7), abs=0.1)
