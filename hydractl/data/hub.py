"""Data as Hugging Face publishes them: ``.parquet`` files of images, and ``hf:NAME/config/split``.

A Parquet file is read by pyarrow: its images are a column of ``{bytes, path}``. An ``hf:`` set is a name on the hub or
a local folder, opened by the ``datasets`` library. Both libraries are optional. A name is the only form that may use
the network; what the library has in its cache is taken from there. It runs no code of a data set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from hydractl.data.base import Dataset, Spec, UnreadableSample, reason
from hydractl.data.files import EncodedImages, printable
from hydractl.data.labels import RawLabels, limited, raw_labels
from hydractl.data.text import TEXT_QUERY, read_table
from hydractl.data.text_rows import TextRow, TextTable
from hydractl.errors import InputError, UsageError, install_hint

_SETTINGS = ("image", "label")

_NAMES = ("image", "img")
_LABEL = "label"
_HERE = ("/", "./", "../", "~")
_NO_BYTES = "the row holds no bytes"


# --- Parquet ----------------------------------------------------------------------------------------------------------


class _RowGroup(NamedTuple):
    """The images of one group of rows, as this process read them.

    Attributes:
        process: that read them: a file opened before a fork is not read after it.
        number: of the group.
        images: values of the column.
    """

    process: int
    number: int
    images: list[Any]


class ParquetImages(EncodedImages):
    """Images in one Parquet file; one group of its rows is in memory at a time.

    Args:
        spec, where, ids: as of :class:`Dataset`.
        path: the file.
        column: of the images.
        rows: of the samples in the file.
        starts: the first row of each group of rows, ascending, and behind the last one the number of rows.
    """

    nothing = _NO_BYTES

    def __init__(
        self, spec: str, where: str, ids: list[str], path: str, column: str, rows: list[int], starts: list[int]
    ) -> None:
        super().__init__(spec, where, ids)
        self.path = path
        self.column = column
        self._rows = rows
        self._starts = np.array(starts)
        self._group: _RowGroup | None = None

    def read(self, i: int) -> bytes:
        row = self._rows[i]
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        images = self._images_of_group(number)
        place = row - int(self._starts[number])
        if place >= len(images):  # a damaged file may hold fewer than it says
            return b""
        value = images[place]
        if isinstance(value, dict):
            value = value.get("bytes")
        return value if isinstance(value, bytes) else b""

    def _images_of_group(self, number: int) -> list[Any]:
        process = os.getpid()
        group = self._group
        if group is None or group.process != process or group.number != number:
            group = _RowGroup(process, number, self._read_group(number))
            self._group = group
        return group.images

    def _read_group(self, number: int) -> list[Any]:
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                table = file.read_row_group(number, columns=[self.column], use_threads=False)
            return list(table.column(0).to_pylist())
        except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
            raise UnreadableSample(
                f"cannot read rows {self._starts[number]}.. of {printable(self.path)}: {reason(error)} ({self.where})"
            ) from error


def holds_images(path: str) -> bool:
    """Return whether a Parquet file has a column of images; False if it cannot be opened (reported elsewhere)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    try:
        return bool(_image_columns(pyarrow.parquet.read_schema(path)))
    except (pyarrow.lib.ArrowException, OSError, ValueError):
        return False


def _image_columns(schema: Any) -> list[str]:
    """Return the columns of a schema that hold images: ``{bytes, path}``, or plain bytes under the name of an image."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    columns = []
    for column in schema:
        if types.is_struct(column.type):
            inner = {part.name: part.type for part in column.type}
            holds_bytes = "bytes" in inner and is_bytes(inner["bytes"])
        else:
            holds_bytes = column.name in _NAMES and is_bytes(column.type)
        if holds_bytes:
            columns.append(column.name)
    return columns


def read_image_parquet(spec: Spec, limit: int | None, seed: int | None) -> tuple[EncodedImages, RawLabels]:
    """Open a Parquet file of images; ``?image=`` and ``?label=`` name its columns.

    Labels are integers or names; integers point into the names of the published ``ClassLabel``, where the file says so.
    Without a ``seed``, a ``limit`` takes the first rows.

    Raises:
        InputError: for a file that cannot be read, or columns that are not there or cannot be decided.
    """
    import pyarrow
    import pyarrow.parquet

    spec.check_query(_SETTINGS)
    path = os.path.expanduser(spec.path)
    labels: list[Any] | None = None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            column, label = _image_and_label(spec, _image_columns(schema), schema.names)
            if label is not None:
                values = file.read(columns=[label], use_threads=False).column(0)
    except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{spec.where}: cannot read the file: {reason(error)}") from error
    total = sum(sizes)
    if not total:
        raise InputError(f"{spec.where}: no images in the file")
    if label is not None:
        labels = values.to_pylist()
        if len(labels) != total:
            raise InputError(f"{spec.where}: the file is damaged: {len(labels)} labels for {total} images")

    rows = limited(None if seed is None else labels, total, limit, seed or 0)
    name = printable(Path(path).name)
    ids = [f"{name}#{row}" for row in rows]
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    dataset = ParquetImages(spec.text, spec.where, ids, path, column, rows, starts)
    if labels is None:
        return dataset, _no_labels(schema.names)
    chosen = [labels[row] for row in rows]
    return dataset, raw_labels(chosen, dataset.ids, names=_class_names(schema, str(label)))


def _image_and_label(spec: Spec, images: Sequence[str], available: Sequence[str]) -> tuple[str, str | None]:
    """Return the columns of the images and of the labels, None where there are no labels."""
    column = spec.query.get("image")
    if column is None:
        if len(images) != 1:
            raise InputError(f"{spec.where}: images are in {' and '.join(images)}", hint="say which with ?image=NAME")
        column = images[0]
    elif column not in images:
        listed = ", ".join(images) or "no column"
        raise InputError(f"{spec.where}: no images in ?image={column}: they are in {listed}")
    label = spec.query.get("label", _LABEL)
    if label in available:
        return column, label
    if "label" in spec.query:
        raise InputError(f"{spec.where}: no column for ?label={label}: it has {', '.join(available)}")
    return column, None


def _no_labels(available: Sequence[str]) -> RawLabels:
    return RawLabels(hint=f"the columns are {', '.join(available)}: name that of the labels with ?label=NAME")


def _class_names(schema: Any, column: str) -> list[str] | None:
    """Return the names that the ``datasets`` library wrote beside a column of integers; None where there are none."""
    try:
        description = json.loads((schema.metadata or {})[b"huggingface"])
        names = description["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    if not isinstance(names, list) or not names:
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    return names


# --- the datasets library ---------------------------------------------------------------------------------------------


class HubImages(EncodedImages):
    """Images of a set of the ``datasets`` library.

    Args:
        spec, where, ids: as of :class:`Dataset`.
        column: of images that are not decoded: each item is ``{"bytes", "path"}``.
        rows: of the samples in it.
        folders: where images that are files may lie: that of the set, or the library's cache; None: anywhere.
    """

    def __init__(
        self, spec: str, where: str, ids: list[str], column: Any, rows: list[int], folders: Sequence[str] | None
    ) -> None:
        super().__init__(spec, where, ids)
        self.column = column
        self._rows = rows
        self._folders = folders

    def read(self, i: int) -> bytes:
        value = self.column[self._rows[i]] or {}
        content = value.get("bytes")
        path = value.get("path")
        if content is None and path:
            if self._folders is not None and not any(_lies_in(path, folder) for folder in self._folders):
                raise self.unreadable(i, f"its image is {printable(path)!r}, outside of the set")
            try:
                content = Path(path).read_bytes()
            except OSError as error:
                raise self.unreadable(i, reason(error)) from error
        if not content:
            raise self.unreadable(i, _NO_BYTES)
        return bytes(content)


def read_hub_set(spec: Spec, limit: int | None, seed: int) -> tuple[Dataset, RawLabels]:
    """Open ``hf:NAME/config/split`` or ``hf:FOLDER/config/split`` (a folder starts with ``/``, ``./`` or ``~``).

    A set with a column of images is one of images (``?image=``, ``?label=``), any other one of texts (``?text=``,
    ``?text_b=``, ``?label=``). Integers point into the names of the set's own ``ClassLabel``.

    Raises:
        UsageError: where the library is not installed, or the SPEC has no config and split.
        InputError: where the library cannot open the set, or columns are not there or cannot be decided.
    """
    return _read_loaded(spec, _load(spec), _folders(spec), limit, seed)


def read_table_in_memory(spec: Spec, table: Any, limit: int | None, seed: int) -> tuple[Dataset, RawLabels]:
    """Open a ``datasets.Dataset`` that a Python program holds; its columns are found as those of a set of the hub.

    Raises:
        InputError: columns are not there or cannot be decided.
    """
    try:
        return _read_loaded(spec, table, None, limit, seed)
    except InputError as error:
        if error.hint is not None and "?" in error.hint:  # there is no SPEC to write that into
            error.hint = (
                "name the columns with rename_columns (image, text, text_b, label), or give two: (samples, labels)"
            )
        raise


def _read_loaded(
    spec: Spec, table: Any, folders: Sequence[str] | None, limit: int | None, seed: int
) -> tuple[Dataset, RawLabels]:
    """Read the columns of a table of the library.

    Args:
        spec: it was opened for.
        table: the library's own.
        folders: where images that are files may lie; None: anywhere.
        limit: only so many samples.
        seed: of their draw.
    """
    name = spec.path if folders is None else f"hf:{spec.path}"
    features = table.features
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    if not len(table) or limit == 0:
        raise InputError(f"{spec.where}: the set is empty")
    if not images:
        count = len(table) if limit is None else min(limit, len(table))
        return _texts(spec, table, count, name)
    spec.check_query(_SETTINGS)
    column, label = _image_and_label(spec, images, list(features))
    from datasets import Image

    labels = None if label is None else list(table[label])
    rows = limited(labels, len(table), limit, seed)
    ids = [f"{name}#{row}" for row in rows]
    encoded_images = table.cast_column(column, Image(decode=False))[column]
    dataset = HubImages(spec.text, spec.where, ids, encoded_images, rows, folders)
    if labels is None:
        return dataset, _no_labels(list(features))
    chosen = [labels[row] for row in rows]
    return dataset, raw_labels(chosen, ids, names=_names(features[label]))


def _names(feature: Any) -> list[str] | None:
    """Return the class names of a column; None for plain numbers and texts."""
    names = getattr(feature, "names", None)
    return list(names) if names else None


def _texts(spec: Spec, table: Any, count: int, name: str) -> tuple[Dataset, RawLabels]:
    spec.check_query(TEXT_QUERY)

    def rows(columns: Sequence[str]) -> Iterator[TextRow]:
        chosen = table.select_columns(list(columns))
        for i in range(count):
            yield TextRow(f"row {i + 1}", chosen[i])

    dataset, raw = read_table(spec, TextTable(list(table.features), rows), count, name)
    # Integers point into the names of the set; names are their own.
    if raw.values is not None and not isinstance(raw.values, list):
        label = spec.query.get("label", _LABEL)
        raw.names = _names(table.features[label])
    return dataset, raw


def _load(spec: Spec) -> Any:
    """Return the library's own table."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"{spec.where}: hf: data sets need the datasets library, which is not installed",
            hint=install_hint("datasets"),
        ) from error
    name, config, split = _parts(spec)
    if name.startswith(_HERE):
        name = os.path.expanduser(name)
        if not os.path.isdir(name):
            raise InputError(f"{spec.where}: no such folder: {name}")
        _refuse_elsewhere(spec, Path(name))
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, config, split=split)
    # The library says what is wrong with errors of many kinds.
    except Exception as error:
        raise InputError(f"{spec.where}: the datasets library cannot open the set: {reason(error)}") from error


def _folders(spec: Spec) -> list[str]:
    """Return where the files of a set lie: in its own folder, or where the library keeps what it downloads."""
    import datasets

    name, _, _ = _parts(spec)
    if name.startswith(_HERE):
        return [os.path.expanduser(name)]
    config = datasets.config
    return [str(config.HF_CACHE_HOME), str(config.HF_DATASETS_CACHE), str(config.EXTRACTED_DATASETS_PATH)]


def _lies_in(path: str, folder: str) -> bool:
    """Return whether a path leads into a folder, by its names: links within are followed as in any other set."""
    full_path = os.path.abspath(path)
    full_folder = os.path.abspath(folder)
    return os.path.commonpath([full_path, full_folder]) == full_folder


_CARD = "README.md"
_DESCRIPTIONS = (_CARD, ".huggingface.yaml")
"""In which the library looks for the files of a set."""
_LONGEST_DESCRIPTION = 1 << 20


def _refuse_elsewhere(spec: Spec, folder: Path) -> None:
    """Refuse a folder that sends the library elsewhere: to an address, or to files outside of it.

    Raises:
        InputError: naming where to.
    """
    for name in _DESCRIPTIONS:
        file = folder / name
        if not file.is_file():
            continue
        description = _read_description(spec, file)
        for place in _places(description, set()):
            if _is_elsewhere(place):
                raise InputError(
                    f"{spec.where}: {file} names {printable(place)!r}, outside of the folder",
                    hint="put the files into the folder, or name the set that holds them",
                )


def _read_description(spec: Spec, file: Path) -> Any:
    """Return what a description of a set holds: the YAML of the file, or that at the beginning of a card."""
    if file.stat().st_size > _LONGEST_DESCRIPTION:
        raise InputError(f"{spec.where}: {file} is longer than {_LONGEST_DESCRIPTION} bytes")
    try:
        text = file.read_text(encoding="utf-8")
        if file.name == _CARD:
            text = _front(text)
        return yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{spec.where}: {file} cannot be read: {reason(error)}") from error


def _is_elsewhere(place: str) -> bool:
    """Return whether the name of a file leads out of its folder."""
    if "://" in place:
        return True
    return place.startswith(("/", "~")) or ".." in Path(place).parts


def _front(text: str) -> str:
    """Return the YAML at the beginning of a card."""
    match = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    return match[1] if match else ""


def _places(value: Any, met: set[tuple[int, bool]], *, named: bool = False) -> Iterator[str]:
    """Yield every text below ``data_files`` or ``data_dir``; what stands there twice (YAML has aliases) is met once.

    Args:
        value: a part of the document.
        met: the parts that were met.
        named: whether it lies below such a key.
    """
    if isinstance(value, str) and named:
        yield value
    if not isinstance(value, (dict, list)):
        return
    if (id(value), named) in met:
        return
    met.add((id(value), named))
    if isinstance(value, list):
        for item in value:
            yield from _places(item, met, named=named)
        return
    for key, item in value.items():
        yield from _places(item, met, named=named or key in ("data_files", "data_dir"))


def _parts(spec: Spec) -> tuple[str, str, str]:
    """Return name, config and split of ``[ORG/]NAME/config/split`` or ``FOLDER/config/split``."""
    rest, _, split = spec.path.rpartition("/")
    name, _, config = rest.rpartition("/")
    is_folder = spec.path.startswith(_HERE)
    has_too_many_parts = name.count("/") > 1 and not is_folder
    if not (name and config and split) or has_too_many_parts:
        raise UsageError(
            f"{spec.where}: not NAME/config/split",
            hint="for example hf:stanfordnlp/sst2/default/validation, or a folder: hf:./folder/default/train",
        )
    return name, config, split
