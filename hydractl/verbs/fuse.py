"""``hydractl fuse``: several checkpoints of one architecture become one model (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.overlap import GivenSet, compare_sets, trained_on_doubt
from hydractl.data.plausibility import sample_doubts
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.errors import UsageError
from hydractl.expressions.data_sets import AUTO as MADE
from hydractl.families.base import MERGEABLE
from hydractl.files.atomic import Output, check_outputs, file_path
from hydractl.files.checkpoint import TensorSource, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE, Description, provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.fuse_answer import (
    AveragingRecord,
    FittedCascadeRecord,
    FuseAnswer,
    FusedMember,
    FusedSizes,
    OnDataRecord,
    SelfCheckRecord,
    SharedTower,
)
from hydractl.files.model_records import ModelSize
from hydractl.files.records import Metrics
from hydractl.files.verb_answers import CascadeAnswer, PlannedCascade, PlannedFusion
from hydractl.fusion.averaging import AUTO, MembersRunOptions, measure_on, plan_checked
from hydractl.fusion.cascade import CascadeOptions, fit_cascade
from hydractl.fusion.plan import FusionPlan, plan_fusion, shared_parts
from hydractl.log import Log
from hydractl.metrics.rows import little_diversity
from hydractl.model.cost import cost_of, dense_macs, dense_parameters, parameters, size_of, total_cost
from hydractl.model.loading import resolve_device
from hydractl.model.matching import check_labels_are_classes, named_by_data, refuse_posterior
from hydractl.model.source import Source, need_classifier, open_sources
from hydractl.report.fuse_words import (
    averaging_words,
    cascade_warnings,
    cascade_words,
    data_words,
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


def run(settings: FuseSettings, log: Log) -> Outcome:
    """Plan, write and check a fused model, or give one a cascade."""
    resolve_device(settings.device)
    sources = open_sources(settings.model, model_options(settings, bodies=True))
    if settings.val is not None:
        for source in sources:
            need_classifier(source)
    refuse_posterior(sources, "fuse")
    if settings.only_cascades:
        return run_cascade(settings, sources[0], log)
    return _fuse(settings, sources, log)


def _fuse(settings: FuseSettings, sources: list[Source], log: Log) -> Outcome:
    """Fuse several models into one file, after everything that their headers tell has been checked.

    With ``--val`` the fused model is measured on those data, and with ``--cascade`` a cascade is fitted to them.
    """
    # What is fused, as far as the headers tell.
    default = "hydra.unmerged.st"
    if settings.merge:
        default = "hydra.st"
    path = file_path(settings.output or default)
    parts: Sequence[str] = settings.merge
    if settings.merge == AUTO:
        parts = MERGEABLE
    outline = plan_fusion(sources, parts, headers_only=True)
    check_outputs([path], force=settings.force)
    if settings.dry_run:
        return _dry_run(settings, outline, sources, path)

    # The data.
    validation = _open_validation(settings, sources)
    doubts: list[str] = []
    if validation is not None:
        doubts += validation.doubts
    for doubt in doubts:
        log.warn(doubt)

    # The fused model, and what is measured of it.
    announce_reading(sources, log)
    with Output(path, force=settings.force) as output:
        device = resolve_device(settings.device)
        checked = plan_checked(sources, settings.merge, device, settings.seed, log)
        plan = checked.plan
        measured = _Measured(checked.check, checked.averaging)
        if validation is not None:
            run_options = settings.fill(MembersRunOptions)
            on_data = measure_on(validation.inside, plan, validation.named, run_options, log)
            measured = replace(measured, on_data=on_data)
            if settings.cascade:
                cascade = validation.fit(settings, plan.description, plan.tensors, log)
                measured = replace(measured, cascade=cascade)
                plan = replace(plan, description=validation.with_seen(plan.description))
        return _write(settings, plan, sources, measured, output, doubts, log)


@dataclass(frozen=True)
class _Measured:
    """The measurements of a fused model, for its file and for the answer."""

    self_check: SelfCheckRecord
    averaging: AveragingRecord | None = None
    on_data: OnDataRecord | None = None
    cascade: FittedCascadeRecord | None = None

    def to_extra(self) -> dict[str, object]:
        """Return the entries for ``extra`` of the model's description."""
        extra: dict[str, object] = {"self_check": self.self_check.to_json()}
        if self.averaging is not None:
            extra["averaging"] = self.averaging.to_json()
        if self.on_data is not None:
            extra["on_data"] = self.on_data.to_json()
        if self.cascade is not None:
            extra.update(_cascade_entries(self.cascade))
        return extra


def _dry_run(settings: FuseSettings, outline: FusionPlan, sources: list[Source], path: Path) -> Outcome:
    """Return what the headers of the models tell of the fused one.

    With ``--merge auto`` they do not tell whether members are averaged; the plan is that where they are, with a note.
    """
    plan = _answer_of(PlannedFusion, outline, sources, path, dry_run=True)
    if settings.merge != AUTO:
        plan = replace(plan, note=_AT_MOST)
        return Outcome(plan.to_json())
    members_whole = plan_fusion(sources, [], headers_only=True)
    most_parameters = parameters(members_whole.tensors)
    note = _UNDECIDED.format(count_text(most_parameters))
    plan = replace(plan, averaging={"asked": "auto"}, note=note)
    return Outcome(plan.to_json())


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Validation:
    """The validation data of a fusion.

    Attributes:
        inside: labelled ID data.
        named: the models, their classes named by these data where they have no classifiers.
        outside: OOD data by name, which a cascade needs.
        doubts: what is odd about data that a cascade is fitted on.
    """

    inside: Dataset
    named: Sequence[Source]
    outside: Mapping[str, Dataset]
    doubts: Sequence[str] = ()

    def fit(self, settings: FuseSettings, model: Description, tensors: TensorSource, log: Log) -> FittedCascadeRecord:
        """Fit the cascade of a model and return what its file says of it."""
        options = settings.fill(CascadeOptions)
        run_options = settings.fill(MembersRunOptions)
        return fit_cascade(model, tensors, self.inside, self.outside, options, run_options, log)

    def with_seen(self, description: Description) -> Description:
        """Return the description with these samples among those that the model has seen."""
        entries = []
        for origin in self.inside.origins():
            entries.append(entry("fuse", "val", origin))
        for dataset in self.outside.values():
            for origin in dataset.origins():
                entries.append(entry("fuse", "ood_val", origin))
        seen = merged(description.seen, entries)
        return replace(description, seen=tuple(seen))

    def given_sets(self) -> list[GivenSet]:
        """Return the sets with the options that gave them."""
        sets = [GivenSet("--val", self.inside)]
        for name, dataset in self.outside.items():
            sets.append(GivenSet(f"--ood-val {name}", dataset))
        return sets


def _open_validation(settings: FuseSettings, sources: Sequence[Source]) -> _Validation | None:
    """Open the validation data; return None without ``--val``.

    OOD data are opened for a cascade alone.

    Raises:
        UsageError, InputError: they cannot be opened, or share samples.
    """
    if settings.val is None:
        return None
    inside, named = _open_id_data(settings, sources, settings.val)
    if not settings.cascade:
        return _Validation(inside, named, {})
    outside = _open_ood_data(settings, inside, named)
    validation = _Validation(inside, named, outside)
    findings = compare_sets(validation.given_sets())
    findings.refuse()
    doubts = [*findings.warnings, *_doubts_of_cascade_data(sources, validation)]
    return replace(validation, doubts=doubts)


def _open_ood_data(settings: FuseSettings, inside: Dataset, models: Sequence[Source]) -> dict[str, Dataset]:
    """Return the OOD data of ``--ood-val``, by name; for ``auto`` they are made from the ID data ``inside``."""
    reads = {source.name: source.description.reads for source in models}
    outside: dict[str, Dataset] = {}
    for ood_set in settings.ood_val_sets():
        option = f"--ood-val {ood_set.name}"
        if ood_set.spec == MADE:
            outside[ood_set.name] = PseudoOod(inside, MADE, settings.seed, option)
            continue
        outside[ood_set.name] = open_data(
            ood_set.spec,
            option=option,
            limit=settings.limit,
            seed=settings.seed,
            ignore_labels=True,
            reads=reads,
        )
    return outside


def _doubts_of_cascade_data(sources: Sequence[Source], validation: _Validation) -> list[str]:
    """Return what is odd about the data that a cascade is fitted on, one sentence each.

    Odd are samples that do not look like data, apart from OOD data that were made, and samples that a model was
    trained on.
    """
    doubts = sample_doubts(validation.inside)
    for dataset in validation.outside.values():
        if not isinstance(dataset, PseudoOod):
            doubts += sample_doubts(dataset)
    for source in sources:
        for given_set in validation.given_sets():
            doubt = trained_on_doubt(source.name, source.description.seen, given_set)
            if doubt is not None:
                doubts.append(doubt)
    return doubts


def _open_id_data(settings: FuseSettings, sources: Sequence[Source], spec: str) -> tuple[Dataset, list[Source]]:
    """Open the labelled ID data; return them, and the models.

    A zero-shot model without class names gets those of the data, and is unchanged otherwise.
    """
    named = [named_by_data(source, spec, settings.limit, "--val") for source in sources]
    labels: Sequence[str] = []
    for source in named:
        if source.description.labels is not None:
            labels = source.description.labels
            break
    dataset = open_data(
        spec,
        option="--val",
        limit=settings.limit,
        seed=settings.seed,
        labels=labels,
        need_labels=True,
        reads={source.name: source.description.reads for source in named},
    )
    check_labels_are_classes(dataset, named[0])
    return dataset, named


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    settings: FuseSettings,
    plan: FusionPlan,
    sources: list[Source],
    measured: _Measured,
    output: Output,
    doubts: Sequence[str],
    log: Log,
) -> Outcome:
    """Write the model with what was measured of it, say what was found, and return the answer.

    Args:
        settings: of the verb.
        plan: of the fused model.
        sources: the models that are fused.
        measured: what was measured of it.
        output: its file.
        doubts: what is odd about the data, which was said before.
        log: hears what was found.
    """
    answer = replace(
        _answer_of(FuseAnswer, plan, sources, output.path, dry_run=False),
        self_check=measured.self_check,
        averaging=measured.averaging,
        on_data=measured.on_data,
        cascade=measured.cascade,
    )
    warnings = [*doubts, *_say_what_was_found(answer, plan, log)]
    origins = [source.sha256 for source in sources]
    details = {"merge": plan.description.merge}
    made_by = provenance("fuse", settings.seed, origins, details)
    description = replace(plan.description, extra=measured.to_extra(), provenance=made_by)
    digest = write_checkpoint(output, plan.tensors, description.to_json())
    answer = replace(answer, warnings=warnings or None, sha256=digest)
    return Outcome(answer.to_json(), files=[output.path])


def _say_what_was_found(answer: FuseAnswer, plan: FusionPlan, log: Log) -> list[str]:
    """Say what was decided and what it costs; return all warnings, those of the plan first, which were said before."""
    for sentence in (averaging_words(answer), sharing_words(answer)):
        if sentence is not None:
            log.info(sentence)
    if answer.on_data is not None:
        log.info(data_words(answer.on_data))
    if answer.cascade is not None:
        log.info(cascade_words(answer.cascade))
    new_warnings = list(warnings_of(answer))
    if not plan.warnings:
        new_warnings += _diversity_warnings(answer)
    for warning in new_warnings:
        log.warn(warning)
    return [*plan.warnings, *new_warnings]


def _diversity_warnings(answer: FuseAnswer) -> list[str]:
    """Return a warning where members hardly differ; empty where they do, or were not measured.

    They are compared on the data of ``--val``, or without these on the inputs of the self-check.
    """
    diversity: Metrics
    if answer.on_data is not None:
        measured_on = f"{answer.on_data.n} samples"
        fused = answer.on_data.after
        diversity = {"mi": fused.mi, "disagreement": fused.disagreement}
    elif answer.self_check is not None:
        measured_on = answer.self_check.inputs
        diversity = {"mi": answer.self_check.mi, "disagreement": answer.self_check.disagreement}
    else:
        return []
    warning = little_diversity(diversity, measured_on)
    if warning is None:
        return []
    return [warning]


Form = TypeVar("Form", bound=FuseAnswer)


def _answer_of(form: type[Form], plan: FusionPlan, sources: Sequence[Source], path: Path, *, dry_run: bool) -> Form:
    """Return the answer as far as the plan tells it.

    A dry run reads no weights, so it names neither equal weights nor digests.

    Args:
        form: the class of the answer.
        plan: of the fused model.
        sources: the models that are fused.
        path: of the fused model.
        dry_run: whether this is one.
    """
    counts = {"averaged": plan.tensors.elements(plan.averaged)}
    shared_towers: list[SharedTower] = []
    if not dry_run:
        counts["equal"] = plan.tensors.elements(plan.shared)
        shared_towers = [SharedTower(**tower) for tower in shared_parts(plan)]
    counts["per_member"] = plan.tensors.elements(plan.own)
    return form(
        output=str(path),
        arch=plan.description.arch,
        merge=list(plan.description.merge or []),
        members=[_member_record(source, dry_run=dry_run) for source in sources],
        parameters=counts,
        shared=shared_towers,
        cost=_costs(plan, sources),
    )


def _member_record(source: Source, *, dry_run: bool) -> FusedMember:
    """Return what the answer says of one member; its digest is None in a dry run, which reads no weights."""
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
    """Return the sizes of the first member, of all members apart, and of the fused model beside the unpruned one."""
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


# --- one model --------------------------------------------------------------------------------------------------------


def run_cascade(settings: FuseSettings, source: Source, log: Log) -> Outcome:
    """Write one fused model again with a cascade, without what was fitted to the outputs of all its members.

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
    validation = _open_validation(settings, [source])
    assert validation is not None  # a rule of the settings
    plan = PlannedCascade(
        schema="hydractl.cascade/1",
        output=str(path),
        model=source.name,
        arch=description.arch,
        members=len(description.masks),
    )
    if settings.dry_run:
        return Outcome(plan.to_json())

    announce_reading([source], log)
    with Output(path, force=settings.force) as output:
        # What calibrate chose does not hold for a cascade, whose first member often answers alone.
        left_out = [name for name in CHOSEN_BY_CALIBRATE if name in description.extra]
        if left_out:
            names = ", ".join(left_out)
            log.warn(f"{source.name}: left out, as fitted to all members: {names}; see calibrate")

        # Fit the cascade.
        cascade = validation.fit(settings, description, source.tensors, log)
        warnings = [*validation.doubts, *cascade_warnings(cascade)]
        log.info(cascade_words(cascade))
        for warning in warnings:
            log.warn(warning)

        # Write the model with it.
        extra = {key: value for key, value in description.extra.items() if key not in left_out}
        extra.update(_cascade_entries(cascade))
        with_cascade = replace(
            validation.with_seen(description),
            extra=extra,
            layout="sliced",
            provenance={**description.provenance, "bases": source.lineage},
        )
        digest = write_checkpoint(output, source.tensors, with_cascade.to_json())
        answer = CascadeAnswer(
            schema=plan.schema,
            output=plan.output,
            model=plan.model,
            arch=plan.arch,
            members=plan.members,
            cascade=cascade,
            warnings=warnings or None,
            sha256=digest,
        )
        return Outcome(answer.to_json(), files=[output.path])


def _cascade_entries(cascade: FittedCascadeRecord) -> dict[str, object]:
    """Return the entries of a description for a cascade: itself, and the OOD score that it was fitted for."""
    ood_score = {"score": cascade.score}
    return {"cascade": cascade.to_json(), "ood_score": ood_score}
