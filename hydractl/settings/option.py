"""Declaration, parsing and checks of one option; used for flags, environment variables and YAML."""

from __future__ import annotations

import difflib
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

Raw = str | bool | list[str] | Mapping[str, str]
"""A value as it was given, before its option has read it."""

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits fit every 64-bit counter and seed


def option(
    default: Any,
    *,
    help: str,
    group: str,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    unit: str | None = None,
    short: str | None = None,
    flag: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    pattern: str | None = None,
    split: bool = False,
    repeats: bool = False,
    names: bool = False,
    default_text: str | None = None,
) -> Any:
    """Declare one option as a dataclass field: everything that flags, environment, YAML and help need to know.

    Args:
        default: the built-in value; None means "not given".
        help: what the option is, one sentence without its default.
        group: the heading of the help text it stands under.
        metavar: the placeholder of the value in the help text; made from the type or the choices if not given.
        choices: the texts allowed.
        unit: the unit of the number.
        short: a one-letter flag such as ``-o``.
        flag: the long flag where it differs from the field's name.
        at_least, at_most, above, below: the range of a number (of each number of a list).
        pattern: a regular expression for the whole text; ``metavar`` then says what is allowed.
        split: a list written with commas; without it, a list repeats its flag.
        repeats: such a list may have an item twice.
        names: a list whose items are ``NAME=VALUE``; YAML may give a mapping.
        default_text: what the help says of the default where the value does not say it.
    """
    metadata = {k: v for k, v in locals().items() if k not in ("default", "metadata")}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """One declared option; see :func:`option` for the attributes of the same name.

    Attributes:
        name: the field of the settings dataclass.
        key: the name in YAML and, in capitals after ``HYDRACTL_``, in the environment.
        type: ``str``, ``int``, ``float`` or ``bool``: of the value, or of the items of a list.
        many: whether the value is a list.
    """

    name: str
    key: str
    type: type
    many: bool
    default: Any
    help: str
    group: str
    metavar: str | None
    choices: tuple[str, ...]
    unit: str | None
    short: str | None
    flag: str
    at_least: float | None
    at_most: float | None
    above: float | None
    below: float | None
    pattern: str | None
    split: bool
    repeats: bool
    names: bool
    default_text: str | None

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
        if self.choices:
            return "|".join(self.choices)
        return {int: "N", float: "X", str: "TEXT"}[self.type]

    def parse(self, raw: Raw) -> Any:
        """The typed value of what was given.

        Raises:
            ValueError: with the rest of a sentence that starts with the name of the option.
        """
        if isinstance(raw, bool):
            return raw
        if not self.many:
            if not isinstance(raw, str):
                raise ValueError("takes one value, not a " + ("list" if isinstance(raw, list) else "mapping"))
            return self._parse_one(raw)
        return [self._parse_one(item) for item in self._items(raw)]

    def _items(self, raw: str | list[str] | Mapping[str, str]) -> list[str]:
        if isinstance(raw, Mapping):
            if not self.names:
                raise ValueError("takes a list, not a mapping")
            return [f"{name}={value}" for name, value in raw.items()]
        given = [raw] if isinstance(raw, str) else list(raw)
        if self.split:
            given = [part.strip() for text in given for part in text.split(",")]
        if not given:
            raise ValueError("must not be empty")
        return given

    def _parse_one(self, text: str) -> Any:
        if not text.strip():
            raise ValueError("must not be empty")
        if self.type is str:
            return text
        plain = text.strip().lower()
        if self.type is bool:
            if plain in _TRUE or plain in _FALSE:
                return plain in _TRUE
            raise ValueError(f"must be true or false, not {text!r}")
        if self.type is int:
            if _INTEGER.fullmatch(plain):
                return int(plain)
            raise ValueError(f"must be a whole number, not {text!r}")
        try:
            number = float(plain)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"must be a number, not {text!r}")
        return number

    def complaints(self, value: Any) -> list[str]:
        """Problems of a typed value; each a sentence that starts after the name of the option."""
        if value is None:
            return []
        found = [self._complaint(item) for item in (value if self.many else [value])]
        if self.many and self.split and not self.repeats and len(set(value)) < len(value):
            found.append(f"lists something twice: {','.join(str(item) for item in value)}")
        return [complaint for complaint in found if complaint is not None]

    def _complaint(self, value: Any) -> str | None:
        if self.choices and value not in self.choices:
            near = difflib.get_close_matches(str(value), self.choices, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            return f"must be one of {', '.join(self.choices)}, not {value!r}{guess}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"must be {self.placeholder()}, not {value!r}"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least}, not {value}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most}, not {value}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above}, not {value}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below}, not {value}"
        return None


_DECLARED: dict[type, tuple[Option, ...]] = {}


def options_of(settings_type: type) -> tuple[Option, ...]:
    """The options that a settings dataclass declares, its own first, those of its bases after them."""
    if settings_type not in _DECLARED:
        _DECLARED[settings_type] = _read_declarations(settings_type)
    return _DECLARED[settings_type]


def _read_declarations(settings_type: type) -> tuple[Option, ...]:
    hints = typing.get_type_hints(settings_type)
    declared = [f for f in fields(settings_type) if "help" in f.metadata]
    own = [f for f in declared if f.name in settings_type.__annotations__]
    found = []
    for one in own + [f for f in declared if f not in own]:
        value_type, many = _value_type(hints[one.name])
        metadata = dict(one.metadata)
        flag = metadata.pop("flag") or "--" + one.name.replace("_", "-")
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        metadata["choices"] = tuple(metadata["choices"])
        key = flag[2:].replace("-", "_")
        found.append(Option(name=one.name, key=key, type=value_type, many=many, default=default, flag=flag, **metadata))
    return tuple(found)


def _value_type(hint: Any) -> tuple[type, bool]:
    """``list[int]`` -> (int, True); ``int | None`` and ``int`` -> (int, False)."""
    arguments = [a for a in typing.get_args(hint) if a is not type(None)]
    if typing.get_origin(hint) is list:
        return arguments[0], True
    return (_value_type(arguments[0])) if arguments else (hint, False)
