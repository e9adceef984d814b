"""Images in Parquet files: columns, labels and their names, groups of rows, and damaged rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hydractl.data import open_data
from hydractl.errors import InputError
from tests.image_data import first_pixels, png

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def write(path: Path, columns: dict[str, Any], names: list[str] | None = None, group: int = 2) -> str:
    table = pyarrow.table(columns)
    if names is not None:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path, row_group_size=group)
    return str(path)


def images(*values: int | bytes | None) -> Any:
    """A column of images; of an int one of this value."""
    cells = []
    for i, value in enumerate(values):
        content = png(value) if isinstance(value, int) else value
        cells.append({"bytes": content, "path": f"{i}.png"})
    return pyarrow.array(cells, IMAGE)


def test_images_and_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": images(*range(7)), "label": [0, 1, 0, 1, 1, 0, 0]}, ["cat", "dog"])
    data = open_data(path, labels=["dog", "cat"], need_labels=True, reads={"vit": "image"})
    assert data.kind == "image"
    assert data.ids == [f"a.parquet#{i}" for i in range(7)]
    assert data.labels.tolist() == [1, 0, 1, 0, 0, 1, 1]
    assert first_pixels(data) == first_pixels(data, workers=2) == list(range(7))
    assert [np.array(data[i])[0, 0] for i in (6, 0, 3, -1)] == [6, 0, 3, 6]
    limited = open_data(path, limit=3)
    assert len(limited) == 3
    assert limited.label_names == ["cat", "dog"]
    assert limited.sample_fingerprints() == data.sample_fingerprints()[:3]


def test_fingerprints_are_those_of_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"img": images(1, 2)})
    (tmp_path / "files").mkdir()
    for i in (1, 2):
        (tmp_path / f"files/{i}.png").write_bytes(png(i))
    assert open_data(path).sample_fingerprints() == open_data(str(tmp_path / "files")).sample_fingerprints()


def test_plain_bytes_and_names_as_labels(tmp_path: Path) -> None:
    cells = pyarrow.array([png(1), png(2)], pyarrow.large_binary())
    path = write(tmp_path / "a.parquet", {"image": cells, "kind": ["b", "a"]})
    data = open_data(f"{path}?label=kind")
    assert first_pixels(data) == [1, 2]
    assert data.label_names == ["a", "b"]
    assert data.labels.tolist() == [1, 0]


def test_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"left": images(1), "right": images(2), "label": [1.5]})
    with pytest.raises(InputError, match="'left' and 'right' may both be the image") as error:
        open_data(path, ignore_labels=True)
    assert error.value.hint == "say which column with ?image=NAME"
    assert first_pixels(open_data(f"{path}?image=right", ignore_labels=True)) == [2]
    with pytest.raises(InputError, match="labels cannot be used") as error:
        open_data(f"{path}?image=left")
    assert error.value.problems == ["label 1.5 of sample a.parquet#0 is neither an integer nor a name"]
    with pytest.raises(InputError, match="no images in .image=label: they are in left, right"):
        open_data(f"{path}?image=label")
    with pytest.raises(InputError, match="no column for .label=x: it has 'left', 'right', 'label'"):
        open_data(f"{path}?image=left&label=x")


def test_a_limit_of_a_file_sorted_by_class_takes_some_of_each(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": images(*range(8)), "label": [0] * 4 + [1] * 4})
    data = open_data(path, limit=4)
    assert sorted(data.labels.tolist()) == [0, 0, 1, 1]
    assert first_pixels(data) == [int(name.partition("#")[2]) for name in data.ids]


def test_labels_that_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": images(1, 2, 3), "label": [1, None, None]})
    with pytest.raises(InputError) as error:
        open_data(path)
    assert error.value.problems == ["no label for sample a.parquet#1, and for 1 more"]
    path = write(tmp_path / "b.parquet", {"image": images(1), "y": [1]})
    with pytest.raises(InputError, match="no label") as error:
        open_data(path, need_labels=True)
    assert error.value.hint is not None and "image, y" in error.value.hint


def test_bad_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": images(0, None, b"", png(3)[:40], 4)})
    with pytest.raises(InputError, match=r"cannot read image a\.parquet#1: its image is '1\.png', outside of the set"):
        first_pixels(open_data(path))
    data = open_data(path, on_bad="skip")
    assert first_pixels(data, workers=2) == [0, 4]
    assert sorted(data.skipped) == [1, 2, 3]


def test_a_file_of_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images in the file"):
        open_data(write(tmp_path / "a.parquet", {"image": images()}))


def test_a_group_of_rows_that_cannot_be_read(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.parquet", {"image": images(1, 2, 3)}))
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # the first group of rows
    path.write_bytes(content)
    data = open_data(str(path), on_bad="skip")
    assert first_pixels(data) == [3]
    assert sorted(data.skipped) == [0, 1]


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot read the file"):
        open_data(str(path))
