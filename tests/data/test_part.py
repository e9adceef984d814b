"""``?from=&take=``, ``?fraction=`` and ``?part=K/N``: parts of a set of every kind, corrupted or limited."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from tests.running import refused


def with_setting(spec: str, setting: str) -> str:
    return f"{spec}{'&' if '?' in spec else '?'}{setting}"


def texts(classes: int, longest: int) -> str:
    """Lines of a ``.jsonl`` file: texts of 1, 2, ... characters."""
    lines = [f'{{"text": "{"a" * length}", "label": {length % classes}}}\n' for length in range(1, longest + 1)]
    return "".join(lines)


@pytest.mark.parametrize("spec", ["{0}/a.npz", "{0}/a.jsonl", "builtin:symbols", "{0}/a.npz?corruption=fog&severity=2"])
def test_the_parts_of_a_set_are_the_set(spec: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (11, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(11) % 3)
    (tmp_path / "a.jsonl").write_text(texts(classes=2, longest=7))
    spec = spec.format(tmp_path)
    whole = open_data(spec)
    lengths = whole.lengths()
    for number in (1, 2, 3):
        part_spec = with_setting(spec, f"part={number}/3")
        part = open_data(part_spec)
        rows = list(range(number - 1, len(whole), 3))
        assert part.kind == whole.kind
        assert part.ids == [whole.ids[row] for row in rows]
        assert part.sample_fingerprints() == [whole.sample_fingerprints()[row] for row in rows]
        for i, row in enumerate(rows):
            assert np.array_equal(np.asarray(part[i]), np.asarray(whole[row]))
        if whole.labels is not None and part.labels is not None:
            assert part.labels.tolist() == whole.labels[rows].tolist()
        if lengths is None:
            assert part.lengths() is None
        else:
            assert part.lengths() == [lengths[row] for row in rows]
        assert open_data(part_spec, limit=2).ids == part.ids[:2]


def test_the_limit_of_a_part_of_a_set_sorted_by_class_takes_every_class(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 8, 8), dtype=np.uint8), y=np.arange(30) // 10)
    labels = open_data(f"{tmp_path}/a.npz?part=2/2", limit=6).labels
    assert np.bincount(labels).tolist() == [2, 2, 2]


@pytest.mark.parametrize("part", ["part=1/2", "fraction=0:0.5", "take=18"])
def test_the_limit_of_a_part_of_an_ood_set_takes_every_class_that_the_model_does_not_have(
    part: str, tmp_path: Path
) -> None:
    classes = ["jet", "kite", "lark"]
    np.savez(tmp_path / "a.npz", x=np.zeros((18, 8, 8), dtype=np.uint8), y=np.arange(18) // 6, classes=classes)
    ood = open_data(f"{tmp_path}/a.npz?{part}", limit=6, labels=["cat", "dog"], ignore_labels=True)
    classes_drawn = [int(sample_id.partition("#")[2]) // 6 for sample_id in ood.ids]
    assert ood.labels is None and np.bincount(classes_drawn).tolist() == [2, 2, 2]


FORMS = ["{0}/a.npz", "{0}/a.jsonl", "builtin:symbols", "{0}/folder", "{0}/list.txt?root={0}", "captions:{0}/a.tsv"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of each form, with eleven or more samples of three classes, sorted by class where they are images."""
    folder = tmp_path_factory.mktemp("sets")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    np.savez(folder / "a.npz", x=pixels, y=np.arange(12) // 4)
    (folder / "a.jsonl").write_text(texts(classes=3, longest=11))
    listed = []
    captioned = ["filepath\ttitle"]
    for number, image in enumerate(pixels):
        name = f"folder/{number // 4}/{number}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
        listed.append(f"{name} {number // 4}")
        captioned.append(f"{name}\tnumber {number}")
    (folder / "list.txt").write_text("\n".join(listed) + "\n")
    (folder / "a.tsv").write_text("\n".join(captioned))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_the_first_samples_and_the_rest_are_the_set(form: str, sets: Path) -> None:
    spec = form.format(sets)
    whole = open_data(spec)
    first = open_data(with_setting(spec, "take=3"))
    rest = open_data(with_setting(spec, "from=3"))
    assert len(first) == 3
    assert first.ids + rest.ids == whole.ids
    assert first.sample_fingerprints() + rest.sample_fingerprints() == whole.sample_fingerprints()
    same = open_data(with_setting(spec, f"from=0&take={len(whole)}"))
    assert same.fingerprint() == whole.fingerprint()
    assert first.fingerprint() != whole.fingerprint()
    # From the third sample on, five; of these a part; of that the first two.
    assert open_data(with_setting(spec, "part=2/2&take=5&from=2"), limit=2).ids == whole.ids[3:7:2]


def test_a_small_fraction_of_a_rare_class_is_rarely_more_than_its_share(tmp_path: Path) -> None:
    # Two samples of a hundred: were each class to begin at once, its only sample would be in every draw.
    np.savez(tmp_path / "a.npz", x=np.zeros((100, 8, 8), dtype=np.uint8), y=(np.arange(100) == 0).astype(int))
    with_the_rare_class = 0
    for seed in range(40):
        labels = open_data(f"{tmp_path}/a.npz?fraction=0:0.02&seed={seed}").labels
        with_the_rare_class += bool(labels.any())
    assert with_the_rare_class <= 5  # expected: 1.5 samples in a hundred, so 0.6 of 40 draws


@pytest.mark.parametrize("form", FORMS)
def test_two_fractions_are_the_set_and_have_its_classes(form: str, sets: Path) -> None:
    spec = form.format(sets)
    whole = open_data(spec)
    small = open_data(with_setting(spec, "fraction=0:0.25&seed=1"))
    rest = open_data(with_setting(spec, "fraction=0.25:1&seed=1"))
    assert len(small) == round(len(whole) / 4)
    assert sorted(small.ids + rest.ids) == sorted(whole.ids)
    assert small.ids == [name for name in whole.ids if name in small.ids]
    assert open_data(with_setting(spec, "fraction=0:0.25&seed=2")).ids != small.ids
    if small.labels is not None:
        assert np.bincount(small.labels).tolist() == [1, 1, 1]
        # An OOD set whose labels are of no use has the same samples.
        unlabelled = open_data(with_setting(spec, "fraction=0:0.25&seed=1"), labels=["0"], ignore_labels=True)
        assert unlabelled.ids == small.ids


def test_a_fraction_of_fewer_samples_than_classes_takes_each_class_once_at_most(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2000, 2, 2), dtype=np.uint8), y=np.arange(2000) // 50)
    labels = open_data(f"{tmp_path}/a.npz?fraction=0:0.01").labels
    assert len(labels) == len(set(labels.tolist())) == 20


def test_a_text_file_is_read_no_further_than_it_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\nno JSON\n')
    assert open_data(f"{tmp_path}/a.jsonl?from=1&take=1").ids == ["a.jsonl#1"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("take=0", "take '0' is not a number of samples, 1 or more"),
        ("from=-1", "from '-1' is not a number of samples to leave out"),
        ("fraction=0.01", "fraction '0.01' is not A:B with 0 <= A < B <= 1"),
        ("fraction=0.5:0.2", "fraction '0.5:0.2' is not A:B"),
        ("fraction=0:1.5", "fraction '0:1.5' is not A:B"),
        ("fraction=0:0.5&seed=x", "seed 'x' is not a seed"),
        ("seed=1", "seed= draws a fraction"),
        ("from=20", "from=20 is beyond the end of the set, which has 12 samples"),
        ("from=10&take=5", "from=10&take=5 is beyond the end of the set, which has 12 samples"),
        ("fraction=0:0.01", "this fraction is empty, it is of 12 samples"),
    ],
)
def test_what_makes_no_sense_is_refused(query: str, message: str, sets: Path) -> None:
    with pytest.raises((InputError, UsageError), match=re.escape(message)):
        open_data(f"{sets}/a.npz?{query}")


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(UsageError, match="is not K/N"):
        open_data(f"builtin:symbols?part={part}")


def test_a_part_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(InputError, match="part 2/2 is empty, the set has 1"):
        open_data(f"{tmp_path}/a.jsonl?part=2/2")


# --- labels of a part -------------------------------------------------------------------------------------------------


@pytest.fixture
def strange(tmp_path: Path) -> str:
    """A set of 12 samples; the labels of the last four are of no class of a model of three."""
    pixels = np.zeros((12, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=[0, 1, 2, 0, 1, 2, 0, 1, 7, 8, -1, 9])
    return f"{tmp_path}/a.npz"


@pytest.mark.parametrize(
    ("setting", "labels"),
    [
        ("take=8", [0, 1, 2, 0, 1, 2, 0, 1]),
        ("from=1&take=3", [1, 2, 0]),
        ("without=8,9,10,11", [0, 1, 2, 0, 1, 2, 0, 1]),
        ("part=2/4&without=9", [1, 2]),
        ("take=8&corruption=fog&severity=2", [0, 1, 2, 0, 1, 2, 0, 1]),
    ],
)
def test_labels_outside_of_a_part_are_not_judged(strange: str, setting: str, labels: list[int]) -> None:
    part = open_data(f"{strange}?{setting}", labels=["a", "b", "c"], need_labels=True)
    assert part.labels.tolist() == labels
    assert part.label_names == ["a", "b", "c"] and len(part) == len(labels)
    limited = open_data(f"{strange}?{setting}", labels=["a", "b", "c"], limit=2)
    assert limited.labels.tolist() == labels[:2]
    # Labels that are left out where they cannot be mapped can be mapped here.
    ood = open_data(f"{strange}?{setting}", labels=["a", "b", "c"], ignore_labels=True)
    assert ood.labels.tolist() == labels


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("take=9", "label 7 of sample a.npz#8 is outside 0..2"),
        ("from=9", "label 8 of sample a.npz#9 is outside 0..2, and so are 2 more"),
        ("part=2/2", "label 8 of sample a.npz#9 is outside 0..2, and so are 1 more"),
        ("from=10&take=1", "label -1 of sample a.npz#10 is outside 0..2"),
    ],
)
def test_a_wrong_label_of_a_part_is_named_and_the_others_of_the_part_are_counted(
    strange: str, setting: str, message: str
) -> None:
    caught = refused(InputError, open_data, f"{strange}?{setting}", labels=["a", "b", "c"])
    assert caught.message == f"--data {strange}?{setting}: {message}"
    assert open_data(f"{strange}?{setting}", labels=["a", "b", "c"], ignore_labels=True).labels is None


def test_labels_of_a_part_that_are_names_are_mapped_as_in_the_whole(tmp_path: Path) -> None:
    names = ["ant", "cat", "dog", "cat", "ant", "dog"]
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 8, 8), dtype=np.uint8), y=np.array(names))
    whole = open_data(f"{tmp_path}/a.npz", labels=["dog", "x", "cat", "ant"])
    part = open_data(f"{tmp_path}/a.npz?from=1&take=3", labels=["dog", "x", "cat", "ant"])
    assert part.labels.tolist() == whole.labels[1:4].tolist() == [2, 0, 2]
    # The classes of a model that is trained from scratch are those of the whole set.
    alone = open_data(f"{tmp_path}/a.npz?from=1&take=3")
    assert alone.label_names == ["ant", "cat", "dog"] and alone.labels is not None
    assert [alone.label_names[label] for label in alone.labels] == names[1:4]


def test_numbers_are_names_in_a_part_where_they_are_in_the_whole(tmp_path: Path) -> None:
    rows = "".join(f"text {label},{label}\n" for label in (0, 1, 2, 1, 2, 0))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}")
    stars = ["2", "1", "0"]
    for labels in (stars, ["1", "2", "3"]):  # the last has no 0, so that numbers are indices
        whole = open_data(f"{tmp_path}/a.csv", labels=labels).labels
        part = open_data(f"{tmp_path}/a.csv?from=1&without=4", labels=labels).labels
        assert part.tolist() == whole[1:5].tolist()


def test_a_missing_label_is_missing_only_in_its_part(tmp_path: Path) -> None:
    def write(name: str, *labels: str) -> str:
        lines = [f'{{"text": "{number}"{label}}}\n' for number, label in enumerate(labels)]
        (tmp_path / name).write_text("".join(lines))
        return f"{tmp_path}/{name}"

    path = write("a.jsonl", "", ', "label": "b"', ', "label": "a"', ', "label": "b"', ', "label": 7')
    part = open_data(f"{path}?from=1&take=3", need_labels=True)
    assert part.labels.tolist() == [1, 0, 1] and part.label_names == ["a", "b"]
    one_class = open_data(f"{path}?from=1&take=1", need_labels=True)
    assert one_class.labels.tolist() == [0]  # of a file that is read no further
    caught = refused(InputError, open_data, f"{path}?part=1/2")
    assert caught.problems == [
        "no label for sample a.jsonl#0",
        "label 'a' of sample a.jsonl#2 is a name, others are numbers",
    ]
    numbers = write("b.jsonl", ', "label": 1', "", ', "label": 0')
    alternate = open_data(f"{numbers}?part=1/2", labels=["x", "y"], need_labels=True)
    assert alternate.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"no label for sample b.jsonl#1, nor for any other"):
        open_data(f"{numbers}?part=2/2", labels=["x", "y"], need_labels=True)


def test_a_fraction_mixes_classes_evenly_though_a_label_is_missing(tmp_path: Path) -> None:
    labels = [*["a"] * 50, *["b"] * 10, ""]
    lines = [f"text {number},{label}\n" for number, label in enumerate(labels)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(lines))
    for seed in range(4):
        fraction = open_data(f"{tmp_path}/a.csv?fraction=0:0.2&seed={seed}", labels=["a", "b"], ignore_labels=True)
        taken = [labels[int(sample.rpartition("#")[2])] for sample in fraction.ids]
        assert (taken.count("a"), taken.count("b")) == (10, 2)
