"""``hydractl score``: write one importance score per head, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydractl.criteria import Calibration, Criterion, Decider, ScoredModel
from hydractl.criteria.criterion import gates_kept
from hydractl.data import Batch, Dataset, batches
from hydractl.data.base import left_out_warnings, one_class_warning, orientation_warnings
from hydractl.data.part import DatasetPart
from hydractl.data.text import cut_warning
from hydractl.errors import NonFiniteError
from hydractl.files.atomic import claimed, file_path, seed_mark, write_json
from hydractl.files.circuit_answer import ScoresAnswer
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import HeadScores
from hydractl.heads.selection import site_budget
from hydractl.log import Log
from hydractl.model.loading import build_model, resolve_device, resolve_dtype
from hydractl.model.matching import asked_classes, known, of_one_member, sites_of
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, need_classifier, open_source
from hydractl.model.stored import StoredHeads, check_finite_weights
from hydractl.options.call import Call, filled
from hydractl.verbs.choosing import Measuring, Scoring
from hydractl.verbs.opening import announce_reading, open_named, opening_options
from hydractl.verbs.outcome import Outcome


def run(call: Call) -> Outcome:
    """Return an importance score for every attention head of one model, by the criterion of ``--method``.

    They are written to a JSON file, too, unless they go to standard output. A dry run returns how many heads there are.
    """
    # The model, the options, and the name of the file.
    values, log = call.values, call.log
    criterion: Criterion = values["method"]
    scoring = filled(Scoring, values, verb="score", criterion=criterion)
    source = of_one_member(open_source(values["model"][0], opening_options(values, bodies=True)), "score")
    default_name = f"{source.name}.{criterion.name}{seed_mark(scoring.seed)}.scores.json"
    path = file_path(values["output"] or default_name)

    # Claim the file before anything is computed.
    with claimed(None if call.writes_to_stdout() else path, force=values["force"]) as target:
        if values["dry_run"]:
            check_criterion(source, criterion, scoring.tower)
            heads = source.description.mask.counts()
            plan = ScoresAnswer.planned(model=source.name, output=str(path), heads=heads, method=str(criterion))
            return Outcome(plan)

        # Score, and write.
        announce_reading([source], log)
        scores = ScoresAnswer.model_validate(score_source(source, scoring, log).to_json())
        scores = scores.model_copy(update={"warnings": log.warnings})
        files = [] if target is None else [write_json(target, scores.to_dict())]
    return Outcome(scores, files=files)


def check_criterion(source: Source, criterion: Criterion, tower: str | None) -> None:
    """Check all that is possible before the model is loaded.

    Raises:
        InputError: the criterion needs data, and the model has no classifier.
    """
    if criterion.needs_data:
        need_classifier(source)
    criterion.check(sites_of(source, tower))


def score_source(source: Source, scoring: Scoring, log: Log) -> HeadScores:
    """Return the scores of the attention heads of a model, with their provenance in ``info``.

    In a model of two towers (encoders of images and of texts) only the heads of ``--tower`` are scored. A criterion
    that also decides which heads are kept (a ``Decider``) adds an entry with its name to ``info``.

    Raises:
        NonFiniteError: a score is not finite.
    """
    criterion = scoring.criterion
    assert criterion is not None
    check_criterion(source, criterion, scoring.tower)
    paths = site_paths(source, scoring.tower)

    # Open the model and the samples ("calibration"). A criterion without data reads the stored weights, so no model is
    # built, and its calibration is empty.
    model: Any
    on_data: ModelOnData | None = None
    if criterion.needs_data:
        on_data = open_calibration(source, scoring, log)
        source = on_data.source
        model = on_data.model
        calibration = on_data.calibration
    else:
        check_finite_weights(source.name, source.tensors)
        resolve_device(scoring.device)  # raises an error for one that is not there
        dtype = resolve_dtype(scoring.dtype)
        model = StoredHeads(source.tensors, source.description, source.family, dtype)
        calibration = Calibration(lambda: iter(()), 0, scoring.seed, log)

    # Score in one of three ways. A Decider scores and decides in one go. A sequential order scores one site (attention
    # layer) after another, each without the lowest heads of those before. Else all sites are scored at once.
    site_indices = [index for index, site in enumerate(model.sites) if site.path in paths]
    is_sequential = scoring.order == "sequential" and criterion.needs_data
    info: dict[str, object] = {"arch": source.description.arch, "method": criterion.name}
    if isinstance(criterion, Decider):
        decision = criterion.decide(model, calibration, site_indices)
        scores = decision.scores
        kept = {}
        for index, heads in decision.kept.items():
            # Heads are indices among those that the model has; in the file they have their numbers before any pruning.
            path = model.sites[index].path
            heads_present = source.description.mask.kept[path]
            kept[path] = [heads_present[head] for head in heads]
        info[criterion.name] = {**decision.info, "kept": kept}
    elif is_sequential:
        scores = _score_site_by_site(source, model, criterion, calibration, scoring, site_indices)
    else:
        scores = criterion.score(model, calibration, site_indices)

    # The provenance says how the scores were made, and "seen" on which samples. A setting that had no effect is None.
    details: dict[str, object] = {
        "method": str(criterion),
        "order": scoring.order if criterion.needs_data else None,
        "keep": scoring.keep if is_sequential else None,
        "remove": scoring.remove if is_sequential else None,
    }
    seen_samples: list[Entry] = []
    if on_data is not None:
        log.warn_all(orientation_warnings(on_data.dataset))
        details.update(on_data.measured_on)
        seen_samples = on_data.used
    details.update(asked_classes(source, scoring.tower))
    info["source"] = provenance("score", scoring.seed, [source.sha256], details, source.lineage)
    info["seen"] = merged(source.description.seen, seen_samples)
    scores_by_path = _scores_of_original_heads(source, model, criterion.name, scores)
    return HeadScores(scores_by_path, info)


def site_paths(source: Source, tower: str | None) -> list[str]:
    """Return the paths of the sites (attention modules) in a tower; of all sites if ``tower`` is None or ``both``."""
    sites = sites_of(source, tower)
    return [site.path for site in sites]


@dataclass(frozen=True)
class ModelOnData:
    """A model that runs, and the samples that its heads or weights are scored on.

    Attributes:
        source: the model, with its classes named by the data if it is zero-shot.
        model: the same model, built.
        calibration: the samples.
        dataset: the samples as a data set; what is said of them is known without further reading once they were run.
        on: how they were drawn and are run.
    """

    source: Source
    model: HydraModel
    calibration: Calibration
    dataset: Dataset
    on: Measuring

    @property
    def measured_on(self) -> dict[str, object]:
        """The entries of the provenance about the samples."""
        return {
            "samples": len(self.dataset),
            "data": self.dataset.fingerprint(),
            "dtype": self.on.dtype,
            "batch_size": self.on.batch_size,
            "max_length": self.source.description.preprocess.get("max_length"),
        }

    @property
    def used(self) -> list[Entry]:
        """The samples as an entry of ``seen``."""
        return [entry(self.on.verb, "calibration", self.dataset)]


def open_samples(source: Source, on: Measuring, log: Log) -> tuple[Source, Dataset]:
    """Return the model with the classes of the data, and the samples that it is measured on, in their order.

    These are ``--samples`` of the data, drawn at random by the seed without replacement; the others are never read. A
    zero-shot model gets the class names of the data.

    Args:
        source: the model.
        on: the data set, how many of its samples are drawn, and the seed.
        log: receives warnings about odd data.
    """
    assert on.data is not None  # the options require it for what needs data
    named, dataset = open_named(source, on.data, on.limit, on.seed)
    log.warn_all([*left_out_warnings(dataset), one_class_warning(dataset)])

    # Draw the samples, without repetition, and sort their indices: samples are read in the order of the data.
    if on.samples is not None:
        count = min(on.samples, len(dataset))
        if count < on.samples:
            log.warn(f"{on.data} has {len(dataset)} samples, fewer than --samples {on.samples}: all are used")
        generator = np.random.default_rng(on.seed)
        indices: list[int] = generator.choice(len(dataset), count, replace=False).tolist()
        dataset = DatasetPart(dataset, dataset.spec, sorted(indices))
    log.warn_all([cut_warning(dataset, named.family.collate(named.description.preprocess))])
    return named, dataset


def open_calibration(source: Source, on: Measuring, log: Log) -> ModelOnData:
    """Return a model that runs on its device, with the samples that it is scored on (the calibration).

    Samples are read anew in each pass over them.

    Args:
        source: the model.
        on: the data set, how many of its samples are drawn and by which seed, and how the model runs.
        log: receives warnings about odd data.
    """
    named, dataset = open_samples(source, on, log)
    model = build_model(named, on.device, on.dtype)
    parameter = next(model.parameters())

    def iterate() -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield inputs and labels ``[B]`` of the drawn samples, batch after batch, on the model's device."""
        for inputs, batch in model_batches(model, dataset, on.batch_size, on.workers):
            labels = known(batch.labels)
            yield inputs, labels.to(parameter.device)

    calibration = Calibration(iterate, len(dataset), on.seed, log)
    return ModelOnData(named, model, calibration, dataset, on)


def model_batches(
    model: HydraModel, dataset: Dataset, batch_size: int, workers: int | None
) -> Iterator[tuple[Any, Batch]]:
    """Yield pairs of the inputs of a batch, on the model's device and in its dtype, and the batch with its labels.

    Args:
        model: the model.
        dataset: the data set; all of its samples are read, in order.
        batch_size: how many are computed together.
        workers: how many processes read them.
    """
    parameter = next(model.parameters())
    all_samples = range(len(dataset))
    for batch in batches(dataset, model.preprocess, batch_size, workers=workers, indices=all_samples):
        yield move(batch.inputs, parameter.device, parameter.dtype), batch


def _score_site_by_site(
    source: Source,
    model: ScoredModel,
    criterion: Criterion,
    calibration: Calibration,
    scoring: Scoring,
    site_indices: Sequence[int],
) -> dict[int, list[float]]:
    """Return the scores of the heads, by site index, scored one site (attention layer) after another.

    This is the sequential order of the paper (D.1.1): after a site is scored, its lowest heads are switched off, so the
    next site is scored without them.

    Args:
        source: the model.
        model: the same model, built. The gates of its heads are set during scoring, and removed at the end.
        criterion: scores the heads of a site.
        calibration: the samples to score on.
        scoring: says how many heads are kept or removed at each site.
        site_indices: the indices of the sites, in the order in which they are scored.
    """
    # How many heads are switched off at each site, by its path, counted from those that it has.
    paths = [model.sites[index].path for index in site_indices]
    present = source.description.mask.at(paths)
    removals_by_path = site_budget(present, scoring.keep, scoring.remove)

    # Score one site after another. Outside of `gates_kept` the model has the gates it had before.
    parameter = next(model.parameters())
    scores: dict[int, list[float]] = {}
    with gates_kept(model):
        for index, path in zip(site_indices, paths, strict=True):
            scores_of_sites = criterion.score(model, calibration, [index])
            site_scores = scores_of_sites[index]
            scores[index] = site_scores
            heads = len(site_scores)
            lowest_first = sorted(range(heads), key=site_scores.__getitem__)  # of equal scores, the first head first
            removed = lowest_first[: removals_by_path[path]]
            # A head's output is multiplied by its gate: zero removes the head, and stops gradients through it.
            gate = torch.ones(1, heads, device=parameter.device, dtype=parameter.dtype)  # [1, heads]
            gate[0, removed] = 0
            model.attentions[index].head_gate = gate
    return scores


def _scores_of_original_heads(
    source: Source, model: ScoredModel, method: str, scores: Mapping[int, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    """Return, by the path of the site (attention module), a score for every head that the model had before any pruning.

    Heads that were removed before have the score minus infinity.

    Args:
        source: the model, which may have been pruned before.
        model: the same model, built.
        method: the criterion, for the message of an error.
        scores: by site index, the scores of the heads that the model still has.

    Raises:
        NonFiniteError: the score of a head is not finite.
    """
    scores_by_path = {}
    for index, scores_present in scores.items():
        # The model still has some heads of a site, e.g. those with the numbers 0, 1 and 3 of 4: from the scores a, b
        # and c of these come [a, b, -inf, c].
        site = model.sites[index]
        heads_present = source.description.mask.kept[site.path]
        scores_of_all = [-math.inf] * site.heads
        for head, score in zip(heads_present, scores_present, strict=True):
            if not math.isfinite(score):
                raise NonFiniteError(f"the {method} score of {site.path} head {head} is {score}")
            scores_of_all[head] = score
        scores_by_path[site.path] = tuple(scores_of_all)
    return scores_by_path
