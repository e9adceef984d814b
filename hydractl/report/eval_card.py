"""A model card from one row of an eval: Markdown below YAML in the form of the Hugging Face model index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.report import eval_tables as tables
from hydractl.report.tables import Cell
from hydractl.report.texts import count_text, number, shown_name, template, visible

if TYPE_CHECKING:
    from huggingface_hub import EvalResult
    from markupsafe import Markup

_MARKS = re.compile(r"([\\`*_{}\[\]#|~$!])")
_REPOSITORY = re.compile(r"hf:([\w.-]+(?:/[\w.-]+)?)")

# The Hub's name of a metric, if it has a name for it.
_TYPES = {"accuracy": "accuracy", "brier": "brier_score", "auroc": "roc_auc", "aupr": "average_precision"}


def render_card(answer: EvalAnswer, index: int) -> bytes:
    """Return the card of one row as UTF-8 bytes; the same answer gives the same bytes.

    Args:
        answer: the answer of an eval.
        index: the index of the row.
    """
    from huggingface_hub import ModelCard, ModelCardData

    row = answer.models[index]
    task = _hub_task(answer, row)
    results = list(_all_eval_results(answer, row, task))
    model_name = None
    if results:  # the library accepts a name only together with results
        model_name = shown_name(row.name)
    data = ModelCardData(
        library_name="hydractl",
        pipeline_tag=task,
        tags=_tags(fused=bool(row.members)),
        model_name=model_name,
        eval_results=results or None,
    )

    page = template("card.md.j2", plain, _FILTERS, keep_trailing_newline=True)
    text = page.render(_template_values(answer, row))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")).encode()


def _tags(fused: bool) -> list[str]:
    tags = ["hydractl", "uncertainty", "out-of-distribution-detection"]
    if fused:
        tags.append("ensemble")
    return tags


# --- YAML -------------------------------------------------------------------------------------------------------------


def _hub_task(answer: EvalAnswer, row: EvalRow) -> str:
    """Return the Hub's name of the task: zero-shot with prompts, text if texts are cut at a length, else image."""
    if answer.said_of("prompt", row) is not None:
        return "zero-shot-image-classification"
    if answer.said_of("max_length", row) is not None:
        return "text-classification"
    return "image-classification"


def _all_eval_results(answer: EvalAnswer, row: EvalRow, task: str) -> Iterator[EvalResult]:
    """Yield every number of every data set: the metrics on ID data, and the detection of each OOD set.

    Args:
        answer: the answer of the eval.
        row: the row that the card is about.
        task: the Hub's name of the model's task.
    """
    earlier_types: set[str] = set()
    for name in ("id", *row.ood):
        spec = _data_spec(answer, name)
        data_title = shown_name(name)
        if spec:
            data_title = data_name(spec)
        data_type = _data_type(spec, data_title)

        # The Hub would merge two results on the same data set, so the second one gets a configuration.
        configuration = None
        if data_type in earlier_types:
            configuration = shown_name(name)
        earlier_types.add(data_type)

        if name == "id":
            data_set = _HubDataSet(data_title, data_type, configuration)
            yield from _eval_results(row, tables.ID_COLUMNS, task, "Classification", data_set)
        else:
            data_set = _HubDataSet(shown_name(name), data_type, configuration)
            shown = tables.columns(tables.OOD_METRICS, "ood", name)
            yield from _eval_results(row, shown, task, "Out-of-distribution detection", data_set)


def _data_spec(answer: EvalAnswer, name: str) -> str | None:
    """Return the data spec of a test set; None if it is not known."""
    data = answer.test.get(name)
    if data is None:
        return None
    return data.spec


class _HubDataSet(NamedTuple):
    """A data set in the form of the Hub's model index.

    Attributes:
        name: the name for a person.
        kind: the repository, or a name in its form.
        configuration: tells results on two data sets of the same kind apart; None if that is not needed.
    """

    name: str
    kind: str
    configuration: str | None


def _eval_results(
    row: EvalRow, shown: Sequence[tables.Column], task: str, title: str, data_set: _HubDataSet
) -> Iterator[EvalResult]:
    """Yield the known numbers of a row on one data set.

    Args:
        row: the row of the model.
        shown: the columns of the numbers.
        task: the Hub's name of the model's task.
        title: what was measured, for a person.
        data_set: the data set.
    """
    from huggingface_hub import EvalResult

    for column in shown:
        value = column.value(row)
        if value is None:
            continue
        key = column.metric.key
        yield EvalResult(
            task_type=task,
            task_name=title,
            dataset_name=data_set.name,
            dataset_type=data_set.kind,
            dataset_config=data_set.configuration,
            metric_type=_TYPES.get(key, key),
            metric_name=_sentence(column.metric.words),
            metric_value=value,
        )


def data_name(spec: str) -> str:
    """Return a data spec without the folders in which it lies: these concern only its owner."""
    path = spec.partition("?")[0]
    if re.match(r"[a-z]+:", path):
        return shown_name(spec)
    file_name = path.rstrip("/").rpartition("/")[2]
    return shown_name(file_name or path)


def _data_type(spec: str | None, name: str) -> str:
    """Return the repository of a data set on the Hub, else its name with the characters that the Hub allows."""
    match = _REPOSITORY.match(spec or "")
    if match:
        return match[1]
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "data"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """Escape a text, so that Markdown shows it as it is."""
    seen = visible(text)
    without_markdown = _MARKS.sub(r"\\\1", seen)
    return escape(without_markdown, quote=False)


def _markdown_code(text: str) -> Markup:
    """Return a text as Markdown code; signs that would end the code or the table cell are replaced."""
    from markupsafe import Markup

    harmless = visible(text).replace("`", "'").replace("|", "/")
    return Markup("`" + harmless + "`")


def _sentence(text: str) -> str:
    first = text[0].upper()
    return first + text[1:]


_FILTERS: Mapping[str, Callable[..., object]] = {
    "shown": shown_name,
    "number": number,
    "data_name": data_name,
    "sentence": _sentence,
    "code": _markdown_code,
}


def _template_values(answer: EvalAnswer, row: EvalRow) -> dict[str, object]:
    """Return the values that the template of the card needs, by their names in it.

    Args:
        answer: the answer of the eval.
        row: the row that the card is about.
    """
    # Each number on ID data with its column, and the means over OOD sets.
    id_cells = [(column, _unmarked_cell(row, column)) for column in tables.ID_COLUMNS]
    ood_means = [_unmarked_cell(row, column) for column in tables.OOD_AVERAGE]

    return {
        "name": row.name,
        "about": f"{_sentence(tables.kind_words(row))}.",
        "id_spec": _data_spec(answer, "id"),
        "n": row.id.n,
        "level": tables.level_text(answer),
        "runs": tables.runs_text(EvalAnswer(models=[row], over=answer.over)),
        "intervals": any(cell.ends for _, cell in id_cells),
        "id_cells": id_cells,
        "score": tables.score_name(answer, row),
        "ood": tables.every_set_table([row]),
        "ood_mean": ood_means,
        "cost": _known_costs(row),
        "seen": tables.seen_text(row),
        "note": answer.note,
        "data": answer.test,
        "sha256": row.files,
        "conventions": _single_sentences(answer.conventions),
    }


def _unmarked_cell(row: EvalRow, column: tables.Column) -> Cell:
    """Return the cell of a column in a table of this row alone, where no cell is marked as the best."""
    (cell,) = tables.metric_cells([row], column)
    return cell


def _known_costs(row: EvalRow) -> list[tuple[str, str]]:
    """Return the costs of a row that are known and not 0, each as text, with its name."""
    cost = row.cost
    if cost is None:
        return []
    counts = (
        (cost.params, "parameters"),
        (cost.params_nonzero, "parameters other than zero"),
        (cost.macs, "mult-adds for one sample"),
        (cost.single_macs, "mult-adds of the single model with all heads"),
    )
    return [(count_text(count), name) for count, name in counts if count]


def _single_sentences(conventions: Mapping[str, object]) -> dict[str, str | int | float]:
    """Return the conventions that are one sentence or number, which is the same for all rows."""
    sentences = {}
    for key, convention in conventions.items():
        if isinstance(convention, (str, int, float)):
            sentences[key] = convention
    return sentences
