"""Every reader on its corpus, and on a few broken files; ``make fuzz`` draws many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Finding, Watch, check, prepare, search
from tests.fuzz.readers import CORPUS, READERS, ways
from tests.spread import marked_long

FILES = 8
SLOW = ("state-dict", "hf-weights")
"""A command builds a whole ViT-B; the weights stand unbroken beside the other parts of a BERT."""


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fault(15, 57)
@pytest.mark.parametrize("name", [*marked_long(SLOW), *(name for name in READERS if name not in SLOW)])
def test_its_corpus(name: str, folder: Path, watch: Watch) -> None:
    for data in prepare(name, folder):
        for way in range(ways(READERS[name])):
            check(READERS[name], data, way, watch)


@pytest.mark.fault(15, 39)
@pytest.mark.parametrize("name", READERS)
def test_broken_files(name: str, folder: Path, watch: Watch) -> None:
    search(name, range(FILES), prepare(name, folder), watch)


def test_every_reader_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*READERS, "beside"}


@pytest.mark.parametrize("wrong", ["read", "write", "error", "message"])
def test_what_is_noticed(wrong: str, folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Path.home() / ".hydractl-fuzz"

    def read(*_: object) -> str | None:
        if wrong == "read":
            Path("/etc/hostname").read_bytes()
        elif wrong == "write":
            elsewhere.write_bytes(b"")
            elsewhere.unlink()
        elif wrong == "error":
            raise ZeroDivisionError
        return "exit 1" if wrong == "message" else None

    monkeypatch.setattr("tests.fuzz.campaign.read", read)
    with pytest.raises(Finding):
        check(READERS["npz"], b"", 0, watch)
