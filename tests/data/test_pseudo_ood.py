"""OOD samples made of ID samples: what each kind keeps and changes, and that a sample is always made the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.pseudo_ood import PSEUDO_OOD_KINDS, PseudoOod
from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import entry, marked
from tests.running import refused

IMAGES = ("jigsaw", "mixture", "noise", "rotate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("ood")
    x = np.random.RandomState(0).randint(0, 256, (12, 10, 9, 3)).astype(np.uint8)  # sides that four does not divide
    np.savez(path / "x.npz", x=x, y=np.arange(12) % 3, classes=np.array(["a", "b", "c"]))
    rows = ["text,label"]
    pairs = []
    for i in range(6):
        rows.append(f"the film number {i} was made of nothing but hope,{i % 2}")
    for i in range(4):
        pairs.append(f'{{"text_a": "one {i} two three", "text_b": "four five {i}"}}')
    (path / "t.csv").write_text("\n".join(rows) + "\n")
    (path / "words.csv").write_text("text\nhope\nmm\nfilm\n")
    (path / "pairs.jsonl").write_text("\n".join(pairs) + "\n")
    return path


def pixels(dataset: Dataset) -> list[Any]:
    return [np.asarray(dataset[i]) for i in range(len(dataset))]


def opened(folder: Path, kind: str, name: str = "x.npz", **options: Any) -> tuple[Dataset, Dataset]:
    """The clean samples of a file, and the OOD samples of a kind made of them."""
    clean = open_data(str(folder / name))
    return clean, open_data(f"{folder / name}?ood={kind}", **options)


def made(folder: Path, kind: str, name: str = "x.npz", **options: Any) -> Dataset:
    """The OOD samples of a kind made of those of a file."""
    _, dataset = opened(folder, kind, name, **options)
    return dataset


def pairs_of_pixels(folder: Path, kind: str) -> list[tuple[Any, Any]]:
    """Each clean image, and what became of it."""
    clean, dataset = opened(folder, kind)
    return list(zip(pixels(clean), pixels(dataset), strict=True))


@pytest.mark.parametrize("kind", ["jigsaw", "noise", "rotate"])
def test_every_image_keeps_its_pixels_and_none_stays_as_it_is(folder: Path, kind: str) -> None:
    for clean, changed in pairs_of_pixels(folder, kind):
        assert sorted(map(tuple, clean.reshape(-1, 3))) == sorted(map(tuple, changed.reshape(-1, 3)))
        assert clean.shape != changed.shape or (clean != changed).any()


def tiles(image: Any) -> Counter[bytes]:
    """How often each tile of two by two pixels is there, in the part that four divides."""
    counts: Counter[bytes] = Counter()
    for row in range(0, 8, 2):
        for column in range(0, 8, 2):
            counts[image[row : row + 2, column : column + 2].tobytes()] += 1
    return counts


def test_a_jigsaw_moves_whole_tiles(folder: Path) -> None:
    for clean, changed in pairs_of_pixels(folder, "jigsaw"):
        assert tiles(clean) == tiles(changed)
        assert (clean[8:] == changed[8:]).all()
        assert (clean[:, 8:] == changed[:, 8:]).all()


def test_a_rotation_is_one_of_three(folder: Path) -> None:
    turns_seen = set()
    for clean, changed in pairs_of_pixels(folder, "rotate"):
        turns = [turns for turns in (1, 2, 3) if np.array_equal(np.rot90(clean, turns), changed)]
        assert len(turns) == 1
        turns_seen.update(turns)
    assert turns_seen == {1, 2, 3}


def test_a_mixture_is_the_mean_of_two_images_of_different_classes(folder: Path) -> None:
    clean, dataset = opened(folder, "mixture")
    images = np.stack(pixels(clean)).astype(float)
    for i, mixture in enumerate(pixels(dataset)):
        means = np.floor((images + images[i]) / 2 + 0.5)  # halves are rounded up
        (partner,) = np.flatnonzero((means == mixture).all(axis=(1, 2, 3)))
        assert clean.labels[partner] != clean.labels[i]


def test_a_second_image_of_another_size_and_mode_is_fitted() -> None:
    images = [Image.new("L", (5, 4), 100), Image.new("RGB", (8, 8), (200, 200, 200))]

    class Pair(Dataset):
        def _sample(self, i: int) -> Image.Image:
            return images[i]

    dataset = PseudoOod(Pair("pair", "--data pair", ["0", "1"]), "mixture")
    first, second = dataset[0], dataset[1]
    assert (first.mode, first.size) == ("L", (5, 4))
    assert (second.mode, second.size) == ("RGB", (8, 8))
    assert np.unique(np.asarray(first)).tolist() == [150]


def test_texts_are_shuffled(folder: Path) -> None:
    clean, shuffled = opened(folder, "shuffle", "t.csv")
    for text, changed in zip(clean, shuffled, strict=True):
        assert text != changed
        assert sorted(text.split()) == sorted(changed.split())


def test_texts_are_spliced(folder: Path) -> None:
    clean, spliced = opened(folder, "splice", "t.csv")
    words = [text.split() for text in clean]
    for i, text in enumerate(spliced):
        assert text.split()[:5] == words[i][:5]
        assert text.split()[5:] == words[0][5:]


def test_the_letters_of_a_single_word_are_shuffled(folder: Path) -> None:
    hope, mm, film = made(folder, "shuffle", "words.csv")
    assert sorted(hope) == sorted("hope") and hope != "hope"
    assert mm == "mm"  # which has no other order
    assert sorted(film) == sorted("film")


def test_a_pair_stays_a_pair(folder: Path) -> None:
    dataset = made(folder, "auto", "pairs.jsonl")
    lengths = []
    for first, second in dataset:
        lengths.append(len(first) + len(second))
    assert dataset.lengths() == lengths


def test_a_sample_is_made_by_its_id_and_the_seed(folder: Path) -> None:
    whole = made(folder, "jigsaw")
    few = made(folder, "jigsaw", limit=5)
    other_seed = made(folder, "jigsaw", seed=1)
    assert np.array_equal(pixels(few), pixels(whole)[:5])
    assert few.sample_fingerprints() == whole.sample_fingerprints()[:5]
    assert not set(other_seed.sample_fingerprints()) & set(whole.sample_fingerprints())
    assert whole.spec.endswith("x.npz?ood=jigsaw")
    assert whole.ids[0] == "x.npz#0?ood=jigsaw"
    assert whole.labels is None


def test_auto_has_as_many_of_each_kind(folder: Path) -> None:
    counts: Counter[str] = Counter()
    fingerprints_by_kind = {kind: made(folder, kind).sample_fingerprints() for kind in IMAGES}
    for i, fingerprint in enumerate(made(folder, "auto").sample_fingerprints()):
        kinds = [kind for kind in IMAGES if fingerprints_by_kind[kind][i] == fingerprint]
        assert len(kinds) == 1
        counts.update(kinds)
    assert counts == dict.fromkeys(IMAGES, 3)
    assert len(PSEUDO_OOD_KINDS) == len(IMAGES) + 2


def test_the_leak_guard_tells_both_apart_and_knows_both(folder: Path) -> None:
    clean, dataset = opened(folder, "auto")
    assert not marked([entry("extract-circuit", "ood", dataset)], clean).any()
    both = [entry("extract-circuit", "ood", origin) for origin in dataset.origins()]
    assert marked(both, clean).all()
    assert marked(both, dataset).all()


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("x.npz?ood=shuffle", {}, "holds images, of which ?ood=shuffle makes no OOD samples"),
        ("t.csv?ood=jigsaw", {}, "for them there are: shuffle, splice, auto"),
        ("x.npz?ood=jig", {}, "of which ?ood=jig makes no OOD samples"),
        ("x.npz?ood=auto", {"limit": 1}, "needs two samples"),
        ("x.npz?ood=auto", {"need_labels": True}, "OOD samples have no labels"),
    ],
)
def test_refusals(folder: Path, spec: str, options: dict[str, Any], message: str) -> None:
    caught = refused((InputError, UsageError), open_data, str(folder / spec), **options)
    assert message in f"{caught.message} {caught.hint}"
