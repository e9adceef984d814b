"""The extent of a study, and what is left out of it to save time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

THREE = ("acc", "ood", "avg")
"""The objectives of the paper's three circuits."""

NEED_THREE = {"whole-three", "circuits", "circuits-tuned"}
"""The rows that need circuits for three objectives."""

_FEWEST_SAMPLES = 150
"""The number of samples of each set in the smallest search."""


@dataclass(frozen=True)
class Scale:
    """The extent of a study.

    Attributes:
        rows: the names of the rows.
        approx: the approximation of the search; None for an exact search.
        samples: the number of samples of each set in the search; None for all samples.
        cut: sentences on what was left out to save time.
    """

    rows: Sequence[str]
    approx: str | None
    samples: int | None
    cut: Sequence[str] = ()

    @property
    def objectives(self) -> Sequence[str]:
        """The objectives of the search."""
        return THREE if NEED_THREE.intersection(self.rows) else ("avg",)


def smaller(scale: Scale) -> Iterator[Scale]:
    """Yield the extent of a study that was asked for, and then ever smaller ones that take less time.

    Each makes one more cut than the one before, in this order: an approximate search; 1000 samples for it, then 400; no
    rows that need further searches; 150 samples. Cuts that change nothing are left out.
    """
    yield scale

    # First approximate the search, then take fewer samples for it; None stands for an exact search, and all samples.
    if scale.approx is None:
        scale = _cut(scale, "the search is approximated (lazy:8)", approx="lazy:8")
        yield scale
    for samples in (1000, 400):
        if scale.samples is None or scale.samples > samples:
            scale = _cut(scale, f"the search takes {samples} samples of each set", samples=samples)
            yield scale

    # Then leave out the rows that need another search, or a search for three objectives.
    rows_of_dear_searches = NEED_THREE | {"whole-late"}
    left_out = [name for name in scale.rows if name in rows_of_dear_searches]
    if left_out:
        kept_rows = [name for name in scale.rows if name not in rows_of_dear_searches]
        scale = _cut(scale, f"the rows {', '.join(left_out)} are left out", rows=kept_rows)
        yield scale

    # At last take the fewest samples.
    if scale.samples is None or scale.samples > _FEWEST_SAMPLES:
        yield _cut(scale, f"the search takes {_FEWEST_SAMPLES} samples", samples=_FEWEST_SAMPLES)


def _cut(scale: Scale, text: str, **changes: Any) -> Scale:
    """Return a smaller scale, which says what was left out."""
    return replace(scale, **changes, cut=[*scale.cut, text])
