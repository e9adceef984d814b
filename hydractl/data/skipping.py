"""``--on-bad skip``: images that cannot be read are skipped during the computation, counted and listed.

``open_data(..., on_bad="skip")`` gives a data set whose ``skipped`` is a mapping; ``batches`` leaves out what it cannot
read and notes it there. After the pass, :func:`remaining` is the data set without them, in the same order and with the
same ids, and :func:`report_skipped` says how many there were. Nothing is decoded twice to find them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hydractl.data.base import Dataset
from hydractl.errors import InputError
from hydractl.log import Log

MOST_LISTED = 1000
"""Ids of skipped samples in a document at most; their number is exact."""

_MOST_SAID = 5
_MOST_PROBLEMS = 20


class Remaining(Dataset):
    """Some samples of a data set, in its order, with their ids, labels and fingerprints.

    Args:
        whole: the data set.
        kept: the samples' indices in it, ascending.
    """

    def __init__(self, whole: Dataset, kept: list[int]) -> None:
        super().__init__(whole.spec, whole.where, [whole.ids[i] for i in kept])
        self.kind = whole.kind
        self.whole, self.kept = whole, kept
        self.labels = None if whole.labels is None else whole.labels[kept]
        self.label_names = whole.label_names
        self.skipped = None if whole.skipped is None else {}

    def lengths(self) -> list[int] | None:
        found = self.whole.lengths()
        return None if found is None else [found[i] for i in self.kept]

    def sample_fingerprints(self) -> list[str]:
        found = self.whole.sample_fingerprints()
        return [found[i] for i in self.kept]

    def _sample(self, i: int) -> Any:
        return self.whole[self.kept[i]]

    def _content(self, i: int) -> Iterable[bytes]:
        return self.whole._content(self.kept[i])


def remaining(dataset: Dataset) -> Dataset:
    """The data set without the samples that were skipped so far; the data set itself where there are none.

    Row ``i`` of anything computed for it is row ``remaining(dataset).kept[i]`` of the whole.

    Raises:
        InputError: where nothing is left.
    """
    if not dataset.skipped:
        return dataset
    kept = [i for i in range(len(dataset)) if i not in dataset.skipped]
    if not kept:
        raise no_samples_left(dataset)
    return Remaining(dataset, kept)


def skipped_document(dataset: Dataset) -> dict[str, Any] | None:
    """Skipped samples, for an artefact: ``n`` and the first :data:`MOST_LISTED` ``ids`` in order; None for nothing."""
    if not dataset.skipped:
        return None
    indices = sorted(dataset.skipped)
    return {"n": len(indices), "ids": [dataset.ids[i] for i in indices[:MOST_LISTED]]}


def report_skipped(dataset: Dataset, log: Log) -> None:
    """Warn of what was skipped: how many, and the first few with the reason; every one of them is a detail."""
    if not dataset.skipped:
        return
    indices = sorted(dataset.skipped)
    for i in indices:
        log.detail(f"skipped {dataset.ids[i]}: {dataset.skipped[i]}")
    count = f"{len(indices)} of {len(dataset)} images {'is' if len(indices) == 1 else 'are'}"
    named = ", ".join(dataset.ids[i] for i in indices[:_MOST_SAID])
    more = f" and {len(indices) - _MOST_SAID} more" if len(indices) > _MOST_SAID else ""
    log.warn(f"{dataset.where}: {count} left out, as they cannot be read: {named}{more}")


def no_samples_left(dataset: Dataset) -> InputError:
    """The error for a set of which nothing can be read."""
    reasons = [] if not dataset.skipped else [dataset.skipped[i] for i in sorted(dataset.skipped)]
    more = [f"and {len(reasons) - _MOST_PROBLEMS} more"] if len(reasons) > _MOST_PROBLEMS else []
    return InputError(
        f"{dataset.where}: not one of the samples can be read", problems=[*reasons[:_MOST_PROBLEMS], *more]
    )
