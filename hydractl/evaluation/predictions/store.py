"""The member logits of one model on some data sets, in one safetensors file that is filled batch by batch.

The file has its final size from the beginning, and its logits are not numbers until they are computed. So a run that
was killed goes on with the rows that are missing, and what it leaves has the bytes of the unbroken run.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError, OutputError
from hydractl.files.atomic import open_own, storage_error
from hydractl.files.header import TensorInfo, header_bytes, read_header
from hydractl.files.predictions_header import PredictedSetRecord, SetGroup, SetRole
from hydractl.jsonio import differences

PREDICTIONS_SCHEMA = "hydractl.predictions/3"
BLOCK_BYTES = 1 << 22
LOGIT_FORMATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
EMPTY = 0xFF
"""Every byte of a logit that has not been computed: a NaN, which no model may answer."""


@dataclass(frozen=True)
class SetEntry:
    """One data set as predictions know it.

    Attributes:
        name: ``id``, ``val``, the name of an OOD set, or ``CORRUPTION/SEVERITY``.
        role: ``id``, ``ood``, ``val``, ``ood_val``, ``corruption``, or ``train``, which is neither measured nor kept.
        group: of an OOD set: ``near``, ``far`` or None.
        ids: one for each sample.
        labels: int64 ``[N]``; None where unlabelled or not asked for.
        fingerprint: of its samples, their order and labels.
        seen: how many of its samples the model had seen before.
    """

    name: str
    role: str
    group: str | None
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    fingerprint: str
    seen: int = 0

    def header(self) -> PredictedSetRecord:
        """Return the entry of this set in the header of a predictions file."""
        return PredictedSetRecord(
            name=self.name,
            role=cast("SetRole", self.role),
            group=cast("SetGroup | None", self.group),
            n=len(self.ids),
            fingerprint=self.fingerprint,
            labelled=self.labels is not None,
            seen=self.seen,
        )


def tensor_names(index: int) -> dict[str, str]:
    """Return the names of a set's tensors in the file."""
    return {part: f"sets.{index}.{part}" for part in ("logits", "labels", "ids", "id_ends")}


def score_tensor(index: int, score: str) -> str:
    """Return the name of the tensor ``[members, N, 1]`` of an OOD score on features."""
    return f"sets.{index}.scores.{score}"


def ranges(shape: Sequence[int]) -> list[range]:
    """Return runs of neighbouring samples of ``[members, N, classes]`` that memory has room for."""
    members, samples, classes = shape
    step = max(1, BLOCK_BYTES // (members * classes * 4))
    return [range(start, min(samples, start + step)) for start in range(0, samples, step)]


def is_empty(logits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which samples of ``[members, N, classes]`` have a logit that was never written, ``[N]``."""
    raw = np.ascontiguousarray(logits).view(np.uint8)
    by_logit = raw.reshape(*logits.shape, logits.itemsize)
    never_written = (by_logit == EMPTY).all(axis=3)
    return never_written.any(axis=(0, 2))


class PredictionsWriter:
    """A predictions file in the making.

    Args:
        path: of the unfinished file.
        model: what the header says of the model; what decides the logits must be in it.
        sets: the data sets.
        members, classes: shape of the logits ``[members, N, classes]``.
        kind: ``F32`` or ``F64``.
        scores: names of the OOD scores on features that are kept beside the logits.
        resume: go on with a file that is there.

    Attributes:
        resumed: whether there was one.

    Raises:
        InputError: with ``resume``, when the file there is of other settings; the differences are listed.
        OutputError, StorageError: it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        model: Mapping[str, Any],
        sets: Sequence[SetEntry],
        *,
        members: int,
        classes: int,
        kind: str = "F32",
        scores: Sequence[str] = (),
        resume: bool = False,
    ) -> None:
        self.path = path
        self._scores = list(scores)
        self._description = {
            "schema": PREDICTIONS_SCHEMA,
            "model": dict(model),
            "sets": [dataset.header().to_json() for dataset in sets],
        }
        self._infos: dict[str, TensorInfo] = {}
        self._fixed: dict[str, bytes] = {}
        for index, dataset in enumerate(sets):
            samples = len(dataset.ids)
            self._infos[tensor_names(index)["logits"]] = TensorInfo(kind, (members, samples, classes))
            for score in scores:
                self._infos[score_tensor(index, score)] = TensorInfo("F64", (members, samples, 1))
            self._add_fixed(index, dataset)
        self._head, order = header_bytes(self._infos, self._description)
        self._starts: dict[str, int] = {}
        position = len(self._head)
        for name in order:
            self._starts[name] = position
            position += self._infos[name].nbytes
        self._open(order, resume)

    def _open(self, order: Sequence[str], resume: bool) -> None:
        """Open the file, and give it its size where it is begun."""
        path = self.path
        try:
            self.resumed = resume and _begun(path)
            if self.resumed:
                _check_same(path, self._description)
            mode = "r+b" if self.resumed else "w+b"
            self._file = open(path, mode, opener=open_own)  # noqa: SIM115 - closed by close()
            if not self.resumed:
                self._fill(order)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OutputError(f"the unfinished file is a symbolic link: {path}", hint="remove it") from None
            if not _begun(path):  # nothing has been computed for it
                path.unlink(missing_ok=True)
            raise storage_error(error, path) from error

    def _add_fixed(self, index: int, dataset: SetEntry) -> None:
        """Add the tensors of a set that are known from the beginning: its ids and labels."""
        names = tensor_names(index)
        encoded = [text.encode("utf-8", "surrogateescape") for text in dataset.ids]
        arrays: dict[str, npt.NDArray[Any]] = {
            "ids": np.frombuffer(b"".join(encoded), dtype=np.uint8),
            "id_ends": np.cumsum([len(text) for text in encoded], dtype="<i8"),
        }
        if dataset.labels is not None:
            arrays["labels"] = dataset.labels.astype("<i8")
        for part, array in arrays.items():
            kind = "U8" if part == "ids" else "I64"
            self._infos[names[part]] = TensorInfo(kind, array.shape)
            self._fixed[names[part]] = array.tobytes()

    def _fill(self, order: Sequence[str]) -> None:
        """Write the file with every logit empty.

        The header comes last: a file without one was stopped before it had its size, and is begun anew.
        """
        self._file.seek(len(self._head))
        for name in order:
            if name in self._fixed:
                self._file.write(self._fixed[name])
                continue
            left = self._infos[name].nbytes
            while left:
                count = min(left, BLOCK_BYTES)
                self._file.write(bytes([EMPTY]) * count)
                left -= count
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        self._file.write(self._head)
        self._file.flush()
        os.fsync(self._file.fileno())

    def missing(self, index: int) -> npt.NDArray[np.bool_]:
        """Return which samples of a set have no logits yet, ``[N]``."""
        name = tensor_names(index)["logits"]
        parts = [np.zeros(0, dtype=np.bool_)]  # of a set without samples
        for rows in ranges(self._infos[name].shape):
            parts.append(is_empty(self._piece(name, rows)))
        return np.concatenate(parts)

    def _piece(self, name: str, rows: range) -> npt.NDArray[Any]:
        """Return the part ``[members, rows, columns]`` of neighbouring samples in a tensor."""
        members, samples, columns = self._infos[name].shape
        kind = LOGIT_FORMATS[self._infos[name].dtype]
        row_bytes = columns * kind.itemsize
        blocks = []
        for member in range(members):
            start = self._starts[name] + (member * samples + rows.start) * row_bytes
            blocks.append(os.pread(self._file.fileno(), len(rows) * row_bytes, start))
        return np.frombuffer(b"".join(blocks), kind).reshape(members, len(rows), columns)

    def write(
        self,
        index: int,
        rows: Sequence[int],
        logits: npt.NDArray[Any],
        scores: Mapping[str, npt.NDArray[np.float64]] = {},
    ) -> None:
        """Write the logits ``[members, len(rows), classes]`` and scores ``[members, len(rows)]`` of some samples."""
        for score in self._scores:  # before the logits, which say that a sample is whole
            self._write(score_tensor(index, score), rows, scores[score][:, :, None])
        self._write(tensor_names(index)["logits"], rows, logits)

    def _write(self, name: str, rows: Sequence[int], columns: npt.NDArray[Any]) -> None:
        """Write the part ``[members, len(rows), columns]`` of a tensor."""
        _, samples, width = self._infos[name].shape
        kind = LOGIT_FORMATS[self._infos[name].dtype]
        row_bytes = width * kind.itemsize
        order = np.argsort(np.asarray(rows), kind="stable")
        rising_rows = np.asarray(rows)[order]
        values = np.ascontiguousarray(columns[:, order], dtype=kind)
        # Samples that follow each other are written together.
        breaks = np.flatnonzero(np.diff(rising_rows) != 1) + 1
        for run in np.split(np.arange(len(rising_rows)), breaks):
            first_row = int(rising_rows[run[0]])
            for member in range(len(values)):
                position = self._starts[name] + (member * samples + first_row) * row_bytes
                self._write_at(values[member, run].tobytes(), position)

    def read(self, index: int, rows: Sequence[int]) -> npt.NDArray[Any]:
        """Return what :meth:`write` wrote of some samples, ``[members, len(rows), classes]``."""
        return self._read(tensor_names(index)["logits"], rows)

    def read_scores(self, index: int, rows: Sequence[int]) -> dict[str, npt.NDArray[np.float64]]:
        """Return the scores ``[members, len(rows)]`` of the same samples, by name."""
        by_score = {}
        for score in self._scores:
            stored = self._read(score_tensor(index, score), rows)  # [members, len(rows), 1]
            by_score[score] = stored[:, :, 0]
        return by_score

    def _read(self, name: str, rows: Sequence[int]) -> npt.NDArray[Any]:
        pieces = []
        for row in map(int, rows):
            pieces.append(self._piece(name, range(row, row + 1)))
        return np.concatenate(pieces, axis=1)

    def _write_at(self, block: bytes, position: int) -> None:
        try:
            done = 0
            while done < len(block):
                done += os.pwrite(self._file.fileno(), block[done:], position + done)
        except OSError as error:
            raise storage_error(error, self.path) from error

    def __enter__(self) -> PredictionsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, finished or not."""
        self._file.close()


def _begun(path: Path) -> bool:
    """Return whether there is an unfinished file that had got its size and its header."""
    try:
        with open(path, "rb") as file:
            return any(file.read(8))
    except OSError:
        return False


def _check_same(path: Path, description: Mapping[str, Any]) -> None:
    """Refuse an unfinished file of another model, other data or settings.

    Raises:
        InputError: listing the differences.
    """
    stored = read_header(path).description or {}
    if stored == description:
        return
    raise InputError(
        f"{path} holds unfinished predictions of other settings",
        hint="give the settings it was begun with, or leave --resume out to begin anew",
        problems=differences(_flat(stored), _flat(description), "in the file"),
    )


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the entries of the model beside the rest."""
    flat: dict[str, Any] = {}
    model = description.get("model")
    if isinstance(model, dict):
        flat.update(model)
    for key, value in description.items():
        if key != "model":
            flat[key] = value
    return flat
