"""``hydractl score``: one importance per head, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from hydractl.criteria import Calibration, Criterion, Decider, ScoredModel, get_criterion
from hydractl.data import Batch, Dataset, batches, open_data
from hydractl.data.base import report_classes
from hydractl.data.text import report_cut
from hydractl.errors import NonFiniteError
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import HeadScores
from hydractl.heads.selection import site_budget
from hydractl.log import Log
from hydractl.model.loading import build_model, resolve_device, resolve_dtype
from hydractl.model.matching import asked_classes, check_labels_are_classes, known, named_by_data, only_one, sites_of
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.model.stored import StoredHeads, check_finite_weights
from hydractl.settings.laplace import LaplaceSettings
from hydractl.settings.pruning import PruneSettings, ScoreSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

Scoring = ScoreSettings | PruneSettings
"""The settings of a verb that can score heads."""


def run(settings: ScoreSettings, log: Log) -> Outcome:
    """Score every head of one model; return the scores, and the file that they are written to, if any."""
    opened = open_sources(settings.model, model_options(settings, bodies=True))
    source = only_one(opened, "score")
    default_name = f"{source.name}.{settings.method}{settings.seed_mark}.scores.json"
    path = file_path(settings.output or default_name)
    if settings.dry_run:
        outputs = []
        if not settings.to_stdout:
            outputs.append(path)
        check_outputs(outputs, force=settings.force)
        criterion_of(source, settings)
        return Outcome(
            {
                "schema": "hydractl.scores/1",
                "dry_run": True,
                "model": source.name,
                "output": str(path),
                "heads": source.description.mask.counts(),
                "method": settings.method,
            }
        )
    announce_reading([source], log)
    if settings.to_stdout:
        return Outcome(score_source(source, settings, log).to_json(), print_document=True)
    with Output(path, force=settings.force) as output:
        document = score_source(source, settings, log).to_json()
        return Outcome(document, files=[write_json(output, document)])


def criterion_of(source: Source, settings: Scoring) -> Criterion:
    """Return the criterion of ``--method``, after every check that is possible before the model is loaded.

    Raises:
        InputError: it needs data, and the model has no classifier.
    """
    assert settings.method is not None  # the settings need it wherever scores are asked for
    criterion = get_criterion(settings.method)
    if criterion.needs_data:
        need_classifier(source)
    criterion.check(sites_of(source, settings.tower))
    return criterion


def score_source(source: Source, settings: Scoring, log: Log) -> HeadScores:
    """Score the heads of a model; in a model of two towers, those of ``--tower``.

    Returns:
        The scores. A criterion that decides how many heads are kept adds an entry of its name to ``info``: how it
        decided, and as ``kept`` which heads.

    Raises:
        NonFiniteError: when a score is not finite.
    """
    criterion = criterion_of(source, settings)
    criterion_options = {}
    for option in criterion.options:
        criterion_options[option.name] = getattr(settings, option.name)
    paths = site_paths(source, settings.tower)

    # The model and the samples, or what stands in for them where nothing runs.
    model: Any
    measured_on: dict[str, object] = {}
    used: list[Entry] = []
    if criterion.needs_data:
        on_data = open_calibration(source, settings, criterion_options, log)
        source = on_data.source
        model = on_data.model
        calibration = on_data.calibration
        measured_on = on_data.measured_on
        used = on_data.used
    else:
        model = _stored_heads(source, settings)
        calibration = Calibration(lambda: iter(()), 0, settings.seed, log, criterion_options)

    # The scores.
    site_indices = []
    for index, site in enumerate(model.sites):
        if site.path in paths:
            site_indices.append(index)
    is_sequential = settings.order == "sequential" and criterion.needs_data
    info: dict[str, object] = {"arch": source.description.arch, "method": criterion.name}
    if isinstance(criterion, Decider):
        decision = criterion.decide(model, calibration, site_indices)
        scores = decision.scores
        kept = _original_heads(source, model, decision.kept)
        info[criterion.name] = {**decision.info, "kept": kept}
    elif is_sequential:
        scores = _score_site_by_site(source, model, criterion, calibration, settings, site_indices)
    else:
        scores = criterion.score(model, calibration, site_indices)

    # How they were made.
    details: dict[str, object] = {"method": criterion.name, "order": None, "keep": None, "remove": None}
    if criterion.needs_data:
        details["order"] = settings.order
    if is_sequential:
        details["keep"] = settings.keep
        details["remove"] = settings.remove
    details.update(measured_on)
    details.update(criterion_options)
    details.update(asked_classes(source, settings.tower))
    info["source"] = provenance("score", settings.seed, [source.sha256], details, source.lineage)
    info["seen"] = merged(source.description.seen, used)
    scores_by_path = _scores_of_original_heads(source, model, criterion.name, scores)
    return HeadScores(scores_by_path, info)


def site_paths(source: Source, tower: str | None) -> list[str]:
    """Return the paths of the sites (attention modules) of a tower; of all towers where it is None or ``both``."""
    sites = sites_of(source, tower)
    return [site.path for site in sites]


def _original_heads(source: Source, model: ScoredModel, kept: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    """Return the heads to keep by their numbers in the model before any pruning.

    Args:
        source: the model, perhaps pruned before.
        model: the same, built.
        kept: by the index of the site (attention module), indices among the heads that the pruned model still has.

    Returns:
        The numbers of the heads by the path of the site.
    """
    originals = {}
    for site_index, head_indices in kept.items():
        path = model.sites[site_index].path
        heads_present = source.description.mask.kept[path]
        originals[path] = [heads_present[head_index] for head_index in head_indices]
    return originals


def _stored_heads(source: Source, settings: Scoring) -> Any:
    """Return what stands in for a model that does not run: it reads the weights of one site after another."""
    check_finite_weights(source.name, source.tensors)
    resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype)
    return StoredHeads(source.tensors, source.description, source.family, dtype)


class ModelOnData(NamedTuple):
    """A model that runs, and the samples that its heads or weights are scored on.

    Attributes:
        source: the model with its classes named for the data.
        model: the same, built.
        calibration: the samples.
        measured_on: what the provenance says of them, by key.
        used: the entry of samples that have been seen.
    """

    source: Source
    model: HydraModel
    calibration: Calibration
    measured_on: dict[str, object]
    used: list[Entry]


def open_calibration(
    source: Source, settings: Scoring, criterion_options: Mapping[str, str | int | float | bool], log: Log
) -> ModelOnData:
    """Return a model that is built, and the samples that it is scored on, drawn by ``--seed``.

    There are as many labelled samples as ``--samples`` says, each once, or all where there are fewer.

    Args:
        source: the model.
        settings: of the verb that scores.
        criterion_options: values of the options that are the criterion's own.
        log: hears of odd data.
    """
    # The data.
    assert settings.data is not None  # the settings need it for such a criterion
    source = named_by_data(source, settings.data, settings.limit)
    dataset = open_data(
        settings.data,
        limit=settings.limit,
        seed=settings.seed,
        # Without class names, an empty list makes the data refuse names instead of matching them by position.
        labels=source.description.labels or [],
        need_labels=True,
        reads={source.name: source.description.reads},
    )
    report_classes(dataset, log)
    check_labels_are_classes(dataset, source)
    model = build_model(source, settings.device, settings.dtype)

    # The samples that are drawn.
    count = min(settings.samples, len(dataset))
    if count < settings.samples:
        option = f"--samples {settings.samples}"
        log.warn(f"{settings.data} has {len(dataset)} samples, fewer than {option}: all are used")
    drawn = drawn_samples(dataset, settings)
    report_cut(dataset, model.preprocess, log, drawn)
    parameter = next(model.parameters())

    def iterate() -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield inputs and labels [batch] of the drawn samples, on the model's device."""
        for inputs, batch in model_batches(model, dataset, drawn, settings):
            labels = known(batch.labels)
            yield inputs, labels.to(parameter.device)

    calibration = Calibration(iterate, count, settings.seed, log, criterion_options)

    # What the provenance says of them.
    measured_on = {
        "samples": count,
        "data": dataset.fingerprint(),
        "dtype": settings.dtype,
        "batch_size": settings.batch_size,
        "max_length": source.description.preprocess.get("max_length"),
    }
    used = [entry(settings.verb, "calibration", dataset, drawn)]
    return ModelOnData(source, model, calibration, measured_on, used)


def model_batches(
    model: HydraModel, dataset: Dataset, indices: Sequence[int], settings: Scoring | LaplaceSettings
) -> Iterator[tuple[Any, Batch]]:
    """Yield batches of samples, each behind its inputs as the model takes them: on its device, in its dtype.

    Args:
        model: the model.
        dataset: the samples.
        indices: which of them, in order.
        settings: with the size of a batch, and the workers that read.
    """
    parameter = next(model.parameters())
    read_batches = batches(
        dataset,
        model.preprocess,
        settings.batch_size,
        workers=settings.workers,
        indices=indices,
    )
    for batch in read_batches:
        inputs = move(batch.inputs, parameter.device, parameter.dtype)
        yield inputs, batch


def drawn_samples(dataset: Dataset, settings: Scoring) -> list[int]:
    """Return the indices of the calibration samples, drawn by ``--seed`` without replacement, in ascending order."""
    count = min(settings.samples, len(dataset))
    generator = np.random.default_rng(settings.seed)
    drawn = generator.choice(len(dataset), count, replace=False)
    indices: list[int] = drawn.tolist()
    return sorted(indices)


def _score_site_by_site(
    source: Source,
    model: ScoredModel,
    criterion: Criterion,
    calibration: Calibration,
    settings: Scoring,
    site_indices: Sequence[int],
) -> dict[int, list[float]]:
    """Score the heads of site after site; those to be removed are shut off before the next site is scored.

    This is the sequential order of the paper (D.1.1).

    Args:
        source: the model.
        model: the same, built; the gates of its heads are set while it is scored, and removed at the end.
        criterion: by which heads are scored, and the lowest removed.
        calibration: the samples to score on.
        settings: with the number of heads to keep or to remove at each site.
        site_indices: of the sites (attention modules), in the order in which they are scored.

    Returns:
        By the index of the site, the scores of the heads that are there.
    """
    paths = [model.sites[index].path for index in site_indices]
    present = source.description.mask.at(paths)
    removals_by_path = site_budget(present, settings.keep, settings.remove)
    parameter = next(model.parameters())
    scores: dict[int, list[float]] = {}
    try:
        for index, path in zip(site_indices, paths, strict=True):
            scores_of_sites = criterion.score(model, calibration, [index])
            site_scores = scores_of_sites[index]
            scores[index] = site_scores
            heads = len(site_scores)
            lowest_first = sorted(range(heads), key=site_scores.__getitem__)  # of equal scores, the first head first
            removed = lowest_first[: removals_by_path[path]]
            # A zero gate removes a head, for the outputs and for every gradient behind it.
            gate = torch.ones(1, heads, device=parameter.device, dtype=parameter.dtype)  # [1, heads]
            gate[0, removed] = 0
            model.attentions[index].head_gate = gate
    finally:
        for attention in model.attentions:
            attention.head_gate = None
    return scores


def _scores_of_original_heads(
    source: Source, model: ScoredModel, method: str, scores: Mapping[int, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    """Return one score for every head that the model had before any pruning, by the path of its attention module.

    The score of a head that is gone is minus infinity.

    Args:
        source: the model.
        model: the same, built.
        method: the criterion, for the error.
        scores: by the index of the site, the scores of the heads that are there.

    Raises:
        NonFiniteError: the score of a head that is there is not finite.
    """
    scores_by_path = {}
    for index, scores_present in scores.items():
        site = model.sites[index]
        heads_present = source.description.mask.kept[site.path]
        scores_of_all = [-math.inf] * site.heads
        for head, score in zip(heads_present, scores_present, strict=True):
            if not math.isfinite(score):
                raise NonFiniteError(f"the {method} score of {site.path} head {head} is {score}")
            scores_of_all[head] = score
        scores_by_path[site.path] = tuple(scores_of_all)
    return scores_by_path
