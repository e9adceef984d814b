"""The member logits of one model on some data sets, in one safetensors file that is filled batch by batch.

The file has its final size from the beginning, and its logits are not numbers until they are computed. So a run that
was killed goes on with the rows that are missing, and what it leaves has the bytes of the unbroken run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.atomic import storage_error
from hydractl.checkpoint import DTYPES, FileTensors, Header, TensorInfo, header_bytes, read_header
from hydractl.errors import InputError
from hydractl.heads import shown
from hydractl.predictions.model import model_problems, set_problems

SCHEMA = "hydractl.predictions/2"
_BLOCK_BYTES = 1 << 22
_KINDS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_EMPTY = 0xFF
"""Every byte of a logit that has not been computed: a NaN, which no model may answer."""


@dataclass(frozen=True)
class SetEntry:
    """One data set of a predictions file.

    Attributes:
        name: ``id``, ``val``, or the name of an OOD set.
        role: ``id``, ``ood``, ``val``, ``val_ood`` or ``corruption``.
        group: ``near``, ``far`` or None.
        ids: one for each sample.
        labels: int64 ``[N]``, None where unlabelled.
        fingerprint: of the data set.
        seen: how many of its samples the model had seen before.
    """

    name: str
    role: str
    group: str | None
    ids: Sequence[str]
    labels: npt.NDArray[np.int64] | None
    fingerprint: str
    seen: int = 0

    def to_json(self) -> dict[str, Any]:
        """What the header says of it."""
        own = {"name": self.name, "role": self.role, "group": self.group, "n": len(self.ids)}
        return {**own, "fingerprint": self.fingerprint, "labelled": self.labels is not None, "seen": self.seen}


def _names(index: int) -> dict[str, str]:
    return {part: f"sets.{index}.{part}" for part in ("logits", "labels", "ids", "id_ends")}


class PredictionsWriter:
    """A predictions file in the making.

    Args:
        path: of the unfinished file.
        model: what the header says of the model; what decides the logits must be in it.
        sets: the data sets.
        members, classes: shape of the logits ``[members, N, classes]``.
        kind: ``F32`` or ``F64``.
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
        resume: bool = False,
    ) -> None:
        self.path, self._sets = path, list(sets)
        self._description = {"schema": SCHEMA, "model": dict(model), "sets": [one.to_json() for one in sets]}
        self._infos: dict[str, TensorInfo] = {}
        self._fixed: dict[str, bytes] = {}
        for index, one in enumerate(sets):
            self._infos[_names(index)["logits"]] = TensorInfo(kind, (members, len(one.ids), classes))
            self._add_fixed(index, one)
        self._head, order = header_bytes(self._infos, self._description)
        self._starts: dict[str, int] = {}
        position = len(self._head)
        for name in order:
            self._starts[name] = position
            position += self._infos[name].nbytes
        self._kind = _KINDS[kind]
        try:
            self.resumed = resume and _begun(path)
            if self.resumed:
                _check_same(path, self._description)
            self._file = open(path, "r+b" if self.resumed else "w+b")  # noqa: SIM115 - closed by close()
            if not self.resumed:
                self._fill(order)
        except OSError as error:
            if not _begun(path):  # nothing has been computed for it
                path.unlink(missing_ok=True)
            raise storage_error(error, path) from error

    def _add_fixed(self, index: int, one: SetEntry) -> None:
        names = _names(index)
        encoded = [text.encode("utf-8", "surrogateescape") for text in one.ids]
        ends = np.cumsum([len(text) for text in encoded], dtype="<i8")
        values = {"ids": np.frombuffer(b"".join(encoded), dtype=np.uint8), "id_ends": ends}
        if one.labels is not None:
            values["labels"] = one.labels.astype("<i8")
        for part, array in values.items():
            kind = "U8" if part == "ids" else "I64"
            self._infos[names[part]] = TensorInfo(kind, array.shape)
            self._fixed[names[part]] = array.tobytes()

    def _fill(self, order: Sequence[str]) -> None:
        # The header comes last: a file without one was stopped before it had its size, and is begun anew.
        self._file.seek(len(self._head))
        for name in order:
            if name in self._fixed:
                self._file.write(self._fixed[name])
                continue
            left = self._infos[name].nbytes
            while left:
                count = min(left, _BLOCK_BYTES)
                self._file.write(bytes([_EMPTY]) * count)
                left -= count
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        self._file.write(self._head)
        self._file.flush()
        os.fsync(self._file.fileno())

    def missing(self, index: int) -> npt.NDArray[np.bool_]:
        """Which samples of a set have no logits yet, ``[N]``."""
        info = self._infos[_names(index)["logits"]]
        members, samples, classes = info.shape
        found = np.zeros(samples, dtype=np.bool_)
        row = classes * self._kind.itemsize
        step = max(1, _BLOCK_BYTES // row)
        for member in range(members):
            for start in range(0, samples, step):
                count = min(step, samples - start)
                position = self._starts[_names(index)["logits"]] + (member * samples + start) * row
                raw = np.frombuffer(os.pread(self._file.fileno(), count * row, position), dtype=np.uint8)
                values = raw.reshape(count, classes, self._kind.itemsize)
                found[start : start + count] |= (values == _EMPTY).all(axis=2).any(axis=1)
        return found

    def write(self, index: int, rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        """The logits ``[members, len(rows), classes]`` of some samples of a set."""
        _, samples, classes = self._infos[_names(index)["logits"]].shape
        row = classes * self._kind.itemsize
        start = self._starts[_names(index)["logits"]]
        order = np.argsort(np.asarray(rows), kind="stable")
        values = np.ascontiguousarray(logits[:, order], dtype=self._kind)
        ordered = np.asarray(rows)[order]
        # Samples that follow each other are written together.
        breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
        for run in np.split(np.arange(len(ordered)), breaks):
            for member in range(len(values)):
                position = start + (member * samples + int(ordered[run[0]])) * row
                self._write_at(values[member, run].tobytes(), position)

    def read(self, index: int, rows: Sequence[int]) -> npt.NDArray[Any]:
        """What :meth:`write` wrote of some samples, ``[members, len(rows), classes]``."""
        members, samples, classes = self._infos[_names(index)["logits"]].shape
        row, start = classes * self._kind.itemsize, self._starts[_names(index)["logits"]]
        found = np.empty((members, len(rows), classes), dtype=self._kind)
        for member in range(members):
            for place, sample in enumerate(rows):
                raw = os.pread(self._file.fileno(), row, start + (member * samples + int(sample)) * row)
                found[member, place] = np.frombuffer(raw, self._kind)
        return found

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
    """Whether there is an unfinished file that had got its size and its header."""
    try:
        with open(path, "rb") as file:
            return any(file.read(8))
    except OSError:
        return False


def _check_same(path: Path, description: Mapping[str, Any]) -> None:
    """Whether an unfinished file is of the same model, data and settings."""
    there = read_header(path).description or {}
    if there == description:
        return
    problems = []
    for key in ("model", "sets", "schema"):
        before, now = there.get(key), description[key]
        if key == "model" and isinstance(before, dict):
            problems += [
                f"{name}: {shown(before.get(name))} in the file, {shown(now.get(name))} now"
                for name in dict.fromkeys([*now, *before])
                if before.get(name) != now.get(name)
            ]
        elif before != now:
            problems.append(f"{key}: {shown(before)} in the file, {shown(now)} now")
    raise InputError(
        f"{path} holds unfinished predictions of other settings",
        hint="give the settings it was begun with, or leave --resume out to begin anew",
        problems=problems,
    )


@dataclass
class Predictions:
    """A finished predictions file.

    Attributes:
        path: where it is.
        model: what the header says of the model.
        sets: its data sets, their ids and labels read.
    """

    path: Path
    model: Mapping[str, Any]
    sets: list[SetEntry]
    _tensors: FileTensors = field(repr=False)

    @property
    def sha256(self) -> str:
        """Of the file."""
        return self._tensors.scan().sha256

    def shape(self, index: int) -> tuple[int, int, int]:
        """``(members, N, classes)`` of a set."""
        members, samples, classes = self._tensors.info(_names(index)["logits"]).shape
        return members, samples, classes

    def batches(self, index: int) -> Iterator[tuple[Sequence[int], npt.NDArray[Any]]]:
        """The logits of a set in pieces: the rows, and ``[members, rows, classes]``.

        Samples that could not be read (``--on-bad skip``) have no logits, and are left out.
        """
        members, samples, classes = self.shape(index)
        name = _names(index)["logits"]
        item = DTYPES[self._tensors.info(name).dtype][1]
        step = max(1, _BLOCK_BYTES // (members * classes * item))
        for start in range(0, samples, step):
            rows = range(start, min(samples, start + step))
            ends = [((m * samples + rows.start) * classes, (m * samples + rows.stop) * classes) for m in range(members)]
            pieces = [self._tensors.read_piece(name, first, last) for first, last in ends]
            logits = np.stack([piece.numpy().reshape(len(rows), classes) for piece in pieces])
            there = ~_is_empty(logits)
            if there.all():
                yield rows, logits
            elif there.any():
                yield [row for row, found in zip(rows, there, strict=True) if found], logits[:, there]


def _is_empty(logits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which samples of ``[members, N, classes]`` have a logit that was never written, ``[N]``."""
    raw = np.ascontiguousarray(logits).view(np.uint8).reshape(*logits.shape, logits.itemsize)
    return (raw == _EMPTY).all(axis=3).any(axis=(0, 2))


def is_predictions(path: str | Path) -> bool:
    """Whether a file describes itself as predictions; False for what is no safetensors file."""
    if not str(path).endswith((".st", ".safetensors")) or not os.path.isfile(path):
        return False
    try:
        return str((read_header(path).description or {}).get("schema")).startswith("hydractl.predictions/")
    except InputError:
        return False


def read_predictions(path: str | Path) -> Predictions:
    """Open a predictions file; its logits are read later.

    Raises:
        InputError: for a file of another kind or version, or one whose parts do not fit each other.
    """
    path = Path(path)
    header = read_header(path)
    document = header.description or {}
    if document.get("schema") != SCHEMA:
        raise InputError(f"{path} has the schema {shown(document.get('schema'))}, expected {SCHEMA!r}")
    tensors = FileTensors(path, header)
    sets, problems = _read_sets(document, header, tensors)
    if not problems:
        shapes = [tensors.info(_names(index)["logits"]).shape for index in range(len(sets))]
        problems += set_problems([(one.role, one.name) for one in sets], shapes)
        problems += model_problems(document.get("model"), shapes[0][2])
    if problems:
        raise InputError(f"{path} is broken", hint="write it again with eval --predictions", problems=problems)
    return Predictions(path, document["model"], sets, tensors)


def _read_sets(document: Mapping[str, Any], header: Header, tensors: FileTensors) -> tuple[list[SetEntry], list[str]]:
    entries = document.get("sets")
    if not isinstance(entries, list) or not entries:
        return [], ["it lists no data sets"]
    sets, problems = [], []
    for index, entry in enumerate(entries):
        problem = _set_problem(entry, index, header)
        if problem is not None:
            problems.append(f"set {index}: {problem}")
            continue
        names = _names(index)
        ends = tensors.read(names["id_ends"]).numpy()
        raw = tensors.read(names["ids"]).numpy().tobytes()
        if (np.diff(ends, prepend=0) < 0).any() or (len(ends) and ends[-1] != len(raw)):
            problems.append(f"set {index}: its ids are broken")
            continue
        starts = [0, *ends[:-1].tolist()]
        ids = [raw[a:b].decode("utf-8", "surrogateescape") for a, b in zip(starts, ends.tolist(), strict=True)]
        labels = tensors.read(names["labels"]).numpy() if entry["labelled"] else None
        classes = header.tensors[names["logits"]].shape[2]
        if labels is not None and len(labels) and not (labels.min() >= 0 and labels.max() < classes):
            problems.append(f"set {index}: a label is outside 0..{classes - 1}")
        own = {key: entry[key] for key in ("name", "role", "group", "fingerprint", "seen")}
        sets.append(SetEntry(**own, ids=ids, labels=labels))
    return sets, problems


_FORM: dict[str, Any] = {
    "name": str,
    "role": str,
    "group": (str, type(None)),
    "n": int,
    "fingerprint": str,
    "labelled": bool,
    "seen": int,
}


def _set_problem(entry: Any, index: int, header: Header) -> str | None:
    """What is wrong with what the header says of a set; None where nothing is."""
    if not isinstance(entry, dict) or any(not isinstance(entry.get(key, ...), kind) for key, kind in _FORM.items()):
        return "its entry is malformed"
    if entry["group"] not in ("near", "far", None):
        return f"it has the group {shown(entry['group'])}"
    names, n = _names(index), entry["n"]
    logits = header.tensors.get(names["logits"])
    if logits is None or logits.dtype not in _KINDS or len(logits.shape) != 3 or logits.shape[1] != n:
        return f"it has no logits of {n} samples"
    if min(logits.shape[0], logits.shape[2]) < 1:
        return "its logits have no member or no class"
    wanted = {"id_ends": ("I64", (n,)), **({"labels": ("I64", (n,))} if entry["labelled"] else {})}
    for part, (dtype, shape) in wanted.items():
        info = header.tensors.get(names[part])
        if info is None or info.dtype != dtype or info.shape != shape:
            return f"its {part} are missing or of another shape"
    ids = header.tensors.get(names["ids"])
    return None if ids is not None and ids.dtype == "U8" and len(ids.shape) == 1 else "it has no ids"
