"""A row that is a model, or the members of an ensemble one after another: it runs when its logits are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from hydractl.data.batching import Batch
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.inputs import read_batches
from hydractl.evaluation.options import EvalRunOptions, FitOptions
from hydractl.evaluation.predictions.header import Asking, ScoreDataEntry
from hydractl.evaluation.predictions.reading import LogitsBatch
from hydractl.evaluation.probing import Readouts
from hydractl.evaluation.providers.answering import Answering, BatchPlace, OwnClassifier, member_features, models_of
from hydractl.evaluation.providers.dropout import DropoutPasses
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.providers.predicted import PredictedModel
from hydractl.evaluation.providers.probed import ProbeClassifier
from hydractl.evaluation.providers.stored_fit import StoredFit, warn_of_left_out
from hydractl.evaluation.sets import EvalSet
from hydractl.evaluation.words import digest_of_words, words_for
from hydractl.files.description import Description
from hydractl.files.fingerprints import merged
from hydractl.files.model_records import CascadeRecord, CostRecord
from hydractl.files.predictions_header import DecisiveRecord, PredictedSiteRecord
from hydractl.files.training_history import trainings_of
from hydractl.heads.mask import HeadMask
from hydractl.log import Log
from hydractl.metrics.cascade import stored_cascade
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.probabilities import Floats
from hydractl.model.cost import dense_macs, macs, parameters, staged_macs, total_nonzero
from hydractl.model.detection import Detector, TrainingFeatures, fit_detector, read_training
from hydractl.model.loading import ModelArgument, Runnable
from hydractl.model.runtime import HydraModel, move


class RunningModel(LogitsProvider):
    """A model that is run.

    Attributes:
        argument: the MODEL of the command.
        options: the options of running it.
        reused: its predictions that were made before.

    Args:
        fit: the options of what is fitted for it.
        log: tells what it reads.
        probed: the names of the classes of a probe (None if they have no names) and their number; None if the model
            answers by its own classifier.
    """

    def __init__(
        self,
        argument: ModelArgument,
        options: EvalRunOptions,
        fit: FitOptions,
        log: Log,
        probed: tuple[Sequence[str] | None, int] | None = None,
    ) -> None:
        # How it answers: by its own classifier, by a probe, or in passes of dropout.
        answering = _answering(options, fit, probed)
        prepared = [answering.prepared(source) for source in argument.sources]
        self.argument = replace(argument, sources=prepared)
        self.options = options
        self.reused: list[PredictedModel] = []
        self._fit = fit
        self._log = log
        self._answering = answering
        self._model: Runnable | None = None  # until its weights are read

        # What the headers of its files tell; the first source speaks for what all have in common.
        descriptions = [source.description for source in self.argument.sources]
        first = descriptions[0]
        self.name = argument.name
        self.labels, self.classes = answering.classes_of(self.argument)
        self.reads = first.reads
        members_in_a_pass = sum(len(description.masks) for description in descriptions)
        self.members = answering.passes * members_in_a_pass
        self.mc_dropout = answering.mc_dropout
        towers = set(self._towers().values())
        self.zero_shot = probed is None and len(towers) > 1
        self.heads = self._kept_heads(descriptions)
        self.cost = self._cost()
        self.training = trainings_of(descriptions)
        self.seen = merged(*(description.seen for description in descriptions))
        self.conventions = _conventions(first)

        # What was fitted for it before, as far as it answers in the same way now.
        self.stored = self._stored_fit(fit)
        self.cascade = self._usable_cascade(first)
        if self.stored.score in ON_FEATURES:
            self.on_features = [self.stored.score]

    # --- what is known before it runs ---------------------------------------------------------------------------------

    def _towers(self) -> dict[str, str]:
        """Return the tower (the encoder of images or of texts) of each attention layer, by the path of the layer."""
        first_source = self.argument.sources[0]
        return {site.path: site.tower for site in first_source.sites}

    def _kept_heads(self, descriptions: Sequence[Description]) -> list[PredictedSiteRecord]:
        """Return the heads that each member keeps at each site, which is an attention layer that heads can be cut from.

        An empty list if the members differ in their sites, or in how many heads these have.
        """
        masks: list[HeadMask] = []
        for description in descriptions:
            masks += description.masks
        heads_by_site = masks[0].heads
        if any(mask.heads != heads_by_site for mask in masks):
            return []

        towers = self._towers()
        sites = []
        for path, count in heads_by_site.items():
            kept_by_member = [list(mask.kept[path]) for mask in masks]
            sites.append(PredictedSiteRecord(site=path, tower=towers[path], heads=count, kept=kept_by_member))
        return sites

    def _cost(self) -> CostRecord:
        """Return its parameters, and the mult-adds of one sample, all sources and passes together."""
        whole_last_block = self.options.whole_last_block
        all_and_nonzero = []  # of the parameters of each source
        params = 0
        macs_of_a_pass = 0
        for source in self.argument.sources:
            params_of_source = parameters(source.tensors)
            all_and_nonzero.append((params_of_source, source.description.params_nonzero))
            params += params_of_source
            macs_of_a_pass += macs(source.description, source.tensors, whole_last_block=whole_last_block)

        nonzero = total_nonzero(all_and_nonzero)
        first_description = self.argument.sources[0].description
        return CostRecord(
            params=params,
            params_nonzero=nonzero.get("params_nonzero"),
            macs=self._answering.passes * macs_of_a_pass,
            single_macs=dense_macs(first_description, whole_last_block=whole_last_block),
        )

    def _answers_as_its_file(self) -> bool:
        """Return whether its predictions are those for which its file may hold a calibration or a cascade."""
        is_one_file = len(self.argument.sources) == 1
        return is_one_file and self._answering.unlike_file is None

    def _stored_fit(self, fit: FitOptions) -> StoredFit:
        """Return the fit that the checkpoint holds; an empty one, with a warning, if it is for other predictions."""
        extras = [source.description.extra for source in self.argument.sources]
        if self._answers_as_its_file():
            return StoredFit.from_description(extras[0], self.name)
        reason = self._answering.unlike_file or "of one model alone"
        warn_of_left_out(self.name, extras, fit, self._log, reason)
        return StoredFit()

    def _usable_cascade(self, description: Description) -> CascadeRecord | None:
        """Return the checkpoint's cascade; None if it has none, or if it was fitted for other predictions."""
        cascade = stored_cascade(description.extra.get("cascade"), self.members)
        if cascade is None:
            return None
        if not self._answers_as_its_file():
            return None
        tensors = self.argument.sources[0].tensors
        costs = staged_macs(description, tensors, whole_last_block=self.options.whole_last_block)
        first_macs, rest_macs = costs[cascade.member]
        return CascadeRecord(
            member=cascade.member,
            score=cascade.score,
            value=cascade.value,
            first_macs=first_macs,
            rest_macs=rest_macs,
        )

    @property
    def sha256(self) -> str | list[str]:
        """The SHA-256 of its files, which are hashed when it is asked for."""
        return self.argument.sha256

    def decisive(self) -> DecisiveRecord:
        """Return the settings that decide the logits: predictions made with others cannot be reused."""
        return DecisiveRecord(
            prompt=self.conventions.get("prompt"),
            max_length=self.conventions.get("max_length"),
            batch_size=self.options.batch_size,
            dtype=self.options.dtype,
            device=self._parameter().device.type,
            whole_last_block=self.options.whole_last_block,
            mc_dropout=self.mc_dropout,
            probe=self.probe,
            cascade=self.cascade,
        )

    # --- running ------------------------------------------------------------------------------------------------------

    def reusable_predictions(self, dataset: EvalSet) -> LogitsProvider | None:
        """Return the first file of ``--reuse`` that has the set and the scores on features of this command, or None.

        Raises:
            InputError: if this file was made with other settings.
        """
        needed_scores: set[str] = set()
        if self.detector is not None:
            needed_scores.update(self.detector.names)
        for predictions in self.reused:
            if not predictions.has(dataset):
                continue
            if needed_scores.issubset(predictions.on_features):
                predictions.check_made_with(self._needed_header_entries())
                return predictions
        return None

    def _needed_header_entries(self) -> dict[str, object]:
        """Return the entries that predictions must have in their header to be those of this model and command."""
        needed: dict[str, object] = {"labels": None}
        if self.labels is not None:
            needed["labels"] = list(self.labels)
        if self.detector is not None:
            needed["fitted_on"] = fitted_on_of(self.detector)
        needed.update(self.decisive().to_json())
        return needed

    def loaded(self) -> Runnable:
        """Return the model with its weights, which the first call reads and :meth:`release` forgets."""
        if self._model is not None:
            return self._model
        options = self.options
        model = self.argument.build(options.device, options.dtype, whole_last_block=options.whole_last_block)
        if self.cascade is None and isinstance(model, HydraModel):
            model.cascade = None  # one in the file is for other predictions than this row's
        model.read_prompts(self._log, self.name)
        self._answering.start(model)
        self._model = model
        return model

    def _parameter(self) -> torch.nn.Parameter:
        """Return one of its weights, which tells the device and the format that it runs in."""
        model = self.loaded()
        return next(model.parameters())

    def batches(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> LogitsBatches:
        """Run the model, and yield the logits of each batch, as float32, or float64 if the model runs in it.

        Args:
            dataset: the data set.
            rows: the numbers of the samples to run, in this order; None for all.
        """
        parameter = self._parameter()
        # Formats narrower than float32 are only for running: their logits are kept and measured as float32.
        kept_dtype = torch.float32
        if self.options.dtype == "float64":
            kept_dtype = torch.float64
        with torch.inference_mode():
            for batch in self._batches_as_read(dataset, rows):
                inputs = move(batch.inputs, parameter.device, parameter.dtype)
                place = BatchPlace(dataset.fingerprint, batch.indices[0])
                logits, scores = self._answering.outputs(inputs, place, self.detector)
                kept_logits = logits.to("cpu", kept_dtype)
                yield LogitsBatch(batch.indices, kept_logits.numpy(), scores)

    def _batches_as_read(self, dataset: EvalSet, rows: Sequence[int] | None = None) -> Iterator[Batch]:
        """Return the batches of a data set as the model reads it, of all samples or of these rows in this order."""
        description = self.argument.sources[0].description
        preprocess = {"family": description.family, **description.preprocess}
        collate = self.loaded().preprocess
        return read_batches(
            dataset, collate, preprocess, self.options.batch_size, workers=self.options.workers, rows=rows
        )

    def _fitting_inputs(self, data: EvalSet | None) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield the row numbers and the inputs of each batch of a set that something is fitted to; none without a set.

        Inputs are on the model's device and in its format. Progress is shown.
        """
        if data is None or data.dataset is None:
            return
        parameter = self._parameter()
        with self._log.progress(f"{self.name} on {data.name}", len(data), "samples") as progress:
            for batch in self._batches_as_read(data):
                inputs = move(batch.inputs, parameter.device, parameter.dtype)
                yield batch.indices, inputs
                progress.advance(len(batch.indices))

    def release(self) -> None:
        """Forget the weights, and the probes that were fitted to them."""
        if self._model is not None:
            self._answering.release()
            self._model = None

    # --- fitting to features ------------------------------------------------------------------------------------------

    def fit_scores(
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None = None
    ) -> None:
        """Fit OOD scores on features to the training data; without these, take the scores that the checkpoint holds.

        A score of words is fitted anew where the command names some.

        Args:
            names: the names of the scores.
            data: the training data; None without.
            neighbours: k of the scores ``knn`` and ``nnguide``.
            kept: the file that keeps the features of the training data; None for none.
        """
        first_model = models_of(self.loaded())[0]
        stored = first_model.detector
        taken: list[str] = []
        if stored is not None:
            taken = [name for name in names if name in stored.names and self._is_taken(name, data)]
        if stored is None or not taken:
            self.detector = self._fitted_detector(names, data, neighbours, kept)
            return

        # Some scores can be had although the checkpoint lacks them.
        missing = [name for name in names if name not in taken]
        if not missing:
            self.detector = stored
            return
        added = self._fitted_detector(missing, data, neighbours, kept)
        self.detector = stored.with_scores(added)

    def _is_taken(self, name: str, data: EvalSet | None) -> bool:
        """Return whether a score that the checkpoint holds is taken from it: where nothing is given to fit it to."""
        if ON_FEATURES[name] == "words":
            return self._fit.negative_words is None
        return data is None

    def _fitted_detector(
        self, names: Sequence[str], data: EvalSet | None, neighbours: int, kept: FeaturesFile | None
    ) -> Detector:
        """Return the scores of these names, fitted to the features of a probe if there is one, else of the members."""
        fitted_on: dict[str, object] = {}
        labels = None
        if data is not None:
            fitted_on = {**data.to_json(), "knn_k": neighbours}
            labels = data.labels
        words = words_for(names, self._fit)
        if words:
            fitted_on["negative_words"] = digest_of_words(words)

        # Probes were fitted to features of the same data, which are still there.
        detector_of_probes = self._answering.fitted_detector(names, neighbours, fitted_on)
        if detector_of_probes is not None:
            return detector_of_probes
        models = models_of(self.loaded())
        with torch.inference_mode():
            features = self._training_features(models, data, kept)
            return fit_detector(names, models, features, labels, neighbours, fitted_on, words)

    def _training_features(
        self, models: Sequence[HydraModel], data: EvalSet | None, file: FeaturesFile | None
    ) -> TrainingFeatures:
        """Return the members' features of the training data: those that a file holds, else those that are computed now.

        Args:
            models: the models that run one after another, with their weights.
            data: the training data; None gives the features of no samples, for scores that need none.
            file: holds the features of an earlier run, or takes those that are computed now; None for neither.
        """
        if data is None or file is None:
            return read_training(models, self._fitting_inputs(data))

        made_with = {"sha256": self.sha256, "data": data.fingerprint, "samples": len(data)}
        made_with.update(self.decisive().to_json())
        stored = file.read(made_with, self.members, len(data))
        if stored is not None:
            self._log.info(f"{self.name}: its features of --train are those in {file.path}")
            return stored

        computed = read_training(models, self._fitting_inputs(data))
        # Samples that cannot be read are counted and listed when a run tries to read them: a file of features without
        # them would hide them from the next run.
        all_were_read = len(computed.rows) == len(data)
        if all_were_read:
            file.write(computed, made_with)
        return computed

    def fit_probe(self, data: EvalSet, val: EvalSet | None) -> None:
        """Fit a probe to what each member makes of the training data.

        Args:
            data: the training data.
            val: the validation data that a penalty is chosen on; None for the default penalty.

        Raises:
            InputError: if the training data are too few, or have no sample of some class.
        """
        classifier = self._answering
        assert isinstance(classifier, ProbeClassifier)  # only where --probe is given
        chosen_on = None
        if val is not None and classifier.chooses_on_val:
            chosen_on = self._readouts(val)
        classifier.fit_probe(self._readouts(data), chosen_on)
        self.probe = classifier.probe

    def _readouts(self, data: EvalSet) -> Readouts:
        """Return the features that each member computes from a labelled set, in float64, and the labels beside them."""
        rows: list[int] = []
        features_by_batch: list[list[Floats]] = []  # of each batch, for each member [B, D]
        with torch.inference_mode():
            for batch_rows, inputs in self._fitting_inputs(data):
                rows += batch_rows
                batch_features = []
                for features in member_features(self.loaded(), inputs):
                    batch_features.append(features.cpu().double().numpy())
                features_by_batch.append(batch_features)

        # The batches of each member are joined to one array [N, D].
        features_by_member = [np.concatenate(batches) for batches in zip(*features_by_batch, strict=True)]
        assert data.labels is not None  # it was opened with need_labels
        return Readouts(data, data.labels[rows], features_by_member)


def _answering(options: EvalRunOptions, fit: FitOptions, probed: tuple[Sequence[str] | None, int] | None) -> Answering:
    """Return the way in which a model answers: in passes of dropout, by a probe, or else by its own classifier.

    The settings refuse MC dropout with a probe. ``probed`` is the names and the number of the probe's classes.
    """
    if options.dropout is not None:
        return DropoutPasses(options.dropout)
    if fit.probe is not None:
        assert probed is not None
        labels, classes = probed
        return ProbeClassifier(fit.probe, labels, classes)
    return OwnClassifier()


def fitted_on_of(detector: Detector) -> ScoreDataEntry | None:
    """Return the training data that scores were fitted to, as documents hold them; None if they needed none."""
    if not detector.fitted_on:
        return None
    return cast("ScoreDataEntry", dict(detector.fitted_on))


def _conventions(description: Description) -> Asking:
    """Return the number of tokens at which a model cuts texts, and the templates of its prompts, if it has these."""
    conventions: Asking = {}
    max_length = description.preprocess.get("max_length")
    if max_length is not None:
        conventions["max_length"] = max_length
    if description.prompt is not None:
        conventions["prompt"] = list(description.prompt)
    return conventions
