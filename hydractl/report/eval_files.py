"""The files that an eval is shown as, claimed before anything is computed and written from its document."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hydractl.errors import OutputError, UsageError
from hydractl.files.atomic import Output, file_path, make_folder, named_apart, storage_error, write_with
from hydractl.report.eval_card import render_card
from hydractl.report.eval_html import render
from hydractl.report.eval_pictures import picture_files, possible_files
from hydractl.report.openood import openood_csv
from hydractl.report.pictures import save_png
from hydractl.report.texts import shown_name


@dataclass(frozen=True)
class ReportOptions:
    """Where to write what, None for what is not asked for; without ``card_model`` the card is of the last row."""

    report: str | None = None
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
        return [output.path for output in self.outputs.values()]


@contextlib.contextmanager
def claimed_reports(options: ReportOptions, names: Sequence[str]) -> Iterator[Reports]:
    """Claim the outputs of ``--report``, ``--plots``, ``--card`` and ``--openood-csv`` together.

    Every file that may be written is claimed, so none is lost or overwritten after the computing; the folder of the
    pictures is made where it is missing, and taken away again where nothing is put into it. Other files in that folder
    stay as they are.

    Raises:
        OutputError: as :class:`hydractl.files.atomic.Output` does, for any of the files.
        UsageError: for a card about a row that is not there.
    """
    card_row = _card_row(options, names)
    files = {
        kind: file_path(path) for kind, path in (("report", options.report), ("card", options.card)) if path is not None
    }
    if options.openood_csv is not None:
        path = file_path(options.openood_csv)
        files |= {_csv_of(i): named_apart(path, name) if names[1:] else path for i, name in enumerate(names)}
    with contextlib.ExitStack() as stack:
        outputs = {kind: stack.enter_context(Output(path, force=options.force)) for kind, path in files.items()}
        if options.plots is not None:
            folder = Path(options.plots)
            _make_folder(folder, stack)
            for name in possible_files(names):
                outputs[name] = stack.enter_context(Output(folder / name, force=options.force))
        yield Reports(outputs, card_row)


def write_reports(document: Mapping[str, Any], reports: Reports) -> list[Path]:
    """Write everything that was claimed, from the document alone.

    Args:
        document: ``hydractl.eval/1``, as eval makes it or :func:`hydractl.report.eval_document.read_eval` reads it.
        reports: claimed for the rows of this document.

    Returns:
        The files written; a picture without any number to draw is left out.
    """

    def write(name: str, draw: Callable[[IO[bytes]], Any]) -> None:
        written.append(write_with(reports.outputs[name], draw))

    written: list[Path] = []
    if "report" in reports.outputs:
        write("report", lambda handle: handle.write(render(document)))
    if "card" in reports.outputs:
        write("card", lambda handle: handle.write(render_card(document, reports.card_row)))
    for i, row in enumerate(document["models"]):
        if _csv_of(i) in reports.outputs:
            write(_csv_of(i), lambda handle, row=row: handle.write(openood_csv(row)))  # type: ignore[misc]
    if any(name.endswith(".png") for name in reports.outputs):
        for name, picture in picture_files(document):
            write(name, lambda handle, picture=picture: save_png(picture, handle))  # type: ignore[misc]
    return written


def _csv_of(row: int) -> str:
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
    if options.card is None or options.card_model is None:
        return len(names) - 1
    if options.card_model not in names:
        near = difflib.get_close_matches(options.card_model, names, n=1)
        known = ", ".join(map(shown_name, names[:10])) + (", ..." if len(names) > 10 else "")
        hint = f"did you mean {shown_name(near[0])}?" if near else f"the rows are: {known}"
        raise UsageError(f"--card-model {shown_name(options.card_model)} is no row", hint=hint)
    return list(names).index(options.card_model)
