"""What a person sees of a bench: times beside mult-adds at each batch size, then what each row is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydractl.report.figures import bytes_text, count_text
from hydractl.report.tables import table

_NOISY = "~"


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
    parts.append(_costs(rows))
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
                _three(row["latency_ms"]["median"]),
                _three(row["throughput_per_s"]),
                f"{row['ratio']:.3f}",
                f"{low:.3f}..{high:.3f}" + (_NOISY if row.get("noisy") else " "),
                f"{row['mac_ratio']:.3f}",
                "-" if share is None else f"{100 * share:.0f} %",
            ]
        )
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    return table(title, columns, body)


def _costs(rows: Sequence[Mapping[str, Any]]) -> Table:
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


def _three(value: float) -> str:
    """Three digits that count, and all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"
