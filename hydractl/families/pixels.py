"""Images of any mode as the 8-bit grey or colour images that preprocessing starts from."""

from __future__ import annotations

from PIL import Image


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image in mode ``L`` or ``RGB``.

    Pillow clips 16-bit images at 255 when it converts them; here the upper byte is taken instead.
    """
    if image.mode.startswith("I;16"):
        image = image.point(lambda value: value * (1 / 256), "L")
    return image if image.mode == mode else image.convert(mode)
