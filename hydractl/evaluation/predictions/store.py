"""Writes the logits of all members of a model on several data sets to one safetensors file, batch by batch.

The file has its final size from the beginning. Logits that are not computed yet are NaN. So a run that was killed can
be resumed with the missing samples, and the finished file is equal byte by byte to that of a run without interruption.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluation.sets import EvalSet
from hydractl.files.atomic import open_own, storage_error
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import TensorInfo, header_bytes, read_header
from hydractl.jsonio import differences

PREDICTIONS_SCHEMA = "hydractl.predictions/3"
BLOCK_BYTES = 1 << 22
LOGIT_FORMATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
EMPTY = 0xFF
"""The value of every byte of a logit that is not computed yet. Such a logit is a NaN, which no model may return."""


class LogitsBatch(NamedTuple):
    """The logits of some samples of a data set.

    Attributes:
        rows: the indices of the samples in the data set, ``[B]``.
        logits: the logits of all members, ``[M, B, C]``.
        scores: the OOD scores on features by name, ``[M, B]`` each.
    """

    rows: Sequence[int]
    logits: npt.NDArray[Any]
    scores: Mapping[str, npt.NDArray[np.float64]]

    @property
    def mean_scores(self) -> dict[str, npt.NDArray[np.float64]]:
        """The scores of the ensemble, ``[B]`` each: the means of its members' scores."""
        return {name: values.mean(axis=0) for name, values in self.scores.items()}


def tensor_name(index: int, part: str) -> str:
    """Return the name of a tensor of the set at an index of the file.

    Args:
        index: the index of the set.
        part: ``logits``, ``labels``, ``ids`` or ``id_ends``; or ``scores.NAME``, an OOD score on features, ``[members,
            N, 1]``.
    """
    return f"sets.{index}.{part}"


def tensor_infos(
    index: int, logits: TensorInfo, id_bytes: int, labelled: bool, scores: Sequence[str]
) -> dict[str, TensorInfo]:
    """Return the dtype and shape of every tensor of a set, by its name in the file.

    Args:
        index: the index of the set in the file.
        logits: dtype and shape of its logits, ``[members, N, classes]``.
        id_bytes: the number of bytes of all its ids.
        labelled: whether it has labels.
        scores: the names of the OOD scores on features that are stored.
    """
    members, samples, _ = logits.shape
    infos = {"logits": logits}
    for score in scores:
        infos[f"scores.{score}"] = TensorInfo("F64", (members, samples, 1))
    infos["id_ends"] = TensorInfo("I64", (samples,))
    if labelled:
        infos["labels"] = TensorInfo("I64", (samples,))
    infos["ids"] = TensorInfo("U8", (id_bytes,))
    return {tensor_name(index, part): info for part, info in infos.items()}


def is_empty(logits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which samples have a logit that was never written, bool ``[N]``.

    Args:
        logits: ``[members, N, classes]``.
    """
    bits = np.ascontiguousarray(logits).view(f"u{logits.itemsize}")
    never_written = bits == np.iinfo(bits.dtype).max  # every byte is EMPTY
    return never_written.any(axis=(0, 2))


def read_samples(tensors: FileTensors, name: str, rows: range) -> npt.NDArray[Any]:
    """Return the values of neighbouring samples in a tensor, ``[members, rows, columns]``.

    Args:
        tensors: the file.
        name: the name of a tensor ``[members, N, columns]``. It has all samples of the first member, then all samples
            of the second, and so on, so the samples of one member are one range of numbers.
        rows: the samples.
    """
    members, samples, columns = tensors.info(name).shape
    values_by_member = []
    for member in range(members):
        first_row = member * samples + rows.start
        stop_row = member * samples + rows.stop
        flat_values = tensors.read_piece(name, first_row * columns, stop_row * columns)
        values_by_member.append(flat_values.numpy().reshape(len(rows), columns))
    return np.stack(values_by_member)


def stored_batches(
    tensors: FileTensors, index: int, scores: Sequence[str], without: Sequence[int] = ()
) -> Iterator[LogitsBatch]:
    """Yield the stored logits of a data set in the order of its samples, in pieces of about 4 MiB at most.

    A piece has at least one sample, however large its logits are. Samples without logits are left out.

    Args:
        tensors: the file.
        index: the index of the set in the file.
        scores: the names of the OOD scores on features to read beside the logits.
        without: the indices of further samples to leave out.
    """
    logits_name = tensor_name(index, "logits")
    members, samples, classes = tensors.info(logits_name).shape
    bytes_of_sample = members * classes * 4  # in float32
    step = max(1, BLOCK_BYTES // bytes_of_sample)  # samples in a piece
    for start in range(0, samples, step):
        piece = range(start, min(samples, start + step))  # B neighbouring samples
        logits = read_samples(tensors, logits_name, piece)  # [M, B, C]
        is_wanted = ~is_empty(logits) & ~np.isin(piece, without)  # [B]
        if not is_wanted.any():
            continue
        wanted_scores = {}
        for name in scores:
            values = read_samples(tensors, tensor_name(index, f"scores.{name}"), piece)  # [M, B, 1]
            wanted_scores[name] = values[:, is_wanted, 0]
        rows = np.asarray(piece)[is_wanted].tolist()
        yield LogitsBatch(rows, logits[:, is_wanted], wanted_scores)


class PredictionsWriter:
    """Writes a predictions file.

    Args:
        path: the path of the unfinished file.
        model: the record of the model for the header; it must contain everything that decides the logits.
        sets: the data sets.
        members, classes: the shape of the logits of a set with N samples is ``[members, N, classes]``.
        kind: the dtype of the logits, ``F32`` or ``F64``.
        scores: the names of the OOD scores on features that are stored beside the logits.
        resume: whether to continue the file of a stopped run, if there is one.

    Attributes:
        path: the path of the unfinished file.
        sets: the data sets.
        resumed: whether a file of a stopped run is continued.

    Raises:
        InputError: with ``resume``, if the file was begun with other settings; the differences are listed.
        OutputError, StorageError: if the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        model: Mapping[str, object],
        sets: Sequence[EvalSet],
        *,
        members: int,
        classes: int,
        kind: str = "F32",
        scores: Sequence[str] = (),
        resume: bool = False,
    ) -> None:
        self.path = path
        self.sets = sets
        self._scores = list(scores)
        description = {
            "schema": PREDICTIONS_SCHEMA,
            "model": dict(model),
            "sets": [dataset.header().to_dict() for dataset in sets],
        }

        # The dtype and shape of every tensor, and the content of ids and labels, which is known from the beginning.
        infos: dict[str, TensorInfo] = {}
        known: dict[str, bytes] = {}
        for index, dataset in enumerate(sets):
            logits = TensorInfo(kind, (members, len(dataset.ids), classes))
            contents = _ids_and_labels(index, dataset)
            id_bytes = len(contents[tensor_name(index, "ids")])
            infos |= tensor_infos(index, logits, id_bytes, dataset.labels is not None, scores)
            known |= contents
        head, order = header_bytes(infos, description)

        # Open the file of a stopped run, or a new one, which gets its final size.
        self.resumed = resume and _has_header(path)
        try:
            self._file = open(path, "r+b" if self.resumed else "w+b", opener=open_own)  # noqa: SIM115 - see close()
            if not self.resumed:
                self._write_empty(head, [known.get(name, infos[name].nbytes) for name in order])
        except OSError as error:
            # The header is written before any logit, so a file without a header has nothing to lose.
            if not path.is_symlink() and not _has_header(path):
                path.unlink(missing_ok=True)
            raise storage_error(error, path) from error
        header = read_header(path)
        there = header.description or {}
        if self.resumed and there != description:
            self.close()
            raise InputError(
                f"{path} holds unfinished predictions of other settings",
                hint="give the settings it was begun with, or leave --resume out to begin anew",
                problems=differences(_flat(there), _flat(description), "in the file"),
            )
        self._tensors = FileTensors(path, replace(header, state=()))  # which reads the file although it changes

    def _write_empty(self, head: bytes, contents: Sequence[bytes | int]) -> None:
        """Write the whole file, with NaN for every logit and every score: what is not known yet.

        The header is written last. So a file without a header is one that did not get its final size, and is begun
        again.

        Args:
            head: the header, which is at the start of the file.
            contents: for each tensor in the order of the file its content, or its number of bytes if it is not known.
        """
        # The tensors.
        self._file.seek(len(head))
        for content in contents:
            if isinstance(content, bytes):
                self._file.write(content)
                continue
            for start in range(0, content, BLOCK_BYTES):  # block by block to save memory
                self._file.write(bytes([EMPTY]) * min(BLOCK_BYTES, content - start))
        self._flush_to_disk()

        # The header, after everything else is on the disk.
        self._file.seek(0)
        self._file.write(head)
        self._flush_to_disk()

    def _flush_to_disk(self) -> None:
        """Wait until everything that was written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def missing(self, index: int) -> npt.NDArray[np.bool_]:
        """Return which samples of the set at an index have no logits yet, bool ``[N]``."""
        _, samples, _ = self._tensors.info(tensor_name(index, "logits")).shape
        is_missing = np.ones(samples, dtype=np.bool_)
        for batch in stored_batches(self._tensors, index, ()):
            is_missing[batch.rows] = False
        return is_missing

    def write(
        self,
        index: int,
        rows: Sequence[int],
        logits: npt.NDArray[Any],
        scores: Mapping[str, npt.NDArray[np.float64]] = {},
    ) -> None:
        """Write the logits and scores of some samples to their positions in the file.

        Args:
            index: the index of the data set in the file.
            rows: the indices of the samples in the data set, in any order.
            logits: ``[members, len(rows), classes]``.
            scores: the OOD scores on features by name, ``[members, len(rows)]`` each.
        """
        # Write the scores first, because a sample counts as complete as soon as it has logits.
        try:
            for score in self._scores:
                column = scores[score][:, :, None]  # [members, len(rows), 1]
                self._write_samples(tensor_name(index, f"scores.{score}"), rows, column)
            self._write_samples(tensor_name(index, "logits"), rows, logits)
        except OSError as error:
            raise storage_error(error, self.path) from error

    def _write_samples(self, name: str, rows: Sequence[int], columns: npt.NDArray[Any]) -> None:
        """Write the values of some samples into a tensor of the file.

        Args:
            name: the name of a tensor ``[members, N, width]``, in which the samples lie as for :func:`read_samples`.
            rows: the indices of the samples, in any order.
            columns: the values, ``[members, len(rows), width]``.
        """
        info = self._tensors.info(name)
        _, samples, width = info.shape
        values = np.ascontiguousarray(columns, dtype=LOGIT_FORMATS[info.dtype])
        start_of_tensor = self._tensors.header.data_start + info.start  # in bytes
        for member, values_of_member in enumerate(values):
            for row, values_of_sample in zip(rows, values_of_member, strict=True):
                # The tensor lies member by member, and within a member sample by sample.
                numbers_before = (member * samples + int(row)) * width
                self._file.seek(start_of_tensor + numbers_before * values.itemsize)
                self._file.write(values_of_sample)
        self._file.flush()

    def batches(self, index: int, without: Sequence[int] = ()) -> Iterator[LogitsBatch]:
        """Yield what :meth:`write` has written; the arguments are those of :func:`stored_batches`."""
        return stored_batches(self._tensors, index, self._scores, without)

    def __enter__(self) -> PredictionsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def _ids_and_labels(index: int, dataset: EvalSet) -> dict[str, bytes]:
    """Return the bytes of those tensors of a data set that are known before a model runs, by name: ids and labels.

    Args:
        index: the index of the set in the file.
        dataset: the set.
    """
    # safetensors has no texts. All ids are joined to one array of bytes, and a second array has the position at which
    # each id ends: "a" and "bc" become "abc" and [1, 3].
    encoded_ids = [sample_id.encode("utf-8", "surrogateescape") for sample_id in dataset.ids]
    id_lengths = [len(encoded_id) for encoded_id in encoded_ids]
    contents = {
        tensor_name(index, "ids"): b"".join(encoded_ids),
        tensor_name(index, "id_ends"): np.cumsum(id_lengths, dtype="<i8").tobytes(),
    }
    if dataset.labels is not None:
        contents[tensor_name(index, "labels")] = dataset.labels.astype("<i8").tobytes()
    return contents


def _has_header(path: Path) -> bool:
    """Return whether a file exists and has a header, which is written after everything else has its place."""
    try:
        with open(path, "rb", opener=open_own) as file:
            return any(file.read(8))  # the length of the header, which is never 0
    except OSError:  # usually there is no file; any other problem is reported when the file is opened for writing
        return False


def _flat(description: Mapping[str, object]) -> dict[str, object]:
    """Return a description with the entries of ``model`` moved to the top level, so that each is compared by itself."""
    flat = dict(description)
    model = flat.pop("model", None)
    return {**model, **flat} if isinstance(model, dict) else flat
