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
    inputs = list(_named_inputs(settings))
    none_replaceable = [replace(read, replaceable=False) for read in inputs]
    with reading(none_replaceable):
        for path in _other_outputs(settings):
            refuse_input(Path(path), folder=False)
    return inputs


def _named_inputs(settings: Common) -> Iterator[InputFile]:
    """Yield every file that an option names to be read, and ``hydra.yaml`` where it is read without being named."""
    for option in options_of(type(settings)):
        may_name_inputs = option.type is str and not option.writes and not option.choices
        if not may_name_inputs:
            continue
        is_model = option.name == "model"
        is_replaceable = is_model and settings.needs_output_file
        has_samples = option.placeholder().startswith(("SPEC", "NAME=SPEC", "[NAME=]SPEC"))
        for text in _texts(settings, option):
            for path in _paths_in(text, has_members=is_model):
                yield InputFile(path, option.label, replaceable=is_replaceable, samples=has_samples)
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
    """Return the texts that an option was given, without those that hold an object of a program, which is no file."""
    value = getattr(settings, option.name)
    if value is None:
        return []
    texts = [value]
    if isinstance(value, list):
        texts = value
    return [text for text in texts if not isinstance(text, Held)]


def _paths_in(text: str, *, has_members: bool) -> Iterator[str]:
    """Yield the paths in the value of an option that are there, each once.

    A value may be ``PATH``, ``NAME=PATH``, ``SCHEME:PATH`` or ``NAME=SCHEME:PATH``, each also as ``PATH?options``. As
    a path may have any of these signs itself, all readings are tried.

    Args:
        text: the value.
        has_members: whether it may also be ``A+B``.
    """
    _, _, unnamed = text.partition("=")
    _, _, without_scheme = text.partition(":")
    _, _, unnamed_without_scheme = unnamed.partition(":")
    readings = [text, unnamed, without_scheme, unnamed_without_scheme]
    readings_without_options = [reading.partition("?")[0] for reading in readings]
    candidates = readings + readings_without_options
    if has_members:
        members: list[str] = []
        for candidate in candidates:
            members += candidate.split("+")
        candidates += members
    for candidate in dict.fromkeys(candidates):
        is_path = candidate not in ("", "-")
        if is_path and os.path.exists(candidate):
            yield candidate
