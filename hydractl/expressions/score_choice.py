"""The OOD scores that ``--ood-score`` asks for, for all rows or for one row."""

from __future__ import annotations

from typing import NamedTuple

from hydractl.errors import did_you_mean
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

ALL_SCORES = "all"
"""The word that stands for every score in ``--ood-score``."""


class ScoreChoice(NamedTuple):
    """One ``--ood-score``.

    Attributes:
        row: the name of the row that it applies to; None for every row.
        names: the names of scores: one for a single row; any number, or ``all`` alone, for every row.
    """

    row: str | None
    names: tuple[str, ...]


def parse_ood_score(text: str) -> ScoreChoice:
    """Parse ``NAME,...``, ``all`` or ``ROW=NAME``.

    Raises:
        ValueError: a score is unknown, or the text has none of these forms.
    """
    row, equals, listed_names = text.rpartition("=")
    is_of_one_row = bool(equals)
    names = [name.strip() for name in listed_names.split(",")]

    known = [*SCORES, *ON_FEATURES]
    if not is_of_one_row:
        known.append(ALL_SCORES)
    for name in names:
        if name not in known:
            choices = ", ".join(known)
            suggestion = did_you_mean(name, known)
            raise ValueError(f"must be one of {choices}, not {name!r}{suggestion}")

    if not is_of_one_row:
        return ScoreChoice(None, tuple(names))
    if not row or len(names) > 1:
        raise ValueError(f"must be NAME,... or ROW=NAME, not {text!r}")
    return ScoreChoice(row, tuple(names))
