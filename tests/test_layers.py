"""The architecture, held by reading the imports: which module may use which, and which may use which library.

Every import counts, inside functions and under ``TYPE_CHECKING`` too, and so does a module named by a string, as the
registries do. Only the search for cycles leaves the last two out: they are what a cycle is broken with.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the top down. A module may import from its own layer and from those below. The longest name decides.
LAYERS = (
    ("the command line", ["cli", "__main__"]),
    ("verbs", ["score", "prune", "finetune", "evaluate", "bench", "circuit", "fusion"]),
    (
        "parts of verbs",
        [
            *["criteria", "analysis", "baselines", "training", "metrics", "cost", "cost_formula", "timing", "report"],
            *["predictions", "select", "matching"],
        ],
    ),
    (
        "models and data",
        [
            *["fusion.runtime", "fusion.assembly", "fusion.chain", "fusion.prompted", "fusion.stored"],
            *["models", "weights", "families", "slicing", "data"],
        ],
    ),
    (
        "files and heads",
        [
            *["checkpoint", "description", "seen", "members", "provenance", "machine", "_torchvision"],
            *["heads", "overlap", "projections", "stacking", "attention", "per_member", "atomic", "processes"],
        ],
    ),
    ("ground", ["settings", "requirements", "outcome", "errors", "log"]),
)

# Where a library may be imported: files, or folders ending in a slash.
LIBRARIES = {
    "typer": ["cli/"],
    "click": [],  # typer carries its own
    "rich": ["cli/", "report/"],
    "matplotlib": ["report/bench_plot.py", "report/chart_png.py"],
    "timm": ["families/timm_vit.py", "families/imagenet.py"],
    "transformers": ["families/"],
    "open_clip": ["families/"],
    "torchvision": ["families/", "data/torchvision_sets.py", "training/augment.py"],
    "datasets": ["data/hub_sets.py"],
    "pyarrow": ["data/"],
    "sklearn": ["data/", "criteria/separability.py", "analysis/centroids.py"],
    "kmedoids": ["criteria/cahp.py"],
    "scipy": [],  # comes with scikit-learn, which is an extra
    "tensorboard": [],  # torch's own torch.utils.tensorboard imports it
    "torchmetrics": [],  # these two are oracles of the tests
    "pytorch_ood": [],
}
NEEDS_OPERATORS = ("timm", "open_clip", "torchvision")  # see hydractl/_torchvision.py
PRINTS = "cli/console.py"


@dataclass(frozen=True)
class Import:
    """One import: the file and line, the module's full name, and how it is asked for."""

    file: str
    line: int
    target: str
    kind: str  # "runtime", "typing" or "string"


def trees(package: Path) -> dict[str, ast.Module]:
    """The parsed files of a package, by path relative to it."""
    files = sorted(package.rglob("*.py"))
    return {file.relative_to(package).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def module_name(file: str) -> str:
    """``fusion/runtime.py`` is ``fusion.runtime``, ``fusion/__init__.py`` is ``fusion``, ``__init__.py`` is empty."""
    parts = file.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def walk(node: ast.AST, kind: str = "runtime") -> Iterator[tuple[ast.AST, str]]:
    """All nodes below, each with whether only a type checker sees it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield inner, "typing"
                yield from walk(inner, "typing")
            for inner in child.orelse:
                yield inner, kind
                yield from walk(inner, kind)
        else:
            yield child, kind
            yield from walk(child, kind)


def imports(files: dict[str, ast.Module]) -> list[Import]:
    """Every import of every file; ``from hydractl import x`` is ``hydractl.x``, whatever x is."""
    modules = {f"hydractl.{module_name(file)}" for file in files if module_name(file)}
    found = []
    for file, tree in files.items():
        for node, kind in walk(tree):
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


def layer(module: str) -> int | None:
    """The number of a module's layer, 0 on top; None where it has none."""
    while module:
        for number, (_, names) in enumerate(LAYERS):
            if module in names:
                return number
        module = module.rpartition(".")[0]
    return None


def layer_violations(files: dict[str, ast.Module]) -> list[str]:
    problems = [f"{file}: has no layer; give it one in tests/test_layers.py" for file in files
                if module_name(file) and layer(module_name(file)) is None]  # fmt: skip
    for found in imports(files):
        name = module_name(found.file)
        where = f"{found.file}:{found.line}"
        if found.target.startswith("."):
            problems.append(f"{where}: a relative import")
        if not found.target.startswith("hydractl.") or found.target == "hydractl.__version__" or not name:
            continue
        target = found.target.removeprefix("hydractl.")
        here, there = layer(name), layer(target)
        if there is None:
            problems.append(f"{where}: imports {found.target}, which has no layer")
        elif here is not None and there < here:
            problems.append(f"{where}: {LAYERS[here][0]} may not import {found.target} ({LAYERS[there][0]})")
    return problems


def cycles(files: dict[str, ast.Module]) -> list[str]:
    """One line for each group of modules that import each other."""
    needs: dict[str, set[str]] = {f"hydractl.{module_name(file)}": set() for file in files if module_name(file)}
    for found in imports(files):
        name = f"hydractl.{module_name(found.file)}"
        if found.kind == "runtime" and name in needs and found.target in needs and found.target != name:
            needs[name].add(found.target)
    while free := [name for name, targets in needs.items() if not targets]:  # what is left needs only what is left
        needs = {name: targets.difference(free) for name, targets in needs.items() if name not in free}
    while top := [name for name in needs if not any(name in targets for targets in needs.values())]:
        needs = {name: targets for name, targets in needs.items() if name not in top}
    return ["import each other: " + ", ".join(sorted(needs))] if needs else []


def is_at(file: str, place: str) -> bool:
    """Whether a file is the one at ``place``, or in that folder."""
    return file.startswith(place) if place.endswith("/") else file == place


def library_violations(files: dict[str, ast.Module]) -> list[str]:
    found = imports(files)
    prepared = {one.file for one in found if one.target == "hydractl._torchvision"}
    problems = []
    for one in found:
        library = one.target.partition(".")[0]
        places = LIBRARIES.get(library)
        if places is not None and not any(is_at(one.file, place) for place in places):
            problems.append(f"{one.file}:{one.line}: may not import {library}")
        elif library in NEEDS_OPERATORS and one.kind == "runtime" and one.file not in prepared:
            problems.append(f"{one.file}:{one.line}: imports {library} without hydractl._torchvision")
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
RULES: tuple[Rule, ...] = (layer_violations, cycles, library_violations, house_violations)


@pytest.mark.parametrize("rule", RULES)
def test_hydractl_keeps_the_rule(rule: Rule) -> None:
    files = trees(ROOT / "hydractl")
    assert len(files) > 20
    assert rule(files) == []


def test_every_layer_names_modules_that_exist() -> None:
    files = trees(ROOT / "hydractl")
    modules = {module_name(file) for file in files}
    assert [name for _, names in LAYERS for name in names if name not in modules] == []


BAD = {
    ("errors.py", "from hydractl.heads import Site"): "errors.py:1: ground may not import hydractl.heads",
    ("heads.py", "def f():\n    import hydractl.cli.app"): "heads.py:2: files and heads may not import hydractl.cli",
    ("heads.py", "def f():\n    from hydractl import cli"): "heads.py:2: files and heads may not import hydractl.cli",
    ("metrics/a.py", "if TYPE_CHECKING:\n    from hydractl.fusion.plan import P"): "metrics/a.py:2: parts of verbs may",
    ("families/b.py", 'M = "hydractl.cli.app"'): "families/b.py:1: models and data may not import hydractl.cli.app",
    ("score.py", "from . import heads"): "score.py:1: a relative import",
    ("score.py", "from hydractl import load"): "score.py:1: imports hydractl.load, which has no layer",
    ("attic.py", ""): "attic.py: has no layer",
    ("heads.py", "def f():\n    import hydractl.atomic"): "import each other: hydractl.atomic, hydractl.heads",
    ("score.py", "import typer"): "score.py:1: may not import typer",
    ("cli/app.py", "import click.core"): "cli/app.py:1: may not import click",
    ("families/b.py", "def f():\n    from timm.layers import Attention"): "families/b.py:2: may not import timm",
    ("families/timm_vit.py", "import timm"): "families/timm_vit.py:1: imports timm without hydractl._torchvision",
    ("score.py", "def f():\n    print(1)"): "score.py:2: print outside cli/console.py",
    ("data/utils.py", ""): "data/utils.py: name it after what it does",
    ("utils/a.py", ""): "utils/a.py: name it after what it does",
}


@pytest.mark.parametrize(("bad", "complaint"), BAD.items())
def test_a_bad_tree_is_found(bad: tuple[str, str], complaint: str, tmp_path: Path) -> None:
    good = {
        "__init__.py": "def __getattr__(name):\n    from hydractl.models import load",
        "cli/app.py": "import typer\nfrom hydractl import __version__\nfrom hydractl.errors import E",
        "cli/console.py": "print(1)",
        "atomic.py": "if TYPE_CHECKING:\n    from hydractl.heads import Site\nfrom hydractl.heads import head",
        "families/timm_vit.py": "from hydractl._torchvision import declare_operators\nimport timm",
        "models.py": 'FAMILIES = "hydractl.families.timm_vit"\ntext = "hydractl.checkpoint/1"\nconsole.print(1)',
        "heads.py": "",
    }
    for file, text in good.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    assert [problem for rule in RULES for problem in rule(trees(tmp_path))] == []

    (tmp_path / bad[0]).parent.mkdir(exist_ok=True)
    (tmp_path / bad[0]).write_text(bad[1], encoding="utf-8")
    assert complaint in "\n".join(problem for rule in RULES for problem in rule(trees(tmp_path)))
