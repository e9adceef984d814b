"""Finished predictions files, read piece by piece: one, or those of several models as one ensemble.

What is damaged is refused before any logit is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError
from hydractl.evaluation.predictions.store import KINDS, SCHEMA, SetEntry, is_empty, ranges, score_tensor, tensor_names
from hydractl.files.checkpoint import FileTensors
from hydractl.files.header import Header, read_header
from hydractl.jsonio import shown

Piece = tuple[Sequence[int], npt.NDArray[Any], dict[str, npt.NDArray[np.float64]]]
"""The rows of some samples, their logits ``[members, rows, classes]``, and by name scores ``[members, rows]``."""

_HINT = "write it again with eval --predictions"


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
        """The SHA-256 of the file, as hex."""
        return self._tensors.scan().sha256

    def shape(self, index: int) -> tuple[int, int, int]:
        """Return ``(members, N, classes)`` of a set."""
        members, samples, classes = self._tensors.info(tensor_names(index)["logits"]).shape
        return members, samples, classes

    @property
    def origin(self) -> str:
        """The name of the file in messages."""
        return str(self.path)

    @property
    def scores(self) -> list[str]:
        """The OOD scores on features that it holds."""
        return list(self.model.get("feature_scores") or ())

    def piece(self, index: int, rows: range, score: str | None = None) -> npt.NDArray[Any]:
        """Return the logits ``[members, rows, classes]`` of neighbouring samples of a set, missing ones too.

        Args:
            index: of the set.
            rows: the samples.
            score: a score instead, ``[members, rows, 1]``.
        """
        name = tensor_names(index)["logits"] if score is None else score_tensor(index, score)
        members, samples, classes = self._tensors.info(name).shape
        ends = [((m * samples + rows.start) * classes, (m * samples + rows.stop) * classes) for m in range(members)]
        pieces = [self._tensors.read_piece(name, first, last) for first, last in ends]
        return np.stack([piece.numpy().reshape(len(rows), classes) for piece in pieces])

    def batches(self, index: int) -> Iterator[Piece]:
        """Yield a set in pieces.

        Samples that could not be read (``--on-bad skip``) have no logits, and are left out.
        """
        return in_pieces(self.shape(index), lambda rows, score: self.piece(index, rows, score), self.scores)


def in_pieces(
    shape: tuple[int, int, int], piece: Callable[[range, str | None], npt.NDArray[Any]], scores: Sequence[str]
) -> Iterator[Piece]:
    """Yield pieces that memory has room for, without the samples that a member has no logits of.

    Args:
        shape: ``(members, N, classes)``.
        piece: the logits of neighbouring samples, or one of their scores.
        scores: those that are kept.
    """
    for rows in ranges(shape):
        logits = piece(rows, None)
        there = ~is_empty(logits)
        if there.any():
            own = {score: piece(rows, score)[:, there, 0] for score in scores}
            yield [row for row, whole in zip(rows, there, strict=True) if whole], logits[:, there], own


def is_predictions(path: str | Path) -> bool:
    """Return whether a file describes itself as predictions; False for what is no safetensors file."""
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
    from hydractl.files.documents import PredictionsHeader, check

    path = Path(path)
    header = read_header(path)
    document = header.description or {}
    if document.get("schema") != SCHEMA:
        raise InputError(f"{path} has the schema {shown(document.get('schema'))}, expected {SCHEMA!r}")
    tensors = FileTensors(path, header)
    check(document, PredictionsHeader, f"{path} is broken", _HINT)
    sets, problems = _read_sets(document["sets"], header, tensors, document["model"].get("feature_scores") or ())
    if not problems:
        shapes = [tensors.info(tensor_names(index)["logits"]).shape for index in range(len(sets))]
        problems += _problems_between_sets([(dataset.role, dataset.name) for dataset in sets], shapes)
        labels, classes = document["model"].get("labels"), shapes[0][2]
        if labels is not None and len(labels) != classes:
            problems.append(f"its model has {len(labels)} labels and {classes} classes")
    if problems:
        raise InputError(f"{path} is broken", _HINT, problems)
    return Predictions(path, document["model"], sets, tensors)


def _read_sets(
    entries: Sequence[Mapping[str, Any]], header: Header, tensors: FileTensors, scores: Sequence[str]
) -> tuple[list[SetEntry], list[str]]:
    sets, problems = [], []
    for index, entry in enumerate(entries):
        problem = _set_problem(entry, index, header, scores)
        if problem is not None:
            problems.append(f"set {index}: {problem}")
            continue
        names = tensor_names(index)
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


def _set_problem(entry: Mapping[str, Any], index: int, header: Header, scores: Sequence[str]) -> str | None:
    """Return where the tensors of a set are not what the header says of it; None where they are."""
    names, n = tensor_names(index), entry["n"]
    logits = header.tensors.get(names["logits"])
    if logits is None or logits.dtype not in KINDS or len(logits.shape) != 3 or logits.shape[1] != n:
        return f"it has no logits of {n} samples"
    if min(logits.shape[0], logits.shape[2]) < 1:
        return "its logits have no member or no class"
    wanted: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(scores, ("F64", (logits.shape[0], n, 1)))
    wanted |= {"id_ends": ("I64", (n,)), **({"labels": ("I64", (n,))} if entry["labelled"] else {})}
    for part, (dtype, shape) in wanted.items():
        info = header.tensors.get(names.get(part) or score_tensor(index, part))
        if info is None or info.dtype != dtype or info.shape != shape:
            return f"its {part} are missing or of another shape"
    ids = header.tensors.get(names["ids"])
    return None if ids is not None and ids.dtype == "U8" and len(ids.shape) == 1 else "it has no ids"


def _problems_between_sets(sets: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[str]:
    """List what is wrong with the data sets (role and name) taken together.

    Args:
        shapes: ``(members, N, classes)`` of each.
    """
    problems = []
    if len(set(sets)) < len(sets) or [role for role, _ in sets].count("id") != 1:
        problems.append("it has no one ID set, or two sets of one name")
    for role, name in sets:
        if (role == "id") != (name == "id") or (role == "ood" and name == "edges"):
            problems.append(f"the set of the role {role} has the name {shown(name)}")
    if len({(shape[0], shape[2]) for shape in shapes}) > 1:
        problems.append("its sets are of different numbers of members or classes")
    kinds = [name.rpartition("/") for role, name in sets if role == "corruption"]
    by_kind: dict[str, set[str]] = {}
    for kind, _, severity in kinds:
        by_kind.setdefault(kind, set()).add(severity)
    if any(severities != set().union(*by_kind.values()) for severities in by_kind.values()):
        problems.append("its corruptions are of different severities")
    return problems


# --- several as one ensemble ------------------------------------------------------------------------------------------

_OWN = ("name", "sha256", "heads", "cost", "calibration", "threshold", "ood_score", "training")
"""The entries in which the models of an ensemble may differ. All else in a header decides logits, or names classes."""

_OF_ONE = ("calibration", "threshold", "ood_score")
"""The entries that were chosen for the predictions of one model alone."""

_MOST_PROBLEMS = 20


class Concatenated:
    """An ensemble of predictions files, read like one :class:`hydractl.evaluation.predictions.reading.Predictions`.

    Args:
        parts: the files, two or more; they may hold several members each.

    Attributes:
        origin: what to call it in messages.
        model: what one header would say of the ensemble.
        sets: the data sets, in the order of the first file. ``seen`` is the largest count of a part.

    Raises:
        InputError: listing the differences in samples, classes and settings.
    """

    def __init__(self, parts: Sequence[Predictions]) -> None:
        self._parts = list(parts)
        self.origin = "+".join(part.origin for part in parts)
        self._places = [[_place(part, dataset) for part in parts] for dataset in parts[0].sets]
        problems = [line for part in parts[1:] for line in _differences(parts[0], part)]
        if problems:
            raise InputError(
                f"{self.origin} are no predictions of one ensemble",
                hint="make them by the same eval, with the same data and settings",
                problems=problems[:_MOST_PROBLEMS],
            )
        self.model = _concatenated([part.model for part in parts], [part.shape(0)[0] for part in parts])
        self.sets = [
            replace(one, seen=max(part.sets[at].seen for part, at in self._of_parts(index)))
            for index, one in enumerate(parts[0].sets)
        ]

    def _of_parts(self, index: int) -> list[tuple[Predictions, int]]:
        """Return every file, and the place of a set in it."""
        places = zip(self._parts, self._places[index], strict=True)
        return [(part, at) for part, at in places if at is not None]

    def shape(self, index: int) -> tuple[int, int, int]:
        """Return ``(members, N, classes)`` of a set."""
        shapes = [part.shape(at) for part, at in self._of_parts(index)]
        return sum(members for members, _, _ in shapes), *shapes[0][1:]

    @property
    def scores(self) -> list[str]:
        """The OOD scores on features that its files hold, which are the same."""
        return self._parts[0].scores

    def batches(self, index: int) -> Iterator[Piece]:
        """Yield a set in pieces, as for one file, without the samples that a part has no logits of."""

        def piece(rows: range, score: str | None) -> npt.NDArray[Any]:
            return np.concatenate([part.piece(at, rows, score) for part, at in self._of_parts(index)])

        return in_pieces(self.shape(index), piece, self.scores)


def _place(part: Predictions, one: SetEntry) -> int | None:
    """Return where a file has a set; None where it has none of that role and name."""
    places = (i for i, other in enumerate(part.sets) if (other.role, other.name) == (one.role, one.name))
    return next(places, None)


def _differences(first: Predictions, other: Predictions) -> list[str]:
    """List where two files differ and must not."""
    problems = []
    if first.shape(0)[2] != other.shape(0)[2]:
        problems.append(f"{other.origin}: {other.shape(0)[2]} classes, not {first.shape(0)[2]}")
    for dataset in first.sets:
        at = _place(other, dataset)
        if at is None:
            problems.append(f"{other.origin}: has no set {dataset.name}")
            continue
        there = other.sets[at]
        if len(there.ids) != len(dataset.ids):
            problems.append(f"{other.origin}: {len(there.ids)} samples of {dataset.name}, not {len(dataset.ids)}")
        elif there.fingerprint != dataset.fingerprint:
            problems.append(f"{other.origin}: other samples of {dataset.name}, or in another order")
        elif there.group != dataset.group:
            problems.append(f"{other.origin}: {dataset.name} has the group {there.group}, not {dataset.group}")
    for dataset in other.sets:
        if _place(first, dataset) is None:
            problems.append(f"{first.origin}: has no set {dataset.name}")
    for key in sorted({*first.model, *other.model} - set(_OWN)):
        before, now = (_common(part.model.get(key)) for part in (first, other))
        if before != now:
            said = ["missing" if value is None else shown(value) for value in (now, before)]
            problems.append(f"{other.origin}: {key} is {said[0]}, not {said[1]}")
    return problems


def _common(value: Any) -> Any:
    """Return a value of a header without ``c``, which is each member's own choice in a probe."""
    return {key: part for key, part in value.items() if key != "c"} if isinstance(value, Mapping) else value


def _concatenated(models: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[str, Any]:
    """Return the model entry of the ensemble's header: no calibration, as none was fitted for it."""
    digests = [model.get("sha256") for model in models]
    costs = [model.get("cost") or {} for model in models]
    document = {key: value for key, value in models[0].items() if key not in _OF_ONE}
    document["sha256"] = [part for digest in digests for part in (digest if isinstance(digest, list) else [digest])]
    document["heads"] = _heads([model.get("heads") or [] for model in models])
    document["training"] = [
        {**training, "member": sum(members[:place]) + (training.get("member") or 0)}
        for place, model in enumerate(models)
        for training in model.get("training") or ()
    ]
    if any((model.get("probe") or {}).get("c") for model in models):
        document["probe"] = {**models[0]["probe"], "c": [c for model in models for c in model["probe"].get("c") or ()]}
    summed = {"params", "macs", *(costs[0].keys() & {"params_nonzero"})}
    document["cost"] = {**costs[0], **{key: _total([cost.get(key) for cost in costs]) for key in summed}}
    return document


def _heads(parts: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the heads of all members at every site; none where the sites of the models differ."""
    sites = [[{key: value for key, value in site.items() if key != "kept"} for site in part] for part in parts]
    if any(site != sites[0] for site in sites):
        return []
    each = zip(*parts, strict=True)
    return [{**same[0], "kept": [kept for site in same for kept in site["kept"]]} for same in each]


def _total(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)
