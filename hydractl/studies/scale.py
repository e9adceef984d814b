"""The extent of a study, and what is left out of it to save time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

THREE = ("acc", "ood", "avg")
"""The objectives of the paper's three circuits."""

NEED_THREE = {"whole-three", "circuits", "circuits-tuned"}
"""The rows that need circuits for three objectives."""


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

    # The cuts, each as the sentence on it and the attributes of the extent that it changes.
    dear_rows = [name for name in scale.rows if name in NEED_THREE | {"whole-late"}]
    other_rows = [name for name in scale.rows if name not in dear_rows]
    cuts: list[tuple[str, dict[str, Any]]] = []
    if scale.approx is None:
        cuts.append(("the search is approximated (lazy:8)", {"approx": "lazy:8"}))
    for samples in (1000, 400, 150):
        # Before the last, leave out the rows that need another search, or a search for three objectives.
        if samples == 150 and dear_rows:
            cuts.append((f"the rows {', '.join(dear_rows)} are left out", {"rows": other_rows}))
        if scale.samples is None or scale.samples > samples:
            cuts.append((f"the search takes {samples} samples of each set", {"samples": samples}))

    # Each cut is made in addition to those before it.
    smaller_scale = scale
    for text, changes in cuts:
        smaller_scale = replace(smaller_scale, **changes, cut=[*smaller_scale.cut, text])
        yield smaller_scale
