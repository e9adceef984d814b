"""Collections of garbage pass over modules: while they are imported, afterwards, and when the process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401 - there may be models where it is imported

from hydractl.files.collecting import importing
from tests.cli.test_cli_process import environment


class Node:
    """Refers to itself, so only a collection of garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that are collected, one after another, with the objects set apart as they were before."""
    generations: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            generations.append(facts["generation"])

    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


def test_the_collector_stays_off_where_it_was_off(collections: list[int]) -> None:
    with importing(), importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with importing(before_models=True):
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_imported_is_set_apart_and_garbage_is_not(collections: list[int]) -> None:
    gc.freeze()
    garbage = weakref.ref(Node())
    before = gc.get_freeze_count()
    with importing():
        pass
    assert "torch" in sys.modules and gc.get_freeze_count() <= before  # there may be models
    with importing(before_models=True):
        imported = [[number] for number in range(1000)]
    assert garbage() is None
    assert gc.get_freeze_count() >= before + len(imported)
    assert gc.isenabled()


PROCESS = """
import atexit, gc, sys

full = []
def note(phase, facts):
    if phase == "stop" and facts["generation"] == 2:
        full.append(sum(len(gc.get_objects(generation=g)) for g in range(3)))
gc.callbacks.append(note)

def report():
    kept = sum(len(gc.get_objects(generation=g)) for g in range(3))
    print(max(full), kept, gc.get_freeze_count(), file=sys.stderr)
atexit.register(report)
sys.argv = ["hydractl", {arguments}]
from hydractl.cli.app import main
code = main()
sys.exit(code)
"""


@pytest.mark.long
def test_a_command_passes_over_its_modules(tmp_path: Path) -> None:
    options = "pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
    words = ["prune", f"timm:vit_tiny_patch16_224?{options}", "--method", "random", "--keep", "1", "-o", "a.st", "-q"]
    arguments = ", ".join(map(repr, words))
    code = PROCESS.format(arguments=arguments)
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    most, kept, apart = map(int, process.stderr.split())
    # Modules with torch and timm define more than 200,000 objects, the command itself makes some thousand.
    assert apart > 150_000
    assert most < apart / 3
    assert kept < 5_000
