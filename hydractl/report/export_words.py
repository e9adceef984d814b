"""What ``export`` found, in sentences, from its answer alone."""

from __future__ import annotations

from typing import NamedTuple

from hydractl.files.export_answer import ExportedFileRecord, RoundedOnData
from hydractl.report.fuse_words import LOST
from hydractl.report.texts import number


def rounding_words(file: ExportedFileRecord) -> tuple[str | None, bool]:
    """Say what rounding the weights of an exported file does to answers, and whether it costs too much.

    None instead of words for a file whose weights are not rounded. It costs too much where accuracy or an AUROC falls
    by more than ``LOST``; that is known only where data were given to measure it on.
    """
    check = file.check
    if check is None or check.tolerance is not None:
        return None, False
    data = check.on_data
    if data is None:
        moved = f"probabilities of random inputs move by up to {check.probabilities_max_abs:.2g}"
        return f"{file.path}: {moved}; --test SPEC, with --ood, measures what that does", False
    changes = _changes(data)
    words = [change.in_words() for change in changes]
    flags_of_sets = data.flags or {}
    for name, flags in flags_of_sets.items():
        words.append(f"flagged of {name} from {flags.before:.1%} to {flags.after:.1%}")
    words.append(f"{data.agreement:.1%} of the answers the same, on {data.n} samples")
    is_harmful = any(change.falls_by_more_than(LOST) for change in changes)
    return f"{file.path}: {', '.join(words)}", is_harmful


class _Change(NamedTuple):
    """A figure before and after rounding; None where it is not known."""

    what: str
    before: float | None
    after: float | None

    def in_words(self) -> str:
        """Return what changes from what to what."""
        before = number(self.before)
        after = number(self.after)
        return f"{self.what} from {before} to {after}"

    def falls_by_more_than(self, limit: float) -> bool:
        """Return whether the figure is known to fall by more than the limit."""
        if self.before is None or self.after is None:
            return False
        fall = self.before - self.after
        return fall > limit


def _changes(data: RoundedOnData) -> list[_Change]:
    """Return the accuracy on the data, and the AUROC of each OOD set."""
    before = data.before
    after = data.after
    changes = [_Change("accuracy", before.accuracy, after.accuracy)]
    for name, auroc_before in before.auroc.items():
        auroc_after = after.auroc[name]
        changes.append(_Change(f"AUROC of {name}", auroc_before, auroc_after))
    return changes
