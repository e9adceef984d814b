"""Numbers as people read them."""

from __future__ import annotations


def number(value: float | int | None, digits: int = 4) -> str:
    """A fraction or a small quantity; a dash where there is none."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.{max(digits - 2, 1)}e}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.1f}"


def count_text(value: int | None) -> str:
    """A count with K, M or G for thousands, millions and thousands of millions."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return str(value)


def bytes_text(value: int | None) -> str:
    """A size in bytes, decimal units."""
    if value is None:
        return "-"
    return f"{count_text(value)}B" if value >= 1000 else f"{value} B"


def signed_change(before: int, after: int) -> str:
    """The change from one count to another, in percent."""
    return "-" if not before else f"{100 * (after - before) / before:+.1f} %"


def short_count(value: float) -> str:
    """A count in four characters or less: 950, 1.2k, 48k, 1.3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:g}"
