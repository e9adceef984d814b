"""The commands of all pages, and those of the benchmarks, are taken by today's option parsers."""

from __future__ import annotations

import argparse
import io
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hydractl.cli.answer import Answer
from hydractl.cli.app import _parse
from hydractl.options.registry import VERBS
from tests.calls import checked

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
PAGES = [*sorted((ROOT / "docs" / "numbers").glob("*.md")), ROOT / "benchmarks" / "README.md"]
OTHER_PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PROGRAMS = ("cd", "seq", "make", "nvidia-smi")
PACKAGE = tomllib.loads((ROOT / "examples" / "more_methods" / "pyproject.toml").read_text(encoding="utf-8"))
ROWS_OF_THE_PACKAGE = PACKAGE["project"]["entry-points"]["hydractl.methods"].keys()
PASSED_ON = {
    "--search": ["extract-circuit", "MODEL", "--val", "VAL", "--ood-val", "OOD", "--budget", "1"],
    "--study": ["study", "MODEL", "-o", "FOLDER"],
    "--evaluation": ["eval", "MODEL", "--test", "TEST"],
}
"""Options of scripts whose value is options of a verb -> the start of that command."""


class Parsed(Exception):
    """The parser of a script has taken its arguments."""


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of every command of a piece of shell code, with its variables filled in."""
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        for command in line.split(" && "):
            words = shlex.split(re.sub(r"\$(\w+)", lambda name: variables[name[1]], command), comments=True)
            if not words:
                continue
            name, equals, value = words[0].partition("=")
            if equals and len(words) == 1:
                variables[name] = value
                continue
            while "=" in words[0]:  # set for this command alone
                del words[0]
            yield words


def pages_commands() -> list[tuple[str, list[str]]]:
    commands = []
    for page in PAGES:
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        commands += [(page.stem, words) for block in blocks for words in commands_of(block)]
    for script in BENCHMARKS:
        lines = re.findall(r"^    ((?:\w+=\S+ )?python .*)$", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for line in lines:
            line = re.sub(r" \[.*", "", line)  # as in a usage line
            commands += [(script.stem, words) for words in commands_of(line)]
    return commands


def commands_in_scripts(text: str) -> Iterator[list[str]]:
    """Yield the words of the hydractl commands in a page's shell blocks; a loop has the first of its values."""
    variables: dict[str, str] = {}
    for block in re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for name, value in re.findall(r"\bfor (\w+) in ([^\s;]+)", line):
                variables[name] = value
            for name, _, value in re.findall(r"^(\w+)=(['\"])(.*)\2$", line):
                variables[name] = value
            for command in re.findall(r"\bhydractl ([^;]*)", line.partition(" && ")[0]):
                alone = re.split(r" [|>&](?: |$)", command)[0]
                filled = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[1]), alone)
                words = shlex.split(filled, comments=True)
                if words and words[0] in VERBS:
                    yield words


def test_the_commands_of_other_pages_are_those_of_today(tmp_path: Path) -> None:
    checked = 0
    for page in OTHER_PAGES:
        for words in commands_in_scripts(page.read_text(encoding="utf-8")):
            parse_verb(words, tmp_path)
            checked += 1
    assert checked > 100


def parse_verb(words: list[str], folder: Path) -> None:
    """Read a command line up to its settings."""
    request = _parse(words, Answer(io.StringIO()))
    assert request is not None
    checked(request.verb, request.given, {}, folder)


def parse_script(script: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Run a script up to where it has read its arguments."""
    parse = argparse.ArgumentParser.parse_args
    asked: list[argparse.Namespace] = []

    def stop(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> NoReturn:
        asked.append(parse(parser, *args, **options))
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", [str(script), *words])
        patch.syspath_prepend(str(script.parent))
        patch.syspath_prepend(str(ROOT / "examples"))
        with pytest.raises(Parsed):
            runpy.run_path(str(script), run_name="__main__")
    return asked[0]


def script_of(path: str) -> Path:
    """The file of ``python PATH``: from the root, or behind a ``cd`` from there."""
    name = path.removeprefix("../")
    return ROOT / name if (ROOT / name).is_file() else ROOT / "examples" / "comparison" / name


def without_rows_of_the_package(words: list[str]) -> list[str]:
    """The command without the rows of ``examples/more_methods/``, which is not installed here."""
    if "--rows" not in words:
        return words
    place = words.index("--rows") + 1
    rows = [row for row in words[place].split(",") if row not in ROWS_OF_THE_PACKAGE]
    return [*words[:place], ",".join(rows), *words[place + 1 :]]


def check_command(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == "hydractl":
        parse_verb(without_rows_of_the_package(words[1:]), folder)
    elif words[:2] == ["python", "-c"]:
        compile(words[2], "command", "exec")
    elif words[0] == "python":
        script = script_of(words[1])
        if "parse_args" not in script.read_text(encoding="utf-8"):  # it reads nothing but names of files
            return
        parse_script(script, words[2:], monkeypatch)
        for option, start in PASSED_ON.items():
            if option in words:
                parse_verb([*start, *shlex.split(words[words.index(option) + 1])], folder)
    else:
        assert words[0] in OTHER_PROGRAMS


def refused(commands: Iterable[tuple[str, list[str]]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is not taken of these commands, each with the place where it stands."""
    problems = []
    for place, words in commands:
        try:
            check_command(words, folder, monkeypatch)
        except (Exception, SystemExit) as error:
            problems.append(f"{place}: {shlex.join(words)}: {type(error).__name__}: {error}")
    return problems


COMMANDS = pages_commands()


def test_the_commands_of_all_pages_are_those_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(COMMANDS, tmp_path, monkeypatch) == []


def test_every_way_of_the_ensembles_costs_is_a_command_of_today(tmp_path: Path) -> None:
    ways = runpy.run_path(str(ROOT / "benchmarks" / "ensemble_cost.py"))["ways"]()
    assert len(ways) > 10
    for commands in ways.values():
        for words in commands:
            parse_verb(list(words), tmp_path)


def test_commands_are_read_as_a_shell_reads_them() -> None:
    text = "A='x y'\ncd there && B=1 run \"$A\" \\\n  --last   # not this\n"
    assert list(commands_of(text)) == [["cd", "there"], ["run", "x y", "--last"]]


def test_there_are_commands() -> None:
    assert {words[0] for _, words in COMMANDS} >= {"hydractl", "python"}
    assert len(COMMANDS) > 40
    assert {page for page, _ in COMMANDS} >= {script.stem for script in BENCHMARKS}
