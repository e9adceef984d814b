"""Tables for a terminal: what draws each kind of document, and the tables of all but evals and long runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.circuit_answer import CircuitAnswer, MaskSiteRecord, ScoresAnswer, SearchCounts
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.export_answer import ExportAnswer
from hydractl.files.fuse_answer import FittedCascadeRecord, FuseAnswer
from hydractl.files.model_records import ModelSize
from hydractl.files.predict_answer import PlannedPredictions, PredictAnswer
from hydractl.files.records import Record
from hydractl.files.verb_answers import (
    CascadeAnswer,
    CircuitsAnswer,
    ComparedMasks,
    FinetuneAnswer,
    FinetunesAnswer,
    FinishedStudy,
    InfoAnswer,
    KeptSite,
    ListAnswer,
    OverlapAnswer,
    PlannedBench,
    PlannedFusion,
    PlannedSearch,
    PlannedStudy,
    PlannedTraining,
    PlannedTrainings,
    PruneAnswer,
    PruneWeightsAnswer,
    PushAnswer,
    PushedFile,
)
from hydractl.files.watching_records import TRAFFIC_SCHEMA, TrafficAnswer
from hydractl.report.eval_terminal import eval_table
from hydractl.report.fuse_words import cascade_words, data_words
from hydractl.report.rich_parts import HeatMap, KeptMap
from hydractl.report.rich_parts import facts as fact_table
from hydractl.report.rich_parts import table as plain_table
from hydractl.report.run_tables import (
    bench_table,
    finetune_table,
    finetunes_table,
    planned_bench,
    planned_study,
    planned_training,
    planned_trainings,
    study_table,
)
from hydractl.report.texts import bytes_text, count_text, duration_text, number, signed_change
from hydractl.report.traffic import traffic_table

Fact = tuple[str, str]
"""A name and its value."""


_PRUNE = "hydractl.prune/1"
_PRUNE_WEIGHTS = f"{_PRUNE} of weights"
"""What stands for answers of prune with ``--weights``, which have the schema of those that remove heads."""


def render(document: Mapping[str, object], width: int) -> RenderableType | None:
    """Return what a person sees of a document, or None when there is no special form for it."""
    drawings = _ANSWERS
    if document.get("dry_run"):
        drawings = _PLANS
    kind = str(document.get("schema"))
    if kind == _PRUNE and "weights" in document:
        kind = _PRUNE_WEIGHTS
    drawing = drawings.get(kind)
    if drawing is None:
        return None
    answer = drawing.record.from_json(document)
    return drawing.draw(answer, width)


Answer = TypeVar("Answer", bound=Record)


@dataclass(frozen=True)
class _Drawing(Generic[Answer]):
    """How documents of a kind are shown: the record that they are read into, and what draws that for a width."""

    record: type[Answer]
    draw: Callable[[Answer, int], RenderableType]


def _lines(parts: Iterable[RenderableType]) -> Group:
    """Return parts one below another, an empty line between two."""
    spaced: list[RenderableType] = []
    for part in parts:
        if spaced:
            spaced.append(Text(""))
        spaced.append(part)
    return Group(*spaced)


# --- file verbs -------------------------------------------------------------------------------------------------------


def _costs(before: ModelSize, after: ModelSize, names: tuple[str, str]) -> Table:
    """Return what two models take, and how that changes."""
    sizes = (
        ("parameters", before.params, after.params, count_text),
        ("of these not zero", before.params_nonzero, after.params_nonzero, count_text),
        ("mult-adds", before.macs, after.macs, count_text),
        ("bytes of weights", before.bytes, after.bytes, bytes_text),
    )
    rows = []
    for title, size_before, size_after, text_of in sizes:
        if size_before is None or size_after is None:
            continue
        change = signed_change(size_before, size_after)
        rows.append((title, text_of(size_before), text_of(size_after), change))
    return plain_table("", ("", *names, "change"), rows)


def _prune(answer: PruneAnswer, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    if answer.mask is not None:
        sites = []
        for path, site in answer.mask.sites.items():
            sites.append(KeptSite(site=path, heads=site.heads, kept=site.kept))
        parts += [KeptMap(sites), Text("")]
    elif answer.heads is not None:
        parts.append(Text(f"heads kept per site: {', '.join(map(str, answer.heads))}"))
    if answer.note is not None:
        parts.append(Text(answer.note))
    return Group(*parts, *_saved(answer))


def _prune_weights(answer: PruneWeightsAnswer, width: int) -> RenderableType:
    weights = answer.weights
    counts = (
        f"{count_text(weights.parameters)} parameters",
        f"{count_text(weights.removable)} removable",
        f"{count_text(weights.removed)} removed",
    )
    return Group(Text(f"weights: {', '.join(counts)}"), *_saved(answer))


def _saved(answer: PruneAnswer | PruneWeightsAnswer) -> list[RenderableType]:
    """Return what pruning saves, as far as that is known, and of a plan the files."""
    parts: list[RenderableType] = []
    if answer.cost is not None:
        parts.append(_costs(answer.cost.before, answer.cost.after, ("before", "after")))
    if answer.files is not None:
        parts.append(Text(f"would write {', '.join(answer.files)}"))
    return parts


def _fuse(answer: FuseAnswer, width: int) -> RenderableType:
    return _fusion(answer, note=None)


def _planned_fusion(answer: PlannedFusion, width: int) -> RenderableType:
    return _fusion(answer, answer.note)


def _fusion(answer: FuseAnswer, note: str | None) -> RenderableType:
    """Return the members, how they are fused, and what that saves."""
    members = []
    for member in answer.members:
        members.append((member.name, ", ".join(map(str, member.heads))))
    facts = [*_averaged(answer), *_shared(answer), *_checked(answer)]
    if answer.cascade is not None:
        facts.append(_cascade_fact(answer.cascade))
    if note is not None:
        facts.append(("note", note))
    sizes = answer.cost
    return _lines(
        [
            plain_table("", ("member", "heads per site"), members, left=2),
            fact_table(facts),
            _costs(sizes.single, sizes.fused, ("first member", "fused")),
        ]
    )


def _averaged(answer: FuseAnswer) -> list[Fact]:
    """Return which parameters are averaged, equal in all members, and each member's own."""
    counts = answer.parameters
    merged = ", ".join(answer.merge) or "nothing"
    facts = [("averaged", f"{merged} ({count_text(counts['averaged'])} parameters)")]
    if "equal" in counts:
        facts.append(("equal in all", f"{count_text(counts['equal'])} parameters"))
    facts.append(("per member", f"{count_text(counts['per_member'])} parameters"))
    return facts


def _shared(answer: FuseAnswer) -> list[Fact]:
    """Return what runs once for all members, why no more of it, and what the whole costs."""
    facts = []
    for tower in answer.shared:
        where = ""
        if tower.tower != "main":
            where = f" ({tower.tower} tower)"
        facts.append((f"run once{where}", ", ".join(tower.once) or "nothing"))
        if tower.parts_at:
            facts.append((f"parting at{where}", f"{tower.parts_at}: {tower.differs}"))
            facts.append((f"to part later{where}", str(tower.hint)))
    sizes = answer.cost
    if sizes.mac_ratio is not None and sizes.fused.macs is not None and sizes.members.macs is not None:
        apart = sizes.fused.macs / sizes.members.macs
        single = f"{sizes.mac_ratio:.2f} times the single model with all heads"
        facts.append(("mult-adds", f"{single}, {apart:.2f} times the separate members"))
    return facts


def _checked(answer: FuseAnswer) -> list[Fact]:
    """Return how far the fused model agrees with its members; of a plan, the file that it would write."""
    facts = []
    check = answer.self_check
    if check is None:
        facts.append(("would write", answer.output))
    else:
        worst = max(check.member_max_abs)
        moved = max(check.merge_max_abs)
        facts.append(("self-check", f"members run alone agree to {worst:.0e}; averaging moved logits by {moved:.2g}"))
    if answer.on_data is not None:
        facts.append(("on data", data_words(answer.on_data)))
    return facts


def _cascade(answer: CascadeAnswer, width: int) -> RenderableType:
    model = _model_fact(answer.model, answer.arch)
    cascade = _cascade_fact(answer.cascade)
    return fact_table([model, cascade])


def _model_fact(name: str, arch: str) -> Fact:
    return "model", f"{name} ({arch})"


def _cascade_fact(cascade: FittedCascadeRecord) -> Fact:
    sentence = cascade_words(cascade)
    _, _, words = sentence.partition(": ")
    return "cascade", words


def _export(answer: ExportAnswer, width: int) -> RenderableType:
    facts = [_model_fact(answer.model, answer.arch), ("members", str(answer.members))]
    for file in answer.exports:
        check = file.check
        if check is None or file.bytes is None:
            facts.append(("would write", file.path))
            if file.data is not None:
                facts.append(("would write", file.data))
            continue
        agreement = f"{check.runtime}, weights rounded to 8 bits"
        if check.tolerance is not None:
            agreement = f"{check.runtime} agrees with the model to {check.member_logits_max_abs:.0e}"
        facts.append((file.path, f"{_megabytes(file.bytes)}; {agreement}"))
    return fact_table(facts)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB"


def _push(answer: PushAnswer, width: int) -> RenderableType:
    facts = [("repository", answer.repository)]
    for file in answer.files:
        facts.append((file.path, f"{_megabytes(file.bytes)}; {_fate(answer, file)}"))
    for file in answer.left_out:
        facts.append((file.path, f"{_megabytes(file.bytes)}; left out"))
    if answer.pinned is not None:
        facts.append(("pinned", answer.pinned))
    return fact_table(facts)


def _fate(answer: PushAnswer, file: PushedFile) -> str:
    """Say what became, or would become, of a file that is pushed."""
    if answer.dry_run:
        return "would be uploaded"
    if file.path in (answer.uploaded or ()):
        return "uploaded"
    return "there already"


def _list(answer: ListAnswer, width: int) -> RenderableType:
    """Return a line for each entry: name, what it is, and what it needs or how many of its kind there are."""
    rows = []
    for entry in answer.entries:
        last = entry.needs
        if entry.count is not None:
            last = str(entry.count)
        rows.append([entry.name, entry.about, last])
    titles = ("name", "", "needs")
    if answer.kind is None:
        titles = ("kind", "", "number")
    table = plain_table("", titles, rows, left=3)
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = False
    return table


# --- scores and circuits ----------------------------------------------------------------------------------------------


def _three(value: float | None) -> str:
    """Format to three digits that count: scores of one model may all be large, or all be small."""
    if value is None:
        return "-"
    return f"{value:#.3g}"


def _scores(answer: ScoresAnswer, width: int) -> RenderableType:
    picture = HeatMap(f"importance ({answer.method or 'given'}), shaded by rank", list(answer.sites.items()))
    widest = max(map(len, answer.sites.values()), default=0)
    rows = []
    for site, values in answer.sites.items():
        missing = widest - len(values)
        rows.append([site, *map(_three, values), *[""] * missing])
    columns = ("site", *(f"head {head}" for head in range(widest)))
    numbers = plain_table("higher = keep", columns, rows)
    numbers.padding = (0, 1, 0, 0)  # twelve heads then fit 120 columns
    needed = _width_of(numbers)
    if needed > width:
        # Cut numbers say nothing, and twice the lines would push the picture off the screen.
        return Group(picture, Text(f"\nThe numbers: --json, or a terminal of {needed} columns."))
    return _lines([picture, numbers])


def _width_of(drawn: Table) -> int:
    """Return the columns of a terminal that a table takes where nothing is cut."""
    wide = Console(width=10**4)
    return wide.measure(drawn).maximum


def _planned_search(plan: PlannedSearch, width: int) -> RenderableType:
    """Return what a search would take."""
    blocks = f"about {plan.sample_blocks:,}, naively {plan.sample_blocks_naive:,}"
    facts = [
        ("model", plan.model),
        ("would remove", f"{plan.budget} of {plan.heads} heads"),
        ("objectives", ", ".join(plan.objectives)),
        ("evaluations", f"{plan.evaluations_per_objective:,} of the whole data for each objective"),
        ("sample-block evaluations", blocks),
        ("time", f"about {duration_text(plan.seconds)}"),
        ("states that are kept", bytes_text(plan.memory_bytes)),
    ]
    if plan.chunks > 1:
        facts.append(("data", f"in {plan.chunks} parts, read anew at every step"))
    facts.append(("would write", ", ".join(plan.files) or "to standard output"))
    return fact_table(facts)


def _circuit(answer: CircuitAnswer, width: int) -> RenderableType:
    steps = _steps_table(answer)
    needed = _width_of(steps)
    shown: RenderableType = steps
    if needed > width:
        shown = Text(f"The numbers: --json, or a terminal of {needed} columns.")
    if not answer.sites:
        return shown
    return _lines([_removal_map(answer, answer.sites), shown])


def _steps_table(answer: CircuitAnswer) -> Table:
    """Return the counts of a search before its first removal and after each."""
    rows = []
    if answer.base is not None:
        rows.append(["0", "-", "-", *_measured(answer.base)])
    for removal in answer.removed:
        about = [str(removal.step), removal.site, str(removal.head)]
        rows.append([*about, *_measured(removal)])
    columns = ("step", "removed at", "head", "score", "accuracy", "auroc")
    return plain_table(f"circuit for {answer.objective}", columns, rows, left=2)


def _measured(counts: SearchCounts) -> list[str]:
    """Return score, accuracy and AUROC of one step."""
    accuracy = counts.correct / counts.n_id
    auroc = None
    if counts.two_u is not None and counts.n_ood is not None:
        auroc = counts.two_u / (2 * counts.n_id * counts.n_ood)
    return [number(counts.score), number(accuracy), number(auroc)]


def _removal_map(answer: CircuitAnswer, sites: Mapping[str, int]) -> HeatMap:
    """Return when each head was removed; infinity for those never removed, None for those gone at the start."""
    step_of_head = {(removal.site, removal.head): removal.step for removal in answer.removed}
    start: Mapping[str, MaskSiteRecord] = {}
    if answer.start_mask is not None:
        start = answer.start_mask.sites
    rows = []
    for site, heads in sites.items():
        if site in start:
            there = start[site].kept
        else:
            there = range(heads)
        steps: list[float | None] = []
        for head in range(heads):
            if head in there:
                steps.append(step_of_head.get((site, head), math.inf))
            else:
                steps.append(None)
        rows.append((site, steps))
    title = f"circuit for {answer.objective}: when each head was removed"
    return HeatMap(title, rows, low="first: step", high="last: step", form=str, gone="removed before")


def _circuits(answer: CircuitsAnswer, width: int) -> RenderableType:
    circuits = [_circuit(circuit, width) for circuit in answer.circuits]
    return _lines(circuits)


# --- files ------------------------------------------------------------------------------------------------------------


_MOST_DRAWN = 100_000  # heads
_MOST_ROWS = 200
_LONGEST_VALUE = 1000  # characters
_LONGEST_LIST = 12


_DRAWN_APART = ("schema", "head_map", "head_maps", "overlap", "source")


def _info(answer: InfoAnswer, width: int) -> RenderableType:
    facts = answer.to_json()
    for key in _DRAWN_APART:
        facts.pop(key, None)
    parts: list[RenderableType] = [fact_table(_few(facts))]
    parts += _members_drawn(answer.head_maps)
    if answer.head_map is not None:
        parts += [Text(""), KeptMap(answer.head_map)]
    if answer.overlap is not None:
        parts += [Text(""), _compared(answer.overlap)]
    if isinstance(answer.source, dict):
        parts += [Text("\nmade by"), fact_table(_few(answer.source))]
    return Group(*parts)


def _members_drawn(members: Sequence[Sequence[KeptSite]]) -> list[RenderableType]:
    """Return the kept heads of each member, as long as they are not too many to draw."""
    parts: list[RenderableType] = []
    drawn = 0
    for index, sites in enumerate(members):
        drawn += sum(site.heads or 0 for site in sites)
        if drawn > _MOST_DRAWN:
            parts.append(Text(f"\nand {len(members) - index} more members; --json has all"))
            break
        parts += [Text(f"\nmember {index}"), KeptMap(sites)]
    return parts


def _few(values: Mapping[str, object]) -> list[Fact]:
    """Return the first names and values of a file, which may be any, and of each value its beginning."""
    rows = []
    for name, value in list(values.items())[:_MOST_ROWS]:
        text = _short(value)
        if len(text) > _LONGEST_VALUE:
            text = f"{text[:_LONGEST_VALUE]}... ({len(text)} characters; --json has all)"
        rows.append((name[:_LONGEST_VALUE], text))
    if len(values) > _MOST_ROWS:
        rows.append(("...", f"{len(values) - _MOST_ROWS} more; --json has all"))
    return rows


def _short(value: object) -> str:
    """Return a value of JSON in one line; of a long list its beginning."""
    if isinstance(value, dict):
        pairs = []
        for key, inner in value.items():
            pairs.append(f"{key}={_inner(inner)}")
        return ", ".join(pairs)
    if not isinstance(value, list):
        return str(value)
    if len(value) > _LONGEST_LIST:
        beginning = ", ".join(map(str, value[:6]))
        return f"{len(value)}: {beginning}, ..."
    return ", ".join(map(str, value))


def _inner(value: object) -> str:
    if isinstance(value, (dict, list)):
        return _short(value)
    return str(value)


def _overlap(answer: OverlapAnswer, width: int) -> RenderableType:
    return _compared(answer.pairs)


# The overlap of kept heads is left out: it is near 1 wherever most heads are kept.
_COMPARISONS: tuple[tuple[str, Callable[[ComparedMasks], float | None]], ...] = (
    ("Jaccard\nkept", lambda pair: pair.kept.jaccard),
    ("Jaccard\nremoved", lambda pair: pair.removed.jaccard),
    ("overlap\nremoved", lambda pair: pair.removed.overlap),
    ("JSD\nkept", lambda pair: pair.kept.divergence),
    ("JSD\nremoved", lambda pair: pair.removed.divergence),
)


def _compared(pairs: Sequence[ComparedMasks]) -> RenderableType:
    """Return how far each two masks keep, and remove, the same heads."""
    rows = []
    for pair in pairs:
        figures = [number(figure_of(pair), 3) for _, figure_of in _COMPARISONS]
        rows.append([pair.a, pair.b, *figures])
    titles = [title for title, _ in _COMPARISONS]
    drawn = plain_table("", ("", "", *titles), rows, left=2)
    for column in drawn.columns[:2]:
        column.overflow = "fold"  # a name cut short would be another name
    return Group(Text("overlap of heads (JSD: Jensen-Shannon divergence over the sites, in bits)"), drawn)


# --- calibrations -----------------------------------------------------------------------------------------------------


def _calibrated(answer: CalibrateAnswer, width: int) -> RenderableType:
    facts = [("model", answer.model.name)]
    calibration = answer.calibration
    if calibration is not None and calibration.temperature is not None:
        facts.append(("temperature", number(calibration.temperature, 4)))
    elif calibration is not None:
        facts.append(("temperature", "a scale and a bias of each class"))
    if answer.ood_score is not None:
        facts.append(("OOD score", answer.ood_score))
    threshold = answer.threshold
    if threshold is not None:
        facts.append(("threshold", f"{number(threshold.value, 6)} of {threshold.score} ({threshold.rule})"))
    conformal = answer.conformal
    if conformal is not None:
        facts.append(("conformal", f"qhat {number(conformal.qhat, 4)} of {conformal.method}, alpha {conformal.alpha}"))
    reference = answer.reference
    if reference is not None:
        facts.append(("reference", f"{count_text(reference.n)} ID samples to compare inputs with"))
    if not answer.compared:
        return fact_table(facts)
    rows = []
    for name, score in answer.compared.items():
        rows.append([name, number(score.auroc, 4)])
    compared = plain_table("", ("OOD score", "mean AUROC\nof --ood-val"), rows, left=1)
    return Group(fact_table(facts), Text(""), compared)


def _predictions(answer: PredictAnswer, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    if answer.first:
        parts += [_samples(answer.first), Text("")]
        left = answer.n - len(answer.first)
        if left > 0:
            parts += [Text(f"... and {count_text(left)} more; -o FILE.jsonl keeps all"), Text("")]
    facts = [("model", answer.model.name), ("inputs", count_text(answer.n))]
    if answer.part is not None:
        facts.append(("part", answer.part))
    if answer.confidence is not None:
        facts.append(("mean confidence", number(answer.confidence, 4)))
    threshold = answer.model.threshold
    if threshold is not None:
        facts.append(("threshold", f"{number(threshold, 6)} of {answer.model.ood_score}"))
    flagged = answer.ood
    if flagged is not None and flagged.share is not None and flagged.ci is not None:
        low, high = flagged.ci
        assert low is not None and high is not None  # there are samples
        facts.append(("flagged as OOD", f"{count_text(flagged.n)}: {flagged.share:.2%} ({low:.2%} to {high:.2%})"))
    if answer.skipped is not None:
        facts.append(("could not be read", count_text(answer.skipped.n)))
    most_frequent = []
    for entry in answer.classes[:_MOST_CLASSES]:
        most_frequent.append(f"{entry.label}: {count_text(entry.n)}")
    if len(answer.classes) > _MOST_CLASSES:
        most_frequent.append(f"and {len(answer.classes) - _MOST_CLASSES} more classes")
    facts.append(("predicted", ", ".join(most_frequent) or "nothing"))
    if answer.watched is not None:
        facts.append(("beside the reference", answer.watched.whole.advice))
    return Group(*parts, fact_table(facts))


_MOST_CLASSES = 5
"""Predicted classes that a table names."""


def _samples(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of predictions."""
    has_flags = any("is_ood" in row for row in rows)
    titles = ["input", "predicted", "confidence", "OOD score"]
    if has_flags:
        titles.append("OOD?")
    cells = []
    for row in rows:
        line = [str(row["id"]), str(row["predicted"]), number(row["confidence"], 4), number(row["ood_score"], 4)]
        if has_flags:
            line.append("OOD" if row["is_ood"] else "")
        cells.append(line)
    return plain_table("", tuple(titles), cells, left=2)


def _planned_predictions(plan: PlannedPredictions, width: int) -> RenderableType:
    files = ", ".join(plan.files)
    facts = [
        ("model", plan.model),
        ("inputs", count_text(plan.samples)),
        ("would write", files or "lines to standard output"),
    ]
    return fact_table(facts)


# --- which document is drawn by what ----------------------------------------------------------------------------------

_ANSWERS: Mapping[str, _Drawing[Any]] = {
    "hydractl.eval/2": _Drawing(EvalAnswer, eval_table),
    "hydractl.calibrate/1": _Drawing(CalibrateAnswer, _calibrated),
    "hydractl.predict/1": _Drawing(PredictAnswer, _predictions),
    TRAFFIC_SCHEMA: _Drawing(TrafficAnswer, traffic_table),
    "hydractl.bench/1": _Drawing(BenchAnswer, bench_table),
    _PRUNE: _Drawing(PruneAnswer, _prune),
    _PRUNE_WEIGHTS: _Drawing(PruneWeightsAnswer, _prune_weights),
    "hydractl.fuse/1": _Drawing(FuseAnswer, _fuse),
    "hydractl.cascade/1": _Drawing(CascadeAnswer, _cascade),
    "hydractl.export/2": _Drawing(ExportAnswer, _export),
    "hydractl.push/1": _Drawing(PushAnswer, _push),
    "hydractl.list/1": _Drawing(ListAnswer, _list),
    "hydractl.scores/1": _Drawing(ScoresAnswer, _scores),
    "hydractl.circuit/2": _Drawing(CircuitAnswer, _circuit),
    "hydractl.circuits/1": _Drawing(CircuitsAnswer, _circuits),
    "hydractl.finetune/1": _Drawing(FinetuneAnswer, finetune_table),
    "hydractl.finetunes/1": _Drawing(FinetunesAnswer, finetunes_table),
    "hydractl.study/2": _Drawing(FinishedStudy, study_table),
    "hydractl.info/1": _Drawing(InfoAnswer, _info),
    "hydractl.overlap/1": _Drawing(OverlapAnswer, _overlap),
}
_PLANS: Mapping[str, _Drawing[Any]] = {
    "hydractl.predict/1": _Drawing(PlannedPredictions, _planned_predictions),
    "hydractl.bench/1": _Drawing(PlannedBench, planned_bench),
    _PRUNE: _Drawing(PruneAnswer, _prune),
    _PRUNE_WEIGHTS: _Drawing(PruneWeightsAnswer, _prune_weights),
    "hydractl.fuse/1": _Drawing(PlannedFusion, _planned_fusion),
    "hydractl.export/2": _Drawing(ExportAnswer, _export),
    "hydractl.push/1": _Drawing(PushAnswer, _push),
    "hydractl.circuit/2": _Drawing(PlannedSearch, _planned_search),
    "hydractl.finetune/1": _Drawing(PlannedTraining, planned_training),
    "hydractl.finetunes/1": _Drawing(PlannedTrainings, planned_trainings),
    "hydractl.study/2": _Drawing(PlannedStudy, planned_study),
}
