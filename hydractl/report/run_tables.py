"""The output on a terminal of runs that took their time: trainings, benches and studies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from hydractl.files.bench_answer import BenchAnswer, BenchRow, MachineRecord
from hydractl.files.model_records import EpochRecord
from hydractl.files.study_answer import StudyAnswer
from hydractl.files.verb_answers import (
    FinetuneAnswer,
    FinetunesAnswer,
    LearningRateTrial,
    RecipeSetting,
    TrainedMember,
)
from hydractl.report.study_figures import (
    glance,
    in_brief,
    legend,
    next_steps,
    own_scores_table,
    ruled_out_table,
    study_table,
)
from hydractl.report.tables import UNKNOWN, fact_table, fitted, plain_table
from hydractl.report.texts import (
    bytes_text,
    count_text,
    duration_text,
    input_text,
    number,
    params_text,
    three_digits,
)

# --- trainings --------------------------------------------------------------------------------------------------------


def finetune_table(answer: FinetuneAnswer, width: int) -> RenderableType:
    """Return a finished training: learning rates that were tried, epochs, files of members, and the loss.

    Learning rates, files and loss are left out if the answer does not have them.
    """
    parts: list[RenderableType] = []
    if answer.grid:
        parts += [_trials_table(answer.grid, answer.lr), Text("")]
    parts.append(_epochs_table(answer.epochs, answer.kept_epoch))
    if answer.files_:
        rows = [[str(file.member), file.output] for file in answer.files_]
        parts += [Text(""), plain_table("members", ("member", "file"), rows, left=0)]
    curve = answer.loss_curve
    if curve:
        parts += [Text(""), Text(f"loss from {number(curve[0])} to {number(curve[-1])}")]
    return Group(*parts)


def _epochs_table(epochs: Sequence[EpochRecord], kept: int | None) -> RenderableType:
    """Return a table with a line for each epoch; the epoch whose weights were kept is marked."""
    rows = []
    for epoch in epochs:
        mark = "kept" if epoch.epoch == kept else ""
        rows.append([str(epoch.epoch), str(epoch.steps), *_epoch_figures(epoch), mark])
    return plain_table("", ("epoch", "steps", "loss", "val accuracy", "val nll", ""), rows, left=0)


def _epoch_figures(epoch: EpochRecord) -> list[str]:
    """Return the loss, the validation accuracy and the validation NLL of an epoch as text; a dash if not measured."""
    return [number(figure) for figure in (epoch.loss, epoch.val_accuracy, epoch.val_nll)]


def finetunes_table(answer: FinetunesAnswer, width: int) -> RenderableType:
    """Return a table of several finished trainings, one line each."""
    columns = ("", "seed", "kept epoch", "loss", "val accuracy", "val nll")
    rows = [_member_cells(member) for member in answer.members]
    return plain_table("", columns, rows)


def _member_cells(member: TrainedMember) -> list[str]:
    """Return the cells of one of several trainings: name, seed, kept epoch, and the figures of that epoch.

    They are dashes if the record does not hold that epoch.
    """
    kept_number = member.kept_epoch or len(member.epochs)  # the last epoch if none was chosen
    nothing_known = EpochRecord()
    kept_epoch = next((epoch for epoch in member.epochs if epoch.epoch == kept_number), nothing_known)
    kept_of_all = f"{kept_number} of {len(member.epochs)}"
    return [member.name, str(member.seed), kept_of_all, *_epoch_figures(kept_epoch)]


def _trials_table(trials: Sequence[LearningRateTrial], kept: float | None) -> RenderableType:
    """Return a table with a line for each learning rate that was tried; the rate that was taken is marked."""
    rows = []
    for trial in trials:
        mark = "kept" if trial.lr == kept else ""
        rows.append([f"{trial.lr:g}", number(trial.val_accuracy), number(trial.val_nll), mark])
    return plain_table("learning rates", ("lr", "val accuracy", "val nll", ""), rows, left=0)


def planned_trainings(plan: FinetunesAnswer, width: int) -> RenderableType:
    """Return the plan of several trainings: their recipe, and a line for each."""
    rows = []
    for member in plan.members:
        mark = "done" if member.finished else ""
        counts = [str(member.seed), str(member.steps), str(member.samples)]
        rows.append([member.name, member.model, *counts, member.output, mark])
    members = plain_table("", ("", "model", "seed", "steps", "samples", "output", ""), rows, left=2)
    return Group(_recipe_table(plan.recipe), Text(""), members)


def planned_training(plan: FinetuneAnswer, width: int) -> RenderableType:
    """Return the plan of one training: its recipe, its number of steps, and the files it would write."""
    outputs = [plan.output] if plan.files_ is None else [file.output for file in plan.files_]
    work = f"{plan.steps} steps on {plan.samples} samples; would write {', '.join(outputs)}"
    return Group(_recipe_table(plan.recipe), Text(""), Text(work))


def _recipe_table(settings: Mapping[str, RecipeSetting]) -> RenderableType:
    """Return a table of the options in effect, each with its value and the source of the value."""
    rows = []
    for name, setting in settings.items():
        value = _setting_text(setting.value)
        if value != UNKNOWN:  # else the option is not in effect
            rows.append([name, value, setting.source])
    return plain_table("the recipe in effect", ("option", "value", "from"), rows, left=3)


def _setting_text(value: object) -> str:
    """Return the value of an option as a person would write it; a dash for None and for an empty list."""
    if isinstance(value, bool):
        return "on" if value else "off"
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
    columns = ("", "ms", "samples\n/s", "time\nratio", "95 %\ninterval ", "mult-adds\nratio", "of\npeak")
    # Rows (models) of one dtype and batch size stand together; their times can be compared, so they share a table.
    for _, group in groupby(rows, key=lambda row: (row.dtype, row.batch_size)):
        comparable = list(group)
        parts += [plain_table(_times_title(comparable), columns, list(map(_time_cells, comparable))), Text("")]
    if any(row.noisy for row in rows):
        explanation = f"{_NOISY} noisy: runs scatter by more than 10 %: read intervals, not medians"
        parts += [Text(explanation), Text("")]

    parts.append(_models_table(rows))
    if answer.machine is not None:
        parts += [Text(""), Text(_machine_words(answer.machine))]
    return Group(*parts)


def planned_bench(plan: BenchAnswer, width: int) -> RenderableType:
    """Return the plan of a bench: its models, and the files it would write."""
    parts = [_models_table(plan.results)]
    if plan.files_:
        parts.append(Text(f"\nwould write {', '.join(plan.files_)}"))
    return Group(*parts)


def _time_cells(row: BenchRow) -> list[str]:
    """Return the cells of one model, for the columns of :func:`bench_table`.

    They are its name, the median time in ms, samples a second, the ratio of time to the first model, the interval of
    that ratio (with a mark if the times are noisy), the ratio of mult-adds, and the share of the peak of the machine.
    """
    low, high = row.ratio_ci
    noise = _NOISY if row.noisy else " "
    share = UNKNOWN if row.peak_share is None else f"{100 * row.peak_share:.0f} %"
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
    """Return the title of a table of times: what its rows have in common, batch, input, dtype, device and rounds.

    For example ``batch 8, 3x224x224, float32, cpu, 20 rounds``.
    """
    first = rows[0]
    parts = [f"batch {first.batch_size}"]
    if first.input is not None:
        parts.append(input_text(first.input))

    where = f"{first.dtype}, {first.device or ''}"
    if first.compile:
        where += ", compiled"
        if first.compile_mode not in (None, "default"):
            where += f" ({first.compile_mode})"
    return ", ".join([*parts, where, f"{len(first.latency_ms.runs)} rounds"])


def _models_table(costs: Sequence[BenchRow]) -> RenderableType:
    """Return the table of what does not depend on the batch size: kind, members, parameters, mult-adds, file size.

    There is a column of memory if it is known for any model. The figures of a model are those of its last row, whose
    batches are the largest.
    """
    rows = []
    last_of_each = {cost.model: cost for cost in costs}  # later rows of a model override earlier ones
    for name, cost in last_of_each.items():
        members = UNKNOWN if cost.members is None else str(cost.members)
        sizes = [params_text(cost.params, cost.params_nonzero), count_text(cost.macs)]
        files = [bytes_text(cost.checkpoint_bytes), bytes_text(cost.peak_memory_bytes)]
        rows.append([name, cost.kind or "model", members, *sizes, *files])
    return plain_table("", ["", "kind", "members", "params", "mult-adds", "file", "memory"], rows, left=2)


def _machine_words(machine: MachineRecord) -> str:
    """Return words on the machine and its threads, and on a second line the peak that shares relate to, if known."""
    device = machine.device_name or machine.processor or "an unknown machine"
    text = f"on {device}"
    if machine.threads == 1:
        text += ", 1 thread"
    elif machine.threads:
        text += f", {machine.threads} threads"
    peaks = machine.peak_macs_per_s or {}
    peak_words = [f"{dtype} {count_text(round(peak))}" for dtype, peak in peaks.items() if peak]
    if peak_words:
        text += f"\npeak, mult-adds a second: {', '.join(peak_words)}"
    return text


# --- studies ----------------------------------------------------------------------------------------------------------


def study_view(answer: StudyAnswer, width: int) -> RenderableType:
    """Return a finished study: the answer at a glance, the models on test data, and the next commands.

    Of the sentences of the verdict it has the first one and those of :func:`in_brief`.
    """
    at_a_glance = glance(answer)
    first_sentence = answer.verdict.lines[0]
    parts: list[RenderableType] = [Text(first_sentence, "bold")]
    if at_a_glance is not None:
        parts += [Text(""), fitted(at_a_glance, width), Text("")]
    parts += map(Text, in_brief(answer))

    # What the names mean, before they are used in the tables.
    parts.append(fact_table([*legend(answer, [*answer.rows, *answer.ruled_out]).items()]))
    for table in (study_table(answer), own_scores_table(answer), ruled_out_table(answer)):
        if table.rows:
            heads = [(label.replace(" ", "\n"), "") for label, _ in table.heads]  # a word a line: narrower columns
            parts += [Text(""), fitted(replace(table, heads=heads), width)]

    if answer.next:
        parts += [Text(""), Text("what now:")]
    for purpose, words in next_steps(answer).items():
        parts += [Text(f"# {purpose}"), Text(_command_as_typed(words, width))]
    return Group(*parts)


def planned_study(plan: StudyAnswer, width: int) -> RenderableType:
    """Return the plan of a study: its numbered commands, what is cut to stay within the time, and how long it takes."""
    lines = []
    for step_number, argv in enumerate(plan.steps, 1):
        lines.append(_command_as_typed([f"{step_number}.", "hydractl", *argv], width))
    lines += [f"to stay within the budget, {text}" for text in plan.cut or ()]
    lines.append(f"the study takes about {duration_text(plan.seconds or 0.0)}")
    return Group(*map(Text, lines))


def _command_as_typed(words: Sequence[str], width: int) -> str:
    """Return a command as it is typed in a shell: quoted, in lines of at most ``width`` that end in a backslash.

    A word that is longer than a line has a line of its own.

    Args:
        words: the words of the command.
        width: the width of the terminal in characters.
    """
    finished_lines = []
    line = ""  # the line that is being filled; all but the first are indented by four spaces
    for word in map(shlex.quote, words):
        width_with_word = len(line) + len(word) + 3  # a space before the word, and " \" at the end
        has_words = bool(line.strip())
        if has_words and width_with_word > width:
            finished_lines.append(line)
            line = "   "
        line += f" {word}" if line else word
    return " \\\n".join([*finished_lines, line])
