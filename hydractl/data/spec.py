"""The SPEC that names a data set: ``[KIND:]PATH[?key=value&key=value]``. Pure: looks at no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from hydractl.errors import UsageError

SCHEMES = ("builtin", "torchvision", "hf", "wds", "captions")
"""The kinds, as written before the colon."""

TEXT_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")

SUPPORTED = (
    "at present: a folder of images or of class folders, a .npz file, an image list (.txt, .lst, .list), "
    "texts (.csv, .tsv, .jsonl, each also .gz, or .parquet), images in .parquet, "
    "builtin:NAME[/split], torchvision:NAME[/split], hf:NAME/config/split, wds:SHARDS, captions:FILE or SHARDS"
)
"""The kinds of data that this version opens, for messages."""

# A question mark in a file name is no query unless `key=` follows it.
_QUERY = re.compile(r"\?(?=[A-Za-z_]+=)")


@dataclass(frozen=True)
class Spec:
    """One parsed SPEC.

    Attributes:
        text: the SPEC as it was given.
        option: the option it was given to, for messages.
        kind: one of ``SCHEMES``, or ``npz`` or ``text`` by the ending, or ``path`` (a folder or an image list: only the
            disk can tell).
        path: what stands between the scheme and the query.
        query: the settings after ``?``.
    """

    text: str
    option: str
    kind: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The name of this data set in messages."""
        return f"{self.option} {self.text}"

    def check_query(self, known: Iterable[str]) -> None:
        """Refuse settings that this kind of data does not have.

        Raises:
            UsageError: naming the unknown and the known keys.
        """
        known = list(known)
        unknown = [key for key in self.query if key not in known]
        if unknown:
            raise UsageError(
                f"{self.where}: unknown setting {', '.join(map(repr, unknown))} after '?'",
                hint=f"known here: {', '.join(known)}" if known else "this kind of data takes no settings",
            )


def parse_spec(text: str, option: str = "--data") -> Spec:
    """Take a SPEC apart.

    The query starts at the first ``?`` that ``key=`` follows. ``%26`` stands for ``&`` in a value, ``%25`` for ``%``;
    the path is taken as it is.

    Raises:
        UsageError: for an empty SPEC, or a setting that is empty, doubled or without ``=``.
    """
    path, *rest = _QUERY.split(text, maxsplit=1)
    kind, path = _kind(path)
    if not path:
        raise UsageError(f"{option} {text!r}: a data set needs a name or a path", hint=SUPPORTED)
    query: dict[str, str] = {}
    problems = []
    for item in rest[0].split("&") if rest else []:
        key, equals, value = item.partition("=")
        if not key or not equals or not value:
            problems.append(f"{item!r} is not key=value")
        elif key in query:
            problems.append(f"{key!r} is given twice")
        else:
            query[key] = unquote(value)
    if problems:
        raise UsageError(f"{option} {text}: cannot read the settings after '?'", problems=problems)
    return Spec(text, option, kind, path, query)


def _kind(path: str) -> tuple[str, str]:
    """The kind of a SPEC without its query, and the path without the scheme."""
    scheme, colon, rest = path.partition(":")
    if colon and scheme in SCHEMES:
        return scheme, rest
    lower = path.lower()
    if lower.endswith(".npz"):
        return "npz", path
    if lower.endswith(TEXT_SUFFIXES):
        return "text", path
    return "path", path
