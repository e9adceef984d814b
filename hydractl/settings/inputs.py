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
    """Return the files that the options name as inputs.

    A verb that makes a new model of a model may replace it, because the new one is written beside it first. No other
    output may replace an input.

    Raises:
        OutputError: one option names as output what another option names as input.
    """
    inputs = list(_named_inputs(settings))
    none_replaceable = [replace(read, replaceable=False) for read in inputs]
    with reading(none_replaceable):
        for path in _other_outputs(settings):
            refuse_input(Path(path), folder=False)
    return inputs


def _named_inputs(settings: Common) -> Iterator[InputFile]:
    """Yield every existing file that an option names as an input, and ``hydra.yaml`` if it is read by default.

    An option may name inputs if it holds texts, has no fixed choices, and does not name an output.
    """
    for option in options_of(type(settings)):
        may_name_inputs = option.type is str and not option.writes and not option.choices
        if not may_name_inputs:
            continue

        # Only a verb that writes a model may replace its input, the MODEL.
        is_model = option.name == "model"
        is_replaceable = is_model and settings.needs_output_file
        # An option whose placeholder is a SPEC names data sets.
        has_samples = option.placeholder().startswith(("SPEC", "NAME=SPEC", "[NAME=]SPEC"))

        # One text may name several files, e.g. the members A+B of an ensemble.
        for text in _texts(settings, option):
            for path in _paths_in(text, has_members=is_model):
                yield InputFile(path, option.label, replaceable=is_replaceable, samples=has_samples)

    # Without --config the file of defaults is read if it is there.
    if settings.config is None and os.path.isfile(DEFAULT_NAME):
        yield InputFile(DEFAULT_NAME, "--config")


def _other_outputs(settings: Common) -> Iterator[str]:
    """Yield every output that options name, except the model that the verb writes."""
    for option in options_of(type(settings)):
        if not option.writes or option.many:
            continue
        # This is the model that the verb writes.
        if option.name == "output" and settings.needs_output_file:
            continue
        yield from _texts(settings, option)


def _texts(settings: Common, option: Option) -> list[str]:
    """Return the texts that an option was given; a text that stands for an object of a program is no file."""
    value = getattr(settings, option.name)
    if value is None:
        return []
    texts = [value]
    if isinstance(value, list):
        texts = value
    return [text for text in texts if not isinstance(text, Held)]


def _paths_in(text: str, *, has_members: bool) -> Iterator[str]:
    """Yield the existing paths that the value of an option may mean, each once.

    A value may be ``PATH``, ``NAME=PATH``, ``SCHEME:PATH`` or ``NAME=SCHEME:PATH``, each also as ``PATH?options``. A
    path may itself contain these signs, so all these readings are tried, and those that exist are yielded.

    Args:
        text: the value.
        has_members: whether it may also be ``A+B``, members of one ensemble.
    """
    # The readings of "test=hf:./a": the text itself, "hf:./a", "./a", and "./a" again.
    _, _, unnamed = text.partition("=")
    _, _, without_scheme = text.partition(":")
    _, _, unnamed_without_scheme = unnamed.partition(":")
    readings = [text, unnamed, without_scheme, unnamed_without_scheme]

    # Each reading may be followed by options, and may consist of members.
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
