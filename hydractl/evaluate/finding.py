"""From the MODEL arguments of a command to the rows of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.evaluate.contenders import Contender, Running
from hydractl.evaluate.stored import Stored
from hydractl.log import Log

if TYPE_CHECKING:
    from hydractl.fusion.opening import ModelArgument
    from hydractl.settings import EvalSettings


def check_writable(contenders: Sequence[Contender], settings: EvalSettings) -> None:
    """Refuse files that no row, or none of this kind, can be written to.

    Raises:
        UsageError: the logits of predictions are to be written again, or ``--calibrated`` has no checkpoint to write.
    """
    if (settings.predictions or "").endswith(".st"):
        for one in contenders:
            if isinstance(one, Stored):
                raise UsageError(f"{one.name} is a predictions file already", hint="leave --predictions out")
    if settings.calibrated is not None:
        only = contenders[0]
        if not isinstance(only, Running) or len(only.argument.sources) > 1:
            hint = "fuse the members first, or leave --calibrated out" if isinstance(only, Running) else None
            raise UsageError(f"--calibrated writes a checkpoint, and {only.name} is none", hint=hint)


def find_contenders(settings: EvalSettings, log: Log) -> list[Contender]:
    """The rows of the answer, found and checked by their headers; ``log`` hears of what they read when they run.

    Raises:
        UsageError: two rows of one name, or options that a model does not take.
        InputError: what is wrong with the files.
    """
    from hydractl.checkpoint import read_header
    from hydractl.fusion.opening import find_models, with_classes
    from hydractl.models import ModelOptions, split_model
    from hydractl.predictions.store import is_predictions, read_predictions

    kept: dict[int, Contender] = {}
    others: list[str] = []
    for place, text in enumerate(settings.model):
        name, refs = split_model(text)
        if len(refs) == 1 and is_predictions(refs[0]):
            kept[place] = Stored(name or Path(refs[0]).stem, read_predictions(refs[0]))
            if settings.mc_dropout is not None:
                raise UsageError(
                    f"--mc-dropout runs a model, and {refs[0]} is a predictions file",
                    hint="give the model; or leave --mc-dropout out, where the file was made with it",
                )
        else:
            others.append(text)
    if others and settings.data is None:
        for ref in (ref for text in others for ref in split_model(text)[1]):
            if ref.endswith((".st", ".safetensors")) and Path(ref).is_file():
                read_header(ref)  # predictions that are damaged say so
        raise UsageError("eval needs --data", hint="hydractl eval --help")
    arguments: list[ModelArgument] = []
    if others and settings.data is not None:
        arguments = with_classes(find_models(others, ModelOptions.of(settings)), settings.data, settings.limit)
    rest = (Running(argument, settings, log) for argument in arguments)
    found = [kept[place] if place in kept else next(rest) for place in range(len(settings.model))]
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"MODEL names used twice: {', '.join(twice)}", hint="name them apart: NAME=MODEL")
    return found
