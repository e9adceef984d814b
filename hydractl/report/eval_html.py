"""The report of an eval: one page that needs no network and no script, made from its document alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.report import eval_tables as tables
from hydractl.report.eval_pictures import comparison_pictures, model_pictures
from hydractl.report.pictures import inline_svgs
from hydractl.report.study_figures import study_tables
from hydractl.report.texts import number, shown_name, template, visible

_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
_HOW = {
    "reliability": "Each point is a bin of samples by confidence. On the dashed line, confidence is what it says; "
    "below it the model is overconfident, above it underconfident. Whiskers are 95 % Wilson intervals of the accuracy: "
    "bins with few samples say little. The bars count the samples of each bin.",
    "scores": "How the OOD score is spread over ID samples (filled) and over each OOD set (outline). The less the two "
    "overlap, the better the score separates them. A dashed line is the threshold, where one is set.",
    "roc": "For every threshold: the share of OOD samples flagged (TPR) over the share of ID samples flagged (FPR). "
    "The area under the curve is the AUROC; the dashed line is guessing.",
    "risk-coverage": "The error rate when only the most confident samples are answered. Lower is better everywhere; "
    "the right end is the error rate on all samples.",
    "heads": "A filled square is a head that is kept, an empty one a head that is removed. Sites are in the order of "
    "the model; every member has its own map.",
    "training": "From fine-tuning: the loss of each epoch, the mean over its steps, and the accuracy on the validation "
    "set after it. The legend says the weights of which epoch were kept.",
    "cost": "Upper left is better: more for fewer mult-adds. Whiskers are confidence intervals, where there are some.",
    "diversity": "How much the members of one model differ. More on OOD data than on ID data helps OOD detection.",
    "corruptions": "What a model loses as images get worse; severity 0 is the uncorrupted ID data.",
}


@dataclass(frozen=True)
class _Drawn:
    """A picture as SVG elements."""

    kind: str
    title: str
    svgs: Sequence[Any]


@dataclass(frozen=True)
class _Section:
    """A part of the page; one that has neither figures nor tables nor facts is left out."""

    anchor: str
    title: str
    note: str = ""
    figures: Sequence[_Drawn] = ()
    tables: Sequence[tables.Table] = ()
    facts: Sequence[tuple[str, Sequence[str]]] = ()


def render(document: Mapping[str, Any], study: Mapping[str, Any] | None = None) -> bytes:
    """Make the page of an eval (``hydractl.eval/1``, checked), UTF-8; the same document gives the same bytes.

    Args:
        document: the answer of the eval.
        study: that of the study which it is part of (``hydractl.study/2``): its verdict and its tables come first.
    """
    rows = document["models"]
    title = f"Evaluation of {shown_name(rows[0]['name'])}" if len(rows) == 1 else f"Evaluation of {len(rows)} models"
    if study is not None:
        title = f"Study of {shown_name(study['model']['name'])}"
    page = template("report.html.j2", visible, {"shown": shown_name, "ends": _ends_text}, autoescape=True)
    text = page.render(
        title=title,
        verdict=() if study is None else study["verdict"]["lines"],
        study_tables=() if study is None else study_tables(study),
        footnote="" if study is None else study["verdict"]["footnote"],
        measured=measured(document),
        best=best_lines(document),
        sections=[section for section in _sections(document) if section.figures or section.tables or section.facts],
        arrows=_ARROWS,
    )
    return text.encode("utf-8")


def _ends_text(cell: tables.Cell) -> str:
    """Return the interval of a number: with a dash, which is short, where no end can be negative."""
    assert cell.ends is not None
    form, between = (tables.signed_number, " to ") if cell.signed else (number, "–")
    return between.join(map(form, cell.ends))


def _sections(document: Mapping[str, Any]) -> Iterator[_Section]:
    """Yield every part of the page, in order."""
    rows = document["models"]
    drawn = _draw(document)
    marked = "Bold: best of the column, underlined: second best." if len(rows) > 1 else ""

    def part(anchor: str, title: str, *under: tables.Table, kind: str = "", note: str = "") -> _Section:
        figures = [figure for figure in drawn if kind and figure.kind.startswith(kind)]
        shown = [table for table in under if table.rows]
        return _Section(anchor, title, _HOW[kind] if figures else note, figures, shown)

    yield part("results", "Results", tables.main_table(rows), note=marked)
    yield part("difference", f"Difference to {shown_name(rows[0]['name'])}", tables.difference_table(rows))
    yield part("by-score", "OOD detection, score by score", tables.score_table(rows))
    yield part("ood", "OOD detection, set by set", *tables.ood_tables(rows))
    yield part("roc", "ROC", kind="roc")
    yield part("scores", "OOD scores", kind="scores")
    yield part("reliability", "Calibration", kind="reliability")
    yield part("risk-coverage", "Risk and coverage", tables.selective_table(rows), kind="risk-coverage")
    yield part("cost", "Cost", tables.cost_table(rows), kind="cost")
    yield part("heads", "Heads", kind="heads")
    yield part("training", "Training", kind="training")
    yield part("members", "Members alone", tables.members_table(rows))
    yield part("diversity", "Diversity", tables.diversity_table(rows), kind="diversity")
    yield part("corruptions", "Corruptions", *tables.corruption_tables(rows), kind="corruptions")
    yield part("settings", "Calibration, conformal sets and thresholds", tables.settings_table(rows))
    yield _Section("conventions", "Conventions", facts=list(_conventions(document)))
    yield _Section("provenance", "Provenance", facts=list(_provenance(document)))


def _draw(document: Mapping[str, Any]) -> list[_Drawn]:
    from markupsafe import Markup

    pictures = [picture for row in document["models"] for picture in model_pictures(document, row)]
    return [
        _Drawn(one.kind, one.title, [Markup(svg) for svg in inline_svgs(one, f"{one.kind}.{index}")])
        for index, one in enumerate([*pictures, *comparison_pictures(document)])
    ]


def _conventions(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for key, value in (document.get("conventions") or {}).items():
        yield key, ["; ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value]


def _provenance(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield everything needed to know what was measured on what, in full."""
    for row in document["models"]:
        sha = row.get("sha256") or "no sha256"
        yield f"model {row['name']}", sha if isinstance(sha, list) else [sha]
    for key, entry in (document.get("data") or {}).items():
        n = "" if entry.get("n") is None else f"n = {entry['n']}, "
        yield f"data {key}", [entry.get("spec", "-"), f"{n}fingerprint {entry.get('fingerprint', '-')}"]
    boot = document.get("bootstrap") or {}
    if boot:
        yield "bootstrap", [", ".join(f"{key} {value}" for key, value in boot.items())]
    yield "form", [document.get("schema", "-")]


_SEVERAL = 3  # names that a sentence may list


def measured(document: Mapping[str, Any]) -> list[str]:
    """Say what was measured, in sentences: models, data, and what to be careful about."""
    rows, data = document["models"], document.get("data") or {}
    models = f"{len(rows)} models were" if len(rows) != 1 else f"The model {shown_name(rows[0]['name'])} was"
    inside = data.get("id") or {}
    n = next((row["id"].get("n") for row in rows if row.get("id")), inside.get("n"))
    spec = f" of {shown_name(inside['spec'])}" if inside.get("spec") else ""
    labelled = any(tables.ACCURACY.value(row) is not None for row in rows)
    kind = "labelled samples" if labelled else "samples without labels"
    sentences = [
        f"{models} measured on {'an unknown number of' if n is None else n} {kind}{spec} (in distribution, ID)."
    ]
    names = tables.ood_names(rows)
    if names:
        sets = [_set_text(name, rows, data) for name in names]
        sentences.append(f"Out-of-distribution (OOD) data: {'; '.join(sets)}.")
        scores = {row["name"]: tables.score_name(document, row) for row in rows}
        named = {score for score in scores.values() if score}
        if len(named) == 1:
            sentences.append(f"The OOD score is {shown_name(named.pop())}.")
        elif named:
            each = [f"{shown_name(score)} of {shown_name(name)}" for name, score in scores.items() if score]
            sentences.append(f"The OOD scores are {', '.join(each)}.")
    else:
        sentences.append("No out-of-distribution data was given.")
    return sentences + _intervals(document) + _cautions(rows)


def _set_text(name: str, rows: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    n = next((row["ood"][name].get("n") for row in rows if tables.at(row, "ood", name) is not None), None)
    n = tables.at(data, name, "n") if n is None else n
    group = tables.ood_group(rows, name)
    facts = [*([f"{group} OOD"] if group else []), *([f"n = {n}"] if n is not None else [])]
    return shown_name(name) + (f" ({', '.join(facts)})" if facts else "")


def _intervals(document: Mapping[str, Any]) -> list[str]:
    boot = document.get("bootstrap") or {}
    if runs := tables.runs_text(document):
        return [f"Figures are {runs}."]
    if not boot:
        return ["No confidence intervals were computed: small differences may be chance."]
    text = f"Intervals cover {tables.level_text(document) or 'an unstated share'}"
    text += f", from {boot['rounds']} bootstrap resamples of the samples" if boot.get("rounds") else ""
    return [f"{text}; they do not cover training again with another seed."]


def _cautions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in sentences what makes numbers look better than they are."""
    sentences = []
    for row in rows:
        if seen := tables.seen_text(row):
            sentences.append(f"{shown_name(row['name'])} was made with some of these samples: {seen}.")
    return sentences


def best_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return, for each number that has a better and a worse, its name, and who is best at it, by how much.

    Empty for a single row.
    """
    rows = document["models"]
    lines = []
    for column in tables.main_columns(rows):
        values = [column.value(row) for row in rows]
        marked = tables.marks(values, column.metric)
        first = [row for row, mark in zip(rows, marked, strict=True) if mark == tables.BEST]
        if first:
            second = [row for row, mark in zip(rows, marked, strict=True) if mark == tables.SECOND]
            text = f"{_names(first)} with {_value(column, first)}"
            text += f", then {_names(second)} with {_value(column, second)}" if second else ""
            text += _significance(column, first, rows)
            lines.append((f"{column.words} ({column.metric.direction} is better)", text + "."))
    return lines


def _value(column: tables.Column, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the number that these rows have in common, with its interval where it is that of a single row."""
    ends = column.interval(rows[0]) if len(rows) == 1 else None
    text = number(column.value(rows[0]))
    return text if ends is None else f"{text} ({number(ends[0])} to {number(ends[1])})"


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    listed = [shown_name(row["name"]) for row in rows[:_SEVERAL]]
    rest = len(rows) - len(listed)
    return " and ".join(listed) if not rest else f"{', '.join(listed)} and {rest} more"


def _significance(column: tables.Column, first: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what the paired differences, all to the first row, tell of the best; empty where there are none."""
    against = shown_name(rows[0]["name"])
    if any(row is rows[0] for row in first):
        others = [row for row in rows if not any(row is one for one in first)]
        found = [column.difference(row) for row in others]
        if any(one is None or one[1] is None for one in found):
            return ""
        apart = sum(tables.excludes_zero(one[1]) for one in found if one is not None)
        return f"; paired differences to {against} are significant for {apart} of {len(found)} others"
    difference = column.difference(first[0]) if len(first) == 1 else None
    if difference is None or difference[1] is None:
        return ""
    low, high = map(tables.signed_number, difference[1])
    text = "significantly different" if tables.excludes_zero(difference[1]) else "not significantly different"
    return f"; {text} from {against} (paired difference {tables.signed_number(difference[0])}, {low} to {high})"
