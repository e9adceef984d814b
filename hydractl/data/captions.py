"""``captions:`` pairs of an image and its caption, from a table of image paths, WebDataset shards or Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.data.base import PAIRS, Dataset
from hydractl.data.files import ListedImages
from hydractl.data.hub import holds_images, read_image_parquet
from hydractl.data.labels import RawLabels
from hydractl.data.shards import index_shards
from hydractl.data.text_rows import TextRow, TextTable, open_table, read_rows, refuse_rows
from hydractl.errors import InputError
from hydractl.expressions.data_sets import TEXT_SUFFIXES, DataSpec

# Names under which the column of images and the column of captions are found; open_clip uses filepath and title.
_NAMES = {"image": ("image", "filepath", "file_name", "path"), "caption": ("caption", "title", "text")}


def read_captions(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the pairs of images and captions that ``captions:PATH`` names, without labels.

    The path leads to one of three sources, in the order of the code:

    - WebDataset shards: a ``.tar`` file, a pattern of several (``shards/*.tar``), or a folder of them, where each image
      has a ``.txt`` file;
    - a ``.parquet`` file that holds the images themselves;
    - a table (``.jsonl``, ``.csv`` or ``.tsv``, each also ``.gz``, or ``.parquet``) with an image and a caption in each
      row; the image is a path, relative to ``?root=`` or else to the file's folder.

    ``?image=`` and ``?caption=`` name the columns, or in shards the endings of the files. With ``limit``, nothing after
    the first ``limit`` pairs is read.

    Args:
        spec: the SPEC of the pairs.
        limit: take only this many pairs from the start; None means all.

    Raises:
        InputError: if the file cannot be read, if columns are missing or ambiguous, or if pairs lack a caption or an
            image (all of them are listed).
        UsageError: for Parquet if pyarrow is not installed.
    """
    name = spec.path.lower()
    path = spec.file

    # Shards: a .tar file, or a folder of them.
    if name.endswith(".tar") or path.is_dir():
        images, captions = _read_shard_pairs(spec, limit)

    # Anything else is a table. Only a Parquet file can hold the images themselves.
    elif not name.endswith(TEXT_SUFFIXES):
        raise InputError(
            f"{spec.where}: not a kind of file that captions are read from",
            hint=f"a table of images and captions ({', '.join(TEXT_SUFFIXES)}), or WebDataset shards (.tar)",
        )
    elif name.endswith(".parquet") and holds_images(str(path)):
        images, captions = _read_parquet_pairs(spec, limit)
    else:
        images, captions = _read_table_pairs(spec, limit)
    # Of a Parquet file with images all are opened, and only as many as there are captions are taken.
    images.ids = [images.ids[i] for i in range(len(captions))]
    images.captions = captions
    images.kind = PAIRS
    return images, RawLabels()


def _read_shard_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, list[str]]:
    """Return the images in WebDataset shards and their captions.

    Raises:
        InputError: if images have no caption; all of them are listed.
    """
    spec.check_query(("image", "caption"))
    caption_source = spec.query.get("caption", "txt")  # the ending of a file
    images, texts = index_shards(spec, limit, caption_source)  # a text is None if its image has no such file
    captions = []
    problems = []
    for image_id, text in zip(images.ids, texts, strict=True):
        if text is None or not text.strip():
            problems.append(f"{image_id} has no caption, or an empty one")
        else:
            captions.append(text)
    # Raises an error if there are problems.
    refuse_rows(spec, problems, f"where captions are: ?caption={caption_source}")
    return images, captions


def _read_parquet_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, list[str]]:
    """Return the images that a Parquet file holds itself and their captions.

    Raises:
        InputError: if columns are missing or ambiguous, or if rows have no caption (all of them are listed).
    """
    table = open_table(spec, ("image", "caption"))

    # Images and captions are read separately. The reader of the images would refuse ?caption=, so pass on only ?image=.
    image_spec, _ = spec.split_query(("caption",))
    images, _ = read_image_parquet(image_spec, None)
    _, texts = _read_texts(spec, table, ["caption"], limit)
    return images, texts["caption"]


def _read_table_pairs(spec: DataSpec, limit: int | None) -> tuple[Dataset, list[str]]:
    """Return the images that the rows of a table name and their captions.

    Raises:
        InputError: if columns are missing or ambiguous, or rows have no caption (all are listed).
    """
    table = open_table(spec, ("image", "caption", "root"))
    places, texts = _read_texts(spec, table, ["image", "caption"], limit)
    if not places:
        raise InputError(f"{spec.where}: no pairs in the file")
    return ListedImages(spec, texts["image"], places), texts["caption"]


def _read_texts(
    spec: DataSpec, table: TextTable, keys: Sequence[str], limit: int | None
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the texts in some columns of each row, and where the rows are in the file.

    Args:
        spec: the SPEC of the file.
        table: the rows to read.
        keys: ``image`` and ``caption``, or one of them.
        limit: how many rows are read; None means all.

    Returns:
        For each row where it is in the file, e.g. ``line 3``; and for each key a list with one text per row.

    Raises:
        InputError: if columns are missing or ambiguous, or listing the rows in which a text is missing.
    """
    places = []
    texts: dict[str, list[str]] = {key: [] for key in keys}

    def add(row: TextRow, columns: Mapping[str, str]) -> None:
        """Append the texts of a row to the lists; a ValueError, before anything is appended, if one is empty.

        ``read_rows`` below calls this for each row, and collects the errors.
        """
        texts_of_row = {key: row.text_in(column) for key, column in columns.items()}
        for key, text in texts_of_row.items():
            if not text.strip():
                raise ValueError(f"has an empty {key}")
        places.append(row.place)
        for key, text in texts_of_row.items():
            texts[key].append(text)

    read_rows(spec, table, {key: _NAMES[key] for key in keys}, add, limit)
    return places, texts
