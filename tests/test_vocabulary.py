"""Commands of pages and scripts have the options that there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hydractl.options.registry import VERBS
from hydractl.options.suggestions import by_flag, names_of_options
from hydractl.options.yaml_files import find_config

ROOT = Path(__file__).resolve().parents[1]
KNOWN = {verb: {*names_of_options([verb], by_flag), "help"} for verb in VERBS}
for switches in KNOWN.values():
    switches |= {f"no-{name}" for name in switches}
"""The options of every verb."""
COMMAND = re.compile(rf"(?:hydractl |`|\n)({'|'.join(VERBS)}) ((?:\\\n|[^\n`|;#])*)")


def files(*patterns: str) -> list[Path]:
    found = []
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if "runs" not in path.parts:
                found.append(path)
    return found


PAGES = files(
    "README.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "docs/numbers/*.md",
    "docs/*.ipynb",
    "Makefile",
    "examples/**/*.md",
    "examples/**/*.yaml",
    "hydractl/options/registry.py",
)
SCRIPTS = files("examples/**/*.py", "benchmarks/**/*.py", "docs/*.py")


def unknown_in_commands(text: str) -> Iterator[str]:
    """Yield the flags of the commands in a text that there are not, each with its verb."""
    for command in COMMAND.finditer(text):
        yield from unknown_among(command[1], re.findall(r" --([a-z][a-z0-9-]*)", f" {command[2]}"))


def unknown_among(verb: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if name not in KNOWN[verb]:
            yield f"{verb} --{name}"


def unknown_in_calls(tree: ast.AST) -> Iterator[str]:
    """Yield the unknown names in calls of Python: of what runs a command by its words, and in commands in its texts."""
    for node in ast.walk(tree):
        words = _words(node)
        if words and words[0] in VERBS:
            yield from unknown_among(words[0], [word[2:] for word in words if word.startswith("--")])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from unknown_in_commands(f"\n{node.value}")


def _words(node: ast.AST) -> list[str]:
    """Return the texts among the arguments of a call, or in a list."""
    items = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def test_commands_of_pages() -> None:
    found = []
    for path in PAGES:
        unknown = unknown_in_commands(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(ROOT)}: {name}" for name in unknown]
    assert found == []


def test_commands_of_scripts() -> None:
    found = []
    for path in SCRIPTS:
        unknown = unknown_in_calls(ast.parse(path.read_text(encoding="utf-8")))
        found += [f"{path.relative_to(ROOT)}: {name}" for name in unknown]
    assert found == []


def test_files_of_options() -> None:
    paths = files("examples/**/hydra.yaml")
    assert paths and [problem for path in paths for problem in find_config(path.parent, None).problems] == []


def test_it_can_fail() -> None:
    assert list(unknown_in_commands("\n$ hydractl study a.st --val v \\\n  --budget 1h | tee")) == ["study --budget"]
    assert list(unknown_in_commands("the option `study --data` was")) == ["study --data"]
    assert list(unknown_in_calls(ast.parse("run('study', 'a.st', '--data', x)"))) == ["study --data"]
    assert list(unknown_in_calls(ast.parse("run('study a.st --data x')"))) == ["study --data"]
    assert list(unknown_in_commands("hydractl prune a.st --data x")) == []
