"""``hf:`` sets of a hub that is a folder: images and texts, labels by name, and what is said when there is nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from hydractl.data import batches, open_data
from hydractl.errors import InputError, UsageError
from tests.fake_hub import hub_in
from tests.image_data import stacked

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the library finds the sets ``org/...`` of the hub."""
    return hub_in(tmp_path, monkeypatch)


@pytest.fixture
def pets(hub: Path) -> str:
    """The name of a set with Parquet files of a train and a test split."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    root = hub / "pets"
    for split, count in (("train", 5), ("test", 3)):
        rows = {
            "image": [Image.new("L", (3, 2), i) for i in range(count)],
            "label": [i % 2 for i in range(count)],
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        (root / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(root / f"data/{split}-00000-of-00001.parquet")
    return "org/pets"


def test_images(pets: str) -> None:
    data = open_data(f"hf:{pets}/default/train", labels=["dog", "cat"], reads={"vit": "image"}, need_labels=True)
    assert data.kind == "image" and data.ids[1] == f"hf:{pets}/default/train#1" and len(data) == 5
    assert data.labels.tolist() == [1, 0, 1, 0, 1]
    for workers in (0, 2):
        found = torch.cat([batch.inputs for batch in batches(data, stacked, 2, workers=workers)])
        assert found[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    test = open_data(f"hf:{pets}/default/test", limit=2)
    assert len(test) == 2 and test.label_names == ["cat", "dog"]
    assert test.sample_fingerprints() == data.sample_fingerprints()[:2]


def test_texts(hub: Path) -> None:
    (hub / "t").mkdir()
    (hub / "t/train.jsonl").write_text(
        '{"sentence": "good", "label": 1, "idx": 0}\n{"sentence": "bad", "label": 0, "idx": 1}\n'
    )
    data = open_data("hf:org/t/default/train")
    assert data.kind == "text" and [data[0], data[1]] == ["good", "bad"] and data.label_names is None
    assert data.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="holds texts, and vit reads images"):
        open_data("hf:org/t/default/train", reads={"vit": "image"})


def test_pairs_and_names(hub: Path) -> None:
    names = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features(
        {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string"), "label": names}
    )
    rows = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0]}
    (hub / "p").mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(hub / "p/validation.parquet")
    data = open_data("hf:org/p/default/validation", labels=["yes", "no"])
    assert data[1] == ("b", "d") and data.labels.tolist() == [0, 1]
    single = open_data("hf:org/p/default/validation?text=sentence2", limit=1)
    assert len(single) == 1 and single[0] == "c"


@pytest.mark.parametrize("spec", ["hf:sst2", "hf:glue/sst2", "hf:a/b/c/d/e"])
def test_what_a_spec_needs(spec: str) -> None:
    with pytest.raises(UsageError, match="not NAME/config/split") as error:
        open_data(spec)
    assert error.value.hint is not None and "hf:stanfordnlp/sst2/default/validation" in error.value.hint


def test_nothing_there(pets: str) -> None:
    with pytest.raises(InputError, match="cannot open the set"):
        open_data(f"hf:{pets}/default/validation")
    with pytest.raises(InputError, match="cannot open the set"):
        open_data("hf:other/name/default/train")  # not in the cache, and offline


@pytest.mark.parametrize("folder", ["{}/org/pets", "./org/pets", "org/pets", "~/pets"])
def test_a_local_folder_is_refused(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that lies where the library would take it for the name: its description may lead elsewhere."""
    (tmp_path / "org/pets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="hf: opens sets of the hub, and no local folder"):
        open_data(f"hf:{folder.format(tmp_path)}/default/train")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="which is not installed") as error:
        open_data("hf:org/name/default/train")
    assert error.value.hint == "pip install 'hydractl[hub]'"
