"""Images in a ``.parquet`` file as Hugging Face publishes them: a column of ``{bytes, path}``, by pyarrow."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hydractl.data.base import Dataset, UnreadableSample
from hydractl.data.files import decode_image, printable
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.errors import InputError

QUERY = ("image", "label")

_NAMES = ("image", "img")
_LABEL = "label"


class ParquetImages(Dataset):
    """Images in one Parquet file; one group of its rows is in memory at a time.

    Args:
        spec: the SPEC.
        where: what messages call it.
        ids: one per image.
        path: the file.
        column: of the images.
        starts: the first row of each group of rows, ascending, and behind the last one the number of rows.
    """

    def __init__(self, spec: str, where: str, ids: list[str], path: str, column: str, starts: list[int]) -> None:
        super().__init__(spec, where, ids)
        self.path, self.column = path, column
        self._starts = np.array(starts)
        self._group: tuple[int, int, list[Any]] | None = None  # process, number, images

    def _sample(self, i: int) -> Image.Image:
        content = self._bytes(i)
        if not content:
            raise UnreadableSample(f"cannot read image {self.ids[i]}: the row holds no bytes ({self.where})")
        return decode_image(io.BytesIO(content), self.ids[i], self.where)

    def _content(self, i: int) -> Iterable[bytes]:
        return [self._bytes(i)]

    def _bytes(self, i: int) -> bytes:
        number = int(np.searchsorted(self._starts, i, side="right")) - 1
        # A file opened before a fork is not read after it.
        if self._group is None or self._group[:2] != (os.getpid(), number):
            self._group = (os.getpid(), number, self._read_group(number))
        value = self._group[2][i - int(self._starts[number])]
        if isinstance(value, dict):
            value = value.get("bytes")
        return value if isinstance(value, bytes) else b""

    def _read_group(self, number: int) -> list[Any]:
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                table = file.read_row_group(number, columns=[self.column], use_threads=False)
            return list(table.column(0).to_pylist())
        except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UnreadableSample(
                f"cannot read rows {self._starts[number]}.. of {printable(self.path)}: {reason} ({self.where})"
            ) from error


def holds_images(path: str) -> bool:
    """Whether a Parquet file has a column of images; False if it cannot be opened, which is reported elsewhere."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    try:
        return bool(image_columns(pyarrow.parquet.read_schema(path)))
    except (pyarrow.lib.ArrowException, OSError, ValueError):
        return False


def image_columns(schema: Any) -> list[str]:
    """The columns of a schema that hold images: ``{bytes, path}``, or plain bytes under the name of an image."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    found = []
    for field in schema:
        inner = {} if not types.is_struct(field.type) else {one.name: one.type for one in field.type}
        if ("bytes" in inner and is_bytes(inner["bytes"])) or (field.name in _NAMES and is_bytes(field.type)):
            found.append(field.name)
    return found


def read_image_parquet(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open a Parquet file of images; ``?image=`` and ``?label=`` name its columns.

    Labels are integers or names; integers point into the names of the published ``ClassLabel``, where the file says so.

    Raises:
        InputError: for a file that cannot be read, or columns that are not there or cannot be decided.
    """
    import pyarrow
    import pyarrow.parquet

    spec.check_query(QUERY)
    path = os.path.expanduser(spec.path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            column = _choose(spec, schema)
            label = spec.query.get("label", _LABEL)
            if "label" in spec.query and label not in schema.names:
                raise InputError(f"{spec.where}: no column for ?label={label}: it has {', '.join(schema.names)}")
            values = file.read(columns=[label], use_threads=False).column(0) if label in schema.names else None
    except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{spec.where}: cannot read the file: {reason}") from error
    if not sum(rows):
        raise InputError(f"{spec.where}: no images in the file")
    count = sum(rows) if limit is None else min(limit, sum(rows))
    name = printable(Path(path).name)
    starts = np.concatenate([[0], np.cumsum(rows)]).tolist()
    dataset = ParquetImages(spec.text, spec.where, [f"{name}#{i}" for i in range(count)], path, column, starts)
    if values is None:
        hint = f"the columns are {', '.join(schema.names)}: name that of the labels with ?label=NAME"
        return dataset, RawLabels(hint=hint)
    return dataset, plain_labels(values.to_pylist()[:count], class_names(schema, label), dataset.ids)


def plain_labels(values: list[Any], names: list[str] | None, ids: list[str]) -> RawLabels:
    """Labels of a typed column: all integers, all names, or none at all; ``names`` are what the integers point into."""
    missing = [i for i, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return RawLabels(None, names)
    kinds = {type(value) for value in values if value is not None}
    if missing:
        more = f", and for {len(missing) - 1} more" if len(missing) > 1 else ""
        return RawLabels(problems=[f"no label for sample {ids[missing[0]]}{more}"])
    if kinds == {str}:
        return RawLabels(values, sorted(set(values)))
    if kinds == {int} and all(abs(value) < 2**63 for value in values):
        return RawLabels(np.array(values, dtype=np.int64), names)
    kind = ", ".join(sorted(kind.__name__ for kind in kinds))
    return RawLabels(problems=[f"the labels are neither integers nor names but of type {kind}"])


def class_names(schema: Any, column: str) -> list[str] | None:
    """The names that the ``datasets`` library wrote beside a column of integers; None where there are none."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, list) and found and all(isinstance(name, str) for name in found) else None


def _choose(spec: Spec, schema: Any) -> str:
    """The column of the images."""
    found = image_columns(schema)
    asked = spec.query.get("image")
    if asked is not None:
        if asked not in found:
            raise InputError(
                f"{spec.where}: no images in ?image={asked}: they are in {', '.join(found) or 'no column'}"
            )
        return asked
    if len(found) != 1:
        raise InputError(f"{spec.where}: images are in {' and '.join(found)}", hint="say which with ?image=NAME")
    return found[0]
