"""Tables for a terminal: which function draws each kind of document, and the tables of all but evals and long runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.files.circuit_answer import (
    CircuitAnswer,
    CircuitsAnswer,
    KeptSite,
    ScoresAnswer,
    SearchCounts,
    SearchEstimate,
)
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.export_answer import ExportAnswer
from hydractl.files.fuse_answer import FuseAnswer
from hydractl.files.model_records import ModelSize
from hydractl.files.predict_answer import PredictAnswer
from hydractl.files.results import Result
from hydractl.files.study_answer import StudyAnswer
from hydractl.files.verb_answers import (
    ComparedMasks,
    FinetuneAnswer,
    FinetunesAnswer,
    InfoAnswer,
    PruneAnswer,
)
from hydractl.report.eval_tables import calibration_words, threshold_words
from hydractl.report.eval_terminal import eval_table
from hydractl.report.run_tables import (
    bench_table,
    finetune_table,
    finetunes_table,
    planned_bench,
    planned_study,
    planned_training,
    planned_trainings,
    study_view,
)
from hydractl.report.tables import UNKNOWN, fact_table, fitted, plain_table, text_table
from hydractl.report.texts import (
    KEPT,
    bytes_text,
    count_text,
    duration_text,
    head_marks,
    number,
    signed_change,
    three_digits,
)

Fact = tuple[str, str]
"""A name and its value."""


def render(result: Result, width: int) -> RenderableType | None:
    """Return what a person sees of a result in lines of this width; None if its kind has no table."""
    drawings = _PLANS if result.dry_run else _RESULTS
    draw = drawings.get(type(result))
    return None if draw is None else draw(result, width)


def _spaced(parts: Iterable[RenderableType]) -> Group:
    """Return the parts below each other, with an empty line between two."""
    spaced: list[RenderableType] = []
    for part in parts:
        if spaced:
            spaced.append(Text(""))
        spaced.append(part)
    return Group(*spaced)


# --- file verbs -------------------------------------------------------------------------------------------------------


def _cost_table(before: ModelSize, after: ModelSize, names: tuple[str, str]) -> Table:
    """Return a table of the sizes of two models and the change; a size that is not known of both has no line.

    Args:
        before, after: the sizes of the two models.
        names: the headings of their columns.
    """
    sizes = (
        ("parameters", before.params, after.params, count_text),
        ("of these not zero", before.params_nonzero, after.params_nonzero, count_text),
        ("mult-adds", before.macs, after.macs, count_text),
        ("bytes of weights", before.bytes, after.bytes, bytes_text),
    )
    rows = []
    for title, old, new, text_of in sizes:
        if old is not None and new is not None:
            rows.append((title, text_of(old), text_of(new), signed_change(old, new)))
    return plain_table("", ("", *names, "change"), rows)


def _prune_view(answer: PruneAnswer, width: int) -> RenderableType:
    """Return what is kept, as a map if the mask is known, what pruning saves, and for a plan the files to write.

    What the answer does not have is left out: weights where heads were pruned, the map of a dry run, and so on.
    """
    parts: list[RenderableType] = []
    if answer.weights is not None:
        weights = answer.weights
        removed = f"{count_text(weights.removable)} removable, {count_text(weights.removed)} removed"
        parts.append(Text(f"weights: {count_text(weights.parameters)} parameters, {removed}"))
    if answer.mask is not None:
        parts += [*_kept_map(answer.mask.head_map), Text("")]
    elif answer.heads is not None:
        parts.append(Text(f"heads kept per site: {', '.join(map(str, answer.heads))}"))
    if answer.note is not None:
        parts.append(Text(answer.note))
    if answer.cost is not None:
        parts.append(_cost_table(answer.cost.before, answer.cost.after, ("before", "after")))
    if answer.files_ is not None:
        parts.append(Text(f"would write {', '.join(answer.files_)}"))
    return Group(*parts)


def _fuse_view(answer: FuseAnswer, width: int) -> RenderableType:
    """Return the answer of ``fuse``: a table of the members, facts on how they are fused, and what that saves."""
    # How many parameters are averaged, are equal in all members, and belong to each member alone.
    counts = {name: f"{count_text(count)} parameters" for name, count in answer.parameters.items()}
    facts = [("averaged", f"{', '.join(answer.merge) or 'nothing'} ({counts['averaged']})")]
    if "equal" in counts:
        facts.append(("equal in all", counts["equal"]))
    facts.append(("per member", counts["per_member"]))

    # What runs once for all members of each tower (encoder): all before the first layer that differs between them.
    for tower in answer.shared:
        where = "" if tower.tower == "main" else f" ({tower.tower} tower)"
        facts.append((f"run once{where}", ", ".join(tower.once) or "nothing"))
        if tower.parts_at:
            facts.append((f"parting at{where}", f"{tower.parts_at}: {tower.differs}"))

    # Mult-adds over those of the single model, and over those of the members one after another.
    sizes = answer.cost
    fused, members_alone = sizes.fused.macs, sizes.members.macs
    if sizes.mac_ratio is not None and fused is not None and members_alone is not None:
        single_words = f"{sizes.mac_ratio:.2f} times the single model with all heads"
        facts.append(("mult-adds", f"{single_words}, {fused / members_alone:.2f} times the separate members"))

    # The largest differences of logits to the members; for a plan, the file.
    check = answer.self_check
    if check is None:
        facts.append(("would write", answer.output))
    else:
        agreement = f"members run alone agree to {max(check.member_max_abs):.0e}"
        facts.append(("self-check", f"{agreement}; averaging moved logits by {max(check.merge_max_abs):.2g}"))
    if answer.note is not None:
        facts.append(("note", answer.note))

    members = [(member.name, ", ".join(map(str, member.heads))) for member in answer.members]
    return _spaced(
        [
            plain_table("", ("member", "heads per site"), members, left=2),
            fact_table(facts),
            _cost_table(sizes.single, sizes.fused, ("first member", "fused")),
        ]
    )


def _export_view(answer: ExportAnswer, width: int) -> RenderableType:
    """Return each exported file, its size and how well it agrees with the model; for a plan, the files to write."""
    facts = [("model", f"{answer.model} ({answer.arch})"), ("members", str(answer.members))]
    for file in answer.exports:
        check = file.check
        if check is None or file.bytes is None:
            facts.append(("would write", file.path))
        else:
            size = f"{file.bytes / 1e6:.3g} MB"
            facts.append(
                (file.path, f"{size}; {check.runtime} agrees with the model to {check.max_abs['member_logits']:.0e}")
            )
    return fact_table(facts)


# --- scores and circuits ----------------------------------------------------------------------------------------------


def _scores_view(answer: ScoresAnswer, width: int) -> RenderableType:
    """Return the table of the importance of all heads."""
    title = f"importance ({answer.method or 'given'}), higher = keep"
    numbers = {site: list(map(three_digits, values)) for site, values in answer.sites.items()}
    return _heads_table(title, numbers, width)


def _heads_table(title: str, cells: Mapping[str, Sequence[str]], width: int) -> RenderableType:
    """Return a table with a line for each site (attention module), and a column for each head.

    Args:
        title: the title of the table.
        cells: a text for each head of each site, by the path of the site.
        width: the width of the terminal in characters.
    """
    most_heads = max(map(len, cells.values()), default=0)
    rows = []
    for site, of_heads in cells.items():
        empty = [""] * (most_heads - len(of_heads))  # sites may have different numbers of heads
        rows.append([site, *of_heads, *empty])
    return fitted(text_table(title, ("site", *map(str, range(most_heads))), rows), width)


def _planned_search_view(plan: SearchEstimate, width: int) -> RenderableType:
    """Return what a search would take, and the files that it would write."""
    facts = [
        ("model", plan.model),
        ("would remove", f"{plan.budget} of {plan.heads} heads"),
        ("objectives", ", ".join(plan.objectives)),
        ("evaluations", f"{plan.evaluations_per_objective:,} of the whole data for each objective"),
        ("time", f"about {duration_text(plan.seconds)}"),
        ("states that are kept", bytes_text(plan.memory_bytes)),
    ]
    if plan.chunks > 1:
        facts.append(("data", f"in {plan.chunks} parts, read anew at every step"))
    facts.append(("would write", ", ".join(plan.files_) or "to standard output"))
    return fact_table(facts)


def _circuit_view(answer: CircuitAnswer, width: int) -> RenderableType:
    """Return a table of the step at which each head was removed, if the sites are known, and the figures of all steps.

    A head that is kept is marked; one that was gone before the search began has a dash.
    """
    steps = _steps_table(answer)
    if not answer.sites:
        return steps
    said = f"circuit for {answer.objective}: the step at which each head was removed ({KEPT} kept, {UNKNOWN} before)"
    step_of_head = {(removal.site, removal.head): str(removal.step) for removal in answer.removed}
    start = {} if answer.start_mask is None else answer.start_mask.sites
    cells = {}
    for site, heads in answer.sites.items():
        # Without a mask for the site, the search begins with all of its heads.
        heads_at_start = start[site].kept if site in start else range(heads)
        cells[site] = [UNKNOWN] * heads
        for head in heads_at_start:
            cells[site][head] = step_of_head.get((site, head), KEPT)  # a head that no step removed is kept
    return _spaced([Group(Text(said), _heads_table("", cells, width)), steps])


def _steps_table(answer: CircuitAnswer) -> Table:
    """Return the table of score, accuracy and AUROC before the first removal of a search and after each removal."""
    rows = []
    if answer.base is not None:
        rows.append(["0", "-", "-", *_step_figures(answer.base)])  # step 0 removes nothing
    for removal in answer.removed:
        rows.append([str(removal.step), removal.site, str(removal.head), *_step_figures(removal)])
    columns = ("step", "removed at", "head", "score", "accuracy", "auroc")
    return plain_table(f"circuit for {answer.objective}", columns, rows, left=2)


def _step_figures(counts: SearchCounts) -> list[str]:
    """Return the score, accuracy and AUROC of one step as text; the AUROC is a dash without OOD samples."""
    auroc = None
    if counts.two_u is not None and counts.n_ood is not None:
        # `two_u` is twice the number of pairs (ID, OOD) in which the OOD sample scores higher, so this is their share.
        auroc = counts.two_u / (2 * counts.n_id * counts.n_ood)
    return [number(counts.score), number(counts.correct / counts.n_id), number(auroc)]


def _circuits_view(answer: CircuitsAnswer, width: int) -> RenderableType:
    """Return the views of several circuits, below each other."""
    return _spaced(_circuit_view(circuit, width) for circuit in answer.circuits)


# --- files ------------------------------------------------------------------------------------------------------------


_MOST_DRAWN = 100_000  # the most heads that are drawn as maps
_MOST_ROWS = 200
_LONGEST_VALUE = 1000  # characters
_LONGEST_LIST = 12
_LONGEST_INSIDE = 200  # characters of a text in an object or a list

_DRAWN_APART = ("schema", "head_maps", "overlap", "source")
"""Keys of a file that are drawn otherwise than as lines of facts."""


def _info_view(answer: InfoAnswer, width: int) -> RenderableType:
    """Return what a file holds: its facts, then its heads as maps, and its provenance."""
    facts = {key: value for key, value in answer.to_dict().items() if key not in _DRAWN_APART}
    # Maps of heads, the overlap of several masks, and the provenance, as far as the file has them.
    parts: list[RenderableType] = [fact_table(_shortened_facts(facts)), *_maps_of_members(answer.head_maps)]
    if answer.overlap is not None:
        parts += [Text(""), _overlap_table(answer.overlap)]
    if isinstance(answer.source, dict):
        parts += [Text("\nprovenance"), fact_table(_shortened_facts(answer.source))]
    return Group(*parts)


def _maps_of_members(members: Sequence[Sequence[KeptSite]]) -> list[RenderableType]:
    """Return a title and a map of the kept heads for each member; if there are too many heads, of the first members.

    The last line then says how many more there are.
    """
    parts: list[RenderableType] = []
    heads_drawn = 0
    for index, sites in enumerate(members):
        heads_drawn += sum(site.heads or 0 for site in sites)
        if heads_drawn > _MOST_DRAWN:
            return [*parts, Text(f"\nand {len(members) - index} more members; --json has all")]
        title = f"\nmember {index}" if len(members) > 1 else ""
        parts += [Text(title), *_kept_map(sites)]
    return parts


_LONGEST_SITE = 100
"""The most characters to which the names of sites are padded; one longer name does not widen the others."""


def _kept_map(sites: Sequence[KeptSite]) -> Iterator[Text]:
    """Yield a line for each site: its name, a mark for each head, and the numbers of kept and of all heads.

    Without marks, and with ``?``, where it is not known how many heads there were. Lines are cut at the width of the
    terminal and never wrapped.
    """
    letters = min(_LONGEST_SITE, max((len(site.site) for site in sites), default=0))
    for site in sites:
        marks = "" if site.heads is None else head_marks(site.heads, site.kept)
        heads = "?" if site.heads is None else site.heads
        line = f"{site.site.ljust(letters)}  {marks}  {len(site.kept)}/{heads}"
        yield Text(line, no_wrap=True, overflow="crop")


def _shortened_facts(values: Mapping[str, object]) -> list[Fact]:
    """Return the names and values in a file as facts: at most 200 of them, and values of at most 1000 characters.

    A file may come from anywhere and hold anything, so its output must be limited.
    """
    rows = []
    for name, value in list(values.items())[:_MOST_ROWS]:
        text = _one_line(value)
        if len(text) > _LONGEST_VALUE:
            text = f"{text[:_LONGEST_VALUE]}... ({len(text)} characters; --json has all)"
        rows.append((name[:_LONGEST_VALUE], text))
    if len(values) > _MOST_ROWS:
        rows.append(("...", f"{len(values) - _MOST_ROWS} more; --json has all"))
    return rows


def _one_line(value: object) -> str:
    """Return a JSON value as one line, such as ``a=1, b=(c=2)`` for an object, or ``20: 1, 2, 3, 4, 5, 6, ...``.

    Of a list of more than twelve entries only the first six are shown, behind their number; of an object nothing that
    is null.
    """
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_inside(inner)}" for key, inner in value.items() if inner is not None) or "-"
    if not isinstance(value, list):
        return str(value)
    if len(value) > _LONGEST_LIST:
        return f"{len(value)}: {', '.join(map(_inside, value[:6]))}, ..."
    return ", ".join(map(_inside, value))


def _inside(value: object) -> str:
    """Return a value in an object or a list as part of its line: an object in parentheses, a long text by its length.

    Texts of many characters are arrays of bytes.
    """
    text = _one_line(value)
    if isinstance(value, dict):
        return f"({text})"
    if isinstance(value, str) and len(text) > _LONGEST_INSIDE:
        return f"({len(text)} characters)"
    return text


# The overlap of kept heads is left out, because it is near 1 whenever most heads are kept.
_COMPARISONS: Mapping[str, Callable[[ComparedMasks], float | None]] = {
    "Jaccard\nkept": lambda pair: pair.kept.jaccard,
    "Jaccard\nremoved": lambda pair: pair.removed.jaccard,
    "overlap\nremoved": lambda pair: pair.removed.overlap,
    "JSD\nkept": lambda pair: pair.kept.divergence,
    "JSD\nremoved": lambda pair: pair.removed.divergence,
}


def _overlap_table(pairs: Sequence[ComparedMasks]) -> RenderableType:
    """Return a table of how much each two masks agree on which heads are kept and removed."""
    rows = [[pair.a, pair.b, *(number(figure_of(pair), 3) for figure_of in _COMPARISONS.values())] for pair in pairs]
    drawn = plain_table("", ("", "", *_COMPARISONS), rows, left=2)
    for column in drawn.columns[:2]:
        column.overflow = "fold"  # a name that is cut could be taken for another one
    heading = Text("overlap of heads (JSD: Jensen-Shannon divergence over the sites, in bits)")
    return Group(heading, drawn)


# --- calibrations -----------------------------------------------------------------------------------------------------


def _calibration_view(answer: CalibrateAnswer, width: int) -> RenderableType:
    """Return what was fitted, and the AUROC of each OOD score if several were compared."""
    facts = fact_table(_calibration_facts(answer))
    if not answer.compared:
        return facts
    rows = [[name, number(score.auroc)] for name, score in answer.compared.items()]
    return Group(facts, Text(""), plain_table("", ("OOD score", "mean AUROC\nof --ood-val"), rows))


def _calibration_facts(answer: CalibrateAnswer) -> list[Fact]:
    """Return each thing that was fitted, with its value."""
    conformal = answer.conformal
    sets = "" if conformal is None else f"qhat {number(conformal.qhat)} of {conformal.method}, alpha {conformal.alpha}"
    facts = {
        "model": answer.model.name,
        "calibration": calibration_words(answer.calibration),
        "OOD score": answer.ood_score,
        "threshold": threshold_words(answer.threshold, answer.flagged or {}),
        "conformal": sets,
    }
    return [(name, text) for name, text in facts.items() if text]


def _predictions_view(answer: PredictAnswer, width: int) -> RenderableType:
    """Return the first predictions, if the answer holds them, and a summary of all predictions."""
    facts = fact_table(_prediction_facts(answer))
    if not answer.first:
        return facts
    parts: list[RenderableType] = [_predictions_table(answer.first), Text("")]
    left_out = answer.n - len(answer.first)
    if left_out > 0:
        parts += [Text(f"... and {count_text(left_out)} more; -o FILE.jsonl keeps all"), Text("")]
    return Group(*parts, facts)


def _prediction_facts(answer: PredictAnswer) -> list[Fact]:
    """Return a summary of predictions: the model, its confidence, and the numbers of inputs flagged and unreadable."""
    model = answer.model
    facts = [("model", model.name), ("inputs", count_text(answer.n)), ("mean confidence", number(answer.confidence))]
    if model.threshold is not None:
        facts.append(("threshold", f"{number(model.threshold, 6)} of {model.ood_score}"))
    if answer.ood is not None:
        facts.append(("flagged as OOD", f"{count_text(answer.ood.n)}: {answer.ood.in_percent()}"))
    if answer.skipped is not None:
        facts.append(("could not be read", count_text(answer.skipped.n)))
    return [*facts, ("predicted", _most_frequent_classes(answer))]


def _most_frequent_classes(answer: PredictAnswer) -> str:
    """Return the classes that were predicted most often, with their counts, and how many more classes there are.

    For example ``cat: 12, dog: 7 and so on``; ``nothing`` without predictions.
    """
    words = [f"{entry.label}: {count_text(entry.n)}" for entry in answer.classes[:_MOST_CLASSES]]
    left_out = len(answer.classes) - len(words)
    if left_out:
        words.append(f"and {left_out} more classes")
    return ", ".join(words) or "nothing"


_MOST_CLASSES = 5
"""The most predicted classes that a table names."""


def _predictions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line for each prediction, with its flag if there is a threshold."""
    lines = []
    for row in rows:
        cells = [str(row["id"]), str(row["predicted"]), number(row["confidence"]), number(row["ood_score"]), UNKNOWN]
        if "is_ood" in row:
            cells[-1] = "OOD" if row["is_ood"] else ""
        lines.append(cells)
    return plain_table("", ["input", "predicted", "confidence", "OOD score", "OOD?"], lines, left=2)


def _planned_predictions_view(plan: PredictAnswer, width: int) -> RenderableType:
    """Return the plan of predictions: the model, the number of inputs, and the files it would write."""
    files = ", ".join(plan.files_ or ()) or "lines to standard output"
    return fact_table([("model", plan.model.name), ("inputs", count_text(plan.n)), ("would write", files)])


# --- which document is drawn by what ----------------------------------------------------------------------------------

_Drawings = Mapping[type[Result], Callable[[Any, int], RenderableType]]

_RESULTS: _Drawings = {
    EvalAnswer: eval_table,
    CalibrateAnswer: _calibration_view,
    PredictAnswer: _predictions_view,
    BenchAnswer: bench_table,
    PruneAnswer: _prune_view,
    FuseAnswer: _fuse_view,
    ExportAnswer: _export_view,
    ScoresAnswer: _scores_view,
    CircuitAnswer: _circuit_view,
    CircuitsAnswer: _circuits_view,
    FinetuneAnswer: finetune_table,
    FinetunesAnswer: finetunes_table,
    StudyAnswer: study_view,
    InfoAnswer: _info_view,
}
_PLANS: _Drawings = {
    PredictAnswer: _planned_predictions_view,
    BenchAnswer: planned_bench,
    PruneAnswer: _prune_view,
    FuseAnswer: _fuse_view,
    ExportAnswer: _export_view,
    SearchEstimate: _planned_search_view,
    FinetuneAnswer: planned_training,
    FinetunesAnswer: planned_trainings,
    StudyAnswer: planned_study,
}
