"""The MODEL arguments of every verb: the options they are opened with, and a word on what takes long to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hydractl.data.names import read_labels, read_prompts
from hydractl.files.state_dict import StateDict
from hydractl.log import Log
from hydractl.model.cost import weight_bytes
from hydractl.model.source import ModelOptions, Source
from hydractl.settings.common import Common
from hydractl.settings.finetuning import FinetuneSettings

_LONG = 200_000_000
"""Bytes of weights that take about a second to hash and to read."""


def model_options(settings: Common, *, bodies: bool = False) -> ModelOptions:
    """Return the options of a verb about its models; reads the files of ``--labels`` and ``--prompt``.

    Raises:
        InputError: for a file that holds no class names or templates.
        UsageError: for a name that is both a file and built in.
    """
    labels = None
    if settings.labels is not None:
        labels = read_labels(settings.labels)
    prompts = tuple(read_prompts(settings.prompt))
    return settings.fill(ModelOptions, labels=labels, prompt=prompts, bodies=bodies)


def start_options(settings: FinetuneSettings) -> ModelOptions:
    """Return :func:`model_options` for a training: a body may start it, and ``--labels`` name a new head's classes."""
    options = model_options(settings, bodies=True)
    return replace(options, labels=None) if settings.new_head else options


def renaming_doubts(sources: Iterable[Source]) -> list[str]:
    """Return what is odd about the names that ``--labels`` gives, once for each model."""
    doubts = [source.renamed for source in sources if source.renamed is not None]
    return list(dict.fromkeys(doubts))


def announce_reading(sources: Iterable[Source], log: Log) -> None:
    """Say which big models are hashed and read next, what of a file is left, and which weights depend on ``--seed``."""
    sources = list(sources)
    for doubt in renaming_doubts(sources):
        log.warn(doubt)
    for source in sources:
        if source.drawn_by is not None:
            log.info(f"{source.name}: random weights drawn by --seed {source.drawn_by}; another seed is another model")
        if isinstance(source.tensors, StateDict):
            log.info(f"{source.name}: the numbers of its pickle are read as data, and nothing in it is run")
            if source.tensors.entry is not None:
                log.info(f"{source.name}: of the training's checkpoint, its {source.tensors.entry}")
        if source.left:
            log.info(f"{source.name}: of another task, and left: {', '.join(source.left)}")
    sizes = {source.name: weight_bytes(source.tensors) for source in sources}
    big = []
    for name, size in sizes.items():
        if size >= _LONG:
            big.append(f"{name} ({size / 1e9:.1f} GB)")
    if big:
        log.info(f"reading {', '.join(big)}")
