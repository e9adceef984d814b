"""The files that an eval is shown as, claimed before anything is computed and written from its document."""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from hydractl.errors import OutputError, UsageError
from hydractl.files.atomic import Output, file_path, make_folder, named_apart, storage_error, write_with
from hydractl.files.eval_answer import EvalAnswer, EvalRow, OodAverage, average_of
from hydractl.files.records import Metrics
from hydractl.report.eval_card import render_card
from hydractl.report.eval_html import render
from hydractl.report.eval_pictures import picture_files, possible_files
from hydractl.report.eval_tables import single_number
from hydractl.report.pictures import save_png
from hydractl.report.texts import shown_name


@dataclass(frozen=True)
class ReportOptions:
    """Where to write what, None for what is not asked for; without ``card_model`` the card is of the last row."""

    html: str | None = None
    plots: str | None = None
    card: str | None = None
    card_model: str | None = None
    openood_csv: str | None = None
    force: bool = False


@dataclass(frozen=True)
class Reports:
    """The claimed outputs by kind, or by file name for pictures; and the number of the row of the card."""

    outputs: Mapping[str, Output]
    card_row: int

    def planned(self) -> list[Path]:
        """List what a dry run names: the single files, and every picture that there may be."""
        outputs = self.outputs.values()
        return [output.path for output in outputs]


@contextlib.contextmanager
def claimed_reports(options: ReportOptions, names: Sequence[str]) -> Iterator[Reports]:
    """Claim the outputs of ``--html``, ``--plots``, ``--card`` and ``--openood-csv`` together.

    Every file that may be written is claimed, so none is lost or overwritten after the computing; the folder of the
    pictures is made where it is missing, and taken away again where nothing is put into it. Other files in that folder
    stay as they are.

    Args:
        options: what to write.
        names: of the rows of the eval, in order.

    Raises:
        OutputError: a file is there already, or cannot be written.
        UsageError: for a card about a row that is not there.
    """
    card_row = _card_row(options, names)
    files = _single_files(options, names)
    with contextlib.ExitStack() as stack:
        outputs = {}
        for kind, path in files.items():
            output = Output(path, force=options.force)
            outputs[kind] = stack.enter_context(output)
        if options.plots is not None:
            folder = Path(options.plots)
            _make_folder(folder, stack)
            for name in possible_files(names):
                output = Output(folder / name, force=options.force)
                outputs[name] = stack.enter_context(output)
        yield Reports(outputs, card_row)


def _single_files(options: ReportOptions, names: Sequence[str]) -> dict[str, Path]:
    """Return the files beside the pictures by kind: page, card, and a table of OpenOOD for each row."""
    files: dict[str, Path] = {}
    if options.html is not None:
        files["html"] = file_path(options.html)
    if options.card is not None:
        files["card"] = file_path(options.card)
    if options.openood_csv is not None:
        path = file_path(options.openood_csv)
        for index, name in enumerate(names):
            path_of_row = path
            if len(names) > 1:
                path_of_row = named_apart(path, name)
            files[_csv_kind(index)] = path_of_row
    return files


def write_reports(answer: EvalAnswer, reports: Reports) -> list[Path]:
    """Write everything that was claimed, from the answer alone.

    Args:
        answer: as eval makes it or :func:`hydractl.report.eval_document.read_eval` reads it.
        reports: claimed for the rows of this answer.

    Returns:
        The files written; a picture without any number to draw is left out.
    """
    outputs = reports.outputs
    written: list[Path] = []
    if "html" in outputs:
        page = render(answer)
        written.append(_write_bytes(outputs["html"], page))
    if "card" in outputs:
        card = render_card(answer, reports.card_row)
        written.append(_write_bytes(outputs["card"], card))
    for index, row in enumerate(answer.models):
        kind = _csv_kind(index)
        if kind in outputs:
            table = openood_csv(row)
            written.append(_write_bytes(outputs[kind], table))
    has_pictures = any(name.endswith(".png") for name in outputs)
    if has_pictures:
        for name, picture in picture_files(answer):
            save = partial(save_png, picture)
            written.append(write_with(outputs[name], save))
    return written


def _write_bytes(output: Output, content: bytes) -> Path:
    """Write a claimed file, and return its path."""

    def write(handle: IO[bytes]) -> None:
        handle.write(content)

    return write_with(output, write)


_MOST_NAMES = 10  # that a hint lists


def _csv_kind(row: int) -> str:
    return f"openood csv {row}"


def _make_folder(folder: Path, stack: contextlib.ExitStack) -> None:
    """Make the folder of the pictures; if made here, it is removed at the end unless something is in it."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--plots is a folder, and {folder} is a file", hint="choose another name")
    if not folder.exists():
        try:
            folder.mkdir()
        except FileNotFoundError:
            hint = make_folder(folder.parent)
            raise OutputError(f"the folder of the output does not exist: {folder.parent}", hint=hint) from None
        except OSError as error:
            raise storage_error(error, folder) from error
        stack.callback(_remove_empty, folder)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # there are pictures in it
        folder.rmdir()


def _card_row(options: ReportOptions, names: Sequence[str]) -> int:
    """Return the number of the row that the card is about: the one that was asked for, else the last.

    Raises:
        UsageError: no row has the name that was asked for.
    """
    wanted = options.card_model
    if options.card is None or wanted is None:
        return len(names) - 1
    if wanted in names:
        return list(names).index(wanted)
    hint = _hint_for_row(wanted, names)
    raise UsageError(f"--card-model {shown_name(wanted)} is no row", hint=hint)


def _hint_for_row(wanted: str, names: Sequence[str]) -> str:
    """Return the row that was meant, where one has a name like it; else the first rows that there are."""
    alike = difflib.get_close_matches(wanted, names, n=1)
    if alike:
        return f"did you mean {shown_name(alike[0])}?"
    first_names = ", ".join(map(shown_name, names[:_MOST_NAMES]))
    hint = f"the rows are: {first_names}"
    if len(names) > _MOST_NAMES:
        hint += ", ..."
    return hint


# --- the table of OpenOOD ---------------------------------------------------------------------------------------------

# What its evaluator calls a metric, and the key of the metric in the answer of an eval.
OPENOOD_COLUMNS = {"FPR@95": "fpr95", "AUROC": "auroc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_trapezoid"}


def openood_csv(row: EvalRow) -> bytes:
    """Return the table of one row as OpenOOD's evaluator writes it (``ood.csv``), to lay beside its leaderboard.

    It has a line for each near set and their mean, each far set and their mean, then sets of no group; in percent.
    Empty where a number is missing: without labels there is no accuracy.

    Yang et al. 2022 (arXiv 2210.07242), Zhang et al. 2023 (arXiv 2306.09301). Their FPR@95 takes OOD as positive, as
    ``fpr95`` does, and their areas under precision-recall curves are by trapezoids. One difference is left:
    scikit-learn's ROC curve, from which they read FPR@95, leaves out points on a straight line, so theirs can be higher
    where many scores are equal.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    titles = ["dataset", *OPENOOD_COLUMNS, "ACC"]
    table.writerow(titles)
    keys = OPENOOD_COLUMNS.values()
    accuracy = _percent(row.id.metrics, "accuracy")
    for name, metrics in _openood_lines(row):
        figures = [_percent(metrics, key) for key in keys]
        table.writerow([name, *figures, accuracy])
    return text.getvalue().encode()


def _openood_lines(row: EvalRow) -> Iterator[tuple[str, Metrics]]:
    """Yield name and metrics of every set, group by group, and behind a group that has sets its mean."""
    averages: dict[str, OodAverage] = {"near": "near_avg", "far": "far_avg"}
    for group in ("near", "far", None):
        has_sets = False
        for name, measured in row.detection.ood.items():
            if measured.group == group:
                has_sets = True
                yield name, measured.metrics
        if has_sets and group is not None:
            means = average_of(row.detection, averages[group])
            yield f"{group}ood", means


def _percent(metrics: Metrics, key: str) -> str:
    """Return a metric in percent to two decimals; empty where it is not known."""
    value = single_number(metrics.get(key))
    if value is None:
        return ""
    percent = 100 * value
    return f"{percent:.2f}"
