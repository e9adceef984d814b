"""Choice of the columns of a table for the text, the second text of a pair, and the label."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.data.spec import Spec
from hydractl.errors import InputError

FIRST = ("text", "sentence", "text_a", "sentence1")
"""Names of the column of the text, or of the first of a pair."""

SECOND = ("text_b", "sentence2")
"""Names of the column of the second text of a pair."""

LABEL = "label"

_MOST_SHOWN = 20


@dataclass(frozen=True)
class Columns:
    """The columns of one file.

    Attributes:
        text: of the text.
        text_b: of the second text; None for single texts.
        label: of the label; where it is not there, there are no labels.
        label_asked: whether ``?label=`` named it.
        others: columns which in any row would make it a pair.
    """

    text: str
    text_b: str | None
    label: str
    label_asked: bool
    others: tuple[str, ...]

    def needed(self, there: Sequence[str]) -> list[str]:
        """The columns to read, among those that exist."""
        wanted = (self.text, self.text_b, self.label)
        return [name for name in there if name in wanted]


def choose_columns(
    spec: Spec, there: Sequence[str], *, what: str = "column", label_may_follow: bool = False
) -> Columns:
    """Decide from the names that are there, and from ``?text=``, ``?text_b=`` and ``?label=``.

    A file is of pairs if it has a column of a name in ``SECOND``; where ``?text=`` is given, only ``?text_b=`` makes
    it one.

    Args:
        spec: the SPEC with its query.
        there: the columns, or the keys of the first row.
        what: what messages call a column.
        label_may_follow: whether a later row may have the label that the first has not.

    Raises:
        InputError: naming the columns there are, for one that is not there, is there twice, or cannot be decided.
    """
    query = spec.query
    text = query.get("text") or _only(spec, FIRST, there, what, "text")
    text_b = query.get("text_b")
    others: tuple[str, ...] = ()
    if text is None:
        raise InputError(
            f"{spec.where}: no {what} of the text: it has {_list(there)}",
            hint=_near_hint(FIRST, there, f"name the {what} with ?text=NAME") + _headless_hint(what),
        )
    if text_b is None and "text" not in query:
        others = SECOND
        text_b = _only(spec, SECOND, there, what, "text_b")
    label = query.get("label", LABEL)
    asked = [("text", text), ("text_b", text_b), *([] if label_may_follow else [("label", query.get("label"))])]
    missing = [(key, name) for key, name in asked if name is not None and name not in there]
    if missing:
        named = " and ".join(f"?{key}={name}" for key, name in missing)
        raise InputError(
            f"{spec.where}: no {what} for {named}: it has {_list(there)}",
            hint=_near_hint([name for _, name in missing], there, "") or None,
        )
    used = [name for name in (text, text_b, label) if name is not None]
    twice = sorted({name for name in used if list(there).count(name) > 1})
    if twice:
        raise InputError(f"{spec.where}: there are several columns {twice[0]!r}: it has {_list(there)}")
    if len(set(used)) < len(used):
        raise InputError(f"{spec.where}: one {what} is taken for two things: text, text_b and label must differ")
    return Columns(text, text_b, label, "label" in query, others)


def second_text(columns: Columns, values: Mapping[str, object]) -> str | None:
    """The name of a second text in a row of a file of single texts; None, as it should be, where there is none."""
    if columns.text_b is not None:
        return None
    return next((name for name in columns.others if values.get(name) is not None), None)


def _only(spec: Spec, names: Sequence[str], there: Sequence[str], what: str, key: str) -> str | None:
    """The one of these names that is there; None for none."""
    found = [name for name in names if name in there]
    if len(found) > 1:
        raise InputError(
            f"{spec.where}: {' and '.join(map(repr, found))} may both be the text: it has {_list(there)}",
            hint=f"say which {what} with ?{key}=NAME",
        )
    return found[0] if found else None


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[: _MOST_SHOWN * 2]) for name in names[:_MOST_SHOWN]) or "nothing"
    return f"{shown}, ... ({len(names)} in all)" if len(names) > _MOST_SHOWN else shown


def _near_hint(wanted: Sequence[str], there: Sequence[str], otherwise: str) -> str:
    """The names most similar to the wanted ones, ignoring case."""
    folded = {name.casefold(): name for name in reversed(list(there))}
    near = {m: None for name in wanted for m in difflib.get_close_matches(name.casefold(), folded, n=1)}
    if not near:
        return otherwise
    return f"near: {', '.join(repr(folded[name]) for name in near)}" + (f"; {otherwise}" if otherwise else "")


def _headless_hint(what: str) -> str:
    return "; a file without a header needs ?columns=label,text or the like" if what == "column" else ""
