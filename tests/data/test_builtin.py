"""The sets that need no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hydractl.data import open_data
from hydractl.data.builtin import LETTERS, SYMBOLS
from hydractl.data.docstrings import docstrings
from hydractl.errors import InputError, UsageError
from tests.running import refused


def pixels(spec: str) -> np.ndarray:
    data = open_data(spec)
    return np.stack([np.asarray(data[i]) for i in range(len(data))])


def test_digits_are_split_without_overlap() -> None:
    parts = {split: open_data(f"builtin:digits/{split}") for split in ("train", "val", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"train": 1000, "val": 300, "test": 497}
    fingerprints: set[str] = set()
    share_of_whole = np.bincount(load_digits().target) / 1797
    for part in parts.values():
        fingerprints.update(part.sample_fingerprints())
        assert part.label_names == [str(i) for i in range(10)]
        share = np.bincount(part.labels) / len(part)
        assert np.abs(share - share_of_whole).max() < 0.004
    assert len(fingerprints) == 1797
    assert parts["val"].ids[:2] == ["builtin:digits/val#0", "builtin:digits/val#1"]
    # The first few hold all classes, so that --limit makes sense.
    first = open_data("builtin:digits/test", limit=60)
    assert len(set(first.labels.tolist())) == 10


def test_digits_are_scikit_learns() -> None:
    source = load_digits()
    label_of_image = {}
    for image, label in zip(source.images, source.target, strict=True):
        grey = np.rint(image * 255 / 16).astype(np.uint8)
        label_of_image[grey.tobytes()] = label
    data = open_data("builtin:digits/val", labels=[str(9 - i) for i in range(10)])
    for i, index in enumerate(data.labels.tolist()):
        assert index == 9 - label_of_image[data[i].tobytes()]


@pytest.mark.parametrize(("name", "count"), [("symbols", 374), ("letters", 350), ("photos", 400)])
def test_ood_sets(name: str, count: int) -> None:
    data = open_data(f"builtin:{name}")
    assert len(data) == count
    assert data.labels is None
    assert data.ids[-1] == f"builtin:{name}#{count - 1}"
    images = pixels(f"builtin:{name}")
    assert images.shape == (count, 8, 8)
    assert images.dtype == np.uint8
    assert len({image.tobytes() for image in images}) == count
    assert images.min() == 0
    assert images.max() >= 250


@pytest.mark.parametrize("name", ["symbols", "letters"])
def test_glyphs_are_as_black_and_white_as_digits(name: str) -> None:
    glyphs = pixels(f"builtin:{name}")
    digits = pixels("builtin:digits/train")
    assert set(np.unique(glyphs)) <= set(np.unique(digits))  # the same 17 levels
    assert glyphs.mean() == pytest.approx(digits.mean(), abs=20)
    assert glyphs.std() == pytest.approx(digits.std(), abs=10)
    assert (glyphs.max(axis=(1, 2)) >= 100).all()


def test_no_character_is_there_twice_or_like_a_digit() -> None:
    assert len(set(LETTERS)) == len(LETTERS)
    assert len(set(SYMBOLS)) == len(SYMBOLS)
    assert not set(LETTERS + SYMBOLS) & set("0123456789OoDQIlZzSsBGbgq|!/")


@pytest.mark.long
def test_docstrings_are_a_thousand_sentences() -> None:
    data = open_data("builtin:docstrings", reads={"bert": "text"})
    texts = [data[index] for index in range(len(data))]
    assert data.labels is None
    assert data.ids[-1] == "builtin:docstrings#999"
    assert len(set(texts)) == len(texts) == 1000
    for text in texts:
        assert text[0].isupper()
        assert text.endswith(".")
        assert 5 <= len(text.split()) <= 40


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the place of the standard library's."""
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("sys.stdlib_module_names", frozenset({"spam", "_eggs", "compiled"}))
    docstrings.cache_clear()
    yield tmp_path
    docstrings.cache_clear()


SPAM = '''
"""Serve spam with everything.
It is not nice.

This is not said first."""
raise SystemExit("modules are read, not run")
class Spam:
    """spam is written in small letters here."""
    async def fry(self):
        """Fry it in a pan for a minute."""
    def again(self):
        """Fry it in a pan for a minute."""
    def short(self):
        """Fry it."""
    def signature(self):
        """Fry(egg, bacon, sausage and spam) -> breakfast"""
'''


def test_docstrings_are_first_paragraphs_of_public_modules(library: Path) -> None:
    (library / "spam.py").write_text(SPAM)
    (library / "_eggs.py").write_text('"""Nobody should read this sentence here."""')
    assert sorted(docstrings()) == ["Fry it in a pan for a minute.", "Serve spam with everything. It is not nice."]


def test_docstrings_need_the_source_of_the_standard_library(library: Path) -> None:
    with pytest.raises(InputError, match="no source files"):
        open_data("builtin:docstrings")


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("builtin:digit/test", "builtin:digits/train"),
        ("builtin:digits", "there are: builtin:digits/train, builtin:digits/val, builtin:digits/test"),
        ("builtin:digits/dev", "builtin:digits/val"),
        ("builtin:symbols/test", "there are: builtin:symbols"),
        ("builtin:photos?x=1", "no settings"),
    ],
)
def test_wrong_names(spec: str, hint: str) -> None:
    error = refused(UsageError, open_data, spec)
    assert error.hint and hint in error.hint
