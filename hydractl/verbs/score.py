"""``hydractl score``: one importance per head, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hydractl.criteria import Calibration, Criterion, Decider, ScoredModel, get_criterion
from hydractl.data import Dataset, batches, open_data
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
from hydractl.model.matching import asked_classes, check_labels, known, named_by_data, only_one, sites_of
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.model.stored import StoredHeads, check_finite
from hydractl.settings.pruning import PruneSettings, ScoreSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

Scoring = ScoreSettings | PruneSettings
"""The settings of a verb that can score heads."""


def run(settings: ScoreSettings, log: Log) -> Outcome:
    """Score every head of one model."""
    opened = open_sources(settings.model, model_options(settings, bodies=True))
    source = only_one(opened, "score")
    path = file_path(settings.output or f"{source.name}.{settings.method}{settings.seed_mark}.scores.json")
    if settings.dry_run:
        check_outputs([] if settings.to_stdout else [path], force=settings.force)
        criterion_of(source, settings)
        plan = {"schema": "hydractl.scores/1", "dry_run": True, "model": source.name, "output": str(path)}
        return Outcome({**plan, "heads": source.description.mask.counts(), "method": settings.method})
    announce_reading([source], log)
    if settings.to_stdout:
        return Outcome(score_source(source, settings, log).to_json(), print_document=True)
    with Output(path, force=settings.force) as output:
        document = score_source(source, settings, log).to_json()
        return Outcome(document, files=[write_json(output, document)])


def criterion_of(source: Source, settings: Scoring) -> Criterion:
    """The criterion of ``--method``, with all checked that can be before the model is loaded."""
    assert settings.method is not None  # the settings need it wherever scores are asked for
    criterion = get_criterion(settings.method)
    if criterion.needs_data:
        need_classifier(source)
    criterion.check(sites_of(source, settings.tower))
    return criterion


def score_source(source: Source, settings: Scoring, log: Log) -> HeadScores:
    """Score the heads of a source; of a model of two towers those that ``--tower`` means.

    Of a criterion that decides how many heads are kept, ``info`` holds under its name how, and as ``kept`` which.

    Raises:
        NonFiniteError: when a score is not finite.
    """
    criterion = criterion_of(source, settings)
    own = {option.name: getattr(settings, option.name) for option in criterion.options}
    paths = [site.path for site in sites_of(source, settings.tower)]
    model: Any  # or what stands in for one
    measured: dict[str, Any] = {}
    used: list[Entry] = []
    if criterion.needs_data:
        source, model, calibration, measured, used = with_data(source, settings, own, log)
    else:
        model, calibration = _stored_heads(source, settings), Calibration(lambda: iter(()), 0, settings.seed, log, own)
    indices = [i for i, site in enumerate(model.sites) if site.path in paths]
    sequential = settings.order == "sequential" and criterion.needs_data
    decided: dict[str, Any] = {}
    if isinstance(criterion, Decider):
        decision = criterion.decide(model, calibration, indices)
        scores, kept = decision.scores, source.description.mask.kept
        originals = {(path := model.sites[i].path): [kept[path][n] for n in at] for i, at in decision.kept.items()}
        decided = {criterion.name: {**decision.info, "kept": originals}}
    elif sequential:
        scores = _sequential(source, model, criterion, calibration, settings, indices)
    else:
        scores = criterion.score(model, calibration, indices)
    details = {
        "method": criterion.name,
        "order": settings.order if criterion.needs_data else None,
        "keep": settings.keep if sequential else None,
        "remove": settings.remove if sequential else None,
        **measured,
        **own,
        **asked_classes(source, settings.tower),
    }
    info = {
        "arch": source.description.arch,
        "method": criterion.name,
        **decided,
        "source": provenance("score", settings.seed, [source.sha256], details, source.lineage),
        "seen": merged(source.description.seen, used),
    }
    return HeadScores(_by_head(source, model, criterion.name, scores), info)


def _stored_heads(source: Source, settings: Scoring) -> Any:
    """Stands in for a model of which nothing runs: the weights of one site after another are read, no more."""
    check_finite(source.name, source.tensors)
    resolve_device(settings.device)
    return StoredHeads(source.tensors, source.description, source.family, resolve_dtype(settings.dtype))


def with_data(
    source: Source, settings: Scoring, own: Mapping[str, Any], log: Log
) -> tuple[Source, HydraModel, Calibration, dict[str, Any], list[Entry]]:
    """The source and its model, ``--samples`` labelled samples drawn by ``--seed`` without replacement, and of these
    what the provenance says and what is seen; ``own`` are options of the criterion.
    """
    assert settings.data is not None  # the settings need it for such a criterion
    source = named_by_data(source, settings.data, settings.limit)
    # No names, no mapping by name: an empty list makes the data refuse names instead of taking them by position.
    labels, reads = source.description.labels or [], {source.name: source.description.reads}
    limit, seed = settings.limit, settings.seed
    dataset = open_data(settings.data, limit=limit, seed=seed, labels=labels, need_labels=True, reads=reads)
    report_classes(dataset, log)
    check_labels(dataset, source)
    model = build_model(source, settings.device, settings.dtype)
    count = min(settings.samples, len(dataset))
    if count < settings.samples:
        log.warn(f"{settings.data} has {len(dataset)} samples, fewer than --samples {settings.samples}: all are used")
    drawn = drawn_samples(dataset, settings)
    report_cut(dataset, model.preprocess, log, drawn)
    parameter = next(model.parameters())

    def iterate() -> Iterator[tuple[Any, torch.Tensor]]:
        for batch in batches(dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=drawn):
            yield move(batch.inputs, parameter.device, parameter.dtype), known(batch.labels).to(parameter.device)

    said = {
        "samples": count,
        "data": dataset.fingerprint(),
        "dtype": settings.dtype,
        "batch_size": settings.batch_size,
        "max_length": source.description.preprocess.get("max_length"),
    }
    used: list[Entry] = [entry(settings.verb, "calibration", dataset, drawn)]
    return source, model, Calibration(iterate, count, settings.seed, log, own), said, used


def drawn_samples(dataset: Dataset, settings: Scoring) -> list[int]:
    """The indices of the calibration samples, drawn by ``--seed`` without replacement."""
    count = min(settings.samples, len(dataset))
    drawn: list[int] = np.random.default_rng(settings.seed).choice(len(dataset), count, replace=False).tolist()
    return sorted(drawn)


def _sequential(
    source: Source,
    model: ScoredModel,
    criterion: Criterion,
    calibration: Calibration,
    settings: Scoring,
    indices: Sequence[int],
) -> dict[int, list[float]]:
    """Score site after site on the model as pruned so far (paper D.1.1)."""
    paths = [model.sites[i].path for i in indices]
    budget = site_budget(source.description.mask.at(paths), settings.keep, settings.remove)
    parameter = next(model.parameters())
    scores: dict[int, list[float]] = {}
    try:
        for i, path in zip(indices, paths, strict=True):
            scores[i] = criterion.score(model, calibration, [i])[i]
            # A zero gate is a removed head, for the outputs and for every gradient behind it.
            order = sorted(range(len(scores[i])), key=lambda h: (scores[i][h], h))
            gate = torch.ones(1, len(order), device=parameter.device, dtype=parameter.dtype)
            gate[0, order[: budget[path]]] = 0
            model.attentions[i].head_gate = gate
    finally:
        for attention in model.attentions:
            attention.head_gate = None
    return scores


def _by_head(
    source: Source, model: ScoredModel, method: str, scores: Mapping[int, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    """The scores of the heads present as one of every head of the original numbering."""
    by_site = {}
    for i, present in scores.items():
        site = model.sites[i]
        values = dict(zip(source.description.mask.kept[site.path], present, strict=True))
        for head, value in values.items():
            if not math.isfinite(value):
                raise NonFiniteError(f"the {method} score of {site.path} head {head} is {value}")
        by_site[site.path] = tuple(values.get(h, -math.inf) for h in range(site.heads))
    return by_site
