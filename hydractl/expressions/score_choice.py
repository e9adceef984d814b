"""The names that ``--ood-score`` takes."""

from __future__ import annotations

from hydractl.errors import did_you_mean
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

ALL_SCORES = "all"
"""The word that stands for every score in ``--ood-score``."""


def check_ood_score(name: str) -> None:
    """Check the name of one OOD score; ``all`` is one, too. Names of other packages are looked for now.

    Raises:
        ValueError: there is no such score; the message is the rest of a sentence that starts with the option's name.
    """
    known = [*SCORES, *ON_FEATURES, ALL_SCORES]
    if name not in known:
        choices = ", ".join(known)
        suggestion = did_you_mean(name, known)
        raise ValueError(f"must be one of {choices}, not {name!r}{suggestion}")
