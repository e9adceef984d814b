"""The output on a terminal of runs that took their time: trainings, benches and studies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer, BenchCost, BenchRow, MachineRecord
from hydractl.files.model_records import EpochRecord
from hydractl.files.study_answer import NextCommandRecord, StudyAnswer
from hydractl.files.verb_answers import (
    FinetuneAnswer,
    FinetunesAnswer,
    LearningRateTrial,
    RecipeSetting,
    TrainedMember,
)
from hydractl.report.rich_parts import UNKNOWN, table
from hydractl.report.study_figures import StudyTable, study_tables
from hydractl.report.texts import (
    bytes_text,
    count_text,
    duration_text,
    input_text,
    number,
    params_text,
    program_words,
)

# --- trainings --------------------------------------------------------------------------------------------------------


def finetune_table(answer: FinetuneAnswer, width: int) -> RenderableType:
    """Return a finished training: learning rates that were tried, epochs, files of members, and the loss by step."""
    parts: list[RenderableType] = []
    if answer.grid:
        trials = _trials_table(answer.grid, answer.lr)
        parts += [trials, Text("")]

    epochs = _epochs_table(answer.epochs, answer.kept_epoch)
    parts.append(epochs)
    if answer.files_:
        rows = [[str(file.member), file.output] for file in answer.files_]
        members = table("members", ("member", "file"), rows, left=0)
        parts += [Text(""), members]

    curve = answer.loss_curve
    if curve:
        first = number(curve[0])
        last = number(curve[-1])
        line = f"loss {first} {sparkline(curve)} {last}"
        parts += [Text(""), Text(line)]
    return Group(*parts)


def _epochs_table(epochs: Sequence[EpochRecord], kept: int | None) -> RenderableType:
    """Return a table with a line for each epoch; the epoch whose weights were kept is marked."""
    rows = []
    for epoch in epochs:
        mark = ""
        if epoch.epoch == kept:
            mark = "kept"
        rows.append([str(epoch.epoch), str(epoch.steps), *_epoch_figures(epoch), mark])
    return table("", ("epoch", "steps", "loss", "val accuracy", "val nll", ""), rows, left=0)


def _epoch_figures(epoch: EpochRecord) -> list[str]:
    """Return the loss, the validation accuracy and the validation NLL of an epoch as text; a dash if not measured."""
    figures = (epoch.loss, epoch.val_accuracy, epoch.val_nll)
    return [number(figure) for figure in figures]


def finetunes_table(answer: FinetunesAnswer, width: int) -> RenderableType:
    """Return a table of several finished trainings, one line each."""
    columns = ("", "seed", "kept epoch", "loss", "val accuracy", "val nll", "loss by step")
    rows = [_member_cells(member) for member in answer.members]
    return table("", columns, rows)


def _member_cells(member: TrainedMember) -> list[str]:
    """Return the cells of one of several trainings; its figures are those of the epoch whose weights were kept."""
    kept_number = member.kept_epoch or len(member.epochs)  # the last epoch if none was chosen
    kept_epoch = EpochRecord()  # nothing is known unless it is found
    for epoch in member.epochs:
        if epoch.epoch == kept_number:
            kept_epoch = epoch
            break

    kept_of_all = f"{kept_number} of {len(member.epochs)}"
    bars = ""
    if member.loss_curve:
        every_third = member.loss_curve[::3]  # fewer bars, so that the table stays narrow
        bars = sparkline(every_third)
    return [member.name, str(member.seed), kept_of_all, *_epoch_figures(kept_epoch), bars]


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a row of bars of eight heights, from the lowest number to the highest.

    If all are equal, all bars have the lowest height.
    """
    low = min(values)
    span = max(values) - low
    if not span:
        span = 1.0
    highest_bar = len(_BARS) - 1
    bars = []
    for value in values:
        height = (value - low) / span
        bar = round(height * highest_bar)
        bars.append(_BARS[bar])
    return "".join(bars)


def _trials_table(trials: Sequence[LearningRateTrial], kept: float | None) -> RenderableType:
    """Return a table with a line for each learning rate that was tried; the rate that was taken is marked."""
    rows = []
    for trial in trials:
        mark = ""
        if trial.lr == kept:
            mark = "kept"
        figures = [number(trial.val_accuracy), number(trial.val_nll)]
        rows.append([f"{trial.lr:g}", *figures, mark])
    return table("learning rates", ("lr", "val accuracy", "val nll", ""), rows, left=0)


def planned_trainings(plan: FinetunesAnswer, width: int) -> RenderableType:
    """Return the plan of several trainings: their recipe, and a line for each."""
    recipe = _recipe_table(plan.recipe)
    rows = [_planned_member_cells(member) for member in plan.members]
    titles = ("", "model", "seed", "steps", "samples", "output", "")
    members = table("", titles, rows, left=2)
    return Group(recipe, Text(""), members)


def _planned_member_cells(member: TrainedMember) -> list[str]:
    """Return the cells of one of several planned trainings; it is marked if its file exists already."""
    mark = ""
    if member.finished:
        mark = "done"
    counts = [str(member.seed), str(member.steps), str(member.samples)]
    return [member.name, member.model, *counts, member.output, mark]


def planned_training(plan: FinetuneAnswer, width: int) -> RenderableType:
    """Return the plan of one training: its recipe, its number of steps, and the files it would write."""
    outputs = [plan.output]
    if plan.files_ is not None:
        outputs = [file.output for file in plan.files_]
    files = ", ".join(outputs)
    work = f"{plan.steps} steps on {plan.samples} samples; would write {files}"
    recipe = _recipe_table(plan.recipe)
    return Group(recipe, Text(""), Text(work))


def _recipe_table(settings: Mapping[str, RecipeSetting]) -> RenderableType:
    """Return a table of the options in effect, each with its value and the source of the value."""
    rows = []
    for name, setting in settings.items():
        value = _setting_text(setting.value)
        if value != UNKNOWN:  # else the option is not in effect
            rows.append([name, value, setting.source])
    return table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _setting_text(value: object) -> str:
    """Return the value of an option as a person would write it; a dash for None and for an empty list."""
    if isinstance(value, bool):
        if value:
            return "on"
        return "off"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or value == []:
        return UNKNOWN
    if isinstance(value, list):
        return ",".join(_setting_text(item) for item in value)
    return str(value)


# --- benches ----------------------------------------------------------------------------------------------------------


_NOISY = "~"


def bench_table(answer: BenchAnswer, width: int) -> RenderableType:
    """Return the tables of a bench: one of times for each dtype and batch size, one of the models, and the machine."""
    rows = answer.results
    parts: list[RenderableType] = []
    for comparable_rows in _by_dtype_and_batch_size(rows):
        parts += [_times_table(comparable_rows), Text("")]
    if any(row.noisy for row in rows):
        explanation = f"{_NOISY} noisy: runs scatter by more than 10 %: read intervals, not medians"
        parts += [Text(explanation), Text("")]

    # Costs and memory of each model come from its last row, whose batches are the largest.
    costs = {}
    memory = {}
    for row in rows:
        costs[row.model] = row
        memory[row.model] = row.peak_memory_bytes
    parts.append(_models_table(costs, memory))

    if answer.machine is not None:
        machine = _machine_words(answer.machine)
        parts += [Text(""), Text(machine)]
    return Group(*parts)


def _by_dtype_and_batch_size(rows: Sequence[BenchRow]) -> list[list[BenchRow]]:
    """Return the rows in groups of equal dtype and batch size, whose times can be compared."""
    groups: dict[tuple[str, float], list[BenchRow]] = {}
    for row in rows:
        key = (row.dtype, row.batch_size)
        group = groups.setdefault(key, [])
        group.append(row)
    return list(groups.values())


def planned_bench(plan: BenchAnswer, width: int) -> RenderableType:
    """Return the plan of a bench: its models, the number of calls, and the files it would write."""
    costs: dict[str, BenchCost] = {row.model: row for row in plan.results}
    models = _models_table(costs, {})
    parts = [models, Text(f"\nwould make {plan.calls} calls")]
    if plan.files_:
        files = ", ".join(plan.files_)
        parts.append(Text(f"would write {files}"))
    return Group(*parts)


def _times_table(rows: Sequence[BenchRow]) -> RenderableType:
    """Return the table of the times of rows with the same batch size and dtype."""
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    title = _times_title(rows)
    cells = [_time_cells(row) for row in rows]
    return table(title, columns, cells)


def _time_cells(row: BenchRow) -> list[str]:
    """Return the times of one model: median, throughput, ratio to the first model with its interval, share of peak."""
    low, high = row.ratio_ci
    noise = " "
    if row.noisy:
        noise = _NOISY
    share = UNKNOWN
    if row.peak_share is not None:
        share = f"{100 * row.peak_share:.0f} %"
    return [
        row.model,
        three_digits(row.latency_ms.median),
        three_digits(row.throughput_per_s),
        f"{row.ratio:.3f}",
        f"{low:.3f}..{high:.3f}{noise}",
        number(row.mac_ratio, 3),
        share,
    ]


def _times_title(rows: Sequence[BenchRow]) -> str:
    """Return what the rows of one batch size and dtype have in common: batch, input, dtype and device, rounds."""
    first = rows[0]
    parts = [f"batch {first.batch_size}"]
    if first.input is not None and not _inputs_differ(rows):
        parts.append(input_text(first.input))

    device = first.device or ""
    where = f"{first.dtype}, {device}"
    if first.compile:
        where += ", compiled"
        if first.compile_mode not in (None, "default"):
            where += f" ({first.compile_mode})"
    parts.append(where)

    rounds = len(first.latency_ms.runs)
    parts.append(f"{rounds} rounds")
    return ", ".join(parts)


def _inputs_differ(costs: Sequence[BenchCost]) -> bool:
    """Return whether the models have different inputs."""
    first = costs[0].input
    return any(cost.input != first for cost in costs)


def _models_table(costs: Mapping[str, BenchCost], memory: Mapping[str, int | None]) -> RenderableType:
    """Return the table of what does not depend on the batch size: kind, members, parameters, mult-adds, file size.

    There is a column of inputs if models have different ones, and a column of memory if it is known for any model.

    Args:
        costs: the cost of each model, by its name.
        memory: the peak memory in bytes, by the name of the model.
    """
    has_inputs = _inputs_differ(list(costs.values()))
    has_memory = any(size is not None for size in memory.values())

    # The titles and the cells of a row must have the same order.
    titles = ["", "kind", "members"]
    if has_inputs:
        titles.append("input")
    titles += ["params", "mult-adds", "file"]
    if has_memory:
        titles.append("memory")

    rows = []
    for name, cost in costs.items():
        kind = cost.kind or "model"
        cells = [name, kind, _members_text(cost)]
        if has_inputs:
            cells.append(input_text(cost.input))
        cells.append(params_text(cost.params, cost.params_nonzero))
        cells.append(count_text(cost.macs))
        cells.append(bytes_text(cost.checkpoint_bytes))
        if has_memory:
            cells.append(bytes_text(memory.get(name)))
        rows.append(cells)
    return table("", titles, rows, left=2)


def _members_text(cost: BenchCost) -> str:
    if cost.members is None:
        return UNKNOWN
    return str(cost.members)


def _machine_words(machine: MachineRecord) -> str:
    """Return words on the machine, and on the peak that the shares relate to, in one or two lines."""
    device = machine.device_name or machine.processor or "an unknown machine"
    text = f"on {device}"
    if machine.threads == 1:
        text += ", 1 thread"
    elif machine.threads:
        text += f", {machine.threads} threads"
    peaks = machine.peak_macs_per_s or {}
    peak_words = []
    for dtype, peak in peaks.items():
        if peak:
            peak_words.append(f"{dtype} {count_text(round(peak))}")
    if peak_words:
        text += f"\npeak, mult-adds a second: {', '.join(peak_words)}"
    return text


def three_digits(value: float) -> str:
    """Return a number with three significant digits, and with all digits before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:#.3g}"


# --- studies ----------------------------------------------------------------------------------------------------------


_OF_COST_AND_ID = 5
"""The number of first columns of a study's table that go into the first part if it has to be cut in two."""


def study_table(answer: StudyAnswer, width: int) -> RenderableType:
    """Return a finished study: the verdict, the rows on test data, the time of the best, and the next commands."""
    verdict = answer.verdict
    parts: list[RenderableType] = [Text(line) for line in verdict.lines]
    for study in study_tables(answer):
        for part in _in_parts(study, width):
            parts += [Text(""), part]
    parts += [Text(""), Text(verdict.footnote)]

    for timing in answer.latency:
        ratio = f"{timing.ratio:.2f} times the single model's"
        line = f"time of best.st, batches of {timing.batch_size}: {ratio}"
        parts.append(Text(line))
    if answer.next:
        next_lines = _next_lines(answer.next, width)
        parts += [Text(""), *next_lines]
    return Group(*parts)


def _next_lines(steps: Sequence[NextCommandRecord], width: int) -> list[Text]:
    """Return a line with the purposes of the next steps, and then the command of each step as it is typed."""
    purposes = ", ".join(step.purpose for step in steps)
    lines = [Text(f"what now: {purposes}")]
    program = program_words()
    for step in steps:
        command = [*program, *step.command]
        lines.append(Text(_command_as_typed(command, width)))
    return lines


def _in_parts(shown: StudyTable, width: int) -> list[RenderableType]:
    """Return a table; if the terminal is too narrow for it, two parts that both begin with the names.

    Args:
        shown: the table.
        width: the width of the terminal in characters.
    """
    left = 1
    if "score" in shown.columns:
        left = 2

    # Measure the table without its title, which may be wrapped.
    titles = _in_two_lines(shown.columns)
    without_title = table("", titles, shown.rows, left=left)
    wide = Console(width=10**4)
    if wide.measure(without_title).maximum <= width:
        whole = table(shown.title, titles, shown.rows, left=left)
        return [whole]

    # The first part has the first columns, the second one the names and all others.
    cut = _OF_COST_AND_ID
    first_rows = []
    second_rows = []
    for row in shown.rows:
        name = row[0]
        first_rows.append(row[:cut])
        second_rows.append([name, *row[cut:]])
    first = table(shown.title, titles[:cut], first_rows, left=left)
    second = table("", [titles[0], *titles[cut:]], second_rows, left=1)
    return [first, second]


def _in_two_lines(columns: Sequence[str]) -> list[str]:
    """Return the titles of columns with a line break between their words."""
    return [column.replace(" ", "\n") for column in columns]


def planned_study(plan: StudyAnswer, width: int) -> RenderableType:
    """Return the plan of a study: its numbered commands, what is cut to stay within the time, and how long it takes."""
    lines = []
    for step_number, argv in enumerate(plan.steps, 1):
        words = [f"{step_number}.", "hydractl", *argv]
        lines.append(_command_as_typed(words, width))
    for text in plan.cut or ():
        lines.append(f"to stay within the budget, {text}")
    time = duration_text(plan.seconds or 0.0)
    lines.append(f"the study takes about {time}")
    return Group(*map(Text, lines))


def _command_as_typed(words: Sequence[str], width: int) -> str:
    """Return a command as it is typed in a shell: quoted, in lines of at most ``width`` that end in a backslash.

    A word that is longer than a line has a line of its own.

    Args:
        words: the words of the command.
        width: the width of the terminal in characters.
    """
    lines = []
    line = ""
    for word in map(shlex.quote, words):
        width_with_word = len(line) + len(word) + 3  # a space before the word, and " \" at the end
        line_has_word = line.strip() != ""
        if line_has_word and width_with_word > width:
            lines.append(line)
            line = "   "
        if line:
            line += " "
        line += word
    lines.append(line)
    return " \\\n".join(lines)
