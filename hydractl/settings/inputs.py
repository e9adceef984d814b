"""The files that the options of a verb name as its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hydractl.files.inputs import InputFile, reading, refuse_input
from hydractl.jsonio import HeldDocument
from hydractl.settings.common import Common
from hydractl.settings.option import Option, options_of
from hydractl.settings.yaml_files import DEFAULT_NAME

_OF_MODELS = ("output", "calibrated")
"""Options that name a model to write, where their verb writes one."""


def inputs_of(settings: Common) -> list[InputFile]:
    """Return the files that the options name to be read.

    A model may be replaced by one that is made of it, which is written beside it first; by anything else it may not.

    Raises:
        OutputError: an option names as an output what another one names as an input.
    """
    inputs = list(_inputs(settings))
    with reading(replace(read, replaceable=False) for read in inputs):
        for path in _other_outputs(settings):
            refuse_input(Path(path), folder=False)
    return inputs


def _inputs(settings: Common) -> Iterator[InputFile]:
    models_written = settings.needs_output_file or getattr(settings, "calibrated", None) is not None
    for option in options_of(type(settings)):
        if option.writes or option.type is not str or option.choices:
            continue
        is_model = option.name == "model"
        for text in _texts(settings, option):
            for path in _paths(text, members=is_model):
                samples = option.placeholder().startswith(("SPEC", "NAME=SPEC", "[NAME=]SPEC"))
                yield InputFile(path, option.label, replaceable=is_model and models_written, samples=samples)
    if settings.config is None and os.path.isfile(DEFAULT_NAME):
        yield InputFile(DEFAULT_NAME, "--config")


def _other_outputs(settings: Common) -> Iterator[str]:
    """Yield what is written beside models, as far as options name it."""
    for option in options_of(type(settings)):
        if not option.writes or option.many:
            continue
        if option.name in _OF_MODELS and (settings.needs_output_file or option.name == "calibrated"):
            continue
        yield from _texts(settings, option)


def _texts(settings: Common, option: Option) -> list[str]:
    value = getattr(settings, option.name)
    if value is None or isinstance(value, HeldDocument):  # what a program holds is no file
        return []
    return value if isinstance(value, list) else [value]


def _paths(text: str, *, members: bool) -> Iterator[str]:
    """Yield the paths in a value that are there: of ``NAME=PATH``, ``SCHEME:PATH``, ``PATH?options`` and ``A+B``."""
    unnamed = text.partition("=")[2]
    pieces = [text, unnamed, text.partition(":")[2], unnamed.partition(":")[2]]
    pieces += [piece.partition("?")[0] for piece in pieces]
    if members:
        pieces += [part for piece in pieces for part in piece.split("+")]
    for piece in dict.fromkeys(pieces):
        if piece and piece != "-" and os.path.exists(piece):
            yield piece
