"""Progress: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hydractl.cli.console import ConsoleLog, Pace, duration, speed
from hydractl.cli.live import Bars


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all tasks."""
    clock = Clock()
    monkeypatch.setattr("hydractl.cli.console.time", clock)
    return clock


def test_at_most_a_line_every_five_seconds_and_one_at_the_end(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ConsoleLog().progress("scoring", 100, "samples") as progress:
        for step in range(100):
            clock.now += 0.13
            progress.advance(note=f"step {step}")
    assert capsys.readouterr().err == (
        "scoring: 39/100 samples, 5.1 s, 7.7 samples/s, about 8 s left, step 38\n"
        "scoring: 78/100 samples, 10.1 s, 7.7 samples/s, about 3 s left, step 77\n"
        "scoring: 100/100 samples, 13.0 s, 7.7 samples/s\n"
    )


def test_without_a_total(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with ConsoleLog().progress("reading", None, "files") as progress:
        clock.now += 6
        progress.advance(7)
    assert capsys.readouterr().err == "reading: 7 files, 6.0 s\nreading: 7 files, 6.0 s\n"


def test_a_failed_task_does_not_say_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), ConsoleLog().progress("x", 3, "steps"):
        raise ValueError
    assert capsys.readouterr().err == ""


def test_quiet(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    log = ConsoleLog(quiet=True)
    with log.progress("x", 3, "steps") as progress:
        clock.now += 60
        progress.set_total(2)
        progress.advance()
    log.info("nothing")
    assert capsys.readouterr().err == ""


def test_a_dumb_terminal_has_no_bar(
    capsys: pytest.CaptureFixture[str], terminal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    terminal("stderr")
    monkeypatch.setenv("TERM", "dumb")
    with ConsoleLog().progress("x", 1, "steps") as progress:
        progress.advance()
    assert capsys.readouterr().err == "x: 1/1 steps, 0.0 s\n"


@pytest.mark.fault(73)
def test_work_of_no_units_is_no_task(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleLog().progress("running the other members", 0, "samples"):
        pass
    assert capsys.readouterr().err == ""


def bars(width: int, *tasks: dict[str, Any]) -> list[str]:
    """The lines of the bars on a terminal of that width."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    found = Bars()
    found._screen = console
    for task in tasks:
        about = {"unit": "samples", "note": ""}
        shown = SimpleNamespace(**(about | task))
        found.add_task(shown.description, total=shown.total, completed=task.get("completed", 0), of=shown)
    for renderable in found.get_renderables():
        console.print(renderable)
    return console.file.getvalue().splitlines()


LONG = {
    "description": "single: builtin:digits/test",
    "total": 5000,
    "note": "loss 0.1234, val accuracy 0.8712",
    "speed": "1,234 samples/s",
    "time_left": "12 min left",
}


@pytest.mark.fault(73)
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_what_a_line_does_not_hold_is_left_out_and_no_word_is_cut(width: int) -> None:
    (line,) = bars(width, LONG)
    assert line.split()[:2] == LONG["description"].split()
    rest = line.split(LONG["description"])[1].replace("━", "")
    known = ["0/5000", "samples", LONG["speed"], LONG["time_left"], LONG["note"]]
    shown = [text for text in known if text in rest]
    assert " ".join(rest.split()) == " ".join(shown)
    assert shown[:2] == known[:2] and len(line) <= width
    assert (shown == known) == (width > 100)


def test_the_bar_is_shortened_before_the_note_goes() -> None:
    ended = LONG | {"completed": LONG["total"]}  # without colours the rest of a bar is blank
    lines = {width: bars(width, ended)[0] for width in (120, 130, 160)}
    assert {width: line.count("━") for width, line in lines.items()} == {120: 8, 130: 20, 160: 40}
    assert all(LONG["note"] in line for line in lines.values())


LIVE = """
import sys
from hydractl.cli.console import ConsoleLog
log = ConsoleLog()
with log.progress("circuit", 100, "evaluations") as progress:
    for step in range(1, 13):
        log.info(f"circuit: step {step}/12  removed at blocks.{step}.attn[red]  score 0.1111")
        progress.advance(5)
        if step == 11:
            log.info("a line above\\x1b[2J")
    progress.set_total(80)
    with log.progress("inner", 2, "parts") as inner:
        inner.advance()
        log._bars.refresh()
        sys.stderr.write("FRAME")
"""


def on_a_terminal(columns: int, lines: int, **variables: str) -> str:
    """What the program LIVE writes to a terminal of that size."""
    controller, terminal = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color"}
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), **size, **variables}
    process = subprocess.Popen([sys.executable, "-c", LIVE], stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # how Linux says that the other end was closed
            break
        if not part:
            break
        written += part
    os.close(controller)
    assert process.wait(timeout=30) == 0
    return written.decode("utf-8").replace("\r\n", "\n")


def frame(written: str) -> list[str]:
    """The lines that the live part showed when the program wrote FRAME."""
    before = written.partition("FRAME")[0]
    # Each drawing begins with moving the cursor up and ends without a new line.
    last = re.split(r"\x1b\[1A\x1b\[2K|\x1b\[2K", before)[-1]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", last).splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 24), (80, 4)])
def test_lines_above_the_live_bars(columns: int, lines: int) -> None:
    written = on_a_terminal(columns, lines)
    shown = frame(written)
    assert re.search(r"^circuit ━.* 60/80 +evaluations", shown[-2]) and re.search(r"^inner +━.* 1/2 +parts", shown[-1])
    assert max(map(len, shown[-2:])) <= columns
    # The bars go away at the end, and leave what was said and every row.
    before, _, rest = written.partition("FRAME")
    assert rest.count("\x1b[1A\x1b[2K") >= 1 and re.search(r"circuit: 60/80 evaluations, \d\.\d s\n$", rest)
    for step in range(1, 13):
        assert f"circuit: step {step}/12  removed at blocks.{step}.attn[red]  score 0.1111\n" in before
    assert "a line above\\x1b[2J\n" in before
    assert "\x1b[?25l" in written and written.count("\x1b[?25h") == 1  # the cursor is hidden, and shown again


def test_live_bars_without_colours() -> None:
    written = on_a_terminal(80, 24, NO_COLOR="1")
    assert "12/12" in written and not re.search(r"\x1b\[[0-9;]*3[0-9]", written)
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", on_a_terminal(80, 24)), "else the line above proves nothing"


# --- time left --------------------------------------------------------------------------------------------------------


def test_resumed_work_took_no_time() -> None:
    pace = Pace()
    pace.mark(0.0, 4000)
    assert pace.left(0.0, 5000) is None
    pace.mark(10.0, 4050)
    assert pace.left(10.0, 5000) == pytest.approx(190)


def test_the_time_left_counts_down_from_the_last_mark() -> None:
    pace = Pace()
    pace.mark(0.0, 0)
    pace.mark(90.0, 10)
    pace.mark(100.0, 20)
    assert pace.left(100.0, 120) == 500
    assert pace.left(150.0, 120) == 450
    assert pace.left(1000.0, 120) == 0


def test_an_expected_time_outweighs_a_first_unit_that_took_long_and_not_the_pace_of_many() -> None:
    """A study is expected to take 400 s. Its first percent has what is done once, and took 20 s."""
    alone, pace = Pace(), Pace()
    pace.expected = 400.0
    for one in (alone, pace):
        one.mark(0.0, 0)
        one.mark(20.0, 1)
    left, of_first_unit = pace.left(20.0, 100), alone.left(20.0, 100)
    assert of_first_unit == 99 * 20 and left == pytest.approx(99 * (80 + 20) / (20 + 1))
    for percent in range(2, 81):  # from there on twice as long as expected
        pace.mark(20.0 + 8 * percent, percent)
    assert pace.left(660.0, 100) == pytest.approx(20 * 8, rel=0.3)


def test_what_says_nothing_about_the_time_left() -> None:
    pace = Pace()
    assert pace.left(0.0, 10) is None
    pace.mark(0.0, 1)
    pace.mark(0.0, 5)
    assert pace.left(0.0, 10) is None
    pace.mark(3.0, 5)
    assert pace.left(3.0, None) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (119.4, "119 s"), (120, "0:02:00"), (7384.6, "2:03:05")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_speed() -> None:
    pace = Pace()
    assert pace.rate() is None
    for second in range(4):
        pace.mark(10.0 + 2 * second, 30 * second)
    assert pace.rate() == 15.0
    assert [speed(x, "samples") for x in (0.26, 9.94, 10.4, 1234.5)] == [
        "0.3 samples/s",
        "9.9 samples/s",
        "10 samples/s",
        "1,234 samples/s",
    ]
