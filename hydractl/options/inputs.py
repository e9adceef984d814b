"""The files that the options of a verb name as its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydractl.files.inputs import InputFile, reading, refuse_input
from hydractl.options.call import Call
from hydractl.options.option import MODEL_KINDS
from hydractl.options.yaml_files import DEFAULT_NAME


def inputs_of(call: Call) -> list[InputFile]:
    """Return the existing files that the options of a call name as inputs: models, data, documents.

    It also checks that no output replaces an input. The one exception: a verb that writes a model may name a model
    that it reads, because the new file is written beside the old one first.

    Raises:
        OutputError: one option names as output what another option names as input.
    """
    # The inputs.
    options, values = call.declared.options, call.values
    writes_models = call.declared.writes == "weights"
    inputs = []
    for option in options:
        # An option may name inputs if it holds texts, has no fixed choices, and does not name an output. One text may
        # name several files, e.g. the members A+B of an ensemble.
        takes_names = option.type is str or hasattr(option.type, "of_option")
        if not takes_names or option.writes or option.choices:
            continue
        is_model = option.kind in MODEL_KINDS
        for text in _texts(values[option.name]):
            for path in _paths_in(text, has_members=is_model):
                replaceable = is_model and writes_models
                inputs.append(InputFile(path, option.label, replaceable=replaceable, samples=option.takes_data))
    # Without --config the file of defaults is read if it is there.
    if values["config"] is None and os.path.isfile(DEFAULT_NAME):
        inputs.append(InputFile(DEFAULT_NAME, "--config"))

    # The outputs, except for the model. While ``reading`` is open, ``refuse_input`` raises for a path that is an input.
    with reading([replace(read, replaceable=False) for read in inputs]):
        for option in options:
            is_the_model = option.name == "output" and writes_models
            if not option.writes or is_the_model:
                continue
            for path in _texts(values[option.name]):
                refuse_input(Path(path), folder=False)
    return inputs


def _texts(value: Any) -> list[str]:
    """Return the texts among the values of an option: texts, and specs that hold no object of a program in memory."""
    values = value if isinstance(value, list) else [value]
    # Specs of models, data and documents have ``held``: None for what a text names, else an object in memory.
    return [str(item) for item in values if isinstance(item, str) or getattr(item, "held", item) is None]


def _paths_in(text: str, *, has_members: bool) -> Iterator[str]:
    """Yield the existing paths that the value of an option may mean, each once.

    A value may be ``PATH``, ``NAME=PATH``, ``SCHEME:PATH`` or ``NAME=SCHEME:PATH``, each also as ``PATH?options``. A
    path may itself contain these signs, so all these readings are tried, and those that exist are yielded.

    Args:
        text: the value.
        has_members: whether it may also be ``A+B``, members of one ensemble.
    """
    # The readings of "test=hf:./a": the text itself, "hf:./a", "./a", and "./a" again. Each may be followed by options,
    # and may consist of members.
    candidates = [text]
    for sign in "=:":  # each round doubles the readings; a text without the sign adds an empty one, ignored below
        candidates += [candidate.partition(sign)[2] for candidate in candidates]
    candidates += [candidate.partition("?")[0] for candidate in candidates]
    if has_members:
        candidates += "+".join(candidates).split("+")  # every member of every reading

    for candidate in dict.fromkeys(candidates):
        is_path = candidate not in ("", "-")
        if is_path and os.path.exists(candidate):
            yield candidate
