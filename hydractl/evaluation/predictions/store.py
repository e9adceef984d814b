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
    """One data set as a predictions file describes it.

    Attributes:
        name: ``id``, ``val``, the name of an OOD set, or ``CORRUPTION/SEVERITY``.
        role: ``id``, ``ood``, ``val``, ``ood_val``, ``corruption``, or ``train``, which is neither measured nor kept.
        group: the group of an OOD set, ``near`` or ``far``; None for all others.
        ids: the id of each sample.
        labels: the labels, int64 ``[N]``; None if it is unlabelled, or if its labels are not used.
        fingerprint: the fingerprint of its samples, their order and labels.
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
    """Return the names of a set's tensors in the file, by what they hold."""
    prefix = f"sets.{index}"
    return {
        "logits": f"{prefix}.logits",
        "labels": f"{prefix}.labels",
        "ids": f"{prefix}.ids",
        "id_ends": f"{prefix}.id_ends",
    }


def score_tensor(index: int, score: str) -> str:
    """Return the name of the tensor ``[members, N, 1]`` of an OOD score on features."""
    return f"sets.{index}.scores.{score}"


def ranges(shape: Sequence[int]) -> list[range]:
    """Return runs of neighbouring samples whose logits fit into a block of memory.

    Args:
        shape: the shape of all logits, ``[members, N, classes]``.
    """
    members, samples, classes = shape
    sample_bytes = members * classes * 4  # of float32
    step = max(1, BLOCK_BYTES // sample_bytes)
    runs = []
    for start in range(0, samples, step):
        stop = min(samples, start + step)
        runs.append(range(start, stop))
    return runs


def is_empty(logits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return the mask ``[N]`` of the samples with a logit that was never written, from ``[members, N, classes]``."""
    raw = np.ascontiguousarray(logits).view(np.uint8)
    logit_bytes = raw.reshape(*logits.shape, logits.itemsize)  # [members, N, classes, bytes]
    never_written = (logit_bytes == EMPTY).all(axis=3)  # [members, N, classes]
    return never_written.any(axis=(0, 2))


class PredictionsWriter:
    """A predictions file in the making.

    Args:
        path: the path of the unfinished file.
        model: the entry of the model in the header; it must tell everything that decides the logits.
        sets: the data sets.
        members, classes: the shape of the logits, ``[members, N, classes]``.
        kind: the type of the logits, ``F32`` or ``F64``.
        scores: the names of the OOD scores on features that are kept beside the logits.
        resume: continue a file that a stopped run has left.

    Attributes:
        resumed: whether there was such a file.

    Raises:
        InputError: with ``resume``, if the file was begun with other settings; the differences are listed.
        OutputError, StorageError: if it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        model: Mapping[str, object],
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

        # The tensors of the file.
        self._infos: dict[str, TensorInfo] = {}
        self._fixed: dict[str, bytes] = {}  # the content of those that are known from the beginning
        for index, dataset in enumerate(sets):
            samples = len(dataset.ids)
            logits_name = tensor_names(index)["logits"]
            self._infos[logits_name] = TensorInfo(kind, (members, samples, classes))
            for score in scores:
                self._infos[score_tensor(index, score)] = TensorInfo("F64", (members, samples, 1))
            self._add_ids_and_labels(index, dataset)

        # The position at which each begins, behind the header.
        self._head, order = header_bytes(self._infos, self._description)
        self._starts: dict[str, int] = {}
        position = len(self._head)
        for name in order:
            self._starts[name] = position
            position += self._infos[name].nbytes
        self._open(order, resume)

    def _open(self, order: Sequence[str], resume: bool) -> None:
        """Open the file; a new one gets its final size.

        Args:
            order: the names of the tensors in the order of the file.
            resume: continue a file that a stopped run has left.
        """
        path = self.path
        try:
            self.resumed = resume and _has_header(path)
            mode = "w+b"
            if self.resumed:
                _check_same(path, self._description)
                mode = "r+b"
            self._file = open(path, mode, opener=open_own)  # noqa: SIM115 - closed by close()
            if not self.resumed:
                self._write_empty(order)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OutputError(f"the unfinished file is a symbolic link: {path}", hint="remove it") from None
            if not _has_header(path):  # without a header no logit has been written: nothing is lost
                path.unlink(missing_ok=True)
            raise storage_error(error, path) from error

    def _add_ids_and_labels(self, index: int, dataset: SetEntry) -> None:
        """Add the tensors of a set that are known from the beginning: its ids, and its labels if it has any."""
        names = tensor_names(index)

        # All ids in one text, and the position at which each ends.
        encoded_ids = [sample_id.encode("utf-8", "surrogateescape") for sample_id in dataset.ids]
        lengths = [len(encoded) for encoded in encoded_ids]
        text = b"".join(encoded_ids)
        text_bytes = np.frombuffer(text, dtype=np.uint8)
        id_ends = np.cumsum(lengths, dtype="<i8")
        self._add_array(names["ids"], "U8", text_bytes)
        self._add_array(names["id_ends"], "I64", id_ends)

        if dataset.labels is not None:
            labels = dataset.labels.astype("<i8")
            self._add_array(names["labels"], "I64", labels)

    def _add_array(self, name: str, kind: str, array: npt.NDArray[Any]) -> None:
        """Add one tensor that is known from the beginning."""
        self._infos[name] = TensorInfo(kind, array.shape)
        self._fixed[name] = array.tobytes()

    def _write_empty(self, order: Sequence[str]) -> None:
        """Write the file with every logit empty.

        The header is written last: a file without one was stopped before it had its size, and is begun anew.
        """
        # Everything behind the header.
        self._file.seek(len(self._head))
        for name in order:
            if name in self._fixed:
                self._file.write(self._fixed[name])
            else:
                self._write_empty_tensor(self._infos[name].nbytes)
        self._flush_to_disk()

        # The header, only after all that is on the disk.
        self._file.seek(0)
        self._file.write(self._head)
        self._flush_to_disk()

    def _write_empty_tensor(self, size: int) -> None:
        """Write so many bytes of logits that are not computed yet, block by block."""
        left = size
        while left:
            count = min(left, BLOCK_BYTES)
            self._file.write(bytes([EMPTY]) * count)
            left -= count

    def _flush_to_disk(self) -> None:
        """Return when all that was written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def missing(self, index: int) -> npt.NDArray[np.bool_]:
        """Return the mask ``[N]`` of the samples of a set that have no logits yet."""
        name = tensor_names(index)["logits"]
        shape = self._infos[name].shape
        parts = [np.zeros(0, dtype=np.bool_)]  # all there is of a set without samples
        for rows in ranges(shape):
            logits = self._read_run(name, rows)
            parts.append(is_empty(logits))
        return np.concatenate(parts)

    def _read_run(self, name: str, rows: range) -> npt.NDArray[Any]:
        """Return the part ``[members, rows, columns]`` of a run of neighbouring samples in a tensor."""
        info = self._infos[name]
        members, samples, columns = info.shape
        number_format = LOGIT_FORMATS[info.dtype]
        row_bytes = columns * number_format.itemsize
        block_bytes = len(rows) * row_bytes

        # The samples of one member lie behind those of the one before.
        blocks = []
        for member in range(members):
            first_row = member * samples + rows.start
            position = self._starts[name] + first_row * row_bytes
            block = os.pread(self._file.fileno(), block_bytes, position)
            blocks.append(block)
        values = np.frombuffer(b"".join(blocks), number_format)
        return values.reshape(members, len(rows), columns)

    def write(
        self,
        index: int,
        rows: Sequence[int],
        logits: npt.NDArray[Any],
        scores: Mapping[str, npt.NDArray[np.float64]] = {},
    ) -> None:
        """Write the logits ``[members, len(rows), classes]`` and scores ``[members, len(rows)]`` of some samples."""
        # Logits mark a sample as complete, so its scores are written before them.
        for score in self._scores:
            column = scores[score][:, :, None]  # [members, len(rows), 1]
            self._write_samples(score_tensor(index, score), rows, column)
        logits_name = tensor_names(index)["logits"]
        self._write_samples(logits_name, rows, logits)

    def _write_samples(self, name: str, rows: Sequence[int], columns: npt.NDArray[Any]) -> None:
        """Write the values ``[members, len(rows), columns]`` of some samples into a tensor.

        A tensor holds all samples of the first member, then all of the second, and so on; ``rows`` are in any order.
        """
        info = self._infos[name]
        _, samples, width = info.shape
        number_format = LOGIT_FORMATS[info.dtype]
        row_bytes = width * number_format.itemsize

        # The samples in the order of the file.
        unsorted_rows = np.asarray(rows)
        order = np.argsort(unsorted_rows, kind="stable")
        rising_rows = unsorted_rows[order]
        values = np.ascontiguousarray(columns[:, order], dtype=number_format)

        # Samples that follow each other in the file are written together, member by member.
        run_starts = np.flatnonzero(np.diff(rising_rows) != 1) + 1
        positions = np.arange(len(rising_rows))  # in values
        for run in np.split(positions, run_starts):
            first_row_of_run = int(rising_rows[run[0]])
            for member in range(len(values)):
                first_row = member * samples + first_row_of_run
                position = self._starts[name] + first_row * row_bytes
                block = values[member, run].tobytes()
                self._write_at(block, position)

    def read(self, index: int, rows: Sequence[int]) -> npt.NDArray[Any]:
        """Return the logits ``[members, len(rows), classes]`` that :meth:`write` wrote for some samples."""
        name = tensor_names(index)["logits"]
        return self._read_samples(name, rows)

    def read_scores(self, index: int, rows: Sequence[int]) -> dict[str, npt.NDArray[np.float64]]:
        """Return the scores ``[members, len(rows)]`` of the same samples, by name."""
        by_score = {}
        for score in self._scores:
            stored = self._read_samples(score_tensor(index, score), rows)  # [members, len(rows), 1]
            by_score[score] = stored[:, :, 0]
        return by_score

    def _read_samples(self, name: str, rows: Sequence[int]) -> npt.NDArray[Any]:
        """Return the part ``[members, len(rows), columns]`` of any samples in a tensor, in the order of ``rows``."""
        pieces = []
        for row in rows:
            first = int(row)
            single_sample = range(first, first + 1)
            pieces.append(self._read_run(name, single_sample))
        return np.concatenate(pieces, axis=1)

    def _write_at(self, block: bytes, position: int) -> None:
        """Write a block of bytes to a position of the file; the system may take it in several parts."""
        try:
            written = 0
            while written < len(block):
                left = block[written:]
                written += os.pwrite(self._file.fileno(), left, position + written)
        except OSError as error:
            raise storage_error(error, self.path) from error

    def __enter__(self) -> PredictionsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def _has_header(path: Path) -> bool:
    """Return whether there is an unfinished file with a header, which is written when the file has its size."""
    try:
        with open(path, "rb") as file:
            header_length = file.read(8)
    except OSError:  # most often there is no file; the reason for any other error is told when it is opened to write
        return False
    is_written = any(header_length)  # the length of a header is never 0
    return is_written


def _check_same(path: Path, description: Mapping[str, object]) -> None:
    """Check that an unfinished file was begun with the same model, data and settings.

    Raises:
        InputError: listing the differences.
    """
    header = read_header(path)
    stored = header.description or {}
    if stored == description:
        return
    raise InputError(
        f"{path} holds unfinished predictions of other settings",
        hint="give the settings it was begun with, or leave --resume out to begin anew",
        problems=differences(_flat(stored), _flat(description), "in the file"),
    )


def _flat(description: Mapping[str, object]) -> dict[str, object]:
    """Return a description in which the entries under ``model`` stand beside all others, so that each is compared."""
    flat: dict[str, object] = {}
    model = description.get("model")
    if isinstance(model, dict):
        flat.update(model)
    for key, value in description.items():
        if key != "model":
            flat[key] = value
    return flat
