"""``hydractl prune --weights``: set single weights to zero, anywhere in the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from hydractl.criteria import Calibration
from hydractl.criteria.criterion import gradients_of
from hydractl.criteria.weights import WEIGHT_CRITERIA, lowest_weights, prunable
from hydractl.errors import NonFiniteError, UsageError
from hydractl.files.atomic import Output, file_path, seed_mark
from hydractl.files.checkpoint import with_tensors
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, merged
from hydractl.files.verb_answers import PruneAnswer, PrunedWeights, SizeChange
from hydractl.log import Log
from hydractl.model.cost import nonzero_parameters, parameters, size_of
from hydractl.model.loading import build_model
from hydractl.model.matching import asked_classes, sites_of
from hydractl.model.source import Source, need_classifier, with_max_length, write_model
from hydractl.model.stored import check_finite_weights
from hydractl.options.call import Call, filled
from hydractl.verbs.choosing import WeightSelection
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.score import open_calibration


def prune_weights(source: Source, call: Call) -> Outcome:
    """Return how many single weights of a model were removed; the model with zeros in their place is written.

    The weights with the lowest scores of ``--method`` are removed. A dry run returns how many would be.
    """
    # The options; a criterion with data needs a classifier to score the weights.
    values, log = call.values, call.log
    criterion = WEIGHT_CRITERIA[values["method"].name]()
    steps = values["weight_steps"] or criterion.steps
    wanted = filled(WeightSelection, values, verb="prune", criterion=criterion, steps=steps)
    if criterion.needs_data:
        need_classifier(source)

    # The output: a folder in the library's format if its name ends in a slash, else a checkpoint.
    default_name = f"{source.name}.{criterion.name}-weights{wanted.weights:g}{seed_mark(wanted.seed)}.st"
    output = values["output"] or default_name
    as_folder = output.endswith("/")
    path = Path(output) if as_folder else file_path(output)

    # How many weights are removed; then claim the output, score and write.
    names, counts = _removable(source, wanted)
    answer = PruneAnswer(model=source.name, arch=source.description.arch, weights=counts)
    with Output(path, force=values["force"], folder=as_folder) as target:
        if values["dry_run"]:
            return Outcome(answer.model_copy(update={"dry_run": True, "files_": [str(path)]}))
        announce_reading([source], log)
        check_finite_weights(source.name, source.tensors)
        weights, details, used = _choose_weights(source, wanted, names, counts, log)
        tensors = with_tensors(source.tensors, weights)
        log.info(
            f"{counts.removed} of {counts.parameters} parameters are removed: mult-adds, time and bytes stay, as zeros "
            "are stored and multiplied like other numbers"
        )

        # Describe the model, with the provenance of the change.
        details |= {"method": criterion.name, "weights": counts.share, **asked_classes(source, wanted.tower)}
        if wanted.steps > 1:
            details["steps"] = wanted.steps
        sparse: dict[str, object] = {"share": counts.share, "params_nonzero": nonzero_parameters(tensors)}
        if criterion.removes_biases:
            sparse["biases"] = True  # zero biases count as removed, too, so that a training keeps them at zero
        description = replace(
            source.description,
            family_version=source.family.version,
            layout="zeroed" if as_folder else "sliced",  # a folder has zeros where heads were removed before
            extra={"sparse": sparse},
            provenance=provenance("prune", wanted.seed, [source.sha256], details, source.lineage),
            seen=tuple(merged(source.description.seen, used)),
        )

        # Compare sizes, and write.
        nonzero_before = nonzero_parameters(source.tensors)
        before = size_of(source.description, source.tensors).model_copy(update={"params_nonzero": nonzero_before})
        cost = SizeChange(before=before, after=size_of(description, tensors))
        digest = write_model(target, description, tensors)
    written = {"output": str(path), "cost": cost, "sha256": digest, "warnings": log.warnings}
    return Outcome(answer.model_copy(update=written), files=[path])


def _removable(source: Source, wanted: WeightSelection) -> tuple[list[str], PrunedWeights]:
    """Return the names of the tensors whose weights may be removed, sorted, and how many weights must be.

    Weights that are zero already count among those that must be.

    ``--weights 0.9`` keeps nine tenths of all parameters. What always stays counts among them: norms, embeddings of
    words and positions, biases (but for some criteria), and of a model of two towers (encoders of images and of texts)
    the one that is not pruned.

    Raises:
        UsageError: more weights must be removed than may be.
    """
    # The weights that may be removed: those of layers in a tower, or in the whole model.
    network = source.family.build(source.description.config)
    sites_of(source, wanted.tower)  # raises an error for a tower that the model does not have
    stored_names = set(source.tensors.names())
    names = sorted(stored_names.intersection(_layers(network, source, wanted)))

    # How many of them: of 1000 parameters with --weights 0.9 there are 100 to remove.
    total = parameters(source.tensors)
    removable = sum(source.tensors.info(name).numel for name in names)
    kept_count = round(wanted.weights * total)
    count = total - kept_count
    if count > removable:
        least_kept = total - removable
        least_share = 1 - removable / total
        hint = f"{least_kept} of {total} parameters always stay, a share of {least_share:.4f}"
        raise UsageError(f"--weights {wanted.weights:g} is too small for {source.name}", hint=hint)
    return names, PrunedWeights(share=wanted.weights, parameters=total, removable=removable, removed=count)


def _layers(network: nn.Module, source: Source, wanted: WeightSelection) -> dict[str, nn.Parameter]:
    """Return the parameters of a network that may be removed, by name: those of layers in a tower, or in all towers.

    Args:
        network: the model as its library builds it, or as hydractl does; names of a tower begin alike in both.
        source: the model.
        wanted: the criterion, which may remove biases too, and the tower.
    """
    layers = prunable(network, with_biases=wanted.criterion.removes_biases)
    if wanted.tower in (None, "both"):
        return layers
    prefixes: tuple[str, ...] = ()
    for stages in source.family.stages(network):
        if stages.tower == wanted.tower:
            prefixes += tuple(stages.prefixes)
    return {name: parameter for name, parameter in layers.items() if name.startswith(prefixes)}


def _choose_weights(
    source: Source, wanted: WeightSelection, names: Sequence[str], counts: PrunedWeights, log: Log
) -> tuple[dict[str, Tensor], dict[str, object], list[Entry]]:
    """Return the tensors whose weights may be removed, by name, with zeros in the place of removed weights.

    Also returned are the entries of the provenance about the samples that weights were scored on, and the samples as
    entries for ``seen``; both are empty for a criterion without data. There may be several steps: each scores the
    weights that are left and sets the lowest to zero.

    Raises:
        UsageError: more weights are zero already than are to be removed.
    """
    criterion = wanted.criterion
    count = counts.removed
    weights = {name: source.tensors.read(name) for name in names}

    # A weight that is zero was removed before.
    zeros = sum(int((weight == 0).sum()) for weight in weights.values())
    option = f"--weights {wanted.weights:g}"
    if zeros > count:
        share_left = 1 - zeros / counts.parameters
        message = f"{option} is more than {source.name} has left, a share of {share_left:.4f}"
        raise UsageError(message, hint="give a smaller share")
    if zeros == count:
        log.warn(f"no weight is removed: {option} keeps every one that {source.name} has")

    # Without data, a single step scores the weights as they are.
    if not criterion.needs_data:
        no_samples = Calibration(lambda: iter(()), 0, wanted.seed, log)
        scores = criterion.score(weights, None, no_samples)
        return _without_lowest(scores, weights, count), {}, []

    # With data. --max-length applies only to the texts that weights are scored on, and not to the pruned model.
    source_to_score = with_max_length(source, wanted.max_length)
    on_data = open_calibration(source_to_score, wanted, log)
    model = on_data.model

    # In each step: score, choose the lowest up to its count, set them to zero. A mask holds all removals so far.
    for count_after_step in _counts(counts, wanted.steps, zeros):
        # Gradients of the weights that may be removed, and of no other parameters.
        with gradients_of(model, _layers(model.networks[0], source, wanted).values()):
            scores = criterion.score(weights, model, on_data.calibration)
        weights = _without_lowest(scores, weights, count_after_step)
        if count_after_step < count:
            # The next step scores a new model with the zeros of this step, because scoring changed this one.
            source_with_zeros = replace(on_data.source, tensors=with_tensors(on_data.source.tensors, weights))
            model = build_model(source_with_zeros, wanted.device, wanted.dtype)
            log.detail(f"{count_after_step} of {count} weights are removed")
    return weights, on_data.measured_on, on_data.used


def _counts(counts: PrunedWeights, steps: int, zeros: int) -> list[int]:
    """Return how many weights are removed in all after each step; weights that are zero already are included.

    The last number is the one that ``--weights`` asks for. The share of weights that are left falls by the same factor
    in each step, as in the code of the authors of OBA: from 1 to 0.81 in two steps by 0.9 each, so that of 1000 weights
    100 and then 190 are removed.
    """
    total = counts.parameters
    share_before = 1 - zeros / total
    removed = []
    for step in range(1, steps):
        # share before * (share at the end / share before) ** (step / steps)
        share_after_step = share_before * (counts.share / share_before) ** (step / steps)
        removed.append(total - round(share_after_step * total))
    return [*removed, counts.removed]


def _without_lowest(scores: Mapping[str, Tensor], weights: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the weights by name, with zeros in the place of those with the lowest scores.

    Weights that are zero already stay removed: this sets their scores to -1, in ``scores`` itself.

    Args:
        scores: the score of each weight by the name of its tensor, 0 or more; changed in place.
        weights: the tensors by name.
        count: how many weights of all tensors together are zero afterwards.

    Raises:
        NonFiniteError: the scores of some weights are not finite.
    """
    for name, matrix_scores in scores.items():
        all_finite = bool(matrix_scores.isfinite().all())
        if not all_finite:
            raise NonFiniteError(f"the scores of the weights in {name} are not finite")
        is_zero = weights[name] == 0
        matrix_scores[is_zero] = -1  # other scores are not negative
    masks = lowest_weights(scores, count)
    return {name: weight.masked_fill(masks[name], 0) for name, weight in weights.items()}
