"""Classes of texts go by name in every form that names them: Parquet, the datasets library, in memory, jsonl, csv."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from hydractl.data import open_data
from hydractl.errors import InputError
from tests.fake_hub import hub_in

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
