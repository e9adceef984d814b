"""Files longer than any of their kind, sparse ones that take no room on a disk, are refused before they are read."""

from __future__ import annotations

import os
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.data.base import UnreadableSample
from hydractl.data.captions import read_captions
from hydractl.data.names import read_labels
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.reading import read_config
from hydractl.files.state_dict import StateDict
from hydractl.jsonio import MOST_BYTES, read_json_file, read_whole
from hydractl.model.source import open_source
from hydractl.verbs.info import describe
from tests.image_data import png

HUGE = 30 << 30
MOST_MEMORY = 400 << 20


def huge(path: Path, content: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(HUGE)
    return path


def images(folder: Path) -> None:
    (folder / "a.png").write_bytes(png(1))
    huge(folder / "b.png")
    data = open_data(str(folder))
    assert data[0].size
    data[1]


def shards(folder: Path) -> None:
    """A tar file with an image that is too long, which stands in it as it should."""
    image, caption = tarfile.TarInfo("1.png"), tarfile.TarInfo("1.txt")
    image.size, caption.size = MOST_BYTES + 512, 512
    path = folder / "a.tar"
    with path.open("wb") as file:
        file.write(image.tobuf())
        file.seek(image.size, os.SEEK_CUR)
        file.write(caption.tobuf() + b"a".ljust(512) + bytes(1024))
    dataset, _ = read_captions(DataSpec.of_option("--train", f"captions:{path}"), None)
    dataset[0]


def text(name: str) -> Callable[[Path], object]:
    return lambda folder: open_data(str(huge(folder / name)))


CASES: dict[str, Callable[[Path], object]] = {
    "image": images,
    "image of a shard": shards,
    "list of images": text("a.txt"),
    "csv": text("a.csv"),
    "csv with an open quote": lambda folder: open_data(str(huge(folder / "a.csv", b'text\n"'))),
    "tsv": text("a.tsv"),
    "jsonl": text("a.jsonl"),
    "parquet": text("a.parquet"),
    "npz": text("a.npz"),
    "labels": lambda folder: read_labels(str(huge(folder / "a.txt"))),
    "document": lambda folder: read_json_file(huge(folder / "a.mask.json")),
    "described document": lambda folder: describe(huge(folder / "a.mask.json", b"{")),
    "configuration": lambda folder: read_config(huge(folder / "config.json")),
    "checkpoint": lambda folder: open_source(str(huge(folder / "a.st"))),
    "state dict": lambda folder: StateDict(huge(folder / "a.pth")),
}


@pytest.mark.fault(93)
@pytest.mark.parametrize("case", CASES)
def test_a_file_of_zeros(case: str, tmp_path: Path) -> None:
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises((InputError, UnreadableSample)):
            CASES[case](tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY and time.process_time() - start < 20


@pytest.mark.fault(93)
def test_a_device_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydractl.jsonio.MOST_BYTES", 1 << 20)
    with pytest.raises(OSError, match="more than 1 MiB"):
        read_whole("/dev/zero")
    assert read_whole("/dev/null") == b""
