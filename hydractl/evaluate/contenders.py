"""What a row of the answer is about: a model that runs, or predictions that were kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy.typing as npt

from hydractl.data import batches
from hydractl.errors import InputError, UsageError
from hydractl.evaluate.eval_set import EvalSet
from hydractl.evaluate.mc_dropout import MCDropout, with_layers
from hydractl.files.document_check import count, record, text
from hydractl.files.fingerprints import Entry, merged
from hydractl.files.training_history import trainings_of
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.threshold import stored
from hydractl.model.arguments import ModelArgument
from hydractl.model.cost import dense_macs, macs, parameters
from hydractl.model.runtime import move
from hydractl.settings import EvalSettings

Batches = Iterator[tuple[Sequence[int], npt.NDArray[Any]]]
"""Rows of a data set, and the logits ``[M, rows, C]`` of every member."""


class Contender(ABC):
    """One row.

    Attributes:
        name: of the row.
        labels: names of the classes, None where unknown.
        classes: number of classes.
        reads: ``image`` or ``text``; None for predictions, which read nothing any more.
        members: number of members.
        heads: of every site, the heads there are and those each member keeps.
        cost: ``params`` and ``macs``, the latter None where it is not known.
        seen: the samples behind the model.
        calibration: that of the checkpoint, if it has one.
        threshold: that of the checkpoint, as ``{"score", "value", "rule"}``, if it has one.
        fitted_on: what the checkpoint says its calibration was fitted on, if it does.
        training: the course of the trainings that its members came from (:mod:`hydractl.files.training_history`).
        conventions: at how many tokens it cuts a text, and how it is asked, where that applies.
        mc_dropout: ``p``, ``samples`` and ``seed`` where its members are passes of MC dropout, else None.
    """

    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    members: int
    heads: list[dict[str, Any]]
    cost: dict[str, Any]
    seen: Sequence[Entry]
    calibration: Calibration | None
    threshold: Mapping[str, Any] | None
    fitted_on: Mapping[str, Any] | None
    conventions: Mapping[str, Any]
    mc_dropout: Mapping[str, Any] | None
    training: Sequence[Mapping[str, Any]] = ()

    @property
    @abstractmethod
    def sha256(self) -> Any:
        """SHA-256 of its file, one for each where several run one after another."""

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
        self._argument, self._settings, self._log = _runnable(argument, settings), settings, log
        self._model: Loaded | None = None
        descriptions = [source.description for source in argument.sources]
        first = descriptions[0]
        self.name = argument.name
        self.labels = next((d.labels for d in descriptions if d.labels is not None), None)
        classes = argument.sources[0].classes
        assert classes is not None  # with_classes() has been here
        self.classes, self.reads = classes, first.reads
        masks = [mask for description in descriptions for mask in description.masks]
        self.mc_dropout = settings.passes()
        passes = 1 if self.mc_dropout is None else self.mc_dropout["samples"]
        self.members = len(masks) * passes
        same = all(mask.heads == masks[0].heads for mask in masks)
        towers = {site.path: site.tower for site in argument.sources[0].sites}
        self.heads = [
            {"site": p, "tower": towers[p], "heads": n, "kept": [list(mask.kept[p]) for mask in masks]}
            for p, n in (masks[0].heads.items() if same else ())
        ]
        whole = settings.whole_last_block
        macs_of = [macs(s.description, s.tensors, whole_last_block=whole) for s in self._argument.sources]
        self.cost = {
            "params": sum(parameters(source.tensors) for source in argument.sources),
            "macs": passes * sum(macs_of),
            "single_macs": dense_macs(self._argument.sources[0].description, whole_last_block=whole),
        }
        self.training = trainings_of(descriptions)
        self.seen = merged(*(description.seen for description in descriptions))
        self.calibration, self.threshold, self.fitted_on = self._chosen_before()
        self.conventions = {}
        if first.preprocess.get("max_length") is not None:
            self.conventions["max_length"] = first.preprocess["max_length"]
        if first.prompt is not None:
            self.conventions["prompt"] = list(first.prompt)

    def _chosen_before(self) -> Before:
        """What the checkpoint holds; nothing, with a warning, where it was chosen for other predictions."""
        extras = [source.description.extra for source in self._argument.sources]
        if len(extras) == 1 and self.mc_dropout is None:
            return chosen_before(extras[0], self.name)
        why = "of one model alone" if self.mc_dropout is None else "without dropout"
        warn_of_left_out(self.name, extras, self._settings, self._log, why)
        return Before(None, None, None)

    @property
    def sha256(self) -> Any:
        """SHA-256 of its files."""
        return self._argument.sha256

    @property
    def argument(self) -> ModelArgument:
        """The MODEL argument."""
        return self._argument

    @property
    def batch_size(self) -> int:
        """Samples that run together."""
        return self._settings.batch_size

    def decisive(self) -> dict[str, Any]:
        """What decides the logits: predictions of other values are of no use."""
        settings = self._settings
        return {
            "batch_size": settings.batch_size,
            "dtype": settings.dtype,
            "device": self.loaded().device_type,
            "whole_last_block": settings.whole_last_block,
            **self.conventions,
            **({} if self.mc_dropout is None else {"mc_dropout": dict(self.mc_dropout)}),
        }

    def loaded(self) -> Loaded:
        """The model with its weights read."""
        if self._model is None:
            settings = self._settings
            model = self._argument.build(settings.device, settings.dtype, whole_last_block=settings.whole_last_block)
            model.read_prompts(self._log, self.name)
            self._model = Loaded(model, settings, self.mc_dropout)
        return self._model

    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """Run the model."""
        return self.loaded().batches(one, rows)

    def release(self) -> None:
        """Forget the weights."""
        self._model = None


class Loaded:
    """A model that is loaded, with the passes of MC dropout where they are asked for."""

    def __init__(self, model: Any, settings: EvalSettings, passes: Mapping[str, Any] | None = None) -> None:
        self.model, self._settings = model, settings
        self._passes = None
        if passes is not None:
            self._passes = MCDropout(model, **passes)
        self._parameter = next(model.parameters())
        self.device_type = self._parameter.device.type

    def batches(self, one: EvalSet, rows: Sequence[int] | None) -> Batches:
        import torch

        model, settings, parameter = self.model, self._settings, self._parameter
        assert one.dataset is not None  # a model that runs needs --data
        with torch.inference_mode():
            for batch in batches(
                one.dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=rows
            ):
                inputs = move(batch.inputs, parameter.device, parameter.dtype)
                if self._passes is None:
                    logits = model.member_logits(inputs)
                else:
                    logits = self._passes.member_logits(inputs, one.fingerprint, batch.indices[0])
                wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
                yield batch.indices, logits.to("cpu", wide).numpy()


def _runnable(argument: ModelArgument, settings: EvalSettings) -> ModelArgument:
    """The MODEL as it is run: with dropout layers where they are asked for.

    Raises:
        UsageError: for a model that has none.
    """
    if settings.mc_dropout is None:
        return argument

    return replace(argument, sources=[with_layers(source) for source in argument.sources])


def warn_of_left_out(
    name: str, documents: Sequence[Mapping[str, Any]], settings: EvalSettings, log: Log, of: str
) -> None:
    """Warn where a stored calibration or threshold would be expected and is not used.

    Args:
        name: of the row.
        documents: those of its models that may hold one.
        settings: what they say of a temperature or a threshold is used instead, and nothing is warned of.
        log: is told.
        of: of which predictions they were chosen.
    """
    unless = {"calibration": settings.temperature, "threshold": settings.threshold or settings.temperature}
    found = [key for key, asked in unless.items() if asked is None and any(one.get(key) for one in documents)]
    if found:
        log.warn(f"{name}: the stored {' and '.join(found)} is left out: it was chosen for the predictions {of}")


class Before(NamedTuple):
    """What was chosen for a model before, as of :class:`Contender`."""

    calibration: Calibration | None
    threshold: Mapping[str, Any] | None
    fitted_on: Mapping[str, Any] | None


_FITTED_ON = record({"spec": text, "n": count, "fingerprint": text}, ("spec", "n", "fingerprint"))


def chosen_before(document: Mapping[str, Any], origin: str) -> Before:
    """The calibration and the threshold that a file holds.

    Raises:
        InputError: for what eval does not write.
    """
    calibration = document.get("calibration")
    try:
        if calibration is None:
            return Before(None, stored(document.get("threshold")), None)
        found = Calibration.from_json(calibration)
        where = calibration.get("fitted_on")
        problems = [] if where is None else list(_FITTED_ON(where, "what its calibration was fitted on"))
        if problems:
            raise InputError(problems[0])
        return Before(found, stored(document.get("threshold")), where)
    except InputError as error:
        raise InputError(f"{origin}: {error.message}") from None
