"""Numbers as text for people, and names from documents made safe to show."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from hydractl.files.bench_answer import BenchInput
from hydractl.jsonio import clean

_MOST_DIGITS = 12


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a fraction or a small quantity as text, such as ``0.1234``, ``123.4`` or ``0.000012``; a dash for None.

    Args:
        value: the number.
        digits: the digits after the point. Numbers from 100 on have one digit; numbers that would look like 0 have
            more, up to twelve, or else a power of ten.
    """
    if value is None:
        return "-"

    # A smaller number would be shown as 0, so it gets the digits that it needs for two that are not 0.
    if 0 < abs(value) < 10**-digits:
        needed = 1 - math.floor(math.log10(abs(value)))
        return f"{value:.{needed}f}" if needed <= _MOST_DIGITS else f"{value:.1e}"
    if abs(value) < 100:
        return f"{value:.{digits}f}"
    return f"{value:.1f}"


def percent(share: float | None) -> str:
    """Return a share in percent with one decimal; a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def ratio(value: float | None, base: float | None) -> float | None:
    """Return ``value / base``; None if one of them is not known or ``base`` is 0."""
    return value / base if value is not None and base else None


def program_words() -> list[str]:
    """Return the words that start this program in a shell.

    They are ``hydractl`` if the shell finds it and it belongs to this installation. Otherwise they name the
    interpreter, by its path from the working directory if it lies below that: ``.venv/bin/python -m hydractl``.
    """
    # Resolve links in the folder only: the interpreter itself may be a link to one elsewhere.
    folder = os.path.realpath(os.path.dirname(sys.executable))
    program = shutil.which("hydractl")
    if program is not None and os.path.dirname(os.path.realpath(program)) == folder:
        return ["hydractl"]
    interpreter = Path(sys.executable)
    if interpreter.is_relative_to(Path.cwd()):
        interpreter = interpreter.relative_to(Path.cwd())
    return [str(interpreter), "-m", "hydractl"]


def three_digits(value: float | None) -> str:
    """Return a number with three significant digits, and with all digits before the point; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def count_text(value: float | None) -> str:
    """Return a count with K, M or G for thousands, millions and billions; a dash for None."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return str(value)


def params_text(params: float | None, nonzero: int | None) -> str:
    """Return a number of parameters as text, e.g. ``21.67 M (19.31 M nonzero)`` if the nonzero ones are counted."""
    return count_text(params) if nonzero is None else f"{count_text(params)} ({count_text(nonzero)} nonzero)"


def bytes_text(value: int | None) -> str:
    """Return a size in bytes as text in decimal units; a dash for None."""
    if value is None:
        return "-"
    return f"{value} B" if value < 1000 else f"{count_text(value)}B"


def input_text(sample: BenchInput | None) -> str:
    """Return the shape of one sample of a bench, ``3x224x224`` or ``128 tokens``; a dash if it is not known."""
    if sample is None:
        return "-"
    if sample.tokens:
        return f"{sample.tokens} tokens"
    return "x".join(map(str, sample.image or "?"))


def signed_change(before: int | None, after: int | None) -> str:
    """Return the change from one count to another in percent; a dash if one is not known or the first is 0."""
    if not before or after is None:
        return "-"
    return f"{100 * (after - before) / before:+.1f} %"


def duration_text(seconds: float) -> str:
    """Return a time in a suitable unit: ``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


_LONGEST_SHOWN = 80


def shown_name(name: str) -> str:
    """Return a name for a table, with unseen characters escaped; a very long name is cut in its middle."""
    text = clean(name)
    if len(text) <= _LONGEST_SHOWN:
        return text
    half = _LONGEST_SHOWN // 2
    return f"{text[:half]}…{text[1 - half :]}"


def drawn_names(names: Sequence[str], width: int = 28) -> list[str]:
    """Return names to show: without unseen characters, at most ``width`` characters long, and still different.

    Long names are cut on their left, ``…0.attn``. If two names become equal by that, all are numbered: ``0 …attn``.

    Args:
        names: the names, e.g. "blocks.0.attn" and "blocks.1.attn".
        width: the largest number of characters.
    """
    visible_names = [clean(name) for name in names]
    cut_names = [_end_of(name, width) for name in visible_names]
    all_still_differ = len(set(cut_names)) == len(set(visible_names))
    if all_still_differ:
        return cut_names
    numbered = []
    for index, name in enumerate(visible_names):
        prefix = f"{index} "
        numbered.append(prefix + _end_of(name, width - len(prefix)))
    return numbered


def _end_of(name: str, width: int) -> str:
    """Return the last ``width`` characters of a longer name, with "…" as the first of them; a shorter name as it is."""
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


KEPT, GONE = "■", "·"


def head_marks(heads: int, kept: Collection[int]) -> str:
    """Return the marks of all heads of a site; ``kept`` holds the indices of the kept heads."""
    return "".join(KEPT if head in kept else GONE for head in range(heads))
