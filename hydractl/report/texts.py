"""Numbers as people read them, and names from documents made safe to show."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.files.bench_answer import BenchInput

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a fraction or a small quantity as text; a dash where there is none.

    Args:
        value: the number.
        digits: behind the point; fewer for large numbers, and a power of ten for those that would be shown as 0.
    """
    if value is None:
        return "-"
    smallest_shown = 10**-digits
    if value != 0 and abs(value) < smallest_shown:
        digits_of_factor = max(digits - 2, 1)
        return f"{value:.{digits_of_factor}e}"
    if abs(value) < 100:
        return f"{value:.{digits}f}"
    return f"{value:.1f}"


def program_words() -> list[str]:
    """Return the words that start this program in a shell: ``hydractl`` where that is found and is this installation.

    Else they name the interpreter, from the working directory where it lies below it.
    """
    folder = os.path.realpath(os.path.dirname(sys.executable))  # the interpreter itself may be a link out of it
    program = shutil.which("hydractl")
    if program is not None:
        folder_of_program = os.path.dirname(os.path.realpath(program))
        if folder_of_program == folder:
            return ["hydractl"]
    interpreter = Path(sys.executable)
    here = Path.cwd()
    if interpreter.is_relative_to(here):
        interpreter = interpreter.relative_to(here)
    return [str(interpreter), "-m", "hydractl"]


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
    """Return a size in bytes, in decimal units."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value} B"
    return f"{count_text(value)}B"


def input_text(sample: BenchInput | None) -> str:
    """Return the shape of one sample of a bench: ``3x224x224``, or ``128 tokens``; a dash where it is not known."""
    if sample is None:
        return "-"
    if sample.tokens:
        return f"{sample.tokens} tokens"
    return "x".join(map(str, sample.image or "?"))


def signed_change(before: int | None, after: int | None) -> str:
    """Return the change from one count to another, in percent; a dash where one is not known or the first is 0."""
    if not before or after is None:
        return "-"
    change = (after - before) / before
    return f"{100 * change:+.1f} %"


def duration_text(seconds: float) -> str:
    """Return a time in the unit that suits it: ``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def short_count(value: float) -> str:
    """Return a count in four characters or less: 950, 1.2k, 48k, 1.3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value < size * 0.9995:  # 999.4 is shown as 999, 999.5 as 1k
            continue
        scaled = value / size
        if scaled < 9.95:
            return f"{scaled:.1f}".removesuffix(".0") + unit
        return f"{scaled:.0f}{unit}"
    return f"{value:g}"


# Marks that reorder the text around them, and line ends that are none to most programs.
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_UNSAFE = re.compile(r"[^\w.+-]+")
_LONGEST_FILE_PART = 80  # in bytes: file systems take 255 for a whole name
_LONGEST_SHOWN = 80


def visible(text: object) -> str:
    """Return the text with what cannot be seen or stored, such as control characters, as ``\\u202e``."""
    characters = map(_visible_character, str(text))
    return "".join(characters)


def _visible_character(character: str) -> str:
    if _is_unseen(character):
        return _escaped(character)
    return character


_UNSEEN_CATEGORIES = ("Cc", "Cs", "Co", "Cn")


def _is_unseen(character: str) -> bool:
    """Return whether a character reorders text, controls a terminal, is half of one, or stands for nothing."""
    if character in _REORDERING:
        return True
    return unicodedata.category(character) in _UNSEEN_CATEGORIES


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def shown_name(name: str) -> str:
    """Return a name for a table: visible; a very long one cut in its middle, with a mark to tell it from others."""
    text = visible(name)
    if len(text) <= _LONGEST_SHOWN:
        return text
    letters_of_mark = 5
    half = _LONGEST_SHOWN // 2 - letters_of_mark
    beginning = text[:half]
    end = text[-half:]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{beginning}…{end} #{digest[:6]}"


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most ``width`` characters that still differ from each other.

    First the dotted parts go that all names end with, then those they begin with; then a name is cut on its left, and
    where that makes two names one, all are numbered.
    """
    names = _without_shared_parts(names, width, _LAST)
    names = _without_shared_parts(names, width, _FIRST)
    cut = [_end_of(name, width) for name in names]
    still_differ = len(set(cut)) == len(set(names))
    if still_differ:
        return cut
    numbered = []
    for index, name in enumerate(names):
        number = f"{index} "
        letters_left = width - len(number)
        numbered.append(number + _end_of(name, letters_left))
    return numbered


_FIRST, _LAST = 0, -1
"""Places of the part of a name that :func:`_without_shared_parts` takes away."""


def _longest_length(parts_of_names: Sequence[Sequence[str]]) -> int:
    """Return the length of the longest of names that are split at their dots; 0 without any name."""
    lengths = [len(".".join(parts)) for parts in parts_of_names]
    return max(lengths, default=0)


def _without_shared_parts(names: Sequence[str], width: int, side: int) -> list[str]:
    """Return names without the dotted parts that all have on one side, as many of them as it takes to fit.

    Every name keeps one part at least.

    Args:
        names: any.
        width: characters that the longest of them shall have.
        side: ``_FIRST`` or ``_LAST``: where parts are taken away.
    """
    parts_of_names = [name.split(".") for name in names]
    while _longest_length(parts_of_names) > width:
        parts_on_side = {parts[side] for parts in parts_of_names}
        if len(parts_on_side) > 1:
            break  # they differ there
        if any(len(parts) < 2 for parts in parts_of_names):
            break
        for parts in parts_of_names:
            del parts[side]
    return [".".join(parts) for parts in parts_of_names]


def _end_of(name: str, width: int) -> str:
    """Return a name of at most ``width`` characters: its end behind a mark, where it is longer."""
    if len(name) <= width:
        return name
    start = len(name) - width + 1
    return "…" + name[start:]


def drawn_names(names: Sequence[str], width: int = 28) -> list[str]:
    """Return names for a picture: visible, at most ``width`` characters, and different from each other."""
    names_to_draw = [visible(name) for name in names]
    return short_names(names_to_draw, width)


def file_names(names: Sequence[str]) -> list[str]:
    """Return a part of a file name for each name: letters, digits and ``.+-_`` only, different from each other.

    Two that differ in capitals only are told apart too, because some file systems do not.
    """
    parts: list[str] = []
    taken: set[str] = set()
    for name in names:
        safe = _safe_part(name)
        part = safe
        count = 1
        while part.lower() in taken:
            count += 1
            part = f"{safe}-{count}"
        taken.add(part.lower())
        parts.append(part)
    return parts


def _safe_part(name: str) -> str:
    """Return a name without accents, a dash in the place of what a file name should not hold; ``model`` if empty."""
    decomposed = unicodedata.normalize("NFKD", name)
    without_accents = decomposed.encode("ascii", "ignore").decode()
    without_unsafe = _UNSAFE.sub("-", without_accents).strip(".-")
    return without_unsafe[:_LONGEST_FILE_PART] or "model"


@cache
def _template_environment(show: Callable[[object], str], **options: Any) -> Environment:
    """Return the templates of this package, in which ``show`` writes everything that is no markup already."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def written(value: object) -> object:
        if isinstance(value, Markup):
            return value
        return show(value)

    folder = Path(__file__).with_name("templates")
    return Environment(loader=FileSystemLoader(folder), finalize=written, undefined=StrictUndefined, **options)


def template(
    name: str, show: Callable[[object], str], filters: Mapping[str, Callable[..., object]], **options: Any
) -> Template:
    """Return a template in which every text is written by ``show``, so that no text of a document becomes markup."""
    environment = _template_environment(show, **options)
    environment.filters.update(filters)
    return environment.get_template(name)
