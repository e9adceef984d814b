"""Declaration, reading and checks of one option, whether it comes from a flag, a variable, YAML or Python."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from hydractl.errors import did_you_mean
from hydractl.expressions.data_sets import DataSpec, OodSet

Raw = str | bool | list[str] | Mapping[str, str]
"""A value as it was written, before its option reads it."""

MODEL_KINDS = ("model", "inputs", "file", "members", "rows", "documents")
"""The kinds of options that stand without a flag: one MODEL, one with INPUTs behind it, one that is a file, members,
rows, or documents."""

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits fit every 64-bit counter and seed
_NUMBERS = {int: "a whole number", float: "a number"}
_NOTES = re.compile(r"(?P<help>.*?)( \[(?P<unit>(?!default: )[^;\]]+)?(; )?(default: (?P<default>.+))?\])?")


class Refusal(NamedTuple):
    """A rule that a value breaks.

    Attributes:
        rule: what the value must be: the rest of a sentence that starts with the name of the option.
        shown: the value as the command line shows it; empty if the rule mentions it already.
        guess: what was probably meant, with the punctuation before it.
    """

    rule: str
    shown: str = ""
    guess: str = ""

    def sentence(self) -> str:
        """Return the rule, the value and the guess as one sentence."""
        if not self.shown:
            return f"{self.rule}{self.guess}"
        return f"{self.rule}, not {self.shown}{self.guess}"


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
        repeats: a list with commas may hold an item twice.
        names: the items of the list are ``NAME=VALUE``; YAML may give a mapping.
        unit: the unit of the number.
        word: a word that is allowed instead of a number.
        default_text: what the help says of the default, if the value does not say it.
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
    repeats: bool = False
    names: bool = False
    unit: str | None = None
    word: str | None = None
    default_text: str | None = None
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
        without_dashes = self.flag[2:]
        return without_dashes.replace("-", "_")

    @property
    def label(self) -> str:
        """The name in messages: ``MODEL``, or the flag, or the key if it has no flag."""
        if self.kind in MODEL_KINDS:
            return "MODEL"
        if self.flagless:
            return self.key
        return self.flag

    @property
    def takes_data(self) -> bool:
        """Whether it takes one data set or several."""
        return self.type in (DataSpec, OodSet)

    @property
    def may_name_inputs(self) -> bool:
        """Whether it may name files that are read."""
        takes_names = self.type is str or hasattr(self.type, "of_option")
        return takes_names and not self.writes and not self.choices

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HYDRACTL_{self.key.upper()}"

    def fresh_default(self) -> Any:
        """Return the built-in value; a list is copied, so that changing it does not change the default."""
        if isinstance(self.default, list):
            return list(self.default)
        return self.default

    def placeholder(self) -> str:
        """Return the value as the help text writes it, e.g. ``N`` or ``a|b``; empty for a switch."""
        if self.metavar is not None:
            return self.metavar
        if self.type is bool:
            return ""
        if self.choices:
            return "|".join(self.choices)
        placeholder_by_type = {int: "N", float: "X", str: "TEXT"}
        return placeholder_by_type[self.type]

    def default_words(self) -> str:
        """Return the built-in value in words; empty if there is none."""
        if self.default_text is not None:
            return self.default_text
        if self.default in (None, []):
            return ""
        return value_text(self.default)

    def described(self, *, short: bool = False) -> str:
        """Return the help sentence with the unit and the default in brackets.

        Args:
            short: whether to stop at the first semicolon.
        """
        text = self.help
        if short:
            text = text.partition("; ")[0]
        notes = []
        if self.unit:
            notes.append(self.unit)
        default = self.default_words()
        if default:
            notes.append(f"default: {default}")
        if not notes:
            return text
        joined = "; ".join(notes)
        return f"{text} [{joined}]"

    # --- reading text -------------------------------------------------------------------------------------------------

    def parse(self, raw: Raw) -> Any:
        """Return the typed value of what a flag, a variable or a YAML file gives.

        Raises:
            ValueError: the value cannot be read; each of its arguments is the rest of a sentence that starts with the
                option's name.
        """
        if isinstance(raw, bool):
            return raw
        if self.many:
            return _all_read(self._parse_item, self._items(raw))
        if isinstance(raw, str):
            return self._parse_item(raw)
        shape = "mapping"
        if isinstance(raw, list):
            shape = "list"
        raise ValueError(f"takes one value, not a {shape}")

    def _items(self, raw: str | list[str] | Mapping[str, str]) -> list[str]:
        """Return the texts of the items of a list: parts between commas, texts of a YAML list, or ``NAME=VALUE``.

        Raises:
            ValueError: there is no item, or a mapping is given to an option whose items have no names.
        """
        if isinstance(raw, Mapping):
            if not self.names:
                raise ValueError("takes a list, not a mapping")
            return [f"{name}={value}" for name, value in raw.items()]

        # A text is a list of one; with `split` each text may hold several items.
        if isinstance(raw, str):
            texts_given = [raw]
        else:
            texts_given = list(raw)
        items = texts_given
        if self.split:
            items = []
            for text in texts_given:
                items += [part.strip() for part in text.split(",")]
        if not items:
            raise ValueError("must not be empty")
        return items

    def _parse_item(self, text: str) -> Any:
        """Return the typed value of the text of one value, or of one item of a list.

        Raises:
            ValueError: the text cannot be read as a value of the option's type.
        """
        if not text.strip():
            raise ValueError("must not be empty")

        # A text, or a type of its own, which has a function that reads it.
        if self.type is str:
            return text
        if self.reads is not None:
            return self.reads(text)

        # A switch, or a number. A word such as "auto" may stand in place of a number.
        lower_text = text.strip().lower()
        if self.type is bool:
            return _parse_switch(lower_text, text)
        if lower_text == self.word:
            return lower_text
        if self.type is int:
            if _INTEGER.fullmatch(lower_text):
                return int(lower_text)
            raise ValueError(f"{self._number_rule()}, not {text!r}")
        return _parse_finite(lower_text, text)

    def _number_rule(self) -> str:
        """Return the rule that a value of this type must keep, such as ``must be a whole number or auto``."""
        rule = f"must be {_NUMBERS[self.type]}"
        if self.word and self.type is int:
            rule += f" or {self.word}"
        return rule

    # --- taking Python values -----------------------------------------------------------------------------------------

    def take(self, value: object) -> Any:
        """Return a Python argument in the form that the settings hold; numbers are not read from texts.

        Args:
            value: one value, or several if the option takes a list; scalars of numpy and torch count as numbers.

        Raises:
            ValueError: the value is of a wrong type; each of its arguments is the rest of a sentence that starts with
                the argument.
        """
        if not self.many:
            return self._take_item(value)

        # A list may come as a mapping NAME: VALUE, as a text with commas, as a sequence, or as a single item.
        items: list[Any]
        if isinstance(value, Mapping):
            if not self.names:
                raise ValueError("must be a list, not a mapping")
            items = list(value.items())
        elif isinstance(value, str):
            items = self._items(value)
        elif isinstance(value, Sequence):
            items = list(value)
        else:
            items = [value]
        if not items:
            raise ValueError("must not be empty")
        if isinstance(value, Mapping):
            return _all_read(self._take_named, items)
        return _all_read(self._take_item, items)

    def _take_named(self, item: tuple[object, object]) -> Any:
        """Return the value of a name and what a mapping has for it: a text, or what stands for an object."""
        name, named = item
        assert self.reads is not None  # what takes names is of a type of its own
        return self.reads(f"{name}={named}", getattr(named, "held", None))

    def _take_item(self, value: object) -> Any:
        """Return one value of a Python program, or one item of a list, in the type of the option.

        Raises:
            ValueError: the value is of another type.
        """
        is_scalar_of_a_library = hasattr(value, "item") and getattr(value, "ndim", None) == 0
        if is_scalar_of_a_library:  # e.g. of numpy or torch
            value = value.item()  # type: ignore[attr-defined]

        # A switch, or a text.
        if self.type is bool:
            return _take_switch(value)
        if self.type is str:
            return _take_text(value)

        # A type of its own: such an object, or a text that its function reads.
        if self.reads is not None:
            if isinstance(value, self.type):
                if isinstance(value, DataSpec | OodSet):  # another option may have received it
                    return value.under(self.flag)
                return value
            return self.reads(_take_text(value))

        # A number. A word such as "auto" may stand in its place.
        if self.word is not None and value == self.word:
            return value
        return self._take_number(value)

    def _take_number(self, value: object) -> Any:
        """Return a number in the type of the option; an int is accepted for a float, a bool for neither.

        Raises:
            ValueError: the value is no number of this type, or not finite.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(self._number_rule())
        if self.type is int and not isinstance(value, int):
            raise ValueError(self._number_rule())
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return self.type(value)

    # --- writing ------------------------------------------------------------------------------------------------------

    def words(self, value: object) -> list[str]:
        """Return the words that give the option a value on the command line: the inverse of :meth:`parse`.

        Args:
            value: a value as :meth:`take` takes it.
        """
        flag = self.short or self.flag
        if self.type is bool:
            return [flag] if value else [f"--no-{self.flag[2:]}"]
        texts = [str(value)]
        if isinstance(value, list | tuple):
            texts = [str(item) for item in value]
        if self.split:
            texts = [",".join(texts)]
        words = []
        for text in texts:
            words += [flag, text]
        return words

    # --- checking -----------------------------------------------------------------------------------------------------

    def complaints(self, value: Any) -> list[str]:
        """Return the problems of a typed value; each is the rest of a sentence that starts with the option's name."""
        refusals = self.refusals(value)
        return [refusal.sentence() for refusal in refusals]

    def refusals(self, value: Any) -> list[Refusal]:
        """Return the rules that a typed value breaks; None means "not given" and breaks no rule."""
        if value is None:
            return []
        items = [value]
        if self.many:
            items = value
        refusals = []
        for item in items:
            refusal = self._first_refusal(item)
            if refusal is not None:
                refusals.append(refusal)

        # A list with commas may not hold an item twice, if the option does not allow it.
        may_not_repeat = self.many and self.split and not self.repeats
        if may_not_repeat and len(set(value)) < len(value):
            listed = ",".join(map(str, value))
            refusals.append(Refusal(f"lists something twice: {listed}"))
        return refusals

    def _first_refusal(self, value: Any) -> Refusal | None:
        """Return the first rule that a value breaks, of choices, pattern, range and ``check``; None if it keeps all."""
        if value == self.word:  # such as "auto" in place of a number
            return None
        if self.choices and self.reads is None and value not in self.choices:
            listed = ", ".join(self.choices)
            guess = did_you_mean(str(value), self.choices)
            return Refusal(f"must be one of {listed}", repr(value), guess)
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            form = self.placeholder()
            return Refusal(f"must be {form}, such as {self.example}", repr(value))

        broken_bound = self._broken_bound(value)
        if broken_bound is not None:
            return Refusal(broken_bound, str(value))

        if self.check is None:
            return None
        try:
            self.check(value)
        except ValueError as error:
            return Refusal(str(error))
        return None

    def _broken_bound(self, value: Any) -> str | None:
        """Return the bound that a number is beyond, as a rule in words; None if the number is within the range."""
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below}"
        return None


def _parse_switch(plain: str, text: str) -> bool:
    """Return True or False for the text of a switch.

    Args:
        plain: the text in lower case, without spaces around it.
        text: the text as it was given, for the message.

    Raises:
        ValueError: the text means neither true nor false.
    """
    if plain in _TRUE:
        return True
    if plain in _FALSE:
        return False
    raise ValueError(f"must be true or false, not {text!r}")


def _parse_finite(plain: str, text: str) -> float:
    """Return the number that a text writes.

    Args:
        plain: the text in lower case, without spaces around it.
        text: the text as it was given, for the message.

    Raises:
        ValueError: the text is no number, or not a finite one.
    """
    try:
        number = float(plain)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a number, not {text!r}")
    return number


def _take_switch(value: object) -> bool:
    """Return True or False unchanged; ValueError for any other value."""
    if isinstance(value, bool):
        return value
    raise ValueError("must be True or False")


def _take_text(value: object) -> str:
    """Return a text, a path, or a number as text; ValueError for any other value or an empty text."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _all_read(read: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return what the items of a list are; ValueError with a message for each that cannot be read."""
    values = []
    problems: list[str] = []
    for item in items:
        try:
            values.append(read(item))
        except ValueError as error:
            problems += error.args
    if problems:
        raise ValueError(*problems)
    return values


def value_text(value: Any) -> str:
    """Return a value as one would write it after its flag."""
    if isinstance(value, bool):
        if value:
            return "on"
        return "off"
    if isinstance(value, list):
        return ",".join(value_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def ends_in(*endings: str, any_case: bool = False) -> Callable[[str], None]:
    """Return a check that a file name has one of these endings; with ``any_case`` capitals count, too."""
    *others, last = endings
    wanted = last
    if others:
        listed = ", ".join(others)
        wanted = f"{listed} or {last}"

    def check_ending(name: str) -> None:
        """Raise ValueError if a file name has none of the endings."""
        compared = name
        if any_case:
            compared = name.lower()
        if not compared.endswith(endings):
            raise ValueError(f"must end in {wanted}, not {name!r}")

    return check_ending
