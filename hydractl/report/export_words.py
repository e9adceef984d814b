"""Sentences about what ``export`` found, from its answer alone."""

from __future__ import annotations

from typing import NamedTuple

from hydractl.files.export_answer import ExportedFileRecord, RoundedOnData
from hydractl.report.fuse_words import LOST
from hydractl.report.texts import number


def rounding_words(file: ExportedFileRecord) -> tuple[str | None, bool]:
    """Return words on what rounding the weights of an exported file changes, and whether that is too much.

    The words are None if the weights are not rounded. It is too much if accuracy or an AUROC falls by more than
    ``LOST``, which is known only if data were given to measure it on.
    """
    # ``check`` compares the file's predictions with the model's. Only a file with unrounded weights has a tolerance to
    # keep, because its predictions must be the same. Rounding changes predictions on purpose, so it has no tolerance.
    check = file.check
    if check is None:
        return None, False
    is_rounded = check.tolerance is None
    if not is_rounded:
        return None, False

    # Without data, only random inputs were compared.
    data = check.on_data
    if data is None:
        moved = f"probabilities of random inputs move by up to {check.probabilities_max_abs:.2g}"
        return f"{file.path}: {moved}; --test SPEC, with --ood, measures what that does", False

    # With data: what changes in accuracy and AUROC, in flagged samples, and in the answers.
    changes = _changes(data)
    words = [change.in_words() for change in changes]
    flags_of_sets = data.flags or {}
    for name, flags in flags_of_sets.items():
        words.append(f"flagged of {name} from {flags.before:.1%} to {flags.after:.1%}")
    words.append(f"{data.agreement:.1%} of the answers the same, on {data.n} samples")
    is_harmful = any(change.falls_by_more_than(LOST) for change in changes)
    return f"{file.path}: {', '.join(words)}", is_harmful


class _Change(NamedTuple):
    """A figure before and after rounding; None if it is not known."""

    what: str
    before: float | None
    after: float | None

    def in_words(self) -> str:
        """Return the change as words, e.g. ``accuracy from 0.9 to 0.8``."""
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
    """Return the changes of the accuracy, and of the AUROC of each OOD set."""
    before = data.before
    after = data.after
    changes = [_Change("accuracy", before.accuracy, after.accuracy)]
    for name, auroc_before in before.auroc.items():
        auroc_after = after.auroc[name]
        changes.append(_Change(f"AUROC of {name}", auroc_before, auroc_after))
    return changes
