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
from hydractl.data.pseudo_ood import KINDS, PseudoOod
from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import entry, marked

IMAGES = ("jigsaw", "mixture", "noise", "rotate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("ood")
    x = np.random.RandomState(0).randint(0, 256, (12, 10, 9, 3)).astype(np.uint8)  # sides that four does not divide
    np.savez(path / "x.npz", x=x, y=np.arange(12) % 3, classes=np.array(["a", "b", "c"]))
    rows = [f"the film number {i} was made of nothing but hope" for i in range(6)]
    (path / "t.csv").write_text("text,label\n" + "".join(f"{row},{i % 2}\n" for i, row in enumerate(rows)))
    (path / "words.csv").write_text("text\nhope\nmm\nfilm\n")
    (path / "pairs.jsonl").write_text(
        "".join(f'{{"text_a": "one {i} two three", "text_b": "four five {i}"}}\n' for i in range(4))
    )
    return path


def pixels(dataset: Dataset) -> list[Any]:
    return [np.asarray(dataset[i]) for i in range(len(dataset))]


def made(folder: Path, kind: str, name: str = "x.npz", **options: Any) -> tuple[Dataset, Dataset]:
    clean = open_data(str(folder / name))
    return clean, open_data(f"{folder / name}?ood={kind}", **options)


@pytest.mark.parametrize("kind", ["jigsaw", "noise", "rotate"])
def test_every_image_keeps_its_pixels_and_none_stays_as_it_is(folder: Path, kind: str) -> None:
    for own, other in zip(*map(pixels, made(folder, kind)), strict=True):
        assert sorted(map(tuple, own.reshape(-1, 3))) == sorted(map(tuple, other.reshape(-1, 3)))
        assert own.shape != other.shape or (own != other).any()


def test_a_jigsaw_moves_whole_tiles(folder: Path) -> None:
    for own, other in zip(*map(pixels, made(folder, "jigsaw")), strict=True):
        corners = [(r, c) for r in range(0, 8, 2) for c in range(0, 8, 2)]
        tiles = [Counter(one[r : r + 2, c : c + 2].tobytes() for r, c in corners) for one in (own, other)]
        assert tiles[0] == tiles[1]
        assert (own[8:] == other[8:]).all() and (own[:, 8:] == other[:, 8:]).all()


def test_a_rotation_is_one_of_three(folder: Path) -> None:
    pairs = zip(*map(pixels, made(folder, "rotate")), strict=True)
    turns = [next(k for k in (1, 2, 3) if np.array_equal(np.rot90(own, k), other)) for own, other in pairs]
    assert set(turns) == {1, 2, 3}


def test_a_mixture_is_the_mean_of_two_images_of_different_classes(folder: Path) -> None:
    clean, dataset = made(folder, "mixture")
    own = np.stack(pixels(clean)).astype(float)
    assert clean.labels is not None
    for i, image in enumerate(pixels(dataset)):
        means = np.floor((own + own[i]) / 2 + 0.5)  # halves are rounded up
        (partner,) = np.flatnonzero((means == image).all(axis=(1, 2, 3)))
        assert clean.labels[partner] != clean.labels[i]


def test_a_second_image_of_another_size_and_mode_is_fitted() -> None:
    class Two(PseudoOod):
        pass

    grey = Image.new("L", (5, 4), 100)
    images = [grey, Image.new("RGB", (8, 8), (200, 200, 200))]

    class Pair(Dataset):
        def _sample(self, i: int) -> Image.Image:
            return images[i]

        def _content(self, i: int) -> list[bytes]:
            return [bytes([i])]

    dataset = PseudoOod(Pair("pair", "--data pair", ["0", "1"]), "mixture")
    assert [(image.mode, image.size) for image in (dataset[0], dataset[1])] == [("L", (5, 4)), ("RGB", (8, 8))]
    assert np.unique(np.asarray(dataset[0])).tolist() == [150]


def test_texts_are_shuffled_or_spliced(folder: Path) -> None:
    clean, shuffled = made(folder, "shuffle", "t.csv")
    for own, other in zip(clean, shuffled, strict=True):
        assert own != other and sorted(own.split()) == sorted(other.split())
    halves = [text.split() for text in clean]
    for i, text in enumerate(made(folder, "splice", "t.csv")[1]):
        assert text.split()[:5] == halves[i][:5] and text.split()[5:] == halves[0][5:]
    words = list(made(folder, "shuffle", "words.csv")[1])
    assert [sorted(word) for word in words] == [sorted("hope"), sorted("mm"), sorted("film")]
    assert words[0] != "hope" and words[1] == "mm"  # which has no other order


def test_a_pair_stays_a_pair(folder: Path) -> None:
    dataset = made(folder, "auto", "pairs.jsonl")[1]
    assert all(len(pair) == 2 for pair in dataset)
    assert dataset.lengths() == [sum(map(len, pair)) for pair in dataset]


def test_a_sample_is_made_by_its_id_and_the_seed(folder: Path) -> None:
    whole = made(folder, "jigsaw")[1]
    few, other = made(folder, "jigsaw", limit=5)[1], made(folder, "jigsaw", seed=1)[1]
    assert all((a == b).all() for a, b in zip(pixels(few), pixels(whole)[:5], strict=True))
    assert few.sample_fingerprints() == whole.sample_fingerprints()[:5]
    assert not set(other.sample_fingerprints()) & set(whole.sample_fingerprints())
    assert whole.spec.endswith("x.npz?ood=jigsaw") and whole.ids[0] == "x.npz#0?ood=jigsaw" and whole.labels is None


def test_auto_has_as_many_of_each_kind(folder: Path) -> None:
    dataset = made(folder, "auto")[1]
    same = {kind: made(folder, kind)[1].sample_fingerprints() for kind in IMAGES}
    kinds = [[k for k in IMAGES if same[k][i] == one] for i, one in enumerate(dataset.sample_fingerprints())]
    assert Counter(name for (name,) in kinds) == dict.fromkeys(IMAGES, 3)
    assert len(KINDS) == len(IMAGES) + 2


def test_the_leak_guard_tells_both_apart_and_knows_both(folder: Path) -> None:
    clean, dataset = made(folder, "auto")
    assert not marked([entry("extract-circuit", "ood", dataset)], clean).any()
    both = [entry("extract-circuit", "ood", one) for one in dataset.origins()]
    assert marked(both, clean).all() and marked(both, dataset).all()


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("x.npz?ood=shuffle", {}, "holds images, of which ?ood=shuffle makes no OOD samples"),
        ("t.csv?ood=jigsaw", {}, "for them there are: shuffle, splice, auto"),
        ("x.npz?ood=jig", {}, "unknown kind of OOD samples 'jig'"),
        ("x.npz?ood=auto", {"limit": 1}, "needs two samples"),
        ("x.npz?ood=auto", {"need_labels": True}, "OOD samples have no labels"),
    ],
)
def test_refusals(folder: Path, spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UsageError)) as caught:
        open_data(str(folder / spec), **options)
    assert message in f"{caught.value.message} {caught.value.hint}"
