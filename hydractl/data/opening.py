"""``open_data`` opens the data set that a SPEC names."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from hydractl.data.base import PAIRS, Dataset, reason
from hydractl.data.corrupted import take_corruption
from hydractl.data.files import EncodedImages
from hydractl.data.labels import limited, resolve_labels
from hydractl.data.part import DatasetPart, take_rows
from hydractl.data.pseudo_ood import PseudoOod
from hydractl.errors import InputError, UsageError, near_path
from hydractl.expressions.data_sets import SUPPORTED, DataSpec

_KNOWN: ContextVar[dict[tuple[object, ...], dict[str, str]] | None] = ContextVar("known", default=None)
"""What :func:`keeping_fingerprints` keeps: fingerprints by id, by where samples come from; None outside of it."""


class _Kind(NamedTuple):
    """One kind of data.

    Attributes:
        reader: the function that reads it, as ``MODULE:NAME``; the module is imported when this kind is first needed.
        samples: the :attr:`Dataset.kind` of the data it opens; None if that is only known once the data are open.
        drawn: whether all labels are read before samples are chosen, so that a limit can draw samples of every class.
            Otherwise only the first samples are read, as many as are needed.
    """

    reader: str
    samples: str | None
    drawn: bool


_KINDS = {
    "npz": _Kind("hydractl.data.arrays:read_npz", "image", drawn=True),
    "folder": _Kind("hydractl.data.files:read_folder", "image", drawn=True),
    "list": _Kind("hydractl.data.files:read_image_list", "image", drawn=True),
    "text": _Kind("hydractl.data.text:read_text", "text", drawn=False),
    "builtin": _Kind("hydractl.data.builtin:read_builtin", None, drawn=False),
    "torchvision": _Kind("hydractl.data.torchvision_sets:read_torchvision", "image", drawn=True),
    "hf": _Kind("hydractl.data.hub:read_hub_set", None, drawn=True),
    "captions": _Kind("hydractl.data.captions:read_captions", PAIRS, drawn=False),
    "memory": _Kind("hydractl.data.memory:read_memory", None, drawn=True),
    "image parquet": _Kind("hydractl.data.hub:read_image_parquet", "image", drawn=True),
}
_FILES = ("npz", "text")  # kinds that are named by a path, which must exist

_FORMS = {
    "image": "folders, .npz, .parquet, image lists, builtin:, torchvision: and hf: sets",
    "text": ".csv, .tsv and .jsonl files, each also .gz, and .parquet files, builtin:docstrings, hf: sets",
    PAIRS: "captions: files and shards",
}

_LIST_SUFFIXES = ("", ".txt", ".lst", ".list")


def open_data(
    spec: DataSpec | str,
    *,
    limit: int | None = None,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
    need_labels: bool = False,
    ignore_labels: bool = False,
    reads: Mapping[str, str] | None = None,
    on_bad: str = "error",
) -> Dataset:
    """Return a data set whose labels index the class names of a model, or its own ones.

    The query of the SPEC may ask for some of the samples (:mod:`hydractl.data.part`), for corrupted images
    (``?corruption=``), or for OOD samples made from the data (``?ood=KIND``).

    Labels are indices or names. Names are strings, class folders, or integers that index the ``classes`` of a ``.npz``
    file. They are mapped to ``labels`` by name, never by position.

    Args:
        spec: the data; a text is a SPEC, which messages name as that of ``--data``.
        limit: take only this many samples, 1 or more: the first ones, or from a set that is sorted by class a random
            draw of all classes (see :func:`hydractl.data.labels.limited`). Class names are still those of the whole
            set.
        seed: seed of that draw, and of OOD samples that are made.
        labels: the checkpoint's class names. Empty means a checkpoint without names, for which labels that are names
            are refused. None means that the data's own names define the order (training from scratch).
        label_map: maps names in the data to names in the checkpoint, where they differ. Several may map to one.
        need_labels: refuse a set without labels.
        ignore_labels: leave out labels that cannot be mapped, instead of refusing them; for out-of-distribution sets.
        reads: maps the name of each model that will see the data to what it reads: ``image``, ``text`` or
            :data:`PAIRS`.
        on_bad: what to do with a sample that cannot be read. ``error`` raises an error; ``skip`` leaves it out
            and records it in :attr:`Dataset.skipped`.

    Returns:
        The data set; its ``labels`` index its ``label_names``.

    Raises:
        UsageError: for a SPEC, setting or option that makes no sense, or a kind of data that is not supported.
        InputError: if a file does not exist, a model does not read such samples, the set is damaged or empty, or labels
            are missing or cannot be mapped.
    """
    if isinstance(spec, str):
        spec = DataSpec.of_option("--data", spec)

    # Each of these functions takes its own settings out of the query, and returns what they ask for.
    parsed, wanted_rows = take_rows(spec)
    parsed, corrupt = take_corruption(parsed)
    parsed, others = parsed.split_query(("ood", "exif"))
    ood_kind = others.get("ood")
    turns = _turns(spec, others.get("exif", "0"))

    # Read the data and map the labels. Refuse data that a model does not read, before reading if that is possible.
    kind = _KINDS[_kind_of(parsed)]
    if reads is None:
        reads = {}
    if kind.samples is not None:
        _check_models_read(parsed, kind.samples, reads)
    if wanted_rows is None:
        first = limit
    else:  # the limit applies to the chosen samples
        first = None if kind.drawn else wanted_rows.reach
    dataset, raw = pkgutil.resolve_name(kind.reader)(parsed, first)
    _share_fingerprints(dataset, parsed.kind, parsed.path, frozenset(parsed.query.items()), id(parsed.held), turns)
    if turns:
        _turn(dataset, spec)
    _check_models_read(parsed, dataset.kind, reads)
    # Choose by the labels as they stand in the data, so that the samples are the same for every model. The labels of
    # other samples are not judged, as they may be bad. Classes are those of the whole set.
    to_choose_by = raw.to_choose_by() if kind.drawn or wanted_rows is not None else None
    if wanted_rows is None:
        rows = limited(to_choose_by, len(dataset), limit, seed)
    else:
        rows = wanted_rows.chosen_indices(to_choose_by, len(dataset))
    dataset.prepare(rows)
    ids = [dataset.ids[row] for row in rows]
    indices, label_names = resolve_labels(
        raw.of_rows(rows), ids, parsed.where, labels=labels, label_map=label_map, need=need_labels, ignore=ignore_labels
    )
    if wanted_rows is not None:
        # `places` count within the part. If the part is sorted by class, they are drawn from every class, also of a set
        # whose classes are not those of the model.
        labels_of_part = None if to_choose_by is None or not kind.drawn else [to_choose_by[row] for row in rows]
        places = limited(labels_of_part, len(rows), limit, seed)
        rows = [rows[place] for place in places]
        if indices is not None:
            indices = indices[places]
    left_out = dataset.left_out

    # Apply what the settings ask for. The random numbers of a corruption depend on the place of an image in the set, of
    # which samples are chosen afterwards, or in what the limit leaves of it.
    if wanted_rows is None:
        dataset = _at(dataset, spec, rows)
    if corrupt is not None:
        dataset = corrupt(dataset)
        _share_fingerprints(dataset, spec.text, id(spec.held), seed, limit, "corrupted")
    if wanted_rows is not None:
        dataset = _at(dataset, spec, rows)
    dataset.labels = indices
    dataset.label_names = label_names
    dataset.label_hint = raw.hint if indices is None else None
    dataset.skipped = {} if on_bad == "skip" else None
    if ood_kind is not None:
        if need_labels:
            raise UsageError(
                f"{parsed.where}: OOD samples have no labels, which are needed here", hint="leave ?ood= out"
            )
        dataset = PseudoOod(dataset, ood_kind, seed)
        _share_fingerprints(dataset, spec.text, id(spec.held), seed, limit)
    dataset.ids = list(dataset.ids)
    dataset.left_out = left_out
    dataset.spec = spec.text  # the SPEC as the user wrote it, including the settings taken out above
    return dataset


def _turns(spec: DataSpec, asked: str) -> bool:
    """Return whether images are turned by their EXIF orientation, as ``?exif=`` says.

    Raises:
        UsageError: for a value other than 0 and 1.
    """
    if asked not in ("0", "1"):
        raise UsageError(
            f"{spec.where}: ?exif={asked} is neither 0 nor 1", hint="1 turns images by their EXIF orientation"
        )
    return asked == "1"


def _turn(dataset: Dataset, spec: DataSpec) -> None:
    """Let a set turn its images by their EXIF orientation.

    Raises:
        UsageError: its images are no files, which alone have one.
    """
    if not isinstance(dataset, EncodedImages):
        raise UsageError(f"{spec.where}: ?exif=1 is for images in files", hint="leave ?exif= out")
    dataset.turns = True


@contextmanager
def keeping_fingerprints() -> Iterator[None]:
    """Within the block, sets that are opened again know the fingerprints of the samples that were read before.

    For a command of many steps, each of which opens its data anew. Files must stay as they are meanwhile.
    """
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def _share_fingerprints(dataset: Dataset, *origin: object) -> None:
    """Let a set share its fingerprints with all other sets of the same origin that are opened in the block."""
    known = _KNOWN.get()
    if known is not None:
        dataset.fingerprints = known.setdefault(origin, {})


def _at(dataset: Dataset, spec: DataSpec, rows: Sequence[int]) -> Dataset:
    """Return some samples of a data set as a data set; the set itself if these are all."""
    return dataset if len(rows) == len(dataset) else DatasetPart(dataset, spec.text, rows)


def _check_models_read(spec: DataSpec, samples: str, reads: Mapping[str, str]) -> None:
    """Refuse data that a model does not read, for example texts for a model of images.

    Args:
        spec: the SPEC of the data.
        samples: the :attr:`Dataset.kind` of the data.
        reads: maps the name of each model to what it reads.

    Raises:
        InputError: naming the models.
    """
    other_models = [name for name, kind in reads.items() if kind != samples]
    if not other_models:
        return
    wanted = reads[other_models[0]]
    verb = "reads" if len(other_models) == 1 else "read"
    raise InputError(
        f"{spec.where} holds {samples}s, and {', '.join(other_models)} {verb} {wanted}s",
        hint=f"data of {wanted}s are {_FORMS[wanted]}",
    )


def _kind_of(spec: DataSpec) -> str:
    """Return the kind of data that a SPEC (the text that names a data set) names, which decides how they are read.

    - a scheme: ``hf:...`` gives ``hf``;
    - a path: by what is there, ``folder``, ``npz``, ``list`` (of images), ``text`` or ``image parquet``.

    Raises:
        InputError: if nothing is there, or nothing that can be read.
    """
    # A scheme such as `hf:` names the reader.
    is_file_by_name = spec.kind in _FILES  # its ending tells the kind, e.g. .npz
    if spec.kind in _KINDS and not is_file_by_name:
        return spec.kind

    # Anything else is a path, which must exist.
    path = spec.file
    try:
        if path.is_dir():
            return "folder"
        if not path.exists():
            nothing = f"nothing in {os.path.join(path.parent, '')} has a name like it; {SUPPORTED}"
            raise InputError(f"{spec.where}: no such file or folder", hint=near_path(path) or nothing)
        if not path.is_file():
            raise InputError(f"{spec.where}: neither a file nor a folder")
    except (OSError, ValueError) as error:  # no permission, a name that is too long, a NUL in the name
        raise InputError(f"{spec.where}: cannot look at the path: {reason(error)}") from error

    # A Parquet file holds images or texts; for other files the ending decides.
    if path.name.lower().endswith(".parquet"):
        from hydractl.data.hub import holds_images

        return "image parquet" if holds_images(str(path)) else "text"
    if is_file_by_name:
        return spec.kind
    if path.suffix.lower() in _LIST_SUFFIXES:
        return "list"
    hint = SUPPORTED
    if path.suffix.lower() == ".json":
        hint = "write an object a line: pandas.read_json(FILE).to_json('OUT.jsonl', orient='records', lines=True)"
    raise InputError(f"{spec.where}: not a kind of data set that hydractl reads", hint=hint)
