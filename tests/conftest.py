"""What all tests share: a clean environment, the real data, and ``hydractl`` for shells."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def pytest_collection_finish() -> None:
    """Take the imported libraries out of the garbage collector's sight: fusing calls it, and they are most it sees."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets and checkpoints that ``HYDRACTL_DATA`` names; the test is skipped without it."""
    if REAL_DATA is None:
        pytest.skip("HYDRACTL_DATA is not set: no real data")
    folder = Path(REAL_DATA).resolve()
    if not folder.is_dir():
        pytest.fail(f"HYDRACTL_DATA names no folder: {REAL_DATA}")
    return folder


@pytest.fixture(scope="session")
def with_hydractl() -> Iterator[dict[str, str]]:
    """An environment for shells in which ``hydractl`` is a command that need not import torch first."""
    from tests.forked import hydractl_on_the_path

    with hydractl_on_the_path() as environment:
        yield environment
