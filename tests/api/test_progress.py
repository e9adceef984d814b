"""Progress bars of calls in Python: shown where somebody looks, silenced by one call."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from rich.console import Console

import hydractl
from hydractl.api import progress
from hydractl.cli import live
from tests.pico import SMALL

DATA = (np.random.default_rng(0).integers(0, 256, (10, 16, 16, 3), dtype=np.uint8), np.arange(10) % 5)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What bars write, on a terminal of 200 columns."""
    screen = io.StringIO()

    def console(stderr: bool, **how: bool) -> Console:
        assert stderr  # standard output is the program's own
        return Console(file=screen, force_terminal=True, width=200, **how)

    for module in (progress, live):
        monkeypatch.setattr(module, "Console", console)
    yield screen
    hydractl.show_progress(None)


def draw(log: progress.PythonLog) -> None:
    """Draw the bars now, and not only with the next tick of their clock."""
    assert log._bars is not None
    log._bars.refresh()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bars_are_shown_when_they_are_asked_for(terminal: io.StringIO) -> None:
    model = hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL}")
    hydractl.score(model, method="taylor", data=DATA)
    assert terminal.getvalue() == ""  # neither a notebook nor a prompt
    hydractl.show_progress()
    hydractl.score(model, method="taylor", data=DATA)
    assert "/10" in terminal.getvalue()
    assert "samples" in terminal.getvalue()


def test_a_prompt_shows_bars_and_false_silences_them(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    log = progress.PythonLog()
    with log.progress("a task", 3, "steps") as bar:
        bar.advance(2, "loss 0.5")
        draw(log)
    assert "a task" in terminal.getvalue()
    assert "loss 0.5" in terminal.getvalue()
    hydractl.show_progress(False)
    before = terminal.getvalue()
    with log.progress("a task", 3, "steps") as bar:
        bar.advance(2)
    assert terminal.getvalue() == before


def test_a_part_of_a_task_has_a_bar_of_its_own_that_goes_with_it(terminal: io.StringIO) -> None:
    hydractl.show_progress()
    log = progress.PythonLog()
    with log.progress("the whole", None, "rounds") as whole:
        with log.progress("a part", 2, "samples") as part:
            part.advance(2)
            draw(log)
        whole.set_total(1)
        whole.advance()
        draw(log)
    last_frame = terminal.getvalue().rsplit("the whole", 1)[1]
    assert "a part" in terminal.getvalue()
    assert "a part" not in last_frame
    assert "1/1" in last_frame


def test_a_warning_is_a_python_warning_and_no_line_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = progress.PythonLog(str.upper)
    with pytest.warns(UserWarning, match="TOO FEW SAMPLES"):
        log.warn("too few samples")
    assert capsys.readouterr().err == ""
    assert log.warnings == ["too few samples"]
