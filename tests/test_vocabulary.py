"""No page, script, help text or schema uses a name that an option had before.

The names are those of one table, :data:`hydractl.settings.suggestions.RENAMED`, as far as the verbs have the new ones.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from hydractl.cli.help import verb_help
from hydractl.settings.registry import VERBS, function_of
from hydractl.settings.suggestions import COMMAND_LINE, GONE, RENAMED, is_current
from hydractl.settings.yaml_files import find_config

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"docs/numbers/joint-circuits.md"}
"""What was measured by commands that are gone."""
OLD: dict[str, set[str]] = {}
for _renamed in RENAMED:
    if is_current(_renamed):
        OLD.setdefault(_renamed.verb, set()).add(_renamed.old)
for _verb, _name in GONE:
    if _name not in COMMAND_LINE.names(_verb):
        OLD.setdefault(_verb, set()).add(_name)
OF_OTHERS = {"export", "from"}
"""Names of options that other programs have, and scripts of benchmarks."""
NOWHERE = sorted({name for names in OLD.values() for name in names} - OF_OTHERS - {*COMMAND_LINE.names(None)})
"""Old names that no verb has."""
DOCUMENTS = {"eval-2": ("data", "fit", "val_ood")}
"""Keys that documents had before, by the file of their schema."""


def files(*patterns: str) -> list[Path]:
    found = []
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if str(path.relative_to(ROOT)) not in RECORDS and "runs" not in path.parts:
                found.append(path)
    return found


PAGES = files("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/numbers/*.md", "docs/*.ipynb")
SCRIPTS = files("examples/**/*.py", "benchmarks/**/*.py", "docs/*.py")
OTHERS = files(
    "Makefile", "examples/**/*.md", "examples/**/*.yaml", "docs/schemas/*.json", "hydractl/settings/registry.py"
)
SOURCES = [path for path in files("hydractl/**/*.py") if path.name != "suggestions.py"]

COMMAND = re.compile(rf"(?:hydractl |`|\n)({'|'.join(VERBS)}) ((?:\\\n|[^\n`|;#])*)")


def old_in_commands(text: str) -> Iterator[str]:
    """Yield the old flags of the commands in a text, each with its verb."""
    for command in COMMAND.finditer(text):
        yield from old_among(command[1], re.findall(r"--([a-z][a-z0-9-]*)", command[2]))


def old_among(verb: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if name in OLD.get(verb, ()):
            yield f"{verb} --{name}"


def old_in_calls(tree: ast.AST) -> Iterator[str]:
    """Yield the old names in calls of Python: of ``hydractl.VERB(...)``, and of what runs a command by its words."""
    verbs = {function_of(verb): verb for verb in VERBS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            verb = verbs.get(ast.unparse(node.func).removeprefix("hydractl."))
            keywords = [str(keyword.arg).replace("_", "-") for keyword in node.keywords]
            if verb is not None and ast.unparse(node.func).startswith("hydractl."):
                yield from old_among(verb, keywords)
        words = _words(node)
        if words and words[0] in VERBS:
            yield from old_among(words[0], [word[2:] for word in words if word.startswith("--")])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from old_in_commands(f"\n{node.value}")


def _words(node: ast.AST) -> list[str]:
    """Return the texts among the arguments of a call, or in a list."""
    items = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def old_on_a_page(text: str) -> Iterator[str]:
    """Yield the old names in the commands of a page, and in its Python."""
    yield from old_in_commands(text)
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        try:
            tree = ast.parse(block)
        except SyntaxError:  # an excerpt
            continue
        yield from old_in_calls(tree)


def test_commands_of_pages() -> None:
    found = []
    for path in [*PAGES, *OTHERS]:
        old = old_on_a_page(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(ROOT)}: {name}" for name in old]
    assert found == []


def test_commands_of_scripts() -> None:
    found = []
    for path in SCRIPTS:
        old = old_in_calls(ast.parse(path.read_text(encoding="utf-8")))
        found += [f"{path.relative_to(ROOT)}: {name}" for name in old]
    assert found == []


def test_names_that_no_verb_has_are_nowhere() -> None:
    pattern = re.compile(rf"(?:--|HYDRACTL_)(?:{'|'.join(NOWHERE)})(?![\w-])")
    found = []
    for path in [*PAGES, *OTHERS, *SCRIPTS, *SOURCES]:
        for line in path.read_text(encoding="utf-8").splitlines():
            is_of_the_script = "add_argument(" in line
            if pattern.search(line) and not is_of_the_script:
                found.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert found == []


def test_help_texts() -> None:
    found = []
    for verb, names in OLD.items():
        text = " ".join(verb_help(verb, 100).partition("Examples:")[0].split())
        for name in names:
            before = re.findall(rf"(\S+) --{name}(?![\w-])", text)
            found += [f"{verb}: {word} --{name}" for word in before if word not in VERBS]
    assert found == []


def test_files_of_options() -> None:
    paths = files("examples/**/hydra.yaml")
    assert paths and [problem for path in paths for problem in find_config(path.parent, None).problems] == []


def test_schemas() -> None:
    for name, keys in DOCUMENTS.items():
        schema = json.loads((ROOT / "docs/schemas" / f"{name}.json").read_text(encoding="utf-8"))
        assert set(keys) & set(schema["properties"]) == set(), name


def test_it_can_fail() -> None:
    assert list(old_in_commands("\n$ hydractl study a.st --val v \\\n  --budget 1h | tee")) == ["study --budget"]
    assert list(old_in_commands("the option `study --data` was")) == ["study --data"]
    assert list(old_in_calls(ast.parse("hydractl.study('a.st', data='x')"))) == ["study --data"]
    assert list(old_in_calls(ast.parse("run('study', 'a.st', '--data', x)"))) == ["study --data"]
    assert list(old_in_calls(ast.parse("run('study a.st --data x')"))) == ["study --data"]
    assert list(old_in_commands("hydractl prune a.st --data x")) == []
