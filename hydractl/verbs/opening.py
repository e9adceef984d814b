"""Opening the MODEL arguments of every command: the options for it, and notes about weights that take long to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hydractl.data import Dataset
from hydractl.data.names import read_labels, read_prompts
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.state_dict import StateDict
from hydractl.log import Log
from hydractl.model.cost import weight_bytes
from hydractl.model.matching import check_labels_are_classes, named_by_data, open_labelled
from hydractl.model.source import ModelOptions, Source, warnings_of_opening
from hydractl.options.call import filled

_BIG_BYTES = 200_000_000
"""Bytes of weights that take about a second to hash and read. Reading this many or more is announced."""


def opening_options(values: Mapping[str, Any], *, bodies: bool = False) -> ModelOptions:
    """Return how models are opened; reads the files of ``labels`` and ``prompt``.

    Args:
        values: the values of a verb's options, by name.
        bodies: whether models without a classifier may be opened.

    Raises:
        InputError: a file holds no class names or templates.
        UsageError: a name is both a file and built in.
    """
    labels = None if values["labels"] is None else read_labels(values["labels"])
    prompt = tuple(read_prompts(values["prompt"]))
    return filled(ModelOptions, values, labels=labels, prompt=prompt, bodies=bodies)


def open_named(source: Source, spec: DataSpec, limit: int | None, seed: int) -> tuple[Source, Dataset]:
    """Return a model, with its classes named by labelled data if it is zero-shot, and the data, which are opened.

    Args:
        source: the model.
        spec: which data.
        limit: how many of their samples are used; None for all.
        seed: draws them where they are drawn, from data that are sorted by class.

    Raises:
        InputError: a sample has no label, or one that is no class of the model.
    """
    named = named_by_data(source, spec, limit)
    dataset = open_labelled(spec, named, named.description.labels or [], limit=limit, seed=seed)
    check_labels_are_classes(dataset, named)
    return named, dataset


def announce_reading(sources: Iterable[Source], log: Log) -> None:
    """Log what is special about models before they are read: big weights, drawn or pickled ones, and so on."""
    models = list(sources)
    log.warn_all(warnings_of_opening(models))
    for source in models:
        _announce_odd_weights(source, log)

    # Many bytes take a while to read.
    size = sum(weight_bytes(source.tensors) for source in models)
    if size >= _BIG_BYTES:
        log.info(f"reading {size / 1e9:.1f} GB of weights")


def _announce_odd_weights(source: Source, log: Log) -> None:
    """Log which weights of a model are random, read from a pickle, or left out; nothing for a usual checkpoint.

    Random ones were drawn by the seed (``drawn_by``). A pickle (``.pth``) may hold its weights in an entry, and begin
    all their names alike. Weights of another task, such as a decoder, are left out.
    """
    name = source.name
    tensors = source.tensors
    if source.drawn_by is not None:
        log.info(f"{name}: random weights drawn by --seed {source.drawn_by}; another seed is another model")
    if isinstance(tensors, StateDict):
        log.info(f"{name}: the numbers of its pickle are read as data, and nothing in it is run")
        if tensors.entry is not None:
            log.info(f"{name}: its weights are the entry {tensors.entry} of the file")
        if tensors.prefix:
            log.info(f"{name}: all names of its tensors begin with {tensors.prefix}, which is left out")
    if source.left:
        left_out = ", ".join(source.left)
        log.info(f"{name}: of another task, and left: {left_out}")
