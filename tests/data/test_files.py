"""Class folders, image lists, and the files in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.data import open_data
from hydractl.data.base import left_out_warnings
from hydractl.data.files import IMAGE_SUFFIXES
from hydractl.errors import InputError, UsageError
from tests.image_data import png_bomb
from tests.running import refused


def draw(path: Path, value: int = 0, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for name in ("dog/b.png", "dog/a.JPG", "cat/10.png", "cat/9.png", "cat/deep er/x.png"):
        draw(root / name, value=len(name))
    (root / "cat/notes.txt").write_text("no image")
    (root / ".hidden").mkdir()
    (root / "cat/._9.png").write_text("no image")
    return root


def test_class_folders(pets: Path) -> None:
    data = open_data(str(pets))
    assert data.ids == ["cat/10.png", "cat/9.png", "cat/deep er/x.png", "dog/a.JPG", "dog/b.png"]
    assert data.label_names == ["cat", "dog"] and data.labels.tolist() == [0, 0, 0, 1, 1]
    mapped = open_data(str(pets), labels=["dog", "emu", "cat"], limit=4)
    assert mapped.labels.tolist() == [2, 2, 0, 0]
    assert data[3].size == (5, 4)


def test_folder_of_images_has_no_labels(tmp_path: Path) -> None:
    for name in ("b.png", "a.webp", "C.PNG"):
        draw(tmp_path / name)
    data = open_data(str(tmp_path))
    assert data.ids == ["C.PNG", "a.webp", "b.png"] and data.labels is None and data.label_names is None


def test_folder_problems_are_all_listed(pets: Path) -> None:
    (pets / "empty").mkdir()
    draw(pets / "stray.png")
    error = refused(InputError, open_data, str(pets))
    assert error.problems == [
        "class folder 'empty' has no images",
        "images beside the class folders: 1, the first is stray.png",
    ]


OTHER_ENDINGS = {".jfif": "JPEG", ".jpe": "JPEG", ".JPE": "JPEG", ".mpo": "MPO", ".apng": "PNG", ".avif": "AVIF"}


@pytest.mark.fault(99)
@pytest.mark.parametrize("ending", OTHER_ENDINGS)
def test_images_with_less_common_endings(ending: str, tmp_path: Path) -> None:
    kind = OTHER_ENDINGS[ending]
    if kind not in Image.SAVE and (Image.init() or kind not in Image.SAVE):
        pytest.skip(f"this Pillow has no {kind}")
    Image.new("RGB", (8, 8), (200, 200, 200)).save(tmp_path / f"a{ending}", kind)
    data = open_data(str(tmp_path))
    assert data.ids == [f"a{ending}"] and not data.left_out
    assert abs(int(np.asarray(data[0]).mean()) - 200) < 3


@pytest.mark.fault(99)
def test_every_ending_of_pillow_for_what_is_read_counts() -> None:
    """``.dib`` is a format of its own, ``.avifs`` a film."""
    Image.init()
    formats = ("PNG", "JPEG", "MPO", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")
    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in formats}
    assert endings - {".avifs"} <= set(IMAGE_SUFFIXES)


@pytest.mark.fault(99)
def test_what_is_left_out_is_counted(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cat/a.jp2", "cat/deep er/b.JP2", "dog/c.heic", "dog/README", "e.\x1b[31m"):
        (pets / name).write_bytes(b"x")
    data = open_data(str(pets))
    assert len(data) == 5
    counts = {".jp2": 2, ".txt": 1, ".heic": 1, "without an ending": 1, ".\\x1b[31m": 1}
    assert data.left_out == counts
    sentence = (
        f"--data {pets}: 6 files are left out, as no ending of an image that is read: "
        "2 .jp2, 1 .\\x1b[31m, 1 .heic, 1 .txt, 1 without an ending"
    )
    assert left_out_warnings(data) == [sentence]
    # A part of a set, and what is made of it, come from the same folder.
    for setting in ("take=2", "corruption=fog&severity=1", "ood=rotate"):
        assert open_data(f"{pets}?{setting}").left_out == counts
    assert left_out_warnings(open_data("builtin:digits/val?take=2")) == []
    (pets / "none").mkdir()
    (pets / "none/a.jp2").write_bytes(b"x")
    with pytest.raises(InputError, match="no images in the folder, but 1 .jp2"):
        open_data(str(pets / "none"))


@pytest.mark.fault(25)
def test_empty_folder_and_settings(tmp_path: Path, pets: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no images in the folder"):
        open_data(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="unknown setting 'root'"):
        open_data(f"{pets}?root=x")


def test_circle_of_links_ends(pets: Path) -> None:
    (pets / "cat/again").symlink_to(pets / "cat", target_is_directory=True)
    assert open_data(str(pets)).ids == ["cat/10.png", "cat/9.png", "cat/deep er/x.png", "dog/a.JPG", "dog/b.png"]


@pytest.mark.fault(35, 45)
def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    try:
        os.makedirs(os.fsencode(tmp_path) + b"/odd/c\xff")
    except OSError:
        pytest.skip("this file system wants UTF-8")
    draw(tmp_path / "x.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/odd/c\xff/x.png"))
    data = open_data(str(tmp_path / "odd"))
    assert data.ids == ["c\\xff/x.png"] and data.label_names == ["c\\xff"]
    assert data[0].size == (5, 4)


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    ("ending", "modes"),
    [
        ("tif", ["L", "RGB", "RGBA", "P", "CMYK", "1", "LA"]),
        ("png", ["RGB", "P", "LA"]),
        ("jpg", ["RGB", "L", "CMYK"]),
        ("gif", ["RGB", "P"]),
        ("webp", ["RGB", "RGBA"]),
        ("bmp", ["RGB"]),
    ],
)
def test_every_mode_loads_fully(tmp_path: Path, ending: str, modes: list[str]) -> None:
    path = tmp_path / f"i.{ending}"
    for mode in modes:
        Image.new(mode, (3, 2)).save(path)
        expected = Image.open(path)
        loaded = open_data(str(tmp_path))[0]
        path.unlink()  # nothing may be read later
        assert loaded.mode == expected.mode, mode
        assert np.asarray(loaded).shape[:2] == (2, 3), mode
        assert loaded.convert("RGB").size == (3, 2), mode


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (2, 2), value) for value in (7, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(open_data(str(tmp_path))[0].convert("L")).tolist() == [[7, 7], [7, 7]]


def damaged(kind: str, path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    whole = path.read_bytes()
    content = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "header only": whole[:20],
        "text": b"<html>not found</html>",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "bomb": png_bomb(40_000),
    }
    path.write_bytes(content[kind])


KINDS = ["empty", "truncated", "header only", "text", "postscript", "bomb"]


@pytest.mark.fault(26)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_damaged_file_is_named(pets: Path, kind: str, ending: str) -> None:
    damaged(kind, pets / f"cat/bad.{ending}")
    data = open_data(str(pets))
    with pytest.raises(InputError) as error:
        data[data.ids.index(f"cat/bad.{ending}")]
    assert f"cannot read image {pets}/cat/bad.{ending}: " in error.value.message and "\n" not in error.value.message
    assert len(error.value.message.split(": ", 1)[1]) > 10


def test_folder_fingerprint(pets: Path) -> None:
    before = open_data(str(pets)).fingerprint()
    assert open_data(str(pets)).fingerprint() == before
    assert open_data(str(pets), labels=["dog", "cat"]).fingerprint() != before
    draw(pets / "dog/b.png", value=99)
    assert open_data(str(pets)).fingerprint() != before


# --- image lists ---


def write_list(root: Path, *lines: str, **options: Any) -> str:
    (root / "list.txt").write_bytes("\n".join(lines).encode(**options))
    return str(root / "list.txt")


def test_image_list(pets: Path) -> None:
    spec = write_list(pets, "dog/b.png 3\r", "", "cat/deep er/x.png 0", "cat/9.png   7 ", "dog/b.png 3", "")
    data = open_data(spec)
    assert data.ids == ["dog/b.png", "cat/deep er/x.png", "cat/9.png", "dog/b.png#2"]
    assert data.labels.tolist() == [3, 0, 7, 3]
    assert data[1].size == (5, 4)


def test_image_list_with_root_and_bom(tmp_path: Path, pets: Path) -> None:
    spec = write_list(tmp_path, "9.png 1", "10.png 0", encoding="utf-8-sig")
    data = open_data(f"{spec}?root={pets / 'cat'}", limit=1)
    assert data.ids == ["9.png"] and data[0].size == (5, 4)
    with pytest.raises(InputError, match="2 of 2 listed images do not exist under") as error:
        open_data(spec)
    assert error.value.hint and "?root=" in error.value.hint


def test_image_list_without_labels_or_with_names(pets: Path) -> None:
    assert open_data(write_list(pets, "dog/b.png", "cat/deep er/x.png")).labels is None
    spec = write_list(pets, "dog/b.png dog", "cat/9.png cat", "cat/deep er/x.png\tbig cat")
    data = open_data(spec, limit=2)
    assert data.label_names == ["big cat", "cat", "dog"] and data.labels.tolist() == [2, 1]
    with pytest.raises(InputError, match="the model has no class names"):
        open_data(spec, labels=[])


def test_image_list_label_problems(pets: Path) -> None:
    spec = write_list(pets, "dog/b.png 1", "cat/9.png cat", "cat/10.png")
    error = refused(InputError, open_data, spec)
    assert error.problems == [
        "no label for sample cat/10.png",
        "label 'cat' of sample cat/9.png is a name, others are numbers",
    ]
    assert open_data(spec, ignore_labels=True).labels is None
    spec = write_list(pets, "dog/b.png -1")
    with pytest.raises(InputError, match="label -1 of sample dog/b.png is negative"):
        open_data(spec)
    assert open_data(spec, ignore_labels=True, labels=["a"]).labels is None


def test_image_list_missing_files_are_all_listed(pets: Path) -> None:
    spec = write_list(pets, "dog/b.png 1", "cat/8.png 1", "dog 1")
    with pytest.raises(InputError, match="2 of 3 listed images do not exist") as error:
        open_data(spec)
    assert error.value.problems == ["line 2: no file 'cat/8.png'", "line 3: no file 'dog'"]
    assert len(open_data(spec, limit=1)) == 1


def test_image_list_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the image list is empty"):
        open_data(write_list(tmp_path, "", "  "))
    (tmp_path / "l.txt").write_bytes(b"a.png 1\nb\xff.png 1\n")
    with pytest.raises(InputError, match="line 2 is not UTF-8 text"):
        open_data(str(tmp_path / "l.txt"))
    with pytest.raises(UsageError, match="known|unknown setting 'x'"):
        open_data(f"{tmp_path / 'l.txt'}?x=1")
