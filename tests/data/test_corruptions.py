"""Corruptions: what each does exactly, the constants, and that an image is always corrupted in the same way."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from scipy import ndimage

from hydractl.data import batches, open_data
from hydractl.data.corrupted import CorruptedImages
from hydractl.data.corruptions import TABLE, to_image, to_pixels
from hydractl.errors import UsageError
from hydractl.expressions.data_sets import CORRUPTIONS
from tests.running import refused
from tests.spread import marked_long, spread

Array = npt.NDArray[np.float64]


def apply(name: str, severity: int, x: Array, *, small: bool = False, seed: int = 0) -> Array:
    kind = TABLE[name]
    constants = (kind.small if small else kind.large)[severity - 1]
    return kind.apply(x, constants, np.random.RandomState(seed))


def photos() -> Array:
    """Two photographs, reduced: float64 ``[2, 107, 160, 3]``."""
    from sklearn.datasets import load_sample_images

    return np.stack([to_pixels(Image.fromarray(a).resize((160, 107))) for a in load_sample_images().images])


def test_the_table_has_every_name_in_order() -> None:
    assert tuple(TABLE) == CORRUPTIONS
    assert all(len(kind.large) == len(kind.small) == 5 for kind in TABLE.values())


# Where the constants do more of one thing from one severity to the next: not glass_blur and elastic_transform, which
# trade one kind of change for another, nor the fog of ImageNet-C, whose third severity is thinner than the second.
MIXED = ("glass_blur", "elastic_transform")
ORDERED = [(name, small) for name in CORRUPTIONS for small in (False, True) if name not in MIXED]
ORDERED.remove(("fog", False))


@pytest.mark.parametrize(("name", "small"), ORDERED)
def test_distance_to_the_clean_image_grows(name: str, small: bool) -> None:
    images = photos()[:1]
    if small:
        images = images[:, ::3, ::4][:, :32, :32]
    # With one seed, the direction of motion is the same at every severity.
    far = [
        np.mean([np.sqrt(((np.clip(apply(name, s, x, small=small), 0, 1) - x) ** 2).mean()) for x in images])
        for s in range(1, 6)
    ]
    steps = np.diff(far)
    if name == "pixelate" and small:
        assert far[0] < far[2] < far[3] < far[4]  # 0.95 and 0.9 of 32 pixels are nearly the same
    else:
        assert (steps > 0).all(), far


FLAT = np.full((200, 200, 3), 0.5)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise(severity: int) -> None:
    noise = apply("gaussian_noise", severity, FLAT) - FLAT
    scale = (0.08, 0.12, 0.18)[severity - 1]
    assert noise.std() == pytest.approx(scale, rel=0.01) and abs(noise.mean()) < 0.002
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.02  # each channel its own


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_shot_noise(severity: int) -> None:
    photons = (60, 25, 12, 5, 3)[severity - 1]
    noisy = apply("shot_noise", severity, FLAT)
    assert noisy.mean() == pytest.approx(0.5, abs=0.005) and noisy.var() == pytest.approx(0.5 / photons, rel=0.03)
    assert np.allclose(noisy * photons, np.rint(noisy * photons))
    assert (apply("shot_noise", severity, np.zeros((4, 4, 1))) == 0).all()


def test_impulse_noise() -> None:
    noisy = apply("impulse_noise", 5, FLAT)
    assert (noisy == 0).mean() == pytest.approx(0.135, abs=0.004) and (noisy == 1).mean() == pytest.approx(
        0.135, abs=0.004
    )
    assert set(np.unique(noisy)) == {0.0, 0.5, 1.0}


def test_defocus_blur() -> None:
    x = photos()[0]
    line = np.arange(-8, 9)
    disk = (np.add.outer(line**2, line**2) <= 9).astype(float)
    edge = np.exp(-np.array([1, 0, 1]) / (2 * 0.1**2))  # all but nothing beside the middle
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(edge, edge) / edge.sum() ** 2, mode="mirror")
    expected = np.stack([ndimage.correlate(x[..., c], kernel, mode="mirror") for c in range(3)], axis=-1)
    assert np.allclose(apply("defocus_blur", 1, x), expected, atol=1e-12)
    assert disk.sum() == 29


def test_glass_blur() -> None:
    x = photos()[0][:40, :50]
    random = np.random.RandomState(0)
    smooth = np.stack([ndimage.gaussian_filter(x[..., c], 0.9, mode="nearest") for c in range(3)], axis=-1)
    work = (smooth * 255).astype(np.uint8).astype(float) / 255
    for row in range(40 - 2, 2, -1):
        for column in range(50 - 2, 2, -1):
            right, down = random.randint(-2, 2, size=2)
            work[row, column] = work[row + down, column + right]
    expected = np.stack([ndimage.gaussian_filter(work[..., c], 0.9, mode="nearest") for c in range(3)], axis=-1)
    assert np.allclose(apply("glass_blur", 2, x), expected, atol=1e-9)


def test_zoom_blur() -> None:
    x = photos()[0][:96, :96]
    total = x.copy()
    factors = [1 + 0.03 * i for i in range(11)]  # 1.00 .. 1.30
    for factor in factors:
        taken = int(np.ceil(96 / factor))
        start = (96 - taken) // 2
        large = ndimage.zoom(x[start : start + taken, start : start + taken], (factor, factor, 1), order=1)
        trim = (large.shape[0] - 96) // 2
        total += large[trim : trim + 96, trim : trim + 96]
    assert np.allclose(apply("zoom_blur", 5, x), total / 12, atol=1e-9)


def test_brightness_is_the_value_of_hsv() -> None:
    x = np.random.RandomState(0).randint(0, 256, size=(6, 6, 3)) / 255
    x[0, 0] = 0
    found = apply("brightness", 2, x)
    for i in np.ndindex(6, 6):
        hue, saturation, value = colorsys.rgb_to_hsv(*x[i])
        assert np.allclose(found[i], colorsys.hsv_to_rgb(hue, saturation, min(value + 0.2, 1)), atol=1e-12)
    assert np.allclose(apply("brightness", 5, np.array([[[0.0], [0.25], [0.75]]])), [[[0.5], [0.75], [1.0]]])


def test_contrast() -> None:
    x = np.array([[[0.0, 0.2], [1.0, 0.4]]])
    assert np.allclose(apply("contrast", 1, x), [[[0.3, 0.26], [0.7, 0.34]]])


def test_pixelate() -> None:
    x = np.arange(16).reshape(4, 4, 1) * 17 / 255
    found = apply("pixelate", 2, x)  # half the side: means of 2x2, 42.5 -> 42 or 43
    assert np.allclose(np.unique(np.rint(found * 255)), [43, 77, 179, 213], atol=1)
    assert (found[0, 0] == found[1, 1]).all() and (found[0, 0] != found[0, 2]).all()
    assert apply("pixelate", 5, np.full((1, 2, 3), 0.4)).shape == (1, 2, 3)


def test_jpeg_compression() -> None:
    import io

    image = to_image(photos()[0])
    file = io.BytesIO()
    image.save(file, "JPEG", quality=10)
    assert np.array_equal(apply("jpeg_compression", 4, to_pixels(image)), to_pixels(Image.open(file)))


def test_fog() -> None:
    found = apply("fog", 1, FLAT)
    # (x + 1.5 * plasma) * x / (x + 1.5), plasma from 0 to 1
    assert found.min() >= 0.5 * 0.25 - 1e-9 and found.max() <= 0.5 + 1e-9 and found.std() > 0.02
    assert (apply("fog", 1, np.zeros((8, 8, 1))) == 0).all()


def test_elastic_keeps_the_mean_and_moves() -> None:
    x = photos()[0]
    found = apply("elastic_transform", 4, x)
    assert found.min() >= x.min() and found.max() <= x.max() and np.abs(found - x).mean() > 0.01
    assert found.mean() == pytest.approx(x.mean(), abs=0.05)


@pytest.mark.parametrize(("name", "size", "channels"), spread(CORRUPTIONS, [(1, 1), (2, 5), (9, 4)], [1, 3]))
def test_any_size(name: str, size: tuple[int, int], channels: int) -> None:
    x = np.random.RandomState(0).uniform(size=(*size, channels))
    for severity in (1, 5):
        found = apply(name, severity, x, small=True)
        assert found.shape == x.shape and np.isfinite(found).all()


def test_conversion_rounds() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(np.asarray(to_image(to_pixels(Image.fromarray(values)))), values)
    assert np.asarray(to_image(np.array([[[-1.0], [2.0], [0.6 / 255]]]))).tolist() == [[0, 255, 1]]


# --- data sets --------------------------------------------------------------------------------------------------------


def pixels(data: CorruptedImages, workers: int = 0) -> torch.Tensor:
    found = batches(
        data, lambda images: torch.stack([torch.from_numpy(np.array(i)) for i in images]), 3, workers=workers
    )
    return torch.cat([batch.inputs for batch in found])


# One draws a number for each pixel, one a place for each, one a direction, and one nothing.
@pytest.mark.parametrize("name", ["gaussian_noise", *marked_long(["glass_blur", "motion_blur", "contrast"])])
def test_the_same_whatever_the_workers_and_the_order(name: str) -> None:
    data = CorruptedImages(open_data("builtin:digits/test", limit=7), name, 3)
    once = pixels(data)
    assert once.dtype == torch.uint8 and torch.equal(once, pixels(data, workers=2))
    assert torch.equal(torch.from_numpy(np.array(data[5])), once[5])
    whole = CorruptedImages(open_data("builtin:digits/test"), name, 3)
    assert np.array_equal(np.array(whole[5]), np.array(data[5]))


def test_every_sample_its_own_noise() -> None:
    clean = open_data("builtin:photos", limit=2)
    noise = [np.array(CorruptedImages(clean, "gaussian_noise", 5)[i], int) - np.array(clean[i], int) for i in (0, 1)]
    assert not np.array_equal(noise[0], noise[1])


def test_attributes_and_fingerprints() -> None:
    clean = open_data("builtin:digits/test", limit=5)
    sets = [CorruptedImages(clean, name, severity) for name in ("fog", "contrast") for severity in (1, 4)]
    data = sets[1]
    assert data.spec == "builtin:digits/test?corruption=fog&severity=4" and data.ids == clean.ids
    assert data.labels is clean.labels and data.label_names == clean.label_names and data[0].mode == "L"
    prints = {one.fingerprint() for one in sets} | {clean.fingerprint()}
    assert len(prints) == 5
    assert data.fingerprint() == CorruptedImages(clean, "fog", 4).fingerprint()


def test_modes_and_sizes(tmp_path: Path) -> None:
    sizes = {"big": (600, 300), "side": (256, 300), "small": (63, 200)}
    for name, size in sizes.items():
        Image.new("RGB", size, (10, 200, 90)).save(tmp_path / f"{name}.png")
    Image.new("P", (70, 70)).save(tmp_path / "palette.png")
    Image.fromarray(np.full((70, 70), 0x8000, np.uint16)).save(tmp_path / "sixteen.png")
    Image.new("LA", (70, 70), (9, 3)).save(tmp_path / "alpha.png")
    data = CorruptedImages(open_data(str(tmp_path)), "contrast", 5)
    found = {name.removesuffix(".png"): data[i] for i, name in enumerate(data.ids)}
    assert {name: found[name].size for name in sizes} == {"big": (512, 256), "side": (256, 300), "small": (63, 200)}
    modes = {name: image.mode for name, image in found.items()}
    assert modes == dict.fromkeys((*sizes, "palette"), "RGB") | dict.fromkeys(("sixteen", "alpha"), "L")
    assert np.asarray(found["sixteen"]).max() == 0x80


def test_constants_by_size(tmp_path: Path) -> None:
    for side in (63, 64):
        Image.new("L", (side, 200), 128).save(tmp_path / f"{side}.png")
    data = CorruptedImages(open_data(str(tmp_path)), "gaussian_noise", 1)
    assert np.asarray(data[0], float).std() == pytest.approx(0.04 * 255, rel=0.05)
    assert np.asarray(data[1], float).std() == pytest.approx(0.08 * 255, rel=0.05)


WRONG = {
    "builtin:photos?corruption=fog": "go together",
    "builtin:photos?severity=3": "go together",
    "builtin:photos?corruption=fogg&severity=3": "unknown corruption 'fogg'; did you mean fog?",
    "builtin:photos?corruption=fog&severity=6": "severity 6 is not in 1 .. 5",
    "builtin:photos?corruption=fog&severity=x": "severity x is not in 1 .. 5",
    "builtin:photos?corruption=frost&severity=3": "unknown corruption 'frost'",
    "builtin:photos?corruption=fog&severity=3&photographs=x": "unknown setting 'photographs'",
    "builtin:photos?corruption=fog&severity=3&root=x": "unknown setting 'root'",
}


@pytest.mark.parametrize(("spec", "message"), WRONG.items())
def test_wrong_specs(spec: str, message: str) -> None:
    error = refused(UsageError, open_data, spec)
    assert message in error.message


def test_texts_have_no_corruptions(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="fog is for images"):
        open_data(f"{tmp_path}/a.jsonl?corruption=fog&severity=3")
