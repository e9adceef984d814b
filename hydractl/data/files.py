"""Images in files, read one at a time: folders of images, and image lists with one ``path label`` per line.

The lists have the format of OpenOOD's (https://github.com/Jingkang50/OpenOOD).
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from hydractl.data.base import Dataset, UnreadableSample, listed_endings, reason, visible
from hydractl.data.labels import INTEGER, RawLabels, labels_of_column
from hydractl.data.slow_images import refuse_slow
from hydractl.data.text_rows import numbered_lines
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.pixels import in_eight_bits, upright
from hydractl.jsonio import read_whole

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".jpe", ".mpo", ".png", ".apng", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)
"""File endings, in upper or lower case, by which a file counts as an image."""

# Only these formats are tried. Pillow would otherwise also pass files to outside programs (Ghostscript for EPS), and
# its decoder of JPEG 2000 takes gigabytes for a file of a few hundred bytes.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "AVIF")


_LONGEST_ENDING = 20
"""How many characters of the ending of another file a message shows."""


class EncodedImages(Dataset):
    """Images that are stored encoded, as in PNG or JPEG files, wherever the bytes come from."""

    is_encoded = True
    nothing = "the file is empty"
    """How messages describe an image that has no bytes."""
    turns = False
    """Whether images are turned as their EXIF orientation says."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """Return the encoded bytes of image ``i``.

        Raises:
            UnreadableSample: if they cannot be read.
        """

    def name(self, i: int) -> str:
        """Return the name of image ``i`` in messages."""
        return self.ids[i]

    def unreadable(self, i: int, why: str, hint: str | None = None) -> UnreadableSample:
        """Return the error which says that image ``i`` cannot be read, and why."""
        return UnreadableSample(
            f"cannot read image {self.name(i)}: {why} ({self.where})",
            hint=hint
            or "replace it or take it out; eval, predict, calibrate, study: --on-bad skip leaves out all such",
        )

    def _sample(self, i: int) -> Image.Image:
        """Return image ``i``, decoded, and turned upright if this set asks for it.

        Raises:
            UnreadableSample: if its file is empty, in an unknown format or damaged.
        """
        content = self.read(i)
        if not content:
            raise self.unreadable(i, self.nothing)  # the reason, such as "the file is empty"
        try:
            image = decoded_image(content)
            return upright(image) if self.turns else image
        except MemoryError:
            raise
        except UnidentifiedImageError as error:
            known = ", ".join(_available_formats())
            raise self.unreadable(i, f"not an image in one of the formats {known}") from error
        except InputError as error:
            raise self.unreadable(i, error.message, error.hint) from error
        # Decoders raise nearly anything for a damaged file: OSError, SyntaxError, ValueError, struct.error, ...
        except Exception as error:
            raise self.unreadable(i, reason(error)) from error


@dataclass(eq=False, repr=False)
class FileImages(EncodedImages):
    """Image files on disk; ``paths`` are in the order of ``ids``."""

    paths: Sequence[str]

    def name(self, i: int) -> str:
        path = self.paths[i]
        return printable(path)

    def read(self, i: int) -> bytes:
        try:
            return read_whole(self.paths[i])
        except OSError as error:
            raise self.unreadable(i, reason(error)) from error


def opened_image(content: bytes) -> Image.Image:
    """Return an image whose header alone has been read; its pixels are decoded by ``load``.

    Args:
        content: the bytes of an image file.

    Raises:
        UnidentifiedImageError: if it has none of the formats that are read.
        ValueError: if it would take minutes to decode.
        Exception: Pillow raises ``OSError``, ``SyntaxError`` and others for a damaged header.
    """
    refuse_slow(content)
    return Image.open(io.BytesIO(content), formats=_available_formats())


def decoded_image(content: bytes) -> Image.Image:
    """Decode an image and return it in the mode in which it is stored; a deep grey one in 8 bits.

    If it has several frames, return the first one.

    Args:
        content: the bytes of an image file.

    Raises:
        UnidentifiedImageError: if it has none of the formats that are read.
        ValueError: if its mode cannot be converted to RGB, or it would take minutes to decode.
        InputError: if it is grey and deeper than 8 bits, and it is not known which pixel is white.
        Exception: decoders raise ``OSError``, ``SyntaxError``, ``ValueError`` and others for a damaged file.
    """
    image = opened_image(content)
    image.load()
    if not _is_readable(image.mode):
        raise ValueError(f"Pillow converts no {image.mode} to RGB")
    return in_eight_bits(image)


@lru_cache
def _is_readable(mode: str) -> bool:
    """Return whether images of this mode can be converted to grey or RGB."""
    try:
        Image.new(mode, (1, 1)).convert("RGB")
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _available_formats() -> tuple[str, ...]:
    """Return the formats of ``_FORMATS`` that this build of Pillow supports; ``Image.open`` refuses unknown names."""
    Image.init()
    formats = [name for name in _FORMATS if name in Image.OPEN]
    return tuple(formats)


def printable(path: str) -> str:
    """Return a path as text that every encoder accepts; bytes that are not UTF-8 become escapes."""
    path_bytes = os.fsencode(path)
    return path_bytes.decode("utf-8", "backslashreplace")


# --- lists ------------------------------------------------------------------------------------------------------------


def read_image_list(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the images and labels of a list, a text file with a path and optionally a label in each line.

    Paths are relative to ``?root=`` if it is set, else to the folder of the list. If a line has a tab, the tab
    separates path and label. Otherwise the last field is the label if it is an integer, or if the line does not end
    like the name of an image file (the label is then a class name); everything before it is the path, spaces included.
    Blank lines are skipped. Ids are the paths as written; a repeated path gets ``#2``, ``#3``, ...

    Returns:
        The images, which are read later, and their labels before they are mapped to the classes of a model. A label is
        an int, a class name, or None where a line has none.

    Raises:
        InputError: if the file cannot be read, is not UTF-8 text, or lists nothing.
    """
    spec.check_query(("root",))
    places = []
    names = []
    labels: list[int | str | None] = []
    for number, line in numbered_lines(spec, bom=True):
        if not line.strip():
            continue
        path, label = _split_line(line.rstrip("\n"))
        places.append(f"line {number}")
        names.append(path)
        if label is not None and INTEGER.fullmatch(label):
            labels.append(int(label))
        else:
            labels.append(label)
    if not names:
        raise InputError(f"{spec.where}: the image list is empty")
    return ListedImages(spec, names, places), labels_of_column(labels)


def _split_line(line: str) -> tuple[str, str | None]:
    """Split one line of an image list into path and label, by the rules of :func:`read_image_list`.

    ``a.jpg 3`` gives (``a.jpg``, ``3``), and ``my cat.jpg`` gives (``my cat.jpg``, None). After a tab there is always
    a label; it is None if nothing follows the tab.
    """
    text = line.strip(" \r")
    if "\t" in text:
        path, _, label = text.rpartition("\t")
        return path.strip(), label.strip() or None  # an empty label is none

    # Without a tab, the last field may be a label or the end of the path.
    before_last_space, _, last_field = text.rpartition(" ")
    has_space = bool(before_last_space)
    if not has_space:
        return text, None
    is_number = INTEGER.fullmatch(last_field) is not None
    ends_like_image = text.lower().endswith(IMAGE_SUFFIXES)
    if ends_like_image and not is_number:  # the space is part of the file's name, as in `my cat.jpg`
        return text, None
    return before_last_space.rstrip(), last_field


class ListedImages(FileImages):
    """Images that a file lists by their paths, relative to ``?root=`` or else to the folder of the file.

    Args:
        spec: the SPEC of the file.
        names: the paths as written in the file; they also become the ids.
        places: where each path is written, for messages, e.g. ``line 3``.
    """

    def __init__(self, spec: DataSpec, names: Sequence[str], places: Sequence[str]) -> None:
        """Find the folder that the paths are relative to; whether the images exist is checked by :meth:`prepare`."""
        folder_of_file = os.path.dirname(spec.path)
        self._root = Path(os.path.expanduser(spec.query.get("root", folder_of_file)))
        self._names = names
        self._places = places
        paths = [os.path.join(self._root, name) for name in names]
        super().__init__(spec.text, spec.where, with_numbers_if_repeated(names), paths)

    def prepare(self, rows: Sequence[int]) -> None:
        """Check that the listed images at the indices ``rows`` exist; no image is read.

        Raises:
            InputError: if some do not. All that are missing are listed; if none of ``rows`` exists, only the first.
        """
        missing = []
        for row in rows:
            path = self.paths[row]
            if "\0" in path or not os.path.isfile(path):  # no file name contains a NUL
                missing.append(f"{self._places[row]}: no file {printable(self._names[row])!r}")
        if not missing:
            return

        # If all are missing, the folder is wrong, and the first one shows it.
        raise InputError(
            f"{self.where}: {len(missing)} of {len(rows)} listed images do not exist under {self._root}",
            hint="name the folder that the paths are relative to with ?root=FOLDER",
            problems=missing if len(missing) < len(rows) else missing[:1],
        )


def with_numbers_if_repeated(names: Sequence[str]) -> list[str]:
    """Return the names; a repeated name gets ``#2``, ``#3``, ... appended."""
    times_met: Counter[str] = Counter()
    ids = []
    for name in names:
        times_met[name] += 1
        number = times_met[name]
        ids.append(name if number == 1 else f"{name}#{number}")
    return ids


# --- folders ----------------------------------------------------------------------------------------------------------


def read_folder(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the images and labels of a folder of images, or of a folder of class folders with images.

    Every sub-folder is a class and holds its images at any depth. Ids are paths relative to the folder. Classes and
    files are sorted by name (by code points, so the order is the same on every machine). Hidden files and folders are
    skipped; files that do not end like an image are counted in :attr:`Dataset.left_out`.
    A folder with images and no sub-folders is an unlabelled set.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        InputError: if the folder has no images, a class folder has no images, there are images beside class folders,
            or a folder cannot be listed.
    """
    spec.check_query(())
    root = os.path.expanduser(spec.path)

    # List all images.
    images_by_class: dict[str, list[str]] = {}
    left_out: Counter[str] = Counter()  # other files, counted by the two functions below
    try:
        class_folders, loose_images = _folders_and_images(root, left_out)
        for name in class_folders:
            images_by_class[name] = _images_below(os.path.join(root, name), (), left_out)
    except OSError as error:
        raise InputError(f"{spec.where}: cannot list {error.filename}: {error.strerror}") from error
    _check_folder(spec, images_by_class, loose_images, left_out)

    # Class after class: the class of each image, and its path. Without class folders the images have no labels. With
    # them there are no loose images, as was checked.
    class_of_each = []
    paths = list(loose_images)
    for name, images in images_by_class.items():
        for image in images:
            class_of_each.append(printable(name))
            paths.append(f"{name}/{image}")
    ids = [printable(path) for path in paths]
    dataset = FileImages(spec.text, spec.where, ids, [os.path.join(root, path) for path in paths])
    dataset.left_out = left_out
    if not class_folders:
        return dataset, RawLabels()
    return dataset, RawLabels(class_of_each, list(map(printable, class_folders)))


def _check_folder(
    spec: DataSpec,
    images_by_class: Mapping[str, Sequence[str]],
    loose_images: Sequence[str],
    left_out: Counter[str],
) -> None:
    """Refuse a folder that holds neither only class folders with images nor only images.

    Args:
        spec: the SPEC of the folder.
        images_by_class: the images in each class folder, by its name.
        loose_images: the images directly in the folder.
        left_out: how many other files there are, by the ending of their names.

    Raises:
        InputError: saying what is missing or does not belong there.
    """
    if not loose_images and not any(images_by_class.values()):
        message = f"{spec.where}: no images in the folder"
        if left_out:
            message += f", but {listed_endings(left_out)}"
        raise InputError(message, hint=f"image files end in {' '.join(IMAGE_SUFFIXES)}")

    # Every class needs images, and beside class folders there must be no loose images, which would have no class.
    problems = []
    for name, images in images_by_class.items():
        if not images:
            problems.append(f"class folder {printable(name)!r} has no images")
    if images_by_class and loose_images:
        first = printable(loose_images[0])
        problems.append(f"images beside the class folders: {len(loose_images)}, the first is {first}")
    if problems:
        raise InputError(
            f"{spec.where}: neither a folder of class folders nor a folder of images",
            hint="move what does not belong out of the folder",
            problems=problems,
        )


def _folders_and_images(folder: str, left_out: Counter[str]) -> tuple[list[str], list[str]]:
    """Return two sorted lists: the sub-folders of a folder, and the images directly in it. Links are followed.

    Args:
        folder: the folder.
        left_out: changed by this function: it counts each other file by the ending of its name. Hidden files and
            folders are neither returned nor counted.
    """
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
            else:
                _, ending = os.path.splitext(printable(entry.name))
                shown_ending = visible(ending.lower())[:_LONGEST_ENDING]
                left_out[shown_ending or "without an ending"] += 1
    return sorted(folders), sorted(images)


def _images_below(folder: str, above: tuple[tuple[int, int], ...], left_out: Counter[str]) -> list[str]:
    """Return the images at any depth of a folder, as paths relative to it, in a fixed order.

    A link back to a folder that contains this one is not followed, because the search would never end. Two links to one
    folder elsewhere are both followed.

    Args:
        folder: the folder.
        above: identifies each folder that contains this one, by its device and inode; empty for the first call.
        left_out: changed by this function: it counts each file that is no image by the ending of its name.
    """
    status = os.stat(folder)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return []

    # First the images directly in the folder, then those of each sub-folder, whose paths begin with its name.
    folders, images = _folders_and_images(folder, left_out)
    for name in folders:
        subfolder = os.path.join(folder, name)
        for path in _images_below(subfolder, (*above, identity), left_out):
            images.append(f"{name}/{path}")
    return images
