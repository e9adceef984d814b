"""Texts and pairs in .csv, .tsv, .jsonl and .parquet files: what is read, as what, with which labels and ids."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.data import Dataset, open_data
from hydractl.errors import InputError

ODD = ["", "a\0b", 'say "hi", he said', "ünï 😀 \u2028 x", " spaces ", "x" * 300_000, "\x1b[31m"]


def write(path: Path, content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def texts(dataset: Dataset) -> list[Any]:
    return [dataset[i] for i in range(len(dataset))]


FORMS = {
    "a.jsonl": '{"text": "good film", "label": 1}\n\n{"label": 0, "text": "bad, film"}\n',
    "a.csv": 'text,label\ngood film,1\n"bad, film",0\n',
    "a.tsv": "label\ttext\r\n1\tgood film\r\n0\tbad, film",
    "A.CSV": '\ufefftext, label\n\ngood film, 1\n"bad, film",0\n',
    "b.tsv": "\ufefflabel\tother\ttext\n1\t-\tgood film\n\n0\t\tbad, film\n",
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_forms(tmp_path: Path, name: str, zipped: bool) -> None:
    name_on_disk = name + ".gz" * zipped
    data = open_data(write(tmp_path / name_on_disk, FORMS[name]), labels=["negative", "positive"], need_labels=True)
    assert (data.kind, texts(data)) == ("text", ["good film", "bad, film"])
    assert data.labels.dtype == np.int64 and data.labels.tolist() == [1, 0]
    assert data.ids == [f"{name_on_disk}#0", f"{name_on_disk}#1"]
    assert data.label_names == ["negative", "positive"]
    plain = open_data(write(tmp_path / "plain.jsonl", FORMS["a.jsonl"]))
    assert data.fingerprint() == plain.fingerprint()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".jsonl.gz"])
def test_any_text_comes_back_as_it_is(tmp_path: Path, suffix: str) -> None:
    # More than csv's own limit, a NUL, and line ends inside a text.
    strange = [*ODD, "two\nlines", "two\r\nlines"]
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            # The writer of Python 3.10 takes no NUL either.
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([["text"], *([text.replace("\0", "NUL")] for text in strange)])
        path.write_bytes(path.read_bytes().replace(b"NUL", b"\0"))
    else:
        write(path, lines([{"text": text} for text in strange]))
    assert texts(open_data(str(path))) == strange


def test_tsv_takes_quotes_and_commas_as_they_are(tmp_path: Path) -> None:
    content = 'text\tlabel\n"unbalanced, he said\t1\n""\t0\n\t1\n \x00\t0\n'
    data = open_data(write(tmp_path / "a.tsv", content))
    assert texts(data) == ['"unbalanced, he said', '""', "", " \0"]


def test_blank_lines_of_a_tsv_of_one_column_are_texts(tmp_path: Path) -> None:
    assert texts(open_data(write(tmp_path / "a.tsv", "text\na\n\nb\n"))) == ["a", "", "b"]


PAIRS = [
    ("a.jsonl", '{"text_a": "x", "text_b": ""}\n{"text_a": "y", "text_b": "z"}\n', ""),
    ("a.csv", "sentence,sentence2\nx,\ny,z\n", ""),
    ("a.tsv", "index\tsentence1\tsentence2\n0\tx\t\n1\ty\tz\n", ""),
    ("a.csv", "question,sentence,sentence2\nx,,\ny,z,-\n", "?text=question&text_b=sentence"),
]


@pytest.mark.parametrize(("name", "content", "query"), PAIRS)
def test_pairs(tmp_path: Path, name: str, content: str, query: str) -> None:
    data = open_data(write(tmp_path / name, content) + query)
    assert texts(data) == [("x", ""), ("y", "z")]
    assert data.lengths() == [1, 2]


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "gold\tsentence\ttext_b\ttext\n1\tx\tb\tt\n")
    data = open_data(f"{path}?text=sentence&label=gold")
    assert texts(data) == ["x"] and data.labels.tolist() == [1]
    assert texts(open_data(f"{path}?text=text&text_b=text_b")) == [("t", "b")]
    keys = write(tmp_path / "a.jsonl", '{"title": "t", "body": "b", "topic": "x"}\n')
    named = open_data(f"{keys}?text=title&text_b=body&label=topic")
    assert texts(named) == [("t", "b")] and named.label_names == ["x"]


LABELS = {
    "integers are indices": ("a.jsonl", '{"text": "a", "label": 2}\n{"text": "b", "label": 0}\n', "xyz", [2, 0]),
    "names map by name": ("a.csv", "text,label\na,p\nb,n\n", "np", [1, 0]),
    "digits in quotes are names in JSON": ("a.jsonl", '{"text": "a", "label": "1"}\n', "10", [0]),
    "digits are indices in csv": ("a.csv", 'text,label\na,"1"\n', "xy", [1]),
    "digits that are names of classes are names in csv": ("a.csv", "text,label\na,1\n", "10", [0]),
    "one word among digits makes names": ("a.csv", "text,label\na,1\nb,n\n", "n1", [1, 0]),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels(tmp_path: Path, case: str) -> None:
    name, content, class_names, expected = LABELS[case]
    data = open_data(write(tmp_path / name, content), labels=list(class_names))
    assert data.labels.tolist() == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "a", "label": null}\n{"text": "b"}\n'),
        ("a.csv", "text,label\na,\nb,\n"),
        ("a.csv", "text,topic\na,t\n"),
    ],
)
def test_texts_without_any_label(tmp_path: Path, name: str, content: str) -> None:
    assert open_data(write(tmp_path / name, content), labels=["x"]).labels is None


def test_limit_reads_no_further(tmp_path: Path) -> None:
    content = lines([{"text": str(i), "label": 0} for i in range(5)]).encode() + b"\xff\n{"
    path = write(tmp_path / "a.jsonl", content)
    data = open_data(path, limit=5)
    assert texts(data) == list("01234")
    assert len(data.labels) == 5
    with pytest.raises(InputError):
        open_data(path, limit=6)


def test_fingerprints(tmp_path: Path) -> None:
    def opened(*rows: dict[str, Any]) -> Dataset:
        return open_data(write(tmp_path / "a.jsonl", lines(list(rows))))

    a = {"text": "a", "label": 0}
    b = {"text": "b", "label": 1}
    base = opened(a, b)
    unlabelled = opened({"text": "a"}, {"text": "b"})
    assert base.sample_fingerprints() == unlabelled.sample_fingerprints()
    sets = [
        base,
        unlabelled,
        opened(b, a),
        opened(a, {"text": "b", "label": 0}),
        opened(a, {"text": "B", "label": 1}),
        opened({"text_a": "a", "text_b": "", "label": 0}, {"text_a": "b", "text_b": "", "label": 1}),
    ]
    assert len({dataset.fingerprint() for dataset in sets}) == len(sets)
    pair = opened({"text_a": "ab", "text_b": "c"})
    parted_elsewhere = opened({"text_a": "a", "text_b": "bc"})
    assert pair.sample_fingerprints() != parted_elsewhere.sample_fingerprints()


def test_a_set_travels_to_other_processes(tmp_path: Path) -> None:
    data = open_data(write(tmp_path / "a.jsonl", FORMS["a.jsonl"]))
    assert texts(pickle.loads(pickle.dumps(data))) == texts(data)
    assert data[-1] == "bad, film"
    with pytest.raises(IndexError):
        data[2]


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    columns = {"idx": list(range(3000)), "sentence": [f"t{i}" for i in range(3000)], "label": ["n", "p"] * 1500}
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table(columns), path)
    data = open_data(path, labels=["p", "n"])
    assert len(data) == 3000 and data[2999] == "t2999" and data.ids[17] == "a.parquet#17"
    assert data.labels.tolist() == [1, 0] * 1500
    assert texts(open_data(path, limit=2)) == ["t0", "t1"]
    assert open_data(f"{path}?label=idx").labels.tolist()[:3] == [0, 1, 2]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="no column for \\?text=txt: it has 'idx', 'sentence', 'label'"):
        open_data(f"{path}?text=txt")
    with pytest.raises(InputError, match="rows that cannot be used") as error:
        open_data(f"{path}?text=idx")
    assert error.value.problems[0] == "row 1 has 0 for 'idx', which is no text"
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    with pytest.raises(InputError, match="b.parquet: cannot read the file"):
        open_data(str(tmp_path / "b.parquet"))
