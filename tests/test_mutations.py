"""The list of defects is true of today's files; ``python -m tests.mutations`` tries them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation, mutated


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_defect_can_be_made_and_its_tests_are_there(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / mutation.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutation.file).read_text(encoding="utf-8"), encoding="utf-8")
    mutated(mutation, tmp_path)
    compile(copy.read_text(encoding="utf-8"), mutation.file, "exec")
    files = [word for word in shlex.split(mutation.tests) if word.endswith(".py")]
    assert files and all((ROOT / file).is_file() for file in files)


def test_a_text_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n")
    with pytest.raises(ValueError, match=r"a thing: a.py has 0 times: two"):
        mutated(Mutation("a thing", "a.py", "two", "three", "tests/test_layers.py"), tmp_path)


def test_names_differ() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
