"""Declaration, reading and checks of one option; used for flags, environment, YAML and arguments of Python."""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, NamedTuple

from hydractl.errors import did_you_mean
from hydractl.jsonio import held_as

Raw = str | bool | list[str] | Mapping[str, str]
"""A value as it was given, before its option has read it."""

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits fit every 64-bit counter and seed
_NUMBERS = {int: "a whole number", float: "a number"}
_NOTES = re.compile(r"(?P<help>.*?)( \[(?P<unit>(?!default: )[^;\]]+)?(; )?(default: (?P<default>.+))?\])?")


class Refusal(NamedTuple):
    """A rule that a value breaks.

    Attributes:
        rule: what the value must be; the rest of a sentence that starts with the name of the option.
        shown: the value as the command line shows it; empty where the rule speaks of it already.
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
        group: the heading of the help text it stands under.
        default: the built-in value; None means "not given".
        help: what the option is, one sentence; the short help has what is before its first semicolon.
        metavar: the placeholder of the value in the help text; made from the type or the choices if not given.
        choices: the texts allowed.
        short: a one-letter flag such as ``-o``.
        flag: the long flag.
        at_least, at_most, above, below: the range of a number (of each number of a list).
        pattern: a regular expression for the whole text; ``metavar`` then says what is allowed, with an ``example``.
        check: raises ValueError for a wrong value (item of a list), with what follows the name of the option.
        reads: makes a value of a type of its own from a text; raises ValueError as ``check`` does.
        split: a list written with commas; without it, a list repeats its flag.
        repeats: such a list may have an item twice.
        names: a list whose items are ``NAME=VALUE``; YAML may give a mapping.
        unit: the unit of the number.
        word: what is allowed in place of a number.
        default_text: what the help says of the default where the value does not say it.
        writes: whether it names what is written; any other text may name a file that is read.
        often: whether the short help (``-h``) shows it, which has room for about a dozen.
        name: the field of the settings dataclass.
        flagless: whether it has no flag: a key of files, recipes and variables alone, and an argument in Python.
        type: ``str``, ``int``, ``float``, ``bool`` or what ``reads`` gives: of the value, or of the items of a list.
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
    reads: Callable[[str], Any] | None = None
    split: bool = False
    repeats: bool = False
    names: bool = False
    unit: str | None = None
    word: str | None = None
    default_text: str | None = None
    writes: bool = False
    often: bool = False
    flagless: bool = False
    name: str = ""
    type: type = str
    many: bool = False

    @property
    def key(self) -> str:
        """The name in YAML and, in capitals after ``HYDRACTL_``, in the environment."""
        without_dashes = self.flag[2:]
        return without_dashes.replace("-", "_")

    @property
    def label(self) -> str:
        """The name in messages: ``MODEL``, or the flag, or the key of what has none."""
        if self.name == "model":
            return "MODEL"
        if self.flagless:
            return self.key
        return self.flag

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HYDRACTL_{self.key.upper()}"

    def fresh_default(self) -> Any:
        """The built-in value, a list of its own where it is a list."""
        if isinstance(self.default, list):
            return list(self.default)
        return self.default

    def placeholder(self) -> str:
        """The value as written in the help text; empty for a switch."""
        if self.metavar is not None:
            return self.metavar
        if self.type is bool:
            return ""
        if self.choices:
            return "|".join(self.choices)
        placeholder_by_type = {int: "N", float: "X", str: "TEXT"}
        return placeholder_by_type[self.type]

    def default_words(self) -> str:
        """The built-in value in words; empty if there is none."""
        if self.default_text is not None:
            return self.default_text
        if self.default in (None, []):
            return ""
        return value_text(self.default)

    def described(self, *, short: bool = False) -> str:
        """Return what the option is, with its unit and default."""
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
        """Return the typed value of a text: of a flag, a variable or a YAML file.

        Raises:
            ValueError: with the rest of a sentence that starts with the name of the option.
        """
        if isinstance(raw, bool):
            return raw
        if self.many:
            return [self._parse_item(item) for item in self._items(raw)]
        if isinstance(raw, str):
            return self._parse_item(raw)
        shape = "mapping"
        if isinstance(raw, list):
            shape = "list"
        raise ValueError(f"takes one value, not a {shape}")

    def _items(self, raw: str | list[str] | Mapping[str, str]) -> list[str]:
        """Return the texts of the items of a list: parts between commas, texts of a YAML list, or ``NAME=VALUE``.

        Raises:
            ValueError: there is none, or a mapping is given to an option whose items have no names.
        """
        if isinstance(raw, Mapping):
            if not self.names:
                raise ValueError("takes a list, not a mapping")
            return [f"{name}={value}" for name, value in raw.items()]
        if isinstance(raw, str):
            texts = [raw]
        else:
            texts = list(raw)
        items = texts
        if self.split:
            items = []
            for text in texts:
                items += [part.strip() for part in text.split(",")]
        if not items:
            raise ValueError("must not be empty")
        return items

    def _parse_item(self, text: str) -> Any:
        """Return the typed value of the text of one item, or of the only one.

        Raises:
            ValueError: it cannot be read as a value of this type.
        """
        if not text.strip():
            raise ValueError("must not be empty")
        if self.type is str:
            return text
        if self.reads is not None:
            return self.reads(text)
        plain = text.strip().lower()
        if self.type is bool:
            return _parse_switch(plain, text)
        if plain == self.word:
            return plain
        if self.type is int:
            if _INTEGER.fullmatch(plain):
                return int(plain)
            raise ValueError(f"{self._number_rule()}, not {text!r}")
        return _parse_finite(plain, text)

    def _number_rule(self) -> str:
        """Return what a value of this type must be, such as ``must be a whole number or auto``."""
        rule = f"must be {_NUMBERS[self.type]}"
        if self.word and self.type is int:
            rule += f" or {self.word}"
        return rule

    # --- taking Python values -----------------------------------------------------------------------------------------

    def take(self, value: object) -> Any:
        """Return the value of a Python argument as the settings hold it; numbers are never read from text.

        Args:
            value: one value, or several where the option takes a list; scalars of numpy and torch count as numbers.

        Raises:
            ValueError: with the rest of a sentence that starts with the argument.
        """
        if not self.many:
            return self._take_item(value)
        items: list[Any]
        if isinstance(value, Mapping):
            if not self.names:
                raise ValueError("must be a list, not a mapping")
            items = [_named_item(name, item) for name, item in value.items()]
        elif isinstance(value, str):
            items = self._items(value)
        elif isinstance(value, Sequence):
            items = list(value)
        else:
            items = [value]
        if not items:
            raise ValueError("must not be empty")
        return [self._take_item(item) for item in items]

    def _take_item(self, value: object) -> Any:
        """Return one value of a Python program, or one item of a list, in the type of the option.

        Raises:
            ValueError: it is of another type.
        """
        is_scalar_of_a_library = hasattr(value, "item") and getattr(value, "ndim", None) == 0
        if is_scalar_of_a_library:  # of numpy or torch
            value = value.item()  # type: ignore[attr-defined]
        if self.type is bool:
            return _take_switch(value)
        if self.type is str:
            return _take_text(value)
        if self.reads is not None:
            if isinstance(value, self.type):
                return value
            return self.reads(_take_text(value))
        if self.word is not None and value == self.word:
            return value
        return self._take_number(value)

    def _take_number(self, value: object) -> Any:
        """Return a number in the type of the option; a whole number will do for any, a switch for none.

        Raises:
            ValueError: it is no number of this type, or not finite.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(self._number_rule())
        if self.type is int and not isinstance(value, int):
            raise ValueError(self._number_rule())
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return self.type(value)

    # --- checking -----------------------------------------------------------------------------------------------------

    def complaints(self, value: Any) -> list[str]:
        """List the problems of a typed value; each a sentence that starts after the name of the option."""
        refusals = self.refusals(value)
        return [refusal.sentence() for refusal in refusals]

    def refusals(self, value: Any) -> list[Refusal]:
        """Return the rules that a typed value breaks; None, which is "not given", breaks none."""
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
        may_not_repeat = self.many and self.split and not self.repeats
        if may_not_repeat and len(set(value)) < len(value):
            listed = ",".join(map(str, value))
            refusals.append(Refusal(f"lists something twice: {listed}"))
        return refusals

    def _first_refusal(self, value: Any) -> Refusal | None:
        """Return the first rule that one value breaks, of choices, pattern, range and ``check``; None for none."""
        if value == self.word:
            return None
        if self.choices and value not in self.choices:
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
        """Return the bound that a number is beyond, as a rule in words; None where it is within the range."""
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
    """Return the value of a switch.

    Args:
        plain: the text in lower case, without spaces around it.
        text: the same as it was given, for the error.

    Raises:
        ValueError: it is neither true nor false.
    """
    if plain in _TRUE:
        return True
    if plain in _FALSE:
        return False
    raise ValueError(f"must be true or false, not {text!r}")


def _parse_finite(plain: str, text: str) -> float:
    """Return the number that a text writes; the arguments are those of :func:`_parse_switch`.

    Raises:
        ValueError: it is no number, or not a finite one.
    """
    try:
        number = float(plain)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"must be a number, not {text!r}")
    return number


def _take_switch(value: object) -> bool:
    """Return True or False as it is; anything else raises ValueError."""
    if isinstance(value, bool):
        return value
    raise ValueError("must be True or False")


def _take_text(value: object) -> str:
    """Return a text, a path, or a number as one writes it."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {type(value).__name__}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def _named_item(name: object, item: object) -> str:
    """Return ``NAME=VALUE``, which holds what the value holds."""
    text = f"{name}={item}"
    if isinstance(item, str):
        return held_as(item, text)
    return text


def option(group: str, help: str, default: Any = None, **facts: Any) -> Any:
    """Declare one option as a dataclass field; ``partial(option, "Heading")`` declares those of one group.

    Args:
        group: the heading of the help text it stands under.
        help: what the option is, then ``[unit; default: in words]`` as far as there is one to tell.
        default: the built-in value; None means "not given".
        facts: further attributes of :class:`Option`.
    """
    notes = _NOTES.fullmatch(help)
    assert notes is not None  # every part is optional
    texts = {"help": notes["help"], "unit": notes["unit"], "default_text": notes["default"]}
    declared = Option(group, default, **{**texts, **facts})
    if isinstance(default, list):
        return field(default_factory=declared.fresh_default, metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


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
    """Return a check that a file name has one of these endings, in capitals too with ``any_case``."""
    *others, last = endings
    wanted = last
    if others:
        listed = ", ".join(others)
        wanted = f"{listed} or {last}"

    def check_ending(name: str) -> None:
        compared = name
        if any_case:
            compared = name.lower()
        if not compared.endswith(endings):
            raise ValueError(f"must end in {wanted}, not {name!r}")

    return check_ending


_DECLARED: dict[type, tuple[Option, ...]] = {}


def options_of(settings_type: type) -> tuple[Option, ...]:
    """Return the options that a settings dataclass declares, its own first, those of its bases after them.

    Those that its ``lacks`` names are none of them: their fields keep the built-in value.
    """
    if settings_type not in _DECLARED:
        _DECLARED[settings_type] = tuple(_read_declarations(settings_type))
    return _DECLARED[settings_type]


def _read_declarations(settings_type: type) -> Iterator[Option]:
    """Yield the options of a settings dataclass with what the fields tell of them: name, flag and type."""
    hints = typing.get_type_hints(settings_type)
    declared = {}
    for declaration in fields(settings_type):
        if "option" in declaration.metadata:
            declared[declaration.name] = declaration.metadata["option"]

    # The options of the class itself first; a key of a dictionary keeps its first place.
    declared_here = [name for name in declared if name in settings_type.__annotations__]
    names_in_order = dict.fromkeys([*declared_here, *declared])
    lacking = getattr(settings_type, "lacks", ())
    for name in names_in_order:
        if name in lacking:
            continue
        declared_option = declared[name]
        value_type, many = _value_type(hints[name])
        words = name.replace("_", "-")
        flag = declared_option.flag or f"--{words}"
        yield replace(declared_option, name=name, flag=flag, type=value_type, many=many)


def _value_type(hint: Any) -> tuple[type, bool]:
    """Return ``(int, True)`` for ``list[int]``, ``(int, False)`` for ``int | None`` and ``int``."""
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    if typing.get_origin(hint) is list:
        return arguments[0], True
    if arguments:
        return _value_type(arguments[0])
    return hint, False
