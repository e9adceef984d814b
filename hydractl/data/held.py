"""Data that a Python program hands over, as samples and labels that can be read one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from hydractl.errors import InputError
from hydractl.jsonio import Held


@runtime_checkable
class Table(Protocol):
    """The methods of Hugging Face's ``datasets.Dataset`` that are used here; the library need not be installed."""

    @property
    def column_names(self) -> Any:
        """The names of its columns."""

    @property
    def features(self) -> Any:
        """The contents of each column."""

    def select_columns(self, column_names: Any) -> Any:
        """Return the table with these columns alone."""

    def __len__(self) -> int: ...


class HeldSamples(NamedTuple):
    """Samples in memory, or read as they are asked for.

    Attributes:
        samples: images, texts or pairs of texts.
        labels: one for each, by number or by name; None where there are none.
        class_names: what numbers point into; None where that is not known.
    """

    samples: Sequence[Any]
    labels: Sequence[Any] | None
    class_names: list[str] | None = None


HeldSet = HeldSamples | Table
"""A table is read later, by its columns, when it is known what the models read."""


class HeldData(Held):
    """Data in the place of a SPEC; ``memory:NAME`` is what messages and documents call them."""

    value: HeldSet


class LazySamples(Sequence[Any]):
    """Samples that are read when they are asked for, every time anew.

    Args:
        read: returns the sample of a row.
        rows: the rows, in order.
    """

    def __init__(self, read: Callable[[int], Any], rows: Sequence[int]) -> None:
        self._read = read
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        row = self._rows[place]
        return self._read(row)

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            yield self._read(row)


class _SampleOfPair:
    """Callable that reads the sample of an item ``(sample, label)``; a class, because it has to be pickled for
    processes that read data.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, row: int) -> Any:
        item = self._dataset[row]
        return item[0]


def held_set(value: Any, argument: str) -> HeldSet:
    """Return what a program gave as data in one of the two forms that are read.

    Args:
        value: samples; ``(samples, labels)``, where labels may be None; a torch ``Dataset`` of ``(sample, label)`` or
            of samples; or a ``datasets.Dataset``.
        argument: its name, for messages.

    Raises:
        InputError: for a data loader, a set without a length, or a torch set of other items.
    """
    if isinstance(value, DataLoader):
        raise InputError(f"{argument} is a DataLoader", hint="give its dataset: batches are made by batch_size")
    if isinstance(value, IterableDataset):
        raise InputError(f"{argument} is an IterableDataset, which has no samples by number")
    if isinstance(value, TorchDataset):
        return _held_torch_set(value, argument)
    if isinstance(value, Table):
        return value
    samples = value
    labels = None
    if isinstance(value, tuple) and len(value) == 2:
        samples, labels = value
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        raise InputError(
            f"{argument} is neither samples nor a data set: {type(samples).__name__}",
            hint="give a SPEC, samples, (samples, labels), or a data set of torch or Hugging Face",
        )
    return HeldSamples(samples, labels)


def _held_torch_set(dataset: Any, argument: str) -> HeldSamples:
    """Read the labels of a torch data set; its samples are read when they are needed.

    Raises:
        InputError: for a set without a length, and for items that are neither samples nor ``(sample, label)``.
    """
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        raise InputError(f"{argument} is a data set without a length") from None
    if count == 0:
        return HeldSamples((), None)

    # All items are taken to be like the first one.
    first = dataset[0]
    if isinstance(first, dict):
        raise InputError(
            f"{argument} is a data set whose items are dictionaries",
            hint="give one of (sample, label), or (samples, labels)",
        )
    if not isinstance(first, tuple | list):
        return HeldSamples(LazySamples(dataset.__getitem__, range(count)), None)
    if len(first) != 2:
        raise InputError(f"{argument} is a data set whose items have {len(first)} parts: (sample, label) is needed")

    samples = LazySamples(_SampleOfPair(dataset), range(count))
    labels = _labels_of(dataset, count)
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple):
        return HeldSamples(samples, labels)
    are_texts = all(isinstance(name, str) for name in names)
    if not are_texts:
        return HeldSamples(samples, labels)
    return HeldSamples(samples, labels, list(names))


def _labels_of(dataset: Any, count: int) -> Sequence[Any]:
    """Return the labels of a torch data set: those that it lists, or else those of its items, each of which is read.

    Args:
        dataset: the data set, of items ``(sample, label)``.
        count: how many there are.
    """
    listed = getattr(dataset, "targets", None)
    # What it lists are the labels before such a change.
    changes_labels = getattr(dataset, "target_transform", None) is not None
    if listed is not None and len(listed) == count and not changes_labels:
        return list(listed)
    labels = []
    for row in range(count):
        item = dataset[row]
        labels.append(item[1])
    return labels
