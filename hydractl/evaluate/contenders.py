"""What a row of the answer is about: a model that runs, or predictions that were kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from hydractl.errors import InputError, UsageError
from hydractl.evaluate.sets import CORRUPTION, ID, OOD, EvalSet
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.threshold import stored
from hydractl.seen import Entry, merged

if TYPE_CHECKING:
    from hydractl.fusion.opening import ModelArgument
    from hydractl.predictions.store import Predictions
    from hydractl.settings import EvalSettings

Batches = Iterator[tuple[Sequence[int], npt.NDArray[Any]]]
"""Rows of a data set, and the logits ``[M, rows, C]`` of every member."""


class Contender(ABC):
    """One row.

    Attributes:
        name: of the row.
        sha256: of its file, one for each where several run one after another.
        labels: names of the classes, None where unknown.
        classes: number of classes.
        reads: ``image`` or ``text``; None for predictions, which read nothing any more.
        members: number of members.
        heads: of every site, the heads there are and those each member keeps.
        cost: ``params`` and ``macs``, the latter None where it is not known.
        seen: the samples behind the model.
        calibration: that of the checkpoint, if it has one.
        threshold: that of the checkpoint, as ``{"score", "value", "rule"}``, if it has one.
        conventions: at how many tokens it cuts a text, and how it is asked, where that applies.
    """

    name: str
    sha256: Any
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    members: int
    heads: list[dict[str, Any]]
    cost: dict[str, Any]
    seen: Sequence[Entry]
    calibration: Calibration | None
    threshold: Mapping[str, Any] | None
    conventions: Mapping[str, Any]

    @abstractmethod
    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """The logits of a data set, in an order of the contender's own; ``rows`` are some samples in an order."""

    def stored_sets(self) -> list[EvalSet]:
        """The test sets that a predictions file brings along."""
        raise UsageError("eval needs --data", hint="hydractl eval --help")

    def check_sets(self, sets: Sequence[EvalSet]) -> None:  # noqa: B027 - a model that runs takes any set
        """Refuse data sets of which this row can say nothing.

        Raises:
            InputError: naming them.
        """

    def release(self) -> None:  # noqa: B027 - predictions take none
        """Let go of what takes memory."""


class Running(Contender):
    """A model, or the members of an ensemble one after another."""

    def __init__(self, argument: ModelArgument, settings: EvalSettings, log: Log) -> None:
        from hydractl.cost import parameters

        self._argument, self._settings, self._log = argument, settings, log
        self._model: Loaded | None = None
        descriptions = [source.description for source in argument.sources]
        first = descriptions[0]
        self.name, self.sha256 = argument.name, argument.sha256
        self.labels = next((d.labels for d in descriptions if d.labels is not None), None)
        classes = argument.sources[0].classes
        assert classes is not None  # with_classes() has been here
        self.classes, self.reads = classes, first.reads
        masks = [mask for description in descriptions for mask in description.masks]
        self.members = len(masks)
        same = all(mask.heads == masks[0].heads for mask in masks)
        towers = {site.path: site.tower for site in argument.sources[0].sites}
        self.heads = [
            {"site": p, "tower": towers[p], "heads": n, "kept": [list(mask.kept[p]) for mask in masks]}
            for p, n in (masks[0].heads.items() if same else ())
        ]
        self.cost = {
            "params": sum(parameters(source.tensors) for source in argument.sources),
            "macs": self._macs(),
            "single_macs": self._single(),
        }
        self.seen = merged(*(description.seen for description in descriptions))
        extra = first.extra if len(descriptions) == 1 else {}
        self.calibration, self.threshold = _stored(extra, self.name)
        self.conventions = {}
        if first.preprocess.get("max_length") is not None:
            self.conventions["max_length"] = first.preprocess["max_length"]
        if first.prompt is not None:
            self.conventions["prompt"] = list(first.prompt)

    @property
    def argument(self) -> ModelArgument:
        """The MODEL argument."""
        return self._argument

    @property
    def batch_size(self) -> int:
        """Samples that run together."""
        return self._settings.batch_size

    def _macs(self) -> int | None:
        from hydractl.cost_formula import macs_formula, work_of

        whole = self._settings.whole_last_block
        found = [
            macs_formula(source.description, work_of(source.description, source.tensors, whole_last_block=whole))
            for source in self._argument.sources
        ]
        return None if None in found else sum(one for one in found if one is not None)

    def _single(self) -> int | None:
        from hydractl.cost_formula import macs_formula, single_work

        description = self._argument.sources[0].description
        return macs_formula(description, single_work(description, whole_last_block=self._settings.whole_last_block))

    def decisive(self) -> dict[str, Any]:
        """What decides the logits: predictions of other values are of no use."""
        settings = self._settings
        return {
            "batch_size": settings.batch_size,
            "dtype": settings.dtype,
            "device": self.loaded().device_type,
            "whole_last_block": settings.whole_last_block,
            **self.conventions,
        }

    def loaded(self) -> Loaded:
        """The model with its weights read."""
        if self._model is None:
            settings = self._settings
            model = self._argument.build(settings.device, settings.dtype, whole_last_block=settings.whole_last_block)
            model.read_prompts(self._log, self.name)
            self._model = Loaded(model, settings)
        return self._model

    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """Run the model."""
        return self.loaded().batches(one.dataset, rows)

    def release(self) -> None:
        """Forget the weights."""
        self._model = None


class Loaded:
    """A model that is loaded."""

    def __init__(self, model: Any, settings: EvalSettings) -> None:
        self.model, self._settings = model, settings
        self._parameter = next(model.parameters())
        self.device_type = self._parameter.device.type

    def batches(self, dataset: Any, rows: Sequence[int] | None) -> Batches:
        import torch

        from hydractl.data import batches
        from hydractl.fusion.runtime import move

        model, settings, parameter = self.model, self._settings, self._parameter
        with torch.inference_mode():
            for batch in batches(
                dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=rows
            ):
                logits = model.member_logits(move(batch.inputs, parameter.device, parameter.dtype))
                wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
                yield batch.indices, logits.to("cpu", wide).numpy()


class Stored(Contender):
    """Predictions of a model, read from their file."""

    def __init__(self, name: str | None, predictions: Predictions) -> None:
        model = predictions.model
        self._predictions = predictions
        self.name = name or str(model["name"])
        self.sha256 = model.get("sha256")
        self.labels = model.get("labels")
        self.members, _, self.classes = predictions.shape(0)
        self.reads = None
        self.heads, self.cost = model.get("heads") or [], model.get("cost") or {"params": None, "macs": None}
        self.seen: Sequence[Entry] = []
        self.calibration, self.threshold = _stored(model, str(predictions.path))
        self.conventions = {key: model[key] for key in ("max_length", "prompt") if key in model}

    def stored_sets(self) -> list[EvalSet]:
        """The test sets of the file."""
        spec = str(self._predictions.path)
        return [
            EvalSet(one.name, one.role, one.group, spec, one.ids, one.labels, one.fingerprint)
            for one in sorted(self._predictions.sets, key=lambda one: one.role != ID)
            if one.role in (ID, OOD, CORRUPTION)
        ]

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Every set must be in the file, sample for sample."""
        missing = [one for one in sets if self._index(one) is None]
        if missing:
            have = ", ".join(one.name for one in self._predictions.sets)
            raise InputError(
                f"{self._predictions.path} has no predictions of {', '.join(one.name for one in missing)}",
                hint=f"it has {have}; a set with other samples, labels or order is another set",
            )

    def already_seen(self, one: EvalSet) -> int:
        """How many samples of a set the model had seen when it was asked."""
        index = self._index(one)
        return 0 if index is None else self._predictions.sets[index].seen

    def _index(self, one: EvalSet) -> int | None:
        same = [i for i, entry in enumerate(self._predictions.sets) if entry.fingerprint == one.fingerprint]
        return next((i for i in same if self._predictions.sets[i].name == one.name), same[0] if same else None)

    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """Read the file."""
        index = self._index(one)
        assert index is not None  # check_sets() has been here
        yield from self._predictions.batches(index)


def _stored(document: Mapping[str, Any], origin: str) -> tuple[Calibration | None, dict[str, Any] | None]:
    """The calibration and the threshold that a file holds."""
    calibration = document.get("calibration")
    try:
        return None if calibration is None else Calibration.from_json(calibration), stored(document.get("threshold"))
    except InputError as error:
        raise InputError(f"{origin}: {error.message}") from None


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
