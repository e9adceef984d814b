"""Classes of texts go by name in every form that names them: Parquet, the datasets library, in memory, jsonl, csv."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import hydractl
from hydractl.data import open_data
from hydractl.errors import InputError
from tests.fake_hub import hub_in
from tests.pico import WORDS, named, publish, stock

MODEL = ["positive", "negative", "neutral"]
"""The classes of the model, in another order than those of the data."""
DATA = ["negative", "neutral", "positive"]
INTEGERS = [0, 2, 1, 0, 2]
NAMED = [DATA[label] for label in INTEGERS]
EXPECTED = [1, 0, 2, 1, 0]
TEXTS = [f"text {row}" for row in range(5)]


def class_label(names: list[str]) -> dict[str, str]:
    """The metadata that the datasets library writes for a column ``label`` of class numbers."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def numbered(path: Path) -> str:
    """Numbers with a ClassLabel in the schema, in groups of two rows."""
    table = pyarrow.table({"text": TEXTS, "label": INTEGERS}).replace_schema_metadata(class_label(DATA))
    parquet.write_table(table, path / "train.parquet", row_group_size=2)
    return f"{path}/train.parquet"


def dictionary(path: Path) -> str:
    """An Arrow dictionary whose numbers are in the order of the data, and with a class that no row has."""
    labels = pyarrow.DictionaryArray.from_arrays(pyarrow.array(INTEGERS), [*DATA, "unused"])
    parquet.write_table(pyarrow.table({"text": TEXTS, "label": labels}), path / "train.parquet", row_group_size=2)
    return f"{path}/train.parquet"


def hub_folder(path: Path) -> str:
    numbered(path / "hub/set")
    return "hf:org/set/default/train"


def hub_dictionary(path: Path) -> str:
    dictionary(path / "hub/set")
    return "hf:org/set/default/train"


def json_lines(path: Path) -> str:
    rows = [json.dumps({"text": text, "label": name}) for text, name in zip(TEXTS, NAMED, strict=True)]
    (path / "train.jsonl").write_text("\n".join(rows))
    return f"{path}/train.jsonl"


def comma_separated(path: Path) -> str:
    rows = [f"{text},{name}\n" for text, name in zip(TEXTS, NAMED, strict=True)]
    (path / "train.csv").write_text("text,label\n" + "".join(rows))
    return f"{path}/train.csv"


FORMS = [numbered, dictionary, hub_folder, hub_dictionary, json_lines, comma_separated]


@pytest.mark.fault(89)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_fault_89_labels_of_texts_go_by_name(
    form: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hub" in form.__name__:
        pytest.importorskip("datasets")
        (hub_in(tmp_path, monkeypatch) / "set").mkdir()
    spec = form(tmp_path)
    data = open_data(spec, labels=MODEL, need_labels=True)
    assert data.labels.tolist() == EXPECTED
    own = open_data(spec)
    assert own.label_names == DATA
    assert own.labels.tolist() == INTEGERS
    part = open_data(f"{spec}?from=3", labels=MODEL)
    assert part.labels.tolist() == EXPECTED[3:]
    with pytest.raises(InputError, match="not among the model's 2"):
        open_data(spec, labels=["yes", "no"])


@pytest.mark.fault(89)
def test_fault_89_bad_labels_elsewhere_do_not_make_positions_of_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = pyarrow.array([*INTEGERS[:4], None])
    table = pyarrow.table({"text": TEXTS, "label": labels}).replace_schema_metadata(class_label(DATA))
    pytest.importorskip("datasets")
    folder = hub_in(tmp_path, monkeypatch) / "set"
    folder.mkdir()
    parquet.write_table(table, folder / "train.parquet")
    specs = [f"{folder}/train.parquet?take=4", "hf:org/set/default/train?take=4"]
    for spec in specs:
        part = open_data(spec, labels=MODEL)
        assert part.labels.tolist() == EXPECTED[:4]


@pytest.mark.fault(89)
@pytest.mark.parametrize(
    "metadata",
    [
        b"[" * 200_000,
        b"{}",
        b'{"info": {"features": []}}',
        b'{"info": {"features": {"label": {"names": [1]}}}}',
        b"\xff",
    ],
    ids=["nested", "empty", "list", "numbers", "bytes"],
)
def test_fault_89_damaged_metadata_name_nothing(metadata: bytes, tmp_path: Path) -> None:
    table = pyarrow.table({"text": TEXTS, "label": INTEGERS}).replace_schema_metadata({"huggingface": metadata})
    parquet.write_table(table, tmp_path / "a.parquet")
    data = open_data(f"{tmp_path}/a.parquet", labels=MODEL)
    assert data.labels.tolist() == INTEGERS


STARS = ["awful", "bad", "fair", "good", "great"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A published folder of a pico BERT whose five classes have names."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    publish(named(stock("bert"), STARS), "bert", folder)
    return str(folder)


@pytest.mark.fault(89)
def test_fault_89_eval_answers_alike_for_numbers_and_names(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 8)) for _ in range(24)]
    labels = random.integers(0, 5, 24).tolist()
    names_of_data = STARS[::-1]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names_of_data)})
    table = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)
    table.to_parquet("numbers.parquet")
    rows = [{"text": text, "label": names_of_data[label]} for text, label in zip(texts, labels, strict=True)]
    Path("names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    by_name, by_number, in_memory = (
        hydractl.evaluate(bert, test=data).models[0].id for data in ("names.jsonl", "numbers.parquet", table)
    )
    assert by_name == by_number == in_memory
