"""What ``export`` found, in sentences, from its answer alone."""

from __future__ import annotations

from hydractl.files.export_answer import ExportedFileRecord, RoundedOnData
from hydractl.report.fuse_words import LOST
from hydractl.report.texts import number


def rounding_words(file: ExportedFileRecord) -> tuple[str | None, bool]:
    """Say what rounding the weights of an exported file does to answers, and whether it costs too much.

    None instead of words for a file whose weights are not rounded.
    """
    check = file.check
    if check is None or check.tolerance is not None:
        return None, False
    data = check.on_data
    if data is None:
        moved = f"probabilities of random inputs move by up to {check.probabilities_max_abs:.2g}"
        return f"{file.path}: {moved}; --test SPEC, with --ood, measures what that does", False
    words = []
    is_harmful = False
    for what, before, after in _changes(data):
        words.append(f"{what} from {number(before)} to {number(after)}")
        if before is not None and after is not None and before - after > LOST:
            is_harmful = True
    if data.flags is not None:
        for name, flags in data.flags.items():
            words.append(f"flagged of {name} from {flags.before:.1%} to {flags.after:.1%}")
    alike = f"{data.agreement:.1%} of the answers the same, on {data.n} samples"
    return f"{file.path}: {', '.join(words)}, {alike}", is_harmful


def _changes(data: RoundedOnData) -> list[tuple[str, float | None, float | None]]:
    """Return each figure on the data, its name and its value before and after."""
    changes: list[tuple[str, float | None, float | None]] = []
    changes.append(("accuracy", data.before.accuracy, data.after.accuracy))
    for name, before in data.before.auroc.items():
        changes.append((f"AUROC of {name}", before, data.after.auroc[name]))
    return changes
