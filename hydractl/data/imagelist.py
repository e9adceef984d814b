"""Images in files: lists of one ``path label`` a line (OpenOOD, https://github.com/Jingkang50/OpenOOD), and folders."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.errors import InputError

QUERY = ("root",)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def read_image_list(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open an image list (UTF-8).

    Paths are relative to ``?root=``, else to the list's folder. A tab, if there is one, separates path and label. Else
    the last field is the label if it is an integer, or if the line does not end like an image file's name (then it is
    a name); the rest is the path, spaces included. Blank lines are passed over. Ids are the paths as written; a path
    that comes again gets ``#2``, ``#3``, ...

    Raises:
        InputError: not a text, nothing listed, or listed files that do not exist (all of them).
    """
    spec.check_query(QUERY)
    path = Path(spec.path).expanduser()
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{spec.where}: cannot read the image list: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{spec.where}: line {line} of the image list is not UTF-8 text") from error
    entries = [(number, *split_line(line)) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not entries:
        raise InputError(f"{spec.where}: the image list is empty")
    raw = _labels(entries, limit)
    entries = entries[:limit]
    root = Path(spec.query["root"]).expanduser() if "root" in spec.query else path.parent
    paths = [os.path.join(root, name) for _, name, _ in entries]
    _check_files(spec, root, entries, paths, raw.problems)
    return FileImages(spec.text, spec.where, path_ids([name for _, name, _ in entries]), paths), raw


def split_line(line: str) -> tuple[str, str | None]:
    """Path and label of one line."""
    line = line.strip(" \r")
    if "\t" in line:
        path, _, label = line.rpartition("\t")
        return path.strip(), label.strip() or None
    path, _, label = line.rpartition(" ")
    if not path or (line.lower().endswith(IMAGE_SUFFIXES) and not _INTEGER.fullmatch(label)):
        return line, None
    return path.rstrip(), label


def _labels(entries: list[tuple[int, str, str | None]], limit: int | None) -> RawLabels:
    """The labels of a list: all integers, all names, or none at all."""
    labelled = [(number, label) for number, _, label in entries if label is not None]
    if not labelled:
        return RawLabels()
    problems = [f"line {number}: no label for {name}" for number, name, label in entries if label is None]
    integers = [bool(_INTEGER.fullmatch(label)) for _, label in labelled]
    if any(integers) and not all(integers):
        names = [entry for entry, integer in zip(labelled, integers, strict=True) if not integer]
        problems += [f"line {number}: label {label!r} is a name, others are numbers" for number, label in names]
    if problems:
        return RawLabels(problems=problems)
    values = [label for _, label in labelled]
    if all(integers):
        return RawLabels(np.array([int(label) for label in values[:limit]], dtype=np.int64))
    return RawLabels(values[:limit], sorted(set(values)))


def _check_files(
    spec: Spec, root: Path, entries: list[tuple[int, str, str | None]], paths: list[str], label_problems: list[str]
) -> None:
    """Every listed file must exist; a root that fits none of them is one problem, not one for each line."""
    missing = [i for i, path in enumerate(paths) if "\0" in path or not os.path.isfile(path)]
    if not missing:
        return
    if len(missing) == len(paths):
        raise InputError(
            f"{spec.where}: none of the {len(paths)} listed images is under {root}; the first is {entries[0][1]!r}",
            hint="name the folder that the paths are relative to with ?root=FOLDER",
        )
    raise InputError(
        f"{spec.where}: {len(missing)} of {len(paths)} listed images do not exist under {root}",
        hint="name the folder that the paths are relative to with ?root=FOLDER",
        problems=[f"line {entries[i][0]}: no file {entries[i][1]!r}" for i in missing] + label_problems,
    )


def path_ids(names: Sequence[str]) -> list[str]:
    """Paths as ids: one that comes again gets ``#2``, ``#3``, ..."""
    seen: dict[str, int] = {}
    ids = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        ids.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return ids


def read_folder(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
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
    samples = samples[:limit]
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
