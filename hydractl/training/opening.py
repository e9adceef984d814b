"""The data of a training and the model as it starts, checked against each other before any long work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.errors import InputError, UsageError
from hydractl.model.matching import check_labels, named_by_data
from hydractl.model.source import Source
from hydractl.settings import FinetuneSettings
from hydractl.training.pairs import open_pairs
from hydractl.training.start import drawn, with_drawn_head, with_new_head


@dataclass(frozen=True)
class Opened:
    """What a training starts from.

    Attributes:
        source: the model with the weights, the classes and the names it starts from.
        train_set: the samples it is trained on.
        val_set: the samples it is validated on, or None.
    """

    source: Source
    train_set: Dataset
    val_set: Dataset | None


def open_all(source: Source, settings: FinetuneSettings) -> Opened:
    """Open the data and set the model up.

    Raises:
        InputError: for data that do not fit the model or each other.
        UsageError: for a start that the model does not have.
    """
    assert settings.data is not None  # settings.check() holds it
    if settings.init == "random":
        source = drawn(source, settings.seed)
    if settings.loss == "contrastive":
        return _with_pairs(source, settings)
    source = named_by_data(source, settings.data, settings.limit)
    names = None if settings.reset_head else source.description.labels
    train_set = _open(settings.data, "--data", source, settings, names)
    if settings.reset_head:
        source = with_new_head(source, train_set.label_names, _classes(train_set))
    if settings.init == "head":
        source = with_drawn_head(source, settings.seed)
    check_labels(train_set, source)
    # A model from scratch takes its class names from the data it learns.
    labels = source.description.labels if source.description.labels is not None else train_set.label_names
    if labels is not None and len(labels) != source.classes:
        raise InputError(
            f"{settings.data} has {len(labels)} classes, {source.name} has {source.classes}",
            hint="add --reset-head for a new classifier",
        )
    source = replace(source, description=replace(source.description, labels=None if labels is None else list(labels)))
    if settings.val is None:
        return Opened(source, train_set, None)
    return Opened(source, train_set, _validation(source, settings, train_set, labels))


def _validation(
    source: Source, settings: FinetuneSettings, train_set: Dataset, labels: Sequence[str] | None
) -> Dataset:
    assert settings.val is not None
    val_set = _open(settings.val, "--val", source, settings, labels)
    check_labels(val_set, source)
    if val_set.sample_fingerprints() == train_set.sample_fingerprints():
        raise InputError("--data and --val are the same samples", hint="give a validation set of its own")
    return val_set


def _with_pairs(source: Source, settings: FinetuneSettings) -> Opened:
    """Pairs have no classes: those of a validation set name them, unless the model or ``--labels`` does."""
    train_set = open_pairs(source, settings)
    if settings.init == "head":
        source = with_drawn_head(source, settings.seed)  # says that there is none
    if settings.val is None:
        return Opened(source, train_set, None)
    source = named_by_data(source, settings.val, settings.limit, "--val")
    return Opened(source, train_set, _validation(source, settings, train_set, source.description.labels))


def _open(spec: str, option: str, source: Source, settings: FinetuneSettings, names: Sequence[str] | None) -> Dataset:
    reads = {source.name: source.description.reads}
    return open_data(spec, option=option, limit=settings.limit, labels=names, need_labels=True, reads=reads)


def _classes(dataset: Dataset) -> int:
    """How many classes a labelled set has: by its names, else by its highest label."""
    if dataset.label_names is not None:
        return len(dataset.label_names)
    assert dataset.labels is not None  # it was opened with need_labels
    count = int(dataset.labels.max()) + 1
    if count < 2:
        raise UsageError(f"--reset-head: {dataset.where} has one class")
    return count
