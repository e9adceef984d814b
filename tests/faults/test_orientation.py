"""Images that say by EXIF how they are to be turned: what each library does with its own models is done, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

import hydractl
from hydractl.data import batches, open_data
from hydractl.data.base import orientation_warnings
from hydractl.errors import UsageError
from hydractl.families.pixels import is_turned, upright
from tests.image_data import stacked
from tests.pico import published
from tests.running import answer, run

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
TIMM = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=2"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def photo(path: str, orientation: int | None, kind: str = "PNG") -> Image.Image:
    """An image in a file, with this EXIF orientation, and the same image as Pillow opens it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {}
    if orientation is not None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        settings["exif"] = exif
    Image.fromarray(PIXELS).save(path, kind, **settings)
    return Image.open(path)


@pytest.fixture
def photos() -> str:
    for number in range(6):
        photo(f"set/{'ab'[number % 2]}/{number}.png", 6 if number < 2 else None)
    return "set"


@pytest.mark.fault(97)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", [None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_images_are_turned_as_pillow_turns_them(kind: str, orientation: int | None) -> None:
    image = photo("a.x", orientation, kind)
    assert is_turned(image) == (orientation in range(2, 9))
    expected = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(np.asarray(upright(image)), expected)
    assert not is_turned(upright(image))


@pytest.mark.fault(97)
@pytest.mark.parametrize(
    "content", [b"", b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"]
)
def test_damaged_exif_says_nothing(content: bytes) -> None:
    Image.fromarray(PIXELS).save("a.jpg", exif=content)
    image = Image.open("a.jpg")
    assert not is_turned(image) and upright(image) is image


@pytest.mark.fault(97)
def test_each_library_sees_what_it_sees_by_itself(photos: str) -> None:
    stored = Image.open("set/a/0.png")
    turned = ImageOps.exif_transpose(stored)
    of_timm = hydractl.load(TIMM, device="cpu").preprocess
    assert torch.equal(of_timm([stored]), of_timm([Image.fromarray(PIXELS)]))
    of_transformers = hydractl.load(str(published("hf-vit", Path("vit"))), device="cpu").preprocess
    assert torch.equal(of_transformers([stored]), of_transformers([turned]))
    assert not torch.equal(of_transformers([stored]), of_transformers([Image.fromarray(PIXELS)]))


@pytest.mark.fault(97)
def test_a_setting_turns_them_for_all_models(photos: str) -> None:
    assert np.asarray(open_data(photos)[0]).shape == (16, 24, 3)
    data = open_data(f"{photos}?exif=1")
    assert np.array_equal(np.asarray(data[0]), np.asarray(ImageOps.exif_transpose(Image.open("set/a/0.png"))))
    assert not orientation_warnings(data) and data.fingerprint() != open_data(photos).fingerprint()
    assert np.asarray(open_data(f"{photos}?exif=1&take=1")[0]).shape == (24, 16, 3)
    assert open_data(f"{photos}?exif=0").fingerprint() == open_data(photos).fingerprint()
    for wrong in (f"{photos}?exif=yes", "builtin:digits/val?exif=1"):
        with pytest.raises(UsageError, match="exif"):
            open_data(wrong)


@pytest.mark.fault(97)
@pytest.mark.parametrize("workers", [0, 2])
def test_they_are_counted_while_they_are_read(workers: int, photos: str) -> None:
    data = open_data(f"{photos}?from=1")
    list(
        batches(
            data, lambda images: stacked([image.convert("L").resize((4, 4)) for image in images]), 2, workers=workers
        )
    )
    (warning,) = orientation_warnings(data)
    assert warning.startswith(f"--data {photos}?from=1: 1 image has an EXIF orientation")
    assert not orientation_warnings(open_data("builtin:digits/val"))


@pytest.mark.fault(97)
def test_sets_of_hugging_face_are_turned_as_it_turns_them(photos: str) -> None:
    datasets = pytest.importorskip("datasets")
    paths = ["set/a/0.png", "set/a/2.png"]
    table = datasets.Dataset.from_dict({"image": paths, "label": [0, 1]}).cast_column("image", datasets.Image())
    result = hydractl.evaluate(TIMM, test=table)
    assert not any("EXIF" in warning for warning in result.warnings)


@pytest.mark.fault(97, 99)
@pytest.mark.parametrize(
    "command",
    [
        *("eval MODEL --test set", "predict MODEL set -o p.jsonl", "score MODEL --method taylor --data set -o s.json"),
        "calibrate MODEL --val set --threshold id:0.5 --ood-score msp -o c.st",
        "finetune MODEL --train set --epochs 1 --batch-size 2 -o f.st",
        "extract-circuit MODEL --val set --ood-val builtin:digits/val?take=5 --budget 1 -o i.json",
        "prune MODEL --max-drop 0.9 --val set --method magnitude -o m.st",
    ],
)
def test_every_verb_says_so_and_what_is_left_out(command: str, photos: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(photos, "a/notes.txt").write_text("no image")
    words = command.replace("MODEL", TIMM).split()
    if words[0] != "finetune":
        words += ["--labels", "./set"]
    run(*words)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("set: 2 images have an EXIF orientation") == 1
    assert "1 file is left out, as no ending of an image that is read: 1 .txt" in said


@pytest.mark.fault(97)
def test_plain_photographs_give_no_warning() -> None:
    for number in range(4):
        photo(f"plain/{'ab'[number % 2]}/{number}.png", 1 if number else None)
    document = answer("eval", TIMM, "--test", "plain", "--labels", "./plain")
    assert not any("EXIF" in warning for warning in document.get("warnings", ()))
