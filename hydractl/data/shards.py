"""``wds:`` images in the tar files of WebDataset, from local disks, with random access and in a fixed order.

A sample is the files of one key: the name of a member up to the first dot of its last part
(https://github.com/webdataset/webdataset, "the WebDataset format"). Tar files are listed once, when the set is opened;
after that an image is one seek and one read, so that samples can be read in any order and no library is needed.
"""

from __future__ import annotations

import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hydractl.data.base import Dataset, Spec, UnreadableSample, reason
from hydractl.data.files import IMAGE_SUFFIXES, EncodedImages, printable
from hydractl.data.labels import INTEGER, RawLabels, raw_labels
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import parse_json, shown

_IMAGES = tuple(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
_MEMBER = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]*)")
_MOST_PROBLEMS = 20

# A label is a number, a name or a small object; a file of more bytes than this is none.
_LARGEST_LABEL = 1 << 20


class _Place(NamedTuple):
    """Location of the bytes of one image.

    Attributes:
        shard: the path of the tar file.
        member: the name of the image in it.
        offset, size: of its bytes in the tar file.
    """

    shard: str
    member: str
    offset: int
    size: int


class ShardImages(EncodedImages):
    """Images inside tar files.

    Args:
        spec: it was opened from.
        where: how messages call it.
        ids: one for each image.
        places: where each is, in the same order.
    """

    def __init__(self, spec: str, where: str, ids: list[str], places: list[_Place]) -> None:
        super().__init__(spec, where, ids)
        self._places = places

    def name(self, i: int) -> str:
        place = self._places[i]
        shard = printable(place.shard)
        return f"{place.member} of {shard}"

    def read(self, i: int) -> bytes:
        """Return the bytes of image ``i``.

        Raises:
            UnreadableSample: its tar file is no longer there, or shorter.
        """
        place = self._places[i]
        try:
            with open(place.shard, "rb") as file:
                file.seek(place.offset)
                content = file.read(place.size)
        except OSError as error:
            shard = printable(place.shard)
            raise UnreadableSample(f"cannot read {shard}: {reason(error)} ({self.where})") from error
        if len(content) < place.size:
            raise UnreadableSample(f"cannot read {self.name(i)}: it ends before its time")
        return content


def read_shards(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``wds:PATH``: a tar file, a name with braces (``{000..012}``, ``{a,b}``), or a folder of ``.tar`` files.

    ``?image=`` names the ending of the images where a sample has several; ``?label=cls``, ``?label=txt`` or
    ``?label=json.KEY`` the label. Without it, ``.cls`` is the label (a number, or a name), else ``label`` in ``.json``.
    Ids are shard and key. With ``limit``, no shard behind the first ``limit`` samples is read.

    Args:
        spec: of the shards.
        limit: how many samples, the first ones; None: all.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: for a scheme of the network, or a name that cannot be expanded.
        InputError: listing shards that are missing, damaged or compressed, and samples without an image.
    """
    spec.check_query(("image", "label"))
    asked = spec.query.get("label")
    dataset, labels = index_shards(spec, limit, asked)
    hint = "name what holds the labels with ?label=cls, ?label=txt or ?label=json.KEY"
    raw = raw_labels(labels, dataset.ids, hint=hint)
    return dataset, raw


def index_shards(
    spec: Spec, limit: int | None, asked: str | None, *, texts: bool = False
) -> tuple[ShardImages, list[Any]]:
    """Go once through the shards of a SPEC, and list the samples in them.

    Args:
        spec: of the shards; of its query only ``?image=`` counts.
        limit: how many samples, the first ones; None: all.
        asked: what holds the label of a sample: ``cls``, ``txt`` or ``json.KEY``; None: ``cls``, else ``label`` in
            ``json``.
        texts: whether labels are read as texts, even where they look like numbers.

    Returns:
        The images, and the label of each: an integer, a name, or None.

    Raises:
        UsageError: for a scheme of the network, or a name that cannot be expanded.
        InputError: listing shards that are missing, damaged or compressed, and samples without an image.
    """
    index = _Index(spec, asked, texts)
    shards = _shard_paths(spec)
    for shard in shards:
        index.add(shard)
        if len(index.problems) >= _MOST_PROBLEMS:
            break
        if limit is not None and len(index.ids) >= limit:
            break
    if index.problems:
        raise InputError(
            f"{spec.where}: these shards cannot be used",
            hint="shards are whole .tar files; compressed ones cannot be read at any place: unpack them",
            problems=index.problems[:_MOST_PROBLEMS],
        )
    if not index.ids:
        count = "1 shard" if len(shards) == 1 else f"{len(shards)} shards"
        raise InputError(f"{spec.where}: no images in {count}")
    ids = index.ids[:limit]
    places = index.places[:limit]
    images = ShardImages(spec.text, spec.where, ids, places)
    return images, index.labels[:limit]


class _ShardSample:
    """The files of one key in a tar file.

    Attributes:
        members: the files by the ending of their names.
        label_files: the content of those that may hold the label, by ending.
    """

    def __init__(self) -> None:
        self.members: dict[str, tarfile.TarInfo] = {}
        self.label_files: dict[str, bytes] = {}


@dataclass
class _Index:
    """The samples of the shards so far.

    Attributes:
        spec, asked, texts: see :func:`index_shards`.
        ids, places, labels: one for each sample.
        problems: one line for each shard or sample that cannot be used.
    """

    spec: Spec
    asked: str | None
    texts: bool
    ids: list[str] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, shard: str) -> None:
        """Add the samples of one tar file, and a problem for each that cannot be used."""
        name = printable(os.path.basename(shard))
        try:
            samples = self._list_samples(shard)
        except (tarfile.TarError, OSError, EOFError) as error:
            self.problems.append(f"{name}: {reason(error)}")
            return
        for key, sample in samples.items():
            try:
                member = self._choose_image(key, sample)
                label = self._read_label(key, sample)
            except ValueError as error:
                self.problems.append(f"{name}: {error}")
                continue
            place = _Place(shard, printable(member.name), member.offset_data, member.size)
            self.ids.append(f"{name}/{printable(key)}")
            self.places.append(place)
            self.labels.append(label)

    def _list_samples(self, shard: str) -> dict[str, _ShardSample]:
        """Return the samples of one tar file by key, in its order, with the content of the files of their labels.

        Raises:
            tarfile.TarError: for a file that is not a whole tar file, or whose samples are not as the format has them.
        """
        samples: dict[str, _ShardSample] = {}
        last_key = None
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                match = _MEMBER.fullmatch(member.name)
                if match is None or member.isdir():
                    continue
                key = match[1]
                ending = match[2].lower()
                is_plain_file = member.isreg() and not member.issparse()
                if not is_plain_file:
                    raise tarfile.TarError(f"{printable(member.name)} is no plain file")
                comes_again = key != last_key and key in samples
                if comes_again:
                    raise tarfile.TarError(f"the files of {printable(key)} do not stand together")
                last_key = key
                sample = samples.setdefault(key, _ShardSample())
                if ending in sample.members:
                    raise tarfile.TarError(f"{printable(member.name)} is there twice")
                sample.members[ending] = member
                may_be_label = ending in self._label_endings() and member.size <= _LARGEST_LABEL
                if may_be_label:
                    file = archive.extractfile(member)
                    assert file is not None  # it is a plain file
                    sample.label_files[ending] = file.read()
            _check_end(archive, shard)
        return samples

    def _choose_image(self, key: str, sample: _ShardSample) -> tarfile.TarInfo:
        """Return the file of a sample that is its image: the only one with the ending of an image, or of ``?image=``.

        Raises:
            ValueError: where there is none, or more than one.
        """
        known_endings = _IMAGES
        asked = self.spec.query.get("image")
        if asked is not None:
            known_endings = (asked.lower(),)
        endings = [ending for ending in sample.members if ending in known_endings]
        if not endings:
            raise ValueError(f"{printable(key)} has no image")
        if len(endings) > 1:
            listed = ", ".join(endings)
            raise ValueError(f"{printable(key)} has several images ({listed}): choose with ?image=")
        return sample.members[endings[0]]

    def _label_endings(self) -> tuple[str, ...]:
        """Return the endings of files that may hold the label; the first that is there is taken."""
        if self.asked is None:
            return ("cls", "json")
        ending, _, _ = self.asked.partition(".")
        return (ending.lower(),)

    def _read_label(self, key: str, sample: _ShardSample) -> int | str | None:
        """Return the label of a sample, an integer or a name; None where there is none.

        Raises:
            ValueError: for one that cannot be read.
        """
        kind = "text" if self.texts else "label"
        what = f"the {kind} of {printable(key)}"
        for ending in self._label_endings():
            if ending not in sample.label_files:
                continue
            try:
                text = sample.label_files[ending].decode("utf-8").strip()
            except UnicodeDecodeError:
                raise ValueError(f"{what} is not UTF-8 text") from None
            if ending == "json":
                return self._label_in_json(text, what)
            is_integer = INTEGER.fullmatch(text) is not None
            if is_integer and not self.texts:
                return int(text)
            return text or None  # an empty file says nothing
        return None

    def _json_key(self) -> str:
        """Return the key of the label in a JSON object: KEY where ``json.KEY`` was asked for, else ``label``."""
        if self.asked is None:
            return "label"
        _, _, key = self.asked.partition(".")
        return key or "label"

    def _label_in_json(self, text: str, what: str) -> int | str | None:
        """Return what a JSON object holds as the label; None where it has none.

        Args:
            text: the object.
            what: what messages call the label.

        Raises:
            ValueError: for a text that is no JSON, or a value that cannot be a label.
        """
        try:
            document = parse_json(text, "it")
        except InputError as error:
            raise ValueError(f"{what} cannot be read: {error.message}") from None
        if not isinstance(document, dict):
            return None
        value = document.get(self._json_key())
        if value is None or type(value) is str:
            return value
        if self.texts:
            raise ValueError(f"{what} is {shown(value)}, which is no text")
        if type(value) is not int or abs(value) >= 2**63:
            raise ValueError(f"{what} is {shown(value)}, neither an integer nor a name")
        return value


def _check_end(archive: tarfile.TarFile, shard: str) -> None:
    """Refuse a tar file that does not end with zeros: tarfile takes whatever it cannot read for the end."""
    with open(shard, "rb") as file:
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.TarError("it is cut off: the end mark of a tar file is missing")
    if any(block):
        raise tarfile.TarError(f"it is damaged at byte {archive.offset}")


_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_SHARDS = 1_000_000


def _shard_paths(spec: Spec) -> list[str]:
    """Return the tar files that a SPEC names, in order.

    Raises:
        UsageError: for a scheme of the network, and for braces that cannot be expanded.
        InputError: listing the files that do not exist.
    """
    if "://" in spec.path or spec.path.startswith("pipe:"):
        raise UsageError(f"{spec.where}: shards are read from local files only", hint="fetch them first")
    path = os.path.expanduser(spec.path)
    if os.path.isdir(path):
        return _shards_in(path, spec)
    try:
        # One more than there may be, and no others: braces can stand for more names than fit into memory.
        shards = list(itertools.islice(expand_braces(path), _MOST_SHARDS + 1))
    except ValueError as error:
        raise UsageError(f"{spec.where}: {error}", hint="for example shard-{000..012}.tar or {train,val}.tar") from None
    if len(shards) > _MOST_SHARDS:
        raise UsageError(f"{spec.where}: these are more than {_MOST_SHARDS:,} shards")
    missing = [shard for shard in shards if not os.path.isfile(shard)]
    if missing:
        problems = [f"no file {printable(shard)}" for shard in missing]
        raise InputError(f"{spec.where}: {len(missing)} of {len(shards)} shards do not exist", problems=problems)
    return shards


def _shards_in(folder: str, spec: Spec) -> list[str]:
    """Return the tar files in a folder, sorted.

    Raises:
        InputError: where there are none.
    """
    shards = []
    for entry in os.scandir(folder):
        if entry.name.lower().endswith(".tar"):
            shards.append(entry.path)
    if not shards:
        raise InputError(f"{spec.where}: no .tar files in the folder")
    return sorted(shards)


def expand_braces(text: str) -> Iterator[str]:
    """Expand ``a{08..10}b{x,y}`` to ``a08bx``, ``a08by``, ``a09bx``, ...; a range keeps the width of its first number.

    Raises:
        ValueError: for braces that hold neither a range nor a list, or do not close.
    """
    pieces = _BRACES.split(text)
    for plain in pieces[::2]:
        if "{" in plain or "}" in plain:
            raise ValueError("braces that do not match")
    texts_of_pieces: list[list[str]] = []
    for number, piece in enumerate(pieces):
        stood_in_braces = number % 2 == 1  # every second piece is what the pattern caught
        if stood_in_braces:
            texts_of_pieces.append(_expand_inside(piece))
        else:
            texts_of_pieces.append([piece])
    return map("".join, itertools.product(*texts_of_pieces))


def _expand_inside(inside: str) -> list[str]:
    """Return the texts that a part in braces stands for: ``08..10`` for ``08``, ``09`` and ``10``.

    Args:
        inside: what is between the braces: a range ``000..012``, or a list ``a,b``.

    Raises:
        ValueError: for anything else, and for a range that is too long or goes downwards.
    """
    match = _RANGE.fullmatch(inside)
    if match is None:
        if "," not in inside:
            raise ValueError(f"{{{inside}}} is neither a range such as {{000..012}} nor a list such as {{a,b}}")
        return inside.split(",")
    first_text, last_text = match.groups()
    first = int(first_text)
    last = int(last_text)
    if last < first or last - first >= _MOST_SHARDS:
        raise ValueError(f"{{{inside}}} is no range upwards of at most {_MOST_SHARDS:,}")
    width = len(first_text)
    return [str(number).zfill(width) for number in range(first, last + 1)]
