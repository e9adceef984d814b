"""The MODEL arguments of options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from hydractl.errors import UsageError


@dataclass(frozen=True)
class ModelRef:
    """One MODEL as it is named, or a model that a Python program has opened.

    Attributes:
        text: a file, a folder or a name such as ``timm:NAME``; for a row of a table ``[NAME=]REF[+REF...]``. Messages
            call an opened model ``memory:0``, ``memory:1`` and so on.
        held: the opened model (a :class:`hydractl.model.source.Source`); or of a row with such a model its name or
            None, and its members; None if the text says it all.
        keeps: an object that must live as long as an opened model, such as the folder of its file.
    """

    text: str
    held: Any = field(default=None, compare=False)
    keeps: object = field(default=None, compare=False)

    @classmethod
    def of_option(cls, option: str, text: str) -> Self:
        """Return the MODEL of a text; it is not looked for yet."""
        return cls(text)

    @classmethod
    def of_row(cls, name: str, members: Sequence[ModelRef]) -> Self:
        """Return a reference to a row (one model of a table of results), written ``NAME=MODEL+MODEL``.

        Members that a program holds in memory are kept beside the text, with the name.

        Args:
            name: the name of the row; empty if it is named after its model.
            members: its models.
        """
        text = "+".join(map(str, members))
        if name:
            text = f"{name}={text}"
        is_held = any(member.held is not None for member in members)
        if not is_held:  # the text says it all
            return cls(text, None)
        return cls(text, (name or None, members))

    def __str__(self) -> str:
        return self.text

    def split(self) -> tuple[str | None, Sequence[ModelRef]]:
        """Return the name in ``NAME=A+B`` (None without one), and a reference to each member A, B of the ensemble.

        The name of an existing file is never split, so it may contain ``=`` and ``+``.

        Raises:
            UsageError: if a member is empty, as in ``a.st++b.st``.
        """
        # Models that a program has opened: a row of them, kept as (name, members), or a single one.
        if isinstance(self.held, tuple):
            return self.held
        if self.held is not None:
            return None, [self]

        # A text. A name ends at the first '='. But a '/', ':' or '?' before it means that the '=' belongs to a path or
        # to an option of a reference. os.path.exists, because pathlib's raises an error for a name that is too long.
        name: str | None = None
        members = self.text
        first_member, _, _ = members.partition("+")
        before_equals, equals, after_equals = members.partition("=")
        is_part_of_reference = any(character in before_equals for character in "/:?")
        is_file = os.path.exists(members) or os.path.exists(first_member)
        if equals and before_equals and not is_part_of_reference and not is_file:
            name = before_equals
            members = after_equals
        refs = [members] if os.path.exists(members) else members.split("+")
        if not all(refs):
            raise UsageError(f"empty member in MODEL {self.text!r}", hint="write NAME=a.st+b.st+c.st")
        return name, [ModelRef(ref) for ref in refs]
