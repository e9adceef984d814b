"""Reads a ``.pt2`` file as data, and rejects it unless it has only what hydractl exports.

``torch.export.load`` runs what such a file says. It unpickles sample inputs, weights and custom objects, passes the
expressions of symbolic sizes to ``eval`` and the guards to ``exec``, looks up operators by any dotted name below
``torch``, imports modules that the tree of inputs names, writes the names of nodes into Python code, and loads compiled
libraries. Here every entry and every value must have an expected form; anything else is an error. torch then gets a new
archive that is written from what was checked. So neither another way to read the same bytes, nor a later change of the
file, can bring in anything else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hydractl.errors import InputError
from hydractl.exports.program import Refused, check_payload, check_program, shapes_of_program
from hydractl.exports.shapes import GraphShapes
from hydractl.files.header import MAX_TENSORS
from hydractl.jsonio import parse_json, shown

_HINT = "export its checkpoint again: hydractl export FILE.st --format pt2"
_MOST_BYTES = 1 << 26
"""The most bytes of a JSON document in the archive; the graph of a model with 1,000 blocks has a tenth of this."""
_MOST_ENTRIES = MAX_TENSORS

_ROOT = "archive/"
_MODEL = "models/model.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_PAYLOADS = {"data/weights/model_weights_config.json": "weight", "data/constants/model_constants_config.json": "tensor"}
"""The lists of weights and of constants, each with the beginning of the names of its entries."""
_PICKLES = ("data/weights/model.pt", "data/constants/model.pt")
"""The entries in which older versions of torch store weights and constants."""
_FIXED = {
    "archive_format": re.compile(b"pt2"),
    "archive_version": re.compile(b"[0-9]{1,3}"),
    "byteorder": re.compile(b"little"),
    ".data/version": re.compile(b"[0-9]{1,3}\n?"),
    ".data/serialization_id": re.compile(b"[0-9]{1,60}"),
}
"""Small entries, with the contents that they may have."""
_TENSOR = re.compile(r"data/weights/weight_[0-9]{1,9}|data/constants/tensor_[0-9]{1,9}")
_EXTRA = re.compile(r"extra/(?P<name>[a-z0-9_]{1,64})")


# --- the archive ------------------------------------------------------------------------------------------------------


class Archive:
    """An open archive, checked when it is created.

    Attributes:
        metadata: hydractl's own metadata of the file, by name.

    Raises:
        Refused: if an entry or a value is not one that hydractl exports.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._entries = _checked_entries(archive)
        self.metadata = self._read_metadata()
        self._check_entries()
        self._documents = self._read_documents()
        check_program(self._documents.get(_MODEL))
        self._check_payloads()

    def _read_metadata(self) -> dict[str, str]:
        """Return hydractl's own metadata, by name: the texts of the entries below ``extra/``."""
        metadata = {}
        for name in self._entries:
            extra = _EXTRA.fullmatch(name)
            if extra is not None:
                metadata[extra["name"]] = self._text_of(name)
        return metadata

    def _read_documents(self) -> dict[str, Any]:
        """Return the JSON documents that exist: the graph, the list of weights and the list of constants."""
        documents = {}
        for name in (_MODEL, *_PAYLOADS):
            if name in self._entries:
                documents[name] = self._json_of(name)
        return documents

    def _check_payloads(self) -> None:
        """Raise an error if a list of weights or constants has anything but the places of the numbers."""
        bytes_by_entry = {name: entry.file_size for name, entry in self._entries.items()}
        for name, stem in _PAYLOADS.items():
            if name in self._documents:
                folder = os.path.dirname(name)
                check_payload(self._documents[name], folder, stem, bytes_by_entry)

    def shapes(self) -> GraphShapes:
        """Return the inputs and outputs of the graph."""
        try:
            return shapes_of_program(self._documents[_MODEL])
        except (LookupError, TypeError) as error:
            raise Refused("a graph that does not say what it takes and gives") from error

    def copy(self, handle: IO[bytes]) -> None:
        """Write a new archive from what was checked to ``handle``, and go back to the beginning of ``handle``."""
        with zipfile.ZipFile(handle, "w") as archive:
            for name, entry in self._entries.items():
                # Documents are written from the parsed values. torch could read the original bytes in another way, e.g.
                # if a key occurs twice.
                document = self._documents.get(name)
                if document is not None:
                    archive.writestr(_ROOT + name, json.dumps(document))
                else:
                    self._copy_entry(entry, name, archive)
        handle.flush()
        handle.seek(0)

    def _copy_entry(self, entry: zipfile.ZipInfo, name: str, archive: zipfile.ZipFile) -> None:
        """Copy the bytes of an entry into another archive, piece by piece.

        Args:
            entry: the entry in this archive.
            name: its name below the root.
            archive: the other archive.
        """
        new_entry = zipfile.ZipInfo(_ROOT + name)
        new_entry.file_size = entry.file_size
        buffer_bytes = 1 << 20
        with self._archive.open(entry) as source, archive.open(new_entry, "w") as target:
            shutil.copyfileobj(source, target, buffer_bytes)

    def _check_entries(self) -> None:
        """Raise an error if there is an unknown entry, or a pickle or a small entry has unexpected contents."""
        # torch reads some entries as pickles, and some small ones as they are. All others must be known, and are
        # checked where they are read.
        for name, entry in self._entries.items():
            if name == _SAMPLE_INPUTS:
                if entry.file_size:
                    raise Refused(f"sample inputs of {entry.file_size} bytes, which torch would unpickle")
            elif name in _PICKLES:
                self._check_pickle(name)
            elif name in _FIXED:
                self._check_fixed(name)
            elif not _is_checked_elsewhere(name):
                raise Refused(f"the entry {shown(name)}")

    def _check_fixed(self, name: str) -> None:
        """Raise an error if a small entry has contents that torch does not write."""
        content = self._bytes_of(name, 64)
        if _FIXED[name].fullmatch(content) is None:
            raise Refused(f"the entry {name} with {shown(content)}")

    def _check_pickle(self, name: str) -> None:
        """Raise an error if a pickle has anything but tensors by name; an empty entry is allowed.

        The pickle is opened with ``weights_only``, which runs no code. torch opens it in the same way afterwards.
        """
        import torch

        content = self._bytes_of(name, self._entries[name].file_size)
        if not content:
            return
        try:
            tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:  # a broken or hostile pickle can cause errors of any kind
            raise Refused(f"a pickle of more than tensors in {name}") from error
        if not isinstance(tensors, dict):
            raise Refused(f"a pickle of more than tensors in {name}")
        for tensor in tensors.values():
            if not isinstance(tensor, torch.Tensor):
                raise Refused(f"a pickle of more than tensors in {name}")

    def _json_of(self, name: str) -> Any:
        """Return the JSON value in an entry."""
        content = self._bytes_of(name, _MOST_BYTES)
        return parse_json(content, name)

    def _text_of(self, name: str) -> str:
        """Return the text in an entry."""
        content = self._bytes_of(name, _MOST_BYTES)
        return content.decode("utf-8")

    def _bytes_of(self, name: str, most: int) -> bytes:
        """Return the bytes of an entry; raise an error if there are more than ``most``."""
        entry = self._entries[name]
        if entry.file_size > most:
            raise Refused(f"{entry.file_size} bytes in {name} (the limit is {most})")
        return self._archive.read(entry)


def _is_checked_elsewhere(name: str) -> bool:
    """Return whether an entry needs no check of its own: it is checked elsewhere, or has only numbers."""
    if name == _MODEL or name in _PAYLOADS:
        return True
    is_tensor = _TENSOR.fullmatch(name) is not None
    is_metadata = _EXTRA.fullmatch(name) is not None
    return is_tensor or is_metadata


def _checked_entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive by their names below its root folder.

    Raises:
        Refused: if there are too many entries, an entry is outside the root folder, occurs twice, is compressed or
            overlaps another, or the graph is missing.
    """
    infos = archive.infolist()
    if len(infos) > _MOST_ENTRIES:
        raise Refused(f"{len(infos)} entries (the limit is {_MOST_ENTRIES})")

    # Entries by their names below the root folder; each is stored plainly, once.
    entries: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removeprefix(_ROOT)
        is_below_root = name != info.filename
        if not is_below_root:
            raise Refused(f"the entry {shown(name)}")
        if name in entries:
            raise Refused(f"the entry {shown(name)} twice")
        is_compressed = info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size
        if is_compressed:
            raise Refused(f"the packed entry {shown(name)}")
        entries[name] = info

    # Entries that are not compressed and do not overlap have together at most as many bytes as the archive.
    stored_bytes = sum(info.file_size for info in infos)
    if archive.fp is not None:
        archive_bytes = archive.fp.seek(0, io.SEEK_END)
        if stored_bytes > archive_bytes:
            raise Refused("entries that lie in each other")
    if _MODEL not in entries:
        raise Refused(f"no {_MODEL}")
    return entries


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Open a ``.pt2`` file for the block and check it, without running anything in it.

    Raises:
        InputError: if the file cannot be read, is damaged, or has something that hydractl does not export.
    """
    try:
        with open(path, "rb") as handle, zipfile.ZipFile(handle) as archive:
            checked = Archive(archive)
            yield checked
    except Refused as error:
        raise InputError(
            f"{path} is not opened, for it holds what hydractl never exports and what could run: {error}", hint=_HINT
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, EOFError, ValueError) as error:
        raise InputError(f"{path} is a damaged .pt2 file: {_first_line(error)}", hint=_HINT) from error


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to 200 characters; its class name if the message is empty."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0][:200]
