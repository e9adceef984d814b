"""Numbers as people read them, and names from documents made safe to show."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.files.bench_answer import BenchInput

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def number(value: float | int | None, digits: int = 4) -> str:
    """A fraction or a small quantity; a dash where there is none."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.{max(digits - 2, 1)}e}"
    return f"{value:.{digits}f}" if abs(value) < 100 else f"{value:.1f}"


def count_text(value: float | None) -> str:
    """Return a count with K, M or G for thousands, millions and thousands of millions."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return str(value)


def params_text(params: float | None, nonzero: int | None) -> str:
    """Return a number of parameters, and where they are counted those not zero: ``21.67 M (19.31 M nonzero)``."""
    text = count_text(params)
    if nonzero is None:
        return text
    return f"{text} ({count_text(nonzero)} nonzero)"


def bytes_text(value: int | None) -> str:
    """A size in bytes, decimal units."""
    if value is None:
        return "-"
    return f"{count_text(value)}B" if value >= 1000 else f"{value} B"


def input_text(sample: BenchInput | None) -> str:
    """Return the shape of one sample of a bench: ``3x224x224``, or ``128 tokens``; a dash where it is not known."""
    if sample is None:
        return "-"
    if sample.tokens:
        return f"{sample.tokens} tokens"
    return "x".join(map(str, sample.image or "?"))


def signed_change(before: int, after: int) -> str:
    """The change from one count to another, in percent."""
    return "-" if not before else f"{100 * (after - before) / before:+.1f} %"


def duration_text(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def short_count(value: float) -> str:
    """A count in four characters or less: 950, 1.2k, 48k, 1.3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:g}"


# Marks that reorder the text around them, and line ends that are none to most programs.
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_UNSAFE = re.compile(r"[^\w.+-]+")
_LONGEST_FILE_PART = 80  # in bytes: file systems take 255 for a whole name
_LONGEST_SHOWN = 80


def visible(text: object) -> str:
    """The text with what cannot be seen or stored, such as control characters, as ``\\u202e``."""
    return "".join(_code(c) if c in _REORDERING or _is_control(c) else c for c in str(text))


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn")


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"


def shown_name(name: str) -> str:
    """A name for a table: visible; a very long one cut in its middle, with a mark of its own to tell it from others."""
    text = visible(name)
    if len(text) <= _LONGEST_SHOWN:
        return text
    half = _LONGEST_SHOWN // 2 - 5
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{text[:half]}…{text[-half:]} #{mark}"


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Names of at most ``width`` characters that still differ from each other.

    First the dotted parts go that all names end with, then those they begin with; then a name is cut on its left, and
    where that makes two names one, all are numbered.
    """
    parts = [name.split(".") for name in names]
    for side in (-1, 0):
        while max(map(len, names), default=0) > width:
            if any(len(p) < 2 for p in parts) or len({p[side] for p in parts}) > 1:
                break
            parts = [p[:-1] if side else p[1:] for p in parts]
            names = [".".join(p) for p in parts]
    if len(set(cut := [_cut(name, width) for name in names])) == len(set(names)):
        return cut
    return [f"{index} {_cut(name, width - len(str(index)) - 1)}" for index, name in enumerate(names)]


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def drawn_names(names: Sequence[str], width: int = 28) -> list[str]:
    """Names for a picture: visible, at most ``width`` characters, and different from each other."""
    return short_names([visible(name) for name in names], width)


def file_names(names: Sequence[str]) -> list[str]:
    """A part of a file name for each name: letters, digits and ``.+-_`` only, and different from each other.

    Two that differ in capitals only are told apart too, because some file systems do not.
    """
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        base = _UNSAFE.sub("-", plain).strip(".-")[:_LONGEST_FILE_PART] or "model"
        part, count = base, 1
        while part.lower() in taken:
            count += 1
            part = f"{base}-{count}"
        taken.add(part.lower())
        found.append(part)
    return found


@cache
def _templates(show: Callable[[object], str], **options: Any) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        finalize=lambda value: value if isinstance(value, Markup) else show(value),
        undefined=StrictUndefined,
        **options,
    )


def template(name: str, show: Callable[[object], str], filters: Mapping[str, Any], **options: Any) -> Template:
    """A template in which every text is written by ``show``, so that nothing in a document can become markup."""
    found = _templates(show, **options)
    found.filters.update(filters)
    return found.get_template(name)
