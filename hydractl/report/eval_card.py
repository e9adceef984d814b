"""A model card from one row of an eval: Markdown below YAML in the form of the Hugging Face model index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from hydractl.files.description import Description
from hydractl.metrics.threshold import stored_score
from hydractl.report import eval_tables as tables
from hydractl.report.texts import count_text, number, shown_name, template, visible

if TYPE_CHECKING:
    from huggingface_hub import CardData, EvalResult
    from markupsafe import Markup

_MARKS = re.compile(r"([\\`*_{}\[\]#|~$!])")
_REPOSITORY = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)")

# What the Hub calls a metric, where it has a name for it.
_TYPES = {"accuracy": "accuracy", "brier": "brier_score", "auroc": "roc_auc", "aupr": "average_precision"}
_COSTS = {
    "params": "parameters",
    "params_nonzero": "parameters other than zero",
    "macs": "mult-adds for one sample",
    "single_macs": "mult-adds of the single model with all heads",
}


def render_card(document: Mapping[str, Any], index: int) -> bytes:
    """Make the card of one row, UTF-8; the same document gives the same bytes."""
    from huggingface_hub import ModelCard, ModelCardData

    row = document["models"][index]
    task = _task(document, row)
    results = list(_results(document, row, task)) or None
    name = shown_name(row["name"])
    named = name if results else None  # the library has a name only with results
    tags = _tags(bool(row.get("members")))
    data = ModelCardData(library_name="hydractl", pipeline_tag=task, tags=tags, model_name=named, eval_results=results)
    filters: dict[str, Any] = {"shown": shown_name, "number": number, "data_name": data_name, "sentence": _sentence}
    filters["code"] = _code
    text = template("card.md.j2", plain, filters, keep_trailing_newline=True).render(_facts(document, row))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")).encode()


def hub_card(description: Description, task: str, repo: str, written: str | None, **said: str | None) -> bytes:
    """Make the card of a repository: what the model is, or a card with an eval's results; and how to use it.

    Args:
        description: of the model.
        task: what the Hub calls it.
        repo: ``ORG/NAME``.
        written: a card that :func:`render_card` made; None: without results.
        said: ``license`` and ``base_model``, which replace those of the card.
    """
    from huggingface_hub import ModelCard, ModelCardData
    from markupsafe import Markup

    fused = len(description.masks) > 1
    data: CardData
    if written is None:
        data = ModelCardData(library_name="hydractl", pipeline_tag=task, tags=_tags(fused))
        heads = description.mask.heads.items()
        sites = [{"heads": n, "kept": [m.kept[path] for m in description.masks]} for path, n in heads]
        about = _about({"heads": sites, "members": description.masks if fused else []})
        text = f"# {plain(repo.rpartition('/')[2])}\n\n{plain(about)}"
    else:
        card = ModelCard(written)
        data, text = card.data, card.text.strip()
    published = description.origin and description.origin.partition("@")[0]
    for key, value in {"base_model": published, **said}.items():
        setattr(data, key, value or getattr(data, key, None))
    facts = {"text": Markup(text), "repo": repo, "reads": description.reads, "score": stored_score(description.extra)}
    shown = template("hub_card.md.j2", plain, {}, keep_trailing_newline=True).render(facts)
    return f"---\n{data.to_yaml()}\n---\n\n{shown}".encode()


def _tags(fused: bool) -> list[str]:
    return ["hydractl", "uncertainty", "out-of-distribution-detection", *(["ensemble"] if fused else [])]


# --- YAML -------------------------------------------------------------------------------------------------------------


def _task(document: Mapping[str, Any], row: tables.Row) -> str:
    """Return the Hub's name of the task: for prompts, for texts (they are cut at a length), else for images."""
    if tables.at(document, "conventions", "prompt", row["name"]) is not None:
        return "zero-shot-image-classification"
    reads_text = tables.at(document, "conventions", "max_length", row["name"]) is not None
    return "text-classification" if reads_text else "image-classification"


def _results(document: Mapping[str, Any], row: tables.Row, task: str) -> Iterator[EvalResult]:
    """Yield every number of every data set: the metrics on ID data, and the detection of each OOD set."""
    from huggingface_hub import EvalResult

    data, taken = document.get("data") or {}, set()
    places = [("id", "Classification", tables.ID_COLUMNS)]
    title = "Out-of-distribution detection"
    places += [(name, title, tables.columns(tables.OOD_METRICS, "ood", name)) for name in row.get("ood") or {}]
    for name, title, shown in places:
        spec = tables.at(data, name, "spec")
        place = data_name(spec) if spec else shown_name(name)
        kind = _data_type(spec, place)
        for column in shown:
            value = column.value(row)
            if value is not None:
                yield EvalResult(
                    task_type=task,
                    task_name=title,
                    dataset_name=place if name == "id" else shown_name(name),
                    dataset_type=kind,
                    dataset_config=shown_name(name) if kind in taken else None,  # else both were one result
                    metric_type=_TYPES.get(column.metric.key, column.metric.key),
                    metric_name=_sentence(column.words),
                    metric_value=value,
                )
        taken.add(kind)


def data_name(spec: str) -> str:
    """Return a data spec without the folders it lies in: they are nobody's business but its owner's."""
    place = spec.partition("?")[0]
    if re.match(r"[a-z]+:", place):
        return shown_name(spec)
    return shown_name(place.rstrip("/").rpartition("/")[2] or place)


def _data_type(spec: str | None, name: str) -> str:
    """Return the repository of a data set on the Hub, else its name as the Hub would write it."""
    match = _REPOSITORY.match(spec or "")
    return match[1] if match else re.sub(r"[^\w.-]+", "-", name).strip("-") or "data"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """Escape a text, so that as Markdown it is shown and does nothing else."""
    return escape(_MARKS.sub(r"\\\1", visible(text)), quote=False)


def _code(text: str) -> Markup:
    from markupsafe import Markup

    return Markup("`" + visible(text).replace("`", "'").replace("|", "/") + "`")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _facts(document: Mapping[str, Any], row: tables.Row) -> dict[str, Any]:
    """Return everything that the text names."""
    data, conventions = document.get("data") or {}, document.get("conventions") or {}
    sha, cost = row.get("sha256") or [], row.get("cost") or {}
    return {
        "name": row["name"],
        "about": _about(row),
        "id_spec": tables.at(data, "id", "spec"),
        "n": tables.at(row, "id", "n"),
        "level": tables.level_text(document),
        "runs": tables.runs_text({**document, "models": [row]}),
        "intervals": any(column.interval(row) for column in tables.ID_COLUMNS),
        "id_cells": [(column, tables.metric_cells([row], column)[0]) for column in tables.ID_COLUMNS],
        "score": tables.score_name(document, row),
        "ood": tables.every_set_table([row]),
        "ood_mean": [tables.metric_cells([row], column)[0] for column in tables.OOD_AVERAGE],
        "cost": [(count_text(cost[key]), what) for key, what in _COSTS.items() if cost.get(key)],
        "seen": tables.seen_text(row),
        "note": document.get("note"),
        "data": {name: {"spec": None, "n": None, "fingerprint": None, **entry} for name, entry in data.items()},
        "sha256": sha if isinstance(sha, list) else [sha],
        "conventions": {key: value for key, value in conventions.items() if isinstance(value, (str, int, float))},
    }


def _about(row: tables.Row) -> str:
    members = len(row.get("members") or [])
    parts = [f"An ensemble of {members} members, averaged." if members > 1 else "A single model."]
    passes = row.get("mc_dropout") or {}
    if passes:
        parts = [f"{passes.get('samples', members)} passes of MC dropout (rate {passes.get('p', '-')}), averaged."]
    parts += [f"Measured by a probe of its features: {probe}."] if (probe := tables.probe_words(row)) else []
    heads: Sequence[Mapping[str, Any]] = row.get("heads") or []
    if heads:
        most = max(len(site["kept"]) for site in heads)
        counts = [sum(len(site["kept"][m]) for site in heads if m < len(site["kept"])) for m in range(most)]
        total = sum(site["heads"] for site in heads)
        parts.append(f"Attention heads kept: {' / '.join(map(str, counts))} of {total}.")
    return " ".join(parts)
