"""What goes to standard output, what to standard error, and what never to a terminal."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hydractl.cli.answer import Answer, table_text
from hydractl.cli.console import clean
from hydractl.verbs.outcome import Outcome
from tests.answers import result_of

Run = Callable[..., Any]
PRUNE = ("prune", "vit.st", "--method", "random", "--keep", "8")
EVIL = "a\x1b[31mred\x07\x9b0m\u202eevil\nline"
SPELT = "a\\x1b[31mred\\x07\\x9b0m\\u202eevil\\x0aline"


def talkative(settings: Any, log: Any) -> Outcome:
    """A verb that says everything everywhere."""
    print("a library prints")
    warnings.warn("a library warns", stacklevel=1)
    log.info("some information")
    log.detail("a detail")
    log.warn("mind this")
    with log.progress("working", 3, "samples") as progress:
        for _ in range(3):
            progress.advance()
    return Outcome(result_of({"schema": "test/1", "path": "a.st"}), files=[Path("a.st"), Path("a.mask.json")])


def test_json_is_the_whole_of_standard_output(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("prune", talkative)
    result = hydractl(*PRUNE, "--json")
    assert result.out == '{\n  "schema": "test/1",\n  "path": "a.st"\n}\n'
    for said in ("a library prints", "some information", "warning: mind this", "working: 3/3 samples", "wrote a.st"):
        assert said in result.err
    assert "a detail" not in result.err
    assert "a library warns" not in result.err


def test_a_file_verb_prints_its_paths(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("prune", talkative)
    result = hydractl(*PRUNE)
    assert result.out == "a.st\na.mask.json\n"
    assert "wrote" not in result.err


def test_a_file_verb_prints_its_table_on_a_terminal(hydractl: Run, fake_verb: Run, terminal: Run) -> None:
    fake_verb("prune", talkative)
    terminal("stdout")
    result = hydractl(*PRUNE)
    assert result.out == "schema: test/1\npath: a.st\n"
    assert "wrote a.st\nwrote a.mask.json\n" in result.err


def test_a_plan_is_printed_though_no_file_is_written(hydractl: Run, fake_verb: Run) -> None:
    fake_verb(
        "prune", lambda settings, log: Outcome(result_of({"plan": {"keep": settings.keep, "dry": settings.dry_run}}))
    )
    assert hydractl(*PRUNE, "--dry-run").out == "plan:\n  keep: 8\n  dry: true\n"


def test_a_measuring_verb_prints_its_table_always(hydractl: Run, fake_verb: Run) -> None:
    fake_verb(
        "bench", lambda settings, log: Outcome(result_of({"rows": [{"name": "m", "ms": 1.5}]}), files=[Path("b.json")])
    )
    result = hydractl("bench", "vit.st")
    assert result.out == "rows:\n- name: m\n  ms: 1.5\n"
    assert result.err == "wrote b.json\n"


def test_print_document(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("score", lambda settings, log: Outcome(result_of({"name": "é"})))
    assert hydractl("score", "vit.st", "--method", "random", "-o", "-").out == '{\n  "name": "é"\n}\n'


def test_quiet_and_verbose(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("prune", talkative)
    assert hydractl(*PRUNE, "-q").err == "a library prints\nwarning: mind this\n"
    said = hydractl(*PRUNE, "-v").err
    assert "a detail\n" in said
    assert "UserWarning: a library warns\n" in said
    assert "MODEL vit.st (flag)\n" in said
    assert "--keep 8 (flag)\n" in said
    assert "--samples 512 (default)\n" in said
    assert "--data not given (default)\n" in said
    assert "--limit all (default)\n" in said


def test_an_unknown_variable_is_warned_about(hydractl: Run, fake_verb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_verb("prune")
    monkeypatch.setenv("HYDRACTL_KEP", "3")
    expected = "warning: the environment variable HYDRACTL_KEP is not read by hydractl; did you mean HYDRACTL_KEEP?\n"
    assert hydractl(*PRUNE).err == expected


@pytest.mark.fault(40)
def test_control_characters_never_reach_a_person(hydractl: Run, fake_verb: Run, terminal: Run) -> None:
    def run(settings: Any, log: Any) -> Outcome:
        log.warn(EVIL)
        with log.progress(EVIL, 1, EVIL):
            pass
        return Outcome(result_of({EVIL: EVIL, "list": [EVIL]}), unmet=[EVIL])

    fake_verb("prune", run)
    terminal("stdout")
    result = hydractl(*PRUNE)
    assert result.out == f"{SPELT}: {SPELT}\nlist:\n- {SPELT}\n"
    assert result.err.splitlines()[0] == f"warning: {SPELT}"
    assert result.err.splitlines()[1].startswith(f"{SPELT}: 0/1 {SPELT}, ")
    assert result.err.splitlines()[2] == f"error: requirement not met: {SPELT}"
    as_json = hydractl(*PRUNE, "--json").out
    assert json.loads(as_json) == {EVIL: EVIL, "list": [EVIL]}
    assert clean(as_json) == as_json.replace("\n", "\\x0a")


@pytest.mark.fault(40)
def test_rich_markup_in_data_is_text(monkeypatch: pytest.MonkeyPatch, hydractl: Run, fake_verb: Run) -> None:
    from rich.table import Table

    import hydractl.report.terminal as tables

    def render(document: Any, width: int) -> Table:
        table = Table("name", box=None)
        table.add_row(document.name)
        return table

    monkeypatch.setattr(tables, "render", render)
    fake_verb("bench", lambda settings, log: Outcome(result_of({"name": "[red]x[/red] :smile:"})))
    assert "[red]x[/red] :smile:" in hydractl("bench", "vit.st").out


@pytest.mark.parametrize("no_color", [False, True])
def test_no_color(
    no_color: bool, monkeypatch: pytest.MonkeyPatch, hydractl: Run, fake_verb: Run, terminal: Run
) -> None:
    from rich.text import Text

    import hydractl.report.terminal as tables

    monkeypatch.setattr(tables, "render", lambda document, width: Text("red", style="red"))
    fake_verb("bench")
    terminal("stdout")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    assert ("\x1b[31m" in hydractl("bench", "vit.st").out) is not no_color


def test_a_pipe_has_no_colors_even_if_forced(monkeypatch: pytest.MonkeyPatch, hydractl: Run, fake_verb: Run) -> None:
    from rich.text import Text

    import hydractl.report.terminal as tables

    monkeypatch.setattr(tables, "render", lambda document, width: Text("red", style="red"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    fake_verb("bench")
    assert hydractl("bench", "vit.st").out == "red\n"


def test_a_table_that_fails_does_not_lose_the_answer(
    monkeypatch: pytest.MonkeyPatch, hydractl: Run, fake_verb: Run
) -> None:
    import hydractl.report.terminal as tables

    def render(document: Any, width: int) -> Any:
        raise KeyError("rows")

    monkeypatch.setattr(tables, "render", render)
    fake_verb("bench")
    result = hydractl("bench", "vit.st")
    assert (result.code, result.out) == (0, "schema: test/1\nanswer: 42\n")
    assert result.err == "warning: the table could not be drawn (KeyError: 'rows')\n"


def test_an_ascii_terminal_gets_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Answer(stream).table(result_of({"name": "é"}))
    assert stream.buffer.getvalue() == b"name: \\xe9\n"
    assert capsys.readouterr().err == ""


@pytest.mark.fault(35, 45)
def test_a_file_name_that_is_not_utf8_is_printed_as_it_is(
    fake_verb: Run, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from hydractl.cli.app import main

    fake_verb("prune", lambda settings, log: Outcome(result_of({"f": "x\udcff"}), files=[Path("x\udcff.st")]))
    main(PRUNE)
    assert capfdbinary.readouterr().out == b"x\xff.st\n"
    main([*PRUNE, "--json"])
    assert json.loads(capfdbinary.readouterr().out) == {"f": "x\udcff"}


def test_a_result_without_a_table_is_shown_as_yaml() -> None:
    document = {"a": None, "b": True, "c": {}, "d": [1, 2.5], "e": {"f": {"g": [[1], []]}}, "h": "x\u2028y"}
    text = table_text(result_of(document))
    assert text.startswith("a: null\nb: true\nc: {}\nd:\n- 1\n- 2.5\n") and "\u2028" not in text
    assert yaml.safe_load(text) == {**document, "h": "x\\u2028y"}
