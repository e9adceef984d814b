"""What all tests share: a clean environment, the real data, and ``hydractl`` for shells."""

from __future__ import annotations

import faulthandler
import gc
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from tests import rounding
from tests.extras import pytest_ignore_collect, pytest_runtest_makereport  # noqa: F401  hooks
from tests.forked import SERVER_OF_ALL, hydractl_on_the_path, start_server
from tests.spread import RELEASE_VARIANTS

THREADS = "1"
LIMIT, LIMIT_OF_LONG_TESTS = 900, 3600
"""Seconds after which a test, on the busiest of machines, waits for what will not come."""
SINCE = {
    ("timm", "1.0.30"): ("rope-qk-norm", "sapiens2"),
    ("transformers", "5.18"): ("hf-dinov2", "hf-dinov2-registers", "hf-dinov2-swiglu"),
}
"""Pico models that older versions of a library do not have or build otherwise; skipped there."""
MISSING = [v for (name, since), v in SINCE.items() if Version(metadata.version(name)) < Version(since)]
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

# What reaches the disk counts when the machine fails, which no test makes it do; to wait for it takes milliseconds a
# file. That it is asked for, and in which order, is seen in files/test_atomic.py.
os.fsync = os.fstat  # type: ignore[assignment]

# Before torch is imported, too. See TESTS_ROUNDING there.
rounding.start()


def pytest_configure(config: pytest.Config) -> None:
    """Start one server of forked commands where the tests are divided among processes, which inherit its name."""
    if hasattr(config, "workerinput"):
        return
    os.environ.pop(SERVER_OF_ALL, None)  # of tests that run these
    if config.getoption("numprocesses", None):
        os.environ[SERVER_OF_ALL] = start_server()


def pytest_report_header() -> str | None:
    """Say when the tests do not round as this machine does."""
    way = rounding.chosen()
    return None if way is None else f"rounding: way {way}, {rounding.WAYS[way].__name__.replace('_', ' ')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``-k fault_07`` chooses the tests of a case of docs/reliability.md; some pico models are for a release alone.

    With ``TESTS_REVERSED`` the last test comes first: none may need what another has left.
    """
    if os.environ.get("TESTS_REVERSED"):
        items.reverse()
    for item in items:
        variant = item.callspec.params.get("variant") if hasattr(item, "callspec") else None
        if variant in RELEASE_VARIANTS:
            item.add_marker("release")
        if item.get_closest_marker("release"):
            item.add_marker("long")
        if any(variant in variants for variants in MISSING):
            item.add_marker(pytest.mark.skip(reason="of a newer version of its library than the installed one"))
        for marker in item.iter_markers("fault"):
            item.extra_keyword_matches.update(f"fault_{number:02}" for number in marker.args)


def pytest_collection_finish() -> None:
    """Take the imported libraries out of the garbage collector's sight: fusing calls it, and they are most it sees."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process of a test that waits for ever, so that the test fails and the others go on."""
    limit = LIMIT_OF_LONG_TESTS if item.get_closest_marker("long") else LIMIT
    faulthandler.dump_traceback_later(limit, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """The same for what the files before this one have imported."""
    gc.freeze()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an empty one of this test alone."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    with hydractl_on_the_path() as environment:
        yield environment
