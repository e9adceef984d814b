"""``on_bad="skip"``: what cannot be read is left out, counted and listed, and the others keep their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hydractl.data import batches, open_data
from hydractl.data.base import MOST_LISTED, UnreadableSample, report_skipped, skipped_document
from hydractl.data.corrupted import CorruptedImages
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.log import Log
from tests.image_data import png_bomb, stacked

BAD = {3: "truncated", 4: "empty", 7: "text", 8: "bomb", 9: "corrupt", 10: "gone", 11: "header only"}
GOOD = [i for i in range(14) if i not in BAD]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fourteen images in two classes of seven, half of them bad."""
    for i in range(14):
        class_folder = "a" if i < 7 else "b"
        path = tmp_path / class_folder / f"{i:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8), i).save(path)
        content = path.read_bytes()
        spoilt = {
            "truncated": content[:45],
            "empty": b"",
            "text": b"no image at all",
            "bomb": png_bomb(60_000),
            "corrupt": content.replace(b"IDAT", b"IDAX"),
            "header only": content[:8],
        }
        if i in BAD and BAD[i] != "gone":
            path.write_bytes(spoilt[BAD[i]])
    return tmp_path


def opened(folder: Path, **settings: Any) -> Any:
    data = open_data(str(folder), **settings)
    (folder / "b/10.png").unlink(missing_ok=True)  # after it was listed
    return data


@pytest.mark.fault(26)
@pytest.mark.parametrize(("size", "workers"), [(1, 0), (100, 0), (2, 2), (4, 2)])
def test_the_others_keep_their_places(folder: Path, size: int, workers: int) -> None:
    data = opened(folder, on_bad="skip", labels=["b", "a"])
    read = list(batches(data, stacked, size, workers=workers))
    indices = []
    for batch in read:
        assert 0 < len(batch.indices) <= size
        assert len(batch.inputs) == len(batch.indices)
        indices += batch.indices
    assert indices == GOOD
    assert torch.cat([batch.inputs for batch in read])[:, 0, 0].tolist() == GOOD
    labels = torch.cat([batch.labels for batch in read if batch.labels is not None])
    assert labels.tolist() == [int(i < 7) for i in GOOD]
    assert sorted(data.skipped) == list(BAD)
    assert data.skipped[4] == f"cannot read image {folder}/a/04.png: the file is empty (--data {folder})"
    assert "decompression bomb" in data.skipped[8]
    assert "No such file" in data.skipped[10]


@pytest.mark.fault(26)
@pytest.mark.parametrize("workers", [0, 2])
def test_without_it_the_first_is_an_error(folder: Path, workers: int) -> None:
    with pytest.raises(UnreadableSample, match=r"a/03\.png") as error:
        list(batches(opened(folder), stacked, 4, workers=workers))
    assert isinstance(error.value, InputError) and error.value.exit_code == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_in_an_order_of_the_callers(folder: Path, workers: int) -> None:
    data = opened(folder, on_bad="skip")
    read = list(batches(data, stacked, 2, workers=workers, indices=[8, 7, 13, 3, 3, 0, 13]))
    assert [batch.indices for batch in read] == [[13], [0], [13]]
    assert sorted(data.skipped) == [3, 7, 8]


def test_the_document(folder: Path) -> None:
    data = opened(folder, on_bad="skip")
    assert skipped_document(data) is None
    list(batches(data, stacked, 4))
    assert skipped_document(data) == {"n": 7, "ids": [data.ids[i] for i in BAD]}


def test_fingerprints_of_the_others_are_those_of_a_set_without_the_bad_ones(folder: Path) -> None:
    data = opened(folder, on_bad="skip")
    list(batches(data, stacked, 4))
    assert len(set(data.sample_fingerprints())) == 14
    for i in BAD:
        (folder / data.ids[i]).unlink(missing_ok=True)
    assert [data.sample_fingerprints()[i] for i in GOOD] == open_data(str(folder)).sample_fingerprints()


def test_all_bad(tmp_path: Path) -> None:
    for i in range(25):
        (tmp_path / f"{i:02}.png").write_bytes(b"")
    data = open_data(DataSpec.of_option("--ood x", str(tmp_path)), on_bad="skip")
    with pytest.raises(InputError, match="not one of the samples can be read") as error:
        list(batches(data, stacked, 4, workers=2))
    assert len(error.value.problems) == 25
    assert list(batches(data, stacked, 4, indices=[])) == []


def test_corrupted_images_of_a_set_with_bad_ones(folder: Path) -> None:
    clean = opened(folder, on_bad="skip")
    data = CorruptedImages(clean, "contrast", 1)
    indices = []
    for batch in batches(data, stacked, 4, workers=2):
        indices += batch.indices
    assert indices == GOOD
    assert sorted(data.skipped) == list(BAD)
    assert clean.skipped == {}


def test_other_errors_are_not_skipped(folder: Path) -> None:
    def broken(images: list[Any]) -> None:
        raise InputError("not of this image")

    with pytest.raises(InputError, match="not of this image"):
        list(batches(opened(folder, on_bad="skip"), broken, 4))


@pytest.mark.fault(26)
def test_the_report(folder: Path) -> None:
    class Heard(Log):
        def __init__(self) -> None:
            super().__init__()
            self.details: list[str] = []

        def detail(self, message: str) -> None:
            self.details.append(message)

    log = Heard()
    data = opened(folder, on_bad="skip")
    report_skipped(data, log)
    assert log.warnings == []
    list(batches(data, stacked, 4))
    report_skipped(data, log)
    assert log.warnings == [
        f"--data {folder}: 7 of 14 images are left out, as they cannot be read: "
        "a/03.png, a/04.png, b/07.png, b/08.png, b/09.png and 2 more"
    ]
    assert len(log.details) == 7
    assert log.details[0].startswith(f"skipped a/03.png: cannot read image {folder}/a/03.png")


def test_the_list_has_an_end() -> None:
    data = open_data("builtin:letters")
    data.ids = [str(i) for i in range(2000)]
    data.skipped = dict.fromkeys(range(1999, 500, -1), "why")
    assert skipped_document(data) == {"n": 1499, "ids": [str(i) for i in range(501, 501 + MOST_LISTED)]}
