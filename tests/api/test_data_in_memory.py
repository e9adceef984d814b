"""Data sets that a Python program has: those of torch and of Hugging Face give what their samples and labels give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import hydractl
from hydractl.data.held import held_set
from hydractl.errors import InputError
from tests.pico import SMALL

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.integers(0, 256, (10, 16, 16, 3), dtype=np.uint8), np.arange(10) % 5
NAMES = ["ash", "birch", "cedar", "dogwood", "elm"]


class Photographs(Dataset[Any]):
    """Images with their classes, as torchvision's sets have them; counts how often an image is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        self.reads += 1
        return Image.fromarray(X[row]), int(Y[row])


class Named(Photographs):
    """The same in another order of the classes, which it names."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = NAMES[::-1]
        self.targets = [4 - int(label) for label in Y]

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        image, label = super().__getitem__(row)
        return image, 4 - label


class Unlabelled(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> np.ndarray:
        return X[row]


class Dictionaries(Photographs):
    def __getitem__(self, row: int) -> Any:
        return {"image": X[row]}


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.fixture(scope="module")
def model() -> hydractl.Model:
    return hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL}")


def scores(model: hydractl.Model, data: Any, **options: Any) -> Any:
    return hydractl.score(model, method="taylor", data=data, samples=len(X), **options).sites


@pytest.mark.parametrize(
    "data",
    [
        Photographs(),
        Subset(Photographs(), range(10)),
        TensorDataset(torch.tensor(X).permute(0, 3, 1, 2), torch.tensor(Y)),
    ],
    ids=["pairs", "subset", "tensors"],
)
def test_a_torch_data_set_is_its_samples_and_labels(model: hydractl.Model, data: Any) -> None:
    assert scores(model, data) == scores(model, (X, Y))


def test_the_classes_of_a_torch_data_set_are_mapped_by_name(model: hydractl.Model) -> None:
    assert scores(model, Named(), labels=NAMES) == scores(model, (X, Y))


def test_labels_in_a_list_are_taken_without_reading_a_sample() -> None:
    named, plain = Named(), Photographs()
    held_set(named, "data")
    held_set(plain, "data")
    assert named.reads == 1  # to see what its items are
    assert plain.reads == 1 + len(X)


class Renumbered(Named):
    """Its targets stand in the order of its names; what it gives is renumbered, as torchvision's sets do."""

    def target_transform(self, target: int) -> int:
        return 4 - target

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        image, target = super().__getitem__(row)
        return image, self.target_transform(target)


def test_a_transform_of_labels_is_not_passed_over() -> None:
    held = held_set(Renumbered(), "data")
    assert held.labels == Y.tolist()  # type: ignore[union-attr]


def test_a_torch_data_set_of_samples_alone_has_no_labels() -> None:
    held = held_set(Unlabelled(), "ood")
    assert held.labels is None  # type: ignore[union-attr]
    assert np.array_equal(held.samples[3], X[3])  # type: ignore[union-attr]


def test_a_table_of_images(model: hydractl.Model) -> None:
    datasets = pytest.importorskip("datasets")

    features = datasets.Features({"photo": datasets.Image(), "label": datasets.ClassLabel(names=NAMES[::-1])})
    columns = {"photo": [Image.fromarray(pixels) for pixels in X], "label": [4 - int(label) for label in Y]}
    table = datasets.Dataset.from_dict(columns, features=features)
    assert scores(model, table, labels=NAMES) == scores(model, (X, Y))
    assert scores(model, (table["photo"], list(Y))) == scores(model, (X, Y))


def test_a_table_whose_columns_cannot_be_told() -> None:
    datasets = pytest.importorskip("datasets")

    table = datasets.Dataset.from_dict({"phrase": ["a", "b"], "label": [0, 1]})
    with pytest.raises(InputError, match="'phrase', 'label'") as error:
        hydractl.score(f"timm:vit_tiny_patch16_224?{SMALL}", method="taylor", data=table)
    assert "rename_columns" in str(error.value.hint)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(Photographs()), "data is a DataLoader"),
        (Endless(), "no samples by number"),
        (Dictionaries(), "items are dictionaries"),
        (TensorDataset(torch.zeros(3, 4), torch.zeros(3), torch.zeros(3)), "items have 3 parts"),
        (iter([]), "neither samples nor a data set"),
        (TensorDataset(torch.zeros(0, 3, 16, 16), torch.zeros(0)), "no samples"),
    ],
    ids=["loader", "endless", "dictionaries", "triples", "iterator", "empty"],
)
def test_what_is_no_data_set_is_refused(model: hydractl.Model, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scores(model, data)


@pytest.mark.parametrize("labels", [np.eye(5)[Y], np.eye(5, dtype=int)[Y]])
def test_rows_of_numbers_are_no_labels(model: hydractl.Model, labels: Any) -> None:
    with pytest.raises(InputError, match="the labels cannot be used") as error:
        scores(model, (X, labels))
    assert "of sample data#0 is neither an integer nor a name" in error.value.problems[0]
