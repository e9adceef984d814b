"""Reading a bench again that was written to a file."""

from __future__ import annotations

from typing import Any

from hydractl.errors import InputError
from hydractl.jsonio import read_json_file, shown

_TEXTS = ("model", "dtype")
_NUMBERS = ("batch_size", "throughput_per_s", "ratio", "params", "macs", "mac_ratio")


def read_bench(path: str) -> dict[str, Any]:
    """The document of a bench; ``-`` is standard input.

    Raises:
        InputError: for anything else, listing what is wrong with its rows.
    """
    document = read_json_file(path)
    origin = "standard input" if path == "-" else path
    if not isinstance(document, dict) or document.get("schema") != "hydractl.bench/1":
        found = shown(document.get("schema")) if isinstance(document, dict) else "none"
        raise InputError(f"{origin} is not the JSON of a bench (schema {found})")
    rows = document.get("results")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{origin} holds no rows of a bench")
    problems = [f"row {index}: {what}" for index, row in enumerate(rows) for what in _problems(row)]
    if problems:
        hint = "a dry run measures nothing" if document.get("dry_run") else None
        raise InputError(f"{origin} holds rows that no bench writes", hint=hint, problems=problems[:10])
    return document


def _problems(row: dict[str, Any]) -> list[str]:
    found = [f"{key} is {shown(row.get(key))}, not a text" for key in _TEXTS if not isinstance(row.get(key), str)]
    found += [
        f"{key} is {shown(row.get(key))}, not a positive number" for key in _NUMBERS if not _is_size(row.get(key))
    ]
    latency, interval = row.get("latency_ms"), row.get("ratio_ci")
    runs = latency.get("runs") if isinstance(latency, dict) else None
    if not (isinstance(latency, dict) and _is_size(latency.get("median"))):
        found.append("latency_ms has no median")
    if not (isinstance(runs, list) and runs and all(_is_size(run) for run in runs)):
        found.append("latency_ms has no runs")
    if not (isinstance(interval, list) and len(interval) == 2 and all(_is_size(end) for end in interval)):
        found.append("ratio_ci is not a pair of numbers")
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
