"""A model card from one row of an eval: Markdown below YAML in the form of the Hugging Face model index.

Source of the form: the model card specification of the Hugging Face Hub (``model-index``), as
``huggingface_hub.ModelCardData`` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hydractl.report.eval_columns import ID_COLUMNS, Column, level_text, ood_columns
from hydractl.report.eval_names import shown_name, visible
from hydractl.report.figures import count_text, number

_MARKS = re.compile(r"([\\`*_{}\[\]#|~$!])")
_REPOSITORY = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)")

# What the Hub calls a metric, where it has a name for it.
_TYPES = {"accuracy": "accuracy", "brier": "brier_score", "auroc": "roc_auc", "aupr": "average_precision"}


def render_card(document: Mapping[str, Any], index: int) -> bytes:
    """The card of one row, UTF-8; the same document gives the same bytes.

    Args:
        document: ``hydractl.eval/1``, checked.
        index: the number of the row.
    """
    import yaml

    row = document["models"][index]
    front = yaml.safe_dump(_front(document, row), sort_keys=False, allow_unicode=True, width=10**6)
    body = "\n".join(_body(document, row))
    return f"---\n{front}---\n\n{body}".encode()


# --- YAML -------------------------------------------------------------------------------------------------------------


def _front(document: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    task = _task(document, row)
    tags = ["hydractl", "uncertainty", "out-of-distribution-detection"]
    tags += ["ensemble"] if row.get("members") else []
    results = [found for found in _results(document, row, task) if found["metrics"]]
    index = {"model-index": [{"name": shown_name(row["name"]), "results": results}]} if results else {}
    return {"library_name": "hydractl", "pipeline_tag": task, "tags": tags, **index}


def _task(document: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What the Hub calls the task: of prompts, of texts (they are cut at a length), else of images."""
    conventions = document.get("conventions") or {}
    if row["name"] in _named(conventions, "prompt"):
        return "zero-shot-image-classification"
    return "text-classification" if row["name"] in _named(conventions, "max_length") else "image-classification"


def _named(conventions: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = conventions.get(key)
    return found if isinstance(found, Mapping) else {}


def _results(document: Mapping[str, Any], row: Mapping[str, Any], task: str) -> list[dict[str, Any]]:
    """One result for each data set: the metrics on ID data, and the detection of each OOD set."""
    data = document.get("data") or {}
    found = [_result("id", data, task, "Classification", [(c, c.value(row)) for c in ID_COLUMNS])]
    for name in row.get("ood") or {}:
        columns = ood_columns("ood", name)
        found.append(_result(name, data, task, "Out-of-distribution detection", [(c, c.value(row)) for c in columns]))
    return found


def _result(
    name: str, data: Mapping[str, Any], task: str, title: str, values: Sequence[tuple[Column, float | None]]
) -> dict[str, Any]:
    spec = (data.get(name) or {}).get("spec")
    shown = _data_name(spec) if spec else shown_name(name)
    dataset = {"name": shown if name == "id" else shown_name(name), "type": _data_type(spec, shown)}
    metrics = [
        {"type": _TYPES.get(column.path[-1], column.path[-1]), "value": value, "name": _words(column)}
        for column, value in values
        if value is not None
    ]
    return {"task": {"type": task, "name": title}, "dataset": dataset, "metrics": metrics}


def _words(column: Column) -> str:
    return column.words[0].upper() + column.words[1:]


def _data_name(spec: str) -> str:
    """A data spec without the folders it lies in: they are nobody's business but its owner's."""
    place = spec.partition("?")[0]
    if re.match(r"[a-z]+:", place):
        return shown_name(spec)
    base = place.rstrip("/").rpartition("/")[2]
    return shown_name(base or place)


def _data_type(spec: str | None, name: str) -> str:
    """The repository of a data set on the Hub, else its name as the Hub would write it."""
    match = _REPOSITORY.match(spec or "")
    return match[1] if match else re.sub(r"[^\w.-]+", "-", name).strip("-") or "data"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def _body(document: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    data = document.get("data") or {}
    lines = [f"# {plain(shown_name(row['name']))}", ""]
    lines += [
        _what(row),
        "",
        "Measured with `hydractl eval`; the numbers are fractions between 0 and 1 but for nll.",
        "",
    ]
    lines += ["## Results", "", *_id_table(document, row, data)]
    lines += _ood_table(document, row)
    lines += _cost_lines(row)
    lines += _caution(row)
    lines += ["## Data", "", "| set | data | n | fingerprint |", "| --- | --- | ---: | --- |"]
    for name, entry in data.items():
        n = "-" if entry.get("n") is None else entry["n"]
        spec, mark = plain(_data_name(entry.get("spec") or "-")), _code(entry.get("fingerprint") or "-")
        lines.append(f"| {plain(shown_name(name))} | {spec} | {n} | {mark} |")
    sha = row.get("sha256")
    hashes = sha if isinstance(sha, list) else [sha] if sha else []
    lines += ["", "## Files", "", *[f"- sha256 {_code(str(one))}" for one in hashes], ""]
    lines += ["## Conventions", ""]
    for key, value in (document.get("conventions") or {}).items():
        if isinstance(value, (str, int, float)):
            lines.append(f"- {plain(key)}: {plain(value)}")
    return [*lines, ""]


def _what(row: Mapping[str, Any]) -> str:
    members = len(row.get("members") or [])
    heads = row.get("heads") or []
    parts = [f"An ensemble of {members} members, averaged." if members > 1 else "A single model."]
    passes = row.get("mc_dropout") or {}
    if passes:
        parts = [f"{passes.get('samples', members)} passes of MC dropout (rate {passes.get('p', '-')}), averaged."]
    if heads:
        counts = [
            sum(len(site["kept"][member]) for site in heads if member < len(site["kept"]))
            for member in range(max(len(site["kept"]) for site in heads))
        ]
        total = sum(site["heads"] for site in heads)
        parts.append(f"Attention heads kept: {' / '.join(map(str, counts))} of {total}.")
    return " ".join(parts)


def _id_table(document: Mapping[str, Any], row: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    n = (row.get("id") or {}).get("n")
    spec = (data.get("id") or {}).get("spec")
    on = f"On {plain(_data_name(spec)) if spec else 'in-distribution data'}" + (f", n = {n}:" if n is not None else ":")
    level = level_text(document)
    with_ends = any(column.interval(row) for column in ID_COLUMNS)
    lines = [on, "", f"| metric | value |{f' {level} interval |' if with_ends else ''} better |"]
    lines.append("| --- | ---: |" + (" --- |" if with_ends else "") + " --- |")
    for column in ID_COLUMNS:
        ends = column.interval(row)
        shown = "" if not with_ends else f" {number(ends[0])} to {number(ends[1])} |" if ends else " - |"
        lines.append(f"| {_words(column)} | {number(column.value(row))} |{shown} {column.better} |")
    return [*lines, ""]


def _ood_table(document: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    sets = row.get("ood") or {}
    if not sets:
        return []
    score = (document.get("conventions") or {}).get("ood_score")
    told = f"Out-of-distribution detection{f' by the score {plain(score)}' if score else ''}:"
    lines = [told, "", "| OOD set | group | n | auroc | fpr95 | aupr |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for name, entry in sets.items():
        values = " | ".join(_with_ends(column, row) for column in ood_columns("ood", name))
        n = "-" if entry.get("n") is None else entry["n"]
        lines.append(f"| {plain(shown_name(name))} | {plain(entry.get('group') or '-')} | {n} | {values} |")
    if len(sets) > 1:
        values = " | ".join(_with_ends(column, row) for column in ood_columns("ood_avg"))
        lines.append(f"| mean | | | {values} |")
    return [*lines, ""]


def _with_ends(column: Column, row: Mapping[str, Any]) -> str:
    ends = column.interval(row)
    return number(column.value(row)) + (f" ({number(ends[0])} to {number(ends[1])})" if ends else "")


def _cost_lines(row: Mapping[str, Any]) -> list[str]:
    cost = row.get("cost") or {}
    words = {
        "params": "parameters",
        "macs": "mult-adds for one sample",
        "single_macs": "mult-adds of the single model with all heads",
    }
    facts = [f"- {count_text(cost[key])} {what}" for key, what in words.items() if cost.get(key)]
    return ["## Cost", "", *facts, ""] if facts else []


def _caution(row: Mapping[str, Any]) -> list[str]:
    seen = {name: count for name, count in (row.get("seen") or {}).items() if count}
    if not seen:
        return []
    listed = ", ".join(
        f"{count} of {'ID' if name == 'id' else plain(shown_name(name))}" for name, count in seen.items()
    )
    return [f"This model was made with some of the samples it was measured on: {listed}.", ""]


def plain(text: object) -> str:
    """A text as Markdown that shows it and does nothing else."""
    return escape(_MARKS.sub(r"\\\1", visible(text)), quote=False)


def _code(text: str) -> str:
    return "`" + visible(text).replace("`", "'").replace("|", "/") + "`"
