"""What all tests share: a clean environment, the real data, and the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
THREADS = "1"

# HYDRACTL_* variables are defaults of options: HYDRACTL_DATA, where these tests look for the real data, would be the
# `--data` of every command they run. All of them leave the environment before anything else reads it.
_FOUND = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HYDRACTL_")}
# Under a name of its own, for the processes among which the tests are divided: they start from this environment.
REAL_DATA = os.environ.get("TESTS_REAL_DATA") or _FOUND.get("HYDRACTL_DATA")
if REAL_DATA is not None:
    os.environ["TESTS_REAL_DATA"] = REAL_DATA

# No test may ask a hub for a model.
os.environ["HF_HUB_OFFLINE"] = "1"
# The models are so small that more threads only wait for each other, on a busy machine for long. Read by torch, which
# is imported after this file, and by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", THREADS)

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets and checkpoints that ``HYDRACTL_DATA`` names; the test is skipped without it."""
    if REAL_DATA is None:
        pytest.skip("HYDRACTL_DATA is not set: no real data")
    folder = Path(REAL_DATA).resolve()
    if not folder.is_dir():
        pytest.fail(f"HYDRACTL_DATA names no folder: {REAL_DATA}")
    return folder


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    """``cli("prune", "a.st", ..., cwd=None, env=None, input=None)``: the command in a process of its own.

    It runs in ``cwd`` (by default the test's own ``tmp_path``, so that no ``hydra.yaml`` is found by accident) with
    ``env`` added to the environment, and never raises on an exit code.
    """

    def run(
        *arguments: str | os.PathLike[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command: Sequence[str] = [sys.executable, "-m", "hydractl", *map(os.fspath, arguments)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            command,
            cwd=cwd or tmp_path,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            input=input if input is not None else "",
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    return run
