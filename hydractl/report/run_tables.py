"""What a person sees on a terminal of a run that took its time: a training, a bench, a study."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer, BenchCost, BenchRow, MachineRecord, PlannedBenchRow
from hydractl.report.rich_parts import UNKNOWN, table
from hydractl.report.study_figures import StudyTable, study_tables
from hydractl.report.texts import bytes_text, count_text, duration_text, input_text, number, params_text

# --- trainings --------------------------------------------------------------------------------------------------------


def finetune_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return a finished training, or the plan of one."""
    if document.get("dry_run"):
        return _plan(document)
    parts: list[RenderableType] = []
    if document.get("grid"):
        parts += [_grid(document["grid"], document["lr"]), Text("")]
    parts.append(_epochs(document["epochs"], document["kept_epoch"]))
    if document.get("snapshots"):
        parts += [Text(""), _snapshots(document["snapshots"])]
    curve = document.get("loss_curve")
    if curve:
        parts += [Text(""), Text(f"loss {number(curve[0])} {sparkline(curve)} {number(curve[-1])}")]
    return Group(*parts)


def _epochs(epochs: Sequence[Mapping[str, Any]], kept: int | None) -> RenderableType:
    rows = []
    for epoch in epochs:
        figures = [number(epoch.get(key)) for key in ("loss", "val_accuracy", "val_nll")]
        mark = "kept" if epoch["epoch"] == kept else ""
        rows.append([str(epoch["epoch"]), str(epoch["steps"]), *figures, mark])
    return table("", ("epoch", "steps", "loss", "val accuracy", "val nll", ""), rows, left=0)


def _snapshots(snapshots: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the files of one training: of the cycles of its learning rate, of members, or of draws."""
    if "draw" in snapshots[0]:
        title, keys = "members", ["draw"]
    elif "member" in snapshots[0]:
        title, keys = "members", ["member"]
    else:
        title, keys = "snapshots", ["cycle", "steps"]
    files = []
    for snapshot in snapshots:
        files.append([str(snapshot[key]) for key in (*keys, "output")])
    return table(title, (*keys, "file"), files, left=0)


def finetunes_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return several finished trainings, a row each, or the plan of them."""
    if document.get("dry_run"):
        return _plans(document)
    rows = []
    for member in document["members"]:
        epochs = member["epochs"]
        number_kept = member["kept_epoch"] or len(epochs)  # of snapshots none is chosen
        kept: Mapping[str, Any] = next((epoch for epoch in epochs if epoch["epoch"] == number_kept), {})
        figures = [number(kept.get(key)) for key in ("loss", "val_accuracy", "val_nll")]
        curve = member.get("loss_curve")
        bars = sparkline(curve[::3]) if curve else ""
        rows.append([member["name"], str(member["seed"]), f"{number_kept} of {len(epochs)}", *figures, bars])
    return table("", ("", "seed", "kept epoch", "loss", "val accuracy", "val nll", "loss by step"), rows)


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a row of bars, the lowest of them an eighth of the highest."""
    low = min(values)
    span = (max(values) - low) or 1.0
    bars = []
    for value in values:
        height = (value - low) / span
        bars.append(_BARS[round(height * (len(_BARS) - 1))])
    return "".join(bars)


def _grid(grid: Sequence[Mapping[str, Any]], kept: float) -> RenderableType:
    rows = []
    for entry in grid:
        mark = "kept" if entry["lr"] == kept else ""
        rows.append([f"{entry['lr']:g}", number(entry["val_accuracy"]), number(entry["val_nll"]), mark])
    return table("learning rates", ("lr", "val accuracy", "val nll", ""), rows, left=0)


def _plans(document: dict[str, Any]) -> RenderableType:
    """Return the plan of several trainings."""
    keys = ("name", "model", "seed", "steps", "samples", "output")
    rows = []
    for member in document["members"]:
        mark = "done" if "finished" in member else ""
        rows.append([*(str(member[key]) for key in keys), mark])
    members = table("", ("", *keys[1:], ""), rows, left=2)
    devices = document["devices"]
    places = f"{len(devices)} at a time, on {', '.join(devices)}"
    if "threads" in document:
        places += f", {document['threads']} threads each"
    return Group(_recipe(document), Text(""), members, Text(""), Text(places))


def _plan(document: dict[str, Any]) -> RenderableType:
    """Return the plan of one training."""
    outputs = [snapshot["output"] for snapshot in document.get("snapshots", [document])]
    work = f"{document['steps']} steps on {document['samples']} samples; would write {', '.join(outputs)}"
    return Group(_recipe(document), Text(""), Text(work))


def _recipe(document: dict[str, Any]) -> RenderableType:
    rows = []
    for name, entry in document["recipe"].items():
        value = _setting(entry["value"])
        if value != UNKNOWN:  # else the option is not in effect
            rows.append([f"--{name.replace('_', '-')}", value, entry["source"]])
    return table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or value == []:
        return UNKNOWN
    if isinstance(value, list):
        return ",".join(_setting(item) for item in value)
    return str(value)


# --- benches ----------------------------------------------------------------------------------------------------------


_NOISY = "~"


def bench_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return the tables of a bench, or of its dry run."""
    if document.get("dry_run"):
        return _planned_bench(document)
    answer = BenchAnswer.from_json(document)
    rows = answer.results
    parts: list[RenderableType] = []
    for dtype, batch_size in dict.fromkeys((row.dtype, row.batch_size) for row in rows):
        chosen = [row for row in rows if row.dtype == dtype and row.batch_size == batch_size]
        parts += [_times(chosen), Text("")]
    if any(row.timing.noisy for row in rows):
        parts += [Text(f"{_NOISY} noisy: runs scatter by more than 10 %: read intervals, not medians"), Text("")]
    # Of each model its last row, whose batches are the largest.
    costs = {row.model: row.cost for row in rows}
    memory = {row.model: row.peak_memory_bytes for row in rows}
    parts.append(_contestants(costs, memory))
    if answer.machine is not None:
        parts += [Text(""), Text(_machine(answer.machine))]
    return Group(*parts)


def _planned_bench(document: dict[str, Any]) -> RenderableType:
    rows = [PlannedBenchRow.from_json(row) for row in document["results"]]
    parts: list[RenderableType] = [_contestants({row.model: row.cost for row in rows}, {})]
    parts.append(Text(f"\nwould make {document['calls']} calls"))
    if document["files"]:
        parts.append(Text(f"would write {', '.join(document['files'])}"))
    return Group(*parts)


def _times(rows: Sequence[BenchRow]) -> RenderableType:
    """Return the rows of one batch size and dtype."""
    body = []
    for row in rows:
        low, high = row.timing.ratio_ci
        noise = _NOISY if row.timing.noisy else " "
        share = "-" if row.peak_share is None else f"{100 * row.peak_share:.0f} %"
        body.append(
            [
                row.model,
                three_digits(row.timing.latency_ms.median),
                three_digits(row.timing.throughput_per_s),
                f"{row.timing.ratio:.3f}",
                f"{low:.3f}..{high:.3f}{noise}",
                number(row.cost.mac_ratio, 3),
                share,
            ]
        )
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    return table(_times_title(rows), columns, body)


def _times_title(rows: Sequence[BenchRow]) -> str:
    """Say what the rows of one batch size and dtype have in common."""
    first = rows[0]
    where = f"{first.dtype}, {first.device or ''}"
    if first.compile:
        where += ", compiled"
        if first.compile_mode not in (None, "default"):
            where += f" ({first.compile_mode})"
    parts = [f"batch {first.batch_size}"]
    if first.cost.input is not None and not _inputs_differ([row.cost for row in rows]):
        parts.append(input_text(first.cost.input))
    parts += [where, f"{len(first.timing.latency_ms.runs)} rounds"]
    return ", ".join(parts)


def _inputs_differ(costs: Sequence[BenchCost]) -> bool:
    return any(cost.input != costs[0].input for cost in costs)


def _contestants(costs: Mapping[str, BenchCost], memory: Mapping[str, int | None]) -> RenderableType:
    """Return what each model is and holds, whatever the batch size; memory where it is known of any."""
    columns = ["", "kind", "members", "input", "params", "mult-adds", "file", "memory"]
    body = []
    for name, cost in costs.items():
        body.append(
            [
                name,
                cost.kind or "model",
                "-" if cost.members is None else str(cost.members),
                input_text(cost.input),
                params_text(cost.params, cost.params_nonzero),
                count_text(cost.macs),
                bytes_text(cost.checkpoint_bytes),
                bytes_text(memory.get(name)),
            ]
        )
    left_out = set()
    if not _inputs_differ(list(costs.values())):
        left_out.add("input")
    if all(size is None for size in memory.values()):
        left_out.add("memory")
    shown = [index for index, column in enumerate(columns) if column not in left_out]
    rows = [[cells[index] for index in shown] for cells in body]
    return table("", [columns[index] for index in shown], rows, left=2)


def _machine(machine: MachineRecord) -> str:
    """Say where it ran, and the peak that the shares are of, in one or two lines."""
    text = f"on {machine.device_name or machine.processor or 'an unknown machine'}"
    if machine.threads:
        text += f", {machine.threads} thread{'s' if machine.threads != 1 else ''}"
    peaks = machine.peak_macs_per_s or {}
    shown = [f"{dtype} {count_text(round(peak))}" for dtype, peak in peaks.items() if peak]
    if shown:
        text += f"\npeak, mult-adds a second: {', '.join(shown)}"
    return text


def three_digits(value: float) -> str:
    """Format to three digits that count, with all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


# --- studies ----------------------------------------------------------------------------------------------------------


_OF_COST_AND_ID = 5
"""Columns of the first table of a study that stay with the names where it has to be cut in two."""


def study_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return the verdict, then the rows on the test data; of a dry run the commands."""
    if document.get("dry_run"):
        return _study_plan(document, width)
    verdict = [Text(line) for line in document["verdict"]["lines"]]
    shown: list[RenderableType] = []
    for study in study_tables(document):
        for part in _fitting(study, width):
            shown += [Text(""), part]
    after = [Text(document["verdict"]["footnote"])]
    for timing in document.get("latency", []):
        ratio = f"{timing['ratio']:.2f} times the single model's"
        after.append(Text(f"time of best.st, batches of {timing['batch_size']}: {ratio}"))
    return Group(*verdict, *shown, Text(""), *after)


def _fitting(shown: StudyTable, width: int) -> list[RenderableType]:
    """Return a table, in two parts where the terminal is too narrow for it."""
    left = 2 if "score" in shown.columns else 1
    untitled = table("", _in_two_lines(shown.columns), shown.rows, left=left)
    if Console(width=10**4).measure(untitled).maximum <= width:
        return [table(shown.title, _in_two_lines(shown.columns), shown.rows, left=left)]
    cut = _OF_COST_AND_ID
    first = table(shown.title, _in_two_lines(shown.columns[:cut]), [row[:cut] for row in shown.rows], left=left)
    columns = _in_two_lines([shown.columns[0], *shown.columns[cut:]])
    second = table("", columns, [[row[0], *row[cut:]] for row in shown.rows], left=1)
    return [first, second]


def _in_two_lines(columns: Sequence[str]) -> list[str]:
    """Return titles of columns in two lines where they are of two words."""
    return [column.replace(" ", "\n") for column in columns]


def _study_plan(document: dict[str, Any], width: int) -> RenderableType:
    lines = []
    for place, argv in enumerate(document["steps"], 1):
        lines.append(_typed([f"{place}.", "hydractl", *argv], width))
    lines += [f"to stay within the budget, {text}" for text in document["cut"]]
    lines.append(f"the study takes about {duration_text(document['seconds'])}")
    return Group(*map(Text, lines))


def _typed(words: Sequence[str], width: int) -> str:
    """Return a command in lines that a shell takes as one."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)
