"""``hydractl fuse``: several checkpoints of one architecture become one model (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.overlap import GivenSet, compare_sets, trained_on_doubt
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.errors import UsageError
from hydractl.exports.checking import CheckData
from hydractl.exports.formats import EXPORT_SCHEMA, FORMATS, kind_of
from hydractl.exports.targets import Target, claimed, plan_exports, stem_beside
from hydractl.expressions.data_sets import AUTO as MADE
from hydractl.families.base import MERGEABLE
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import TensorSource, write_checkpoint
from hydractl.files.description import Description, provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.fuse_answer import ExportedFileRecord, FittedCascadeRecord, FuseAnswer
from hydractl.fusion.averaging import AUTO, MembersRunOptions, measure_on, plan_checked
from hydractl.fusion.cascade import CascadeOptions, fit_cascade
from hydractl.fusion.plan import FusionPlan, plan_fusion, shared_parts
from hydractl.log import Log
from hydractl.metrics.rows import little_diversity
from hydractl.model.cost import cost_of, dense_macs, dense_parameters, parameters, total_cost
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.matching import check_labels_are_classes, named_by_data, refuse_posterior
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.report.fuse_words import (
    averaging_words,
    cascade_warnings,
    cascade_words,
    data_words,
    rounding_words,
    sharing_words,
    warnings_of,
)
from hydractl.report.texts import count_text
from hydractl.settings.members import FuseSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome

_UNDECIDED = (
    "whether members are averaged, as here, or kept whole, with at most {} parameters, is decided when weights are read"
)
_AT_MOST = "parameters and mult-adds are at most these: what is equal in the members is found when weights are read"

_FITTED_TO_ALL_MEMBERS = ("calibration", "threshold", "ood_score")
"""What a description may hold that says nothing of a cascade, whose first member often answers alone."""


def run(settings: FuseSettings, log: Log) -> Outcome:
    """Plan, write and check a fused model, export one model as it is, or give one a cascade."""
    resolve_device(settings.device)
    sources = open_sources(settings.model, model_options(settings, bodies=True))
    if settings.export or settings.data is not None or settings.cascade is not None:
        for source in sources:
            need_classifier(source)
    if settings.only_exports:
        return run_alone(settings, sources[0], log)
    refuse_posterior(sources, "fuse")
    if settings.only_cascades:
        return run_cascade(settings, sources[0], log)
    return _fuse(settings, sources, log)


def _fuse(settings: FuseSettings, sources: list[Source], log: Log) -> Outcome:
    """Fuse several models, after everything that their headers tell has been checked."""
    path = file_path(settings.output or ("hydra.st" if settings.merge else "hydra.unmerged.st"))
    stem = stem_beside(path, settings.export)
    parts = MERGEABLE if settings.merge == AUTO else settings.merge
    outline = plan_fusion(sources, parts, headers_only=True)
    targets = plan_exports(settings.export, stem, outline.description, outline.tensors)
    check_outputs([path, *[target.path for target in targets]], force=settings.force)
    if settings.dry_run:
        return _dry_run(settings, outline, sources, path, targets)
    dataset, named = _opened(settings, sources, settings.data)
    validation = _validation(settings, sources)
    doubts = [] if validation is None else list(validation.doubts)
    for doubt in doubts:
        log.warn(doubt)
    announce_reading(sources, log)
    with Output(path, force=settings.force) as output:
        checked = plan_checked(sources, settings.merge, resolve_device(settings.device), settings.seed, log)
        plan = checked.plan
        measured: dict[str, Any] = {"self_check": checked.check}
        if checked.averaging is not None:
            measured["averaging"] = checked.averaging
        if dataset is not None:
            measured["on_data"] = measure_on(dataset, plan, named, settings.fill(MembersRunOptions), log)
        if validation is not None:
            measured["cascade"] = validation.fit(settings, plan.description, plan.tensors, log)
            plan = replace(plan, description=validation.noted(plan.description))
        rounding_data = _check_data(settings, dataset)
        return _write(settings, plan, sources, measured, output, stem, rounding_data, doubts, log)


def _dry_run(
    settings: FuseSettings, outline: FusionPlan, sources: list[Source], path: Path, targets: Sequence[Target]
) -> Outcome:
    """Say what headers tell of the fused model."""
    document = _document(outline, sources, path, targets, dry_run=True)
    note = _AT_MOST
    if settings.merge == AUTO:
        whole = plan_fusion(sources, [], headers_only=True)
        document["averaging"] = {"asked": "auto"}
        note = _UNDECIDED.format(count_text(parameters(whole.tensors)))
    return Outcome({**document, "note": note, "dry_run": True})


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Validation:
    """The data a cascade is fitted on: labelled ID data, OOD data by name, and what is odd about them."""

    inside: Dataset
    outside: Mapping[str, Dataset]
    doubts: Sequence[str] = ()

    def fit(self, settings: FuseSettings, model: Description, tensors: TensorSource, log: Log) -> dict[str, Any]:
        """Fit the cascade of a model and return what its file says of it."""
        options = settings.fill(CascadeOptions)
        run_options = settings.fill(MembersRunOptions)
        return fit_cascade(model, tensors, self.inside, self.outside, options, run_options, log)

    def noted(self, description: Description) -> Description:
        """Return the description with these samples among those that the model has seen."""
        entries = [entry("fuse", "val", part) for part in self.inside.origins()]
        for dataset in self.outside.values():
            entries += [entry("fuse", "val_ood", part) for part in dataset.origins()]
        return replace(description, seen=tuple(merged(description.seen, entries)))

    def given_sets(self) -> list[GivenSet]:
        """Return the sets with the options that gave them."""
        given = [GivenSet("--cascade", self.inside)]
        for name, dataset in self.outside.items():
            given.append(GivenSet(f"--cascade-ood {name}", dataset))
        return given


def _validation(settings: FuseSettings, sources: Sequence[Source]) -> _Validation | None:
    """Open the data of ``--cascade``; None without."""
    if settings.cascade is None:
        return None
    inside, named = _opened(settings, sources, settings.cascade, "--cascade")
    assert inside is not None
    reads = {source.name: source.description.reads for source in named}
    outside: dict[str, Dataset] = {}
    for name, _, spec in settings.cascade_sets():
        option = f"--cascade-ood {name}"
        if spec == MADE:
            outside[name] = PseudoOod(inside, MADE, settings.seed, option)
        else:
            outside[name] = open_data(
                spec, option=option, limit=settings.limit, seed=settings.seed, ignore_labels=True, reads=reads
            )
    validation = _Validation(inside, outside)
    findings = compare_sets(validation.given_sets())
    findings.refuse()
    return replace(validation, doubts=[*findings.warnings, *_doubts(sources, validation)])


def _doubts(sources: Sequence[Source], validation: _Validation) -> list[str]:
    """List what is odd about the data that a cascade is fitted on."""
    doubts = sample_doubts(validation.inside)
    for dataset in validation.outside.values():
        if not isinstance(dataset, PseudoOod):
            doubts += sample_doubts(dataset)
    for source in sources:
        for given in validation.given_sets():
            doubt = trained_on_doubt(source.name, source.description.seen, given)
            if doubt is not None:
                doubts.append(doubt)
    return doubts


def _opened(
    settings: FuseSettings, sources: Sequence[Source], spec: str | None, option: str = "--data"
) -> tuple[Dataset | None, list[Source]]:
    """Return labelled data, if any, and the members with their classes named for it."""
    if spec is None:
        return None, list(sources)
    named = [named_by_data(source, spec, settings.limit) for source in sources]
    labels = next((source.description.labels for source in named if source.description.labels is not None), [])
    reads = {source.name: source.description.reads for source in named}
    dataset = open_data(
        spec, option=option, limit=settings.limit, seed=settings.seed, labels=labels, need_labels=True, reads=reads
    )
    check_labels_are_classes(dataset, named[0])
    return dataset, named


def _check_data(settings: FuseSettings, inside: Dataset | None) -> CheckData | None:
    """Open the data that rounded weights are measured on; None without."""
    if inside is None or not settings.rounds_weights:
        return None
    outside = {}
    for ood_set in settings.ood_sets():
        outside[ood_set.name] = open_data(
            ood_set.spec,
            option=f"--ood {ood_set.name}",
            ignore_labels=True,
            limit=settings.limit,
            seed=settings.seed,
            reads={"the model": inside.kind},
        )
    return CheckData(inside, outside, settings.batch_size, settings.workers)


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    settings: FuseSettings,
    plan: FusionPlan,
    sources: list[Source],
    measured: dict[str, Any],
    output: Output,
    stem: Path,
    data: CheckData | None,
    doubts: Sequence[str],
    log: Log,
) -> Outcome:
    """Write the model with what was measured of it, and its exports, and say what was found."""
    targets = plan_exports(settings.export, stem, plan.description, plan.tensors)
    document = _document(plan, sources, output.path, targets, dry_run=False)
    document.update(measured)
    warnings = [*doubts, *_say(document, plan, log)]
    origins = [source.sha256 for source in sources]
    extra = dict(measured)
    if "cascade" in measured:
        extra.update(_of_cascade(measured["cascade"]))
    description = replace(
        plan.description,
        extra=extra,
        provenance=provenance("fuse", settings.seed, origins, {"merge": plan.description.merge}),
    )
    with claimed(targets, force=settings.force) as claim:
        macs = document["cost"]["fused"]["macs"]
        exports = claim.write(lambda: HydraModel(description, plan.tensors), origins, macs, settings.seed, log, data)
        if exports:
            document["exports"] = exports
            warnings += _say_rounded(exports, log)
        digest = write_checkpoint(output, plan.tensors, description.to_json())
        if warnings:
            document["warnings"] = warnings
        document["sha256"] = digest
        # The exports last: what they were made of is then in place.
        return Outcome(document, files=[output.path, *claim.commit()])


def _say(document: dict[str, Any], plan: FusionPlan, log: Log) -> list[str]:
    """Say what was decided and what it costs; return the warnings, which are said too."""
    answer = FuseAnswer.from_json(document)
    for line in (averaging_words(answer), sharing_words(answer)):
        if line is not None:
            log.info(line)
    if answer.on_data is not None:
        log.info(data_words(answer.on_data))
    if answer.cascade is not None:
        log.info(cascade_words(answer.cascade))
    warnings = list(warnings_of(answer))
    if not plan.warnings:
        on_data = document.get("on_data")
        if on_data is None:
            check = document["self_check"]
            little = little_diversity(check, check["inputs"])
        else:
            little = little_diversity(on_data["after"], f"{on_data['n']} samples")
        if little is not None:
            warnings.append(little)
    for warning in warnings:
        log.warn(warning)
    return [*plan.warnings, *warnings]


def _say_rounded(exports: Sequence[dict[str, Any]], log: Log) -> list[str]:
    """Say what rounding weights does; return the warnings, which are said too."""
    warnings = []
    for export in exports:
        words, harmful = rounding_words(ExportedFileRecord.from_json(export))
        if words is None:
            continue
        if harmful:
            log.warn(words)
            warnings.append(words)
        else:
            log.info(words)
    return warnings


def _document(
    plan: FusionPlan, sources: Sequence[Source], path: Path, targets: Sequence[Target], *, dry_run: bool
) -> dict[str, Any]:
    """Return the answer so far; a dry run, which reads no weights, names neither equal weights nor their digests."""
    counts = {"averaged": plan.tensors.elements(plan.averaged)}
    if not dry_run:
        counts["equal"] = plan.tensors.elements(plan.shared)
    counts["per_member"] = plan.tensors.elements(plan.own)
    document: dict[str, Any] = {
        "schema": "hydractl.fuse/1",
        "output": str(path),
        "arch": plan.description.arch,
        "merge": list(plan.description.merge or []),
        "members": [_member(source, dry_run=dry_run) for source in sources],
        "parameters": counts,
    }
    if targets:
        document["exports"] = [target.to_json() for target in targets]
    if not dry_run:
        document["shared"] = shared_parts(plan)
    document["cost"] = _costs(plan, sources)
    return document


def _member(source: Source, *, dry_run: bool) -> dict[str, Any]:
    """Return what the answer says of one member."""
    member: dict[str, Any] = {"name": source.name}
    if not dry_run:
        member["sha256"] = source.sha256
    member["heads"] = source.description.mask.counts()
    member["kind"] = source.description.kind
    return member


def _costs(plan: FusionPlan, sources: Sequence[Source]) -> dict[str, Any]:
    """Return the cost of the first member, of all members apart, and of the fused model."""
    dense = dense_macs(plan.description)
    fused = cost_of(plan.description, plan.tensors)
    return {
        "single": cost_of(sources[0].description, sources[0].tensors),
        "members": total_cost(cost_of(source.description, source.tensors) for source in sources),
        "fused": fused,
        "dense_macs": dense,
        "dense_params": dense_parameters(plan.description),
        "mac_ratio": fused["macs"] / dense,
    }


# --- one model --------------------------------------------------------------------------------------------------------


def stem_alone(settings: FuseSettings, source: Source) -> Path:
    """Return the stem of the exported files of a model that is only exported, by ``-o`` or the model's name.

    Raises:
        UsageError: for an ending of ``-o`` that none of the files has.
    """
    if settings.output is None:
        return Path(source.name)
    path = file_path(settings.output)
    kind = kind_of(path)
    if kind in settings.export:
        return path.with_name(path.name.removesuffix(FORMATS[kind].ending))
    if path.suffix == ".st" or kind is not None:
        better = path.with_suffix(FORMATS[settings.export[0]].ending)
        kinds = ",".join(settings.export)
        raise UsageError(
            f"--output {settings.output}: one MODEL with --export {kinds} writes no such file",
            hint=f"-o {better}",
        )
    return path


def run_alone(settings: FuseSettings, source: Source, log: Log) -> Outcome:
    """Export one model, which may itself be fused, and write nothing else."""
    targets = plan_exports(settings.export, stem_alone(settings, source), source.description, source.tensors)
    files = []
    for target in targets:
        files += target.files
    check_outputs(files, force=settings.force)
    data = None
    if not settings.dry_run:
        dataset, (source,) = _opened(settings, [source], settings.data)
        data = _check_data(settings, dataset)
        announce_reading([source], log)
    document: dict[str, Any] = {"schema": EXPORT_SCHEMA, "model": source.name}
    if not settings.dry_run:
        document["sha256"] = source.sha256
    document["arch"] = source.description.arch
    document["members"] = len(source.description.masks)
    document["exports"] = [target.to_json() for target in targets]
    if settings.dry_run:
        return Outcome({**document, "dry_run": True})
    origins = [str(member["sha256"]) for member in source.description.members if "sha256" in member]
    with claimed(targets, force=settings.force) as claim:
        macs = cost_of(source.description, source.tensors)["macs"]
        exports = claim.write(lambda: build_model(source), origins or [source.sha256], macs, settings.seed, log, data)
        document["exports"] = exports
        warnings = _say_rounded(exports, log)
        if warnings:
            document["warnings"] = warnings
        return Outcome(document, files=claim.commit())


def run_cascade(settings: FuseSettings, source: Source, log: Log) -> Outcome:
    """Write one fused model again with a cascade, and nothing that was fitted for the answers of all its members.

    Raises:
        UsageError: for a model of one member.
    """
    description = source.description
    if len(description.masks) == 1:
        raise UsageError(
            f"--cascade: {source.name} is one model, and no other members could run after it", hint="fuse several"
        )
    path = file_path(settings.output or "cascade.st")
    check_outputs([path], force=settings.force)
    validation = _validation(settings, [source])
    assert validation is not None
    document: dict[str, Any] = {
        "schema": "hydractl.cascade/1",
        "output": str(path),
        "model": source.name,
        "arch": description.arch,
        "members": len(description.masks),
    }
    if settings.dry_run:
        return Outcome({**document, "dry_run": True})
    announce_reading([source], log)
    with Output(path, force=settings.force) as output:
        left_out = [name for name in ("calibration", "threshold") if name in description.extra]
        if left_out:
            log.warn(f"{source.name}: left out, as fitted to all members: {', '.join(left_out)}; see eval --calibrated")
        cascade = validation.fit(settings, description, source.tensors, log)
        document["cascade"] = cascade
        fitted_cascade = FittedCascadeRecord.from_json(cascade)
        warnings = [*validation.doubts, *cascade_warnings(fitted_cascade)]
        log.info(cascade_words(fitted_cascade))
        for warning in warnings:
            log.warn(warning)
        if warnings:
            document["warnings"] = warnings
        extra = {key: value for key, value in description.extra.items() if key not in _FITTED_TO_ALL_MEMBERS}
        extra.update(_of_cascade(cascade))
        with_cascade = replace(
            validation.noted(description),
            extra=extra,
            layout="sliced",
            provenance={**description.provenance, "bases": source.lineage},
        )
        document["sha256"] = write_checkpoint(output, source.tensors, with_cascade.to_json())
        return Outcome(document, files=[output.path])


def _of_cascade(cascade: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file holds of a cascade: it, and the OOD score that it was fitted to serve."""
    return {"cascade": cascade, "ood_score": {"score": cascade["score"]}}
