"""A row that is a model, or an ensemble of models that run one after another, and runs when logits are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hydractl.data.names import read_words
from hydractl.evaluation.inputs import KEPT, read_batches
from hydractl.evaluation.mc_dropout import dropout_logits, turn_on, with_layers
from hydractl.evaluation.options import EvalRunOptions, FitOptions
from hydractl.evaluation.predictions.store import LogitsBatch
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.sets import EvalSet
from hydractl.files.fingerprints import merged
from hydractl.files.model_records import CostRecord, ScoreDataRecord
from hydractl.files.predictions_header import (
    DecisiveRecord,
    PredictedModelRecord,
    PredictedSiteRecord,
    StoredScoreRecord,
)
from hydractl.files.training_history import trainings_of
from hydractl.jsonio import canonical_json
from hydractl.log import Log
from hydractl.metrics.ood_scores import HEDGE, LAYERS, OF_LAYERS, OF_UNSIGNED, ON_FEATURES, on_features
from hydractl.metrics.probabilities import Floats
from hydractl.model.arriving import Arriving, one_behind
from hydractl.model.cost import cost_of, dense_macs, total_cost
from hydractl.model.detection import (
    TrainingFeatures,
    ensemble_features,
    fit_detector,
    read_training,
)
from hydractl.model.layers import layers_may_not_fit
from hydractl.model.loading import ModelArgument, Runnable, SequentialEnsemble, resolve_device
from hydractl.model.prediction import Chosen
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source

_UNSUITED = "react and ash were made for features that are not negative, as after a ReLU; this model has others"


class RunningModel(LogitsProvider):
    """A model that runs to compute its logits.

    Attributes:
        argument: the MODEL argument of the command; with dropout layers for MC dropout.
        options: the options for running it.
        log: receives messages and progress.

    Args:
        argument: the MODEL argument of the command.
        options: the options for running it.
        log: receives messages and progress.
    """

    def __init__(self, argument: ModelArgument, options: EvalRunOptions, log: Log) -> None:
        if options.dropout is not None:
            argument = replace(argument, sources=[with_layers(source) for source in argument.sources])

        # What the headers of its files say, without reading weights. Everything that all files have in common is taken
        # from the first.
        descriptions = [source.description for source in argument.sources]
        first_source = argument.sources[0]
        passes = 1 if options.dropout is None else options.dropout.passes
        super().__init__(
            PredictedModelRecord.partly(
                name=argument.name,
                labels=next((each.labels for each in descriptions if each.labels is not None), None),
                heads=_kept_heads(argument.sources),
                training=trainings_of(descriptions),
                cost=_cost(argument.sources, options.whole_last_block, passes),
                prompt=first_source.description.prompt,
                max_length=first_source.description.preprocess.get("max_length"),
                batch_size=options.batch_size,
                dtype=options.dtype,
                device=resolve_device(options.device).type,
                whole_last_block=options.whole_last_block,
                mc_dropout=options.dropout,
            )
        )
        assert first_source.classes is not None  # with_class_names() has set the classes of zero-shot models
        self.classes = first_source.classes
        self.reads = first_source.description.reads
        self.members = passes * sum(len(description.masks) for description in descriptions)
        self.zero_shot = len({site.tower for site in first_source.sites}) > 1
        self.seen = merged(*(description.seen for description in descriptions))

        # How it runs, and what is filled later.
        self.argument = argument
        self.options = options
        self.log = log
        self._model: Runnable | None = None  # set by loaded(), which reads the weights

        # What was chosen for it before. It fits a single file only that answers in the usual way.
        self.stored = Chosen()
        if options.dropout is None and len(descriptions) == 1:
            self.stored = Chosen.of(descriptions[0].extra, self.name)
        if self.stored.score in ON_FEATURES:
            self.on_features = [self.stored.score]

    @property
    def sha256(self) -> str | list[str]:
        """The SHA-256 of its file, or a list for several files; they are hashed on first use."""
        return self.argument.sha256

    def header(self, feature_scores: Sequence[str], fitted_on: ScoreDataRecord | None) -> PredictedModelRecord:
        """Return the record of the model for the header of its predictions file.

        It has what was fitted for the model and is stored in its own file: calibration, threshold and OOD score.

        Args:
            feature_scores: the names of the OOD scores on features that are stored beside the logits.
            fitted_on: the record of the data and words to which these scores are fitted; None for none.
        """
        stored = self.stored
        calibration = stored.calibration
        if calibration is not None:
            calibration = calibration.model_copy(update={"stored": None})
        # The name comes from a file name, which may have bytes that are not valid UTF-8.
        name_bytes = self.name.encode("utf-8", "backslashreplace")
        return self.record.model_copy(
            update={
                "name": name_bytes.decode("utf-8"),
                "sha256": self.sha256,
                "calibration": calibration,
                "threshold": stored.threshold,
                "ood_score": None if stored.ood_score is None else StoredScoreRecord(score=stored.ood_score),
                "feature_scores": feature_scores or None,
                "fitted_on": fitted_on if feature_scores else None,
            }
        )

    # --- running ------------------------------------------------------------------------------------------------------

    def loaded(self) -> Runnable:
        """Return the model with its weights; the first call reads them, :meth:`release` frees them."""
        if self._model is not None:
            return self._model
        options = self.options
        model = self.argument.build(options.device, options.dtype, whole_last_block=options.whole_last_block)
        model.read_prompts(self.log, self.name)  # of a zero-shot model: computes the features of its class texts
        if options.dropout is not None:  # MC dropout
            turn_on(model, options.dropout.p)
        self._model = model
        return model

    def _parameter(self) -> torch.nn.Parameter:
        """Return one of the weights, from which callers take the device and dtype of the model."""
        model = self.loaded()
        return next(model.parameters())

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Run the model, and yield the logits of each batch in float32, or in float64 if the model runs in float64.

        Each batch also has the OOD scores on features, if some are asked for. On a GPU the next batch is started before
        the result of the last one is waited for.

        Args:
            dataset: the data set.
            rows: the indices of the samples to run, in this order; None means all samples. It is no error if none of
                the given samples can be read.
        """
        # A model in 16 bits also gives float32 here, because metrics are computed from at least float32.
        dtype_of_logits = torch.float64 if self.options.dtype == "float64" else torch.float32
        for indices, outputs in one_behind(self._started_batches(dataset, rows), self._parameter().device):
            logits, *features = outputs.arrived()
            scores: Mapping[str, Floats] = {}
            if self.detector is not None:
                scores = self.detector.scores(logits, features)
            yield LogitsBatch(indices, logits.to(dtype_of_logits).numpy(), scores)

    def _started_batches(
        self, dataset: EvalSet, rows: Sequence[int] | None
    ) -> Iterator[tuple[Sequence[int], Arriving]]:
        """Start the model on each batch; yield the indices of its samples, and its logits and features.

        The tensors may still be computed on the GPU when they are yielded: ``arrived()`` waits for them. There are
        features only if OOD scores need them. The arguments are those of :meth:`batches`.
        """
        model = self.loaded()
        dropout = self.options.dropout  # None without MC dropout
        fingerprint = "" if dropout is None else dataset.fingerprint
        for indices, inputs in self._inputs(dataset, rows):
            features: Sequence[Tensor] = []
            with torch.inference_mode():
                if dropout is not None:  # no scores on features are allowed with it
                    logits = dropout_logits(model, dropout, inputs, fingerprint, indices[0])
                elif self.detector is not None:
                    layers = self.detector.takes_layers
                    logits, features = ensemble_features(models_of(model), inputs, layers=layers)
                else:
                    logits = model.member_logits(inputs)
                outputs = Arriving([logits, *features])
            yield indices, outputs

    def _inputs(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield the indices and the inputs of each batch of a data set, on the model's device and in its dtype.

        Args:
            dataset: the data set.
            rows: the indices of the only samples to read, in this order; None means all samples.
        """
        model = self.loaded()
        parameter = self._parameter()
        description = self.argument.sources[0].description
        preprocess = {"family": description.family, **description.preprocess}  # what decides the inputs
        options = self.options
        for batch in read_batches(
            dataset, model.preprocess, preprocess, options.batch_size, workers=options.workers, rows=rows
        ):
            yield batch.indices, move(batch.inputs, parameter.device, parameter.dtype)

    def _fitting_inputs(self, data: EvalSet | None) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield the indices and the inputs of each batch of training data, and show progress; nothing for None."""
        if data is None or data.dataset is None:
            return
        with self.log.progress(f"{self.name} on {data.name}", len(data), "samples") as progress:
            for indices, inputs in self._inputs(data):
                yield indices, inputs
                progress.advance(len(indices))

    def release(self) -> None:
        """Release the weights."""
        self._model = None

    # --- fitting to features ------------------------------------------------------------------------------------------

    def fit_scores(self, names: Sequence[str], data: EvalSet | None, what: FitOptions) -> None:
        """Set :attr:`detector`, which computes OOD scores on features, to the scores fitted to training data.

        A score in the checkpoint is used as it is if the command names no data (or words) to which it could be fitted.
        All other scores are fitted now. A warning names each that is constant.

        Args:
            names: the names of the OOD scores of the row; those on logits need no fit.
            data: the training data, or None.
            what: the options of fitting: k of the score ``knn``, and the words of ``neglabel``.
        """
        names = on_features(names)
        if not names:
            return
        model = self.loaded()
        models = models_of(model)

        # Warn once if a score is for features that are never negative, and this model has negative ones.
        if not OF_UNSIGNED.isdisjoint(names) and _UNSUITED not in self.log.warnings:
            with torch.inference_mode():
                _, of_members = ensemble_features(models, model.example_inputs(1))
            if any(bool((drawn < 0).any()) for drawn in of_members):
                self.log.warn(_UNSUITED)

        # Fit all but stored scores for which the command names nothing to fit them to.
        detector = models[0].detector
        stored_names = [] if detector is None else detector.names
        names_to_fit = [name for name in names if name not in stored_names or _is_refitted(name, data, what)]
        if names_to_fit:
            labels = None if data is None else data.labels
            negative_words = _negative_words(names_to_fit, what)
            with torch.inference_mode():
                features = self._training_features(models, data, self._of_layers(names_to_fit))
                # Its fingerprint is known once the samples were read.
                fitted_on = self.fit_record(names_to_fit, data, what)
                fitted = fit_detector(names_to_fit, models, features, labels, what.knn_k, fitted_on, negative_words)
            if detector is None or names_to_fit == names:
                detector = fitted
            else:
                detector = detector.with_scores(fitted)
        assert detector is not None  # each score is stored, or was fitted

        self.detector = detector
        self.scores_fitted_on = detector.fitted_on
        for name in detector.constant:
            self.log.warn(
                f"{self.name}: {name} learns from wrong and right predictions, and those on --train are all alike: it "
                "is constant; give data that the model was not trained on"
            )

    def fit_record(self, names: Sequence[str], data: EvalSet | None, what: FitOptions) -> ScoreDataRecord | None:
        """Return the record of the data and words to which :meth:`fit_scores` fits scores; None if they need none."""
        # The words are recorded by their digest.
        digest_of_words = None
        negative_words = _negative_words(names, what)
        if negative_words:
            lines = "\n".join(negative_words)
            digest_of_words = hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
        if data is not None:
            return ScoreDataRecord(**dict(data.record()), knn_k=what.knn_k, negative_words=digest_of_words)
        return None if digest_of_words is None else ScoreDataRecord(negative_words=digest_of_words)

    def _of_layers(self, names: Sequence[str]) -> list[str]:
        """Return those of some scores that take what each block gives; ``hedge`` does so only where the sums fit."""
        names = [name for name in names if name in OF_LAYERS]
        if names == [HEDGE] and layers_may_not_fit(self.argument.sources):
            self.log.warn(f"{HEDGE} is without {LAYERS}, whose sums over all layers may need too much memory")
            return []
        return names

    def _training_features(
        self,
        models: Sequence[HydraModel],
        data: EvalSet | None,
        of_layers: Sequence[str],
    ) -> TrainingFeatures:
        """Return the members' features of the training data; in a study those that were kept, if there are some.

        Args:
            models: the models that run one after another, with their weights.
            data: the training data; None gives empty features, for scores that need none.
            of_layers: the names of the scores that take the features of every layer.
        """
        # Only the features of layers are summed by label; hedge also needs the held-out ones one by one.
        labels_of_sums = data.labels if data is not None and of_layers else None
        holds_out = HEDGE in of_layers

        memory = KEPT.get()  # None outside of a study
        if data is None or memory is None:
            return read_training(models, self._fitting_inputs(data), labels_of_sums, holds_out=holds_out)

        # Features are kept under everything that decides them. Kept ones may lack those of layers.
        decisive = self.record.model_dump(include=set(DecisiveRecord.model_fields))
        key = canonical_json({"sha256": self.sha256, "data": data.fingerprint, **decisive})
        features: TrainingFeatures | None = memory.values.get(key)
        if features is not None:
            first_member = features.members[0]
            has_sums = labels_of_sums is None or first_member.layers
            has_held_out = not holds_out or first_member.held_out
            if has_sums and has_held_out:
                return features

        computed = read_training(models, self._fitting_inputs(data), labels_of_sums, holds_out=holds_out)
        # Keep them, unless samples could not be read: every run has to try to read these, as it has to report them.
        if len(computed.rows) == len(data):
            memory.keep(key, computed, computed.nbytes)
        return computed


def _is_refitted(name: str, data: EvalSet | None, what: FitOptions) -> bool:
    """Return whether the command names the words, or the training data, to which an OOD score is fitted."""
    if ON_FEATURES[name] == "words":
        return what.negative_words is not None
    return data is not None


def _negative_words(names: Sequence[str], what: FitOptions) -> list[str]:
    """Return the words of ``--negative-words`` if one of some scores needs words, otherwise an empty list.

    Raises:
        InputError: if the file cannot be read, or has no words.
    """
    path = what.negative_words
    if path is None or not any(ON_FEATURES[name] == "words" for name in names):
        return []
    return read_words(path)


def models_of(model: Runnable) -> list[HydraModel]:
    """Return the models of a sequential ensemble; a single model is returned as a list of one."""
    if isinstance(model, SequentialEnsemble):
        return list(model.models)  # type: ignore[arg-type]
    return [model]


def _kept_heads(sources: Sequence[Source]) -> list[PredictedSiteRecord]:
    """Return for each site (attention module) the heads that each member keeps; empty if the files' sites differ.

    Args:
        sources: the files of the model, each of one member or of several.
    """
    # The sites of each file, each with its number of heads.
    sites_by_file = []
    for source in sources:
        heads_by_site = source.description.masks[0].heads
        sites_by_file.append([(site.path, site.tower, heads_by_site[site.path]) for site in source.sites])
    sites_of_first, *others = sites_by_file
    if any(sites != sites_of_first for sites in others):
        return []

    # One record for each site, with the kept heads of every member of all files.
    masks = [mask for source in sources for mask in source.description.masks]
    records = []
    for path, tower, heads in sites_of_first:
        kept_by_member = [list(mask.kept[path]) for mask in masks]
        records.append(PredictedSiteRecord(site=path, tower=tower, heads=heads, kept=kept_by_member))
    return records


def _cost(sources: Sequence[Source], whole_last_block: bool, passes: int) -> CostRecord:
    """Return the number of parameters of all files together, and the multiply-adds of all passes for one sample."""
    costs = [cost_of(source.description, source.tensors, whole_last_block=whole_last_block) for source in sources]
    total = total_cost(costs)
    return CostRecord(
        params=total["params"],
        params_nonzero=total.get("params_nonzero"),
        macs=passes * total["macs"],
        single_macs=dense_macs(sources[0].description, whole_last_block=whole_last_block),
    )
