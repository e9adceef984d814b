"""``hydractl laplace``: a model with a Laplace approximation over its last linear layers, which every pass uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from hydractl.data import batches, open_data
from hydractl.data.base import PAIRS, Dataset, report_classes
from hydractl.data.overlap import GivenSet, trained_on_doubt, without_training_data
from hydractl.data.plausibility import sample_doubts
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import with_tensors, write_checkpoint
from hydractl.files.description import Description, provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.verb_answers import LaplaceAnswer, PlannedLaplace, PosteriorPlan
from hydractl.log import Log
from hydractl.methods.laplace.curvature import PRIORS, LaplaceFit, fit_classifier, fit_pairs
from hydractl.model.laplace import KEY, last_layers, stored_tensors
from hydractl.model.loading import build_model
from hydractl.model.matching import asked_classes, check_labels_are_classes, named_by_data
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source, open_source
from hydractl.settings.laplace import LaplaceSettings
from hydractl.training.data import Reader, report_all_cut
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.laplace/1"

FITTED = ("calibration", "threshold", "ood_score", "cascade")
"""The entries of a checkpoint that were fitted to its logits as they were."""


def run(settings: LaplaceSettings, log: Log) -> Outcome:
    """Fit the posterior and write the model with it."""
    source = _without_fitted(open_source(settings.model[0], model_options(settings)), log)
    path = file_path(settings.output or f"{source.name}.laplace.st")
    data, val, named = _opened(source, settings, log)
    doubts = _doubts(source, data, val, in_passing=settings.dry_run)
    for doubt in doubts:
        log.warn(doubt)
    count = settings.pseudo_data or len(data)
    plan = PosteriorPlan(
        output=str(path),
        model=source.name,
        arch=source.description.arch,
        members=len(source.description.masks),
        samples=len(data),
        pseudo_data=count,
        warnings=doubts,
    )
    if settings.dry_run:
        check_outputs([path], force=settings.force)
        return Outcome(PlannedLaplace(schema=SCHEMA, plan=plan).to_json())
    announce_reading([source], log)
    with Output(path, force=settings.force) as output:
        model = build_model(source, settings.device, settings.dtype)
        fits = _fits(model, data, val, named, settings, log)
        labels = None if val is None or val.labels is None else torch.from_numpy(val.labels)
        priors = [_prior(member, fit, count, labels, settings, log) for member, fit in enumerate(fits)]
        chosen_by = _chosen_by(settings, val)
        log.info(f"prior ({chosen_by}): {_prior_words(priors)}")
        chosen = _Chosen(priors, chosen_by, count)
        posteriors = [fit.posteriors(prior, count) for fit, prior in zip(fits, priors, strict=True)]
        tensors = with_tensors(source.tensors, stored_tensors(posteriors))
        digest = write_checkpoint(output, tensors, _described(source, settings, chosen, data, val).to_json())
    answer = LaplaceAnswer(schema=SCHEMA, plan=plan, prior=priors, chosen_by=chosen_by, sha256=digest)
    return Outcome(answer.to_json(), files=[path])


@dataclass(frozen=True)
class _Chosen:
    """What the posteriors were made with; the checkpoint says it twice, beside its weights and in its provenance.

    Attributes:
        prior: by member and tower, the precision of the prior.
        chosen_by: what chose it.
        pseudo_data: how many samples the curvature counts as.
    """

    prior: Sequence[Mapping[str, float]]
    chosen_by: str
    pseudo_data: float


def _without_fitted(source: Source, log: Log) -> Source:
    """Return the model without a posterior, and without what was fitted to its logits as they were."""
    extra = dict(source.description.extra)
    extra.pop(KEY, None)
    left_out = [key for key in FITTED if key in extra]
    for key in left_out:
        del extra[key]
    if left_out:
        log.warn(f"{source.name}: left out, as fitted to the logits without the posterior: {', '.join(left_out)}")
    return replace(source, description=replace(source.description, extra=extra))


def _prior(
    member: int, fit: LaplaceFit, count: float, labels: torch.Tensor | None, settings: LaplaceSettings, log: Log
) -> dict[str, float]:
    """Choose the prior of each tower of a member, and warn where it is the first or last of what was tried."""
    if settings.prior is not None:
        return dict.fromkeys(fit.curvatures, settings.prior)
    chosen = fit.choose_priors(count, labels)
    meaning = {PRIORS[0]: "the posterior is as wide as it can be", PRIORS[-1]: "hardly any weight is uncertain"}
    for tower, prior in chosen.items():
        if prior in meaning:
            told = f"the best prior, {prior:g}, is at an end of the range: {meaning[prior]}"
            log.warn(f"member {member}, {tower}: {told}")
    return chosen


def _chosen_by(settings: LaplaceSettings, val: Dataset | None) -> str:
    if settings.prior:
        return "given"
    return "marginal likelihood" if val is None else "nll"


def _prior_words(priors: Sequence[Mapping[str, float]]) -> str:
    """Return the priors of all members in words."""
    of_members = []
    for prior_of_tower in priors:
        of_towers = [f"{tower} {prior:g}" for tower, prior in prior_of_tower.items()]
        of_members.append(", ".join(of_towers))
    return "; ".join(of_members)


def _described(
    source: Source, settings: LaplaceSettings, chosen: _Chosen, data: Dataset, val: Dataset | None
) -> Description:
    used = {"calibration": data, **({} if val is None else {"val": val})}
    details = {**asdict(chosen), **asked_classes(source, None), "dtype": settings.dtype, "train": data.fingerprint()}
    details["val"] = None if val is None else val.fingerprint()
    return replace(
        source.description,
        extra={**source.description.extra, KEY: {**asdict(chosen), "samples": len(data)}},
        layout="sliced",
        seen=tuple(merged(source.description.seen, [entry("laplace", role, one) for role, one in used.items()])),
        provenance=provenance("laplace", settings.seed, [source.sha256], details, source.lineage),
    )


def _opened(source: Source, settings: LaplaceSettings, log: Log) -> tuple[Dataset, Dataset | None, Source]:
    """Open the data and the validation data, and return the source with their classes."""
    pairs = source.family.classes(source.description.config) is None
    how: dict[str, Any] = {"limit": settings.limit, "seed": settings.seed}
    reads = {source.name: PAIRS if pairs else source.description.reads}
    assert settings.train is not None  # the settings need it
    data = open_data(settings.train, option="--train", reads=reads, ignore_labels=not pairs, **how)
    if settings.val is None:
        return data, None, source
    named = named_by_data(source, settings.val, settings.limit, "--val")
    reads, labels = {source.name: source.description.reads}, named.description.labels or []
    val = open_data(settings.val, option="--val", labels=labels, need_labels=True, reads=reads, **how)
    check_labels_are_classes(val, named)
    found = without_training_data(GivenSet("--val", val), GivenSet("--train", data))
    if found.left_out:
        log.info(found.words("--val", "--train"))
    return data, found.dataset, named


def _doubts(source: Source, data: Dataset, val: Dataset | None, *, in_passing: bool) -> list[str]:
    """List what is odd about the data."""
    doubts = sample_doubts(data, in_passing=in_passing)
    if val is None:
        return doubts
    doubts += sample_doubts(val)
    trained = trained_on_doubt(source.name, source.description.seen, GivenSet("--val", val))
    if trained is not None:
        doubts.append(trained)
    return doubts


def _fits(
    model: HydraModel, data: Dataset, val: Dataset | None, named: Source, settings: LaplaceSettings, log: Log
) -> list[LaplaceFit]:
    last_layers(model)  # refuses what has none, before anything runs
    report_all_cut(model, [data, val], log)
    if val is not None:
        report_classes(val, log)
    validation = None if val is None else _read(model, val, settings, log)
    if len(model.chains) == 1:
        return fit_classifier(model, _read(model, data, settings, log), validation)
    labels, prompt = named.description.labels, named.description.prompt
    classes = None if labels is None or val is None else model.zero_shot(labels, prompt)
    return fit_pairs(model, _read_pairs(model, data, settings, log), validation, classes)


def _read(model: HydraModel, data: Dataset, settings: LaplaceSettings, log: Log) -> Iterator[tuple[Any, Any]]:
    """Yield inputs on the model's device, in the order of the data."""
    parameter = next(model.parameters())
    with log.progress(data.where, len(data), "samples") as progress:
        for batch in batches(
            data, model.preprocess, settings.batch_size, workers=settings.workers, indices=range(len(data))
        ):
            yield move(batch.inputs, parameter.device, parameter.dtype), batch.indices
            progress.advance(len(batch.indices))


def _read_pairs(model: HydraModel, data: Dataset, settings: LaplaceSettings, log: Log) -> Iterator[tuple[Any, Any]]:
    """Yield images and captions on the model's device."""
    read = Reader(model, data, settings.batch_size, settings.workers)
    with log.progress(data.where, len(data), "pairs") as progress:
        for images, captions in read(range(len(data)), 0):
            yield images, captions
            progress.advance(images.shape[0])
