"""A folder of class folders, or a folder of images without labels."""

from __future__ import annotations

import os

from hydractl.data.base import Dataset
from hydractl.data.files import IMAGE_SUFFIXES, FileImages, printable
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.errors import InputError


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
