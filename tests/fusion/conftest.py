"""What the tests of fusing share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def nothing_old_is_collected() -> None:
    """Fusing collects garbage once for each member, and would look at all that the tests before have left each time."""
    gc.collect()
    gc.freeze()
