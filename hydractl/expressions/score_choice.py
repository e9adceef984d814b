"""Which OOD scores ``--ood-score`` asks for, of all rows or of one."""

from __future__ import annotations

from typing import NamedTuple

from hydractl.errors import did_you_mean
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

ALL_SCORES = "all"
"""The word of ``--ood-score`` for every score there is."""


class ScoreChoice(NamedTuple):
    """One ``--ood-score``.

    Attributes:
        row: the name of the one row it is about, or None for every row.
        names: of scores; one of a row, or ``all`` alone.
    """

    row: str | None
    names: tuple[str, ...]


def parse_ood_score(text: str) -> ScoreChoice:
    """Read ``NAME,...``, ``all`` or ``ROW=NAME``."""
    row, equals, listed = text.rpartition("=")
    names = tuple(name.strip() for name in listed.split(","))
    known = [*SCORES, *ON_FEATURES]
    if not equals:
        known.append(ALL_SCORES)
    for name in names:
        if name not in known:
            choices = ", ".join(known)
            raise ValueError(f"must be one of {choices}, not {name!r}{did_you_mean(name, known)}")
    if not equals:
        return ScoreChoice(None, names)
    if not row or len(names) > 1:
        raise ValueError(f"must be NAME,... or ROW=NAME, not {text!r}")
    return ScoreChoice(row, names)
