"""A data set of corrupted images: ``?corruption=NAME&severity=N`` after the SPEC of any images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from PIL import Image

from hydractl.data.base import Dataset, seeded_by
from hydractl.errors import UsageError, did_you_mean
from hydractl.expressions.data_sets import CORRUPTIONS, SEVERITIES, DataSpec, with_setting
from hydractl.families.pixels import grey_or_rgb

SMALL_SIDE = 64
"""An image whose shorter side has fewer pixels gets the constants of CIFAR-C; any other image those of ImageNet-C."""

LARGE_SIDE = 256
"""An image whose shorter side has more pixels is first reduced to this side, as ImageNet-C does before it crops."""


class CorruptedImages(Dataset):
    """The images of a data set, each corrupted in its own way, the same at every reading.

    An image is decoded, made 8-bit grey with one channel (if its mode is grey) or RGB (otherwise), reduced if it is
    larger than :data:`LARGE_SIDE` (Pillow, bilinear), and corrupted. The model's preprocessing comes after all this.
    Random numbers come from a generator that is seeded by the corruption, the severity and the sample's index, so
    neither the order of reading nor the number of workers matters. Ids and labels are those of the clean images.

    Args:
        clean: the clean images.
        name: the name of the corruption, for example ``fog``.
        severity: 1 to 5.

    Raises:
        UsageError: if the samples are texts.
    """

    def __init__(self, clean: Dataset, name: str, severity: int) -> None:
        """Keep the clean images, which are read later, and take over their ids, labels and class names.

        Args:
            clean: the images.
            name: the corruption, e.g. ``fog``.
            severity: 1 (weak) to 5.
        """
        if clean.kind != "image":
            raise UsageError(f"{clean.where} holds {clean.kind}s, and {name} is for images")
        settings = f"corruption={name}&severity={severity}"
        super().__init__(with_setting(clean.spec, settings), clean.where, clean.ids)
        self.clean = clean
        self.take_over(clean)
        self.name = name
        self.severity = severity

    def _sample(self, i: int) -> Image.Image:
        """Return image ``i``, reduced if it is large, and corrupted with random numbers of its own."""
        from hydractl.data.corruptions import TABLE, to_image, to_pixels

        # Reduce a large image. The strength of a corruption depends on the severity, 1 to 5, and on the image's size.
        grey_or_coloured = grey_or_rgb(self.clean[i])
        image = _reduced(grey_or_coloured)
        corruption = TABLE[self.name]
        is_small = min(image.size) < SMALL_SIDE
        constants_by_severity = corruption.small if is_small else corruption.large
        constants = constants_by_severity[self.severity - 1]

        # The random numbers depend on the corruption and the index only, not on the order of reading.
        seed = f"hydractl.corruption {self.name} {self.severity} {i}"
        random = seeded_by(hashlib.sha256(seed.encode()).digest())
        pixels = to_pixels(image)
        corrupted = corruption.apply(pixels, constants, random)
        return to_image(corrupted)


def _reduced(image: Image.Image) -> Image.Image:
    """Return an image reduced to a shorter side of :data:`LARGE_SIDE` pixels; a smaller image is returned unchanged."""
    shorter = min(image.size)
    if shorter <= LARGE_SIDE:
        return image
    width = round(image.width * LARGE_SIDE / shorter)
    height = round(image.height * LARGE_SIDE / shorter)
    size = (max(1, width), max(1, height))
    return image.resize(size, Image.Resampling.BILINEAR)


def take_corruption(spec: DataSpec) -> tuple[DataSpec, Callable[[Dataset], CorruptedImages] | None]:
    """Split a SPEC, the text that names a data set, into that of the clean images and the corruption to apply to them.

    Returns:
        The SPEC without the settings of a corruption, and the function that corrupts the clean images as they ask for,
        or None if there are none.

    Raises:
        UsageError: for an unknown corruption or severity, and for settings that do not go together.
    """
    clean_spec, asked = spec.split_query(("corruption", "severity"))
    if not asked:
        return spec, None

    # A corruption has a name and a severity, both of which must be known.
    if "corruption" not in asked or "severity" not in asked:
        raise UsageError(
            f"{spec.where}: ?corruption= and &severity= go together", hint="for example ?corruption=fog&severity=3"
        )
    name = asked["corruption"]
    severity = asked["severity"]
    if name not in CORRUPTIONS:
        guess = did_you_mean(name, CORRUPTIONS)
        raise UsageError(
            f"{spec.where}: unknown corruption {name!r}{guess}", hint=f"there are: {', '.join(CORRUPTIONS)}"
        )
    if severity not in map(str, SEVERITIES):
        raise UsageError(f"{spec.where}: severity {severity} is not in {SEVERITIES[0]} .. {SEVERITIES[-1]}")
    return clean_spec, partial(CorruptedImages, name=name, severity=int(severity))
