"""The architecture, held by reading the imports: which folder may use which, and which may use which library.

Every import counts, inside functions and under ``TYPE_CHECKING`` too, and so does a module named by a string, as the
registries do. Imports inside functions are for heavy libraries: the few of our own are counted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import parsed, statements

ROOT = Path(__file__).resolve().parents[1]

# From the top down. A folder (or a module at the root) may import from itself and from those below it.
ROOMS = (
    *(
        "__main__",
        "api",
        "cli",
        "verbs",
        "studies",
        "options",
        "circuit",
        "benchmark",
        "evaluation",
        "methods",
        "training",
        "exports",
        "fusion",
    ),
    *("model", "report", "data", "families", "expressions", "criteria", "metrics", "files"),
    *("heads", "distributed", "jsonio", "log", "errors"),
)
MOST_FILES_AT_THE_ROOT = 6
MOST_IMPORTS_INSIDE_FUNCTIONS = 32

# Where a library may be imported: files, or folders ending in a slash.
LIBRARIES = {
    "typer": ["cli/"],
    "click": [],  # typer carries its own
    "rich": ["cli/", "report/", "api/progress.py"],
    "matplotlib": ["report/"],
    "jinja2": ["report/"],
    "markupsafe": ["report/"],
    "huggingface_hub": ["families/"],
    "timm": ["families/timm.py", "families/timm_eva.py", "families/timm_relative.py", "families/imagenet.py"],
    "transformers": ["families/"],
    "open_clip": ["families/"],
    "pydantic": ["files/"],
    "torchvision": ["families/", "data/torchvision_sets.py", "training/data.py"],
    "datasets": ["data/hub.py"],
    "pyarrow": ["data/"],
    "sklearn": ["data/", "criteria/cahp/head_choice.py"],
    "kmedoids": ["criteria/cahp/head_choice.py"],
    "scipy": ["data/corruptions.py", "metrics/calibrators.py", "metrics/plausibility.py", "report/eval_pictures.py"],
    "torchmetrics": [],  # these two are oracles of the tests
    "pytorch_ood": [],
}
NEEDS_OPERATORS = ("timm", "open_clip", "torchvision")  # see families/torchvision_operators.py
PRINTS = "cli/console.py"


@dataclass(frozen=True)
class Import:
    """One import: the file and line, the module's full name, and how it is asked for."""

    file: str
    line: int
    target: str
    kind: str  # "runtime", "typing" or "string"


@pytest.fixture(scope="module")
def house() -> dict[str, ast.Module]:
    """The files of hydractl."""
    return parsed(ROOT / "hydractl")


def module_name(file: str) -> str:
    """``fusion/runtime.py`` is ``fusion.runtime``, ``fusion/__init__.py`` is ``fusion``, ``__init__.py`` is empty."""
    parts = file.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def naming(tree: ast.Module) -> list[tuple[ast.AST, str]]:
    """The nodes that may name a module, each with whether only a type checker sees it; found once for all rules."""
    found: list[tuple[ast.AST, str]] = []
    rest: list[tuple[ast.AST, str]] = [(tree, "runtime")]
    while rest:
        node, kind = rest.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, kind))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.startswith("hydractl."):
                found.append((node, kind))
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            rest += [(child, "typing") for child in node.body]
            rest += [(child, kind) for child in node.orelse]
        else:
            rest += [(child, kind) for child in ast.iter_child_nodes(node)]
    return found


def imports(files: dict[str, ast.Module]) -> list[Import]:
    """Every import of every file; ``from hydractl import x`` is ``hydractl.x``, whatever x is."""
    modules = {f"hydractl.{module_name(file)}" for file in files if module_name(file)}
    found = []
    for file, tree in files.items():
        for node, kind in naming(tree):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level:
                targets = ["." * node.level + (node.module or "")]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [name if name in modules or node.module == "hydractl" else node.module for name in inside]
            elif isinstance(node, ast.Constant) and node.value in modules:
                targets, kind = [str(node.value)], "string"
            found += [Import(file, getattr(node, "lineno", 0), target, kind) for target in dict.fromkeys(targets)]
    return found


def room(module: str) -> str:
    """``fusion.plan`` stands in ``fusion``."""
    return module.partition(".")[0]


def own_imports(files: dict[str, ast.Module]) -> Iterator[tuple[Import, str, str]]:
    """Every import of one module of the package by another: it, and both names without the package's."""
    for found in imports(files):
        name, target = module_name(found.file), found.target.removeprefix("hydractl.")
        if name and found.target.startswith("hydractl.") and target != name:
            yield found, name, target


def room_violations(files: dict[str, ast.Module]) -> list[str]:
    names = {room(module_name(file)) for file in files if module_name(file)}
    problems = [f"{name}: has no place; give it one in tests/test_layers.py" for name in sorted(names - {*ROOMS})]
    for one in imports(files):
        if one.target.startswith("."):
            problems.append(f"{one.file}:{one.line}: a relative import")
        if one.target in ("hydractl", "hydractl.__version__", "hydractl.load") and one.kind != "string":
            problems.append(f"{one.file}:{one.line}: imports the package, which imports this")
    for found, name, target in own_imports(files):
        here, there = room(name), room(target)
        if there not in ROOMS:
            problems.append(f"{found.file}:{found.line}: imports {found.target}, which has no place")
        elif here in ROOMS and ROOMS.index(there) < ROOMS.index(here):
            problems.append(f"{found.file}:{found.line}: {here} may not import {found.target}")
    return problems


def loops(needs: dict[str, set[str]]) -> list[str]:
    """One line for what imports each other in a circle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return ["import each other: " + ", ".join(sorted({*error.args[1]}))]
    return []


def cycles(files: dict[str, ast.Module]) -> list[str]:
    """Modules that import each other, and folders that do."""
    modules: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for found, name, target in own_imports(files):
        if found.kind != "string":  # a registry's names are imported when they are asked for
            modules.setdefault(name, set()).add(target)
            if room(name) != room(target):
                folders.setdefault(room(name), set()).add(room(target))
    return loops(modules) + loops(folders)


def inner_imports(files: dict[str, ast.Module]) -> list[str]:
    """Imports of our own inside functions, where there are too many; the function of each verb imports its engine."""
    found = [
        f"{file}:{node.lineno}"
        for file, tree in files.items()
        for function in statements(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in statements(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hydractl")
    ]
    return [f"{len(set(found))} imports inside functions"] if len(set(found)) > MOST_IMPORTS_INSIDE_FUNCTIONS else []


def loose_files(files: dict[str, ast.Module]) -> list[str]:
    """Files at the root of the package, where there are too many."""
    loose = [file for file in files if "/" not in file]
    return [f"{len(loose)} files at the root"] if len(loose) > MOST_FILES_AT_THE_ROOT else []


def is_at(file: str, place: str) -> bool:
    """Whether a file is the one at ``place``, or in that folder."""
    return file.startswith(place) if place.endswith("/") else file == place


def library_violations(files: dict[str, ast.Module]) -> list[str]:
    found = imports(files)
    prepared = {one.file for one in found if one.target == "hydractl.families.torchvision_operators"}
    problems = []
    for one in found:
        library, package = one.target.partition(".")[0], f"{one.file.rpartition('/')[0]}/__init__.py"
        places = LIBRARIES.get(library)
        if places is not None and not any(is_at(one.file, place) for place in places):
            problems.append(f"{one.file}:{one.line}: may not import {library}")
        elif library in NEEDS_OPERATORS and one.kind == "runtime" and not prepared & {one.file, package}:
            problems.append(f"{one.file}:{one.line}: imports {library} without hydractl.families.torchvision_operators")
    return problems


def house_violations(files: dict[str, ast.Module]) -> list[str]:
    problems = [f"{file}: name it after what it does" for file in files if "utils" in module_name(file).split(".")]
    for file, tree in files.items():
        problems += [
            f"{file}:{node.lineno}: print outside {PRINTS}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if file != PRINTS
        ]
    return problems


Rule = Callable[[dict[str, ast.Module]], list[str]]
RULES: tuple[Rule, ...] = (
    room_violations,
    cycles,
    inner_imports,
    loose_files,
    library_violations,
    house_violations,
)


@pytest.mark.parametrize("rule", RULES)
def test_hydractl_keeps_the_rule(rule: Rule, house: dict[str, ast.Module]) -> None:
    assert len(house) > 20
    assert rule(house) == []


def test_every_room_exists(house: dict[str, ast.Module]) -> None:
    assert {room(module_name(file)) for file in house} - {""} == {*ROOMS}


MANY = "\n".join(["def f():", *["    from hydractl.errors import E"] * 40])
BAD = {
    ("heads/mask.py", "def f():\n    import hydractl.cli.app"): "heads/mask.py:2: heads may not import hydractl.cli",
    ("metrics/a.py", "if TYPE_CHECKING:\n    from hydractl.fusion.plan import P"): "metrics/a.py:2: metrics may not",
    ("families/b.py", 'M = "hydractl.cli.app"'): "families/b.py:1: families may not import hydractl.cli.app",
    ("verbs/score.py", "from . import heads"): "verbs/score.py:1: a relative import",
    ("verbs/score.py", "from hydractl import load"): "verbs/score.py:1: imports hydractl.load, which has no place",
    ("attic.py", ""): "attic: has no place",
    ("heads/mask.py", "def f():\n    import hydractl.heads.overlap"): "each other: heads.mask, heads.overlap",
    ("files/a.py", "if TYPE_CHECKING:\n    from hydractl.model.source import S"): "import each other: files, model",
    ("verbs/score.py", MANY): "41 imports inside functions",
    ("one.py", ""): "7 files at the root",
    ("verbs/score.py", "import typer"): "verbs/score.py:1: may not import typer",
    ("families/timm.py", "import timm"): "imports timm without hydractl.families.torchvision_operators",
    ("verbs/score.py", "def f():\n    print(1)"): "verbs/score.py:2: print outside cli/console.py",
    ("files/b.py", "import hydractl"): "files/b.py:1: imports the package, which imports this",
    ("data/utils.py", ""): "data/utils.py: name it after what it does",
}


@pytest.mark.parametrize(("bad", "complaint"), BAD.items())
def test_a_bad_tree_is_found(bad: tuple[str, str], complaint: str, tmp_path: Path) -> None:
    good = {
        "__init__.py": "def __getattr__(name):\n    from hydractl.model.source import load",
        **dict.fromkeys(["__main__.py", "distributed.py", "jsonio.py", "log.py", "errors.py"], ""),
        "cli/app.py": "import typer\nfrom hydractl.errors import E",
        "cli/console.py": "print(1)",
        "heads/overlap.py": "if TYPE_CHECKING:\n    from hydractl.heads.mask import Site",
        "families/timm.py": "from hydractl.families.torchvision_operators import declare_operators\nimport timm",
        "model/source.py": 'FAMILIES = "hydractl.families.timm"\nfrom hydractl.files.a import b\nconsole.print(1)',
        "files/a.py": 'text = "hydractl.checkpoint/1"',
        "heads/mask.py": "",
    }
    for file, text in good.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    assert [problem for rule in RULES for problem in rule(parsed(tmp_path))] == []

    (tmp_path / bad[0]).parent.mkdir(exist_ok=True)
    (tmp_path / bad[0]).write_text(bad[1], encoding="utf-8")
    assert complaint in "\n".join(problem for rule in RULES for problem in rule(parsed(tmp_path)))
