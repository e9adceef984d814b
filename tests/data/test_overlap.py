"""Samples that sets have in common, and samples that make no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.data import open_data
from hydractl.data.overlap import GivenSet, compare_fitted, compare_sets, left_out_words, without_training_data
from hydractl.data.part import places_left_out, without_places
from hydractl.data.plausibility import sample_warnings
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 256, (400, 4, 4), dtype=np.uint8)


def given(folder: Path, name: str, images: np.ndarray) -> GivenSet:
    np.savez(folder / f"{name}.npz", x=images, y=np.arange(len(images)) % 2)
    return GivenSet(f"--{name}", open_data(str(folder / f"{name}.npz")))


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    ("shared", "warnings", "problems"), [(0, 0, 0), (5, 0, 0), (6, 1, 0), (100, 1, 0), (101, 0, 1), (200, 0, 1)]
)
def test_two_sets_may_share_a_handful(tmp_path: Path, shared: int, warnings: int, problems: int) -> None:
    first = given(tmp_path, "one", IMAGES[:200])
    second = given(tmp_path, "other", IMAGES[200 - shared : 400 - shared])
    findings = compare_sets([first, second])
    assert (len(findings.warnings), len(findings.problems)) == (warnings, problems)
    beginning = f"{shared} of 200 samples of --other are among"
    if shared == 200:
        beginning = "--other and --one are the same samples"
    for sentence in [*findings.warnings, *findings.problems]:
        assert sentence.startswith(beginning)


@pytest.mark.fault(62)
def test_the_smaller_set_counts(tmp_path: Path) -> None:
    found = compare_sets([given(tmp_path, "large", IMAGES), given(tmp_path, "small", IMAGES[:7])])
    assert found.problems == ["7 of 7 samples of --small are among the 400 of --large"]


@pytest.mark.fault(62)
def test_no_sample_that_something_is_fitted_to_is_a_test_sample(tmp_path: Path) -> None:
    fitted = given(tmp_path, "val", IMAGES[:200])
    test = given(tmp_path, "test", IMAGES[199:])
    with pytest.raises(InputError, match="1 of 201 samples of --test are among the 200 of --val"):
        compare_fitted([fitted], [test]).refuse()
    compare_fitted([fitted], [given(tmp_path, "test", IMAGES[200:])]).refuse()


@pytest.mark.fault(62)
def test_training_data_are_left_out_of_validation_data(tmp_path: Path) -> None:
    training = given(tmp_path, "data", IMAGES[:200]).dataset
    validation, left_out = without_training_data(given(tmp_path, "val", IMAGES[180:300]).dataset, training)
    assert left_out == 20 and len(validation) == 100
    assert not set(validation.sample_fingerprints()) & set(training.sample_fingerprints())
    assert validation.labels is not None and validation.labels.tolist() == [0, 1] * 50
    assert left_out_words(validation, 20).startswith("20 of 120 samples of --val are among those of --train")
    with pytest.raises(InputError, match="61 of 120 samples of --val"):
        without_training_data(given(tmp_path, "val", IMAGES[139:259]).dataset, training)


def test_samples_are_compared_as_they_are_given(tmp_path: Path) -> None:
    clean = given(tmp_path, "val", IMAGES)
    made = GivenSet("--ood-val", open_data(f"{clean.dataset.spec}?ood=noise"))
    dull = GivenSet("--ood", open_data(f"{clean.dataset.spec}?corruption=contrast&severity=1"))
    assert compare_sets([clean, made, dull]).problems == []


def test_places_are_left_out_of_the_set_that_has_them(tmp_path: Path) -> None:
    spec = str(given(tmp_path, "val", IMAGES[:20]).dataset.spec)
    whole = open_data(spec).ids
    shorter = without_places(spec, [3, 7, 8, 9])
    assert shorter.endswith("?without=3,7,8,9")
    assert open_data(shorter).ids == [*whole[:3], *whole[4:7], *whole[10:]]
    assert places_left_out(DataSpec.of_option("--val", shorter)) == {3, 7, 8, 9}
    assert places_left_out(DataSpec.of_option("--val", spec)) == set()
    places = [0, 3, 4, 7, 8, 9]
    again = without_places(shorter, places)
    assert again.endswith("?without=0,3,4,7,8,9")
    spelled = shorter.replace(",", "%2C")
    assert without_places(spelled, places) == again
    first = open_data(f"{again}&part=1/2").ids
    second = open_data(f"{again}&part=2/2").ids
    assert set(first) == {*whole[::2]} - {whole[0], whole[4], whole[8]}
    assert set(second) == {*whole[1::2]} - {whole[3], whole[7], whole[9]}
    for wrong in ("3-7", "20", "x", ",".join(map(str, range(20)))):
        with pytest.raises(Exception, match="without"):
            open_data(f"{spec}?without={wrong}")


# --- samples ----------------------------------------------------------------------------------------------------------


def doubts(folder: Path, images: np.ndarray) -> str:
    return " ".join(sample_warnings(given(folder, "data", images).dataset))


@pytest.mark.fault(65)
def test_images_that_make_no_sense(tmp_path: Path) -> None:
    assert doubts(tmp_path, IMAGES) == ""
    assert "64 of 64 images that were looked at are of one colour each" in doubts(tmp_path, IMAGES * 0)
    assert "all pixels of the 64 images that were looked at are 0 or 1" in doubts(tmp_path, IMAGES % 2)
    assert "only 20 of 400 samples are distinct" in doubts(tmp_path, np.concatenate([IMAGES[:20]] * 20))
    few_again = np.concatenate([IMAGES[:300], IMAGES[:100]])
    some_black = np.concatenate([IMAGES[:300], IMAGES[:100] * 0])
    assert doubts(tmp_path, few_again) == ""
    assert doubts(tmp_path, some_black) == ""


@pytest.mark.fault(65)
def test_pictures_of_two_colours_are_no_pixels_of_0_and_1(tmp_path: Path) -> None:
    for number in range(8):
        image = Image.fromarray(IMAGES[number])
        if number % 2:
            two_colours = image.convert("1")
        else:
            two_colours = image.convert("P").quantize(2)
        two_colours.save(tmp_path / f"{number}.png")
    assert sample_warnings(open_data(str(tmp_path))) == []


def write_texts(file: Path, empty: int) -> None:
    """Two hundred texts, the first so many of them without a word."""
    rows = ["text,label"]
    for i in range(200):
        text = " " if i < empty else f"word {i}"
        rows.append(f"{text},{i % 2}")
    file.write_text("\n".join(rows) + "\n")


@pytest.mark.fault(65)
def test_empty_texts(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    write_texts(file, empty=21)
    (doubt,) = sample_warnings(open_data(str(file)))
    assert "21 of 200 texts are empty" in doubt
    write_texts(file, empty=5)
    assert sample_warnings(open_data(str(file))) == []
