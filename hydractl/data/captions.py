"""``captions:`` pairs of an image and its caption, from a table of paths, WebDataset shards or Parquet."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from hydractl.data.base import PAIRS, TEXT_SUFFIXES, Dataset, Spec
from hydractl.data.files import listed_images
from hydractl.data.hub import holds_images, read_image_parquet
from hydractl.data.labels import RawLabels
from hydractl.data.shards import index_shards
from hydractl.data.text import MOST_PROBLEMS, shown_columns
from hydractl.data.text_rows import TextRow, open_table
from hydractl.errors import InputError
from hydractl.jsonio import shown

# Names of the columns of the images' paths and of the captions; filepath and title are open_clip's own defaults.
_NAMES = {"image": ("image", "filepath", "file_name", "path"), "caption": ("caption", "title", "text")}


class CaptionedImages(Dataset):
    """Images, each with one caption. An image with several captions is several samples.

    The fingerprint of a sample is that of its image, whatever its caption: an image that a model has been trained on
    is no test image any more. That of the whole set is of images and captions.
    """

    kind = PAIRS

    def __init__(self, images: Dataset, captions: Sequence[str]) -> None:
        """Set up the pairs.

        Args:
            images: one for each pair.
            captions: of the images, in the same order.
        """
        super().__init__(images.spec, images.where, images.ids)
        self.images = images
        self.captions = captions

    def _sample(self, i: int) -> tuple[Image.Image, str]:
        image = self.images[i]
        caption = self.captions[i]
        return image, caption

    def _content(self, i: int) -> Iterable[bytes]:
        return self.images._content(i)

    def fingerprint(self) -> str:
        of_images = super().fingerprint()
        digest = hashlib.sha256(of_images.encode())
        for caption in self.captions:
            content = caption.encode("utf-8")
            digest.update(f"caption {len(content)}\n".encode() + content)
        return digest.hexdigest()


def read_captions(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``captions:PATH``: pairs of images and captions. They have no labels.

    A ``.jsonl``, ``.csv`` or ``.tsv`` file (each also ``.gz``) and a ``.parquet`` file name an image (a path, relative
    to ``?root=``, else to the file's folder) and a caption in each row; a ``.parquet`` file may also hold the images
    themselves. A ``.tar`` file, several by braces, or a folder of them are WebDataset shards: each image with its
    ``.txt``. ``?image=`` and ``?caption=`` name the columns, or the endings of the files in shards, where a caption
    may also be in ``json.KEY``. With ``limit``, nothing behind the first ``limit`` pairs is read.

    Args:
        spec: of the pairs.
        limit: how many pairs, the first ones; None: all.

    Raises:
        InputError: for a file that cannot be read, columns that are not there or cannot be decided, and listing the
            pairs without a caption or an image.
        UsageError: for Parquet without pyarrow.
    """
    name = spec.path.lower()
    path = Path(os.path.expanduser(spec.path))
    are_shards = name.endswith(".tar") or path.is_dir()
    if are_shards:
        return _read_shard_pairs(spec, limit)
    if not name.endswith(TEXT_SUFFIXES):
        raise InputError(
            f"{spec.where}: not a kind of file that captions are read from",
            hint=f"a table of images and captions ({', '.join(TEXT_SUFFIXES)}), or WebDataset shards (.tar)",
        )
    if name.endswith(".parquet") and holds_images(str(path)):
        return _read_parquet_pairs(spec, limit)
    return _read_table_pairs(spec, limit)


def _read_shard_pairs(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs of WebDataset shards; they have no labels.

    Args:
        spec: of the shards.
        limit: how many pairs, the first ones; None: all.

    Raises:
        InputError: listing the images without a caption.
    """
    spec.check_query(("image", "caption"))
    caption_source = spec.query.get("caption", "txt")
    images, captions = index_shards(spec, limit, caption_source, texts=True)
    problems = []
    for image_id, caption in zip(images.ids, captions, strict=True):
        is_blank = caption is None or not caption.strip()
        if is_blank:
            problems.append(f"{image_id} has no caption, or an empty one")
    _refuse_pairs(spec, problems, f"where captions are: ?caption={caption_source}")
    dataset = CaptionedImages(images, captions)
    return dataset, RawLabels()


def _read_parquet_pairs(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs of a Parquet file that holds the images themselves; they have no labels.

    Args:
        spec: of the file.
        limit: how many pairs, the first ones; None: all.

    Raises:
        InputError: for columns that are not there or cannot be decided, and listing the rows without a caption.
    """
    table = open_table(spec, ("image", "caption"))
    # What reads the images knows no setting of the captions.
    image_query = {}
    if "image" in spec.query:
        image_query["image"] = spec.query["image"]
    image_spec = replace(spec, query=image_query)
    images, _ = read_image_parquet(image_spec, limit, None)
    available = table.columns or ()
    column = _choose_column(spec, "caption", available, "column")
    all_rows = table.rows([column])
    rows = itertools.islice(all_rows, len(images))
    texts, _ = _read_texts(spec, rows, {"caption": column})
    dataset = CaptionedImages(images, texts["caption"])
    return dataset, RawLabels()


def _read_table_pairs(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open the pairs of a table whose rows name the files of the images; they have no labels.

    Args:
        spec: of the file.
        limit: how many pairs, the first ones; None: all.

    Raises:
        InputError: for columns that are not there or cannot be decided, and listing the rows without a caption, and
            the images that do not exist.
    """
    table = open_table(spec, ("image", "caption", "root"))
    columns = {}
    if table.columns:  # else every row has keys of its own
        columns = _choose_columns(spec, table.columns, "column")
    all_rows = table.rows(list(columns.values()))
    rows = itertools.islice(all_rows, limit)
    texts, places = _read_texts(spec, rows, columns)
    if not places:
        raise InputError(f"{spec.where}: no pairs in the file")
    images = listed_images(spec, texts["image"], places)
    dataset = CaptionedImages(images, texts["caption"])
    return dataset, RawLabels()


def _read_texts(
    spec: Spec, rows: Iterable[TextRow], columns: Mapping[str, str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Read the texts of some columns, and note the place of each row.

    Args:
        spec: of the file.
        rows: of the file.
        columns: the names of the columns by ``image`` and ``caption``; empty: decided by the keys of the first row.

    Returns:
        By ``image`` and ``caption`` a text for each row; and where each row stands.

    Raises:
        InputError: listing the rows that lack a text.
    """
    texts: dict[str, list[str]] = {key: [] for key in _NAMES}
    places = []
    problems = []
    for row in rows:
        try:
            if row.problem:
                raise ValueError(row.problem)
            if not columns:
                columns = _choose_columns(spec, list(row.values), "key")
            texts_of_row = {key: _text_of_row(row, column, key) for key, column in columns.items()}
        except ValueError as error:
            problems.append(f"{row.place} {error}")
            if len(problems) == MOST_PROBLEMS:
                break
            continue
        places.append(row.place)
        for key, text in texts_of_row.items():
            texts[key].append(text)
    _refuse_pairs(spec, problems)
    return texts, places


def _choose_columns(spec: Spec, available: Sequence[str], what: str) -> dict[str, str]:
    """Return the column of the images and that of the captions, by ``image`` and ``caption``."""
    columns = {}
    for key in _NAMES:
        columns[key] = _choose_column(spec, key, available, what)
    return columns


def _choose_column(spec: Spec, key: str, available: Sequence[str], what: str) -> str:
    """Return the column of the images or the captions, as ``?image=`` or ``?caption=`` says or by its name.

    Args:
        spec: of the file.
        key: ``image`` or ``caption``.
        available: the columns of the file, or the keys of its first row.
        what: what messages call one of these.

    Raises:
        InputError: where there is none, or more than one.
    """
    asked = spec.query.get(key)
    if asked is None:
        wanted = f"the {key}"
        known_names = _NAMES[key]
    else:
        wanted = f"?{key}={asked}"
        known_names = (asked,)
    candidates = [name for name in known_names if name in available]
    if len(candidates) == 1:
        (name,) = candidates
        times_there = list(available).count(name)
        if times_there == 1:
            return name
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
    """Return a path or a caption of one row.

    Args:
        row: of the file.
        column: where it is.
        what: what messages call it.

    Raises:
        ValueError: saying what is wrong with it, as the end of a sentence about the row.
    """
    value: Any = row.values.get(column)
    if value is None:
        raise ValueError(f"has no {column!r}")
    if not isinstance(value, str):
        raise ValueError(f"has {shown(value)} for {column!r}, which is no text")
    if not value.strip():
        raise ValueError(f"has an empty {what}")
    return value


def _refuse_pairs(spec: Spec, problems: list[str], hint: str | None = None) -> None:
    """Raise the error of pairs that cannot be used, if there are any.

    Args:
        spec: of the pairs.
        problems: one line for each pair.
        hint: of the error.
    """
    if not problems:
        return
    count = len(problems)
    pairs = "1 pair" if count == 1 else f"{count} pairs"
    if count == MOST_PROBLEMS:
        pairs += " or more"
    raise InputError(f"{spec.where}: {pairs} cannot be used", hint=hint, problems=problems)
