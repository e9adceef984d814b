"""What the comparison of inputs with a reference comes to, in lines for a log."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.watching_records import WatchedRecord, WatchedWindowRecord

_MOST_LINES = 5
"""Windows with an alarm that are told one by one."""


def watch_lines(watched: WatchedRecord) -> list[str]:
    """Return a short line where nothing has shifted; else what has, by its figures, and in which windows."""
    whole = watched.whole
    alarms = [window for window in watched.windows if window.verdict == "alarm"]
    beside = f"beside {watched.reference.n:,} ID samples"
    lines = [f"{beside}: {whole.advice}"]
    if whole.verdict in ("alarm", "cannot tell"):
        lines.append(f"{beside}: {figures_in_words(whole)}")
    if alarms and len(watched.windows) > 1:
        lines.append(f"{beside}: {len(alarms):,} of {len(watched.windows):,} windows raise an alarm")
        lines += _lines_of_windows(alarms)
    return lines


def _lines_of_windows(alarms: Sequence[WatchedWindowRecord]) -> list[str]:
    """Return a line for each of the first windows with an alarm."""
    lines = []
    for window in alarms[:_MOST_LINES]:
        lines.append(f"{place_of(window)}: {figures_in_words(window)}")
    if len(alarms) > _MOST_LINES:
        lines.append(f"and {len(alarms) - _MOST_LINES:,} more windows with an alarm")
    return lines


def place_of(window: WatchedWindowRecord) -> str:
    """Return which inputs a window holds, counted from 1."""
    return f"inputs {window.first + 1:,} to {window.first + window.n:,}"


def figures_in_words(window: WatchedWindowRecord) -> str:
    """Return the figures of some inputs, each with its 95 % interval."""
    words = []
    share = window.share
    if share is not None:
        low, high = share.ci
        difference = f"{_points(share.difference)} points ({_points(low)} to {_points(high)})"
        words.append(f"{share.share:.1%} flagged, {difference}")
    auroc = window.auroc
    if auroc is not None:
        low, high = auroc.ci
        words.append(f"AUROC of scores {auroc.auroc:.3f} ({low:.3f} to {high:.3f})")
    classes = window.classes
    if classes is not None:
        low, high = classes.ci
        variation = f"total variation {classes.total_variation:.3f} ({low:.3f} to {high:.3f})"
        words.append(f"classes: {variation}, p = {classes.p:.2g}")
    return "; ".join(words)


def _points(share: float | None) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    assert share is not None  # of an interval that was computed
    return f"{100 * share:+.1f}"
