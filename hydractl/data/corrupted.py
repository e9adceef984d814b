"""A data set of corrupted images: ``?corruption=NAME&severity=N`` after the SPEC of any images.

``frost`` needs ``&photographs=FOLDER`` as well.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from PIL import Image

from hydractl.data.base import Dataset, Spec
from hydractl.data.files import read_folder
from hydractl.errors import UsageError
from hydractl.expressions.data_sets import CORRUPTIONS, FROST, PHOTOGRAPHS, SEVERITIES, setting_value, with_setting
from hydractl.families.pixels import grey_or_rgb

_SETTINGS = ("corruption", "severity", "photographs")

SMALL_SIDE = 64
"""An image whose shorter side has fewer pixels gets the constants of CIFAR-C, any other those of ImageNet-C."""

LARGE_SIDE = 256
"""An image whose shorter side has more pixels is first reduced to it, as ImageNet-C does before it crops."""

# To be raised when a corruption changes: its images are others then, and so must their fingerprints be.
_VERSION = 1


class CorruptedImages(Dataset):
    """The images of a data set, each corrupted in its own way, the same at every reading.

    An image is decoded; one of a grey mode is made 8-bit grey and stays one channel, any other is made RGB; one that is
    larger than :data:`LARGE_SIDE` is reduced (Pillow, bilinear), and the model's preprocessing comes after all this.
    Random numbers are drawn from a generator seeded by the corruption, the severity and the sample's index, so that
    neither the order of reading nor the number of workers matters. Ids and labels are those of the clean images.

    Args:
        clean: the images.
        name: of the corruption.
        severity: 1 to 5.
        photographs: the folder with the photographs of frost, which are held in memory; None for other corruptions.

    Raises:
        UsageError: for texts.
        InputError: for a folder without images, or one that cannot be read.
    """

    def __init__(self, clean: Dataset, name: str, severity: int, photographs: str | None = None) -> None:
        """Take over ids and labels of the clean images; photographs of frost are read now, the images later."""
        if clean.kind != "image":
            raise UsageError(f"{clean.where} holds {clean.kind}s, and {name} is for images")
        spec = with_setting(clean.spec, f"corruption={name}&severity={severity}")
        if photographs is not None:
            spec = with_setting(spec, f"photographs={setting_value(photographs)}")
        super().__init__(spec, clean.where, clean.ids)
        self.clean = clean
        self.name = name
        self.severity = severity
        self.labels = clean.labels
        self.label_names = clean.label_names
        if clean.skipped is not None:
            self.skipped = {}

        # Frost alone has photographs.
        self.photographs: list[Image.Image] | None = None
        self._photographs_fingerprint = b""
        if photographs is not None:
            folder, _ = read_folder(Spec(photographs, "photographs", "path", photographs), None)
            # Decoded here, so that one that cannot be read is an error, and not taken for a bad image of the set.
            self.photographs = [folder[i] for i in range(len(folder))]
            self._photographs_fingerprint = bytes.fromhex(folder.fingerprint())

    def _sample(self, i: int) -> Image.Image:
        from hydractl.data.corruptions import TABLE, to_image, to_pixels

        grey_or_coloured = grey_or_rgb(self.clean[i])
        image = _reduced(grey_or_coloured)
        corruption = TABLE[self.name]
        is_small = min(image.size) < SMALL_SIDE
        constants_by_severity = corruption.small if is_small else corruption.large
        constants = constants_by_severity[self.severity - 1]
        if self.photographs is not None:  # of frost, which takes them as its last constant
            constants = (*constants, self.photographs)
        random = _generator_of_sample(self.name, self.severity, i)
        pixels = to_pixels(image)
        corrupted = corruption.apply(pixels, constants, random)
        return to_image(corrupted)

    def _content(self, i: int) -> Iterable[bytes]:
        # By fingerprint, so that the clean images are read once for all corruptions of them.
        clean_fingerprint = self.clean.sample_fingerprints()[i]
        header = f"corruption/{_VERSION} {self.name} {self.severity} {i}\n"
        yield header.encode()
        yield self._photographs_fingerprint
        yield bytes.fromhex(clean_fingerprint)


def _reduced(image: Image.Image) -> Image.Image:
    """Reduce an image whose shorter side is longer than :data:`LARGE_SIDE` to that side; return any other as it is."""
    shorter = min(image.size)
    if shorter <= LARGE_SIDE:
        return image
    width = round(image.width * LARGE_SIDE / shorter)
    height = round(image.height * LARGE_SIDE / shorter)
    size = (max(1, width), max(1, height))
    return image.resize(size, Image.Resampling.BILINEAR)


class AskedCorruption(NamedTuple):
    """The corruption that a SPEC asks for.

    Attributes:
        name: of the corruption.
        severity: 1 to 5.
        photographs: the folder with the photographs of frost; None for other corruptions.
    """

    name: str
    severity: int
    photographs: str | None


def take_corruption(spec: Spec) -> tuple[Spec, AskedCorruption | None]:
    """Take the settings of a corruption out of a SPEC, the name of a data set with settings behind ``?``.

    Returns:
        The SPEC of the clean images, without these settings, and the corruption that they ask for; None: none.

    Raises:
        UsageError: for an unknown corruption or severity, and for settings that do not go together.
    """
    asked: dict[str, str] = {}
    other_settings: dict[str, str] = {}
    for key, value in spec.query.items():
        if key in _SETTINGS:
            asked[key] = value
        else:
            other_settings[key] = value
    if not asked:
        return spec, None
    if "corruption" not in asked or "severity" not in asked:
        raise UsageError(
            f"{spec.where}: ?corruption= and &severity= go together", hint="for example ?corruption=fog&severity=3"
        )
    name = asked["corruption"]
    severity = asked["severity"]
    photographs = asked.get("photographs")
    _check_corruption(spec.where, name, severity)

    # Photographs are for frost alone, which cannot do without them.
    hint_at_photographs = PHOTOGRAPHS.format("&photographs=FOLDER")
    if name == FROST and photographs is None:
        raise UsageError(f"{spec.where}: {name} needs photographs of frost", hint=hint_at_photographs)
    if name != FROST and photographs is not None:
        raise UsageError(f"{spec.where}: {name} takes no photographs: frost does", hint=hint_at_photographs)
    clean_spec = replace(spec, query=other_settings)
    return clean_spec, AskedCorruption(name, int(severity), photographs)


def _check_corruption(where: str, name: str, severity: str) -> None:
    """Refuse a corruption or a severity that does not exist.

    Args:
        where: what messages call the data set.
        name: of the corruption.
        severity: as it was written, which is to be one of 1 to 5.

    Raises:
        UsageError: with the known ones.
    """
    if name not in CORRUPTIONS:
        near = difflib.get_close_matches(name, CORRUPTIONS, n=1)
        guess = ""
        if near:
            guess = f"; did you mean {near[0]}?"
        known = ", ".join(CORRUPTIONS)
        raise UsageError(f"{where}: unknown corruption {name!r}{guess}", hint=f"there are: {known}")
    known_severities = [str(known) for known in SEVERITIES]
    if severity not in known_severities:
        least = known_severities[0]
        most = known_severities[-1]
        raise UsageError(f"{where}: severity {severity} is not in {least} .. {most}")


def _generator_of_sample(name: str, severity: int, index: int) -> np.random.RandomState:
    """Return a random generator seeded by the corruption, its severity and the index of a sample.

    RandomState's stream never changes between numpy versions.
    """
    text = f"hydractl.corruption {name} {severity} {index}"
    digest = hashlib.sha256(text.encode()).digest()
    little_endian = np.frombuffer(digest, dtype="<u4")  # [8], the same numbers on every machine
    seeds = little_endian.astype(np.uint32)
    return np.random.RandomState(seeds)
