"""Numbers as text for people, and names from documents made safe to show."""

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
    """Return a fraction or a small quantity as text; a dash for None.

    Args:
        value: the number.
        digits: the digits after the point. Numbers from 100 on have one digit; numbers that would look like 0 are
            written with a power of ten.
    """
    if value is None:
        return "-"

    # A smaller number would be shown as 0, so it is written with a power of ten and fewer digits.
    smallest_shown = 10**-digits
    if value != 0 and abs(value) < smallest_shown:
        digits_of_factor = max(digits - 2, 1)
        return f"{value:.{digits_of_factor}e}"
    if abs(value) < 100:
        return f"{value:.{digits}f}"
    return f"{value:.1f}"


def program_words() -> list[str]:
    """Return the words that start this program in a shell.

    They are ``hydractl`` if the shell finds it and it belongs to this installation. Otherwise they name the
    interpreter, by its path from the working directory if it lies below that: ``.venv/bin/python -m hydractl``.
    """
    # Resolve links in the folder only: the interpreter itself may be a link to one elsewhere.
    folder = os.path.realpath(os.path.dirname(sys.executable))
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
    """Return a count with K, M or G for thousands, millions and billions; a dash for None."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return str(value)


def params_text(params: float | None, nonzero: int | None) -> str:
    """Return a number of parameters as text, e.g. ``21.67 M (19.31 M nonzero)`` if the nonzero ones are counted."""
    text = count_text(params)
    if nonzero is None:
        return text
    return f"{text} ({count_text(nonzero)} nonzero)"


def bytes_text(value: int | None) -> str:
    """Return a size in bytes as text in decimal units; a dash for None."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value} B"
    return f"{count_text(value)}B"


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
    change = (after - before) / before
    return f"{100 * change:+.1f} %"


def duration_text(seconds: float) -> str:
    """Return a time in a suitable unit: ``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def short_count(value: float) -> str:
    """Return a count in at most four characters: 950, 1.2k, 48k, 1.3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value < size * 0.9995:  # 999.4 is shown as 999, 999.5 as 1k
            continue
        scaled = value / size
        if scaled < 9.95:
            return f"{scaled:.1f}".removesuffix(".0") + unit
        return f"{scaled:.0f}{unit}"
    return f"{value:g}"


# Characters that reorder the text around them, and line ends that most programs do not know.
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_UNSAFE = re.compile(r"[^\w.+-]+")
_LONGEST_FILE_PART = 80  # in bytes: file systems allow 255 for a whole name
_LONGEST_SHOWN = 80


def visible(text: object) -> str:
    r"""Return a text in which what cannot be seen or stored, e.g. control characters, is written as ``\u202e``."""
    characters = map(_visible_character, str(text))
    return "".join(characters)


def _visible_character(character: str) -> str:
    if _is_unseen(character):
        return _escaped(character)
    return character


_UNSEEN_CATEGORIES = ("Cc", "Cs", "Co", "Cn")


def _is_unseen(character: str) -> bool:
    """Return whether a character reorders text, controls a terminal, is half of a pair, or has no meaning."""
    if character in _REORDERING:
        return True
    return unicodedata.category(character) in _UNSEEN_CATEGORIES


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def shown_name(name: str) -> str:
    """Return a name for a table, with unseen characters escaped.

    A very long name is cut in its middle, and gets the start of its hash to tell it from others.
    """
    text = visible(name)
    if len(text) <= _LONGEST_SHOWN:
        return text

    # Each half gives up five letters: for "…" between them, and for " #" and six digits of the hash behind them.
    letters_of_mark = 5
    half = _LONGEST_SHOWN // 2 - letters_of_mark
    beginning = text[:half]
    end = text[-half:]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{beginning}…{end} #{digest[:6]}"


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most ``width`` characters that are still different from each other.

    First, dotted parts that all names end with are removed, then dotted parts that all begin with. Then names are cut
    on their left. If two names become equal by that, all names are numbered.

    Args:
        names: the names, e.g. "blocks.0.attn" and "blocks.1.attn".
        width: the largest number of characters.
    """
    # Take away what all names share at their end and at their beginning, and cut what is still too long.
    names_without_ending = _without_shared_parts(names, width, _LAST)
    distinct_parts = _without_shared_parts(names_without_ending, width, _FIRST)
    cut_names = [_end_of(name, width) for name in distinct_parts]
    still_differ = len(set(cut_names)) == len(set(distinct_parts))
    if still_differ:
        return cut_names

    numbered = []
    for index, name in enumerate(distinct_parts):
        prefix = f"{index} "
        letters_left = width - len(prefix)
        numbered.append(prefix + _end_of(name, letters_left))
    return numbered


_FIRST, _LAST = 0, -1
"""The index of the part of a name that :func:`_without_shared_parts` removes."""


def _longest_length(parts_of_names: Sequence[Sequence[str]]) -> int:
    """Return the length of the longest name; names are given as their dotted parts; 0 if there are none."""
    lengths = [len(".".join(parts)) for parts in parts_of_names]
    return max(lengths, default=0)


def _without_shared_parts(names: Sequence[str], width: int, side: int) -> list[str]:
    """Return names without dotted parts that all share on one side, until the longest name fits ``width``.

    Every name keeps at least one part.

    Args:
        names: the names, e.g. "blocks.0.attn" and "blocks.1.attn", which share "attn" at the end.
        width: the number of characters that the longest name should have at most.
        side: the end where parts are removed: ``_FIRST`` or ``_LAST``.
    """
    parts_of_names = [name.split(".") for name in names]
    while _longest_length(parts_of_names) > width:
        parts_on_side = {parts[side] for parts in parts_of_names}
        if len(parts_on_side) > 1:
            break  # the names differ on this side
        if any(len(parts) < 2 for parts in parts_of_names):
            break  # a name would lose its last part
        for parts in parts_of_names:
            del parts[side]
    return [".".join(parts) for parts in parts_of_names]


def _end_of(name: str, width: int) -> str:
    """Return the last ``width`` characters of a longer name, with "…" as the first of them; a shorter name as it is."""
    if len(name) <= width:
        return name
    start = len(name) - width + 1
    return "…" + name[start:]


def drawn_names(names: Sequence[str], width: int = 28) -> list[str]:
    """Return names for a picture: visible, at most ``width`` characters long, and different from each other."""
    names_to_draw = [visible(name) for name in names]
    return short_names(names_to_draw, width)


def file_names(names: Sequence[str]) -> list[str]:
    """Return a part of a file name for each name: only letters, digits and ``.+-_``, all different.

    Names that differ only in capitals get different parts, too, because some file systems ignore capitals.
    """
    parts: list[str] = []
    used_parts: set[str] = set()
    for name in names:
        safe = _safe_part(name)
        part = safe
        # Add -2, -3 and so on until the part is new.
        count = 1
        while part.lower() in used_parts:
            count += 1
            part = f"{safe}-{count}"
        used_parts.add(part.lower())
        parts.append(part)
    return parts


def _safe_part(name: str) -> str:
    """Return a name without accents and with a dash for characters that a file name should not have.

    ``model`` if empty.
    """
    decomposed = unicodedata.normalize("NFKD", name)
    without_accents = decomposed.encode("ascii", "ignore").decode()
    without_unsafe = _UNSAFE.sub("-", without_accents).strip(".-")
    return without_unsafe[:_LONGEST_FILE_PART] or "model"


@cache
def _template_environment(show: Callable[[object], str], **options: Any) -> Environment:
    """Return the environment of this package's templates; ``show`` writes every value that is not yet markup."""
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
    """Return a template in which ``show`` writes every text, so that a text of a document cannot become markup.

    Args:
        name: the file of the template.
        show: returns a value as text, escaped for the language of the template.
        filters: further functions that the template may call, by name.
        options: options of the jinja2 environment.
    """
    environment = _template_environment(show, **options)
    environment.filters.update(filters)
    return environment.get_template(name)
