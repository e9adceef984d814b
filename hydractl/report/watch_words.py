"""Lines for a log on how inputs compare with a reference."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.records import Interval
from hydractl.files.watching_records import WatchedRecord, WatchedWindowRecord

_MOST_LINES = 5
"""The most windows with an alarm that get a line each."""


def watch_lines(watched: WatchedRecord) -> list[str]:
    """Return lines on a comparison: one if nothing has shifted, else also the figures and the windows with an alarm."""
    size = watched.reference.n
    beside = f"beside {size:,} ID samples"
    whole = watched.whole
    lines = [f"{beside}: {whole.advice}"]
    if whole.verdict in ("alarm", "cannot tell"):
        figures = figures_in_words(whole)
        lines.append(f"{beside}: {figures}")

    windows = len(watched.windows)
    alarms = [window for window in watched.windows if window.verdict == "alarm"]
    if alarms and windows > 1:  # a single window holds all inputs, which have their line already
        lines.append(f"{beside}: {len(alarms):,} of {windows:,} windows raise an alarm")
        lines += _lines_of_windows(alarms)
    return lines


def _lines_of_windows(alarms: Sequence[WatchedWindowRecord]) -> list[str]:
    """Return a line for each of the first windows with an alarm, and a line on how many more there are."""
    lines = []
    for window in alarms[:_MOST_LINES]:
        lines.append(f"{place_of(window)}: {figures_in_words(window)}")
    left_out = len(alarms) - len(lines)
    if left_out:
        lines.append(f"and {left_out:,} more windows with an alarm")
    return lines


def place_of(window: WatchedWindowRecord) -> str:
    """Return which inputs a window holds, counted from 1, e.g. ``inputs 1,001 to 2,000``."""
    first = window.first + 1
    last = window.first + window.n
    return f"inputs {first:,} to {last:,}"


def figures_in_words(window: WatchedWindowRecord) -> str:
    """Return words on the figures of a window that were computed, each with its 95 % interval."""
    words = []
    share = window.share
    if share is not None:
        low, high = share.ci
        interval = f"{_points(low)} to {_points(high)}"
        difference = _points(share.difference)
        words.append(f"{share.share:.1%} flagged, {difference} points ({interval})")

    auroc = window.auroc
    if auroc is not None:
        interval = _interval_text(auroc.ci)
        words.append(f"AUROC of scores {auroc.auroc:.3f} ({interval})")

    classes = window.classes
    if classes is not None:
        interval = _interval_text(classes.ci)
        words.append(f"classes: total variation {classes.total_variation:.3f} ({interval}), p = {classes.p:.2g}")
    return "; ".join(words)


def _interval_text(interval: Interval) -> str:
    """Return the ends of an interval with three decimals."""
    low, high = interval
    return f"{low:.3f} to {high:.3f}"


def _points(share: float | None) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    assert share is not None  # known if the figure was computed
    return f"{100 * share:+.1f}"
