"""Declaration, parsing and checks of one option; used for flags, environment variables and YAML."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from hydractl.errors import did_you_mean

Raw = str | bool | list[str] | Mapping[str, str]
"""A value as it was given, before its option has read it."""

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits fit every 64-bit counter and seed
_NOTES = re.compile(r"(?P<help>.*?)( \[(?P<unit>(?!default: )[^;\]]+)?(; )?(default: (?P<default>.+))?\])?")


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
        split: a list written with commas; without it, a list repeats its flag.
        repeats: such a list may have an item twice.
        names: a list whose items are ``NAME=VALUE``; YAML may give a mapping.
        unit: the unit of the number.
        word: what is allowed in place of a number.
        default_text: what the help says of the default where the value does not say it.
        writes: whether it names what is written; any other text may name a file that is read.
        often: whether the short help (``-h``) shows it, which has room for about a dozen.
        name: the field of the settings dataclass.
        type: ``str``, ``int``, ``float`` or ``bool``: of the value, or of the items of a list.
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
    split: bool = False
    repeats: bool = False
    names: bool = False
    unit: str | None = None
    word: str | None = None
    default_text: str | None = None
    writes: bool = False
    often: bool = False
    name: str = ""
    type: type = str
    many: bool = False

    @property
    def key(self) -> str:
        """The name in YAML and, in capitals after ``HYDRACTL_``, in the environment."""
        return self.flag[2:].replace("-", "_")

    @property
    def label(self) -> str:
        """The name in messages: ``MODEL``, or the flag."""
        return "MODEL" if self.name == "model" else self.flag

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HYDRACTL_{self.key.upper()}"

    def fresh_default(self) -> Any:
        """The built-in value, a list of its own where it is a list."""
        return list(self.default) if isinstance(self.default, list) else self.default

    def placeholder(self) -> str:
        """The value as written in the help text; empty for a switch."""
        if self.metavar is not None:
            return self.metavar
        if self.type is bool:
            return ""
        return "|".join(self.choices) or {int: "N", float: "X", str: "TEXT"}[self.type]

    def default_words(self) -> str:
        """The built-in value in words; empty if there is none."""
        if self.default_text is not None:
            return self.default_text
        return "" if self.default in (None, []) else value_text(self.default)

    def described(self, *, short: bool = False) -> str:
        """Return what the option is, with its unit and default."""
        default = self.default_words()
        notes = [note for note in (self.unit, f"default: {default}" if default else None) if note]
        text = self.help.partition("; ")[0] if short else self.help
        return text + (f" [{'; '.join(notes)}]" if notes else "")

    def parse(self, raw: Raw) -> Any:
        """Return the typed value of what was given.

        Raises:
            ValueError: with the rest of a sentence that starts with the name of the option.
        """
        if isinstance(raw, bool):
            return raw
        if self.many:
            return [self._parse_item(item) for item in self._items(raw)]
        if not isinstance(raw, str):
            raise ValueError("takes one value, not a " + ("list" if isinstance(raw, list) else "mapping"))
        return self._parse_item(raw)

    def _items(self, raw: str | list[str] | Mapping[str, str]) -> list[str]:
        if isinstance(raw, Mapping):
            if not self.names:
                raise ValueError("takes a list, not a mapping")
            return [f"{name}={value}" for name, value in raw.items()]
        items = [raw] if isinstance(raw, str) else list(raw)
        if self.split:
            items = [part.strip() for text in items for part in text.split(",")]
        if not items:
            raise ValueError("must not be empty")
        return items

    def _parse_item(self, text: str) -> Any:
        if not text.strip():
            raise ValueError("must not be empty")
        if self.type is str:
            return text
        plain = text.strip().lower()
        if self.type is bool:
            if plain in _TRUE or plain in _FALSE:
                return plain in _TRUE
            raise ValueError(f"must be true or false, not {text!r}")
        if plain == self.word:
            return plain
        if self.type is int:
            if _INTEGER.fullmatch(plain):
                return int(plain)
            instead = f" or {self.word}" if self.word else ""
            raise ValueError(f"must be a whole number{instead}, not {text!r}")
        try:
            number = float(plain)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"must be a number, not {text!r}")
        return number

    def complaints(self, value: Any) -> list[str]:
        """List the problems of a typed value; each a sentence that starts after the name of the option."""
        if value is None:
            return []
        problems = [self._complaint(item) for item in (value if self.many else [value])]
        if self.many and self.split and not self.repeats and len(set(value)) < len(value):
            problems.append(f"lists something twice: {','.join(str(item) for item in value)}")
        return [problem for problem in problems if problem is not None]

    def _complaint(self, value: Any) -> str | None:
        if value == self.word:
            return None
        if self.choices and value not in self.choices:
            guess = did_you_mean(str(value), self.choices)
            return f"must be one of {', '.join(self.choices)}, not {value!r}{guess}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"must be {self.placeholder()}, such as {self.example}, not {value!r}"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least}, not {value}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most}, not {value}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above}, not {value}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below}, not {value}"
        try:
            if self.check is not None:
                self.check(value)
        except ValueError as error:
            return str(error)
        return None


def option(group: str, help: str, default: Any = None, **facts: Any) -> Any:
    """Declare one option as a dataclass field; ``partial(option, "Heading")`` declares those of one group.

    Args:
        group, default: as of :class:`Option`.
        help: what the option is, then ``[unit; default: in words]`` as far as there is one to tell.
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
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(value_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def ends_in(*endings: str, any_case: bool = False) -> Callable[[str], None]:
    """Return a check that a file name has one of these endings."""
    wanted = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))

    def check(name: str) -> None:
        if not (name.lower() if any_case else name).endswith(endings):
            raise ValueError(f"must end in {wanted}, not {name!r}")

    return check


_DECLARED: dict[type, tuple[Option, ...]] = {}


def options_of(settings_type: type) -> tuple[Option, ...]:
    """Return the options that a settings dataclass declares, its own first, those of its bases after them.

    Those that its ``lacks`` names are none of them: their fields keep the built-in value.
    """
    if settings_type not in _DECLARED:
        _DECLARED[settings_type] = tuple(_read_declarations(settings_type))
    return _DECLARED[settings_type]


def _read_declarations(settings_type: type) -> Iterator[Option]:
    hints = typing.get_type_hints(settings_type)
    declared = {f.name: f.metadata["option"] for f in fields(settings_type) if "option" in f.metadata}
    own = [name for name in declared if name in settings_type.__annotations__]
    lacking = getattr(settings_type, "lacks", ())
    for name in dict.fromkeys(name for name in [*own, *declared] if name not in lacking):
        value_type, many = _value_type(hints[name])
        flag = declared[name].flag or "--" + name.replace("_", "-")
        yield replace(declared[name], name=name, flag=flag, type=value_type, many=many)


def _value_type(hint: Any) -> tuple[type, bool]:
    """Return ``(int, True)`` for ``list[int]``, ``(int, False)`` for ``int | None`` and ``int``."""
    arguments = [a for a in typing.get_args(hint) if a is not type(None)]
    if typing.get_origin(hint) is list:
        return arguments[0], True
    return (_value_type(arguments[0])) if arguments else (hint, False)
