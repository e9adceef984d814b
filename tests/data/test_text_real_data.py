"""The real text sets: read as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.errors import InputError

SETS = {
    "20ng": (2000, str),
    "agnews_val": (4000, str),
    "customer_reviews": (3764, str),
    "imdb_1000": (1000, str),
    "mnli_matched_1000": (1000, tuple),
    "rte_dev": (277, tuple),
    "sst2_test": (436, str),
    "trec": (2500, str),
    "wmt16": (2500, str),
}


@pytest.mark.parametrize("name", SETS)
def test_every_set(real_data: Path, name: str) -> None:
    count, kind = SETS[name]
    path = str(real_data / "text" / f"{name}.jsonl.gz")
    data = open_data(path, ignore_labels=True, labels=["negative", "positive"])
    assert len(data) == count
    assert {type(data[i]) for i in range(count)} == {kind}
    assert data.ids[17] == f"{name}.jsonl.gz#17"


def test_labels_of_real_sets(real_data: Path) -> None:
    train = open_data(str(real_data / "text" / "sst2_train.jsonl.gz"), limit=3000, need_labels=True)
    assert len(train) == 3000
    assert set(train.labels.tolist()) == {0, 1}
    assert open_data(str(real_data / "text" / "wmt16.jsonl.gz")).labels is None
    trec = str(real_data / "text" / "trec.jsonl.gz")
    assert open_data(trec).label_names == ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    with pytest.raises(InputError, match="not among the model's 2"):
        open_data(trec, labels=["negative", "positive"])
