"""The pictures of one row of an eval: calibration, OOD scores, ROC, heads and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.report.chart import Axis, Figure, HeadGrid, Panel, Series, short_count, span
from hydractl.report.eval_names import drawn_names, visible
from hydractl.report.figures import number
from hydractl.report.head_map import short_names

_SITE_LETTERS = 14


def model_figures(document: Mapping[str, Any], model: int) -> Iterator[Figure]:
    """Every picture that the row has numbers for, in the order of a report."""
    row = document["models"][model]
    curves = row.get("curves") or {}
    if _has_samples(curves.get("reliability")):
        yield _reliability(curves["reliability"], row, model)
    if len(curves.get("scores") or {}) > 2:  # edges, id, and one set at least
        yield _scores(curves["scores"], row, model, (document.get("conventions") or {}).get("ood_score"))
    if curves.get("roc"):
        yield _roc(curves["roc"], row, model)
    if row.get("heads"):
        yield _heads(row["heads"], model)
    training = _training(row.get("training") or (), row, model)
    if training is not None:
        yield training


def samples(row: Mapping[str, Any], name: str = "id") -> str:
    """``n = 497`` of a data set in this row."""
    entry = row.get("id") if name == "id" else (row.get("ood") or {}).get(name)
    n = (entry or {}).get("n")
    return "n unknown" if n is None else f"n = {n}"


def all_samples(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ("id",)) -> str:
    """``n = 497``, or ``n = 100 to 120`` where sets or rows do not have equally many."""
    entries = [row.get("id") if name == "id" else (row.get("ood") or {}).get(name) for row in rows for name in names]
    sizes = {entry["n"] for entry in entries if entry and entry.get("n") is not None}
    if not sizes:
        return "n unknown"
    return f"n = {min(sizes)}" if len(sizes) == 1 else f"n = {min(sizes)} to {max(sizes)}"


def _has_samples(reliability: Mapping[str, Any] | None) -> bool:
    return bool(reliability) and any(reliability["n"])  # type: ignore[index]


def _reliability(curve: Mapping[str, Any], row: Mapping[str, Any], model: int) -> Figure:
    """Accuracy over confidence bin by bin with its interval; below, how many samples each bin holds."""
    filled = [index for index, n in enumerate(curve["n"]) if n and curve["accuracy"][index] is not None]
    filled = [index for index in filled if curve["confidence"][index] is not None]
    place = tuple(curve["confidence"][index] for index in filled)
    n = sum(curve["n"])
    confidence = Axis(f"confidence: mean highest p of a bin (n = {n})", 0, 1)
    upper = Panel(
        "",
        confidence,
        Axis("accuracy of the bin\nwith 95 % Wilson interval", 0, 1),
        (
            Series("guide", (0, 1), (0, 1)),
            Series(
                "points",
                place,
                tuple(curve["accuracy"][index] for index in filled),
                low=tuple(curve["low"][index] for index in filled),
                high=tuple(curve["high"][index] for index in filled),
            ),
        ),
        tall=0.8,
    )
    counts = tuple(float(n) for n in curve["n"])
    texts = tuple(short_count(n) if n else "" for n in curve["n"])
    lower = Panel(
        "",
        Axis(f"confidence: highest p (n = {n})", 0, 1),
        Axis("samples\nin the bin", 0, 1.16 * max(counts), counts=True),
        (Series("bars", tuple(curve["edges"]), counts, texts=texts),),
        tall=0.32,
    )
    error = number((row.get("id") or {}).get("ece"))
    return Figure("reliability", f"{visible(row['name'])}: ECE {error}", (upper, lower), model, stacked=True)


def _scores(curve: Mapping[str, Any], row: Mapping[str, Any], model: int, score: Any) -> Figure:
    """Where the scores of the ID samples lie and where those of each OOD set do."""
    edges = tuple(curve["edges"])
    names = [name for name in curve if name not in ("edges", "id")]
    threshold = row.get("threshold") or {}
    inside = _shares(curve["id"])
    panels = []
    for index, (name, drawn) in enumerate(zip(names, drawn_names(names, 18), strict=True)):
        outside = _shares(curve[name])
        drawn_ = [
            Series("bars", edges, inside, label=f"ID ({samples(row)})"),
            Series("steps", edges, outside, index + 1, f"{drawn} ({samples(row, name)})"),
        ]
        top = 1.08 * (max([*inside, *outside]) or 1)
        value = threshold.get("value")
        if value is not None and threshold.get("score") == score and edges[0] <= value <= edges[-1]:
            drawn_.append(Series("guide", (value, value), (0, top)))
        n = f"ID {samples(row)}, {drawn} {samples(row, name)}"
        title = f"OOD score{'' if score is None else f' {visible(score)}'}, higher is more OOD\n{n}"
        y = Axis("share of the set's\nsamples per bin", 0, top)
        panels.append(Panel(drawn, Axis(title, edges[0], edges[-1]), y, tuple(drawn_), tall=0.6))
    return Figure("scores", visible(row["name"]), tuple(panels), model)


def _shares(counts: Sequence[int]) -> tuple[float, ...]:
    """Counts as shares of their sum, so that sets of different sizes compare."""
    whole = sum(counts)
    return tuple(count / whole if whole else 0.0 for count in counts)


def _roc(curves: Mapping[str, Any], row: Mapping[str, Any], model: int) -> Figure:
    """How many OOD samples are found for how many ID samples flagged."""
    drawn = [Series("guide", (0, 1), (0, 1))]
    for index, (name, shown) in enumerate(zip(curves, drawn_names(list(curves), 20), strict=True)):
        area = number(((row.get("ood") or {}).get(name) or {}).get("auroc"), 3)
        label = f"{shown} ({samples(row, name)}), AUROC {area}"
        drawn.append(Series("line", tuple(curves[name]["fpr"]), tuple(curves[name]["tpr"]), index + 1, label))
    x = Axis(f"share of ID samples flagged ({samples(row)})", 0, 1)
    y = Axis("share of OOD samples found\n(n in the legend)", 0, 1)
    return Figure("roc", visible(row["name"]), (Panel("", x, y, tuple(drawn), tall=0.85),), model)


def _heads(sites: Sequence[Mapping[str, Any]], model: int) -> Figure:
    """Which heads every member keeps, site by site."""
    names = _site_names(sites)
    members = max(len(site["kept"]) for site in sites)
    panels = []
    for member in range(members):
        rows = tuple(
            (name, site["heads"], frozenset(site["kept"][member] if member < len(site["kept"]) else ()))
            for name, site in zip(names, sites, strict=True)
        )
        kept, there = sum(len(kept) for _, _, kept in rows), sum(heads for _, heads, _ in rows)
        title = f"{f'member {member}: ' if members > 1 else ''}{kept} of {there} heads kept"
        panels.append(HeadGrid(title, rows))
    return Figure("heads", "", tuple(panels), model)


def _site_names(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    """Short names of sites, different from each other; with the tower in front where there are several."""
    towers = [visible(site.get("tower") or "main") for site in sites]
    paths = [visible(site["site"]) for site in sites]
    if len(set(towers)) == 1:
        return short_names(paths, _SITE_LETTERS)
    found = [""] * len(sites)
    for tower in dict.fromkeys(towers):
        places = [index for index, other in enumerate(towers) if other == tower]
        own = short_names([paths[index] for index in places], max(_SITE_LETTERS - len(tower) - 1, 4))
        for index, name in zip(places, own, strict=True):
            found[index] = f"{tower[:_SITE_LETTERS]} {name}"
    return found


def _training(trainings: Sequence[Mapping[str, Any]], row: Mapping[str, Any], model: int) -> Figure | None:
    """Loss and validation accuracy over the epochs, a line for each member that was trained."""
    losses: list[Series] = []
    accuracies: list[Series] = []
    for index, one in enumerate(trainings):
        epochs = [entry for entry in one.get("epochs") or () if entry.get("epoch") is not None]
        label = f"member {_or_unknown(one.get('member'))}: " if len(trainings) > 1 else ""
        label += f"epoch {_or_unknown(one.get('kept_epoch'))} of {epochs[-1]['epoch'] if epochs else 0} kept"
        for key, drawn in (("loss", losses), ("val_accuracy", accuracies)):
            points = [(float(entry["epoch"]), entry[key]) for entry in epochs if entry.get(key) is not None]
            if points:
                xs, ys = zip(*points, strict=True)
                drawn.append(Series("line", tuple(xs), tuple(ys), index, label))
    places = [x for series in (*losses, *accuracies) for x in series.x]
    if not places:
        return None
    low, high = min(places), max(places)
    ends = (low, high) if high > low else (low - 0.5, high + 0.5)
    x = Axis(f"epoch ({_counted(trainings, 'steps')} steps)", *ends, counts=True)
    panels = []
    loss_title = f"training loss, nats\n({_counted(trainings, 'n')})"
    accuracy_title = f"validation accuracy\n({_counted(trainings, 'n_val')})"
    for title, drawn in ((loss_title, losses), (accuracy_title, accuracies)):
        if drawn:
            bottom, top = span([y for series in drawn for y in series.y])
            panels.append(Panel("", x, Axis(title, max(bottom, 0), top), tuple(drawn), tall=0.45))
    return Figure("training", visible(row["name"]), tuple(panels), model, stacked=True)


def _counted(trainings: Sequence[Mapping[str, Any]], key: str) -> str:
    """``n = 120``, or ``n = 100 to 120`` where trainings differ."""
    sizes = {one[key] for one in trainings if one.get(key) is not None}
    if not sizes:
        return "n unknown"
    return f"n = {min(sizes)}" if len(sizes) == 1 else f"n = {min(sizes)} to {max(sizes)}"


def _or_unknown(value: Any) -> str:
    return "?" if value is None else str(value)
