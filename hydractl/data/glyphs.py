"""Typed characters as small grey images, made the way the handwritten digits were made.

scikit-learn's digits are 32x32 black-and-white bitmaps of a size-normalised character, counted in blocks of 4x4 pixels
(0..16). Typed characters go the same way here: drawn large with the font that ships inside Pillow (Aileron, public
domain), turned a little, fitted into 32x32, made black and white, counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

BITMAP = 32
BLOCK = 4
COUNTS = BLOCK * BLOCK
_FONT_SIZE = 160
_CANVAS = 2 * _FONT_SIZE  # room for the widest character, turned


def to_grey(counts: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Block counts 0..16 to grey levels 0..255, any shape."""
    return np.rint(np.asarray(counts) * (255 / COUNTS)).astype(np.uint8)


def glyph_images(characters: str, variants: int, seed: int) -> npt.NDArray[np.uint8]:
    """Draw each character in several different ways.

    Args:
        characters: what to draw.
        variants: images per character, no two of all the images equal.
        seed: of size, thickness, angle and place.

    Returns:
        uint8 ``[variants * len(characters), 8, 8]``; each character comes once in every ``len(characters)`` images.
    """
    # RandomState's stream never changes between numpy versions, unlike default_rng's.
    random = np.random.RandomState(seed)
    font = ImageFont.load_default(size=_FONT_SIZE)
    seen: set[bytes] = set()
    images = []
    for _ in range(variants):
        for character in characters:
            image = _draw(character, font, random)
            while image.tobytes() in seen:
                image = _draw(character, font, random)
            seen.add(image.tobytes())
            images.append(image)
    return np.stack(images)


def _draw(character: str, font: Any, random: np.random.RandomState) -> npt.NDArray[np.uint8]:
    """One character, uint8 ``[8, 8]``, of random thickness, angle, size and place."""
    thickness, angle = int(random.randint(2, 9)), float(random.uniform(-12, 12))
    height, width = random.randint(28, BITMAP + 1), random.randint(20, 27)
    large = Image.new("L", (_CANVAS, _CANVAS))
    ImageDraw.Draw(large).text(
        (_FONT_SIZE // 2, _FONT_SIZE // 3), character, fill=255, font=font, stroke_width=thickness
    )
    large = large.rotate(angle, resample=Image.Resampling.BILINEAR)
    large = large.crop(large.getbbox())
    # Into a box of the digits' size; flat or narrow signs keep their proportions.
    scale = min(height / large.height, width / large.width)
    size = (max(1, round(large.width * scale)), max(1, round(large.height * scale)))
    small = large.resize(size, resample=Image.Resampling.BOX)
    bitmap = Image.new("L", (BITMAP, BITMAP))
    left = (BITMAP - size[0]) // 2 + int(random.randint(-1, 2))
    top = round((BITMAP - size[1]) * float(random.uniform(0.25, 0.75)))
    bitmap.paste(small, (left, top))
    black = np.asarray(bitmap) >= 128
    blocks = black.reshape(BITMAP // BLOCK, BLOCK, BITMAP // BLOCK, BLOCK)
    return to_grey(blocks.sum(axis=(1, 3)))
