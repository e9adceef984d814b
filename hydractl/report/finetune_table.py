"""What a person sees of a training: its epochs, its loss as a line, the grid of learning rates, or its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hydractl.report.figures import number
from hydractl.report.tables import table

_BARS = "▁▂▃▄▅▆▇█"


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
