"""A working directory of its own for each test, and a shorthand for merging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import UsageError
from tests.calls import checked

Merge = Callable[..., Any]


@pytest.fixture
def merged(tmp_path: Path) -> Merge:
    """``merged(verb, flags, env, yaml)``: the settings."""

    def call(verb: str, flags: Mapping[str, Any], env: Mapping[str, str] | None = None, yaml: str | None = None) -> Any:
        if yaml is not None:
            (tmp_path / "hydra.yaml").write_text(yaml, encoding="utf-8")
        return checked(verb, flags, env or {}, tmp_path)

    return call


@pytest.fixture
def refused(merged: Merge) -> Callable[..., list[str]]:
    """The same for input that must be refused: the problems, or the one message."""

    def call(*args: Any, **kwargs: Any) -> list[str]:
        with pytest.raises(UsageError) as caught:
            merged(*args, **kwargs)
        assert caught.value.exit_code == 2
        return caught.value.problems or [caught.value.message]

    return call
