"""Scores of all heads of one model by one criterion, on a sample of labelled data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hydractl.criteria import Calibration, Decider, get_criterion
from hydractl.criteria.base import Criterion
from hydractl.data import batches, open_data
from hydractl.data.base import Dataset
from hydractl.data.text import report_cut
from hydractl.errors import NonFiniteError
from hydractl.files.provenance import provenance
from hydractl.heads.mask import HeadScores
from hydractl.heads.selection import site_budget
from hydractl.log import Log
from hydractl.model.checks import check_finite
from hydractl.model.loading import build_model, resolve_device, resolve_dtype
from hydractl.model.matching import asked_classes, check_labels, known, named_by_data, sites_of
from hydractl.model.runtime import HydraModel, move
from hydractl.model.slicing import StoredHeads
from hydractl.model.source import Source


def criterion_of(source: Source, settings: Any) -> Criterion:
    """The criterion of ``--method``, with all checked that can be before the model is loaded."""
    criterion, sites = get_criterion(settings.method), sites_of(source, settings.tower)
    if isinstance(criterion, Decider):
        criterion.check(sites)
    return criterion


def score_source(source: Source, settings: Any, log: Log) -> HeadScores:
    """Score the heads of a source; of a model of two towers those that ``tower`` means.

    Of a criterion that decides how many heads are kept, ``info`` holds under its name how, and as ``kept`` which.

    Args:
        settings: anything with the options of ``score``: method, order, keep, remove, samples, data, seed, ...

    Raises:
        NonFiniteError: when a score is not finite.
    """
    criterion = criterion_of(source, settings)
    paths = [site.path for site in sites_of(source, settings.tower)]
    if criterion.needs_data:
        source = named_by_data(source, settings.data, settings.limit)
        dataset = _open(source, settings)
        check_labels(dataset, source)
        model: Any = build_model(source, settings.device, settings.dtype)
    else:  # nothing runs, so nothing but the weights of one site after another is read
        dataset = None
        check_finite(source.name, source.tensors)
        resolve_device(settings.device)
        model = StoredHeads(source.tensors, source.description, source.family, resolve_dtype(settings.dtype))
    calibration, drawn, fingerprint = calibration_sample(dataset, model, settings, log)
    kept, indices = source.description.mask.kept, [i for i, s in enumerate(model.sites) if s.path in paths]
    sequential = settings.order == "sequential" and criterion.needs_data
    own: dict[str, Any] = {}
    decided: dict[str, Any] = {}
    if isinstance(criterion, Decider):
        own = {name: getattr(settings, name) for name in criterion.options}
        decision = criterion.decide(model, replace(calibration, options=own), indices)
        found = decision.scores
        chosen = {model.sites[i].path: at for i, at in decision.kept.items()}
        originals = {path: [kept[path][n] for n in at] for path, at in chosen.items()}
        decided = {criterion.name: {**decision.info, "kept": originals}}
    elif sequential:
        found = _sequential(source, model, criterion, calibration, settings, paths)
    else:
        found = criterion.score(model, calibration, indices)
    details = {
        "method": settings.method,
        "order": settings.order if criterion.needs_data else None,
        "keep": settings.keep if sequential else None,
        "remove": settings.remove if sequential else None,
        "samples": len(drawn) or None,
        "data": fingerprint,
        "dtype": settings.dtype if criterion.needs_data else None,
        "batch_size": settings.batch_size if criterion.needs_data else None,
        "max_length": source.description.preprocess.get("max_length") if criterion.needs_data else None,
        **own,
        **asked_classes(source, settings.tower),
    }
    info = {
        "arch": source.description.arch,
        "method": settings.method,
        **decided,
        "source": provenance("score", settings, [source.sha256], details),
    }
    return HeadScores(_by_head(source, model, settings.method, found), info)


def _by_head(
    source: Source, model: HydraModel, method: str, found: dict[int, list[float]]
) -> dict[str, tuple[float, ...]]:
    """The scores of the heads present as one of every head of the original numbering.

    Raises:
        NonFiniteError: when a score is not finite.
    """
    scores = {}
    for i in found:
        site = model.sites[i]
        values = dict(zip(source.description.mask.kept[site.path], found[i], strict=True))
        for head, value in values.items():
            if not math.isfinite(value):
                raise NonFiniteError(f"the {method} score of {site.path} head {head} is {value}")
        scores[site.path] = tuple(values.get(h, -math.inf) for h in range(site.heads))
    return scores


def _open(source: Source, settings: Any) -> Dataset:
    # No names, no mapping by name: an empty list makes the data refuse names instead of taking them by position.
    labels = source.description.labels or []
    reads = {source.name: source.description.reads}
    return open_data(settings.data, limit=settings.limit, labels=labels, need_labels=True, reads=reads)


def calibration_sample(
    dataset: Dataset | None, model: HydraModel, settings: Any, log: Log
) -> tuple[Any, list[int], str | None]:
    """Draw ``--samples`` labelled samples by ``--seed`` without replacement.

    Returns:
        The calibration, the indices drawn, ascending, and the fingerprint of the data they were drawn from; no indices
        and no fingerprint where the criterion needs no data.
    """
    import numpy as np

    if dataset is None:
        return Calibration(lambda: iter(()), 0, settings.seed, log), [], None
    count = min(settings.samples, len(dataset))
    if count < settings.samples:
        log.warn(f"{settings.data} has {len(dataset)} samples, fewer than --samples {settings.samples}: all are used")
    drawn = sorted(np.random.default_rng(settings.seed).choice(len(dataset), count, replace=False).tolist())
    report_cut(dataset, model.preprocess, log, drawn)
    parameter = next(model.parameters())

    def iterate() -> Iterator[tuple[Any, Any]]:
        for batch in batches(dataset, model.preprocess, settings.batch_size, workers=settings.workers, indices=drawn):
            yield move(batch.inputs, parameter.device, parameter.dtype), known(batch.labels).to(parameter.device)

    return Calibration(iterate, count, settings.seed, log), drawn, dataset.fingerprint()


def _sequential(
    source: Source, model: HydraModel, criterion: Any, calibration: Any, settings: Any, paths: list[str]
) -> dict[int, list[float]]:
    """Score site after site on the model as pruned so far (paper D.1.1)."""
    import torch

    budget = site_budget(source.description.mask.at(paths), settings.keep, settings.remove)
    parameter = next(model.parameters())
    scores: dict[int, list[float]] = {}
    try:
        for i, site in enumerate(model.sites):
            if site.path not in budget:
                continue
            scores[i] = criterion.score(model, calibration, [i])[i]
            # A zero gate is a removed head, for the outputs and for every gradient behind it.
            order = sorted(range(len(scores[i])), key=lambda h: (scores[i][h], h))
            gate = torch.ones(1, len(order), device=parameter.device, dtype=parameter.dtype)
            gate[0, order[: budget[site.path]]] = 0
            model.attentions[i].head_gate = gate
    finally:
        for attention in model.attentions:
            attention.head_gate = None
    return scores
