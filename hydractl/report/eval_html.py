"""The report of an eval: one page that needs no network and no script, made from its document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hydractl.report import eval_tables as tables
from hydractl.report.chart import Figure
from hydractl.report.eval_comparisons import comparison_figures
from hydractl.report.eval_figures import model_figures
from hydractl.report.eval_names import shown_name, visible
from hydractl.report.eval_summary import best_lines, measured
from hydractl.report.html_parts import figure, name, note, section, words
from hydractl.report.html_style import STYLE

# Nothing may be loaded and nothing may run, whatever got into the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_HOW = {
    "reliability": "Each point is a bin of samples by confidence. On the dashed line, confidence is what it says; "
    "below it the model is too sure, above it not sure enough. Whiskers are 95 % Wilson intervals of the accuracy: "
    "bins with few samples say little. The bars count the samples of each bin.",
    "scores": "How the OOD score is spread over ID samples (filled) and over each OOD set (outline). The less the two "
    "overlap, the better they can be told apart. A dashed line is the threshold, where one is set.",
    "roc": "For every threshold: how many OOD samples are found, and how many ID samples are flagged by mistake. The "
    "area under the curve is the AUROC; the dashed line is guessing.",
    "risk-coverage": "The error rate when only the most confident samples are answered. Lower is better everywhere; "
    "the right end is the error rate on all samples.",
    "heads": "A filled square is a head that is kept, an empty one a head that is removed. Sites are in the order of "
    "the model; every member has its own map.",
    "training": "From fine-tuning: the loss of each epoch, the mean over its steps, and the accuracy on the validation "
    "set after it. The legend says the weights of which epoch were kept.",
    "cost": "Upper left is better: more for fewer mult-adds. Whiskers are confidence intervals, where there are some.",
    "diversity": "How much the members of one model differ. More on OOD data than on ID data helps to tell them apart.",
    "corruptions": "What a model loses as images get worse; severity 0 is the uncorrupted ID data.",
}


def render(document: Mapping[str, Any]) -> bytes:
    """The page of an eval (``hydractl.eval/1``, checked), UTF-8; the same document gives the same bytes."""
    rows = document["models"]
    figures = [f for index in range(len(rows)) for f in model_figures(document, index)]
    sections = _sections(document, figures, list(comparison_figures(document)))
    title = f"Evaluation of {shown_name(rows[0]['name'])}" if len(rows) == 1 else f"Evaluation of {len(rows)} models"
    links = "".join(f'<li><a href="#{anchor}">{words(heading)}</a></li>' for anchor, heading, body in sections if body)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        f"<title>{words(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        f"<header><h1><bdi>{words(title)}</bdi></h1></header>\n<main>\n{_summary(document)}",
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n',
        *(section(anchor, heading, body) for anchor, heading, body in sections),
        "</main>\n</body>\n</html>\n",
    ]
    return "".join(parts).encode("utf-8")


def _summary(document: Mapping[str, Any]) -> str:
    sentences = "".join(f"<p>{words(text)}</p>\n" for text in measured(document))
    best = "".join(
        f"<li>{words(what[0].upper() + what[1:])}: {words(text)}</li>\n" for what, text in best_lines(document)
    )
    return (
        f'<section id="summary">{sentences}{f"<p>Best in each column:</p><ul>{best}</ul>" if best else ""}</section>\n'
    )


def _sections(
    document: Mapping[str, Any], by_model: Sequence[Figure], compared: Sequence[Figure]
) -> list[tuple[str, str, str]]:
    """Anchor, heading and body of every part, in order; the body is empty where there is nothing to show."""
    rows = document["models"]
    every = [*by_model, *compared]
    found = {kind: _pictures(kind, [one for one in every if one.kind.startswith(kind)], rows) for kind in _HOW}
    marked = note("Bold: best of the column, underlined: second best.") if len(rows) > 1 else ""
    return [
        ("results", "Results", marked + tables.main_table(rows)),
        ("difference", f"Difference to {shown_name(rows[0]['name'])}", tables.difference_table(rows)),
        ("ood", "OOD detection, set by set", tables.ood_tables(rows)),
        ("roc", "ROC", found["roc"]),
        ("scores", "OOD scores", found["scores"]),
        ("reliability", "Calibration", found["reliability"]),
        ("risk-coverage", "Risk and coverage", found["risk-coverage"] + tables.selective_table(rows)),
        ("cost", "Cost", found["cost"] + tables.cost_table(rows)),
        ("heads", "Heads", found["heads"]),
        ("training", "Training", found["training"]),
        ("members", "Members alone", tables.members_table(rows)),
        ("diversity", "Diversity", found["diversity"] + tables.diversity_table(rows)),
        ("corruptions", "Corruptions", found["corruptions"] + tables.corruption_tables(rows)),
        ("settings", "Calibration, conformal sets and thresholds", tables.settings_table(rows)),
        ("conventions", "Conventions", _conventions(document)),
        ("provenance", "Provenance", _provenance(document)),
    ]


def _pictures(kind: str, figures: Sequence[Figure], rows: Sequence[Mapping[str, Any]]) -> str:
    """The pictures of one kind, row by row; those of several panels each under its own heading."""
    if not figures:
        return ""
    if kind in ("scores", "heads"):
        body = ""
        for one in figures:
            assert one.model is not None  # every picture of these kinds is about a row
            body += f"<h3>{name(rows[one.model]['name'])}</h3>{figure(_untitled(one))}"
        return note(_HOW[kind]) + body
    body = "".join(map(figure, figures))
    return note(_HOW[kind]) + (f'<div class="grid">{body}</div>' if len(figures) > 1 else body)


def _untitled(one: Figure) -> Figure:
    return Figure(one.kind, "", one.panels, one.model, one.stacked)


def _conventions(document: Mapping[str, Any]) -> str:
    entries = []
    for key, value in (document.get("conventions") or {}).items():
        text = "; ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        entries.append(f"<dt>{words(key)}</dt><dd>{words(text)}</dd>")
    return f"<dl>{''.join(entries)}</dl>" if entries else ""


def _provenance(document: Mapping[str, Any]) -> str:
    """Everything needed to know what was measured on what, in full."""
    entries = []
    for row in document["models"]:
        sha = row.get("sha256") or "no sha256"
        value = "; ".join(map(visible, sha)) if isinstance(sha, list) else visible(sha)
        entries.append(f"<dt>model <bdi>{words(row['name'])}</bdi></dt><dd><code>{escape(value)}</code></dd>")
    for key, entry in (document.get("data") or {}).items():
        n = "" if entry.get("n") is None else f"n = {entry['n']}, "
        text = f"{words(entry.get('spec', '-'))}<br>{n}fingerprint <code>{words(entry.get('fingerprint', '-'))}</code>"
        entries.append(f"<dt>data {words(key)}</dt><dd>{text}</dd>")
    boot = document.get("bootstrap") or {}
    if boot:
        text = ", ".join(f"{key} {value}" for key, value in boot.items())
        entries.append(f"<dt>bootstrap</dt><dd>{words(text)}</dd>")
    entries.append(f"<dt>form</dt><dd>{words(document.get('schema', '-'))}</dd>")
    return f"<dl>{''.join(entries)}</dl>"
