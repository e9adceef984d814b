"""``hydractl prune --weights``: set single weights to zero, wherever they are in the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hydractl.criteria import Calibration
from hydractl.criteria.weights import WEIGHT_CRITERIA, lowest_weights, matrices
from hydractl.errors import NonFiniteError, UsageError
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, merged
from hydractl.files.verb_answers import PrunedWeights, PruneWeightsAnswer, SizeChange
from hydractl.log import Log
from hydractl.model.cost import nonzero_parameters, parameters, size_of
from hydractl.model.matching import asked_classes, sites_of
from hydractl.model.source import Source, need_classifier, with_max_length, write_model
from hydractl.model.stored import check_finite_weights
from hydractl.settings.pruning import NEED_DATA, PruneSettings
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.score import with_data


@dataclass(frozen=True)
class _Plan:
    """The weights to remove.

    Attributes:
        prefixes: how the names of the parameters start whose tower is meant.
        names: the stored tensors whose weights may be removed, sorted.
        removable: how many these weights are.
        total: parameters of the model.
        count: weights to remove, those that are zero already included.
    """

    prefixes: tuple[str, ...]
    names: list[str]
    removable: int
    total: int
    count: int


def prune_weights(source: Source, settings: PruneSettings, log: Log) -> Outcome:
    """Score the weights, write the checkpoint with the lowest of them set to zero."""
    if settings.method in NEED_DATA:
        need_classifier(source)
    default = f"{source.name}.{settings.method}-weights{settings.weights:g}{settings.seed_mark}.st"
    output = settings.output or default
    folder = output.endswith("/")
    path = Path(output) if folder else file_path(output)
    plan = _plan(source, settings)
    assert settings.weights is not None
    counts = PrunedWeights(share=settings.weights, parameters=plan.total, removable=plan.removable, removed=plan.count)
    answer = PruneWeightsAnswer(
        schema="hydractl.prune/1", model=source.name, arch=source.description.arch, weights=counts
    )
    if settings.dry_run:
        check_outputs([path], force=settings.force, folder=folder)
        return Outcome(replace(answer, dry_run=True, files=[str(path)]).to_json())
    announce_reading([source], log)
    with Output(path, force=settings.force, folder=folder) as target:
        cost, digest = _write(source, settings, plan, target, log)
        answer = replace(answer, output=str(path), cost=cost, sha256=digest)
        return Outcome(answer.to_json(), files=[path])


def _plan(source: Source, settings: PruneSettings) -> _Plan:
    """Count the weights that may go and those that have to.

    Raises:
        UsageError: more have to go than may.
    """
    assert settings.weights is not None
    network = source.family.build(source.description.config)
    prefixes: tuple[str, ...] = ("",)
    sites_of(source, settings.tower)  # refuses a tower that is not there
    if settings.tower not in (None, "both"):
        prefixes = ()
        for stages in source.family.stages(network):
            if stages.tower == settings.tower:
                prefixes += tuple(stages.prefixes)
    stored_matrices = matrices(network).keys() & set(source.tensors.names())
    names = sorted(name for name in stored_matrices if name.startswith(prefixes))
    total = parameters(source.tensors)
    removable = sum(source.tensors.info(name).numel for name in names)
    count = total - round(settings.weights * total)
    if count > removable:
        hint = f"{total - removable} of {total} parameters always stay, a share of {1 - removable / total:.4f}"
        raise UsageError(f"--weights {settings.weights:g} is too small for {source.name}", hint=hint)
    return _Plan(prefixes, names, removable, total, count)


def _write(source: Source, settings: PruneSettings, plan: _Plan, target: Output, log: Log) -> tuple[SizeChange, str]:
    """Write the model without its lowest weights; return its cost and its digest."""
    check_finite_weights(source.name, source.tensors)
    masks, measured_on, used = _chosen(source, settings, plan, log)
    tensors = _with_zeros(source, masks)
    log.info(
        f"{plan.count} of {plan.total} parameters are removed: mult-adds, time and bytes stay, as zeros are stored and "
        "multiplied like other numbers"
    )
    details: dict[str, Any] = {"method": settings.method, "weights": settings.weights}
    details.update(measured_on)
    details.update(asked_classes(source, settings.tower))
    description = replace(
        source.description,
        family_version=source.family.version,
        layout="zeroed" if target.is_folder else "sliced",
        extra={"sparse": {"share": settings.weights, "params_nonzero": nonzero_parameters(tensors)}},
        provenance=provenance("prune", settings.seed, [source.sha256], details, source.lineage),
        seen=tuple(merged(source.description.seen, used)),
    )
    nonzero_before = nonzero_parameters(source.tensors)
    before = replace(size_of(source.description, source.tensors), params_nonzero=nonzero_before)
    cost = SizeChange(before=before, after=size_of(description, tensors))
    return cost, write_model(target, description, tensors)


def _chosen(
    source: Source, settings: PruneSettings, plan: _Plan, log: Log
) -> tuple[dict[str, Tensor], dict[str, Any], list[Entry]]:
    """Return the weights to remove as masks, with provenance and seen samples of what they were scored on."""
    criterion = WEIGHT_CRITERIA.get(settings.method or "")
    assert criterion is not None  # the settings see to it
    weights = {name: source.tensors.read(name) for name in plan.names}
    gone = sum(int((weight == 0).sum()) for weight in weights.values())
    asked = f"--weights {settings.weights:g}"
    if gone > plan.count:
        left = f"a share of {1 - gone / plan.total:.4f}"
        raise UsageError(f"{asked} is more than {source.name} has left, {left}", hint="give a smaller share")
    if gone == plan.count:
        log.warn(f"no weight is removed: {asked} keeps every one that {source.name} has")
    if not criterion.needs_data:
        no_samples = Calibration(lambda: iter(()), 0, settings.seed, log)
        scores = criterion.score(weights, None, no_samples)
        return _lowest(scores, weights, plan.count), {}, []
    # --max-length is about the texts that weights are scored on: the pruned model keeps its own.
    source = with_max_length(source, settings.max_length)
    _, model, calibration, measured_on, used = with_data(source, settings, {}, log)
    model.requires_grad_(False)
    for name, parameter in matrices(model.networks[0]).items():
        parameter.requires_grad_(name.startswith(plan.prefixes))
    scored = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert scored == plan.removable
    scores = criterion.score(weights, model, calibration)
    return _lowest(scores, weights, plan.count), measured_on, used


def _lowest(scores: Mapping[str, Tensor], weights: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the masks of the lowest weights, see :func:`lowest_weights`; zeros score lowest, so that they stay away.

    Raises:
        NonFiniteError: the scores of some weights are not finite.
    """
    for name, of_matrix in scores.items():
        if not bool(of_matrix.isfinite().all()):
            raise NonFiniteError(f"the scores of the weights in {name} are not finite")
        of_matrix[weights[name] == 0] = -1
    return lowest_weights(scores, count)


def _with_zeros(source: Source, masks: Mapping[str, Tensor]) -> MappedTensors:
    """Return the tensors of a source with zeros where a mask is true."""

    def read(name: str) -> Tensor:
        tensor = source.tensors.read(name)
        if name not in masks:
            return tensor
        return tensor.masked_fill(masks[name], 0)

    infos = {name: source.tensors.info(name) for name in source.tensors.names()}
    return MappedTensors(infos, read)
