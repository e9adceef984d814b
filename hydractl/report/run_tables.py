"""What a person sees on a terminal of a run that took its time: an eval, a training, a bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hydractl.report import eval_tables as tables
from hydractl.report.rich_parts import UNKNOWN, known_columns, table
from hydractl.report.texts import bytes_text, count_text, drawn_names, input_text, number, params_text

# --- evals ------------------------------------------------------------------------------------------------------------

_STYLES = {tables.BEST: "bold", tables.SECOND: "underline"}
_NAMES = (40, 24, 14)  # letters of a name, the more the better
_OTHERS = 47  # columns of the OOD sets' table beside its names
_ANY_WIDTH = Console(width=10**4)
_Part = tuple[str, Sequence[tables.Column]]  # a title and what stands under it


def eval_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return the tables of an eval: all numbers of a row beside each other, or in groups where they do not fit.

    Intervals are below their numbers where they fit.
    """
    rows = document["models"]
    outside = bool(tables.ood_names(rows))
    n = (rows[0].get("id") or {}).get("n") if rows else 0
    inside = f"in distribution (n = {'-' if n is None else n})"
    second = "OOD averages, and diversity in distribution" if outside else "diversity in distribution"
    every = [(f"{inside}, OOD averages" if outside else inside, tables.main_columns(rows))]
    apart = [(inside, tables.ID_COLUMNS), (second, [*(tables.OOD_AVERAGE if outside else ()), *tables.DIVERSITY])]
    fitting = _fitting(rows, every, apart, width)
    parts: list[RenderableType] = [part for one in fitting for part in (one, Text(""))]
    parts += [_ood(rows, width), Text("")] if outside else []
    parts += [part for one in _asked_for(rows, width) for part in (one, Text(""))]
    with_intervals = any("\n" in str(cell) for one in fitting for column in one.columns for cell in column.cells)
    return Group(*parts, _Note(document, with_intervals))


def _fitting(rows: Sequence[tables.Row], every: Sequence[_Part], apart: Sequence[_Part], width: int) -> list[Table]:
    """Put all columns in one table, else in two; with intervals if possible, and names as long as possible."""
    tries = [(parts, True, letters) for parts in (every, apart) for letters in _NAMES[:2]]
    tries += [(parts, False, letters) for parts in (every, apart) for letters in _NAMES]
    found: list[Table] = []
    for parts, intervals, letters in tries:
        found = [_rich(tables.metric_table(rows, columns, "", title), letters, intervals) for title, columns in parts]
        if all(_ANY_WIDTH.measure(one).maximum <= width for one in found):
            break
    return found


def _asked_for(rows: Sequence[tables.Row], width: int) -> Iterator[RenderableType]:
    """Yield paired differences, corruptions, and what was fitted or given: each where it was asked for."""
    differences, corrupted = tables.difference_table(rows), tables.corrupted_accuracy(rows)
    if (scores := tables.score_table(rows)).rows:
        yield from _in_parts(scores, width)
    if differences.rows:
        title = f"paired difference to {drawn_names([rows[0]['name']], _NAMES[-1])[0]}"
        yield from _in_parts(replace(differences, title=title), width)
    if corrupted.rows:
        yield _rich(corrupted, _NAMES[-1], left=2)
        for mean in list(tables.corruption_tables(rows))[-1:]:
            yield from _in_parts(mean, width)
    fitted = [(name, *[cell.text for cell in cells]) for name, cells in tables.settings_table(rows).rows]
    if fitted:
        yield table("fitted or given", ("model", "what", ""), fitted, left=3)


def _in_parts(shown: tables.Table, width: int) -> list[Table]:
    """Split a table with its intervals into as many parts of its columns as the width asks for, one below another."""
    found: list[Table] = []
    for size in range(len(shown.heads), 0, -1):
        starts = range(0, len(shown.heads), size)
        parts = [
            replace(
                shown,
                title="" if start else shown.title,
                heads=shown.heads[start : start + size],
                rows=[(name, cells[start : start + size]) for name, cells in shown.rows],
            )
            for start in starts
        ]
        found = [_rich(part, _NAMES[-1], intervals=True) for part in parts]
        if all(_ANY_WIDTH.measure(one).maximum <= width for one in found):
            break
    return found


def _rich(shown: tables.Table, letters: int, intervals: bool = False, left: int = 1) -> Table:
    """Make a table for the terminal, with names of so many letters."""
    names = list(dict.fromkeys(name for name, _ in shown.rows))
    short = dict(zip(names, drawn_names(names, letters), strict=True))
    known = known_columns([[cell.text for cell in cells] for _, cells in shown.rows], len(shown.heads))
    labels = [shown.heads[index][0] for index in known]
    found = table(shown.title, ("model", *labels), [], left=left)
    for name, cells in shown.rows:
        found.add_row(Text(short[name]), *[_text(cells[index], intervals) for index in known])
    return found


def _text(cell: tables.Cell, intervals: bool) -> Text:
    """Return a number with its mark, and its interval on a second line."""
    text = Text(cell.text.replace(" ± ", "\n± "), _STYLES.get(cell.mark, ""))  # below the number, for the width
    if intervals and cell.ends is not None:
        between = " to " if cell.signed else "-"
        return Text.assemble(text, "\n", (between.join(map(_short, cell.ends)), "not bold not underline"))
    return text


def _short(value: float) -> str:
    """Format to three digits with no nought before the point: an interval is read beside its number."""
    return f"{value:.3f}".replace("0.", ".", 1) if -1 < value < 1 else f"{value:.3f}"


def _ood(rows: Sequence[tables.Row], width: int) -> Table:
    """Every OOD set of every row."""
    every = tables.every_set_table(rows)
    sets = tables.ood_names(rows)
    short = dict(zip(sets, drawn_names(sets, 16), strict=True))
    lines = [(name, [tables.Cell(short[cells[0].text]), *cells[1:]]) for name, cells in every.rows]
    letters = max(_NAMES[-1], min(_NAMES[0], width - _OTHERS - max(map(len, short.values()))))
    return _rich(tables.Table("", every.heads, lines, every.title), letters, left=3)


class _Note:
    """The meaning of the marks and second lines, or where intervals are to be had; of marks only where they show."""

    def __init__(self, document: Mapping[str, Any], intervals: bool) -> None:
        rows = document["models"]
        self.marks = "bold: best of the column, underlined: second best" if len(rows) > 1 else ""
        level = f"{tables.level_text(document)} " if tables.level_text(document) else ""
        known = any(end for row in rows for end in (row.get("ci") or {}).values() if end and None not in end)
        self.intervals = f"{level}intervals: --json, or a wider terminal" if known else ""
        if intervals and known:
            self.intervals = f"below a number: its {level}interval"
        compared = any(row.get("difference") for row in rows)
        self.runs = tables.runs_text(document)
        self.significant = f"{tables.SIGNIFICANT} the interval of a difference excludes 0" if compared else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marked = self.marks if console.is_terminal and not console.is_dumb_terminal else ""
        text = "; ".join(part for part in (marked, self.intervals) if part)
        yield from (Text(line) for line in (self.runs, text, self.significant) if line)


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
        key = next(key for key in ("draw", "member", "cycle") if key in document["snapshots"][0])
        keys = ["cycle", "steps"] if key == "cycle" else [key]
        files = [[str(one[key]) for key in (*keys, "output")] for one in document["snapshots"]]
        title = "snapshots" if key == "cycle" else "members"
        parts += [Text(""), table(title, (*keys, "file"), files, left=0)]
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


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a row of bars, the lowest of them an eighth of the highest."""
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
    written = ", ".join(snapshot["output"] for snapshot in document.get("snapshots", [document]))
    said = f"{document['steps']} steps on {document['samples']} samples; would write {written}"
    return Group(_recipe(document), Text(""), Text(said))


def _recipe(document: dict[str, Any]) -> RenderableType:
    rows = []
    for name, entry in document["recipe"].items():
        value = _setting(entry["value"])
        if value != UNKNOWN:  # else the option is not in effect
            rows.append([f"--{name.replace('_', '-')}", value, entry["source"]])
    return table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or value == []:
        return UNKNOWN
    return ",".join(_setting(item) for item in value) if isinstance(value, list) else str(value)


# --- benches ----------------------------------------------------------------------------------------------------------


_NOISY = "~"


def bench_table(document: dict[str, Any], width: int) -> RenderableType:
    """Return the tables of a bench, or of its dry run."""
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


def _times(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the rows of one batch size and dtype."""
    first = rows[0]
    compiled = ", compiled" if first.get("compile") else ""
    mode = f" ({first['compile_mode']})" if compiled and first.get("compile_mode") not in (None, "default") else ""
    rounds = len(first["latency_ms"]["runs"])
    sample = "" if _inputs_differ(rows) or not first.get("input") else f"{input_text(first['input'])}, "
    where = f"{first['dtype']}, {first.get('device', '')}{compiled}{mode}"
    title = f"batch {first['batch_size']}, {sample}{where}, {rounds} rounds"
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
                number(row["mac_ratio"], 3),
                "-" if share is None else f"{100 * share:.0f} %",
            ]
        )
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    return table(title, columns, body)


def _inputs_differ(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get("input") != rows[0].get("input") for row in rows)


def _contestants(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return what each row is and holds, whatever the batch size; memory at the largest."""
    last = {row["model"]: row for row in rows}
    apart = _inputs_differ(rows)
    body = [
        [
            name,
            row.get("kind", "model"),
            str(row.get("members", "-")),
            *([input_text(row.get("input"))] if apart else []),
            params_text(row),
            count_text(row["macs"]),
            bytes_text(row.get("checkpoint_bytes")),
            bytes_text(row.get("peak_memory_bytes")),
        ]
        for name, row in last.items()
    ]
    columns = ["", "kind", "members", *(["input"] if apart else []), "params", "mult-adds", "file", "memory"]
    if all(row.get("peak_memory_bytes") is None for row in last.values()):
        columns, body = columns[:-1], [cells[:-1] for cells in body]
    return table("", columns, body, left=2)


def _machine(machine: Mapping[str, Any]) -> str:
    """Say where it ran, and the peak that the shares are of, in one or two lines."""
    threads = machine.get("threads")
    where = machine.get("device_name") or machine.get("processor") or "an unknown machine"
    text = f"on {where}, {threads} thread{'s' if threads != 1 else ''}" if threads else f"on {where}"
    peaks = machine.get("peak_macs_per_s") or {}
    shown = [f"{dtype} {count_text(round(peak))}" for dtype, peak in peaks.items() if peak]
    return text + (f"\npeak, mult-adds a second: {', '.join(shown)}" if shown else "")


def three_digits(value: float) -> str:
    """Format to three digits that count, with all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"
