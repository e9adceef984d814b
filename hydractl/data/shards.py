"""Images and their captions in the tar files of WebDataset, from local disks, with random access and in a fixed order.

A sample consists of all files with the same key. The key is a file's path up to the first dot in its file name
(https://github.com/webdataset/webdataset, "the WebDataset format"). The tar files are listed once, when the set is
opened. After that an image takes one seek and one read, so samples can be read in any order and no library is needed.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hydractl.data.base import UnreadableSample, reason
from hydractl.data.files import IMAGE_SUFFIXES, EncodedImages, printable, with_numbers_if_repeated
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.jsonio import MOST_BYTES

_IMAGES = tuple(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
_MEMBER = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]*)")
_MOST_PROBLEMS = 20

# A caption is a text, and a file with more bytes none.
_LARGEST_CAPTION = 1 << 20


class _Place(NamedTuple):
    """Where the bytes of one image are.

    Attributes:
        shard: the path of the tar file.
        member: the name of the image in the tar file.
        offset, size: the position of its bytes in the tar file, and their number.
    """

    shard: str
    member: str
    offset: int
    size: int


@dataclass(eq=False, repr=False)
class ShardImages(EncodedImages):
    """Images inside tar files; ``places`` say where the bytes of each are."""

    places: Sequence[_Place]

    def name(self, i: int) -> str:
        place = self.places[i]
        shard = printable(place.shard)
        return f"{place.member} of {shard}"

    def read(self, i: int) -> bytes:
        """Return the bytes of image ``i``.

        Raises:
            UnreadableSample: if its tar file was removed, or is too short.
        """
        place = self.places[i]  # the tar file, and where the image lies in it
        if place.size > MOST_BYTES:
            raise self.unreadable(i, f"it has more than {MOST_BYTES >> 20} MiB")
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


def index_shards(spec: DataSpec, limit: int | None, asked: str) -> tuple[ShardImages, list[str | None]]:
    """Return the images in the shards of a SPEC, and their captions, after going through the shards once.

    Shards are a tar file, a pattern of several (``shards/000*.tar``), or a folder of them. Ids consist of shard and
    key. With ``limit``, no shard is read after the one that holds the last sample needed.

    Args:
        spec: the SPEC of the shards. ``?image=`` of its query names the ending of the image files, if a sample has
            several images.
        limit: take only this many samples from the start; None means all.
        asked: the ending of the text files that hold the captions.

    Returns:
        The images, and the caption of each, or None where there is none.

    Raises:
        UsageError: for a network address.
        InputError: if shards are missing, damaged or compressed, or samples have no image; all are listed.
    """
    ids: list[str] = []
    places: list[_Place] = []
    captions: list[str | None] = []
    problems: list[str] = []
    shards = _shard_paths(spec)
    for shard in shards:
        name = printable(os.path.basename(shard))
        try:
            samples = _list_samples(shard)
        except (tarfile.TarError, OSError, EOFError) as error:
            problems.append(f"{name}: {reason(error)}")
            samples = {}

        # Choose the image of each sample, which is not read now, and read its caption.
        for key, members in samples.items():
            try:
                image = _choose_image(key, members, spec.query.get("image"))
                captions.append(_read_caption(key, members, asked, shard))
            except (ValueError, OSError) as error:
                problems.append(f"{name}: {error}")
                continue
            ids.append(f"{name}/{printable(key)}")
            places.append(_Place(shard, printable(image.name), image.offset_data, image.size))
        if len(problems) >= _MOST_PROBLEMS or (limit is not None and len(ids) >= limit):
            break
    if problems:
        raise InputError(
            f"{spec.where}: these shards cannot be used",
            hint="shards are whole .tar files; compressed ones cannot be read at any place: unpack them",
            problems=problems[:_MOST_PROBLEMS],
        )
    if not ids:
        count = "1 shard" if len(shards) == 1 else f"{len(shards)} shards"
        raise InputError(f"{spec.where}: no images in {count}")

    # The last shard may have more samples than are needed.
    different_ids = with_numbers_if_repeated(ids[:limit])  # shards in several folders may have the same name
    return ShardImages(spec.text, spec.where, different_ids, places[:limit]), captions[:limit]


def _list_samples(shard: str) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Return the files of each sample of a tar file, first by the key of the sample and then by the file's ending.

    Files with one name up to the first dot belong to one sample, which that name is the key of: ``a/01.jpg`` and
    ``a/01.txt`` give ``{"a/01": {"jpg": ..., "txt": ...}}``. The samples are in the order of the file.

    Raises:
        tarfile.TarError: if the file is no complete tar file, or its members break the rules of the format.
    """
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    last_key = None
    with tarfile.open(shard, "r:") as archive:
        for member in archive:
            # Skip folders and names that have no key and ending.
            match = _MEMBER.fullmatch(member.name)
            if match is None or member.isdir():
                continue
            key = match[1]
            ending = match[2].lower()
            # Refuse what the format does not allow: links, files of one sample that other files separate, and two files
            # with the same ending.
            if not member.isreg() or member.issparse():
                raise tarfile.TarError(f"{printable(member.name)} is no plain file")
            if key != last_key and key in samples:
                raise tarfile.TarError(f"the files of {printable(key)} do not stand together")
            last_key = key
            members = samples.setdefault(key, {})
            if ending in members:
                raise tarfile.TarError(f"{printable(member.name)} is there twice")
            members[ending] = member
        _check_end(archive, shard)
    return samples


def _choose_image(key: str, members: Mapping[str, tarfile.TarInfo], asked: str | None) -> tarfile.TarInfo:
    """Return the image file of a sample: its only file that ends like an image, or that ends as ``?image=`` asks.

    Raises:
        ValueError: if there is no such file, or more than one.
    """
    wanted = _IMAGES if asked is None else (asked.lower(),)
    endings = [ending for ending in members if ending in wanted]
    if not endings:
        raise ValueError(f"{printable(key)} has no image")
    if len(endings) > 1:
        listed = ", ".join(endings)
        raise ValueError(f"{printable(key)} has several images ({listed}): choose with ?image=")
    return members[endings[0]]


def _read_caption(key: str, members: Mapping[str, tarfile.TarInfo], asked: str, shard: str) -> str | None:
    """Return the caption of a sample; None if it has no file of a caption, or an overlong one.

    Args:
        key: the key of the sample, for messages.
        members: the files of the sample by their endings.
        asked: the ending of the text file that holds the caption, e.g. ``txt``.
        shard: the tar file.

    Raises:
        ValueError: if the file is not UTF-8 text.
    """
    member = members.get(asked.lower())
    if member is None or member.size > _LARGEST_CAPTION:
        return None

    # The bytes of the file, which stand in the tar file as they are.
    with open(shard, "rb") as file:
        file.seek(member.offset_data)
        content = file.read(member.size)
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"the text of {printable(key)} is not UTF-8 text") from None


def _check_end(archive: tarfile.TarFile, shard: str) -> None:
    """Refuse a tar file that does not end with zeros, because tarfile mistakes whatever it cannot read for the end."""
    with open(shard, "rb") as file:
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.TarError("it is cut off: the end mark of a tar file is missing")
    if any(block):
        raise tarfile.TarError(f"it is damaged at byte {archive.offset}")


def _shard_paths(spec: DataSpec) -> list[str]:
    """Return the tar files that a SPEC names, sorted: one, all of a folder, or all that fit a pattern with ``*``.

    Raises:
        UsageError: for a network address.
        InputError: if there are none.
    """
    if "://" in spec.path or spec.path.startswith("pipe:"):
        raise UsageError(f"{spec.where}: shards are read from local files only", hint="fetch them first")
    path = os.path.expanduser(spec.path)
    if os.path.isfile(path):  # also one with a * in its name
        return [path]
    pattern = path
    if os.path.isdir(path):
        pattern = os.path.join(glob.escape(path), "*.tar")
    shards = glob.glob(pattern)
    if not shards:
        raise InputError(f"{spec.where}: no .tar files", hint="give a folder, or a pattern: shards/000*.tar")
    return sorted(shards)
