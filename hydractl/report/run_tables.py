"""What a person sees on a terminal of a run that took its time: a training, a bench, a study."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer, BenchCost, BenchRow, MachineRecord
from hydractl.files.model_records import EpochRecord
from hydractl.files.study_answer import NextCommandRecord
from hydractl.files.verb_answers import (
    FinetuneAnswer,
    FinetunesAnswer,
    FinishedStudy,
    LearningRateTrial,
    PlannedBench,
    PlannedMember,
    PlannedStudy,
    PlannedTraining,
    PlannedTrainings,
    RecipeSetting,
    TrainedFile,
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
    """Return a finished training: learning rates that were tried, epochs, files of snapshots, and the loss by step."""
    parts: list[RenderableType] = []
    if answer.grid:
        trials = _trials_table(answer.grid, answer.lr)
        parts += [trials, Text("")]
    epochs = _epochs_table(answer.epochs, answer.kept_epoch)
    parts.append(epochs)
    if answer.plan.snapshots:
        snapshots = _snapshots_table(answer.plan.snapshots)
        parts += [Text(""), snapshots]
    curve = answer.loss_curve
    if curve:
        first = number(curve[0])
        last = number(curve[-1])
        line = f"loss {first} {sparkline(curve)} {last}"
        parts += [Text(""), Text(line)]
    return Group(*parts)


def _epochs_table(epochs: Sequence[EpochRecord], kept: int | None) -> RenderableType:
    """Return a line for each epoch, the one whose weights were kept marked."""
    rows = []
    for epoch in epochs:
        mark = ""
        if epoch.epoch == kept:
            mark = "kept"
        rows.append([str(epoch.epoch), str(epoch.steps), *_epoch_figures(epoch), mark])
    return table("", ("epoch", "steps", "loss", "val accuracy", "val nll", ""), rows, left=0)


def _epoch_figures(epoch: EpochRecord) -> list[str]:
    """Return loss, validation accuracy and validation NLL as text; dashes for those that were not measured."""
    figures = (epoch.loss, epoch.val_accuracy, epoch.val_nll)
    return [number(figure) for figure in figures]


_NUMBERS_OF_FILES: Mapping[str, Callable[[TrainedFile], int | None]] = {
    "draw": lambda file: file.draw,
    "member": lambda file: file.member,
    "cycle": lambda file: file.cycle,
    "steps": lambda file: file.steps,
}
"""What a column says of each file of a training, by the title of the column."""


def _snapshots_table(files: Sequence[TrainedFile]) -> RenderableType:
    """Return the files of one training: of members, of draws, or of the cycles of its learning rate."""
    first = files[0]
    title = "members"
    if first.draw is not None:
        columns = ["draw"]
    elif first.member is not None:
        columns = ["member"]
    else:
        title = "snapshots"
        columns = ["cycle", "steps"]
    rows = []
    for file in files:
        numbers = [_NUMBERS_OF_FILES[column](file) for column in columns]
        rows.append([*map(str, numbers), file.output])
    return table(title, (*columns, "file"), rows, left=0)


def finetunes_table(answer: FinetunesAnswer, width: int) -> RenderableType:
    """Return several finished trainings, a row each."""
    columns = ("", "seed", "kept epoch", "loss", "val accuracy", "val nll", "loss by step")
    rows = [_member_cells(member) for member in answer.members]
    return table("", columns, rows)


def _member_cells(member: TrainedMember) -> list[str]:
    """Return the row of one of several trainings: the figures are those of the epoch whose weights were kept."""
    training = member.training
    number_kept = training.kept_epoch or len(training.epochs)  # of snapshots none is chosen
    kept = EpochRecord()  # of which nothing is known
    for epoch in training.epochs:
        if epoch.epoch == number_kept:
            kept = epoch
            break
    kept_of_all = f"{number_kept} of {len(training.epochs)}"
    bars = ""
    if training.loss_curve:
        every_third = training.loss_curve[::3]
        bars = sparkline(every_third)
    return [member.name, str(member.seed), kept_of_all, *_epoch_figures(kept), bars]


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """Return numbers as a row of bars, the lowest of them an eighth of the highest; all the lowest if all are equal."""
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
    """Return a line for each learning rate that was tried, the one that was taken marked."""
    rows = []
    for trial in trials:
        mark = ""
        if trial.lr == kept:
            mark = "kept"
        figures = [number(trial.val_accuracy), number(trial.val_nll)]
        rows.append([f"{trial.lr:g}", *figures, mark])
    return table("learning rates", ("lr", "val accuracy", "val nll", ""), rows, left=0)


def planned_trainings(plan: PlannedTrainings, width: int) -> RenderableType:
    """Return the plan of several trainings: their recipe, a line for each, and where they would run."""
    recipe = _recipe_table(plan.recipe)
    rows = [_planned_member_cells(member) for member in plan.members]
    titles = ("", "model", "seed", "steps", "samples", "output", "")
    members = table("", titles, rows, left=2)
    at_a_time = len(plan.devices)
    devices = ", ".join(plan.devices)
    places = f"{at_a_time} at a time, on {devices}"
    if plan.threads is not None:
        places += f", {plan.threads} threads each"
    empty_line = Text("")
    return Group(recipe, empty_line, members, empty_line, Text(places))


def _planned_member_cells(member: PlannedMember) -> list[str]:
    """Return the row of one of several planned trainings, marked where its file is there already."""
    training = member.plan
    mark = ""
    if member.finished:
        mark = "done"
    counts = [str(member.seed), str(training.steps), str(training.samples)]
    return [member.name, training.model, *counts, training.output, mark]


def planned_training(planned: PlannedTraining, width: int) -> RenderableType:
    """Return the plan of one training."""
    plan = planned.plan
    outputs = [plan.output]
    if plan.snapshots is not None:
        outputs = [file.output for file in plan.snapshots]
    files = ", ".join(outputs)
    work = f"{plan.steps} steps on {plan.samples} samples; would write {files}"
    recipe = _recipe_table(planned.recipe)
    return Group(recipe, Text(""), Text(work))


def _recipe_table(settings: Mapping[str, RecipeSetting]) -> RenderableType:
    """Return each option in effect, its value, and where that comes from."""
    rows = []
    for name, setting in settings.items():
        value = _setting_text(setting.value)
        if value != UNKNOWN:  # else the option is not in effect
            rows.append([name, value, setting.source])
    return table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _setting_text(value: object) -> str:
    """Return the value of an option as a person writes it; a dash for none."""
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
    """Return the tables of a bench: of times, one for each dtype and batch size; then of the models and the machine."""
    rows = answer.results
    parts: list[RenderableType] = []
    for comparable_rows in _by_dtype_and_batch_size(rows):
        parts += [_times_table(comparable_rows), Text("")]
    if any(row.timing.noisy for row in rows):
        explanation = f"{_NOISY} noisy: runs scatter by more than 10 %: read intervals, not medians"
        parts += [Text(explanation), Text("")]

    # Of each model its last row, whose batches are the largest.
    costs = {}
    memory = {}
    for row in rows:
        costs[row.model] = row.cost
        memory[row.model] = row.peak_memory_bytes
    parts.append(_models_table(costs, memory))
    if answer.machine is not None:
        machine = _machine_words(answer.machine)
        parts += [Text(""), Text(machine)]
    return Group(*parts)


def _by_dtype_and_batch_size(rows: Sequence[BenchRow]) -> list[list[BenchRow]]:
    """Return the rows whose times compare as lists, each dtype and batch size in the order of its first row."""
    groups: dict[tuple[str, float], list[BenchRow]] = {}
    for row in rows:
        key = (row.dtype, row.batch_size)
        group = groups.setdefault(key, [])
        group.append(row)
    return list(groups.values())


def planned_bench(plan: PlannedBench, width: int) -> RenderableType:
    """Return the plan of a bench: its models, how many calls it would make, and the files it would write."""
    costs = {row.model: row.cost for row in plan.results}
    models = _models_table(costs, {})
    parts = [models, Text(f"\nwould make {plan.calls} calls")]
    if plan.files:
        files = ", ".join(plan.files)
        parts.append(Text(f"would write {files}"))
    return Group(*parts)


def _times_table(rows: Sequence[BenchRow]) -> RenderableType:
    """Return the times of the rows of one batch size and dtype."""
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    title = _times_title(rows)
    cells = [_time_cells(row) for row in rows]
    return table(title, columns, cells)


def _time_cells(row: BenchRow) -> list[str]:
    """Return the times of one model: median, throughput, ratio to the first model with its interval, share of peak."""
    timing = row.timing
    low, high = timing.ratio_ci
    noise = " "
    if timing.noisy:
        noise = _NOISY
    share = UNKNOWN
    if row.peak_share is not None:
        share = f"{100 * row.peak_share:.0f} %"
    return [
        row.model,
        three_digits(timing.latency_ms.median),
        three_digits(timing.throughput_per_s),
        f"{timing.ratio:.3f}",
        f"{low:.3f}..{high:.3f}{noise}",
        number(row.cost.mac_ratio, 3),
        share,
    ]


def _times_title(rows: Sequence[BenchRow]) -> str:
    """Say what the rows of one batch size and dtype have in common: batch, input, dtype and device, rounds."""
    first = rows[0]
    parts = [f"batch {first.batch_size}"]
    costs = [row.cost for row in rows]
    if first.cost.input is not None and not _inputs_differ(costs):
        parts.append(input_text(first.cost.input))
    device = first.device or ""
    where = f"{first.dtype}, {device}"
    if first.compile:
        where += ", compiled"
        if first.compile_mode not in (None, "default"):
            where += f" ({first.compile_mode})"
    parts.append(where)
    rounds = len(first.timing.latency_ms.runs)
    parts.append(f"{rounds} rounds")
    return ", ".join(parts)


def _inputs_differ(costs: Sequence[BenchCost]) -> bool:
    first = costs[0].input
    return any(cost.input != first for cost in costs)


def _models_table(costs: Mapping[str, BenchCost], memory: Mapping[str, int | None]) -> RenderableType:
    """Return what each model is and holds, whatever the batch size.

    Inputs have a column where models differ in theirs, and memory has one where it is known of any.

    Args:
        costs: of each model, by its name.
        memory: in bytes at the peak, by the name of the model.
    """
    has_inputs = _inputs_differ(list(costs.values()))
    has_memory = any(size is not None for size in memory.values())
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
    """Say where it ran, and the peak that the shares are of, in one or two lines."""
    device = machine.device_name or machine.processor or "an unknown machine"
    text = f"on {device}"
    if machine.threads == 1:
        text += ", 1 thread"
    elif machine.threads:
        text += f", {machine.threads} threads"
    peaks = machine.peak_macs_per_s or {}
    shown = []
    for dtype, peak in peaks.items():
        if peak:
            shown.append(f"{dtype} {count_text(round(peak))}")
    if shown:
        text += f"\npeak, mult-adds a second: {', '.join(shown)}"
    return text


def three_digits(value: float) -> str:
    """Format to three digits that count, with all digits before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:#.3g}"


# --- studies ----------------------------------------------------------------------------------------------------------


_OF_COST_AND_ID = 5
"""Columns of the first table of a study that stay with the names where it has to be cut in two."""


def study_table(answer: FinishedStudy, width: int) -> RenderableType:
    """Return the verdict, then the rows on the test data, the time of the best, and the commands to go on with."""
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
    """Return what each step is for, in one line, then the command of each as it is typed."""
    purposes = ", ".join(step.purpose for step in steps)
    lines = [Text(f"what now: {purposes}")]
    program = program_words()
    for step in steps:
        command = [*program, *step.command]
        lines.append(Text(_command_as_typed(command, width)))
    return lines


def _in_parts(shown: StudyTable, width: int) -> list[RenderableType]:
    """Return a table; where the terminal is too narrow for it, in two parts that both begin with the names."""
    left = 1
    if "score" in shown.columns:
        left = 2
    titles = _in_two_lines(shown.columns)
    without_title = table("", titles, shown.rows, left=left)
    wide = Console(width=10**4)
    if wide.measure(without_title).maximum <= width:
        whole = table(shown.title, titles, shown.rows, left=left)
        return [whole]

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
    """Return titles of columns in two lines where they are of two words."""
    return [column.replace(" ", "\n") for column in columns]


def planned_study(plan: PlannedStudy, width: int) -> RenderableType:
    """Return the commands of a study, numbered, what the budget cuts, and how long it would take."""
    lines = []
    for place, argv in enumerate(plan.steps, 1):
        words = [f"{place}.", "hydractl", *argv]
        lines.append(_command_as_typed(words, width))
    for text in plan.cut:
        lines.append(f"to stay within the budget, {text}")
    time = duration_text(plan.seconds)
    lines.append(f"the study takes about {time}")
    return Group(*map(Text, lines))


def _command_as_typed(words: Sequence[str], width: int) -> str:
    """Return a command as it is typed in a shell: quoted, and in lines of at most ``width`` that the shell joins.

    A word that is longer than a line has one to itself.
    """
    lines = []
    line = ""
    for word in map(shlex.quote, words):
        width_with_word = len(line) + len(word) + 3  # a space before the word, and one with a backslash at the end
        has_word = line.strip() != ""
        if has_word and width_with_word > width:
            lines.append(line)
            line = "   "
        if line:
            line += " "
        line += word
    lines.append(line)
    return " \\\n".join(lines)
