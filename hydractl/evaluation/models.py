"""What a row of an evaluation is of: models that run, or the predictions that were kept of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hydractl.data.batching import Batch
from hydractl.errors import InputError, UsageError
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.inputs import read_batches
from hydractl.evaluation.mc_dropout import MCDropout, with_layers
from hydractl.evaluation.options import FitOptions, RunOptions
from hydractl.evaluation.predictions.reading import Concatenated, Predictions
from hydractl.evaluation.probing import Probes, Readouts
from hydractl.evaluation.sets import CORRUPTION, FIT, ID, OOD, EvalSet
from hydractl.files.description import Description
from hydractl.files.fingerprints import Entry, merged
from hydractl.files.training_history import trainings_of
from hydractl.jsonio import differences
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.cascade import stored as stored_cascade
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.threshold import stored as stored_threshold
from hydractl.metrics.threshold import stored_score
from hydractl.model.cost import dense_macs, macs, parameters, staged_macs, total_nonzero
from hydractl.model.detection import (
    Detector,
    TrainingFeatures,
    ensemble_features,
    fit_detector,
    read_training,
    readout,
)
from hydractl.model.loading import ModelArgument
from hydractl.model.runtime import HydraModel, move

Batches = Iterator[tuple[Sequence[int], npt.NDArray[Any], Mapping[str, Floats]]]
"""Rows of a data set, the logits ``[M, rows, C]`` of every member, and by name its scores ``[M, rows]`` on features."""


@dataclass(frozen=True)
class StoredFit:
    """What was fitted for a model before, as its file holds it.

    Attributes:
        calibration: of the averaged prediction, None for none.
        threshold: as ``{"score", "value", "rule"}``, None for none.
        fitted_on: the validation set of the calibration, where the file says it.
        score: the OOD score, None for none.
    """

    calibration: Calibration | None = None
    threshold: Mapping[str, Any] | None = None
    fitted_on: Mapping[str, Any] | None = None
    score: str | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any], origin: str) -> StoredFit:
        """Read what the description of a file holds.

        Raises:
            InputError: for what eval does not write.
        """
        from hydractl.files.documents import FittedOn, check

        calibration = document.get("calibration")
        try:
            threshold = stored_threshold(document.get("threshold"))
            own: dict[str, Any] = {"threshold": threshold}
            own["score"] = stored_score(document)
            if calibration is None:
                return cls(**own)
            checked = Calibration.from_json(calibration)
            where = calibration.get("fitted_on")
            if where is not None:
                check(where, FittedOn, "what its calibration was fitted on is no data set")
            return cls(checked, fitted_on=where, **own)
        except InputError as error:
            raise InputError(f"{origin}: {error.message}", problems=error.problems) from None


class Model(ABC):
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
        stored: the calibration and the threshold of its file.
        training: the course of the trainings that its members came from (:mod:`hydractl.files.training_history`).
        conventions: at how many tokens it cuts a text, and how it is asked, where that applies.
        mc_dropout: ``p``, ``samples`` and ``seed`` where its members are passes of MC dropout, else None.
        on_features: the OOD scores on features that can be had without training data.
        detector: what those of this command were fitted to; None for none.
        zero_shot: whether it is measured by its own classifier of class texts.
        probe: the classifier of features that it is measured by, as its row has it; None for its own.
        cascade: when its first member answers alone (``member``, ``score``, ``value``), and the mult-adds of that
            (``first_macs``) and of the other members (``rest_macs``); None where all members run.
    """

    on_features: Sequence[str] = ()
    detector: Detector | None = None
    zero_shot: bool = False
    probe: Mapping[str, Any] | None = None
    cascade: Mapping[str, Any] | None = None
    name: str
    labels: Sequence[str] | None
    classes: int
    reads: str | None
    members: int
    heads: list[dict[str, Any]]
    cost: dict[str, Any]
    seen: Sequence[Entry]
    stored: StoredFit
    conventions: Mapping[str, Any]
    mc_dropout: Mapping[str, Any] | None
    training: Sequence[Mapping[str, Any]] = ()

    @property
    @abstractmethod
    def sha256(self) -> Any:
        """SHA-256 of its file, one for each where several run one after another."""

    @abstractmethod
    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """The logits of a data set, in an order of the model's own; ``rows`` are some samples in an order."""

    def stored_sets(self) -> list[EvalSet]:
        """The test sets that a predictions file brings along."""
        raise UsageError("eval needs --data", hint="hydractl eval --help")

    def check_sets(self, sets: Sequence[EvalSet]) -> None:  # noqa: B027 - a model that runs takes any set
        """Refuse data sets of which this row can say nothing.

        Raises:
            InputError: naming them.
        """

    def already_seen(self, one: EvalSet) -> int:
        """How many samples of a set had been seen when its predictions were made; 0 for a model that runs."""
        return 0

    def known(self, one: EvalSet) -> Model | None:
        """Predictions that hold its logits of a data set; None where there are none."""
        return None

    def fit_scores(  # noqa: B027
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None = None
    ) -> None:
        """Fit OOD scores on features, which predictions hold already."""

    def fit_probe(self, data: EvalSet, val: EvalSet | None) -> None:  # noqa: B027
        """Fit the classifiers of features, of which predictions hold the logits already."""

    def release(self) -> None:  # noqa: B027 - predictions take none
        """Let go of what takes memory."""


class RunningModel(Model):
    """A model, or the members of an ensemble one after another.

    Attributes:
        argument: the MODEL of the command.
        options: how it runs.
        reused: predictions of it that were made before.

    Args:
        fit: what is fitted for it.
        log: hears of what it reads.
        probed: names (None: they have none) and number of the classes of a probe; None without one.
    """

    def __init__(
        self,
        argument: ModelArgument,
        options: RunOptions,
        fit: FitOptions,
        log: Log,
        probed: tuple[Sequence[str] | None, int] | None = None,
    ) -> None:
        if options.passes is not None:  # with dropout layers; UsageError for a model that has none
            argument = replace(argument, sources=[with_layers(source) for source in argument.sources])
        self.argument, self.options, self._log = argument, options, log
        self._model: Any = None
        self._passes: MCDropout | None = None
        self.reused: list[PredictedModel] = []
        self._probed = fit.probe
        self._probes: Probes | None = None
        descriptions = [source.description for source in argument.sources]
        first = descriptions[0]
        self.name = argument.name
        own = next((d.labels for d in descriptions if d.labels is not None), None)
        self.labels, classes = (own, argument.sources[0].classes) if probed is None else probed
        assert classes is not None  # with_classes() has been here
        self.classes, self.reads = classes, first.reads
        masks = [mask for description in descriptions for mask in description.masks]
        self.mc_dropout = options.passes
        passes = 1 if self.mc_dropout is None else self.mc_dropout["samples"]
        self.members = len(masks) * passes
        same = all(mask.heads == masks[0].heads for mask in masks)
        towers = {site.path: site.tower for site in argument.sources[0].sites}
        self.zero_shot = probed is None and len(set(towers.values())) > 1
        self.heads = [
            {"site": p, "tower": towers[p], "heads": n, "kept": [list(mask.kept[p]) for mask in masks]}
            for p, n in (masks[0].heads.items() if same else ())
        ]
        whole = options.whole_last_block
        work = [macs(source.description, source.tensors, whole_last_block=whole) for source in argument.sources]
        counts = [(parameters(source.tensors), source.description.params_nonzero) for source in argument.sources]
        self.cost = {
            "params": sum(count for count, _ in counts),
            **total_nonzero(counts),
            "macs": passes * sum(work),
            "single_macs": dense_macs(first, whole_last_block=whole),
        }
        self.training = trainings_of(descriptions)
        self.seen = merged(*(description.seen for description in descriptions))
        self.stored = self._stored(fit)
        self.cascade = self._cascade(first)
        self.on_features = [self.stored.score] if self.stored.score in ON_FEATURES else []
        self.conventions = {}
        if first.preprocess.get("max_length") is not None:
            self.conventions["max_length"] = first.preprocess["max_length"]
        if first.prompt is not None:
            self.conventions["prompt"] = list(first.prompt)

    def _cascade(self, description: Description) -> dict[str, Any] | None:
        """Return the checkpoint's cascade; None where it was fitted for other predictions."""
        found = stored_cascade(description.extra.get("cascade"), self.members)
        if found is None or len(self.argument.sources) > 1 or self.mc_dropout is not None or self._probed is not None:
            return None
        whole = self.options.whole_last_block
        costs = staged_macs(description, self.argument.sources[0].tensors, whole_last_block=whole)[found.member]
        return {**asdict(found), "first_macs": costs[0], "rest_macs": costs[1]}

    def _stored(self, fit: FitOptions) -> StoredFit:
        """Return what the checkpoint holds; nothing, with a warning, where it was fitted for other predictions."""
        extras = [source.description.extra for source in self.argument.sources]
        if len(extras) == 1 and self.mc_dropout is None and self._probed is None:
            return StoredFit.of(extras[0], self.name)
        why = "of one model alone" if self.mc_dropout is None else "without dropout"
        why = why if self._probed is None else "of the model's own classifier"
        warn_of_left_out(self.name, extras, fit, self._log, why)
        return StoredFit()

    @property
    def sha256(self) -> Any:
        """SHA-256 of its files, which are hashed now."""
        return self.argument.sha256

    def decisive(self) -> dict[str, Any]:
        """Return what decides the logits: predictions of other values are of no use."""
        options = self.options
        return {
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "device": next(self.loaded().parameters()).device.type,
            "whole_last_block": options.whole_last_block,
            **self.conventions,
            **({} if self.mc_dropout is None else {"mc_dropout": dict(self.mc_dropout)}),
            **({} if self.probe is None else {"probe": dict(self.probe)}),
            **({} if self.cascade is None else {"cascade": dict(self.cascade)}),
        }

    def known(self, one: EvalSet) -> Model | None:
        """Return the first of ``--reuse`` that has the set and the scores on features of this command, or None.

        Raises:
            InputError: they were made with other settings.
        """
        detector = self.detector
        names: Sequence[str] = ()
        own: dict[str, Any] = {"labels": None if self.labels is None else list(self.labels)}
        if detector is not None:
            names, own = detector.names, {**own, "fitted_on": dict(detector.fitted_on) or None}
        for file in self.reused:
            if file.has(one) and {*names} <= {*file.on_features}:
                file.check_made_with({**own, **self.decisive()})
                return file
        return None

    def loaded(self) -> Any:
        """The model with its weights read, and dropout on where it is asked for."""
        if self._model is None:
            options = self.options
            model = self.argument.build(options.device, options.dtype, whole_last_block=options.whole_last_block)
            if self.cascade is None and isinstance(model, HydraModel):
                model.cascade = None
            model.read_prompts(self._log, self.name)
            self._model = model
            if options.passes is not None:
                self._passes = MCDropout(model, **options.passes)
        return self._model

    def batches(self, one: EvalSet, rows: Sequence[int] | None = None) -> Batches:
        """Run the model."""
        model, options = self.loaded(), self.options
        parameter = next(model.parameters())
        with torch.inference_mode():
            for batch in self._batches_of(one, rows):
                inputs = move(batch.inputs, parameter.device, parameter.dtype)
                scores: dict[str, Floats] = {}
                if self._passes is not None:
                    logits = self._passes.member_logits(inputs, one.fingerprint, batch.indices[0])
                elif self.detector is None and self._probes is None:
                    logits = model.member_logits(inputs)
                else:
                    logits, features = self._outputs(inputs)
                    scores = {} if self.detector is None else self.detector.scores(logits, features)
                wide = torch.float64 if options.dtype == "float64" else torch.float32
                yield batch.indices, logits.to("cpu", wide).numpy(), scores

    def _batches_of(self, one: EvalSet, rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """A data set as the model reads it; ``rows`` are some samples in an order."""
        options, description = self.options, self.argument.sources[0].description
        preprocess = {"family": description.family, **description.preprocess}
        collate = self.loaded().preprocess
        return read_batches(one, collate, preprocess, options.batch_size, workers=options.workers, rows=rows)

    def _outputs(self, inputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits and features of every member."""
        if self._probes is None:
            return ensemble_features(self._parts(), inputs)
        features = self._readouts(inputs)
        return self._probes.logits(features), features

    def _readouts(self, inputs: Any) -> list[torch.Tensor]:
        return [own for part in self._parts() for own in readout(part, inputs)]

    def _parts(self) -> list[HydraModel]:
        """The models that run one after another."""
        return list(getattr(self.loaded(), "models", [self.loaded()]))

    def fit_scores(
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None = None
    ) -> None:
        """Fit OOD scores on features, where there are training data; take what the checkpoint holds where not."""
        stored = self._parts()[0].detector if data is None else None
        fresh = [name for name in names if stored is None or name not in stored.names]
        if fresh or stored is None:
            fitted = self._fitted(fresh, data, neighbours, kept)
            stored = fitted if stored is None else stored.with_scores(fitted)
        self.detector = stored

    def _fitted(
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None
    ) -> Detector:
        about = {} if data is None else {**data.to_json(), "knn_k": neighbours}
        if self._probes is not None:
            return self._probes.detector(names, neighbours, about)
        with torch.inference_mode():
            known = None if data is None else data.labels
            return fit_detector(names, self._parts(), self._training(data, kept), known, neighbours, about)

    def _training(self, data: EvalSet | None, kept: FeaturesFile | None) -> TrainingFeatures:
        """What the members make of training data: from the file that keeps it, or by running them."""
        if data is None or kept is None:
            return read_training(self._parts(), self._inputs(data))
        about = {"sha256": self.sha256, "data": data.fingerprint, "samples": len(data), **self.decisive()}
        found = kept.read(about, self.members, len(data))
        if found is not None:
            self._log.info(f"{self.name}: its features of --fit are those in {kept.path}")
            return found
        found = read_training(self._parts(), self._inputs(data))
        if len(found.rows) == len(data):  # what could not be read is noted when it is tried alone
            kept.write(found, about)
        return found

    def _inputs(self, data: EvalSet | None) -> Iterator[tuple[Sequence[int], Any]]:
        """The rows and the inputs of what something is fitted on, with progress."""
        if data is None or data.dataset is None:
            return
        parameter = next(self.loaded().parameters())
        with self._log.progress(f"{self.name} on {data.name}", len(data), "samples") as progress:
            for batch in self._batches_of(data):
                yield batch.indices, move(batch.inputs, parameter.device, parameter.dtype)
                progress.advance(len(batch.indices))

    def fit_probe(self, data: EvalSet, val: EvalSet | None) -> None:
        """Fit a probe to what each member makes of the training data.

        Args:
            data: the training data.
            val: what a penalty is chosen on; None for the default.

        Raises:
            InputError: they are too few, or have no sample of some class.
        """
        assert self._probed is not None
        chosen_on = None if val is None or self._probed != "linear" else self._read(val)
        self._probes = Probes(self._probed, self._read(data), chosen_on, self.classes, self.labels)
        self.probe = self._probes.facts

    def _read(self, data: EvalSet) -> Readouts:
        """The features of a labelled set."""
        rows: list[int] = []
        found: list[list[Floats]] = []
        with torch.inference_mode():
            for part, inputs in self._inputs(data):
                rows += part
                found.append([own.cpu().double().numpy() for own in self._readouts(inputs)])
        assert data.labels is not None  # it was opened with need_labels
        return Readouts(data, data.labels[rows], [np.concatenate(parts) for parts in zip(*found, strict=True)])

    def release(self) -> None:
        """Forget the weights, and what was fitted to them."""
        self._model = self._passes = self._probes = None


class PredictedModel(Model):
    """Predictions of a model, read from their file; or of an ensemble, from those of its models."""

    def __init__(self, name: str | None, predictions: Predictions | Concatenated) -> None:
        model = predictions.model
        self._predictions = predictions
        self.name = name or str(model["name"])
        self.labels = model.get("labels")
        self.members, _, self.classes = predictions.shape(0)
        self.reads = None
        self.heads, self.cost = model.get("heads") or [], model.get("cost") or {"params": None, "macs": None}
        self.training = model.get("training") or ()
        self.seen: Sequence[Entry] = []
        self.stored = StoredFit.of(model, predictions.origin)
        self.on_features = predictions.scores
        self.conventions = {key: model[key] for key in ("max_length", "prompt") if key in model}
        self.mc_dropout = model.get("mc_dropout")
        self.probe = model.get("probe")
        self.cascade = model.get("cascade")

    @property
    def sha256(self) -> Any:
        """SHA-256 of the models that the predictions are of."""
        return self._predictions.model.get("sha256")

    def stored_sets(self) -> list[EvalSet]:
        """The test sets of the file."""
        return [
            EvalSet(**{**vars(dataset), "seen": 0}, spec=self._predictions.origin)
            for dataset in sorted(self._predictions.sets, key=lambda stored: stored.role != ID)
            if dataset.role in (ID, OOD, CORRUPTION)
        ]

    def check_sets(self, sets: Sequence[EvalSet]) -> None:
        """Every set must be in the file, sample for sample."""
        missing = [dataset for dataset in sets if dataset.role != FIT and self._index(dataset) is None]
        if missing:
            have = ", ".join(dataset.name for dataset in self._predictions.sets)
            raise InputError(
                f"{self._predictions.origin} has no predictions of {', '.join(one.name for one in missing)}",
                hint=f"it has {have}; a set with other samples, labels or order is another set",
            )

    def has(self, one: EvalSet) -> bool:
        """Whether the file has a set, sample for sample."""
        return self._index(one) is not None

    def check_made_with(self, wanted: Mapping[str, Any]) -> None:
        """Refuse logits of other settings.

        Raises:
            InputError: listing the differences.
        """
        there = {key: self._predictions.model.get(key) for key in wanted}
        if there != wanted:
            problems = differences(there, wanted, "in the file")
            text = f"--reuse {self._predictions.origin} has predictions of other settings"
            raise InputError(text, hint="give the settings that it was made with, or leave it out", problems=problems)

    def already_seen(self, one: EvalSet) -> int:
        """Return the number that the file gives; 0 for a set that it has not."""
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


def warn_of_left_out(name: str, documents: Sequence[Mapping[str, Any]], fit: FitOptions, log: Log, of: str) -> None:
    """Warn where a stored calibration or threshold would be expected and is not used.

    Args:
        name: of the row.
        documents: those of its models that may hold one.
        fit: a temperature or a threshold of the command is used instead, and nothing is warned of.
        log: receives messages.
        of: of which predictions they were chosen.
    """
    unless = {
        "calibration": fit.temperature,
        "threshold": fit.threshold or fit.temperature,
        "ood_score": "told" if fit.scores.told else None,
        "cascade": None,
    }
    unused = [
        key for key, value in unless.items() if value is None and any(document.get(key) for document in documents)
    ]
    if unused:
        log.warn(f"{name}: the stored {' and '.join(unused)} is left out: it was chosen for the predictions {of}")


# --- from MODEL arguments to rows -------------------------------------------------------------------------------------
