"""What the options of a command come to, without running it: for tests of the options themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hydractl.expressions.models import ModelRef
from hydractl.log import Log
from hydractl.options.call import Call, gather
from hydractl.options.option import Raw
from hydractl.options.verbs import declared
from hydractl.studies.request import StudyRequest
from hydractl.verbs.finetune_training import TrainingRequest
from hydractl.verbs.outcome import Outcome
from tests.answers import result_of


class _Ready(BaseException):
    """Raised where the work of a verb would start."""


def checked(
    verb: str, flags: Mapping[str, Raw | None], environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Any:
    """Return the checked values of a verb's options, as attributes, with ``sources``; UsageError if they are wrong."""
    call = gather(declared(verb), flags, environ or {}, folder)
    return SimpleNamespace(**values_when_ready(call), sources=call.sources, ranks=call.ranks)


def values_when_ready(call: Call) -> dict[str, Any]:
    """Return the values of a call when its options are checked; UsageError if they are wrong."""

    def stop() -> None:
        raise _Ready

    call.ready = stop
    try:
        call.run()
    except _Ready:
        return call.values
    raise AssertionError(f"{call.verb} starts to work without a check of its options")


def ran(verb: str, values: Mapping[str, object], log: Log | None = None) -> Outcome:
    """Run a verb with typed values as the command line runs it, and return what it would print."""
    call = gather(declared(verb), values)
    call.from_python = False
    call.log = log or Log()
    outcome: Outcome = call.run().outcome
    return outcome


def study_request(**flags: Raw) -> StudyRequest:
    """Return what a command with these options asks of a study."""
    values = checked("study", {"model": ["model.st"], **flags})
    own = {"model": ModelRef("model.st"), "has_ood_val": True, "has_ood": True, "given": {}}
    shared = {one.name: getattr(values, one.name) for one in fields(StudyRequest) if one.name not in own}
    return StudyRequest(**own, **shared)


def training_request(**arguments: Any) -> TrainingRequest:
    """Return what a program that calls ``finetune`` with these arguments asks for; it has ``model`` and ``train``."""
    asked: list[TrainingRequest] = []

    def train(request: TrainingRequest, log: Log) -> Outcome:
        asked.append(request)
        return Outcome(result_of({"schema": "test/1"}))

    with patch("hydractl.verbs.finetune.train", train):
        call = gather(declared("finetune"), {"model": ["model.st"], "train": "train.npz", **arguments})
        call.sources = dict.fromkeys(call.sources, "default")  # messages name none
        call.run()
    (request,) = asked
    return request
