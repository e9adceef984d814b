"""``open_data`` opens the data set of a SPEC."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hydractl.data.base import PAIRS, SUPPORTED, Dataset, Spec, parse_spec, reason
from hydractl.data.corrupted import CorruptedImages, take_corruption
from hydractl.data.labels import RawLabels, limited, resolve_labels
from hydractl.data.part import ChosenRows, dataset_part, take_rows
from hydractl.data.pseudo_ood import PseudoOod, take_ood
from hydractl.errors import InputError, UsageError

_Reader = Callable[..., "tuple[Dataset, RawLabels]"]


class _ReaderPlace(NamedTuple):
    """The place of the reader of one kind of data; its module is imported when the kind is first met.

    Attributes:
        module, function: of the reader.
        samples: the :attr:`Dataset.kind` of what it opens; None: known once the data are open.
        drawn: whether it takes a seed, by which a limit draws samples; all labels are known before a sample is read.
        streams: whether it takes ``read_once``, and then keeps less in memory.
    """

    module: str
    function: str
    samples: str | None
    drawn: bool
    streams: bool = False

    def reader(self) -> _Reader:
        """Import the reader."""
        module = importlib.import_module(self.module)
        function: _Reader = getattr(module, self.function)
        return function


_READERS = {
    "npz": _ReaderPlace("hydractl.data.arrays", "read_npz", "image", drawn=True, streams=True),
    "folder": _ReaderPlace("hydractl.data.files", "read_folder", "image", drawn=True),
    "list": _ReaderPlace("hydractl.data.files", "read_image_list", "image", drawn=True),
    "text": _ReaderPlace("hydractl.data.text", "read_text", "text", drawn=False),
    "builtin": _ReaderPlace("hydractl.data.builtin", "read_builtin", None, drawn=False),
    "torchvision": _ReaderPlace("hydractl.data.torchvision_sets", "read_torchvision", "image", drawn=True),
    "openood": _ReaderPlace("hydractl.data.suites", "read_openood", "image", drawn=True),
    "wds": _ReaderPlace("hydractl.data.shards", "read_shards", "image", drawn=False),
    "hf": _ReaderPlace("hydractl.data.hub", "read_hub_set", None, drawn=True),
    "captions": _ReaderPlace("hydractl.data.captions", "read_captions", PAIRS, drawn=False),
    "memory": _ReaderPlace("hydractl.data.memory", "read_memory", None, drawn=True),
    "image parquet": _ReaderPlace("hydractl.data.hub", "read_image_parquet", "image", drawn=True),
}
_FILES = ("npz", "text")  # kinds whose path has to be there

_FORMS = {
    "image": "folders, .npz, .parquet, image lists, builtin:, torchvision:, openood: and hf: sets, wds: shards",
    "text": ".csv, .tsv and .jsonl files, each also .gz, and .parquet files, builtin:docstrings, hf: sets",
    PAIRS: "captions: files and shards",
}

_LIST_SUFFIXES = ("", ".txt", ".lst", ".list")


def open_data(
    spec: str,
    *,
    option: str = "--data",
    limit: int | None = None,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
    need_labels: bool = False,
    ignore_labels: bool = False,
    reads: Mapping[str, str] | None = None,
    on_bad: str = "error",
    read_once: bool = False,
) -> Dataset:
    """Open a data set: corrupted with ``?corruption=``, some of its samples (:mod:`hydractl.data.part`), made OOD with
    ``?ood=KIND``.

    Labels are integers (indices), or names: strings, class folders, and integers that point into a ``.npz`` file's
    ``classes``. Names are mapped to ``labels`` by name, never by position.

    Args:
        spec: what to open, see :class:`hydractl.data.base.Spec`.
        option: the option it was given to, for messages.
        limit: only so many samples, the first ones, or :func:`hydractl.data.labels.limited` of a set sorted by class;
            class names are still those of the whole set.
        seed: of that draw, and of OOD samples that are made.
        labels: the checkpoint's class names; empty for a checkpoint without names (then labels that are names are
            refused); None where the data's own names define the order (training from scratch).
        label_map: name in the data -> name in the checkpoint, for names that differ. Several may lead to one.
        need_labels: refuse a set without labels.
        ignore_labels: for out-of-distribution sets: labels that cannot be mapped are left out, not refused.
        reads: name of each model it is for -> what is read for it: ``image``, ``text`` or :data:`PAIRS`.
        on_bad: what becomes of an image that cannot be read: ``error``, or ``skip``: it is left out, and noted in
            :attr:`Dataset.skipped`.
        read_once: the samples will be read once, in their order; then no set is kept in memory for it that can be read
            from its file bit by bit.

    Returns:
        The data set; ``labels`` in the order of ``label_names``.

    Raises:
        UsageError: for a SPEC, setting or option that makes no sense, or a kind of data this version does not read.
        InputError: for a file that does not exist, samples that a model does not read, a damaged or empty set, labels
            that are missing or cannot be mapped.
    """
    if need_labels and ignore_labels:
        raise ValueError("need_labels and ignore_labels exclude each other")
    if on_bad not in ("error", "skip"):
        raise ValueError(f"on_bad is error or skip, not {on_bad!r}")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: at least 1 is needed")

    # Each of these takes its settings out of the query.
    parsed, wanted_rows = take_rows(parse_spec(spec, option))
    parsed, ood_kind = take_ood(parsed)
    parsed, corruption = take_corruption(parsed)

    place = _READERS[_reader_key(parsed)]
    if reads is None:
        reads = {}
    if place.samples is not None:  # known before anything is read
        _check_models_read(parsed, place.samples, reads)
    dataset, raw = _read_set(parsed, place, wanted_rows, limit, seed, read_once=read_once)
    _check_models_read(parsed, dataset.kind, reads)
    dataset.labels, dataset.label_names = resolve_labels(
        raw, dataset.ids, parsed.where, labels=labels, label_map=label_map, need=need_labels, ignore=ignore_labels
    )
    dataset.label_hint = raw.hint
    if on_bad == "skip":
        dataset.skipped = {}

    if corruption is not None:
        dataset = CorruptedImages(dataset, corruption.name, corruption.severity, corruption.photographs)
    if wanted_rows is not None:
        # By the labels as they stand in the data, so that every model has the same samples.
        rows = wanted_rows.places(raw.values, len(dataset))
        chosen_rows = _limited_rows(dataset, rows, limit, seed, drawn=place.drawn)
        dataset = dataset_part(dataset, spec, chosen_rows)
    if ood_kind is not None:
        if need_labels:
            raise UsageError(
                f"{parsed.where}: OOD samples have no labels, which are needed here", hint="leave ?ood= out"
            )
        dataset = PseudoOod(dataset, ood_kind, seed)
    dataset.spec = spec  # as it was given, with what each of these adds
    return dataset


def _limited_rows(dataset: Dataset, rows: Sequence[int], limit: int | None, seed: int, *, drawn: bool) -> list[int]:
    """Return those of some rows of a data set that ``--limit`` takes.

    Args:
        dataset: the whole set, with its labels.
        rows: of a part of it.
        limit: how many are wanted; None: all.
        seed: of the draw.
        drawn: whether a set sorted by class has samples drawn of every class; else the first ones are taken.
    """
    labels_of_rows = None
    if dataset.labels is not None and drawn:
        labels_of_rows = dataset.labels[rows].tolist()
    chosen = limited(labels_of_rows, len(rows), limit, seed)
    return [rows[i] for i in chosen]


def _read_set(
    spec: Spec, place: _ReaderPlace, wanted_rows: ChosenRows | None, limit: int | None, seed: int, *, read_once: bool
) -> tuple[Dataset, RawLabels]:
    """Read as much of a set as ``limit`` says; of a set that a part is taken of, as much as the part needs.

    The limit of a part applies later, to the samples of the part.

    Args:
        spec: of the whole set.
        place: of its reader.
        wanted_rows: the samples of the part; None where the whole set is wanted.
        limit: how many samples are wanted.
        seed: of their draw.
        read_once: whether the samples will be read once, in their order.
    """
    read = place.reader()
    if place.streams:
        read = partial(read, read_once=read_once)
    if wanted_rows is None:
        if place.drawn:
            return read(spec, limit, seed)
        return read(spec, limit)
    if place.drawn:
        return read(spec, None, seed)
    return read(spec, wanted_rows.reach)


def _check_models_read(spec: Spec, samples: str, reads: Mapping[str, str]) -> None:
    """Refuse data that a model does not read: texts for a model of images, and the reverse.

    Args:
        spec: of the data.
        samples: the :attr:`Dataset.kind` of the data.
        reads: name of each model -> what it reads.

    Raises:
        InputError: naming the models.
    """
    other_models = []
    for name, kind in reads.items():
        if kind != samples:
            other_models.append(name)
    if not other_models:
        return
    wanted = reads[other_models[0]]
    verb = "reads" if len(other_models) == 1 else "read"
    raise InputError(
        f"{spec.where} holds {samples}s, and {', '.join(other_models)} {verb} {wanted}s",
        hint=f"data of {wanted}s are {_FORMS[wanted]}",
    )


def _reader_key(spec: Spec) -> str:
    """Return the key of the reader for a SPEC, by its kind; for a path, by what is on the disk.

    Raises:
        InputError: where nothing is there, or nothing that can be read.
    """
    is_file_by_name = spec.kind in _FILES
    if spec.kind in _READERS and not is_file_by_name:
        return spec.kind
    path = Path(os.path.expanduser(spec.path))
    try:
        if path.is_dir():
            return "folder"
        if not path.exists():
            raise _not_found(spec, path)
        if not path.is_file():
            raise InputError(f"{spec.where}: neither a file nor a folder")
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in it
        raise InputError(f"{spec.where}: cannot look at the path: {reason(error)}") from error
    if path.name.lower().endswith(".parquet"):
        from hydractl.data.hub import holds_images

        if holds_images(str(path)):
            return "image parquet"
        return "text"
    if is_file_by_name:
        return spec.kind
    if path.suffix.lower() in _LIST_SUFFIXES:
        return "list"
    raise InputError(f"{spec.where}: not a kind of data set that hydractl reads", hint=SUPPORTED)


def _not_found(spec: Spec, path: Path) -> InputError:
    """Return the error for a path that does not exist, with what may have been meant."""
    from hydractl.data.builtin import SPLITS

    folder = path.parent
    first_part, _, _ = spec.path.partition("/")
    if first_part in SPLITS:
        hint = f"did you mean builtin:{spec.path}?"
    elif not folder.is_dir():
        hint = f"the path exists up to {_nearest_existing(folder)}/"
    else:
        near = difflib.get_close_matches(path.name, _names_in(folder), n=3, cutoff=0.5)
        hint = f"nothing in {folder}/ has a name like it; {SUPPORTED}"
        if near:
            hint = f"in {folder}/ there is: {', '.join(near)}"
    return InputError(f"{spec.where}: no such file or folder", hint=hint)


def _nearest_existing(folder: Path) -> Path:
    """Return the lowest folder above a missing one that is there."""
    for above in folder.parents:
        if above.is_dir():
            return above
    return Path("/")


def _names_in(folder: Path) -> list[str]:
    """List the names in a folder, sorted; none where it cannot be read, as they are for a hint only."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(names)
