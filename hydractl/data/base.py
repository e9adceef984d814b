"""The SPEC that names a data set, and the interface that every open data set has."""

from __future__ import annotations

import hashlib
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError, UsageError
from hydractl.jsonio import Held
from hydractl.log import Log

_SCHEMES = ("builtin", "torchvision", "openood", "hf", "wds", "captions", "memory")

TEXT_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".csv.gz", ".jsonl.gz")

SUPPORTED = (
    "at present: a folder of images or of class folders, a .npz file, an image list (.txt, .lst, .list), "
    "texts (.csv, .tsv, .jsonl, each also .gz, or .parquet), images in .parquet, "
    "builtin:NAME[/split], torchvision:NAME[/split], openood:NAME/PART, hf:NAME/config/split, wds:SHARDS, "
    "captions:FILE or SHARDS"
)
"""The kinds of data that this version opens, for messages."""

# A question mark in a file name is no query unless `key=` follows it.
_QUERY = re.compile(r"\?(?=[A-Za-z_]+=)")


@dataclass(frozen=True)
class Spec:
    """One parsed SPEC: ``[KIND:]PATH[?key=value&key=value]``. Pure: no file is looked at.

    Attributes:
        text: the SPEC as it was given.
        option: the option it was given to, for messages.
        kind: what is written before the colon, or ``npz`` or ``text`` by the ending, or ``path`` (a folder or an image
            list: only the disk can tell).
        path: what stands between the scheme and the query.
        query: the settings after ``?``.
        held: the samples of a set that a Python program holds, see :class:`hydractl.data.held.HeldData`; else None.
    """

    text: str
    option: str
    kind: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    held: Any = None

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
        if not unknown:
            return
        listed = ", ".join(map(repr, unknown))
        hint = "this kind of data takes no settings"
        if known:
            hint = f"known here: {', '.join(known)}"
        raise UsageError(f"{self.where}: unknown setting {listed} after '?'", hint=hint)


def parse_spec(text: str, option: str = "--data") -> Spec:
    """Take a SPEC apart: the text that names a data set, ``[KIND:]PATH[?key=value&key=value]``.

    The query starts at the first ``?`` that ``key=`` follows. ``%26`` stands for ``&`` in a value, ``%25`` for ``%``;
    the path is taken as it is.

    Raises:
        UsageError: for an empty SPEC, or a setting that is empty, doubled or without ``=``.
    """
    name = text
    settings: list[str] = []
    question_mark = _QUERY.search(text)
    if question_mark is not None:
        name = text[: question_mark.start()]
        settings = text[question_mark.end() :].split("&")
    kind, path = _kind_and_path(name)
    if not path:
        raise UsageError(f"{option} {text!r}: a data set needs a name or a path", hint=SUPPORTED)
    query, problems = _parse_settings(settings)
    if problems:
        raise UsageError(f"{option} {text}: cannot read the settings after '?'", problems=problems)
    held = text.value if isinstance(text, Held) else None
    return Spec(str(text), option, kind, path, query, held)


def _parse_settings(settings: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the values of settings ``key=value`` by their keys, and a line for each that cannot be read."""
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
    """Return the kind of a SPEC without its query, by its scheme or its ending, and the path without the scheme."""
    scheme, colon, path = text.partition(":")
    if colon and scheme in _SCHEMES:
        return scheme, path
    lower = text.lower()
    if lower.endswith(".npz"):
        return "npz", text
    if lower.endswith(TEXT_SUFFIXES):
        return "text", text
    return "path", text


# --- the data set -----------------------------------------------------------------------------------------------------

PAIRS = "image-caption pair"
"""The :attr:`Dataset.kind` of images with captions."""

MOST_LISTED = 1000
"""Ids of skipped samples in a document at most; their number is exact."""

_MOST_SAID = 5


class UnreadableSample(InputError):
    """One sample that is damaged, empty or gone, in a set whose other samples may be in order."""


class Dataset(ABC):
    """A finite sequence of samples in a fixed order.

    Attributes:
        spec: the SPEC it was opened from.
        kind: ``"image"``, ``"text"`` or :data:`PAIRS`: what a sample is.
        where: how messages call this data set (option and SPEC).
        ids: one id per sample, the same on every machine.
        labels: int64 ``[samples]``, in the order of the checkpoint's names when such were given; None when unlabelled.
        label_names: the checkpoint's names when such were given, else the data's own; None when there are none.
        label_hint: where there are no labels, how to say where they are.
        skipped: None where a sample that cannot be read is an error; else such samples are left out of the batches,
            and this says which were met so far: index -> why.
    """

    kind = "image"

    def __init__(self, spec: str, where: str, ids: Sequence[str]) -> None:
        """Set what every set has; whoever opens it fills in labels and names."""
        self.spec = spec
        self.where = where
        self.ids = list(ids)
        self.labels: npt.NDArray[np.int64] | None = None
        self.label_names: list[str] | None = None
        self.label_hint: str | None = None
        self.skipped: dict[int, str] | None = None
        self._fingerprints: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        """Return the sample, fully loaded: a ``PIL.Image.Image`` in the mode it is stored in, a ``str``, a pair of
        ``str``, or an image and its caption.

        Raises:
            IndexError: outside the data set.
            UnreadableSample: naming a file that cannot be read.
        """
        i = operator.index(index)
        total = len(self)
        if i < -total or i >= total:
            raise IndexError(f"sample {i} of {total}")
        return self._sample(i % total)  # a negative index counts from the end

    @abstractmethod
    def _sample(self, i: int) -> Any:
        """Return sample ``i``, 0 <= i < len(self)."""

    @abstractmethod
    def _content(self, i: int) -> Iterable[bytes]:
        """Return the bytes that make sample ``i`` what it is, in pieces of any size."""

    def origins(self) -> list[Dataset]:
        """Return this set, and those that its samples were made of: a model that saw this one has seen them too."""
        return [self]

    def lengths(self) -> list[int] | None:
        """Return the length of each sample if batches of similar length are cheaper (texts: characters); else None."""
        return None

    def sample_fingerprints(self) -> list[str]:
        """Return the SHA-256 of each sample's content alone, in hex: the same wherever it is and however labelled.

        The content of an image file is the file, that of an array its shape and pixels: the same picture in another
        format differs. The content of a text is its characters, in whatever format it is stored. Computed once.

        Raises:
            UnreadableSample: for a file that cannot be read at all; where such are skipped its id counts instead.
        """
        if self._fingerprints is None:
            fingerprints = []
            for i in range(len(self)):
                fingerprints.append(self._sample_fingerprint(i))
            self._fingerprints = fingerprints
        return self._fingerprints

    def _sample_fingerprint(self, i: int) -> str:
        """Return the fingerprint of sample ``i``: of its id, where it cannot be read and such samples are skipped."""
        try:
            return _sha256(self._content(i))
        except UnreadableSample:
            if self.skipped is None:
                raise
            sample_id = self.ids[i].encode("utf-8", "backslashreplace")
            return _sha256([b"unreadable\n", sample_id])

    def fingerprint(self) -> str:
        """Return the SHA-256 in hex over every sample's content, their order and ``labels`` as mapped."""
        header = f"hydractl.data/1 {self.kind} {len(self)}\n"
        pieces = [header.encode()]
        pieces += map(bytes.fromhex, self.sample_fingerprints())
        if self.labels is None:
            pieces.append(b"unlabelled")
        else:
            little_endian = self.labels.astype("<i8")  # the same bytes on every machine
            pieces.append(little_endian.tobytes())
        return _sha256(pieces)


def _sha256(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 of some bytes, which come in pieces, in hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def reason(error: Exception) -> str:
    """Say in one line why the system or a library failed.

    Its words may quote the bytes of a damaged file: what cannot be printed is escaped.
    """
    words = str(error)
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror
    first_line, _, _ = words.strip().partition("\n")
    if not first_line:
        return type(error).__name__
    return "".join(map(_visible, first_line))


def _visible(character: str) -> str:
    """Return a character; as an escape if it cannot be printed."""
    if character.isprintable():
        return character
    quoted = repr(character)
    return quoted[1:-1]


def report_classes(dataset: Dataset, log: Log) -> None:
    """Warn of a labelled set of one class only, which says nothing of the others."""
    labels = dataset.labels
    if labels is None or len(labels) < 2:
        return
    is_other_class = labels != labels[0]
    if is_other_class.any():
        return
    label = int(labels[0])
    name = str(label)
    if dataset.label_names is not None:
        name = dataset.label_names[label]
    log.warn(
        f"{dataset.where}: all {len(labels)} samples are of one class, {name}: give samples of every class; with "
        "--limit, a file that is sorted by class is to be shuffled first"
    )


class SkippedSamples(TypedDict):
    """Skipped samples as an artefact records them.

    Attributes:
        n: how many there are.
        ids: the first :data:`MOST_LISTED` of them in order.
    """

    n: int
    ids: list[str]


def skipped_document(dataset: Dataset) -> SkippedSamples | None:
    """Return the skipped samples for an artefact; None where there are none."""
    if not dataset.skipped:
        return None
    indices = sorted(dataset.skipped)
    first_ids = [dataset.ids[i] for i in indices[:MOST_LISTED]]
    return {"n": len(indices), "ids": first_ids}


def report_skipped(dataset: Dataset, log: Log) -> None:
    """Warn of the skipped samples: how many there are, and the first few; each and its reason is logged as a detail."""
    if not dataset.skipped:
        return
    ids = []
    for i, why in sorted(dataset.skipped.items()):
        sample_id = dataset.ids[i]
        ids.append(sample_id)
        log.detail(f"skipped {sample_id}: {why}")
    count = len(ids)
    verb = "is" if count == 1 else "are"
    listed = ", ".join(ids[:_MOST_SAID])
    unlisted = count - _MOST_SAID
    if unlisted > 0:
        listed += f" and {unlisted} more"
    log.warn(f"{dataset.where}: {count} of {len(dataset)} images {verb} left out, as they cannot be read: {listed}")
