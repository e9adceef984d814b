"""``hf:NAME/config/split`` by the ``datasets`` library, which is optional: a name on the hub, or a local folder.

A name is the only form that may use the network; what the library has in its cache is taken from there. The library
runs no code of a data set.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any

from PIL import Image

from hydractl.data.base import Dataset, UnreadableSample
from hydractl.data.files import decode_image
from hydractl.data.image_parquet import plain_labels
from hydractl.data.labels import RawLabels
from hydractl.data.spec import Spec
from hydractl.data.text import QUERY as TEXT_QUERY
from hydractl.data.text import read_rows
from hydractl.data.text_columns import choose_columns
from hydractl.data.text_rows import Row
from hydractl.errors import InputError, UsageError

IMAGE_QUERY = ("image", "label")

_LABEL = "label"
_HERE = ("/", "./", "../", "~")


class HubImages(Dataset):
    """Images of a set of the ``datasets`` library.

    Args:
        spec: the SPEC.
        where: what messages call it.
        ids: one per image.
        column: of images that are not decoded: item i is ``{"bytes", "path"}``.
    """

    def __init__(self, spec: str, where: str, ids: list[str], column: Any) -> None:
        super().__init__(spec, where, ids)
        self.column = column

    def _sample(self, i: int) -> Image.Image:
        return decode_image(io.BytesIO(self._bytes(i)), self.ids[i], self.where)

    def _content(self, i: int) -> Iterable[bytes]:
        return [self._bytes(i)]

    def _bytes(self, i: int) -> bytes:
        value = self.column[i] or {}
        content, path = value.get("bytes"), value.get("path")
        if content is None and path:
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError as error:
                raise UnreadableSample(
                    f"cannot read image {self.ids[i]}: {error.strerror or error} ({self.where})"
                ) from error
        if not content:
            raise UnreadableSample(f"cannot read image {self.ids[i]}: the row holds no bytes ({self.where})")
        return bytes(content)


def read_hub_set(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``hf:NAME/config/split`` or ``hf:FOLDER/config/split`` (a folder starts with ``/``, ``./`` or ``~``).

    A set with a column of images is one of images (``?image=``, ``?label=``), any other one of texts (``?text=``,
    ``?text_b=``, ``?label=``). Integers point into the names of the set's own ``ClassLabel``.

    Raises:
        UsageError: where the library is not installed, or the SPEC has no config and split.
        InputError: where the library cannot open the set, or columns are not there or cannot be decided.
    """
    table = _load(spec)
    features = table.features
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    count = len(table) if limit is None else min(limit, len(table))
    if not count:
        raise InputError(f"{spec.where}: the set is empty")
    if not images:
        return _texts(spec, table, count)
    spec.check_query(IMAGE_QUERY)
    column = spec.query.get("image", images[0])
    if column not in images or (len(images) > 1 and "image" not in spec.query):
        raise InputError(f"{spec.where}: images are in {' and '.join(images)}", hint="say which with ?image=NAME")
    label = spec.query.get("label", _LABEL)
    if "label" in spec.query and label not in features:
        raise InputError(f"{spec.where}: no column for ?label={label}: it has {', '.join(features)}")
    from datasets import Image as ImageFeature

    ids = [f"hf:{spec.path}#{i}" for i in range(count)]
    raw = table.cast_column(column, ImageFeature(decode=False))[column]
    dataset = HubImages(spec.text, spec.where, ids, raw)
    if label not in features:
        return dataset, RawLabels(
            hint=f"the columns are {', '.join(features)}: name that of the labels with ?label=NAME"
        )
    return dataset, plain_labels(list(table[label][:count]), _names(features[label]), ids)


def _names(feature: Any) -> list[str] | None:
    """The class names of a column; None for plain numbers and texts."""
    names = getattr(feature, "names", None)
    return list(names) if names else None


def _texts(spec: Spec, table: Any, count: int) -> tuple[Dataset, RawLabels]:
    spec.check_query(TEXT_QUERY)
    columns = choose_columns(spec, list(table.features))
    needed = columns.needed(list(table.features))
    names = _names(table.features[columns.label]) if columns.label in table.features else None
    table = table.select_columns(needed)

    def rows() -> Iterator[Row]:
        for i in range(count):
            yield Row(f"row {i + 1}", table[i])

    dataset, raw = read_rows(spec, rows(), count, columns, lambda i: f"hf:{spec.path}#{i}")
    if names is not None and raw.values is not None and not isinstance(raw.values, list):
        raw.names = names
    return dataset, raw


def _load(spec: Spec) -> Any:
    """The library's own table."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"{spec.where}: hf: data sets need the datasets library, which is not installed",
            hint="pip install datasets",
        ) from error
    name, config, split = _parts(spec)
    if name.startswith(_HERE):
        name = os.path.expanduser(name)
        if not os.path.isdir(name):
            raise InputError(f"{spec.where}: no such folder: {name}")
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, config, split=split)
    # The library says what is wrong with errors of many kinds.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{spec.where}: the datasets library cannot open the set: {reason}") from error


def _parts(spec: Spec) -> tuple[str, str, str]:
    """Name, config and split of ``[ORG/]NAME/config/split`` or ``FOLDER/config/split``."""
    name, _, split = spec.path.rpartition("/")
    name, _, config = name.rpartition("/")
    local = spec.path.startswith(_HERE)
    if not (name and config and split) or (not local and name.count("/") > 1):
        raise UsageError(
            f"{spec.where}: not NAME/config/split",
            hint="for example hf:stanfordnlp/sst2/default/validation, or a folder: hf:./folder/default/train",
        )
    return name, config, split
