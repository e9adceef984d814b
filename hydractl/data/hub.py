"""Data in the forms of Hugging Face: ``.parquet`` files of images, and ``hf:NAME/config/split``.

pyarrow reads a Parquet file; its images are a column of ``{bytes, path}``. The ``datasets`` library opens an ``hf:``
set by its name on the hub. Both libraries are optional. A name may use the network; what the library has in its cache
is taken from there. No code of a data set is run.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.data.base import Dataset, RowIds, UnreadableSample, reason
from hydractl.data.files import EncodedImages, printable
from hydractl.data.labels import RawLabels, labels_of_column
from hydractl.data.names import class_label_names
from hydractl.data.text import TEXT_QUERY, read_table
from hydractl.data.text_rows import TextRow, TextTable, choose_columns, parquet_errors
from hydractl.errors import InputError, UsageError, install_hint
from hydractl.expressions.data_sets import DataSpec
from hydractl.jsonio import read_whole

_SETTINGS = ("image", "label")

_NAMES = ("image", "img")  # a column of plain bytes counts as images only under one of these names
_HERE = ("/", "./", "../", "~")  # what a path begins with, and no name on the hub


# --- Parquet ----------------------------------------------------------------------------------------------------------


class _ParquetColumn:
    """The images in one Parquet file; one row group of the file is in memory at a time.

    Args:
        path: the file.
        column: the name of the column of images.
        where: the name of the set in messages.
        starts: the first row of each row group, ascending, and at the end the number of rows in the file.
    """

    def __init__(self, path: Path, column: str, where: str, starts: list[int]) -> None:
        self._path = path
        self._column = column
        self._where = where
        self._starts = starts
        self._number = -1  # of the row group in memory
        self._images: list[Any] = []

    def __getitem__(self, row: int) -> Any:
        """Return an image as its row holds it, ``{"bytes", "path"}`` or bytes; None if it holds none.

        Raises:
            UnreadableSample: if the file is damaged, or was removed.
        """
        # Find the group of rows that has this row. If groups start at the rows 0, 100 and 200, row 100 is the first of
        # group 1. A group is read whole, and the last one that was read is kept.
        number = bisect_right(self._starts, row) - 1
        if number != self._number:
            self._images = self._read_group(number)
            self._number = number
        row_in_group = row - self._starts[number]
        if row_in_group >= len(self._images):  # a damaged file may hold fewer rows than it states
            return None
        return self._images[row_in_group]

    def _read_group(self, number: int) -> list[Any]:
        """Return the images of a row group (a block of rows that Parquet stores together), as the file holds them.

        Raises:
            UnreadableSample: if the file is damaged, or was removed.
        """
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self._path) as file:
                table = file.read_row_group(number, columns=[self._column], use_threads=False)
            return list(table.column(0).to_pylist())
        except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
            rows = f"rows {self._starts[number]}.. of {printable(str(self._path))}"
            raise UnreadableSample(f"cannot read {rows}: {reason(error)} ({self._where})") from error


def holds_images(path: str) -> bool:
    """Return whether a Parquet file has a column of images; False if it cannot be opened (its reader reports that)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    try:
        schema = pyarrow.parquet.read_schema(path)
        columns = _image_columns(schema)
    except (pyarrow.lib.ArrowException, OSError, ValueError):
        return False
    return len(columns) > 0


def _image_columns(schema: Any) -> list[str]:
    """Return the columns that hold images: ``{bytes, path}``, or plain bytes in a column named for images."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        """Return whether an Arrow type holds bytes."""
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    # The `datasets` library stores an image as a struct with the field "bytes"; other programs store plain bytes.
    columns = []
    for column in schema:
        if types.is_struct(column.type):
            field_types = {field.name: field.type for field in column.type}
            holds_bytes = "bytes" in field_types and is_bytes(field_types["bytes"])
        else:
            holds_bytes = column.name in _NAMES and is_bytes(column.type)
        if holds_bytes:
            columns.append(column.name)
    return columns


def read_image_parquet(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the images and labels in a Parquet file; ``?image=`` and ``?label=`` behind its path name the columns.

    The labels are read now, an image is read later. Labels are integers or names; integers index the class names that
    the ``datasets`` library stores in such a file (``ClassLabel``), if there are any. The ids are ``FILE#0``,
    ``FILE#1``, ...

    Returns:
        The images, and their labels before they are mapped to the classes of a model; no labels without their column.

    Raises:
        InputError: if the file cannot be read, or columns are missing or ambiguous.
    """
    from pyarrow.parquet import ParquetFile

    spec.check_query(_SETTINGS)

    # Choose the columns, and read the labels but not yet the images.
    labels: list[Any] | None = None
    with parquet_errors(spec.where), ParquetFile(spec.file) as file:
        schema = file.schema_arrow
        # The first row of each group of rows, and the number of all rows: groups of 100 and 50 rows give 0, 100, 150.
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        starts = [0, *itertools.accumulate(group.num_rows for group in groups)]
        image_column, label_column = _choose_columns(spec, _image_columns(schema), schema.names)
        if label_column is not None:
            labels = file.read(columns=[label_column], use_threads=False).column(0).to_pylist()

    total = starts[-1]
    if not total:
        raise InputError(f"{spec.where}: no images in the file")
    if labels is not None and len(labels) != total:
        raise InputError(f"{spec.where}: the file is damaged: {len(labels)} labels for {total} images")
    column = _ParquetColumn(spec.file, image_column, spec.where, starts)
    # No folders: an image that the file only names by a path is refused. Images are shown as stored, not turned.
    dataset = HubImages(spec.text, spec.where, RowIds(printable(spec.file.name), total), column, [])
    dataset.turns = False
    class_names = class_label_names(schema.metadata).get(str(label_column))
    return dataset, _labels(labels, class_names, schema.names)


def _choose_columns(spec: DataSpec, image_columns: Sequence[str], available: Sequence[str]) -> tuple[str, str | None]:
    """Return the column of the images, and the column of the labels or None if there are no labels.

    Args:
        spec: the SPEC, whose ``?image=`` and ``?label=`` may name the columns.
        image_columns: the columns that hold images.
        available: all columns.

    Raises:
        InputError: if a column is missing or ambiguous.
    """
    asked = spec.query.get("image")
    if asked is not None and asked not in image_columns:
        listed = ", ".join(image_columns) or "no column"
        raise InputError(f"{spec.where}: no images in ?image={asked}: they are in {listed}")
    columns = choose_columns(spec, {"image": image_columns, "label": ("label",)}, available)
    return columns["image"], columns.get("label")


def _labels(labels: list[Any] | None, class_names: list[str] | None, available: Sequence[str]) -> RawLabels:
    """Return the labels in a column; if a set has none, a hint that lists its columns."""
    if labels is None:
        return RawLabels(hint=f"the columns are {', '.join(available)}: name that of the labels with ?label=NAME")
    return labels_of_column(labels, class_names)


# --- the datasets library ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class HubImages(EncodedImages):
    """The images of a set of the ``datasets`` library, or of a Parquet file.

    Attributes:
        column: the column of images, not decoded: each item is ``{"bytes", "path"}``, bytes, or None.
        folders: image files may only be read from these folders (the library's caches); None means from anywhere.
    """

    column: Any
    folders: Sequence[str] | None
    nothing = "the row holds no bytes"
    turns = True  # as the library does

    def read(self, i: int) -> bytes:
        """Return the bytes of image ``i``, from its row or from the file that the row names; empty if it has none.

        Raises:
            UnreadableSample: if the file of the image lies outside the set, or cannot be read.
        """
        # A row holds the bytes or names a file. Its path may lead anywhere, so it must lie in one of the folders of the
        # set, which are None only for a table that the user's own program holds.
        value = self.column[i]
        if not isinstance(value, dict):  # plain bytes, or nothing
            value = {"bytes": value}
        content = value.get("bytes")
        path = value.get("path")
        if content is None and path:  # the row names a file
            may_be_read = self.folders is None or any(_lies_in(path, folder) for folder in self.folders)
            if not may_be_read:
                raise self.unreadable(i, f"its image is {printable(path)!r}, outside of the set")
            try:
                content = read_whole(path)
            except OSError as error:
                raise self.unreadable(i, reason(error)) from error
        return content if isinstance(content, bytes) else b""


def read_hub_set(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``hf:NAME/config/split``.

    If the set has a column of images, it is opened as images (``?image=``, ``?label=``), otherwise as texts
    (``?text=``, ``?text_b=``, ``?label=``). Labels that are integers index the names of the set's own ``ClassLabel``.

    Args:
        spec: the SPEC of the set.
        limit: how many texts to take from the start; None means all. Of images all are opened.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: if the library is not installed, or the SPEC has no config and split, or names a local folder.
        InputError: if the library cannot open the set, or columns are missing or ambiguous.
    """
    table = _load_table(spec)
    from datasets import config

    # The caches of the library, in which image files of a set of the hub may lie.
    folders = [str(config.HF_CACHE_HOME), str(config.HF_DATASETS_CACHE), str(config.EXTRACTED_DATASETS_PATH)]
    return _read_loaded(spec, table, folders, limit)


def read_table_in_memory(spec: DataSpec, table: Any, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a ``datasets.Dataset`` that a Python program holds; its columns are found as for a set of the hub.

    Args:
        spec: names the set in messages and ids.
        table: the data set of the library.
        limit: see :func:`read_hub_set`.

    Raises:
        InputError: if columns are missing or ambiguous.
    """
    try:
        return _read_loaded(spec, table, None, limit)
    except InputError as error:
        if error.hint is not None and "?" in error.hint:  # the hint names a setting of a SPEC, but there is no SPEC
            error.hint = (
                "name the columns with rename_columns (image, text, text_b, label), or give two: (samples, labels)"
            )
        raise


def _read_loaded(
    spec: DataSpec, table: Any, folders: Sequence[str] | None, limit: int | None
) -> tuple[Dataset, RawLabels]:
    """Return the images and labels of a table of ``datasets``, or its texts and labels if it has no column of images.

    Labels are read now, images later. The labels are not yet mapped to the classes of a model.

    Args:
        spec: the SPEC (the text that names the data set) for which the table was loaded.
        table: the library's own table.
        folders: image files may only be read from these folders. None means from anywhere, for a table that a Python
            program holds.
        limit: see :func:`read_hub_set`.

    Raises:
        InputError: if the table is empty, or columns are missing or ambiguous.
    """
    # The ids begin with the name of the set.
    name = spec.path if folders is None else f"hf:{spec.path}"
    total = len(table)
    if total == 0 or limit == 0:
        raise InputError(f"{spec.where}: the set is empty")

    # Without a column of images it is a set of texts.
    image_columns = [column for column, feature in table.features.items() if type(feature).__name__ == "Image"]
    if not image_columns:
        count = total if limit is None else min(limit, total)
        return _read_texts(spec, table, count, name)

    # Choose the columns, and read the labels.
    spec.check_query(_SETTINGS)
    available = list(table.features)
    image_column, label_column = _choose_columns(spec, image_columns, available)
    from datasets import Image

    # The images are decoded when they are read, and not by the library.
    undecoded = table.cast_column(image_column, Image(decode=False))
    dataset = HubImages(spec.text, spec.where, RowIds(name, total), undecoded[image_column], folders)
    labels = None if label_column is None else list(table[label_column])
    return dataset, _labels(labels, _class_names(table).get(str(label_column)), available)


def _class_names(table: Any) -> dict[str, list[str]]:
    """Return the class names of each column that is a ``ClassLabel``; its integers index them."""
    names_by_column = {}
    for column, feature in table.features.items():
        names = getattr(feature, "names", None)
        if names:
            names_by_column[column] = list(names)
    return names_by_column


def _read_texts(spec: DataSpec, table: Any, count: int, name: str) -> tuple[Dataset, RawLabels]:
    """Return the texts of a table without images, and their labels before they are mapped to the classes of a model.

    Args:
        spec: the SPEC (the text that names the data set) for which the table was loaded.
        table: the library's own table.
        count: read only this many rows from the start.
        name: the beginning of the ids.
    """
    spec.check_query(TEXT_QUERY)  # refuses other settings

    # Called later with the columns that are needed.
    def rows(columns: Sequence[str]) -> Iterator[TextRow]:
        """Yield the rows, numbered from 1, with only the values of the given columns."""
        chosen_columns = table.select_columns(list(columns))
        for index in range(count):
            place = f"row {index + 1}"
            yield TextRow(place, chosen_columns[index])

    text_table = TextTable(list(table.features), rows, class_names=_class_names(table))
    return read_table(spec, text_table, count, name)


def _load_table(spec: DataSpec) -> Any:
    """Load the set with the ``datasets`` library and return the library's own table.

    Raises:
        UsageError: if the library is not installed.
        InputError: if the library cannot open the set.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"{spec.where}: hf: data sets need the datasets library, which is not installed",
            hint=install_hint("datasets"),
        ) from error

    name, config, split = _name_config_split(spec)
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, config, split=split)
    # The library raises many kinds of errors, whose texts say what is wrong.
    except Exception as error:
        raise InputError(f"{spec.where}: the datasets library cannot open the set: {reason(error)}") from error


def _lies_in(path: str, folder: str) -> bool:
    """Return whether a path leads into a folder. Only names are compared: links inside the folder may be followed."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))


def _name_config_split(spec: DataSpec) -> tuple[str, str, str]:
    """Return name, config and split of a set of the Hugging Face hub, ``[ORG/]NAME/config/split``.

    ``stanfordnlp/sst2/default/test`` gives ``stanfordnlp/sst2``, ``default`` and ``test``.

    Raises:
        UsageError: if the path has another form, or leads to a local folder, which the library would open in its place.
    """
    # From the end, since the name may contain a slash: ORG/NAME.
    rest, _, split = spec.path.rpartition("/")
    name, _, config = rest.rpartition("/")
    if spec.path.startswith(_HERE) or os.path.isdir(name):
        raise UsageError(
            f"{spec.where}: hf: opens sets of the hub, and no local folder",
            hint="give its .parquet, .jsonl or .csv file; in Python datasets.load_dataset(FOLDER, split=...)",
        )
    has_all_parts = bool(name and config and split)
    if not has_all_parts or name.count("/") > 1:
        raise UsageError(
            f"{spec.where}: not NAME/config/split", hint="for example hf:stanfordnlp/sst2/default/validation"
        )
    return name, config, split
