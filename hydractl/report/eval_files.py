"""The files that show an eval: claimed before anything is computed, and written from its document."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from hydractl.errors import OutputError
from hydractl.files.atomic import Output, file_path, make_folder, storage_error, write_with
from hydractl.files.eval_answer import EvalAnswer
from hydractl.report.eval_html import render
from hydractl.report.eval_pictures import KINDS, pictures
from hydractl.report.pictures import save_png


@contextlib.contextmanager
def claimed_reports(
    *, html: str | None = None, plots: str | None = None, force: bool = False
) -> Iterator[Mapping[str, Output]]:
    """Claim the outputs of ``--html`` and ``--plots``, by kind, for a ``with`` statement.

    Claiming every file that may be written makes sure, before the computing, that none is lost or overwritten after it.
    A missing folder of pictures is created, and removed again if nothing is put into it. Other files in it stay.

    Args:
        html: the path of the page; None for none.
        plots: the folder of the pictures; None for none.
        force: whether files may be replaced.

    Raises:
        OutputError: a file exists already, or cannot be written.
    """
    path_by_kind: dict[str, Path] = {}
    if html is not None:
        path_by_kind["html"] = file_path(html)

    # On leaving, the stack ends every claim, even if a later one could not be made.
    with contextlib.ExitStack() as stack:
        if plots is not None:
            folder = Path(plots)
            _make_folder(folder, stack)
            path_by_kind |= {kind: folder / f"{kind}.png" for kind in KINDS}
        outputs = {}
        for kind, path in path_by_kind.items():
            outputs[kind] = stack.enter_context(Output(path, force=force))
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
        written.append(write_bytes(outputs["html"], render(answer)))
    if any(kind in outputs for kind in KINDS):
        for kind, picture in pictures(answer).items():
            written.append(write_with(outputs[kind], partial(save_png, picture)))
    return written


def write_bytes(output: Output, content: bytes) -> Path:
    """Write a claimed file, and return its path."""
    return write_with(output, lambda handle: handle.write(content))


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
