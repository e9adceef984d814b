"""Tests of what only an extra of hydractl brings are skipped where it is not installed.

hydractl itself says which package is missing, and how it is installed: a test that fails with that answer is skipped
with the name of the package. A file of tests that imports one is left out as a whole. Where all extras are installed,
as ``pip install 'hydractl[test]'`` does, nothing is skipped here.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Generator
from pathlib import Path

import pytest

from hydractl.errors import EXTRAS, distribution_of

_OF_TESTS = dict.fromkeys(
    ["fastapi", "jedi", "jsonschema", "python_multipart", "pytorch_ood", "torchmetrics", "uvicorn"], "test"
)
OPTIONAL = EXTRAS | _OF_TESTS
"""What is imported -> the extra that brings it."""
ROOT = Path(__file__).parents[1]
MISSING = frozenset(module for module in OPTIONAL if importlib.util.find_spec(module) is None)


def needs_what_is_missing(path: Path) -> bool:
    """Whether a file of tests imports, when it is imported itself, a package that is not installed."""
    modules = _imported_by(path)
    if not MISSING.isdisjoint(module.partition(".")[0] for module in modules):
        return True
    helpers = [ROOT / f"{module.replace('.', '/')}.py" for module in modules if module.startswith("tests.")]
    return any(helper.is_file() and needs_what_is_missing(helper) for helper in helpers)


def _imported_by(path: Path) -> set[str]:
    """Return the modules that the statements at the top of a file name."""
    modules = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            modules |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            modules.add(statement.module)
            modules |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    return modules


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that cannot be imported without an extra."""
    if MISSING and collection_path.suffix == ".py" and needs_what_is_missing(collection_path):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that fails because hydractl, or the test, asks for a package that is not installed."""
    report = yield
    if MISSING and report.failed and call.excinfo is not None:
        package = _asked_for(call.excinfo.value, f"{report.longreprtext}\n{report.capstderr}")
        if package is not None:
            path, line, _ = item.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, f"Skipped: {package} is not installed")
    return report


def _asked_for(error: BaseException, said: str) -> str | None:
    """Return the missing package that an error, or what was said, asks for."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
        return package if package in MISSING else None
    text = f"{said}\n{error}\n{getattr(error, 'hint', '')}\n{getattr(error, 'stderr', '')}"
    for package in sorted(MISSING):
        named = f"needs {distribution_of(package)}" in text and "not installed" in text
        if named or f"hydractl[{OPTIONAL[package]}]" in text or f"No module named '{package}" in text:
            # A fixture of several tests raises it again for the next one, without what was said.
            error.add_note(f"No module named '{package}'")
            return package
    noted = " ".join(getattr(error, "__notes__", []))
    return next((package for package in sorted(MISSING) if f"No module named '{package}'" in noted), None)
