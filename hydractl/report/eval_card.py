"""A model card from one row of an eval: Markdown below YAML in the form of the Hugging Face model index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING

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
    tags = ["hydractl", "uncertainty", "out-of-distribution-detection", *(["ensemble"] if row.members else ())]
    data = ModelCardData(
        library_name="hydractl",
        pipeline_tag=task,
        tags=tags,
        model_name=shown_name(row.name) if results else None,  # the library accepts a name only together with results
        eval_results=results or None,
    )
    page = template("card.md.j2", plain, _FILTERS, keep_trailing_newline=True)
    text = page.render(_template_values(answer, row))
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")).encode()


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
    from huggingface_hub import EvalResult

    earlier_types: set[str] = set()
    for name in ("id", *row.ood):
        spec = _data_spec(answer, name)
        data_title = data_name(spec) if spec else shown_name(name)
        data_type = _data_type(spec, data_title)
        # The Hub would merge two results on the same data set, so the second one gets a configuration.
        configuration = shown_name(name) if data_type in earlier_types else None
        earlier_types.add(data_type)
        measured = tables.ID_COLUMNS if name == "id" else tables.columns(tables.OOD_METRICS, "ood", name)
        for column in measured:
            value = column.value(row)
            if value is not None:
                yield EvalResult(
                    task_type=task,
                    task_name="Classification" if name == "id" else "Out-of-distribution detection",
                    dataset_name=data_title if name == "id" else shown_name(name),
                    dataset_type=data_type,
                    dataset_config=configuration,
                    metric_type=_TYPES.get(column.metric.key, column.metric.key),
                    metric_name=_sentence(column.metric.words),
                    metric_value=value,
                )


def _data_spec(answer: EvalAnswer, name: str) -> str | None:
    """Return the data spec of a test set; None if it is not known."""
    return answer.test[name].spec if name in answer.test else None


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
    return match[1] if match else re.sub(r"[^\w.-]+", "-", name).strip("-") or "data"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """Escape a text, so that Markdown shows it as it is."""
    return escape(_MARKS.sub(r"\\\1", visible(text)), quote=False)


def _markdown_code(text: str) -> Markup:
    """Return a text as Markdown code; signs that would end the code or the table cell are replaced."""
    from markupsafe import Markup

    harmless = visible(text).replace("`", "'").replace("|", "/")
    return Markup("`" + harmless + "`")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


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
        "ood_mean": [_unmarked_cell(row, column) for column in tables.OOD_AVERAGE],
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
    return {key: said for key, said in conventions.items() if isinstance(said, (str, int, float))}
