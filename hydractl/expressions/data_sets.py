"""The names of data sets and corruptions in the values of options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from hydractl.errors import UsageError

_SCHEMES = ("builtin", "torchvision", "hf", "captions", "memory")

TEXT_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")

SUPPORTED = (
    "at present: a folder of images or of class folders, a .npz file, an image list (.txt, .lst, .list), "
    "texts (.csv, .tsv, .jsonl, each also .gz, or .parquet), images in .parquet, "
    "builtin:NAME[/split], torchvision:NAME[/split], hf:NAME/config/split, captions:FILE or SHARDS"
)
"""The kinds of data that this version opens, for messages."""

# A '?' starts the settings only if `key=` follows it, because file names may contain question marks.
_QUERY = re.compile(r"\?(?=[A-Za-z_]+=)")

_SET_NAME = re.compile(r"[\w.+-]+")

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""Names of ``--corruptions``, in the order of Hendrycks & Dietterich 2019; see ``hydractl.data.corruptions``.

Their ``frost`` is not among them: it is made of their photographs.
"""

ALL_CORRUPTIONS = "all"
"""The word that stands for every corruption in ``--corruptions``."""

SEVERITIES = (1, 2, 3, 4, 5)

AUTO = "auto"
"""The word that replaces a SPEC of OOD validation data: OOD samples are made from the ID validation samples."""


def with_setting(spec: str, setting: str) -> str:
    """Return a SPEC with one more ``key=value`` in its query."""
    mark = "?"
    if "?" in spec:  # it has a query already
        mark = "&"
    return f"{spec}{mark}{setting}"


@dataclass(frozen=True)
class DataSpec:
    """One data set as an option names it: the SPEC ``[KIND:]PATH[?key=value&key=value]``, or samples in memory.

    Attributes:
        text: the SPEC as the user wrote it; ``memory:NAME`` for samples in memory.
        option: how messages name the option that received it, for example ``--data`` or ``--ood svhn``.
        kind: the scheme before the colon, for example ``hf``. Without a scheme the ending decides: ``npz``, ``text`` or
            ``path``. ``path`` means a folder or an image list; only the disk can tell which.
        path: the text between the scheme and the query.
        query: the settings after ``?``, by key.
        held: the samples that a Python program holds in memory (a :data:`hydractl.data.held.HeldSet`), or None.
    """

    text: str
    option: str
    kind: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    held: Any = field(default=None, compare=False)

    @classmethod
    def of_option(cls, option: str, text: str, held: Any = None) -> Self:
        """Return the data set of a SPEC ``[KIND:]PATH[?key=value&key=value]``; this never looks at the disk.

        The query starts at the first ``?`` that is followed by ``key=``. In values ``%26`` stands for ``&`` and ``%25``
        for ``%``; the path is not unquoted.

        Raises:
            UsageError: if the SPEC is empty, or if a setting is empty, repeated or has no ``=``.
        """
        # Split "hf:cifar10/plain_text/test?part=1/4&seed=0" into the name before the "?", and the settings.
        name = text
        settings: list[str] = []
        question_mark = _QUERY.search(text)
        if question_mark is not None:
            name = text[: question_mark.start()]
            settings = text[question_mark.end() :].split("&")

        # Split the name into kind and path, and read the settings.
        kind, path = _kind_and_path(name)
        if not path:
            raise UsageError(f"{option} {text!r}: a data set needs a name or a path", hint=SUPPORTED)
        query, problems = _parse_settings(settings)
        if problems:
            raise UsageError(f"{option} {text}: cannot read the settings after '?'", problems=problems)
        return cls(text, option, kind, path, query, held)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)

    @property
    def where(self) -> str:
        """How messages name this data set: the option and the SPEC."""
        return f"{self.option} {self.text}"

    @property
    def file(self) -> Path:
        """The path on the disk, where ``~`` is the home folder."""
        return Path(os.path.expanduser(self.path))

    def with_setting(self, setting: str) -> Self:
        """Return the data set with one more ``key=value`` in its query."""
        return self.of_option(self.option, with_setting(self.text, setting), self.held)

    def under(self, option: str) -> Self:
        """Return the data set as another option receives it: messages name that one."""
        return replace(self, option=option)

    def split_query(self, keys: Iterable[str]) -> tuple[Self, dict[str, str]]:
        """Return the data set without the settings ``keys``, and the values of those of them that it has.

        Of ``a/?take=9&root=b`` and the key ``take`` these are ``a/`` with the setting ``root`` alone, and
        ``{"take": "9"}``. The text is not changed.
        """
        taken = {key: self.query[key] for key in keys if key in self.query}
        left = {key: value for key, value in self.query.items() if key not in taken}
        return replace(self, query=left), taken

    def check_query(self, known: Iterable[str]) -> None:
        """Refuse settings that this kind of data does not have.

        Raises:
            UsageError: if the query has unknown keys; the message names the unknown and the known ones.
        """
        known = list(known)
        unknown = [key for key in self.query if key not in known]
        if not unknown:
            return
        listed = ", ".join(map(repr, unknown))
        hint = f"known here: {', '.join(known)}" if known else "this kind of data takes no settings"
        raise UsageError(f"{self.where}: unknown setting {listed} after '?'", hint=hint)


def _parse_settings(settings: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of ``key=value`` settings by key, and a message for each setting that is wrong.

    ``%26`` in a value becomes ``&``, as in URLs.
    """
    values: dict[str, str] = {}
    problems = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals or not value:
            problems.append(f"{setting!r} is not key=value")
        elif key in values:
            problems.append(f"{key!r} is given twice")
        else:
            values[key] = unquote(value)
    return values, problems


def _kind_and_path(text: str) -> tuple[str, str]:
    """Return the kind and the path of a SPEC without its query: ``("hf", "cifar10/test")`` of ``hf:cifar10/test``.

    Without a known scheme the whole text is the path, and its ending tells the kind; ``path`` if it tells none.
    """
    scheme, colon, path = text.partition(":")
    if colon and scheme in _SCHEMES:
        return scheme, path
    lower = text.lower()
    if lower.endswith(".npz"):
        return "npz", text
    if lower.endswith(TEXT_SUFFIXES):
        return "text", text
    return "path", text


@dataclass(frozen=True)
class OodSet:
    """One data set of ``--ood`` or ``--ood-val``.

    Attributes:
        text: the value of the option.
        name: its name in the answer.
        group: ``near``, ``far`` or None.
        spec: its data; ``auto`` for OOD samples that are made of those of ``--val``.
    """

    text: str
    name: str
    group: str | None
    spec: DataSpec

    @classmethod
    def of_option(cls, option: str, text: str, held: Any = None) -> Self:
        """Return the OOD set of a text ``NAME[:near|far]=SPEC``, e.g. ``svhn:far=builtin:svhn/test``.

        Raises:
            ValueError: the text does not have this form.
            UsageError: the SPEC cannot be parsed.
        """
        # The first "=" ends the name; a SPEC may have more of them.
        name_and_group, _, written_spec = text.partition("=")
        name, colon, written_group = name_and_group.partition(":")
        spec = written_spec.strip()
        group = written_group if colon else None  # None: without a colon; "svhn:" has the group "", which is wrong
        has_name = _SET_NAME.fullmatch(name) is not None
        has_known_group = group in (None, "near", "far")
        if not has_name or not has_known_group or not spec:
            advice = ": samples that are made are for --ood-val" if text == AUTO else ""
            given = text if held is None else name_and_group  # samples in memory have no SPEC
            raise ValueError(f"must be NAME[:near|far]=SPEC, not {given!r}{advice}")
        return cls(text, name, group, DataSpec.of_option(f"{option} {name}", spec, held))

    def __str__(self) -> str:
        return self.text

    @property
    def held(self) -> Any:
        """The samples that a Python program holds in memory, or None."""
        return self.spec.held

    def under(self, option: str) -> Self:
        """Return the set as another option receives it: messages name that one."""
        return replace(self, spec=self.spec.under(f"{option} {self.name}"))

    def with_spec(self, spec: DataSpec) -> Self:
        """Return the set with other data, in its text too."""
        before_spec = self.text.rstrip().removesuffix(self.spec.text)
        return replace(self, text=f"{before_spec}{spec}", spec=spec)


def ood_val_set(option: str, text: str, held: Any = None) -> OodSet:
    """Parse ``NAME=SPEC``, or ``auto`` alone, which is its name too.

    Raises:
        ValueError, UsageError: see :meth:`OodSet.of_option`.
    """
    if text == AUTO:
        return OodSet(AUTO, AUTO, None, DataSpec.of_option(f"{option} {AUTO}", AUTO))
    return OodSet.of_option(option, text, held)


def corruptions_asked_for(names: Sequence[str]) -> list[str]:
    """Return the corruptions that ``--corruptions`` names, in the order of Hendrycks & Dietterich."""
    return [name for name in CORRUPTIONS if name in names or ALL_CORRUPTIONS in names]
