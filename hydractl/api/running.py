"""A verb run for a Python program: options by name, messages as warnings and through ``logging``."""

from __future__ import annotations

import importlib
import inspect
import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydractl.api.values import data_in, held_data, raw
from hydractl.errors import RequirementError, UsageError, did_you_mean
from hydractl.files.inputs import reading
from hydractl.log import Log
from hydractl.settings.inputs import inputs_of
from hydractl.settings.option import options_of
from hydractl.settings.sources import merge
from hydractl.settings.verbs import SETTINGS
from hydractl.verbs.outcome import Outcome

OF_A_TERMINAL = ("model", "json", "quiet", "verbose", "dry_run")
"""Options that a function has no use for."""

_LOGGER = logging.getLogger("hydractl")


class _PythonLog(Log):
    """Warnings become Python's; the rest goes to the logger ``hydractl``."""

    def info(self, message: str) -> None:
        _LOGGER.info(message)

    def detail(self, message: str) -> None:
        _LOGGER.debug(message)

    def warn(self, message: str) -> None:
        level, frame = 1, inspect.currentframe()
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("hydractl."):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, stacklevel=level)  # of the line that called the verb


def run(verb: str, models: Sequence[str], given: Mapping[str, Any]) -> Outcome:
    """Run a verb.

    Args:
        verb: its name on the command line.
        models: as on the command line.
        given: its other options by name, data and documents as Python values too.

    Raises:
        RequirementError: one of ``require`` does not hold; beside it, what the verb raises.
    """
    options = {one.name: one for one in options_of(SETTINGS[verb]) if one.name not in OF_A_TERMINAL}
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in options:
            raise UsageError(f"{verb} has no option {name!r}{did_you_mean(name, options, quoted=True)}")
    with tempfile.TemporaryDirectory(prefix="hydractl-") as folder, held_data(data_in(options, values)) as specs:
        texts = {name: raw(options[name], value, specs, Path(folder)) for name, value in values.items()}
        settings = merge(SETTINGS[verb], {**texts, "model": list(models)}, {}, None)
        module = importlib.import_module(f"hydractl.verbs.{verb.replace('-', '_')}")
        with reading(inputs_of(settings)):
            outcome: Outcome = module.run(settings, _PythonLog())
    if outcome.unmet:
        raise RequirementError(f"{len(outcome.unmet)} of the requirements do not hold", problems=outcome.unmet)
    return outcome
