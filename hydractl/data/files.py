"""Images in files, read one at a time: folders, and lists of one ``path label`` a line.

The lists are those of OpenOOD (https://github.com/Jingkang50/OpenOOD).
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from hydractl.data.base import Dataset, Spec, UnreadableSample, reason
from hydractl.data.labels import INTEGER, RawLabels, limited
from hydractl.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff", ".webp")
"""Endings (any case) that make a file an image."""

# Named, because Pillow would otherwise also hand a file to outside programs (Ghostscript for EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


class EncodedImages(Dataset):
    """Images that are stored as files are, wherever their bytes lie."""

    nothing = "the file is empty"
    """How messages call an image without bytes."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """The bytes of one image.

        Raises:
            UnreadableSample: where they cannot be read.
        """

    def name(self, i: int) -> str:
        """How messages call one image."""
        return self.ids[i]

    def unreadable(self, i: int, why: str) -> UnreadableSample:
        """The error of one image that cannot be read."""
        return UnreadableSample(
            f"cannot read image {self.name(i)}: {why} ({self.where})",
            hint="replace the file or take it out of the set",
        )

    def _sample(self, i: int) -> Image.Image:
        """The image in the mode it is stored in; of several frames the first."""
        content = self.read(i)
        if not content:
            raise self.unreadable(i, self.nothing)
        try:
            image = Image.open(io.BytesIO(content), formats=_formats())
            image.load()
            if not _is_readable(image.mode):
                raise ValueError(f"Pillow converts no {image.mode} to RGB")
            return image
        except MemoryError:
            raise
        except UnidentifiedImageError as error:
            raise self.unreadable(i, f"not an image in one of the formats {', '.join(_formats())}") from error
        # A damaged file makes the decoders raise nearly anything: OSError, SyntaxError, ValueError, struct.error, ...
        except Exception as error:
            raise self.unreadable(i, reason(error)) from error

    def _content(self, i: int) -> Iterable[bytes]:
        return [self.read(i)]


class FileImages(EncodedImages):
    """Image files.

    Args:
        spec, where, ids: as of :class:`Dataset`.
        paths: the files, in the same order.
    """

    def __init__(self, spec: str, where: str, ids: Sequence[str], paths: Sequence[str]) -> None:
        super().__init__(spec, where, ids)
        self.paths = list(paths)

    def name(self, i: int) -> str:
        return printable(self.paths[i])

    def read(self, i: int) -> bytes:
        try:
            return Path(self.paths[i]).read_bytes()
        except OSError as error:
            raise self.unreadable(i, reason(error)) from error


@lru_cache
def _is_readable(mode: str) -> bool:
    """Whether images of this mode can be made grey or RGB."""
    try:
        return mode.startswith("I;16") or Image.new(mode, (1, 1)).convert("RGB") is not None
    except ValueError:
        return False


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    """Those of the formats that this build of Pillow has; it does not take the names of others."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def printable(path: str) -> str:
    """A path as text that any encoder takes: bytes that are no UTF-8 become escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# --- lists ------------------------------------------------------------------------------------------------------------


def read_image_list(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open an image list (UTF-8).

    Paths are relative to ``?root=``, else to the list's folder. A tab, if there is one, separates path and label. Else
    the last field is the label if it is an integer, or if the line does not end like an image file's name (then it is
    a name); the rest is the path, spaces included. Blank lines are passed over. Ids are the paths as written; a path
    that comes again gets ``#2``, ``#3``, ...

    Raises:
        InputError: not a text, nothing listed, or listed files that do not exist (all of them).
    """
    spec.check_query(("root",))
    entries = _entries_of(spec, spec.path)
    return _listed(spec, entries, limited([label for _, _, label in entries], len(entries), limit, seed))


def read_image_lists(spec: Spec, files: Sequence[str], limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open several image lists as one set, in their order; a limit takes the same share of each, its first images.

    Args:
        spec: with the ``root`` of all.
        files: the lists.
        limit: how many images.

    Raises:
        InputError: as of :func:`read_image_list`.
    """
    lists = [_entries_of(spec, file, f"{os.path.basename(file)} ") for file in files]
    shares = [(i + 1) / len(own) for own in lists for i in range(len(own))]
    rows = sorted(sorted(range(len(shares)), key=shares.__getitem__)[:limit])
    return _listed(spec, [entry for own in lists for entry in own], rows)


_Listed = tuple[str, str, str | None]
"""The place of an image in its list, its path and its label."""


def _entries_of(spec: Spec, file: str, name: str = "") -> list[_Listed]:
    try:
        text = Path(os.path.expanduser(file)).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{spec.where}: cannot read the image list: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{spec.where}: {name}line {line} of the image list is not UTF-8 text") from error
    lines = enumerate(text.split("\n"), start=1)
    entries = [(f"{name}line {n}", *split_line(line)) for n, line in lines if line.strip()]
    if not entries:
        raise InputError(f"{spec.where}: the image list {name}is empty")
    return entries


def _listed(spec: Spec, entries: list[_Listed], rows: Sequence[int]) -> tuple[Dataset, RawLabels]:
    raw = _labels(entries, rows)
    places, names, _ = zip(*(entries[row] for row in rows), strict=True)
    return listed_images(spec, names, places, raw.problems), raw


def split_line(line: str) -> tuple[str, str | None]:
    """Path and label of one line."""
    line = line.strip(" \r")
    if "\t" in line:
        path, _, label = line.rpartition("\t")
        return path.strip(), label.strip() or None
    path, _, label = line.rpartition(" ")
    if not path or (line.lower().endswith(IMAGE_SUFFIXES) and not INTEGER.fullmatch(label)):
        return line, None
    return path.rstrip(), label


def _labels(entries: list[_Listed], rows: Sequence[int]) -> RawLabels:
    """The labels of some entries of a list: all integers, all names, or none at all."""
    labelled = [(place, label) for place, _, label in entries if label is not None]
    if not labelled:
        return RawLabels()
    problems = [f"{place}: no label for {repr(name)[1:-1]}" for place, name, label in entries if label is None]
    names = [(place, label) for place, label in labelled if not INTEGER.fullmatch(label)]
    if 0 < len(names) < len(labelled):
        problems += [f"{place}: label {label!r} is a name, others are numbers" for place, label in names]
    if problems:
        return RawLabels(problems=problems)
    values = [label for _, label in labelled]
    if names:
        return RawLabels([values[row] for row in rows], sorted(set(values)))
    return RawLabels(np.array([int(values[row]) for row in rows], dtype=np.int64))


def listed_images(spec: Spec, names: Sequence[str], places: Sequence[str], problems: Sequence[str] = ()) -> FileImages:
    """Images by their paths in a file, relative to ``?root=``, else to the folder of the file.

    Args:
        spec: the SPEC of the file.
        names: the paths.
        places: where each stands in the file, for messages.
        problems: what else is wrong with the file, for the same message.

    Raises:
        InputError: listing the images that do not exist; a root that fits none of them is one problem.
    """
    root = Path(os.path.expanduser(spec.query.get("root", os.path.dirname(spec.path))))
    paths = [os.path.join(root, name) for name in names]
    missing = [i for i, path in enumerate(paths) if "\0" in path or not os.path.isfile(path)]
    if missing:
        message = f"{len(missing)} of {len(paths)} listed images do not exist under {root}"
        missed = [f"{places[i]}: no file {printable(names[i])!r}" for i in missing]
        if len(missing) == len(paths):
            message = f"none of the {len(paths)} listed images is under {root}; the first is {printable(names[0])!r}"
            missed, problems = [], ()
        hint = "name the folder that the paths are relative to with ?root=FOLDER"
        raise InputError(f"{spec.where}: {message}", hint=hint, problems=[*missed, *problems])
    seen: dict[str, int] = {}
    ids = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        ids.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return FileImages(spec.text, spec.where, ids, paths)


# --- folders ----------------------------------------------------------------------------------------------------------


def read_folder(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open a folder.

    Every sub-folder is a class and holds its images at any depth; ids are paths relative to the folder, classes and
    files in the order of their names (code points, the same on every machine). Hidden files and folders and files
    without an image's ending are passed over. A folder with images and no sub-folders is a set without labels.

    Raises:
        InputError: no images at all, a class folder without images, images beside class folders, or a folder that
            cannot be listed.
    """
    spec.check_query(())
    root = os.path.expanduser(spec.path)
    try:
        folders, loose = _entries(root)
        found = {name: _images_below(os.path.join(root, name), ()) for name in folders}
    except OSError as error:
        raise InputError(f"{spec.where}: cannot list {error.filename}: {error.strerror}") from error
    problems = [f"class folder {printable(name)!r} has no images" for name in folders if not found[name]]
    if folders and loose:
        problems.append(f"images beside the class folders: {printable(loose[0])} and {len(loose) - 1} more")
    if not loose and not any(found.values()):
        raise InputError(
            f"{spec.where}: no images in the folder", hint=f"image files end in {' '.join(IMAGE_SUFFIXES)}"
        )
    if problems:
        raise InputError(
            f"{spec.where}: neither a folder of class folders nor a folder of images",
            hint="move what does not belong out of the folder",
            problems=problems,
        )
    samples = [(name, f"{name}/{path}") for name in folders for path in found[name]] or [("", path) for path in loose]
    samples = [samples[row] for row in limited([name for name, _ in samples], len(samples), limit, seed)]
    paths = [os.path.join(root, path) for _, path in samples]
    dataset = FileImages(spec.text, spec.where, [printable(path) for _, path in samples], paths)
    if not folders:
        return dataset, RawLabels()
    return dataset, RawLabels([printable(name) for name, _ in samples], [printable(name) for name in folders])


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """Names of the sub-folders and of the images directly in a folder, each sorted; links are followed."""
    folders, images = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file():
                images.append(entry.name)
    return sorted(folders), sorted(images)


def _images_below(folder: str, above: tuple[tuple[int, int], ...]) -> list[str]:
    """Images at any depth, relative to ``folder``, in a fixed order; ``above`` ends a circle of links."""
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return []
    folders, images = _entries(folder)
    for name in folders:
        images += [f"{name}/{path}" for path in _images_below(os.path.join(folder, name), (*above, identity))]
    return images
