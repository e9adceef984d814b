"""The files that show an eval: claimed before anything is computed, and written from its document."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hydractl.errors import OutputError
from hydractl.files.atomic import Output, file_path, make_folder, named_apart, storage_error, write_with
from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.files.results import Metrics
from hydractl.report.eval_html import render
from hydractl.report.eval_pictures import KINDS, pictures
from hydractl.report.eval_tables import metrics_at, single_number
from hydractl.report.pictures import save_png


@dataclass(frozen=True)
class ReportOptions:
    """The files to write; None means that one is not asked for."""

    html: str | None = None
    plots: str | None = None
    openood_csv: str | None = None
    force: bool = False


@contextlib.contextmanager
def claimed_reports(options: ReportOptions, names: Sequence[str]) -> Iterator[Mapping[str, Output]]:
    """Claim the outputs of ``--html``, ``--plots`` and ``--openood-csv``, by kind, for a ``with`` statement.

    Claiming every file that may be written makes sure, before the computing, that none is lost or overwritten after it.
    A missing folder of pictures is created, and removed again if nothing is put into it. Other files in it stay.

    Args:
        options: what to write.
        names: the names of the rows of the eval, in order.

    Raises:
        OutputError: a file exists already, or cannot be written.
    """
    path_by_kind: dict[str, Path] = {}
    if options.html is not None:
        path_by_kind["html"] = file_path(options.html)
    if options.openood_csv is not None:
        path = file_path(options.openood_csv)
        for index, name in enumerate(names):
            # Several rows cannot share a file: the name of the row is added.
            path_by_kind[_csv_kind(index)] = named_apart(path, name) if len(names) > 1 else path

    # On leaving, the stack ends every claim, even if a later one could not be made.
    with contextlib.ExitStack() as stack:
        if options.plots is not None:
            folder = Path(options.plots)
            _make_folder(folder, stack)
            path_by_kind |= {kind: folder / f"{kind}.png" for kind in KINDS}
        outputs = {}
        for kind, path in path_by_kind.items():
            outputs[kind] = stack.enter_context(Output(path, force=options.force))
        yield outputs


def write_reports(answer: EvalAnswer, outputs: Mapping[str, Output]) -> list[Path]:
    """Write every claimed file, and return the paths of the files written.

    Args:
        answer: an answer of eval, e.g. read by :meth:`EvalAnswer.read`.
        outputs: the outputs that were claimed for the rows of this answer, by kind.

    Returns:
        The paths; a picture without any number to draw is not written.
    """
    written: list[Path] = []
    if "html" in outputs:
        written.append(_write_bytes(outputs["html"], render(answer)))
    for index, row in enumerate(answer.models):
        kind = _csv_kind(index)
        if kind in outputs:
            written.append(_write_bytes(outputs[kind], openood_csv(row)))
    if any(kind in outputs for kind in KINDS):
        for kind, picture in pictures(answer).items():
            written.append(write_with(outputs[kind], partial(save_png, picture)))
    return written


def _write_bytes(output: Output, content: bytes) -> Path:
    """Write a claimed file, and return its path."""
    return write_with(output, lambda handle: handle.write(content))


def _csv_kind(row: int) -> str:
    return f"openood csv {row}"


def _make_folder(folder: Path, stack: contextlib.ExitStack) -> None:
    """Create the folder of the pictures if it is missing; ``stack`` removes a new folder at the end if it is empty.

    Raises:
        OutputError: a file has this name, or the folder cannot be created.
    """
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
    with contextlib.suppress(OSError):  # it has pictures in it, and stays
        folder.rmdir()


# --- the table of OpenOOD ---------------------------------------------------------------------------------------------

# The name of a metric in OpenOOD's evaluator, and its key in the answer of an eval.
OPENOOD_COLUMNS = {"FPR@95": "fpr95", "AUROC": "auroc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_trapezoid"}


def openood_csv(row: EvalRow) -> bytes:
    """Return the table of one row in the form of OpenOOD's evaluator (``ood.csv``), to compare it with its leaderboard.

    It has a line for each near set and for their mean, for each far set and for their mean, and then for each set
    without a group. Numbers are in percent. A cell is empty if its number is missing, e.g. the accuracy without labels.

    Yang et al. 2022 (arXiv 2210.07242), Zhang et al. 2023 (arXiv 2306.09301). Like ``fpr95``, their FPR@95 takes OOD as
    positive; their areas under precision-recall curves are by trapezoids. One difference is left: they read FPR@95 from
    scikit-learn's ROC curve, which leaves out points on a straight line, so theirs can be higher if many scores are
    equal.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["dataset", *OPENOOD_COLUMNS, "ACC"])
    accuracy = _percent(row.id.metrics, "accuracy")
    for name, metrics in _openood_lines(row):
        table.writerow([name, *(_percent(metrics, key) for key in OPENOOD_COLUMNS.values()), accuracy])
    return text.getvalue().encode()


def _openood_lines(row: EvalRow) -> Iterator[tuple[str, Metrics]]:
    """Yield the name and the metrics of every OOD set, group by group, and after each group with sets its mean."""
    for group in ("near", "far", None):
        sets = {name: measured.metrics for name, measured in row.ood.items() if measured.group == group}
        yield from sets.items()
        if sets and group is not None:
            yield f"{group}ood", metrics_at(row, [f"{group}_avg"])


def _percent(metrics: Metrics, key: str) -> str:
    """Return a metric in percent with two decimals; empty if it is not known."""
    value = single_number(metrics.get(key))
    return "" if value is None else f"{100 * value:.2f}"
