"""``hydractl fuse``: several checkpoints of one architecture become one model (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydractl.families.base import MERGEABLE
from hydractl.files.atomic import Output, file_path
from hydractl.files.checkpoint import write_checkpoint
from hydractl.files.description import provenance
from hydractl.files.fuse_answer import (
    FuseAnswer,
    FusedMember,
    FusedSizes,
    SharedTower,
)
from hydractl.files.model_records import ModelSize
from hydractl.fusion.averaging import AUTO, CheckedFusion, plan_checked
from hydractl.fusion.plan import FusionPlan, plan_fusion, shared_parts
from hydractl.log import Log
from hydractl.metrics.rows import little_diversity
from hydractl.model.cost import cost_of, dense_macs, dense_parameters, total_cost
from hydractl.model.loading import resolve_device
from hydractl.model.matching import refuse_posterior
from hydractl.model.source import Source, open_sources
from hydractl.options.call import Call
from hydractl.report.fuse_words import averaging_words, warning_of_averaging
from hydractl.verbs.opening import announce_reading, opening_options
from hydractl.verbs.outcome import Outcome

_UNDECIDED = "whether members are averaged, as here, or kept whole is decided when weights are read"
_AT_MOST = "parameters and mult-adds are at most these: what is equal in the members is found when weights are read"


def run(call: Call) -> Outcome:
    """Return the answer of fusing several models (members) into one, which is checked against them and written.

    The fused model returns the logits of every member, and runs once what they share. Parts of the members may be
    merged: replaced by the average of their weights. Everything that the headers of the files tell is checked first; a
    dry run goes no further. If no output is named, the file is ``hydra.st``, or ``hydra.unmerged.st`` if no parts are
    merged.
    """
    values, log = call.values, call.log

    # The parts to merge: with "auto" all, or none if a check of the fused model finds that harmful. And the models.
    merge = [] if values["merge"] == ["none"] else values["merge"]
    torch_device = resolve_device(values["device"])
    sources = open_sources(values["model"], opening_options(values, bodies=True))
    refuse_posterior(sources, "fuse")

    # Plan the fusion from the headers alone, with the largest set of parts that may be averaged, and check the output.
    path = file_path(values["output"] or ("hydra.st" if merge else "hydra.unmerged.st"))
    parts_to_merge = MERGEABLE if merge == AUTO else merge
    plan_from_headers = plan_fusion(sources, parts_to_merge, headers_only=True)
    with Output(path, force=values["force"]) as file:
        if values["dry_run"]:
            # With --merge auto the headers do not tell whether members are averaged. The answer then shows the averaged
            # model. Equal weights, which are stored once, are only found when weights are read.
            answer = _answer_of(plan_from_headers, sources, path, dry_run=True)
            note = _UNDECIDED if merge == AUTO else _AT_MOST
            return Outcome(answer.model_copy(update={"note": note}))

        # Read the weights, fuse them, and check the result.
        announce_reading(sources, log)
        checked = plan_checked(sources, merge, torch_device, values["seed"], log)
        return _report_and_write(checked, sources, values["seed"], file, log)


# --- writing ----------------------------------------------------------------------------------------------------------


def _report_and_write(checked: CheckedFusion, sources: list[Source], seed: int, output: Output, log: Log) -> Outcome:
    """Log what was measured on a fused model, write it, and return the answer of the fusion.

    Args:
        checked: the fused model, and what was measured on it.
        sources: the models that are fused.
        seed: the seed of the check, which the file keeps.
        output: the file to write.
        log: receives what was found.
    """
    plan = checked.plan
    planned_answer = _answer_of(plan, sources, output.path, dry_run=False)
    answer = planned_answer.model_copy(update={"self_check": checked.check, "averaging": checked.averaging})

    # Say what was averaged, and warn if that changes predictions.
    decision = averaging_words(answer)
    if decision is not None:
        log.info(decision)
    log.warn_all([warning_of_averaging(answer)])
    # Warn of members that hardly differ, unless the plan has warned of the members already.
    if not plan.warnings:
        log.warn_all([little_diversity(checked.check.mi, checked.check.disagreement, checked.check.inputs)])

    # Write the file. Its description has what was measured, and the provenance.
    extra = {"self_check": checked.check.to_dict()}
    if checked.averaging is not None:
        extra["averaging"] = checked.averaging.to_dict()
    digests = [source.sha256 for source in sources]
    made_by = provenance("fuse", seed, digests, {"merge": plan.description.merge})
    description = replace(plan.description, extra=extra, provenance=made_by)
    digest = write_checkpoint(output, plan.tensors, description.to_json())
    written_answer = answer.model_copy(update={"warnings": log.warnings, "sha256": digest})
    return Outcome(written_answer, files=[output.path])


def _answer_of(plan: FusionPlan, sources: Sequence[Source], path: Path, *, dry_run: bool) -> FuseAnswer:
    """Return the answer of a fusion as far as its plan tells it: members, shared weights, and sizes.

    A dry run reads no weights, so its answer has neither digests nor the number of equal weights.

    Args:
        plan: the plan of the fused model.
        sources: the models that are fused.
        path: the file of the fused model.
        dry_run: whether this is the answer of a dry run.
    """
    # How many weights of the fused model are averages of members, equal in all members, or a member's own. Which are
    # equal is known only after reading them.
    parameter_counts = {"averaged": plan.tensors.elements(plan.averaged)}
    shared_towers: list[SharedTower] = []
    if not dry_run:
        parameter_counts["equal"] = plan.tensors.elements(plan.shared)
        shared_towers = shared_parts(plan)
    parameter_counts["per_member"] = plan.tensors.elements(plan.own)

    # The models that are fused.
    members = [
        FusedMember(
            name=source.name,
            sha256=None if dry_run else source.sha256,
            heads=source.description.mask.counts(),
            kind=source.description.kind,
        )
        for source in sources
    ]

    # The sizes of the first member, of all members together, of the fused model, and of the unpruned one.
    costs_of_members = [cost_of(source.description, source.tensors) for source in sources]
    fused = cost_of(plan.description, plan.tensors)
    macs_of_dense = dense_macs(plan.description)
    cost = FusedSizes(
        single=ModelSize(**costs_of_members[0]),
        members=ModelSize(**total_cost(costs_of_members)),
        fused=ModelSize(**fused),
        dense_macs=macs_of_dense,
        dense_params=dense_parameters(plan.description),
        mac_ratio=fused["macs"] / macs_of_dense,
    )
    return FuseAnswer(
        dry_run=dry_run or None,
        output=str(path),
        arch=plan.description.arch,
        merge=list(plan.description.merge or []),
        members=members,
        parameters=parameter_counts,
        shared=shared_towers,
        cost=cost,
    )
