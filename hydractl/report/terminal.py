"""Tables for a terminal, one renderer per kind of document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.files.circuit_answer import CircuitAnswer, MaskSiteRecord, ScoresAnswer, SearchCounts
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.fuse_answer import ExportedFileRecord, FittedCascadeRecord, FuseAnswer
from hydractl.files.model_records import ModelSize
from hydractl.report.eval_terminal import eval_table
from hydractl.report.fuse_words import cascade_words, data_words
from hydractl.report.rich_parts import HeatMap, KeptMap, KeptSite
from hydractl.report.rich_parts import facts as fact_table
from hydractl.report.rich_parts import table as plain_table
from hydractl.report.run_tables import bench_table, finetune_table, finetunes_table, study_table
from hydractl.report.texts import bytes_text, count_text, duration_text, number, signed_change

Fact = tuple[str, str]
"""A name and its value."""


def render(document: dict[str, Any], width: int) -> RenderableType | None:
    """Return what a person sees of a document, or None when there is no special form for it."""
    schema = str(document.get("schema"))
    renderer = _RENDERERS.get(schema)
    if renderer is None:
        return None
    if document.get("dry_run") and schema not in _WITH_DRY_RUN:
        return None
    return renderer(document, width)


def _lines(parts: Iterable[RenderableType]) -> Group:
    """Return parts one below another, an empty line between two."""
    spaced: list[RenderableType] = []
    for part in parts:
        if spaced:
            spaced.append(Text(""))
        spaced.append(part)
    return Group(*spaced)


def _eval(document: dict[str, Any], width: int) -> RenderableType:
    return eval_table(EvalAnswer.from_json(document), width)


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


def _prune(document: dict[str, Any], width: int) -> RenderableType:
    parts: list[RenderableType] = []
    if "mask" in document:
        sites = [KeptSite.of({"site": path, **entry}) for path, entry in document["mask"]["sites"].items()]
        parts += [KeptMap(sites), Text("")]
    elif "heads" in document:
        parts.append(Text(f"heads kept per site: {', '.join(map(str, document['heads']))}"))
    if "note" in document:
        parts.append(Text(document["note"]))
    if "weights" in document:
        weights = document["weights"]
        counts = [f"{count_text(weights[key])} {key}" for key in ("parameters", "removable", "removed")]
        parts.append(Text(f"weights: {', '.join(counts)}"))
    if "cost" in document:
        before = ModelSize.from_json(document["cost"]["before"])
        after = ModelSize.from_json(document["cost"]["after"])
        parts.append(_costs(before, after, ("before", "after")))
    if "files" in document:
        parts.append(Text(f"would write {', '.join(document['files'])}"))
    return Group(*parts)


def _fuse(document: dict[str, Any], width: int) -> RenderableType:
    if document.get("dry_run"):  # a plan says no more of averaging than what was asked for
        document = {**document, "averaging": None}
    answer = FuseAnswer.from_json(document)
    members = []
    for member in answer.members:
        members.append((member["name"], ", ".join(map(str, member["heads"]))))
    facts = [*_averaged(answer), *_shared(answer), *_checked(answer)]
    if answer.cascade is not None:
        facts.append(_cascade_fact(answer.cascade))
    if "note" in document:
        facts.append(("note", document["note"]))
    facts += _exports(answer.exports or ())
    sizes = answer.sizes
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
    for tower in answer.towers:
        where = "" if tower.tower == "main" else f" ({tower.tower} tower)"
        facts.append((f"run once{where}", ", ".join(tower.once) or "nothing"))
        if tower.parts_at:
            facts.append((f"parting at{where}", f"{tower.parts_at}: {tower.differs}"))
            facts.append((f"to part later{where}", str(tower.hint)))
    sizes = answer.sizes
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


def _cascade(document: dict[str, Any], width: int) -> RenderableType:
    cascade = FittedCascadeRecord.from_json(document["cascade"])
    return fact_table([_model_fact(document), _cascade_fact(cascade)])


def _model_fact(document: Mapping[str, Any]) -> Fact:
    return "model", f"{document['model']} ({document['arch']})"


def _cascade_fact(cascade: FittedCascadeRecord) -> Fact:
    _, _, words = cascade_words(cascade).partition(": ")
    return "cascade", words


def _export(document: dict[str, Any], width: int) -> RenderableType:
    facts = [_model_fact(document), ("members", str(document["members"]))]
    return fact_table([*facts, *_exports(document.get("exports", ()))])


def _exports(entries: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """Return a row for each file that was, or would be, exported."""
    facts = []
    for entry in entries:
        file = ExportedFileRecord.from_json(entry)
        check = file.check
        if check is None or file.bytes is None:
            facts.append(("would write", file.path))
            if file.data is not None:
                facts.append(("would write", file.data))
            continue
        agreement = f"{check.runtime}, weights rounded to 8 bits"
        if check.tolerance is not None:
            agreement = f"{check.runtime} agrees with the model to {check.member_logits_max_abs:.0e}"
        facts.append((file.path, f"{file.bytes / 1e6:.3g} MB; {agreement}"))
    return facts


def _push(document: dict[str, Any], width: int) -> RenderableType:
    facts = [("repository", document["repository"])]
    for file in document["files"]:
        facts.append((file["path"], f"{file['bytes'] / 1e6:.3g} MB; {_fate(document, file['path'])}"))
    for file in document.get("left_out", []):
        facts.append((file["path"], f"{file['bytes'] / 1e6:.3g} MB; left out"))
    if "pinned" in document:
        facts.append(("pinned", document["pinned"]))
    return fact_table(facts)


def _fate(document: Mapping[str, Any], path: str) -> str:
    """Say what became, or would become, of a file that is pushed."""
    if document.get("dry_run"):
        return "would be uploaded"
    return "uploaded" if path in document["uploaded"] else "there already"


# --- scores and circuits ----------------------------------------------------------------------------------------------


def _three(value: float | None) -> str:
    """Format to three digits that count: scores of one model may all be large, or all be small."""
    return "-" if value is None else f"{value:#.3g}"


def _scores(document: dict[str, Any], width: int) -> RenderableType:
    answer = ScoresAnswer.from_json(document)
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
    return Console(width=10**4).measure(drawn).maximum


def _search_plan(document: dict[str, Any]) -> RenderableType:
    """Return what a search would take."""
    blocks = f"about {document['sample_blocks']:,}, naively {document['sample_blocks_naive']:,}"
    facts = [
        ("model", document["model"]),
        ("would remove", f"{document['budget']} of {document['heads']} heads"),
        ("objectives", ", ".join(document["objectives"])),
        ("evaluations", f"{document['evaluations_per_objective']:,} of the whole data for each objective"),
        ("sample-block evaluations", blocks),
        ("time", f"about {duration_text(document['seconds'])}"),
        ("states that are kept", bytes_text(document["memory_bytes"])),
    ]
    if document["chunks"] > 1:
        facts.append(("data", f"in {document['chunks']} parts, read anew at every step"))
    facts.append(("would write", ", ".join(document["files"]) or "to standard output"))
    return fact_table(facts)


def _circuit(document: dict[str, Any], width: int) -> RenderableType:
    if document.get("dry_run"):
        return _search_plan(document)
    answer = CircuitAnswer.from_json(document)
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
        rows.append([str(removal.step), removal.site, str(removal.head), *_measured(removal)])
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
    start: Mapping[str, MaskSiteRecord] = answer.start_mask.sites if answer.start_mask is not None else {}
    rows = []
    for site, heads in sites.items():
        there = start[site].kept if site in start else range(heads)
        steps = []
        for head in range(heads):
            steps.append(step_of_head.get((site, head), math.inf) if head in there else None)
        rows.append((site, steps))
    title = f"circuit for {answer.objective}: when each head was removed"
    return HeatMap(title, rows, low="first: step", high="last: step", form=str, gone="removed before")


def _circuits(document: dict[str, Any], width: int) -> RenderableType:
    return _lines(_circuit(circuit, width) for circuit in document["circuits"])


# --- files ------------------------------------------------------------------------------------------------------------


_SHOWN_APART = ("schema", "head_map", "head_maps", "overlap", "source")
_MOST_DRAWN = 100_000  # heads
_MOST_ROWS = 200
_LONGEST_VALUE = 1000  # characters
_LONGEST_LIST = 12


def _info(document: dict[str, Any], width: int) -> RenderableType:
    plain = {key: value for key, value in document.items() if key not in _SHOWN_APART}
    parts: list[RenderableType] = [fact_table(_few(plain))]
    parts += _members_drawn(document.get("head_maps", []))
    if "head_map" in document:
        parts += [Text(""), KeptMap([KeptSite.of(entry) for entry in document["head_map"]])]
    if "overlap" in document:
        parts += [Text(""), _pairs(document["overlap"])]
    if isinstance(document.get("source"), dict):
        parts += [Text("\nmade by"), fact_table(_few(document["source"]))]
    return Group(*parts)


def _members_drawn(members: Sequence[Sequence[Mapping[str, Any]]]) -> list[RenderableType]:
    """Return the kept heads of each member, as long as they are not too many to draw."""
    parts: list[RenderableType] = []
    drawn = 0
    for index, entries in enumerate(members):
        sites = [KeptSite.of(entry) for entry in entries]
        drawn += sum(site.heads or 0 for site in sites)
        if drawn > _MOST_DRAWN:
            parts.append(Text(f"\nand {len(members) - index} more members; --json has all"))
            break
        parts += [Text(f"\nmember {index}"), KeptMap(sites)]
    return parts


def _few(values: Mapping[str, Any]) -> list[Fact]:
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
        return ", ".join(f"{key}={_inner(inner)}" for key, inner in value.items())
    if not isinstance(value, list):
        return str(value)
    if len(value) > _LONGEST_LIST:
        return f"{len(value)}: {', '.join(map(str, value[:6]))}, ..."
    return ", ".join(map(str, value))


def _inner(value: object) -> str:
    return _short(value) if isinstance(value, (dict, list)) else str(value)


def _overlap(document: dict[str, Any], width: int) -> RenderableType:
    return _pairs(document["pairs"])


# The overlap of kept heads is left out: it is near 1 wherever most heads are kept.
_OVERLAPS = (
    ("jaccard", "kept", "Jaccard\nkept"),
    ("jaccard", "removed", "Jaccard\nremoved"),
    ("overlap", "removed", "overlap\nremoved"),
    ("divergence", "kept", "JSD\nkept"),
    ("divergence", "removed", "JSD\nremoved"),
)


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return how far each two masks keep, and remove, the same heads."""
    rows = []
    for pair in pairs:
        figures = [number(pair[side][measure], 3) for measure, side, _ in _OVERLAPS]
        rows.append([pair["a"], pair["b"], *figures])
    drawn = plain_table("", ("", "", *(title for _, _, title in _OVERLAPS)), rows, left=2)
    for column in drawn.columns[:2]:
        column.overflow = "fold"  # a name cut short would be another name
    return Group(Text("overlap of heads (JSD: Jensen-Shannon divergence over the sites, in bits)"), drawn)


_RENDERERS: dict[str, Callable[[dict[str, Any], int], RenderableType]] = {
    "hydractl.eval/1": _eval,
    "hydractl.bench/1": bench_table,
    "hydractl.prune/1": _prune,
    "hydractl.fuse/1": _fuse,
    "hydractl.cascade/1": _cascade,
    "hydractl.export/1": _export,
    "hydractl.push/1": _push,
    "hydractl.scores/1": _scores,
    "hydractl.circuit/1": _circuit,
    "hydractl.circuits/1": _circuits,
    "hydractl.finetune/1": finetune_table,
    "hydractl.finetunes/1": finetunes_table,
    "hydractl.study/2": study_table,
    "hydractl.info/1": _info,
    "hydractl.overlap/1": _overlap,
}
_WITH_DRY_RUN = {
    *["hydractl.prune/1", "hydractl.fuse/1", "hydractl.export/1", "hydractl.bench/1", "hydractl.circuit/1"],
    *["hydractl.finetune/1", "hydractl.finetunes/1", "hydractl.study/2", "hydractl.push/1"],
}
