"""The package of ``examples/more_methods/``, installed as a user would have it: its tests, and its rows of a study."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.running import install_beside

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "examples" / "more_methods"


def install(place: Path) -> dict[str, str]:
    """Leave in a folder what ``pip install -e`` of the package does, and return an environment that has it."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install_beside(place, project)
    return environment(PACKAGE, place)


def install_by_pip(place: Path) -> dict[str, str]:
    """Build the package and install it into a folder, without a network; return an environment that has it."""
    shutil.copytree(PACKAGE, place / "source")  # for what a build leaves beside the source
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(place)]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options, str(place / "source")], check=True)
    return environment(place)


def environment(*places: Path) -> dict[str, str]:
    """Return the environment of a process that imports from these folders, too."""
    paths = map(str, [ROOT, *places])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"}


def pytest_of_the_package(env: dict[str, str], *arguments: str) -> None:
    """Run tests of the package in a process of its own, for this one has listed the methods that are installed."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, f"--rootdir={ROOT}", f"-c={ROOT / 'pyproject.toml'}", str(PACKAGE / "tests")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_its_tests_pass(tmp_path: Path) -> None:
    pytest_of_the_package(install(tmp_path), "-m", "not long")


@pytest.mark.long
@pytest.mark.fault(6)
def test_its_long_tests_pass(tmp_path: Path) -> None:
    pytest_of_the_package(install(tmp_path), "-m", "long and not release")


@pytest.mark.release
def test_its_tests_for_a_release_pass(tmp_path: Path) -> None:
    pytest_of_the_package(install_by_pip(tmp_path), "-m", "release")
