"""What a metric is: one function with its name, its sentence, its heading and its direction, declared in one place.

The rows of ``eval.json``, bootstrap intervals and paired differences, the keys of ``--require``, the conventions and
the columns of tables follow from the declarations that :mod:`hydractl.metrics.registry` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["id", "ood", "diversity"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        function: from what it is taken of to a number, or to one number for each of ``parts``: of labelled samples
            (``id``), of a :class:`~hydractl.metrics.ood.Curve` (``ood``), of samples and their members' votes
            (``diversity``). Samples are a :class:`~hydractl.metrics.samples.Samples` or, in a round of the bootstrap, a
            :class:`~hydractl.metrics.samples.Resample`, of at least one sample.
        kind: where it stands: ``id.KEY``; ``ood.SET.KEY`` and averages over sets; ``diversity.SET.KEY``.
        key: its name in ``eval.json``.
        convention: one sentence that defines it, kept in every document that holds it.
        label: heading of its column; empty where tables leave it out.
        words: what a person calls it.
        direction: ``higher`` or ``lower``, whichever is better; empty where neither is.
        digits: digits after the point, in tables.
        place: its column among those of its kind, where that is not the order of declaration.
        parts: keys of its numbers, where it has several.
        by_severity: whether it is taken of each corruption at each severity as well (``id`` alone).
    """

    function: Callable[[Any], Any]
    kind: Kind
    key: str
    convention: str
    label: str = ""
    words: str = ""
    direction: Literal["higher", "lower", ""] = ""
    digits: int = 4
    place: int = 100
    parts: tuple[str, ...] = ()
    by_severity: bool = False

    def __call__(self, data: Any) -> Any:
        return self.function(data)

    @property
    def missing(self) -> Any:
        """What stands in its place without samples."""
        return dict.fromkeys(self.parts) if self.parts else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of its numbers."""
        return tuple(f"{self.key}.{part}" for part in self.parts) or (self.key,)


def metric(kind: Kind, convention: str, **described: Any) -> Callable[[Callable[[Any], Any]], Metric]:
    """Declare the function below as the :class:`Metric` of its name."""

    def declare(function: Callable[[Any], Any]) -> Metric:
        return Metric(function, kind, function.__name__, convention, **described)

    return declare
