"""``--approx``: searches that evaluate less than everything, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.lazy import Lazy
from hydractl.circuit.search import GreedySearch
from hydractl.circuit.shortlist import Shortlist
from hydractl.circuit.subset import Subset
from hydractl.circuit.tower import Candidate
from hydractl.errors import UsageError

_UNITS = {"shortlist": "candidates", "lazy": None, "subset": "samples of each set"}
_FORMS = "shortlist:8, lazy or subset:500"


@dataclass(frozen=True)
class Approximation:
    """One way to search less.

    Attributes:
        kind: ``shortlist``, ``lazy`` or ``subset``.
        number: of candidates or of samples; None where there is none.
    """

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"


def parse_approx(text: str, processes: int = 1) -> Approximation:
    """``shortlist:8``, ``lazy``, ``subset:500``.

    Raises:
        UsageError: for anything else, and for ``lazy`` in several processes: what it evaluates next depends on what it
            found last.
    """
    kind, colon, number = text.partition(":")
    if kind not in _UNITS:
        raise UsageError(f"--approx {text}: no approximation is called {kind!r}", hint=f"it may be {_FORMS}")
    unit = _UNITS[kind]
    if unit is None:
        if colon:
            raise UsageError(f"--approx {text}: {kind} takes no number", hint=f"--approx {kind}")
        if processes > 1:
            raise UsageError(
                f"--approx {kind} runs in one process, not in {processes}",
                hint="--approx shortlist:8 and the exact search share their work",
            )
        return Approximation(kind)
    if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number)):
        raise UsageError(f"--approx {text}: {kind} takes a number of {unit}, 1 or more", hint=f"it may be {_FORMS}")
    return Approximation(kind, int(number))


def search_of(
    approx: str | None, evaluator: Evaluator, heads: Sequence[Candidate], *, seed: int = 0, **others: Any
) -> GreedySearch:
    """The search that ``--approx`` asks for, the exact one for None.

    Args:
        approx: as :func:`parse_approx` reads it.
        evaluator, heads, others: as in :class:`hydractl.circuit.search.GreedySearch`.
        seed: of the draw of ``subset``.

    Raises:
        UsageError: as :func:`parse_approx`.
    """
    if approx is None:
        return GreedySearch(evaluator, heads, **others)
    team = others.get("processes")
    asked = parse_approx(approx, 1 if team is None else team.size)
    if asked.number is None:
        return Lazy(evaluator, heads, **others)
    if asked.kind == "shortlist":
        return Shortlist(evaluator, heads, size=asked.number, **others)

    return Subset(evaluator, heads, samples=asked.number, seed=seed, **others)
