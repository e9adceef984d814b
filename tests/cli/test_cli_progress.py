"""Progress: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hydractl.cli.console import ConsoleLog


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_at_most_a_line_every_five_seconds_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ConsoleLog(clock=clock).progress("scoring", 100, "samples") as progress:
        for step in range(100):
            clock.now += 0.13
            progress.advance(note=f"step {step}")
    assert capsys.readouterr().err == (
        "scoring: 39/100 samples, 5.1 s, about 8 s left, step 38\n"
        "scoring: 78/100 samples, 10.1 s, about 3 s left, step 77\n"
        "scoring: 100/100 samples, 13.0 s\n"
    )


def test_without_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ConsoleLog(clock=clock).progress("reading", None, "files") as progress:
        clock.now += 6
        progress.advance(7)
    assert capsys.readouterr().err == "reading: 7 files, 6.0 s\nreading: 7 files, 6.0 s\n"


def test_a_failed_task_does_not_say_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), ConsoleLog().progress("x", 3, "steps"):
        raise ValueError
    assert capsys.readouterr().err == ""


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    log = ConsoleLog(quiet=True, clock=clock)
    with log.progress("x", 3, "steps") as progress:
        clock.now += 60
        progress.advance()
    log.info("nothing")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], terminal: Callable[..., Any]) -> None:
    terminal("stderr")
    log = ConsoleLog()
    with log.progress("[outer]", 2, "steps") as outer:
        with log.progress("inner", 2, "parts") as inner:
            inner.advance(2)
        outer.advance(2, note="head 3")
        log.info("a line above the bar\x1b[2J")
    out, err = capsys.readouterr()
    assert out == ""
    assert "\x1b[?25l" in err and err.count("\x1b[?25h") == 1  # the cursor is hidden, and shown again
    assert "a line above the bar\\x1b[2J" in err
    assert "[outer]" in err
    assert err.splitlines()[-1].startswith("[outer]: 2/2 steps, ") or "[outer]: 2/2 steps, " in err


def test_a_dumb_terminal_has_no_bar(
    capsys: pytest.CaptureFixture[str], terminal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal("stderr")
    monkeypatch.setenv("TERM", "dumb")
    with ConsoleLog(clock=Clock()).progress("x", 1, "steps") as progress:
        progress.advance()
    assert capsys.readouterr().err == "x: 1/1 steps, 0.0 s\n"
