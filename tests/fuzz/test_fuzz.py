"""Every reader on its corpus, and on a few broken files that hypothesis draws; ``make fuzz`` draws many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Finding, Watch, check, prepare, search
from tests.fuzz.readers import CORPUS, READERS

FILES = 12


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", READERS)
def test_its_corpus(name: str, folder: Path, watch: Watch) -> None:
    for data in prepare(name, folder):
        for way in range(len(READERS[name].commands) + bool(READERS[name].function)):
            check(READERS[name], data, way, watch)


@pytest.mark.parametrize("name", READERS)
def test_broken_files(name: str, folder: Path, watch: Watch) -> None:
    assert search(name, FILES, 1, watch) >= FILES


def test_every_reader_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*READERS, "beside"}


def test_what_is_noticed(folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file elsewhere that is read, one that is written, an internal error, an escape."""
    import tests.fuzz.campaign as campaign

    def opening(path: str, mode: str) -> None:
        with open(path, mode):
            pass

    elsewhere = str(Path.home() / ".hydractl-fuzz")
    for wrong in (lambda: opening("/etc/hostname", "r"), lambda: opening(elsewhere, "a"), lambda: 1 // 0):
        monkeypatch.setattr(campaign, "read", lambda *_: wrong())
        with pytest.raises(Finding):
            check(READERS["npz"], b"", 0, watch)
    monkeypatch.setattr(campaign, "read", lambda *_: "exit 1")
    with pytest.raises(Finding):
        check(READERS["npz"], b"", 0, watch)
    Path(elsewhere).unlink(missing_ok=True)
