"""The source files of a package, parsed."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path


def parsed(package: Path) -> dict[str, ast.Module]:
    """The trees of all files of a package, by path relative to it."""
    gc.disable()  # it would look at all nodes again and again, of which none goes
    try:
        files = sorted(package.rglob("*.py"))
        return {file.relative_to(package).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}
    finally:
        gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a file or a statement, and all statements inside it; most nodes are expressions, which are left out."""
    rest = [tree]
    while rest:
        node = rest.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            rest += getattr(node, part, ())
