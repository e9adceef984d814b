"""``captions:`` pairs: every form gives the same pairs, and what is wrong is named by its row."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import batches, open_data
from hydractl.data.base import PAIRS
from hydractl.errors import InputError, UsageError
from hydractl.files.fingerprints import entry, marked
from tests.image_data import png, shard

CAPTIONS = ["a photo of a tin, unpainted", "an oak", "007", "salt é", "an oak"]
NAMES = ["in/0.png", "in/1.png", "in/2.png", "in/3.png", "in/1.png"]


@pytest.fixture(autouse=True)
def images(here: Path) -> None:
    Path("in").mkdir()
    for value in range(4):
        Path(f"in/{value}.png").write_bytes(png(value))


def jsonl(path: str, image: str = "image", caption: str = "caption") -> str:
    """Pairs under these keys, one object a line."""
    lines = []
    for i in range(5):
        lines.append(json.dumps({image: NAMES[i], "id": i, caption: CAPTIONS[i]}))
    Path(path).write_text("\n".join(lines), encoding="utf-8")
    return path


def table(path: str, header: str, separator: str) -> str:
    """Pairs in two columns; captions are quoted where commas separate them."""
    lines = [header]
    for name, caption in zip(NAMES, CAPTIONS, strict=True):
        field = f'"{caption}"' if separator == "," else caption
        lines.append(f"{name}{separator}{field}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def shards(path: str, ending: str = "txt") -> str:
    """Two shards; the second image of the pairs has two captions, so it is there twice."""
    for number, part in enumerate(([0, 1, 2], [3, 4])):
        members = {}
        for i in part:
            members |= {f"{i:03}.png": Path(NAMES[i]).read_bytes(), f"{i:03}.{ending}": CAPTIONS[i].encode()}
        shard(path.format(number), members)
    return path


def folder_of_shards(ending: str = "txt") -> str:
    shards("in/s-{:02}.tar", ending)
    return "in"


def parquet(path: str, image: Callable[[str], Any]) -> str:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    columns = {"image": [image(name) for name in NAMES], "caption": CAPTIONS, "label": list(range(5))}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def zipped(path: str) -> str:
    Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    return f"{path}.gz"


FORMS: dict[str, Callable[[], str]] = {
    "jsonl": lambda: jsonl("a.jsonl"),
    "jsonl.gz": lambda: zipped(jsonl("a.jsonl")),
    "jsonl of other names": lambda: jsonl("a.jsonl", "where", "said") + "?image=where&caption=said",
    "csv of open_clip": lambda: table("a.csv", "filepath,title", ","),
    "tsv": lambda: table("a.tsv", "path\ttext", "\t"),
    "parquet of paths": lambda: parquet("a.parquet", str),
    "parquet of images": lambda: parquet("a.parquet", lambda n: {"bytes": Path(n).read_bytes(), "path": n}),
    "one shard after another": lambda: shards("s-{:02}.tar").format(0).replace("s-00", "s-*"),
    "a folder of shards": lambda: folder_of_shards(),
    "shards of another ending": lambda: folder_of_shards("said") + "?caption=said",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs(form: str) -> None:
    data = open_data(f"captions:{FORMS[form]()}", reads={"clip": PAIRS})
    assert (len(data), data.kind, data.labels) == (5, PAIRS, None)
    assert len(set(data.ids)) == 5
    assert data.captions == CAPTIONS
    assert [np.array(image)[0, 0] for image in data] == [0, 1, 2, 3, 1]
    reference = open_data(f"captions:{jsonl('reference.jsonl')}")
    assert data.fingerprint() == reference.fingerprint()
    # With other captions it is another set of the same images.
    Path("reference.jsonl").write_text(Path("reference.jsonl").read_text().replace("an oak", "a tree"))
    other = open_data("captions:reference.jsonl")
    assert other.fingerprint() != data.fingerprint()
    assert other.sample_fingerprints() == data.sample_fingerprints()
    limited = open_data(f"captions:{FORMS[form]()}", limit=2)
    assert limited.captions == CAPTIONS[:2] and len(limited) == 2
    spec = FORMS[form]()
    middle = open_data(f"captions:{spec}{'&' if '?' in spec else '?'}from=2&take=2")
    assert middle.captions == CAPTIONS[2:4] and [np.array(image)[0, 0] for image in middle] == [2, 3]


def test_the_leak_guard_knows_the_images_of_pairs() -> None:
    pairs = open_data(f"captions:{jsonl('a.jsonl')}", limit=3)
    assert marked([entry("finetune", "train", pairs)], open_data("in")).tolist() == [True, True, True, False]


def test_the_fingerprint_of_a_set_knows_where_a_caption_ends() -> None:
    np.savez("two.npz", x=np.zeros((2, 4, 4, 3), dtype=np.uint8))
    pictures = open_data("two.npz")
    fingerprints = set()
    for pictures.captions in (["ab", "c"], ["a", "bc"]):
        fingerprints.add(pictures.fingerprint())
    assert len(fingerprints) == 2


def test_paths_are_relative_to_the_root() -> None:
    Path("lists").mkdir()
    jsonl("lists/a.jsonl")
    with pytest.raises(InputError, match="5 of 5 listed images do not exist under lists") as caught:
        open_data("captions:lists/a.jsonl")
    assert caught.value.problems == ["line 1: no file 'in/0.png'"]
    assert "?root=FOLDER" in (caught.value.hint or "")
    assert open_data("captions:lists/a.jsonl?root=.").ids == [
        "in/0.png",
        "in/1.png",
        "in/2.png",
        "in/3.png",
        "in/1.png#2",
    ]


def test_what_is_wrong_with_rows_is_said_by_line() -> None:
    rows = [
        {"image": "in/0.png", "caption": "a tin"},
        {"image": "in/1.png", "caption": "  "},
        {"image": "in/1.png"},
        {"image": 3, "caption": "a tin"},
        {"image": "in/1.png", "caption": ["a tin", "a box"]},
    ]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n{no json\n")
    with pytest.raises(InputError, match="rows that cannot be used: 5") as caught:
        open_data("captions:a.jsonl")
    said = [*caught.value.problems]
    assert said[:3] == [
        "line 2 has an empty caption",
        "line 3 has no 'caption'",
        "line 4 has 3 for 'image', which is no text",
    ]
    assert said[3].startswith("line 5 has ['a tin', 'a box'] for 'caption'") and said[4].startswith("line 6 ")
    rows = [{"image": f"in/{i}.png", "caption": "x"} for i in (0, 9, 8)]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=r"2 of 3 listed images do not exist under \.") as caught:
        open_data("captions:a.jsonl")
    assert [*caught.value.problems] == ["line 2: no file 'in/9.png'", "line 3: no file 'in/8.png'"]


def test_a_shard_without_captions() -> None:
    shards("s-{}.tar")
    with pytest.raises(InputError, match="rows that cannot be used: 3") as caught:
        open_data("captions:s-0.tar?caption=said")
    assert caught.value.problems[0] == "s-0.tar/000 has no caption, or an empty one"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "image,words\nin/0.png,an oak\n", "no column of the caption: it has"),
        ("a.jsonl", '{"image": "a", "path": "b", "text": "c"}', "'image' and 'path' may both be the image"),
        ("a.jsonl", "", "no pairs in the file"),
        ("a.csv", "", "no pairs in the file"),
        ("a.npz", "", "not a kind of file that captions"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, content: str, complaint: str) -> None:
    Path(name).write_text(content)
    with pytest.raises(InputError, match=complaint):
        open_data(f"captions:{name}")


def test_a_column_that_is_asked_for_and_not_there_is_refused() -> None:
    jsonl("a.jsonl")
    with pytest.raises(InputError, match=r"no key for \?caption=x: it has 'image'"):
        open_data("captions:a.jsonl?caption=x")


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="cannot read the file: No such file"):
        open_data("captions:a.jsonl")


def test_settings_and_models_that_do_not_fit() -> None:
    spec = f"captions:{jsonl('a.jsonl')}"
    with pytest.raises(UsageError, match="unknown setting 'label'"):
        open_data(f"{spec}?label=x")
    with pytest.raises(UsageError, match="holds image-caption pairs, and fog is for images"):
        open_data(f"{spec}?corruption=fog&severity=1")
    with pytest.raises(InputError, match="holds image-caption pairs, and vit reads images"):
        open_data(spec, reads={"vit": "image"})
    with pytest.raises(InputError, match="holds images, and clip reads image-caption pairs"):
        open_data("in", reads={"clip": PAIRS})


def test_an_image_that_cannot_be_read_is_named_or_left_out() -> None:
    Path("in/1.png").write_bytes(b"no image")
    spec = f"captions:{jsonl('a.jsonl')}"
    with pytest.raises(InputError, match=r"cannot read image \S*in/1\.png"):
        list(batches(open_data(spec), list, 2))
    data = open_data(spec, on_bad="skip")
    assert [index for batch in batches(data, list, 2) for index in batch.indices] == [0, 2, 3]
    assert sorted(data.skipped or {}) == [1, 4]
