"""The files that the options of a verb name as its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hydractl.files.inputs import InputFile, reading, refuse_input
from hydractl.jsonio import Held
from hydractl.settings.common import Common
from hydractl.settings.option import Option, options_of
from hydractl.settings.yaml_files import DEFAULT_NAME


def inputs_of(settings: Common) -> list[InputFile]:
    """Return the files that the options name to be read.

    A model may be replaced by one that is made of it, which is written beside it first; by anything else it may not.

    Raises:
        OutputError: an option names as an output what another one names as an input.
    """
    inputs = list(_inputs(settings))
    none_replaceable = [replace(read, replaceable=False) for read in inputs]
    with reading(none_replaceable):
        for path in _other_outputs(settings):
            refuse_input(Path(path), folder=False)
    return inputs


def _inputs(settings: Common) -> Iterator[InputFile]:
    for option in options_of(type(settings)):
        if option.writes or option.type is not str or option.choices:
            continue
        is_model = option.name == "model"
        replaceable = is_model and settings.needs_output_file
        has_samples = option.placeholder().startswith(("SPEC", "NAME=SPEC", "[NAME=]SPEC"))
        for text in _texts(settings, option):
            for path in _paths(text, members=is_model):
                yield InputFile(path, option.label, replaceable=replaceable, samples=has_samples)
    if settings.config is None and os.path.isfile(DEFAULT_NAME):
        yield InputFile(DEFAULT_NAME, "--config")


def _other_outputs(settings: Common) -> Iterator[str]:
    """Yield what is written beside models, as far as options name it."""
    for option in options_of(type(settings)):
        if not option.writes or option.many:
            continue
        if option.name == "output" and settings.needs_output_file:
            continue
        yield from _texts(settings, option)


def _texts(settings: Common, option: Option) -> list[str]:
    value = getattr(settings, option.name)
    if value is None:
        return []
    texts = value if isinstance(value, list) else [value]
    return [text for text in texts if not isinstance(text, Held)]  # what a program holds is no file


def _paths(text: str, *, members: bool) -> Iterator[str]:
    """Yield the paths in a value that are there: of ``NAME=PATH``, ``SCHEME:PATH``, ``PATH?options`` and ``A+B``."""
    _, _, unnamed = text.partition("=")
    _, _, without_scheme = text.partition(":")
    _, _, unnamed_without_scheme = unnamed.partition(":")
    with_options = [text, unnamed, without_scheme, unnamed_without_scheme]
    pieces = [*with_options]
    for piece in with_options:
        without_options, _, _ = piece.partition("?")
        pieces.append(without_options)
    of_members: list[str] = []
    if members:
        for piece in pieces:
            of_members += piece.split("+")
    for piece in dict.fromkeys([*pieces, *of_members]):
        if piece and piece != "-" and os.path.exists(piece):
            yield piece
