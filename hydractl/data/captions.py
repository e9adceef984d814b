"""``captions:`` pairs of an image and its caption, from a table of image paths, WebDataset shards or Parquet."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from hydractl.data.base import PAIRS, Dataset
from hydractl.data.files import ListedImages
from hydractl.data.hub import holds_images, read_image_parquet
from hydractl.data.labels import RawLabels
from hydractl.data.shards import index_shards
from hydractl.data.text import MOST_PROBLEMS, shown_columns
from hydractl.data.text_rows import TextRow, open_table
from hydractl.errors import InputError
from hydractl.expressions.data_sets import TEXT_SUFFIXES, DataSpec

# Names under which the column of images and the column of captions are found; open_clip uses filepath and title.
_NAMES = {"image": ("image", "filepath", "file_name", "path"), "caption": ("caption", "title", "text")}


class CaptionedImages(Dataset):
    """Images, each with one caption. An image with several captions makes several samples.

    The fingerprint of a sample covers its image and not its caption: once a model has been trained on an image, it is
    no test image any more under any caption. The fingerprint of the whole set covers images and captions.
    """

    kind = PAIRS

    def __init__(self, images: Dataset, captions: Sequence[str]) -> None:
        """Pair images with captions.

        Args:
            images: one image for each pair; those without a caption are left out.
            captions: the captions of these images, in the same order.
        """
        super().__init__(images.spec, images.where, images.ids[: len(captions)])
        self.images = images
        self.is_encoded = images.is_encoded
        self.captions = captions
        self._fingerprints = images._fingerprints  # those of the images, which are known to both

    def _sample(self, i: int) -> tuple[Image.Image, str]:
        return self.images[i], self.captions[i]

    def prepare(self, rows: Sequence[int]) -> None:
        """Prepare for reading the images of these pairs."""
        self.images.prepare(rows)

    def fingerprint(self) -> str:
        """Return the SHA-256 in hex over the fingerprint of the images and all captions."""
        fingerprint_of_images = super().fingerprint()
        digest = hashlib.sha256(fingerprint_of_images.encode())
        for caption in self.captions:
            content = caption.encode("utf-8")
            digest.update(f"caption {len(content)}\n".encode() + content)
        return digest.hexdigest()


def read_captions(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``captions:PATH``: pairs of images and captions. They have no labels.

    There are three sources. A table (``.jsonl``, ``.csv`` or ``.tsv``, each also ``.gz``, or ``.parquet``) has an image
    and a caption in each row; the image is a path, relative to ``?root=`` or else to the file's folder. A ``.parquet``
    file may also hold the images themselves. A ``.tar`` file, several ``.tar`` files written with braces, or a folder
    of them are WebDataset shards, where each image has a ``.txt`` file.

    ``?image=`` and ``?caption=`` name the columns, or in shards the endings of the files; a caption in a shard may also
    be at ``json.KEY``. With ``limit``, nothing after the first ``limit`` pairs is read.

    Args:
        spec: the SPEC of the pairs.
        limit: take only this many pairs from the start; None means all.

    Raises:
        InputError: if the file cannot be read, if columns are missing or ambiguous, or if pairs lack a caption or an
            image (all of them are listed).
        UsageError: for Parquet if pyarrow is not installed.
    """
    name = spec.path.lower()
    path = Path(os.path.expanduser(spec.path))

    # Shards: a .tar file, or a folder of them.
    if name.endswith(".tar") or path.is_dir():
        return _read_shard_pairs(spec, limit)

    # Anything else is a table. Only a Parquet file can hold the images themselves.
    if not name.endswith(TEXT_SUFFIXES):
        raise InputError(
            f"{spec.where}: not a kind of file that captions are read from",
            hint=f"a table of images and captions ({', '.join(TEXT_SUFFIXES)}), or WebDataset shards (.tar)",
        )
    if name.endswith(".parquet") and holds_images(str(path)):
        return _read_parquet_pairs(spec, limit)
    return _read_table_pairs(spec, limit)


def _read_shard_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs in WebDataset shards; they have no labels.

    Args:
        spec: the SPEC of the shards.
        limit: take only this many pairs from the start; None means all.

    Raises:
        InputError: if images have no caption; all of them are listed.
    """
    spec.check_query(("image", "caption"))
    caption_source = spec.query.get("caption", "txt")
    images, texts = index_shards(spec, limit, caption_source)
    captions = []
    problems = []
    for image_id, text in zip(images.ids, texts, strict=True):
        if text is None or not text.strip():
            problems.append(f"{image_id} has no caption, or an empty one")
        else:
            captions.append(text)
    _refuse_pairs(spec, problems, f"where captions are: ?caption={caption_source}")
    dataset = CaptionedImages(images, captions)
    return dataset, RawLabels()


def _read_parquet_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs in a Parquet file that holds the images themselves; they have no labels.

    Args:
        spec: the SPEC of the file.
        limit: take only this many pairs from the start; None means all.

    Raises:
        InputError: if columns are missing or ambiguous, or if rows have no caption (all of them are listed).
    """
    table = open_table(spec, ("image", "caption"))

    # Images and captions are read separately. The reader of the images would refuse ?caption=, so pass on only ?image=.
    image_query = {key: value for key, value in spec.query.items() if key == "image"}
    image_spec = replace(spec, query=image_query)
    images, _ = read_image_parquet(image_spec, None)

    # The captions come from the same rows as the images.
    available_columns = table.columns or ()
    caption_column = _choose_column(spec, "caption", available_columns, "column")
    all_rows = table.rows([caption_column])
    rows = itertools.islice(all_rows, limit)
    texts, _ = _read_texts(spec, rows, {"caption": caption_column})
    dataset = CaptionedImages(images, texts["caption"])
    return dataset, RawLabels()


def _read_table_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs of a table whose rows name image files; they have no labels.

    Args:
        spec: the SPEC of the file.
        limit: take only this many pairs from the start; None means all.

    Raises:
        InputError: if columns are missing or ambiguous, rows have no caption, or images do not exist (all are listed).
    """
    table = open_table(spec, ("image", "caption", "root"))
    # JSON lines have no common columns: _read_texts decides by the keys of the first row.
    columns = _choose_columns(spec, table.columns, "column") if table.columns else {}
    all_rows = table.rows(list(columns.values()))
    rows = itertools.islice(all_rows, limit)
    texts, row_names = _read_texts(spec, rows, columns)
    if not row_names:
        raise InputError(f"{spec.where}: no pairs in the file")
    images = ListedImages(spec, texts["image"], row_names)
    dataset = CaptionedImages(images, texts["caption"])
    return dataset, RawLabels()


def _read_texts(
    spec: DataSpec, rows: Iterable[TextRow], columns: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Read the texts in some columns of each row.

    Args:
        spec: the SPEC of the file.
        rows: the rows to read.
        columns: the names of the columns by ``image`` and ``caption``. If it is empty, the keys of the first readable
            row decide.

    Returns:
        For each of ``image`` and ``caption`` a list with one text per row (empty if its column was not asked for); and
        for each row where it is in the file, e.g. ``line 3``.

    Raises:
        InputError: listing the rows in which a text is missing.
    """
    texts: dict[str, list[str]] = {key: [] for key in _NAMES}
    row_names = []
    problems = []
    for row in rows:
        try:
            if row.problem:
                raise ValueError(row.problem)  # caught below, like the problems of the texts
            if not columns:  # the first readable row decides for all rows
                columns = _choose_columns(spec, list(row.values), "key")
            texts_of_row = {key: _text_of_row(row, column, key) for key, column in columns.items()}
        except ValueError as error:
            problems.append(f"{row.place} {error}")
            if len(problems) == MOST_PROBLEMS:
                break
            continue
        row_names.append(row.place)
        for key, text in texts_of_row.items():
            texts[key].append(text)
    _refuse_pairs(spec, problems)
    return texts, row_names


def _choose_columns(spec: DataSpec, available: Sequence[str], what: str) -> dict[str, str]:
    """Return a dict with the names of two columns: ``image`` and ``caption``."""
    return {key: _choose_column(spec, key, available, what) for key in _NAMES}


def _choose_column(spec: DataSpec, key: str, available: Sequence[str], what: str) -> str:
    """Return the column of the images or of the captions: the one that the SPEC names, else the one with a known name.

    Args:
        spec: the SPEC of the file.
        key: ``image`` or ``caption``; ``?image=NAME`` or ``?caption=NAME`` names the column.
        available: the columns of the file, or the keys of its first row.
        what: how messages call a column, ``column`` or ``key``.

    Raises:
        InputError: if no column, or more than one, may be the column.
    """
    asked = spec.query.get(key)

    # Which names the column may have, and how messages call it.
    if asked is None:
        wanted = f"the {key}"
        known_names = _NAMES[key]
    else:
        wanted = f"?{key}={asked}"
        known_names = (asked,)

    # Exactly one column must have one of these names.
    candidates = [name for name in known_names if name in available]
    if len(candidates) == 1:
        (name,) = candidates
        times_there = list(available).count(name)  # a header may name a column twice
        if times_there == 1:
            return name

    # Several columns may be meant, or none.
    if candidates:
        names = " and ".join(map(repr, candidates))
        problem = f"{names} may be {wanted}"
    else:
        problem = f"no {what} of {wanted}"
    hint = f"say which {what} it is with ?{key}=NAME"
    if what == "column" and not spec.path.lower().endswith(".parquet"):
        hint += "; a file without a header needs ?columns=image,caption or the like"
    raise InputError(f"{spec.where}: {problem}: it has {shown_columns(available)}", hint=hint)


def _text_of_row(row: TextRow, column: str, what: str) -> str:
    """Return the text in one column of a row: an image's path, or a caption.

    Args:
        row: a row of the file.
        column: the name of the column.
        what: how messages call the text, ``image`` or ``caption``.

    Raises:
        ValueError: saying what is wrong with the text, as the end of a sentence about the row.
    """
    value = row.text_in(column)
    if not value.strip():
        raise ValueError(f"has an empty {what}")
    return value


def _refuse_pairs(spec: DataSpec, problems: list[str], hint: str | None = None) -> None:
    """Raise an error that lists the pairs that cannot be used, if there are any.

    Args:
        spec: the SPEC of the pairs.
        problems: one line for each pair.
        hint: the hint of the error.
    """
    if not problems:
        return
    count = len(problems)
    pairs = "1 pair" if count == 1 else f"{count} pairs"
    if count == MOST_PROBLEMS:
        pairs += " or more"
    raise InputError(f"{spec.where}: {pairs} cannot be used", hint=hint, problems=problems)
