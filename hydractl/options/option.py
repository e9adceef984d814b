"""Declaration, reading and checks of one option, whether it comes from a flag, a variable, YAML or Python."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from hydractl.errors import did_you_mean, range_problem
from hydractl.expressions.data_sets import DataSpec, OodSet
from hydractl.jsonio import Document

Raw = str | bool | list[str] | Mapping[str, str]
"""A value as it was written, before its option reads it."""

MODEL_KINDS = ("model", "inputs", "file", "members", "rows", "documents")
"""The kinds of options that stand without a flag: one MODEL, one with INPUTs behind it, one that is a file, members,
rows, or documents."""

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits fit every 64-bit counter and seed
_PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", DataSpec: "SPEC", OodSet: "NAME=SPEC", Document: "FILE"}
_NUMBERS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Option:
    """One declared option: everything that flags, environment, YAML and help need to know.

    Attributes:
        group: the heading of the help text under which it stands.
        default: the built-in value; None means "not given".
        help: one sentence about the option; the short help shows the part before the first semicolon.
        metavar: the placeholder of the value in the help text; if None, it is made from the type or the choices.
        choices: the allowed texts; with ``reads`` only what the help lists and the shell completes.
        short: a one-letter flag such as ``-o``.
        flag: the long flag.
        at_least, at_most, above, below: the range of a number (of each number of a list).
        pattern: a regular expression for the whole text; ``metavar`` then says what is allowed, with an ``example``.
        check: raises ValueError for a wrong value (item of a list); the message follows the name of the option.
        reads: turns a text into a value of another type than those below; raises ValueError as ``check`` does. For a
            type with a method ``of_option`` it takes the flag before the text, and an object of a program behind it.
        split: the items of the list are separated by commas; else the flag is repeated for each item.
        notes: what the help says in brackets: the unit of the number, and the default in words where the value does not
            say it, as ``samples; default: all``.
        writes: whether it names an output; any other text may name a file that is read.
        copied: whether it may name a text file whose lines go into what is written, such as class names.
        flag_only: whether it is given on the command line or in Python alone: no file and no variable can set it.
        often: whether the short help (``-h``) shows it, which has room for about a dozen options.
        name: the field of the settings dataclass.
        flagless: whether it has no flag, and can be given only in files, recipes, variables and Python calls.
        kind: what objects of a Python program it takes besides texts: one of :data:`MODEL_KINDS`, ``data``,
            ``document``; empty if it takes none.
        type: the type of the value, or of the items of a list: ``str``, ``int``, ``float``, ``bool`` or what ``reads``
            returns.
        many: whether the value is a list.
    """

    group: str
    default: Any
    help: str
    _: KW_ONLY
    metavar: str | None = None
    choices: Sequence[str] = ()
    short: str | None = None
    flag: str = ""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str | None = None
    example: str = ""
    check: Callable[[Any], object] | None = None
    reads: Callable[..., Any] | None = None
    split: bool = False
    notes: str = ""
    writes: bool = False
    copied: bool = False
    flag_only: bool = False
    often: bool = False
    flagless: bool = False
    kind: str = ""
    name: str = ""
    type: type = str
    many: bool = False

    @property
    def key(self) -> str:
        """The option's name in YAML; in capitals after ``HYDRACTL_`` it is the environment variable."""
        return self.flag[2:].replace("-", "_")

    @property
    def label(self) -> str:
        """The name in messages: ``MODEL``, or the flag, or the key if it has no flag."""
        if self.kind in MODEL_KINDS:
            return "MODEL"
        return self.key if self.flagless else self.flag

    @property
    def takes_data(self) -> bool:
        """Whether it takes one data set or several."""
        return self.type in (DataSpec, OodSet)

    @property
    def takes_names(self) -> bool:
        """Whether the items of the list are ``NAME=VALUE``; YAML and Python may give a mapping."""
        return self.type is OodSet

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HYDRACTL_{self.key.upper()}"

    def fresh_default(self) -> Any:
        """Return the built-in value; a list is copied, so that changing it does not change the default."""
        return list(self.default) if isinstance(self.default, list) else self.default

    def placeholder(self) -> str:
        """Return the value as the help text writes it, e.g. ``N`` or ``a|b``; empty for a switch."""
        if self.metavar is not None:
            return self.metavar
        if self.type is bool:
            return ""
        if self.split:
            return "N,..." if self.type is int else "NAME,..."
        if self.choices:
            return "|".join(self.choices)
        return _PLACEHOLDERS[self.type]

    def described(self, *, short: bool = False) -> str:
        """Return the help sentence with notes in brackets: ``Samples in a batch [samples; default: 64]``.

        The default stands there unless the notes of the option tell one in words, or it has none.

        Args:
            short: whether to stop at the first semicolon.
        """
        text = self.help.partition("; ")[0] if short else self.help
        notes = [self.notes] if self.notes else []
        if self.default not in (None, []) and "default: " not in self.notes:
            notes.append(f"default: {value_text(self.default)}")
        return f"{text} [{'; '.join(notes)}]" if notes else text

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, given: Any) -> Any:
        """Return the typed value of what a flag, a variable, a YAML file or a Python program gives.

        Args:
            given: a switch, a text, or texts in a list or by name; of a program a value, or several, of any type.

        Raises:
            ValueError: the value cannot be read; each of its arguments is the rest of a sentence that starts with the
                option's name.
        """
        if self.many:
            return self._read_items(given)
        if isinstance(given, list | Mapping):
            shape = "list" if isinstance(given, list) else "mapping"
            raise ValueError(f"takes one value, not a {shape}")
        return self._read_item(given)

    def _read_items(self, given: Any) -> list[Any]:
        """Return the typed values of an option that takes several.

        They come as a sequence, a mapping ``{NAME: VALUE}`` (if the option takes names), a text with commas (if
        ``split``: ``"a,b"``), or a single item.

        Raises:
            ValueError: there is no item, some cannot be read, or a mapping is given to an option that takes no names.
        """
        is_several = isinstance(given, Sequence) and not isinstance(given, str)
        items = list(given) if is_several else [given]
        if isinstance(given, Mapping):
            if not self.takes_names:
                raise ValueError("must be a list, not a mapping")
            items = list(given.items())
        elif self.split:  # each text may hold several items
            items = [part.strip() for text in items for part in str(text).split(",")]
        if not items:
            raise ValueError("must not be empty")

        # Read every item, so that all problems are reported at once.
        values = []
        problems: list[str] = []
        for item in items:
            try:
                values.append(self._read_item(item))
            except ValueError as error:
                problems += error.args
        if problems:
            raise ValueError(*problems)
        return values

    def _read_item(self, given: Any) -> Any:
        """Return one value, or one item of a list, in the type of the option.

        Raises:
            ValueError: it cannot be read as a value of the option's type.
        """
        # Forms that only a Python program or a mapping gives.
        if isinstance(given, tuple) and self.takes_names:  # a name, and a text or an object
            name, named = given
            assert self.reads is not None  # what takes names is of a type of its own
            return self.reads(f"{name}={named}", getattr(named, "held", None))
        if hasattr(given, "item") and getattr(given, "ndim", None) == 0:  # a number of numpy or torch
            given = given.item()
        if isinstance(given, str) and not given.strip():
            raise ValueError("must not be empty")

        # By the type of the option: a switch, a number, data, an object of the option's own type, else a text.
        if self.type is bool:
            return _read_switch(given)
        if self.type in (int, float):
            return self._read_number(given)
        if isinstance(given, DataSpec | OodSet):  # another option may have received it
            return given.under(self.flag)  # the same data, which messages name by this option
        if self.reads is not None and isinstance(given, self.type):
            return given
        text = _read_text(given)
        if self.pattern is not None and not re.fullmatch(self.pattern, text):
            raise ValueError(f"must be {self.placeholder()}, such as {self.example}, not {text!r}")
        return text if self.reads is None else self.reads(text)

    def _read_number(self, given: Any) -> Any:
        """Return a finite number in the type of the option.

        A number of a Python program is read as the text of it, so that an int may stand for a float, and a bool for
        neither.

        Raises:
            ValueError: this is no such number.
        """
        text = str(given).strip().lower()
        number = math.nan  # not a number, until one is read
        if self.type is float or _INTEGER.fullmatch(text):  # int() would also take "1_000", and any length
            with contextlib.suppress(ValueError):
                number = self.type(text)
        if not math.isfinite(number):  # no number was read, or it is NaN or infinite
            raise ValueError(f"must be {_NUMBERS[self.type]}, not {given!r}")
        return number

    # --- writing ------------------------------------------------------------------------------------------------------

    def words(self, value: object) -> list[str]:
        """Return the words that give the option this value on the command line: the inverse of :meth:`read`.

        ``["--keep", "8"]``; for a switch ``["--resume"]`` or ``["--no-resume"]``; for several values the flag before
        each, or once before all with commas if ``split``.
        """
        flag = self.short or self.flag
        if self.type is bool:
            return [flag] if value else [f"--no-{self.flag[2:]}"]
        texts = list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
        if self.split:
            texts = [",".join(texts)]
        words = []
        for text in texts:
            words += [flag, text]
        return words

    # --- checking -----------------------------------------------------------------------------------------------------

    def complaints(self, value: Any) -> list[str]:
        """Return the problems of a typed value, e.g. ``must be at least 1, not 0``; empty if it breaks no rule.

        Each is the rest of a sentence that starts with the option's name. None means "not given" and breaks no rule.
        """
        if value is None:
            return []
        items = value if self.many else [value]
        problems = [problem for problem in map(self._complaint, items) if problem is not None]

        # Rules of the list as a whole: with commas no item twice; of named data sets no name twice.
        if self.many and self.split and len(set(value)) < len(value):
            listed = ",".join(map(str, value))
            problems.append(f"lists something twice: {listed}")
        names = [item.name for item in items if self.type is OodSet]
        repeated = {name for name in names if names.count(name) > 1}
        problems += [f"has the name {name!r} twice" for name in sorted(repeated)]
        return problems

    def _complaint(self, value: Any) -> str | None:
        """Return a sentence on the first rule that one value breaks, in the order below; None if it keeps all.

        The rules: it is one of ``choices``, in the range of the bounds, and ``check`` does not raise.
        """
        # With ``reads`` the choices are examples for the help, and other texts may be read.
        if self.choices and self.reads is None and value not in self.choices:
            listed = ", ".join(self.choices)
            guess = did_you_mean(str(value), self.choices)
            return f"must be one of {listed}, not {value!r}{guess}"

        problem = range_problem(value, self.at_least, self.at_most, self.above, self.below)
        if problem is not None:
            return problem
        try:
            if self.check is not None:
                self.check(value)
        except ValueError as error:
            return str(error)
        return None


def _read_switch(given: Any) -> bool:
    """Return True or False; ValueError for what means neither."""
    text = str(given).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"must be true or false, not {given!r}")


def _read_text(given: Any) -> str:
    """Return a text, a path, or a number as text; ValueError for any other value or an empty text."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str):
        raise ValueError(f"must be a text, not {type(given).__name__}")
    if not given.strip():
        raise ValueError("must not be empty")
    return given


def value_text(value: Any) -> str:
    """Return a value as one would write it after its flag."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(value_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def either(words: Sequence[str]) -> str:
    """Return words as a list, e.g. ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def ends_in(*endings: str, any_case: bool = False) -> Callable[[str], None]:
    """Return a check that a file name has one of these endings; with ``any_case`` capitals count, too."""
    wanted = either(endings)

    def check_ending(name: str) -> None:
        """Raise ValueError if a file name has none of the endings."""
        if not (name.lower() if any_case else name).endswith(endings):
            raise ValueError(f"must end in {wanted}, not {name!r}")

    return check_ending
