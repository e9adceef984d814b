"""Tables for a terminal, one renderer per kind of document."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.files.eval_answer import EvalAnswer
from hydractl.report.eval_terminal import eval_table
from hydractl.report.fuse_words import cascade_words, data_words, once_of
from hydractl.report.rich_parts import HeatMap, KeptMap
from hydractl.report.rich_parts import facts as _facts
from hydractl.report.rich_parts import table as _table
from hydractl.report.run_tables import bench_table, finetune_table, finetunes_table, study_table
from hydractl.report.texts import bytes_text, count_text, duration_text, number, signed_change


def render(document: dict[str, Any], width: int) -> RenderableType | None:
    """Return what a person sees of a document, or None when there is no special form for it."""
    renderer = _RENDERERS.get(str(document.get("schema")))
    if renderer is None or (document.get("dry_run") and document["schema"] not in _WITH_DRY_RUN):
        return None
    return renderer(document, width)


def _eval(document: dict[str, Any], width: int) -> RenderableType:
    return eval_table(EvalAnswer.from_json(document), width)


# --- file verbs -------------------------------------------------------------------------------------------------------


def _costs(before: dict[str, Any], after: dict[str, Any], names: tuple[str, str]) -> Table:
    rows = []
    titles = {"params": "parameters", "params_nonzero": "of these not zero", "macs": "mult-adds"}
    for key, title in {**titles, "bytes": "bytes of weights"}.items():
        if key not in before or key not in after:
            continue
        form = bytes_text if key == "bytes" else count_text
        rows.append((title, form(before[key]), form(after[key]), signed_change(before[key], after[key])))
    return _table("", ("", *names, "change"), rows)


def _prune(document: dict[str, Any], width: int) -> RenderableType:
    parts: list[RenderableType] = []
    if "mask" in document:
        entries = [{"site": p, **e} for p, e in document["mask"]["sites"].items()]
        parts += [KeptMap(entries), Text("")]
    elif "heads" in document:
        parts.append(Text(f"heads kept per site: {', '.join(map(str, document['heads']))}"))
    if "note" in document:
        parts.append(Text(document["note"]))
    if "weights" in document:
        counts = (f"{count_text(document['weights'][key])} {key}" for key in ("parameters", "removable", "removed"))
        parts.append(Text(f"weights: {', '.join(counts)}"))
    if "cost" in document:
        parts.append(_costs(document["cost"]["before"], document["cost"]["after"], ("before", "after")))
    if "files" in document:
        parts.append(Text(f"would write {', '.join(document['files'])}"))
    return Group(*parts)


def _fuse(document: dict[str, Any], width: int) -> RenderableType:
    merged = ", ".join(document["merge"]) or "nothing"
    rows = [(m["name"], ", ".join(map(str, m["heads"]))) for m in document["members"]]
    counts = document["parameters"]
    facts = [
        ("averaged", f"{merged} ({count_text(counts['averaged'])} parameters)"),
        ("per member", f"{count_text(counts['per_member'])} parameters"),
    ]
    if "equal" in counts:
        facts.insert(1, ("equal in all", f"{count_text(counts['equal'])} parameters"))
    facts += _shared(document)
    check = document.get("self_check")
    if check:
        worst, moved = max(check["member_max_abs"]), max(check["merge_max_abs"])
        facts.append(("self-check", f"members run alone agree to {worst:.0e}; averaging moved logits by {moved:.2g}"))
    else:
        facts.append(("would write", document["output"]))
    if "on_data" in document:
        facts.append(("on data", data_words(document["on_data"])))
    facts += _cascade_facts(document)
    if "note" in document:
        facts.append(("note", document["note"]))
    facts += _exports(document)
    parts: list[RenderableType] = [_table("", ("member", "heads per site"), rows, left=2), Text(""), _facts(facts)]
    parts.append(Text(""))
    return Group(*parts, _costs(document["cost"]["single"], document["cost"]["fused"], ("first member", "fused")))


def _shared(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what runs once for all members, why no more of it, and what the whole costs."""
    rows = []
    for tower in document.get("shared", []):
        where = "" if tower["tower"] == "main" else f" ({tower['tower']} tower)"
        rows.append((f"run once{where}", ", ".join(once_of(tower)) or "nothing"))
        if tower["parts_at"]:
            rows.append((f"parting at{where}", f"{tower['parts_at']}: {tower['differs']}"))
            rows.append((f"to part later{where}", tower["hint"]))
    cost = document["cost"]
    if "mac_ratio" in cost:
        apart = cost["fused"]["macs"] / cost["members"]["macs"]
        text = f"{cost['mac_ratio']:.2f} times the single model with all heads, {apart:.2f} times the separate members"
        rows.append(("mult-adds", text))
    return rows


def _cascade(document: dict[str, Any], width: int) -> RenderableType:
    return _facts([("model", f"{document['model']} ({document['arch']})"), *_cascade_facts(document)])


def _cascade_facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [("cascade", cascade_words(document["cascade"]).partition(": ")[2])] if "cascade" in document else []


def _export(document: dict[str, Any], width: int) -> RenderableType:
    facts = [("model", f"{document['model']} ({document['arch']})"), ("members", str(document["members"]))]
    return _facts([*facts, *_exports(document)])


def _push(document: dict[str, Any], width: int) -> RenderableType:
    facts = [("repository", document["repository"])]
    for file in document["files"]:
        facts.append((file["path"], f"{file['bytes'] / 1e6:.3g} MB; {_fate(document, file['path'])}"))
    for file in document.get("left_out", []):
        facts.append((file["path"], f"{file['bytes'] / 1e6:.3g} MB; left out"))
    if "pinned" in document:
        facts.append(("pinned", document["pinned"]))
    return _facts(facts)


def _fate(document: dict[str, Any], path: str) -> str:
    """Say what became, or would become, of a file that is pushed."""
    if document.get("dry_run"):
        return "would be uploaded"
    return "uploaded" if path in document["uploaded"] else "there already"


def _exports(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row for each file that was, or would be, exported."""
    rows = []
    for entry in document.get("exports", []):
        check = entry.get("check")
        if check is None:
            rows += [("would write", entry[key]) for key in ("path", "data") if key in entry]
            continue
        size = f"{entry['bytes'] / 1e6:.3g} MB"
        exact = f"{check['runtime']} agrees with the model to {check['member_logits_max_abs']:.0e}"
        found = exact if check["tolerance"] is not None else f"{check['runtime']}, weights rounded to 8 bits"
        rows.append((entry["path"], f"{size}; {found}"))
    return rows


def _three(value: float | None) -> str:
    """Format to three digits that count: scores of one model may all be large, or all be small."""
    return "-" if value is None else f"{value:#.3g}"


def _scores(document: dict[str, Any], width: int) -> RenderableType:
    sites = document["sites"]
    picture = HeatMap(f"importance ({document.get('method', 'given')}), shaded by rank", list(sites.items()))
    widest = max((len(v) for v in sites.values()), default=0)
    rows = [[site, *[_three(v) for v in values], *[""] * (widest - len(values))] for site, values in sites.items()]
    columns = ("site", *[f"head {h}" for h in range(widest)])
    table = _table("higher = keep", columns, rows)
    table.padding = (0, 1, 0, 0)  # twelve heads then fit 120 columns
    needed = Console(width=10**4).measure(table).maximum
    if needed > width:
        # Cut numbers say nothing, and twice the lines would push the picture off the screen.
        return Group(picture, Text(f"\nThe numbers: --json, or a terminal of {needed} columns."))
    return Group(picture, Text(""), table)


def _search_plan(document: dict[str, Any]) -> RenderableType:
    """Return what a search would take."""
    naive, here = document["sample_blocks_naive"], document["sample_blocks"]
    rows = [
        ("model", document["model"]),
        ("would remove", f"{document['budget']} of {document['heads']} heads"),
        ("objectives", ", ".join(document["objectives"])),
        ("evaluations", f"{document['evaluations_per_objective']:,} of the whole data for each objective"),
        ("sample-block evaluations", f"about {here:,}, naively {naive:,}"),
        ("time", f"about {duration_text(document['seconds'])}"),
        ("states that are kept", bytes_text(document["memory_bytes"])),
    ]
    rows += [("data", f"in {document['chunks']} parts, read anew at every step")] if document["chunks"] > 1 else []
    return _facts([*rows, ("would write", ", ".join(document["files"]) or "to standard output")])


def _circuit(document: dict[str, Any], width: int) -> RenderableType:
    if document.get("dry_run"):
        return _search_plan(document)
    rows = []
    for step in [{"step": 0, "site": "-", "head": "-", **document["base"]}, *document["removed"]]:
        auroc = None if step["two_u"] is None else step["two_u"] / (2 * step["n_id"] * step["n_ood"])
        accuracy = step["correct"] / step["n_id"]
        rows.append(
            [str(step["step"]), str(step["site"]), str(step["head"]), *map(number, (step["score"], accuracy, auroc))]
        )
    columns = ("step", "removed at", "head", "score", "accuracy", "auroc")
    table = _table(f"circuit for {document['objective']}", columns, rows, left=2)
    needed = Console(width=10**4).measure(table).maximum
    shown = table if needed <= width else Text(f"The numbers: --json, or a terminal of {needed} columns.")
    return Group(_removal_map(document), Text(""), shown) if document.get("sites") else shown


def _removal_map(document: dict[str, Any]) -> HeatMap:
    """Return when each head was removed; infinity for those never removed, None for those gone at the start."""
    steps = {(step["site"], step["head"]): step["step"] for step in document["removed"]}
    start = document.get("start_mask", {}).get("sites", {})
    rows = []
    for site, heads in document["sites"].items():
        there = start[site]["kept"] if site in start else range(heads)
        rows.append((site, [steps.get((site, h), math.inf) if h in there else None for h in range(heads)]))
    title = f"circuit for {document['objective']}: when each head was removed"
    return HeatMap(title, rows, low="first: step", high="last: step", form=str, gone="removed before")


def _circuits(document: dict[str, Any], width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for circuit in document["circuits"]:
        parts += [Text("")] * bool(parts) + [_circuit(circuit, width)]
    return Group(*parts)


def _info(document: dict[str, Any], width: int) -> RenderableType:
    parts: list[RenderableType] = []
    plain = {k: v for k, v in document.items() if k not in ("schema", "head_map", "head_maps", "overlap", "source")}
    parts.append(_facts(_few(plain)))
    drawn = 0
    for index, entries in enumerate(document.get("head_maps", [])):
        drawn += sum(entry["heads"] or 0 for entry in entries)
        if drawn > _MOST_DRAWN:
            parts.append(Text(f"\nand {len(document['head_maps']) - index} more members; --json has all"))
            break
        parts += [Text(f"\nmember {index}"), KeptMap(entries)]
    if "head_map" in document:
        parts += [Text(""), KeptMap(document["head_map"])]
    if "overlap" in document:
        parts += [Text(""), _pairs(document["overlap"])]
    if isinstance(document.get("source"), dict):
        parts += [Text("\nmade by"), _facts(_few(document["source"]))]
    return Group(*parts)


_MOST_DRAWN = 100_000  # heads
_MOST_ROWS = 200
_LONGEST_VALUE = 1000  # characters


def _few(values: dict[str, Any]) -> list[tuple[str, str]]:
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


def _overlap(document: dict[str, Any], width: int) -> RenderableType:
    return _pairs(document["pairs"])


def _pairs(pairs: Sequence[dict[str, Any]]) -> RenderableType:
    measures = (("jaccard", "Jaccard"), ("overlap", "overlap"), ("divergence", "JSD"))
    shown = [(key, side, f"{name}\n{side}") for key, name in measures for side in ("kept", "removed")]
    shown.remove(("overlap", "kept", "overlap\nkept"))  # near 1 wherever most heads are kept
    rows = [[p["a"], p["b"], *[number(p[side][key], 3) for key, side, _ in shown]] for p in pairs]
    table = _table("", ("", "", *[title for _, _, title in shown]), rows, left=2)
    for column in table.columns[:2]:
        column.overflow = "fold"  # a name cut short would be another name
    return Group(Text("overlap of heads (JSD: Jensen-Shannon divergence over the sites, in bits)"), table)


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 12:
        return f"{len(value)}: {', '.join(map(str, value[:6]))}, ..."
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k}={_short(v) if isinstance(v, (dict, list)) else v}" for k, v in value.items())
    return str(value)


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
