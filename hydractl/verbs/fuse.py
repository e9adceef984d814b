"""``hydractl fuse``: several checkpoints of one architecture become one model (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.expressions.data_sets import DataSpec
from hydractl.expressions.models import ModelRef
from hydractl.families.base import MERGEABLE
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import write_checkpoint
from hydractl.files.description import Description, provenance
from hydractl.files.fuse_answer import (
    AveragingRecord,
    FuseAnswer,
    FusedMember,
    FusedSizes,
    OnDataRecord,
    SelfCheckRecord,
    SharedTower,
)
from hydractl.files.model_records import ModelSize
from hydractl.files.results import Metrics
from hydractl.fusion.averaging import AUTO, measure_on, plan_checked
from hydractl.fusion.plan import FusionPlan, plan_fusion, shared_parts
from hydractl.log import Log
from hydractl.metrics.rows import little_diversity
from hydractl.model.cost import cost_of, dense_macs, dense_parameters, parameters, size_of, total_cost
from hydractl.model.loading import resolve_device
from hydractl.model.matching import check_labels_are_classes, named_by_data, refuse_posterior
from hydractl.model.source import ModelOptions, Source, need_classifier, open_sources
from hydractl.report.fuse_words import (
    averaging_words,
    warnings_of,
)
from hydractl.report.texts import count_text
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome

_UNDECIDED = (
    "whether members are averaged, as here, or kept whole, with at most {} parameters, is decided when weights are read"
)
_AT_MOST = "parameters and mult-adds are at most these: what is equal in the members is found when weights are read"


def run(
    models: Sequence[ModelRef],
    opening: ModelOptions,
    *,
    merge: Sequence[str],
    val: DataSpec | None,
    output: str | None,
    limit: int | None,
    seed: int,
    device: str,
    dtype: str,
    batch_size: int,
    workers: int | None,
    force: bool,
    dry_run: bool,
    log: Log,
) -> Outcome:
    """Fuse several models into one file, and check it.

    Everything that the headers of the files tell is checked first.

    Args:
        models: the texts of the members.
        opening: how they are opened.
        merge: the parts to average, any of ``mlp``, ``norm`` and ``embed``; or :data:`hydractl.fusion.averaging.AUTO`.
        val: labelled data on which the fused model is measured, or None.
        output: the path of the fused model; None names it by what was averaged.
        limit: the most samples of these data; None for all.
        seed: draws these samples, and the inputs of the check.
        device, dtype: the values of ``--device`` and ``--dtype``.
        batch_size: the samples that run together on ``val``.
        workers: the processes that read ``val``; None leaves it to the device and the data.
        force: whether a file that exists is replaced.
        dry_run: whether to stop after what the headers tell.
        log: receives what was measured.
    """
    torch_device = resolve_device(device)
    sources = open_sources(models, opening)
    if val is not None:
        for source in sources:
            need_classifier(source)
    refuse_posterior(sources, "fuse")

    # Plan the fusion from the headers alone, with the largest set of parts that may be averaged, and check the output.
    default = "hydra.unmerged.st"
    if merge:
        default = "hydra.st"
    path = file_path(output or default)
    parts_to_merge = merge
    if merge == AUTO:
        parts_to_merge = MERGEABLE
    plan_from_headers = plan_fusion(sources, parts_to_merge, headers_only=True)
    check_outputs([path], force=force)
    if dry_run:
        return _dry_run(merge, plan_from_headers, sources, path)

    # Open the validation data; zero-shot models have their classes named by them.
    dataset = None
    members: Sequence[Source] = sources
    if val is not None:
        dataset, members = _open_id_data(sources, val, limit, seed)

    # Read the weights, fuse them, check the result and measure it.
    announce_reading(sources, log)
    with Output(path, force=force) as file:
        checked = plan_checked(sources, merge, torch_device, seed, log)
        on_data = None
        if dataset is not None:
            on_data = measure_on(
                dataset,
                checked.plan,
                members,
                device=device,
                dtype=dtype,
                batch_size=batch_size,
                workers=workers,
                log=log,
            )
        measured = _Measured(checked.check, checked.averaging, on_data)
        return _report_and_write(checked.plan, sources, measured, seed, file, log)


@dataclass(frozen=True)
class _Measured:
    """What was measured on a fused model, for its file and for the answer."""

    self_check: SelfCheckRecord
    averaging: AveragingRecord | None = None
    on_data: OnDataRecord | None = None

    def to_extra(self) -> dict[str, object]:
        """Return the measurements as entries of ``extra`` in the description of the model."""
        extra: dict[str, object] = {"self_check": self.self_check.to_dict()}
        if self.averaging is not None:
            extra["averaging"] = self.averaging.to_dict()
        if self.on_data is not None:
            extra["on_data"] = self.on_data.to_dict()
        return extra


def _dry_run(merge: Sequence[str], outline: FusionPlan, sources: list[Source], path: Path) -> Outcome:
    """Return what the headers of the models tell about the fused model.

    With ``--merge auto`` the headers do not tell whether members are averaged. The answer then shows the averaged
    model, and its note gives the number of parameters of the model without averaging.
    """
    answer = _answer_of(outline, sources, path, dry_run=True)
    # Equal weights, which are stored once, are only found when weights are read.
    if merge != AUTO:
        with_note = answer.model_copy(update={"note": _AT_MOST})
        return Outcome(with_note)
    plan_without_averaging = plan_fusion(sources, [], headers_only=True)
    most_parameters = parameters(plan_without_averaging.tensors)
    note = _UNDECIDED.format(count_text(most_parameters))
    undecided = answer.model_copy(update={"averaging": AveragingRecord.partly(asked="auto"), "note": note})
    return Outcome(undecided)


# --- data -------------------------------------------------------------------------------------------------------------


def _open_id_data(
    sources: Sequence[Source], spec: DataSpec, limit: int | None, seed: int
) -> tuple[Dataset, list[Source]]:
    """Open the labelled ID data; return them and the models.

    A zero-shot model without class names gets those of the data; other models come back unchanged.
    """
    models = [named_by_data(source, spec, limit) for source in sources]
    # The first model that has class names tells which names the labels of the data may have.
    labels: Sequence[str] = []
    for source in models:
        if source.description.labels is not None:
            labels = source.description.labels
            break
    dataset = open_data(
        spec,
        limit=limit,
        seed=seed,
        labels=labels,
        need_labels=True,
        reads={source.name: source.description.reads for source in models},
    )
    check_labels_are_classes(dataset, models[0])
    return dataset, models


# --- writing ----------------------------------------------------------------------------------------------------------


def _report_and_write(
    plan: FusionPlan,
    sources: list[Source],
    measured: _Measured,
    seed: int,
    output: Output,
    log: Log,
) -> Outcome:
    """Log what was measured, write the fused model to its file, and return the answer.

    Args:
        plan: the tensors and the description of the fused model.
        sources: the models that are fused.
        measured: what was measured on the fused model, for the file and the answer.
        seed: the seed of the check, which the file keeps.
        output: the file to write.
        log: receives what was measured.
    """
    answer_without_file = _answer_of(plan, sources, output.path, dry_run=False).model_copy(
        update={
            "self_check": measured.self_check,
            "averaging": measured.averaging,
            "on_data": measured.on_data,
        }
    )
    _say_what_was_found(answer_without_file, plan, log)
    description = _description_of_file(plan, sources, measured, seed)
    digest = write_checkpoint(output, plan.tensors, description.to_json())
    answer = answer_without_file.model_copy(update={"warnings": log.warnings, "sha256": digest})
    return Outcome(answer, files=[output.path])


def _description_of_file(plan: FusionPlan, sources: Sequence[Source], measured: _Measured, seed: int) -> Description:
    """Return the description of the fused model with its measurements and its provenance."""
    digests = [source.sha256 for source in sources]
    details = {"merge": plan.description.merge}
    made_by = provenance("fuse", seed, digests, details)
    return replace(plan.description, extra=measured.to_extra(), provenance=made_by)


def _say_what_was_found(answer: FuseAnswer, plan: FusionPlan, log: Log) -> None:
    """Log what was decided, what it costs, and warnings about both."""
    decision = averaging_words(answer)
    if decision is not None:
        log.info(decision)
    # Members that hardly differ are worth a warning only if the plan has not warned of the members already.
    new_warnings = list(warnings_of(answer))
    if not plan.warnings:
        new_warnings += _diversity_warnings(answer)
    log.warn_all(new_warnings)


def _diversity_warnings(answer: FuseAnswer) -> list[str]:
    """Return a warning if members hardly differ; empty if they differ, or were not compared.

    They were compared on the data of ``--val``, or else on the random inputs of the self-check.
    """
    measures_of_diversity: Metrics
    if answer.on_data is not None:
        measured_on = f"{answer.on_data.n} samples"
        fused = answer.on_data.after
        measures_of_diversity = {"mi": fused.mi, "disagreement": fused.disagreement}
    elif answer.self_check is not None:
        measured_on = answer.self_check.inputs
        measures_of_diversity = {"mi": answer.self_check.mi, "disagreement": answer.self_check.disagreement}
    else:
        return []
    warning = little_diversity(measures_of_diversity, measured_on)
    if warning is None:
        return []
    return [warning]


Form = TypeVar("Form", bound=FuseAnswer)


def _answer_of(plan: FusionPlan, sources: Sequence[Source], path: Path, *, dry_run: bool) -> FuseAnswer:
    """Return the answer as far as the plan tells it.

    A dry run reads no weights, so its answer has neither digests nor the number of equal weights.

    Args:
        plan: the plan of the fused model.
        sources: the models that are fused.
        path: the file of the fused model.
        dry_run: whether this is the answer of a dry run.
    """
    parameter_counts = {"averaged": plan.tensors.elements(plan.averaged)}
    shared_towers: list[SharedTower] = []
    if not dry_run:
        parameter_counts["equal"] = plan.tensors.elements(plan.shared)
        shared_towers = [SharedTower(**tower) for tower in shared_parts(plan)]
    parameter_counts["per_member"] = plan.tensors.elements(plan.own)
    return FuseAnswer(
        dry_run=dry_run or None,
        output=str(path),
        arch=plan.description.arch,
        merge=list(plan.description.merge or []),
        members=[_member_record(source, dry_run=dry_run) for source in sources],
        parameters=parameter_counts,
        shared=shared_towers,
        cost=_costs(plan, sources),
    )


def _member_record(source: Source, *, dry_run: bool) -> FusedMember:
    """Return what the answer says about one member; the digest is None in a dry run, which reads no weights."""
    digest = None
    if not dry_run:
        digest = source.sha256
    return FusedMember(
        name=source.name,
        sha256=digest,
        heads=source.description.mask.counts(),
        kind=source.description.kind,
    )


def _costs(plan: FusionPlan, sources: Sequence[Source]) -> FusedSizes:
    """Return the sizes of the first member, of all members together, of the fused model, and of the unpruned one."""
    first = sources[0]
    costs_of_members = [cost_of(source.description, source.tensors) for source in sources]
    fused = cost_of(plan.description, plan.tensors)
    macs_of_dense = dense_macs(plan.description)
    return FusedSizes(
        single=size_of(first.description, first.tensors),
        members=ModelSize(**total_cost(costs_of_members)),
        fused=ModelSize(**fused),
        dense_macs=macs_of_dense,
        dense_params=dense_parameters(plan.description),
        mac_ratio=fused["macs"] / macs_of_dense,
    )
