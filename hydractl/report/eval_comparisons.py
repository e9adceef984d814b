"""The pictures that set the rows of an eval side by side: risk and coverage, cost, diversity, corruptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.report.chart import Axis, Figure, Panel, Series, span
from hydractl.report.eval_columns import DIVERSITY, ID_COLUMNS, OOD_AVERAGE, Column, ood_names
from hydractl.report.eval_figures import all_samples
from hydractl.report.eval_names import drawn_names

_SEVERITIES = ("1", "2", "3", "4", "5")
_ACCURACY, _AUROC = ID_COLUMNS[0], OOD_AVERAGE[0]


def comparison_figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    """Every picture about all rows that the document has numbers for, in the order of a report."""
    rows = document["models"]
    names = drawn_names([row["name"] for row in rows])
    for found in (
        _risk_coverage(rows, names),
        _cost(rows, names, _AUROC, "cost-auroc", "AUROC, mean over OOD sets"),
        _cost(rows, names, _ACCURACY, "cost-accuracy", "accuracy"),
        _diversity(rows, names),
        _corruptions(rows, names),
    ):
        if found is not None:
            yield found


def _risk_coverage(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure | None:
    """The error rate among the most confident samples, over how many of them there are."""
    drawn = []
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        curve = (row.get("curves") or {}).get("risk_coverage")
        if curve and curve["coverage"]:
            drawn.append(Series("line", tuple(curve["coverage"]), tuple(curve["risk"]), index, name))
    if not drawn:
        return None
    highest = max(risk for series in drawn for risk in series.y)
    x = Axis(f"coverage: share of samples kept,\nmost confident first ({all_samples(rows)})", 0, 1)
    y = Axis("error rate among\nthe samples kept", 0, 1.06 * highest or 1)
    return Figure("risk-coverage", "Risk and coverage", (Panel("", x, y, tuple(drawn)),))


def cost_ratio(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float | None], str]:
    """Mult-adds of every row over those of a reference, None where they are not known, and what the reference is.

    The reference is the row's own single model with all heads where every row that has a cost names it, else the first
    row that has one.
    """
    costs = [row.get("cost") or {} for row in rows]
    known = [cost for cost in costs if cost.get("macs")]
    if known and all(cost.get("single_macs") for cost in known):
        return [c["macs"] / c["single_macs"] if c.get("macs") else None for c in costs], "the single model, all heads"
    first = next((row["name"] for row, cost in zip(rows, costs, strict=True) if cost.get("macs")), "")
    return [c["macs"] / known[0]["macs"] if c.get("macs") else None for c in costs], first


def _cost(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], column: Column, kind: str, words: str
) -> Figure | None:
    """One point a row: what it costs, and what it reaches."""
    ratios, reference = cost_ratio(rows)
    drawn, seen = [], []
    for index, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        value, ends = column.value(row), column.interval(row)
        if ratio is None or value is None:
            continue
        low, high = ends or (None, None)
        seen += [value, *(ends or ())]
        drawn.append(Series("points", (ratio,), (value,), index, names[index], (low,), (high,)))
    if not drawn:
        return None
    x = Axis(f"mult-adds, times those of\n{drawn_names([reference])[0]}", *span([s.x[0] for s in drawn], 0.1))
    outside = f", OOD {all_samples(rows, ood_names(rows))}" if column.path[0] == "ood_avg" else ""
    y = Axis(f"{words}\n(ID {all_samples(rows)}{outside})", *span(seen))
    return Figure(kind, f"Cost and {words}", (Panel("", x, y, tuple(drawn)),))


def _diversity(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure | None:
    """How much the members of each row differ, set by set."""
    sets = [name for name in ("id", *ood_names(rows)) if any(name in (row.get("diversity") or {}) for row in rows)]
    several = [i for i, row in enumerate(rows) if _value(row, sets[:1], "disagreement") is not None]
    if not several:
        return None
    shown = drawn_names(["ID" if name == "id" else name for name in sets], 14)
    outside = f", OOD {all_samples(rows, ood_names(rows))}" if len(sets) > 1 else ""
    x = Axis(f"data set (ID {all_samples(rows)}{outside})", -0.5, len(sets) - 0.5, names=tuple(shown))
    panels = []
    for column, unit in zip(
        DIVERSITY[:2], ("mutual information, nats", "disagreement:\nshare of pairs of votes"), strict=True
    ):
        drawn = []
        for turn, index in enumerate(several):
            found = [(at, _value(rows[index], [name], column.path[-1])) for at, name in enumerate(sets)]
            shift = 0.6 * ((turn + 0.5) / len(several) - 0.5)  # side by side, not one over the other
            places = [(at + shift, value) for at, value in found if value is not None]
            xs, ys = tuple(at for at, _ in places), tuple(value for _, value in places)
            drawn.append(Series("points", xs, ys, index, names[index]))
        top = max((value for series in drawn for value in series.y), default=0)
        panels.append(Panel("", x, Axis(unit, 0, 1.08 * top or 1), tuple(drawn), tall=0.6))
    return Figure("diversity", "Diversity of the members", tuple(panels))


def _value(row: Mapping[str, Any], sets: Sequence[str], key: str) -> float | None:
    return next((((row.get("diversity") or {}).get(name) or {}).get(key) for name in sets), None)


def _corruptions(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Figure | None:
    """What corruption of the images does, from none to the hardest."""
    found = [(index, row, row.get("corruption_avg") or {}) for index, row in enumerate(rows)]
    severities = [s for s in _SEVERITIES if any(s in average for _, _, average in found)]
    if not severities:
        return None
    panels = []
    for column, better in ((ID_COLUMNS[0], "higher"), (ID_COLUMNS[2], "lower"), (ID_COLUMNS[3], "lower")):
        key, drawn = column.path[-1], []
        for index, row, average in found:
            points = [(0.0, column.value(row)), *[(float(s), (average.get(s) or {}).get(key)) for s in severities]]
            there = [(at, value) for at, value in points if value is not None]
            if average and len(there) > 1:
                xs, ys = zip(*there, strict=True)
                drawn.append(Series("line", tuple(xs), tuple(ys), index, names[index]))
        if not drawn:
            continue
        x = Axis(f"severity, 0: uncorrupted ({corrupted_samples(rows)})", 0, float(severities[-1]), counts=True)
        low, high = span([value for series in drawn for value in series.y])
        panels.append(Panel("", x, Axis(f"{column.words}\n({better} is better)", max(low, 0), high), tuple(drawn)))
    return Figure("corruptions", "Mean over the corruptions", tuple(panels)) if panels else None


def corrupted_samples(rows: Sequence[Mapping[str, Any]]) -> str:
    """``n = 497 each``: how many samples every corruption is measured on at every severity."""
    kinds = [kind for row in rows for kind in (row.get("corruptions") or {}).values()]
    kinds += [row.get("corruption_avg") or {} for row in rows]
    sizes = {entry["n"] for kind in kinds for entry in kind.values() if entry.get("n") is not None}
    if not sizes:
        return "n unknown"
    return f"n = {min(sizes)} each" if len(sizes) == 1 else f"n = {min(sizes)} to {max(sizes)}"
