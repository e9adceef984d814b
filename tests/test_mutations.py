"""The list of defects is true of today's files; ``python -m tests.mutations`` tries them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.mutations import MUTATIONS, ROOT, Mutation, mutated


def problems(mutation: Mutation, folder: Path) -> Iterator[str]:
    """Yield what keeps a defect from being made in a copy of its file, and from being tried."""
    copy = folder / mutation.file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text((ROOT / mutation.file).read_text(encoding="utf-8"), encoding="utf-8")
    try:
        mutated(mutation, folder)
        compile(copy.read_text(encoding="utf-8"), mutation.file, "exec")
    except (ValueError, SyntaxError) as error:
        yield f"{mutation.name}: {error}"
    files = [word for word in shlex.split(mutation.tests) if word.endswith(".py")]
    if not files:
        yield f"{mutation.name}: it names no tests"
    for file in files:
        if not (ROOT / file).is_file():
            yield f"{mutation.name}: {file} is not there"


def test_every_defect_can_be_made_and_its_tests_are_there(tmp_path: Path) -> None:
    assert [problem for mutation in MUTATIONS for problem in problems(mutation, tmp_path)] == []


def test_names_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
