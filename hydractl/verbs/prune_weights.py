"""``hydractl prune --weights``: set single weights to zero, wherever they are in the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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
from hydractl.model.runtime import HydraModel
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
        share: of all parameters, those that stay.
    """

    prefixes: tuple[str, ...]
    names: list[str]
    removable: int
    total: int
    count: int
    share: float


def prune_weights(source: Source, settings: PruneSettings, log: Log) -> Outcome:
    """Score the weights, and write the checkpoint with the lowest of them set to zero."""
    if settings.method in NEED_DATA:
        need_classifier(source)
    change = f"{settings.method}-weights{settings.weights:g}{settings.seed_mark}"
    output = settings.output or f"{source.name}.{change}.st"
    as_folder = output.endswith("/")
    if as_folder:
        path = Path(output)
    else:
        path = file_path(output)
    plan = _plan(source, settings)
    answer = PruneWeightsAnswer(
        schema="hydractl.prune/1",
        model=source.name,
        arch=source.description.arch,
        weights=PrunedWeights(share=plan.share, parameters=plan.total, removable=plan.removable, removed=plan.count),
    )
    if settings.dry_run:
        check_outputs([path], force=settings.force, folder=as_folder)
        answer = replace(answer, dry_run=True, files=[str(path)])
        return Outcome(answer.to_json())
    announce_reading([source], log)
    with Output(path, force=settings.force, folder=as_folder) as target:
        cost, digest = _write(source, settings, plan, target, log)
        answer = replace(answer, output=str(path), cost=cost, sha256=digest)
        return Outcome(answer.to_json(), files=[path])


def _plan(source: Source, settings: PruneSettings) -> _Plan:
    """Count the weights that may be removed and those that have to be.

    Raises:
        UsageError: more have to be removed than may be.
    """
    share = settings.weights
    assert share is not None  # else heads are pruned
    prefixes, names = _removable_matrices(source, settings.tower)
    total = parameters(source.tensors)
    removable = sum(source.tensors.info(name).numel for name in names)
    count = total - round(share * total)
    if count > removable:
        least_share = 1 - removable / total
        hint = f"{total - removable} of {total} parameters always stay, a share of {least_share:.4f}"
        raise UsageError(f"--weights {share:g} is too small for {source.name}", hint=hint)
    return _Plan(prefixes, names, removable, total, count, share)


def _removable_matrices(source: Source, tower: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Find the weights that may be removed: those in matrices of a tower, or of the whole model.

    Returns:
        How the names of parameters of the tower start, and the names of its stored matrices, sorted.
    """
    network = source.family.build(source.description.config)
    sites_of(source, tower)  # refuses a tower that is not there
    prefixes: tuple[str, ...] = ("",)
    if tower not in (None, "both"):
        prefixes = ()
        for stages in source.family.stages(network):
            if stages.tower == tower:
                prefixes += tuple(stages.prefixes)
    names = []
    stored_names = set(source.tensors.names())
    for name in matrices(network):
        if name in stored_names and name.startswith(prefixes):
            names.append(name)
    return prefixes, sorted(names)


def _write(source: Source, settings: PruneSettings, plan: _Plan, target: Output, log: Log) -> tuple[SizeChange, str]:
    """Write the model without its lowest weights; return its cost and its digest."""
    check_finite_weights(source.name, source.tensors)
    masks, measured_on, used = _choose(source, settings, plan, log)
    tensors = _with_zeros(source, masks)
    log.info(
        f"{plan.count} of {plan.total} parameters are removed: mult-adds, time and bytes stay, as zeros are stored and "
        "multiplied like other numbers"
    )
    details: dict[str, object] = {"method": settings.method, "weights": plan.share}
    details.update(measured_on)
    details.update(asked_classes(source, settings.tower))
    sparse = {"share": plan.share, "params_nonzero": nonzero_parameters(tensors)}
    description = replace(
        source.description,
        family_version=source.family.version,
        layout="zeroed" if target.is_folder else "sliced",
        extra={"sparse": sparse},
        provenance=provenance("prune", settings.seed, [source.sha256], details, source.lineage),
        seen=tuple(merged(source.description.seen, used)),
    )
    before = size_of(source.description, source.tensors)
    before = replace(before, params_nonzero=nonzero_parameters(source.tensors))
    after = size_of(description, tensors)
    digest = write_model(target, description, tensors)
    return SizeChange(before=before, after=after), digest


def _choose(
    source: Source, settings: PruneSettings, plan: _Plan, log: Log
) -> tuple[dict[str, Tensor], dict[str, object], list[Entry]]:
    """Choose the weights to remove.

    Returns:
        By the name of the tensor, a mask of its shape that is true for weights to remove; what the provenance says of
        the samples that they were scored on; and the entries of these samples.

    Raises:
        UsageError: more weights are zero already than have to be removed.
    """
    criterion = WEIGHT_CRITERIA.get(settings.method or "")
    assert criterion is not None  # the settings refuse other methods
    weights = {name: source.tensors.read(name) for name in plan.names}
    _check_zeros(weights, source, plan, log)

    measured_on: dict[str, object] = {}
    used: list[Entry] = []
    model = None
    calibration = Calibration(lambda: iter(()), 0, settings.seed, log)
    if criterion.needs_data:
        # --max-length is about the texts that weights are scored on: the pruned model keeps its own.
        source_to_score = with_max_length(source, settings.max_length)
        _, model, calibration, measured_on, used = with_data(source_to_score, settings, {}, log)
        _require_gradients(model, plan)
    scores = criterion.score(weights, model, calibration)
    masks = _lowest(scores, weights, plan.count)
    return masks, measured_on, used


def _require_gradients(model: HydraModel, plan: _Plan) -> None:
    """Let the weights that may be removed require gradients, and no others."""
    model.requires_grad_(False)
    for name, parameter in matrices(model.networks[0]).items():
        parameter.requires_grad_(name.startswith(plan.prefixes))
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert count == plan.removable


def _check_zeros(weights: Mapping[str, Tensor], source: Source, plan: _Plan, log: Log) -> None:
    """Refuse a share that keeps more weights than the model has left; warn of one that keeps all of them."""
    zeros = 0
    for weight in weights.values():
        is_zero = weight == 0
        zeros += int(is_zero.sum())
    asked = f"--weights {plan.share:g}"
    if zeros > plan.count:
        share_left = 1 - zeros / plan.total
        left = f"a share of {share_left:.4f}"
        raise UsageError(f"{asked} is more than {source.name} has left, {left}", hint="give a smaller share")
    if zeros == plan.count:
        log.warn(f"no weight is removed: {asked} keeps every one that {source.name} has")


def _lowest(scores: Mapping[str, Tensor], weights: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the masks of the ``count`` lowest weights, see :func:`lowest_weights`.

    Weights that are zero already are given the lowest score, in ``scores`` itself, so that they stay zero.

    Raises:
        NonFiniteError: the scores of some weights are not finite.
    """
    for name, matrix_scores in scores.items():
        all_finite = bool(matrix_scores.isfinite().all())
        if not all_finite:
            raise NonFiniteError(f"the scores of the weights in {name} are not finite")
        is_zero = weights[name] == 0
        matrix_scores[is_zero] = -1  # other scores are not negative
    return lowest_weights(scores, count)


def _with_zeros(source: Source, masks: Mapping[str, Tensor]) -> MappedTensors:
    """Return the tensors of a source, read when they are asked for, with zeros where a mask is true."""

    def read(name: str) -> Tensor:
        """Return a tensor by name, masked if it has a mask."""
        tensor = source.tensors.read(name)
        if name not in masks:
            return tensor
        return tensor.masked_fill(masks[name], 0)

    infos = {name: source.tensors.info(name) for name in source.tensors.names()}
    return MappedTensors(infos, read)
