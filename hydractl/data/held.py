"""Data that a Python program passes in, as a list of samples and a list of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from hydractl.errors import InputError


@runtime_checkable
class Table(Protocol):
    """The methods of Hugging Face's ``datasets.Dataset`` that are used here; the library need not be installed."""

    @property
    def column_names(self) -> Any:
        """The names of its columns."""

    @property
    def features(self) -> Any:
        """The type of each column."""

    def select_columns(self, column_names: Any) -> Any:
        """Return the table with only these columns."""

    def __len__(self) -> int: ...


class HeldSamples(NamedTuple):
    """Samples in memory, or samples that are read when they are asked for.

    Attributes:
        samples: images, texts or pairs of texts.
        labels: one label for each sample, a number or a name; None if there are no labels.
        class_names: the names that numbers index; None if they are not known.
    """

    samples: Sequence[Any]
    labels: Sequence[Any] | None
    class_names: list[str] | None = None


HeldSet = HeldSamples | Table
"""A table is read later, when it is known whether the models read images or texts: that decides its columns."""


@dataclass(frozen=True, eq=False)
class LazySamples(Sequence[Any]):
    """The samples of a torch data set, which are read again at every access.

    Attributes:
        dataset: its items are samples, or ``(sample, label)``.
        are_pairs: whether they are the latter.
    """

    dataset: Any
    are_pairs: bool

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: Any) -> Any:
        item = self.dataset[row]
        return item[0] if self.are_pairs else item


def held_set(value: Any, argument: str) -> HeldSet:
    """Return what a Python program passed as data as samples with labels, or a table of ``datasets`` as it is.

    Args:
        value: one of: samples; ``(samples, labels)``, where labels may be None; a torch ``Dataset`` of samples or of
            ``(sample, label)``; a ``datasets.Dataset``.
        argument: the name of the argument, for messages.

    Raises:
        InputError: for a data loader, a set without a length, or a torch set whose items are anything else.
    """
    # Reject the forms of torch that have no samples by number.
    if isinstance(value, DataLoader):
        raise InputError(f"{argument} is a DataLoader", hint="give its dataset: batches are made by batch_size")
    if isinstance(value, IterableDataset):
        raise InputError(f"{argument} is an IterableDataset, which has no samples by number")

    # Data sets of a library.
    if isinstance(value, TorchDataset):
        return _held_torch_set(value, argument)
    if isinstance(value, Table):
        return value

    # Plain samples, with or without labels.
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
    """Return the samples and labels of a torch data set; the labels are read now, a sample when it is needed.

    Raises:
        InputError: if the set has no length, or its items are neither samples nor ``(sample, label)``.
    """
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        raise InputError(f"{argument} is a data set without a length") from None
    if count == 0:
        return HeldSamples((), None)

    # The first item tells whether all items are samples or pairs.
    first = dataset[0]
    if isinstance(first, dict):
        raise InputError(
            f"{argument} is a data set whose items are dictionaries",
            hint="give one of (sample, label), or (samples, labels)",
        )
    if not isinstance(first, tuple | list):
        return HeldSamples(LazySamples(dataset, are_pairs=False), None)
    if len(first) != 2:
        raise InputError(f"{argument} is a data set whose items have {len(first)} parts: (sample, label) is needed")

    # The items are (sample, label).
    samples = LazySamples(dataset, are_pairs=True)
    labels = _labels_of(dataset, count)

    # Use its list of class names, if it has one.
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
        return HeldSamples(samples, labels, list(names))
    return HeldSamples(samples, labels)


def _labels_of(dataset: Any, count: int) -> Sequence[Any]:
    """Return the labels of a torch data set: its own list if it has one, else the label of each item, read one by one.

    Args:
        dataset: the data set, of items ``(sample, label)``.
        count: the number of items.
    """
    listed = getattr(dataset, "targets", None)
    # The list holds the labels before `target_transform` changes them.
    changes_labels = getattr(dataset, "target_transform", None) is not None
    if listed is not None and len(listed) == count and not changes_labels:
        return list(listed)
    return [dataset[row][1] for row in range(count)]
