"""docs/data.md says what the code does: every SPEC can be read, and suites are those of the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.data.corrupted import take_corruption
from hydractl.data.corruptions import TABLE
from hydractl.expressions.data_sets import DataSpec
from tests.image_data import first_pixels, png, shard

TEXT = (Path(__file__).resolve().parents[2] / "docs/data.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    rows = re.search(rf"^\| {heading} \|.*\n\|[-|:]+\n((?:\|.*\n)+)", TEXT, flags=re.MULTILINE)
    cells = []
    for row in rows[1].splitlines():
        cells.append(list(map(str.strip, row.strip("|").split("|"))))
    return cells


def by_name(heading: str) -> dict[str, list[str]]:
    """The further cells of a table by the name in the first one."""
    return {name.strip("`"): cells for name, *cells in table(heading)}


def test_every_spec_can_be_read() -> None:
    kinds = set()
    for spec in by_name("SPEC"):
        clean, _ = take_corruption(DataSpec.of_option("--data", spec))
        kinds.add(clean.kind)
    assert kinds == {"path", "npz", "text", "torchvision", "hf", "builtin", "captions"}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_corruption_is_named() -> None:
    assert [name for name in TABLE if f"`{name}`" not in TEXT] == []


def test_shards_become_a_file_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="pip install 'hydractl[hub]'")
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        members = {}
        for image in (2 * number, 2 * number + 1):
            members |= {f"{image}.png": png(image), f"{image}.cls": str(3 - image).encode()}
        shard(f"shards/val-{number}.tar", members)
    _, _, section = TEXT.partition("### WebDataset shards")
    snippet, _, _ = section.partition("```python\n")[2].partition("```")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    exec(snippet, {})
    data = open_data("val.parquet", need_labels=True)
    assert data.labels.tolist() == [3, 2, 1, 0]
    assert first_pixels(data) == [0, 1, 2, 3]
