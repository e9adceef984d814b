"""Class names and prompts: built in, against the data and the libraries that know them, and in files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hydractl.data.labels import RawLabels, resolve_labels
from hydractl.data.names import LABEL_SETS, index_of_published, label_set, read_labels, read_prompts
from hydractl.errors import InputError, UsageError
from hydractl.families.torchvision_operators import declare_operators

SIZES = {"imagenet": 1000, "cifar10": 10, "cifar100": 100, "food101": 101, "sun397": 397, "pets": 37, "dtd": 47}
SIZES |= {"eurosat": 10, "caltech101": 102}


def spoken(name: str) -> str:
    return re.sub(r"[\s_/-]+", " ", name.lower())


@pytest.mark.parametrize("name", LABEL_SETS)
def test_lists_are_whole_and_names_tell_classes_apart(name: str) -> None:
    found = label_set(name)
    assert len(found.labels) == len(found.published) == SIZES[name]
    assert len(set(found.published)) == SIZES[name]
    assert all(label == " ".join(label.split()) and label for label in (*found.labels, *found.published))
    # Neither way of writing a class may mean another one.
    classes: dict[str, set[int]] = {}
    for place, both in enumerate(zip(found.labels, found.published, strict=True)):
        for one in both:
            classes.setdefault(spoken(one), set()).add(place)
    twice = {key: places for key, places in classes.items() if len(places) > 1}
    assert twice == ({"missile": {657, 744}, "sunglasses": {836, 837}} if name == "imagenet" else {})


def test_imagenet_is_that_of_the_libraries() -> None:
    declare_operators()
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES
    from timm.data import ImageNetInfo

    found, info = label_set("imagenet"), ImageNetInfo("imagenet-1k")
    assert list(found.labels) == list(IMAGENET_CLASSNAMES)
    assert found.published[0] == "n01440764" and list(found.published) == sorted(found.published)
    # The two lists are by different people: they are in the same order if their words mostly agree.
    same = 0
    for synset, label in zip(found.published, found.labels, strict=True):
        words = re.findall("[a-z]+", info.label_name_to_description(synset).lower())
        same += bool(set(words) & set(re.findall("[a-z]+", label.lower())))
    assert same == 960


def test_cifar_lists_are_those_of_the_data(real_data: Path) -> None:
    for name in ("cifar10", "cifar100"):
        with np.load(real_data / "images" / f"{name}_test.npz") as data:
            assert list(label_set(name).published) == [str(c) for c in data["classes"]]


def mapped(own: list[str], labels: list[str]) -> list[int]:
    ids = [f"s{i}" for i in range(len(own))]
    found, _ = resolve_labels(RawLabels(own, sorted(set(own))), ids, "--data d", labels=labels)
    return found.tolist()


@pytest.mark.parametrize(
    ("name", "own", "places"),
    [
        ("cifar100", ["worm", "aquarium_fish", "sweet pepper"], [99, 1, 83]),
        ("imagenet", ["n15075141", "n01440764", "n04355933", "n04356056"], [999, 0, 836, 837]),
        ("eurosat", ["SeaLake", "AnnualCrop", "river"], [9, 0, 8]),
        ("pets", ["American Bulldog", "american_bulldog", "Maine_Coon", "Abyssinian"], [1, 1, 20, 0]),
        ("sun397", ["apartment_building/outdoor", "abbey"], [8, 0]),
        ("caltech101", ["BACKGROUND_Google", "Faces", "crocodile_head"], [0, 1, 30]),
    ],
)
def test_published_names_are_found_in_a_model_with_the_list(name: str, own: list[str], places: list[int]) -> None:
    labels = list(label_set(name).labels)
    assert mapped(own, labels) == places
    # With any other labels they are unknown: nothing is guessed.
    with pytest.raises(InputError, match="not among the model's"):
        mapped(own, [*labels[:-1], "another"])
    assert index_of_published([*labels[:-1], "another"], own) == {}


def test_names_that_no_list_has_are_refused() -> None:
    with pytest.raises(InputError, match="1 class name is not among the model's 10"):
        mapped(["SeaLake", "Desert"], list(label_set("eurosat").labels))
    with pytest.raises(InputError, match="several classes of one name"):
        mapped(["missile", "n01440764"], list(label_set("imagenet").labels))


# --- options ----------------------------------------------------------------------------------------------------------


def test_labels_by_name_and_by_file(here: Path) -> None:
    expected = list(label_set("cifar10").labels)
    assert read_labels("cifar10") == read_labels("builtin:cifar10") == expected
    Path("cifar10").write_text("a\nb\n")
    with pytest.raises(UsageError, match="is built in, and a file here has the same name") as caught:
        read_labels("cifar10")
    assert caught.value.hint == "write builtin:cifar10, or ./cifar10"
    assert read_labels("./cifar10") == ["a", "b"] and read_labels("builtin:cifar10") == expected
    with pytest.raises(UsageError, match="nothing of that name is built in"):
        read_labels("builtin:cifar20")
    with pytest.raises(InputError, match="neither a file nor a list of class names") as unknown:
        read_labels("cifar20")
    assert unknown.value.message.endswith("; did you mean cifar10?")
    (here / "train").mkdir()
    with pytest.raises(InputError, match="neither a file nor a list of class names") as unknown:
        read_labels(str(here / "trian"))
    assert unknown.value.hint == f"in {here}/ there is: train"


def test_prompts_by_name_and_by_file(here: Path) -> None:
    declare_operators()
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES

    eighty = read_prompts(["openai-imagenet"])
    assert [t.replace("{label}", "cat") for t in eighty] == [t("cat") for t in OPENAI_IMAGENET_TEMPLATES]
    assert len(eighty) == 80 and read_prompts(["builtin:simple-imagenet"]) == [
        t("{label}") for t in SIMPLE_IMAGENET_TEMPLATES
    ]
    Path("mine.txt").write_text("one {label}\n\ntwo {}\n")
    Path("mine.json").write_text('["three {}"]')
    assert read_prompts(["zero {}", "mine.txt", "mine.json"]) == ["zero {}", "one {label}", "two {}", "three {}"]
    assert read_prompts(["a photo"]) == ["a photo"]  # refused later, with the model
    Path("openai-imagenet").write_text("x {}\n")
    with pytest.raises(UsageError, match="a file here has the same name"):
        read_prompts(["openai-imagenet"])
    Path("empty.txt").write_text("\n")
    with pytest.raises(InputError, match="--prompt empty.txt: no templates in the file"):
        read_prompts(["empty.txt"])
    Path("twice.txt").write_text("a {}\na {}\n")
    with pytest.raises(InputError, match="templates given more than once"):
        read_prompts(["twice.txt"])


# --- files ------------------------------------------------------------------------------------------------------------


def test_one_a_line_or_a_json_list(tmp_path: Path) -> None:
    text, document = tmp_path / "names.txt", tmp_path / "names.json"
    text.write_bytes("\ufeffcat\r\n\n  hot dog \nÉpée\n".encode())
    document.write_text('["cat", " hot dog", "Épée"]', encoding="utf-8")
    assert read_labels(str(text)) == read_labels(str(document)) == ["cat", "hot dog", "Épée"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b" \n\n", "no class names"),
        ("a.txt", b"cat\n\xff\n", "not UTF-8"),
        ("a.txt", b"cat\ndog\ncat\n", "more than once"),
        ("a.json", b"[]", "no class names"),
        ("a.json", b'["a", ""]', "an empty class name"),
        ("a.json", b'["a", 1]', "not a JSON list of names"),
        ("a.json", b'{"a": 1}', "not a JSON list of names"),
        ("a.json", b'["a"', "not JSON"),
    ],
)
def test_files_without_class_names(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_labels(str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--labels .*nowhere.txt: cannot read the file: No such file"):
        read_labels(str(tmp_path / "nowhere.txt"))
