"""``hydractl fuse``: several checkpoints of one architecture become one model (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydractl.errors import UsageError
from hydractl.export.formats import EXPORT_SCHEMA, FORMATS
from hydractl.export.targets import Target, claimed, plan_exports, stem_beside
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import write_checkpoint
from hydractl.files.description import provenance
from hydractl.fusion.plan import FusionPlan, plan_fusion, shared_parts
from hydractl.fusion.selfcheck import self_check
from hydractl.log import Log
from hydractl.model.cost import cost_of, dense_macs
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_sources
from hydractl.settings.members import FuseSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

_AT_MOST = "parameters and mult-adds are at most these: what is equal in the members is found when weights are read"


def run(settings: FuseSettings, log: Log) -> Outcome:
    """Plan, write and check a fused model, or export one model as it is."""
    resolve_device(settings.device)
    sources = open_sources(settings.model, model_options(settings))
    if settings.only_exports:
        return run_alone(settings, sources[0], log)
    path = file_path(settings.output or ("hydra.st" if settings.merge else "hydra.unmerged.st"))
    stem = stem_beside(path, settings.export)
    outline = plan_fusion(sources, settings.merge, headers_only=True)
    targets = plan_exports(settings.export, stem, outline.description, outline.tensors)
    check_outputs([path, *(target.path for target in targets)], force=settings.force)
    if settings.dry_run:
        return Outcome({**_document(outline, sources, path, targets, dry_run=True), "note": _AT_MOST, "dry_run": True})
    announce_reading(sources, log)
    with Output(path, force=settings.force) as output:
        return _fuse(settings, sources, output, stem, log)


def _fuse(settings: FuseSettings, sources: list[Source], output: Output, stem: Path, log: Log) -> Outcome:
    plan = plan_fusion(sources, settings.merge)
    for warning in plan.warnings:
        log.warn(warning)
    targets = plan_exports(settings.export, stem, plan.description, plan.tensors)
    document = _document(plan, sources, output.path, targets, dry_run=False)
    with claimed(targets, force=settings.force) as claim:
        check = self_check(plan, sources, resolve_device(settings.device), settings.seed, log)
        origins = [source.sha256 for source in sources]
        description = replace(
            plan.description,
            extra={"self_check": check},
            provenance=provenance("fuse", settings.seed, origins, {"merge": plan.description.merge}),
        )
        exports = claim.write(lambda: HydraModel(plan.description, plan.tensors), origins, settings.seed, log)
        if exports:
            document = {**document, "exports": exports}
        digest = write_checkpoint(output, plan.tensors, description.to_json())
        # The exports last: what they were made of is then in place.
        return Outcome({**document, "self_check": check, "sha256": digest}, files=[output.path, *claim.commit()])


def _document(
    plan: FusionPlan, sources: Sequence[Source], path: Path, targets: Sequence[Target], *, dry_run: bool
) -> dict[str, Any]:
    """The answer so far; a dry run, which reads no weights, says neither what is equal in them nor their digests."""
    dense = dense_macs(plan.description)
    fused = cost_of(plan.description, plan.tensors)
    counts = {
        "averaged": plan.tensors.elements(plan.averaged),
        **({} if dry_run else {"equal": plan.tensors.elements(plan.shared)}),
        "per_member": plan.tensors.elements(plan.own),
    }
    return {
        "schema": "hydractl.fuse/1",
        "output": str(path),
        "arch": plan.description.arch,
        "merge": list(plan.description.merge or []),
        "members": [
            {
                "name": source.name,
                **({} if dry_run else {"sha256": source.sha256}),
                "heads": source.description.mask.counts(),
                "kind": source.description.kind,
            }
            for source in sources
        ],
        "parameters": counts,
        **({"exports": [target.to_json() for target in targets]} if targets else {}),
        **({} if dry_run else {"shared": shared_parts(plan)}),
        "cost": {
            "single": cost_of(sources[0].description, sources[0].tensors),
            "fused": fused,
            "dense_macs": dense,
            "mac_ratio": fused["macs"] / dense,
        },
    }


def stem_alone(settings: FuseSettings, source: Source) -> Path:
    """What ``-o``, else the name of the model, calls the exported files of a model that is only exported.

    Raises:
        UsageError: for an ending of ``-o`` that none of the files has.
    """
    if settings.output is None:
        return Path(source.name)
    path = file_path(settings.output)
    suffix = path.suffix.removeprefix(".")
    if suffix in settings.export:
        return path.with_suffix("")
    if suffix == "st" or suffix in FORMATS:
        kinds = ",".join(settings.export)
        raise UsageError(
            f"--output {settings.output}: one MODEL with --export {kinds} writes no such file",
            hint=f"-o {path.with_suffix('.' + settings.export[0])}",
        )
    return path


def run_alone(settings: FuseSettings, source: Source, log: Log) -> Outcome:
    """Export one model, which may itself be fused, and write nothing else."""
    targets = plan_exports(settings.export, stem_alone(settings, source), source.description, source.tensors)
    check_outputs([file for target in targets for file in target.files], force=settings.force)
    if not settings.dry_run:
        announce_reading([source], log)
    document: dict[str, Any] = {
        "schema": EXPORT_SCHEMA,
        "model": source.name,
        **({} if settings.dry_run else {"sha256": source.sha256}),
        "arch": source.description.arch,
        "members": len(source.description.masks),
        "exports": [target.to_json() for target in targets],
    }
    if settings.dry_run:
        return Outcome({**document, "dry_run": True})
    origins = [str(member["sha256"]) for member in source.description.members if "sha256" in member]
    with claimed(targets, force=settings.force) as claim:
        written = claim.write(lambda: build_model(source), origins or [source.sha256], settings.seed, log)
        return Outcome({**document, "exports": written}, files=claim.commit())
