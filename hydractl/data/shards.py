"""``wds:`` images in the tar files of WebDataset, from local disks, with random access and in a fixed order.

A sample is the files of one key: all of a member's name up to the first dot of its last part
(https://github.com/webdataset/webdataset, "the WebDataset format"). Tar files are listed once, when the set is opened;
after that an image is one seek and one read, so that any sample is at hand and no library is needed.
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

# A label is a number, a name or a small object; more than this is none.
_LARGEST_LABEL = 1 << 20


class _Place(NamedTuple):
    """Location of the bytes of one image."""

    shard: str
    member: str
    offset: int
    size: int


class ShardImages(EncodedImages):
    """Images inside tar files.

    Args:
        spec, where, ids: as of :class:`Dataset`.
        places: where each is, in the same order.
    """

    def __init__(self, spec: str, where: str, ids: list[str], places: list[_Place]) -> None:
        super().__init__(spec, where, ids)
        self._places = places

    def name(self, i: int) -> str:
        return f"{self._places[i].member} of {printable(self._places[i].shard)}"

    def read(self, i: int) -> bytes:
        place = self._places[i]
        try:
            with open(place.shard, "rb") as file:
                file.seek(place.offset)
                content = file.read(place.size)
        except OSError as error:
            raise UnreadableSample(f"cannot read {printable(place.shard)}: {reason(error)} ({self.where})") from error
        if len(content) < place.size:
            raise UnreadableSample(f"cannot read {self.name(i)}: it ends before its time")
        return content


def read_shards(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``wds:PATH``: a tar file, a name with braces (``{000..012}``, ``{a,b}``), or a folder of ``.tar`` files.

    ``?image=`` names the ending of the images where a sample has several; ``?label=cls``, ``?label=txt`` or
    ``?label=json.KEY`` the label. Without it, ``.cls`` is the label (a number, or a name), else ``label`` in ``.json``.
    Ids are shard and key. With ``limit``, no shard behind the first so many samples is read.

    Raises:
        UsageError: for a scheme of the network, or a name that cannot be expanded.
        InputError: listing shards that are missing, damaged or compressed, and samples without an image.
    """
    spec.check_query(("image", "label"))
    dataset, labels = index_shards(spec, limit, spec.query.get("label"))
    hint = "name what holds the labels with ?label=cls, ?label=txt or ?label=json.KEY"
    return dataset, raw_labels(labels, dataset.ids, hint=hint)


def index_shards(
    spec: Spec, limit: int | None, asked: str | None, *, texts: bool = False
) -> tuple[ShardImages, list[Any]]:
    """List the shards of a SPEC.

    Args:
        spec: as of :func:`read_shards`; only its path and ``?image=`` count.
        limit: as of :func:`read_shards`.
        asked: what holds the label of a sample: ``cls``, ``txt`` or ``json.KEY``; None: what :func:`read_shards` says.
        texts: what is asked for are texts, and one that looks like a number is a text too.

    Returns:
        The images, and the label of each: an integer, a name, or None.

    Raises:
        UsageError, InputError: as of :func:`read_shards`.
    """
    index = _Index(spec, asked, texts)
    shards = _shard_paths(spec)
    for shard in shards:
        index.add(shard)
        if len(index.problems) >= _MOST_PROBLEMS or (limit is not None and len(index.keys) >= limit):
            break
    if index.problems:
        raise InputError(
            f"{spec.where}: these shards cannot be used",
            hint="shards are whole .tar files; compressed ones cannot be read at any place: unpack them",
            problems=index.problems[:_MOST_PROBLEMS],
        )
    if not index.keys:
        raise InputError(f"{spec.where}: no images in {len(shards)} {'shard' if len(shards) == 1 else 'shards'}")
    return ShardImages(spec.text, spec.where, index.keys[:limit], index.places[:limit]), index.labels[:limit]


@dataclass
class _Index:
    """The samples of the shards so far.

    Attributes:
        spec, asked, texts: as of :func:`index_shards`.
        keys, places, labels: one for each sample.
        problems: one line for each shard or sample that cannot be used.
    """

    spec: Spec
    asked: str | None
    texts: bool
    keys: list[str] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, shard: str) -> None:
        """List one tar file."""
        name = printable(os.path.basename(shard))
        samples: dict[str, dict[str, tarfile.TarInfo]] = {}
        contents: dict[tuple[str, str], bytes] = {}
        try:
            with tarfile.open(shard, "r:") as archive:
                last = None
                for member in archive:
                    match = _MEMBER.fullmatch(member.name)
                    if match is None or member.isdir():
                        continue
                    key, ending = match[1], match[2].lower()
                    if not member.isreg() or member.issparse():
                        raise tarfile.TarError(f"{printable(member.name)} is no plain file")
                    if key != last and key in samples:
                        raise tarfile.TarError(f"the files of {printable(key)} do not stand together")
                    last = key
                    if ending in samples.setdefault(key, {}):
                        raise tarfile.TarError(f"{printable(member.name)} is there twice")
                    samples[key][ending] = member
                    if ending in self._label_endings() and member.size <= _LARGEST_LABEL:
                        file = archive.extractfile(member)
                        contents[key, ending] = b"" if file is None else file.read()
                _check_end(archive, shard)
        except (tarfile.TarError, OSError, EOFError) as error:
            self.problems.append(f"{name}: {reason(error)}")
            return
        for key, members in samples.items():
            try:
                member, label = self._image(key, members), self._label(key, contents)
            except ValueError as error:
                self.problems.append(f"{name}: {error}")
                continue
            self.keys.append(f"{name}/{printable(key)}")
            self.places.append(_Place(shard, printable(member.name), member.offset_data, member.size))
            self.labels.append(label)

    def _image(self, key: str, members: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo:
        """The image of a sample."""
        asked = self.spec.query.get("image")
        images = [ending for ending in members if (ending in _IMAGES if asked is None else ending == asked.lower())]
        if len(images) != 1:
            what = f"has several images ({', '.join(images)}): choose with ?image=" if images else "has no image"
            raise ValueError(f"{printable(key)} {what}")
        return members[images[0]]

    def _label_endings(self) -> tuple[str, ...]:
        return ("cls", "json") if self.asked is None else (self.asked.partition(".")[0].lower(),)

    def _label(self, key: str, contents: dict[tuple[str, str], bytes]) -> int | str | None:
        """The label of a sample; None where there is none."""
        ending = next((e for e in self._label_endings() if (key, e) in contents), None)
        if ending is None:
            return None
        what = f"the {'text' if self.texts else 'label'} of {printable(key)}"
        try:
            text = contents[key, ending].decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not UTF-8 text") from None
        if ending != "json":
            return int(text) if INTEGER.fullmatch(text) and not self.texts else (text or None)
        try:
            document = parse_json(text, "it")
        except InputError as error:
            raise ValueError(f"{what} cannot be read: {error.message}") from None
        name = (self.asked or "").partition(".")[2] or "label"
        value = document.get(name) if isinstance(document, dict) else None
        if self.texts and value is not None and not isinstance(value, str):
            raise ValueError(f"{what} is {shown(value)}, which is no text")
        if value is not None and (type(value) not in (int, str) or (type(value) is int and abs(value) >= 2**63)):
            raise ValueError(f"{what} is {shown(value)}, neither an integer nor a name")
        return value


def _check_end(archive: tarfile.TarFile, shard: str) -> None:
    """tarfile takes whatever it cannot read behind the first member for the end; only a block of zeros is."""
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
    """The tar files that a SPEC names, in order."""
    if "://" in spec.path or spec.path.startswith("pipe:"):
        raise UsageError(f"{spec.where}: shards are read from local files only", hint="fetch them first")
    path = os.path.expanduser(spec.path)
    if os.path.isdir(path):
        shards = sorted(entry.path for entry in os.scandir(path) if entry.name.lower().endswith(".tar"))
        if not shards:
            raise InputError(f"{spec.where}: no .tar files in the folder")
        return shards
    try:
        shards = list(itertools.islice(expand_braces(path), _MOST_SHARDS + 1))
    except ValueError as error:
        raise UsageError(f"{spec.where}: {error}", hint="for example shard-{000..012}.tar or {train,val}.tar") from None
    if len(shards) > _MOST_SHARDS:
        raise UsageError(f"{spec.where}: these are more than {_MOST_SHARDS:,} shards")
    missing = [shard for shard in shards if not os.path.isfile(shard)]
    if missing:
        raise InputError(
            f"{spec.where}: {len(missing)} of {len(shards)} shards do not exist",
            problems=[f"no file {printable(shard)}" for shard in missing],
        )
    return shards


def expand_braces(text: str) -> Iterator[str]:
    """``a{08..10}b{x,y}`` -> ``a08bx``, ``a08by``, ``a09bx``, ...; a range keeps the width of its first number.

    Raises:
        ValueError: for braces that hold neither a range nor a list, or do not close.
    """
    pieces = _BRACES.split(text)  # every second one stood in braces
    if any("{" in plain or "}" in plain for plain in pieces[::2]):
        raise ValueError("braces that do not match")
    parts = [_alternatives(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ("".join(chosen) for chosen in itertools.product(*parts))


def _alternatives(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        if "," not in inside:
            raise ValueError(f"{{{inside}}} is neither a range such as {{000..012}} nor a list such as {{a,b}}")
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if last < first or last - first >= _MOST_SHARDS:
        raise ValueError(f"{{{inside}}} is no range upwards of at most {_MOST_SHARDS:,}")
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
