"""What a search needs to know, as the verb has read it from flags, environment and file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search.

    Attributes:
        data, ood: SPECs of the ID and the OOD validation samples.
        limit: the first samples of each only.
        objective: what is maximised, one ranking each.
        ood_score: tells OOD from ID samples.
        algorithm: ``greedy`` or ``headmap``.
        approx: ``shortlist:N``; None: exact.
        bounds: give up candidates that cannot win.
        check_against: an exact circuit to compare with.
        keep, budget: how many heads are kept a site, or removed in all.
        tower, sites: whose heads are candidates.
        start_mask, share_from, share_sites: which heads are gone at the beginning.
        batch_size, dtype, device, workers, memory: how the model runs.
        seed: of the provenance.
        resume, force: what becomes of a journal that is there.
    """

    data: str
    ood: str | None
    limit: int | None
    objective: Sequence[str]
    ood_score: str
    algorithm: str
    approx: str | None
    bounds: bool
    check_against: str | None
    keep: int | None
    budget: int | None
    tower: str | None
    sites: str | None
    start_mask: str | None
    share_from: str | None
    share_sites: int | None
    batch_size: int
    dtype: str
    device: str
    workers: int
    memory: str | None
    seed: int
    resume: bool
    force: bool
