"""``captions:`` pairs of an image and its caption, from a table of paths, WebDataset shards or Parquet."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from hydractl.data.base import PAIRS, Dataset
from hydractl.data.files import FileImages, printable
from hydractl.data.image_parquet import holds_images, read_image_parquet
from hydractl.data.imagelist import path_ids
from hydractl.data.labels import RawLabels
from hydractl.data.shards import index_shards
from hydractl.data.spec import TEXT_SUFFIXES, Spec
from hydractl.data.text_rows import ParquetTable, Row, Table, open_csv, open_jsonl, open_tsv
from hydractl.errors import InputError
from hydractl.jsonio import shown

IMAGE = ("image", "filepath", "file_name", "path")
"""Names of the column of the images' paths; ``filepath`` and ``title`` are open_clip's own defaults."""

CAPTION = ("caption", "title", "text")
"""Names of the column of the captions."""

QUERY = ("image", "caption", "root")

_MOST_PROBLEMS = 20
_MOST_SHOWN = 20


class CaptionedImages(Dataset):
    """Images, each with one caption. An image with several captions is several samples.

    The fingerprint of a sample is that of its image, whatever its caption: an image that a model has been trained on
    is no test image any more. That of the whole set is of images and captions.

    Args:
        images: the images.
        captions: one for each, not empty.
    """

    kind = PAIRS

    def __init__(self, images: Dataset, captions: Sequence[str]) -> None:
        super().__init__(images.spec, images.where, images.ids)
        self.images, self.captions = images, captions

    def _sample(self, i: int) -> tuple[Image.Image, str]:
        return self.images[i], self.captions[i]

    def _content(self, i: int) -> Iterable[bytes]:
        return self.images._content(i)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(super().fingerprint().encode())
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
    may also be in ``json.KEY``. With ``limit``, nothing behind the first so many pairs is read.

    Raises:
        InputError: for a file that cannot be read, columns that are not there or cannot be decided, and listing the
            pairs without a caption or an image.
        UsageError: for Parquet without pyarrow.
    """
    name = spec.path.lower()
    path = Path(spec.path).expanduser()
    if name.endswith(".tar") or path.is_dir():
        return _from_shards(spec, limit)
    if not name.endswith(TEXT_SUFFIXES):
        raise InputError(
            f"{spec.where}: not a kind of file that captions are read from",
            hint=f"a table of images and captions ({', '.join(TEXT_SUFFIXES)}), or WebDataset shards (.tar)",
        )
    if name.endswith(".parquet") and holds_images(str(path)):
        return _from_image_parquet(spec, limit)
    return _from_table(spec, limit, path)


# --- shards and Parquet ----------------------------------------------------------------------------------------------


def _from_shards(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    spec.check_query(("image", "caption"))
    asked = spec.query.get("caption", "txt")
    images, index = index_shards(spec, limit, asked, texts=True)
    captions = index.labels[:limit]
    bad = [images.ids[i] for i, caption in enumerate(captions) if caption is None or not caption.strip()]
    _refuse(spec, [f"{name} has no caption, or an empty one" for name in bad], f"where captions are: ?caption={asked}")
    return CaptionedImages(images, captions), RawLabels()


def _from_image_parquet(spec: Spec, limit: int | None) -> tuple[Dataset, RawLabels]:
    spec.check_query(("image", "caption"))
    only_image = {key: value for key, value in spec.query.items() if key == "image"}
    images, _ = read_image_parquet(Spec(spec.text, spec.option, spec.kind, spec.path, only_image), limit)
    table = ParquetTable(spec)
    column = _column(spec, "caption", CAPTION, table.columns, "column")
    captions, problems = [], []
    for row in itertools.islice(table.rows([column]), len(images)):
        try:
            captions.append(_text(row, column, "caption"))
        except ValueError as error:
            problems.append(f"{row.place} {error}")
            if len(problems) == _MOST_PROBLEMS:
                break
    _refuse(spec, problems)
    return CaptionedImages(images, captions), RawLabels()


# --- tables of paths --------------------------------------------------------------------------------------------------


def _from_table(spec: Spec, limit: int | None, path: Path) -> tuple[Dataset, RawLabels]:
    tabular = not spec.path.lower().removesuffix(".gz").endswith((".jsonl", ".parquet"))
    spec.check_query((*QUERY, "columns") if tabular else QUERY)
    columns, rows = _rows(spec)
    image_column, caption_column = "", ""
    names, captions, places, problems = [], [], [], []
    for row in itertools.islice(rows, limit):
        if row.problem:
            problems.append(f"{row.place} {row.problem}")
        else:
            if not image_column:
                there, what = (list(row.values), "key") if columns is None else (columns, "column")
                image_column = _column(spec, "image", IMAGE, there, what)
                caption_column = _column(spec, "caption", CAPTION, there, what)
            try:
                name, caption = _text(row, image_column, "image"), _text(row, caption_column, "caption")
                names.append(name)
                captions.append(caption)
                places.append(row.place)
            except ValueError as error:
                problems.append(f"{row.place} {error}")
        if len(problems) == _MOST_PROBLEMS:
            break
    _refuse(spec, problems)
    if not names:
        raise InputError(f"{spec.where}: no pairs in the file")
    root = Path(spec.query["root"]).expanduser() if "root" in spec.query else path.parent
    paths = [os.path.join(root, name) for name in names]
    _check_files(spec, root, names, paths, places)
    return CaptionedImages(FileImages(spec.text, spec.where, path_ids(names), paths), captions), RawLabels()


def _rows(spec: Spec) -> tuple[list[str] | None, Iterator[Row]]:
    """The columns, None where every row has names of its own, and the rows."""
    name = spec.path.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        parquet = ParquetTable(spec)
        wanted = [_column(spec, "image", IMAGE, parquet.columns, "column")]
        wanted.append(_column(spec, "caption", CAPTION, parquet.columns, "column"))
        return parquet.columns, parquet.rows(wanted)
    table: Table = {"csv": open_csv, "tsv": open_tsv}.get(name.rpartition(".")[2], open_jsonl)(spec)
    return table.columns, table.rows


def _column(spec: Spec, key: str, names: Sequence[str], there: Sequence[str], what: str) -> str:
    """The column of the images or the captions, as ``?image=`` or ``?caption=`` says or by its name.

    Raises:
        InputError: naming the columns there are, for one that is not there, or several that may be meant.
    """
    asked = spec.query.get(key)
    found = [name for name in (names if asked is None else [asked]) if name in there]
    if len(found) == 1 and list(there).count(found[0]) == 1:
        return found[0]
    shown_names = ", ".join(repr(name[:40]) for name in there[:_MOST_SHOWN]) or "nothing"
    meant = f"?{key}={asked}" if asked is not None else f"the {key}"
    problem = f"{' and '.join(map(repr, found))} may be {meant}" if found else f"no {what} of {meant}"
    hint = f"say which {what} it is with ?{key}=NAME"
    if what == "column" and not spec.path.lower().endswith(".parquet"):
        hint += "; a file without a header needs ?columns=image,caption or the like"
    raise InputError(f"{spec.where}: {problem}: it has {shown_names}", hint=hint)


def _text(row: Row, column: str, what: str) -> str:
    """A path or a caption of one row.

    Raises:
        ValueError: with the rest of a sentence that starts with the place of the row.
    """
    value: Any = row.values.get(column)
    if value is None:
        raise ValueError(f"has no {column!r}")
    if not isinstance(value, str):
        raise ValueError(f"has {shown(value)} for {column!r}, which is no text")
    if not value.strip():
        raise ValueError(f"has an empty {what}")
    return value


def _check_files(spec: Spec, root: Path, names: list[str], paths: list[str], places: list[str]) -> None:
    """Every image must exist; a root that fits none of them is one problem, not one for each row."""
    missing = [i for i, path in enumerate(paths) if "\0" in path or not os.path.isfile(path)]
    if not missing:
        return
    hint = "name the folder that the paths are relative to with ?root=FOLDER"
    if len(missing) == len(paths):
        first = printable(names[0])
        raise InputError(
            f"{spec.where}: none of the {len(paths)} images is under {root}; the first is {first!r}", hint=hint
        )
    problems = [f"{places[i]}: no file {printable(names[i])!r}" for i in missing[:_MOST_PROBLEMS]]
    more = [f"and {len(missing) - _MOST_PROBLEMS} more"] if len(missing) > _MOST_PROBLEMS else []
    raise InputError(
        f"{spec.where}: {len(missing)} of {len(paths)} images do not exist under {root}",
        hint=hint,
        problems=problems + more,
    )


def _refuse(spec: Spec, problems: list[str], hint: str | None = None) -> None:
    """Raise the error of pairs that cannot be used, if there are any."""
    if problems:
        more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
        found = f"{len(problems)} {'pair' if len(problems) == 1 else 'pairs'}"
        atleast = " or more" if len(problems) == _MOST_PROBLEMS else ""
        raise InputError(
            f"{spec.where}: {found}{atleast} cannot be used", hint=hint, problems=problems[:_MOST_PROBLEMS] + more
        )
