"""Images in files, read one at a time: folders, and lists of one ``path label`` a line.

The lists are those of OpenOOD (https://github.com/Jingkang50/OpenOOD).
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

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
    """Images that are stored encoded, as image files are, wherever their bytes lie."""

    nothing = "the file is empty"
    """How messages call an image without bytes."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """Return the encoded bytes of one image.

        Raises:
            UnreadableSample: where they cannot be read.
        """

    def name(self, i: int) -> str:
        """Return what messages call one image."""
        return self.ids[i]

    def unreadable(self, i: int, why: str) -> UnreadableSample:
        """Return the error of one image that cannot be read."""
        return UnreadableSample(
            f"cannot read image {self.name(i)}: {why} ({self.where})",
            hint="replace the file or take it out of the set",
        )

    def _sample(self, i: int) -> Image.Image:
        """Return the image in the mode it is stored in; of several frames the first."""
        content = self.read(i)
        if not content:
            raise self.unreadable(i, self.nothing)
        try:
            return decoded_image(content)
        except MemoryError:
            raise
        except UnidentifiedImageError as error:
            known = ", ".join(_available_formats())
            raise self.unreadable(i, f"not an image in one of the formats {known}") from error
        # A damaged file makes the decoders raise nearly anything: OSError, SyntaxError, ValueError, struct.error, ...
        except Exception as error:
            raise self.unreadable(i, reason(error)) from error

    def _content(self, i: int) -> Iterable[bytes]:
        return [self.read(i)]


class FileImages(EncodedImages):
    """Image files.

    Args:
        spec, where, ids: see :class:`Dataset`.
        paths: the files, in the same order.
    """

    def __init__(self, spec: str, where: str, ids: Sequence[str], paths: Sequence[str]) -> None:
        super().__init__(spec, where, ids)
        self.paths = list(paths)

    def name(self, i: int) -> str:
        path = self.paths[i]
        return printable(path)

    def read(self, i: int) -> bytes:
        path = Path(self.paths[i])
        try:
            return path.read_bytes()
        except OSError as error:
            raise self.unreadable(i, reason(error)) from error


class TooManyPixels(ValueError):
    """An image whose header tells of more pixels than are allowed."""


def decoded_image(content: bytes, most_pixels: int | None = None) -> Image.Image:
    """Return an encoded image in the mode it is stored in; of several frames the first.

    Args:
        content: the bytes of an image file.
        most_pixels: how many pixels it may have, by its header, before it is decoded; None for Pillow's own limit.

    Raises:
        TooManyPixels: it has more.
        UnidentifiedImageError: it is in none of the formats that are read.
        Exception: whatever the decoders make of a damaged file, ``OSError``, ``SyntaxError``, ``ValueError`` and
            others, and ``ValueError`` for a mode that has no colours.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=_available_formats())
    except Image.DecompressionBombError as error:
        if most_pixels is None:
            raise
        raise TooManyPixels from error
    if most_pixels is not None and image.width * image.height > most_pixels:
        raise TooManyPixels
    image.load()
    if not _is_readable(image.mode):
        raise ValueError(f"Pillow converts no {image.mode} to RGB")
    return image


@lru_cache
def _is_readable(mode: str) -> bool:
    """Return whether images of this mode can be made grey or RGB."""
    if mode.startswith("I;16"):
        return True
    try:
        Image.new(mode, (1, 1)).convert("RGB")
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _available_formats() -> tuple[str, ...]:
    """Return those of the formats that this build of Pillow has; ``Image.open`` refuses the names of others."""
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    return tuple(formats)


def printable(path: str) -> str:
    """Return a path as text that any encoder takes: bytes that are not UTF-8 become escapes."""
    path_bytes = os.fsencode(path)
    return path_bytes.decode("utf-8", "backslashreplace")


# --- lists ------------------------------------------------------------------------------------------------------------


def read_image_list(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open an image list (UTF-8), with a path and perhaps a label in each line.

    Paths are relative to ``?root=``, else to the list's folder. A tab, if there is one, separates path and label. Else
    the last field is the label if it is an integer, or if the line does not end like an image file's name (then it is
    a name); the rest is the path, spaces included. Blank lines are passed over. Ids are the paths as written; a path
    that comes again gets ``#2``, ``#3``, ...

    Args:
        spec: of the list.
        limit: how many samples; None: all.
        seed: draws them where the set is sorted by class, so that every class is there.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        InputError: for a file that is not text or lists nothing, and for listed files that do not exist (all of them).
    """
    spec.check_query(("root",))
    entries = _parse_list(spec, spec.path)
    labels = [entry.label for entry in entries]
    rows = limited(labels, len(entries), limit, seed)
    return _open_entries(spec, entries, rows)


def read_image_lists(spec: Spec, files: Sequence[str], limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open several image lists as one set, in their order; a limit takes the same share of each, its first images.

    Args:
        spec: with the ``root`` of all.
        files: the lists.
        limit: how many images in all; None: all.

    Raises:
        InputError: for a file that is not text or lists nothing, and for listed files that do not exist.
    """
    entries: list[_ListedImage] = []
    shares: list[float] = []  # by entry: the share of its list that is done with it
    for file in files:
        file_name = os.path.basename(file)
        entries_of_file = _parse_list(spec, file, f"{file_name} ")
        count = len(entries_of_file)
        entries += entries_of_file
        shares += [number / count for number in range(1, count + 1)]
    # The first entries by share are the same share of every list.
    by_share = sorted(range(len(entries)), key=lambda row: shares[row])
    rows = sorted(by_share[:limit])
    return _open_entries(spec, entries, rows)


class _ListedImage(NamedTuple):
    """One line of an image list.

    Attributes:
        place: where it stands, for messages.
        path: that of the image, as it is written.
        label: as it is written; None where there is none.
    """

    place: str
    path: str
    label: str | None


def _parse_list(spec: Spec, file: str, name: str = "") -> list[_ListedImage]:
    """Return the entries of an image list, one for each line that is not blank.

    Args:
        spec: the SPEC it belongs to.
        file: the list.
        name: what messages call it, with a space behind; empty where it is the only list.

    Raises:
        InputError: for a file that cannot be read, is not UTF-8 text, or lists nothing.
    """
    path = Path(os.path.expanduser(file))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{spec.where}: cannot read the image list: {error.strerror}") from error
    except UnicodeDecodeError as error:
        content_before = error.object[: error.start]
        number = content_before.count(b"\n") + 1
        raise InputError(f"{spec.where}: {name}line {number} of the image list is not UTF-8 text") from error
    entries = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        image_path, label = split_line(line)
        place = f"{name}line {number}"
        entries.append(_ListedImage(place, image_path, label))
    if not entries:
        raise InputError(f"{spec.where}: the image list {name}is empty")
    return entries


def _open_entries(spec: Spec, entries: list[_ListedImage], rows: Sequence[int]) -> tuple[Dataset, RawLabels]:
    """Open some images of a list, and read their labels.

    Args:
        spec: of the list.
        entries: all lines of the list.
        rows: which of them are opened.

    Raises:
        InputError: listing the images that do not exist.
    """
    raw = _labels_of_entries(entries, rows)
    paths = []
    places = []
    for row in rows:
        paths.append(entries[row].path)
        places.append(entries[row].place)
    dataset = listed_images(spec, paths, places, raw.problems)
    return dataset, raw


def split_line(line: str) -> tuple[str, str | None]:
    """Return path and label of one line of an image list, by the rules of :func:`read_image_list`.

    ``a.jpg 3`` is (``a.jpg``, ``3``); ``my cat.jpg`` is the path alone, with None for the label; behind a tab there is
    always a label.
    """
    line = line.strip(" \r")
    if "\t" in line:
        path, _, label = line.rpartition("\t")
        return path.strip(), label.strip() or None
    path, _, last_field = line.rpartition(" ")
    if not path:
        return line, None
    is_number = INTEGER.fullmatch(last_field) is not None
    ends_like_image = line.lower().endswith(IMAGE_SUFFIXES)
    if ends_like_image and not is_number:  # a space within the name of a file
        return line, None
    return path.rstrip(), last_field


def _labels_of_entries(entries: list[_ListedImage], rows: Sequence[int]) -> RawLabels:
    """Return the labels of some entries of a list: all integers, all names, or none at all.

    Args:
        entries: all of the list. They are checked, whichever rows are asked for; names of classes are those of all.
        rows: which of them the labels are of.
    """
    labels = [entry.label for entry in entries if entry.label is not None]
    if not labels:
        return RawLabels()
    are_names = not any(INTEGER.fullmatch(label) for label in labels)
    problems = _unlabelled_entries(entries)
    if not are_names:
        problems += _entries_with_names(entries)
    if problems:
        return RawLabels(problems=problems)
    chosen = [labels[row] for row in rows]
    if are_names:
        return RawLabels(chosen, sorted(set(labels)))
    numbers = [int(label) for label in chosen]
    return RawLabels(np.array(numbers, dtype=np.int64))


def _unlabelled_entries(entries: Iterable[_ListedImage]) -> list[str]:
    """List the entries without a label, a line of a message for each."""
    problems = []
    for entry in entries:
        if entry.label is None:
            shown_path = repr(entry.path)[1:-1]
            problems.append(f"{entry.place}: no label for {shown_path}")
    return problems


def _entries_with_names(entries: Iterable[_ListedImage]) -> list[str]:
    """List the entries whose label is no number, a line of a message for each."""
    problems = []
    for entry in entries:
        if entry.label is not None and not INTEGER.fullmatch(entry.label):
            problems.append(f"{entry.place}: label {entry.label!r} is a name, others are numbers")
    return problems


def listed_images(spec: Spec, names: Sequence[str], places: Sequence[str], problems: Sequence[str] = ()) -> FileImages:
    """Open images by their paths in a file, relative to ``?root=``, else to the folder of the file.

    Args:
        spec: the SPEC of the file.
        names: the paths.
        places: where each stands in the file, for messages.
        problems: what else is wrong with the file, for the same message.

    Raises:
        InputError: listing the images that do not exist; a root that fits none of them is one problem.
    """
    folder_of_file = os.path.dirname(spec.path)
    root = Path(os.path.expanduser(spec.query.get("root", folder_of_file)))
    paths = []
    missing = []
    for name, place in zip(names, places, strict=True):
        path = os.path.join(root, name)
        paths.append(path)
        if "\0" in path or not os.path.isfile(path):  # a NUL is no part of a name
            missing.append(f"{place}: no file {printable(name)!r}")
    if not missing:
        ids = with_numbers_if_repeated(names)
        return FileImages(spec.text, spec.where, ids, paths)

    hint = "name the folder that the paths are relative to with ?root=FOLDER"
    total = len(paths)
    if len(missing) < total:
        message = f"{len(missing)} of {total} listed images do not exist under {root}"
        all_problems = [*missing, *problems]
        raise InputError(f"{spec.where}: {message}", hint=hint, problems=all_problems)
    first = printable(names[0])
    message = f"none of the {total} listed images is under {root}; the first is {first!r}"
    raise InputError(f"{spec.where}: {message}", hint=hint)


def with_numbers_if_repeated(names: Sequence[str]) -> list[str]:
    """Return the names; one that comes again gets ``#2``, ``#3``, ..."""
    times_met: dict[str, int] = {}
    ids = []
    for name in names:
        number = times_met.get(name, 0) + 1
        times_met[name] = number
        if number == 1:
            ids.append(name)
        else:
            ids.append(f"{name}#{number}")
    return ids


# --- folders ----------------------------------------------------------------------------------------------------------


def read_folder(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open a folder of images, or of class folders with images.

    Every sub-folder is a class and holds its images at any depth; ids are paths relative to the folder, classes and
    files in the order of their names (code points, the same on every machine). Hidden files and folders and files
    without an image's ending are passed over. A folder with images and no sub-folders is a set without labels.

    Args:
        spec: of the folder.
        limit: how many samples; None: all.
        seed: draws them where the set is sorted by class, so that every class is there.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        InputError: for a folder without any images, a class folder without images, images beside class folders, or a
            folder that cannot be listed.
    """
    spec.check_query(())
    root = os.path.expanduser(spec.path)
    images_by_class: dict[str, list[str]] = {}
    try:
        class_folders, loose_images = _folders_and_images(root)
        for name in class_folders:
            images_by_class[name] = _images_below(os.path.join(root, name), ())
    except OSError as error:
        raise InputError(f"{spec.where}: cannot list {error.filename}: {error.strerror}") from error
    _check_folder(spec, images_by_class, loose_images)
    if not class_folders:
        rows = limited(None, len(loose_images), limit, seed)
        dataset = _open_paths(spec, root, [loose_images[row] for row in rows])
        return dataset, RawLabels()

    class_of_each, paths = _classes_and_paths(images_by_class)
    rows = limited(class_of_each, len(paths), limit, seed)
    dataset = _open_paths(spec, root, [paths[row] for row in rows])
    labels = [printable(class_of_each[row]) for row in rows]
    class_names = list(map(printable, class_folders))
    return dataset, RawLabels(labels, class_names)


def _open_paths(spec: Spec, root: str, paths: Sequence[str]) -> FileImages:
    """Open images by their paths in a folder, which are their ids too."""
    ids = [printable(path) for path in paths]
    files = [os.path.join(root, path) for path in paths]
    return FileImages(spec.text, spec.where, ids, files)


def _classes_and_paths(images_by_class: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the class of each image, and its path ``CLASS/IMAGE``: two lists of the same length, class after class."""
    class_of_each = []
    paths = []
    for name, images in images_by_class.items():
        for image in images:
            class_of_each.append(name)
            paths.append(f"{name}/{image}")
    return class_of_each, paths


def _check_folder(spec: Spec, images_by_class: Mapping[str, Sequence[str]], loose_images: Sequence[str]) -> None:
    """Refuse a folder that is neither one of class folders, each with images, nor one of images.

    Args:
        spec: of the folder.
        images_by_class: the images below each of its folders.
        loose_images: those directly in it.

    Raises:
        InputError: saying what is there that does not belong.
    """
    if not loose_images and not any(images_by_class.values()):
        endings = " ".join(IMAGE_SUFFIXES)
        raise InputError(f"{spec.where}: no images in the folder", hint=f"image files end in {endings}")
    problems = []
    for name, images in images_by_class.items():
        if not images:
            problems.append(f"class folder {printable(name)!r} has no images")
    if images_by_class and loose_images:
        first = printable(loose_images[0])
        others = len(loose_images) - 1
        problems.append(f"images beside the class folders: {first} and {others} more")
    if problems:
        raise InputError(
            f"{spec.where}: neither a folder of class folders nor a folder of images",
            hint="move what does not belong out of the folder",
            problems=problems,
        )


def _folders_and_images(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the sub-folders and of the images directly in a folder, each sorted; links are followed."""
    folders = []
    images = []
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
    """List the images at any depth of a folder, relative to it, in a fixed order.

    Args:
        folder: the folder.
        above: device and inode of the folders that led here; links that lead back to one of them are not followed.
    """
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return []
    folders, images = _folders_and_images(folder)
    for name in folders:
        subfolder = os.path.join(folder, name)
        for path in _images_below(subfolder, (*above, identity)):
            images.append(f"{name}/{path}")
    return images
