"""What a person sees of a run that took its time: the epochs of a training, the times of a bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.report.figures import bytes_text, count_text, number
from hydractl.report.rich_tables import table

_BARS = "▁▂▃▄▅▆▇█"
_NOISY = "~"


# --- trainings --------------------------------------------------------------------------------------------------------


def finetune_table(document: dict[str, Any], width: int) -> RenderableType:
    """A finished training, or the plan of one."""
    if document.get("dry_run"):
        return _plan(document)
    columns = ("epoch", "steps", "loss", "val accuracy", "val nll", "")
    rows = [
        [
            str(e["epoch"]),
            str(e["steps"]),
            *[number(e.get(key)) for key in ("loss", "val_accuracy", "val_nll")],
            "kept" if e["epoch"] == document["kept_epoch"] else "",
        ]
        for e in document["epochs"]
    ]
    parts: list[RenderableType] = []
    if document.get("grid"):
        parts += [_grid(document["grid"], document["lr"]), Text("")]
    parts.append(table("", columns, rows, left=0))
    if document.get("snapshots"):
        cycles = [[str(one["cycle"]), str(one["steps"]), one["output"]] for one in document["snapshots"]]
        parts += [Text(""), table("snapshots", ("cycle", "steps", "file"), cycles, left=0)]
    curve = document.get("loss_curve")
    if curve:
        parts += [Text(""), Text(f"loss {number(curve[0])} {sparkline(curve)} {number(curve[-1])}")]
    return Group(*parts)


def finetunes_table(document: dict[str, Any], width: int) -> RenderableType:
    """Several finished trainings, a row each, or the plan of them."""
    if document.get("dry_run"):
        return _plans(document)
    rows = []
    for member in document["members"]:
        number_kept = member["kept_epoch"] or len(member["epochs"])  # of snapshots none is chosen
        kept: dict[str, Any] = next((e for e in member["epochs"] if e["epoch"] == number_kept), {})
        found = [number(kept.get(key)) for key in ("loss", "val_accuracy", "val_nll")]
        epochs = f"{number_kept} of {len(member['epochs'])}"
        curve = member.get("loss_curve")
        rows.append([member["name"], str(member["seed"]), epochs, *found, sparkline(curve[::3]) if curve else ""])
    return table("", ("", "seed", "kept epoch", "loss", "val accuracy", "val nll", "loss by step"), rows)


def sparkline(values: Sequence[float]) -> str:
    """Numbers as a row of bars, the lowest of them an eighth of the highest."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)


def _grid(grid: Sequence[dict[str, Any]], kept: float) -> RenderableType:
    rows = [
        [f"{e['lr']:g}", *[number(e[key]) for key in ("val_accuracy", "val_nll")], "kept" if e["lr"] == kept else ""]
        for e in grid
    ]
    return table("learning rates", ("lr", "val accuracy", "val nll", ""), rows, left=0)


def _plans(document: dict[str, Any]) -> RenderableType:
    columns = ("", "model", "seed", "steps", "samples", "output", "")
    rows = [
        [*[str(m[key]) for key in ("name", "model", "seed", "steps", "samples", "output")], "done" * ("finished" in m)]
        for m in document["members"]
    ]
    devices = document["devices"]
    said = f"{len(devices)} at a time, on {', '.join(devices)}"
    said += f", {document['threads']} threads each" if "threads" in document else ""
    return Group(_recipe(document), Text(""), table("", columns, rows, left=2), Text(""), Text(said))


def _plan(document: dict[str, Any]) -> RenderableType:
    written = ", ".join(one["output"] for one in document.get("snapshots", [document]))
    said = f"{document['steps']} steps on {document['samples']} samples; would write {written}"
    return Group(_recipe(document), Text(""), Text(said))


def _recipe(document: dict[str, Any]) -> RenderableType:
    rows = [
        [f"--{name.replace('_', '-')}", _text(entry["value"]), entry["source"]]
        for name, entry in document["recipe"].items()
    ]
    return table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or value == []:
        return "-"
    return ",".join(_text(item) for item in value) if isinstance(value, list) else str(value)


# --- benches ----------------------------------------------------------------------------------------------------------


def bench_table(document: dict[str, Any], width: int) -> RenderableType:
    """The tables of a bench, or of its dry run."""
    rows = document["results"]
    parts: list[RenderableType] = []
    for dtype, batch_size in dict.fromkeys((row.get("dtype"), row.get("batch_size")) for row in rows):
        if dtype is not None:
            chosen = [row for row in rows if (row["dtype"], row["batch_size"]) == (dtype, batch_size)]
            parts += [_times(chosen), Text("")]
    if any(row.get("noisy") for row in rows):
        parts += [Text(f"{_NOISY} noisy: runs scatter by more than 10 %: read intervals, not medians"), Text("")]
    parts.append(_contestants(rows))
    machine = document.get("machine")
    if machine:
        parts += [Text(""), Text(_machine(machine))]
    if document.get("dry_run"):
        parts.append(Text(f"\nwould make {document['calls']} calls"))
        parts += [Text(f"would write {', '.join(document['files'])}")] if document["files"] else []
    return Group(*parts)


def _times(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of one batch size and dtype."""
    first = rows[0]
    compiled = ", compiled" if first.get("compile") else ""
    mode = f" ({first['compile_mode']})" if compiled and first.get("compile_mode") not in (None, "default") else ""
    rounds = len(first["latency_ms"]["runs"])
    title = f"batch {first['batch_size']}, {first['dtype']}, {first.get('device', '')}{compiled}{mode}, {rounds} rounds"
    body = []
    for row in rows:
        low, high = row["ratio_ci"]
        share = row.get("peak_share")
        body.append(
            [
                row["model"],
                three_digits(row["latency_ms"]["median"]),
                three_digits(row["throughput_per_s"]),
                f"{row['ratio']:.3f}",
                f"{low:.3f}..{high:.3f}" + (_NOISY if row.get("noisy") else " "),
                f"{row['mac_ratio']:.3f}",
                "-" if share is None else f"{100 * share:.0f} %",
            ]
        )
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    return table(title, columns, body)


def _contestants(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What each row is and holds, whatever the batch size; memory at the largest."""
    last = {row["model"]: row for row in rows}
    body = [
        [
            name,
            row.get("kind", "model"),
            str(row.get("members", "-")),
            count_text(row["params"]),
            count_text(row["macs"]),
            bytes_text(row.get("checkpoint_bytes")),
            bytes_text(row.get("peak_memory_bytes")),
        ]
        for name, row in last.items()
    ]
    columns = ["", "kind", "members", "params", "mult-adds", "file", "memory"]
    if all(row.get("peak_memory_bytes") is None for row in last.values()):
        columns, body = columns[:-1], [cells[:-1] for cells in body]
    return table("", columns, body, left=2)


def _machine(machine: Mapping[str, Any]) -> str:
    """One or two lines: where it ran, and the peak that the shares are of."""
    threads = machine.get("threads")
    where = machine.get("device_name") or machine.get("processor") or "an unknown machine"
    text = f"on {where}, {threads} thread{'s' if threads != 1 else ''}" if threads else f"on {where}"
    peaks = machine.get("peak_macs_per_s") or {}
    shown = [f"{dtype} {count_text(round(peak))}" for dtype, peak in peaks.items() if peak]
    return text + (f"\npeak, mult-adds a second: {', '.join(shown)}" if shown else "")


def three_digits(value: float) -> str:
    """Three digits that count, and all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"
