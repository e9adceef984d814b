"""``open_data`` opens the data set of a SPEC."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hydractl.data.base import PAIRS, SUPPORTED, Dataset, Spec, parse_spec, reason
from hydractl.data.corrupted import CorruptedImages, take_corruption
from hydractl.data.labels import RawLabels, limited, resolve_labels
from hydractl.data.part import part_of, take_rows
from hydractl.data.pseudo_ood import PseudoOod, take_ood
from hydractl.errors import InputError, UsageError

Reader = Callable[..., "tuple[Dataset, RawLabels]"]

# kind -> module, function, and what its samples are; a module is imported when its kind is first met
_READERS = {
    "npz": ("hydractl.data.arrays", "read_npz", "image"),
    "folder": ("hydractl.data.files", "read_folder", "image"),
    "list": ("hydractl.data.files", "read_image_list", "image"),
    "text": ("hydractl.data.text", "read_text", "text"),
    "builtin": ("hydractl.data.builtin", "read_builtin", ""),  # known once it is open
    "torchvision": ("hydractl.data.torchvision_sets", "read_torchvision", "image"),
    "openood": ("hydractl.data.suites", "read_openood", "image"),
    "wds": ("hydractl.data.shards", "read_shards", "image"),
    "hf": ("hydractl.data.hub", "read_hub_set", ""),  # known once it is open
    "captions": ("hydractl.data.captions", "read_captions", PAIRS),
    "memory": ("hydractl.data.memory", "read_memory", ""),  # known once it is open
    "image parquet": ("hydractl.data.hub", "read_image_parquet", "image"),
}
_DRAWN = ("npz", "folder", "list", "torchvision", "openood", "hf", "image parquet", "memory")
"""Kinds whose reader takes a seed: all labels are known before a sample is read."""
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

    Returns:
        The data set; ``labels`` in the order of ``label_names``.

    Raises:
        UsageError: a SPEC, setting or option that makes no sense, or a kind of data this version does not read.
        InputError: no such file, samples that a model does not read, a damaged or empty set, labels that are missing
            or cannot be mapped.
    """
    if need_labels and ignore_labels:
        raise ValueError("need_labels and ignore_labels exclude each other")
    if on_bad not in ("error", "skip"):
        raise ValueError(f"on_bad is error or skip, not {on_bad!r}")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: at least 1 is needed")
    parsed, wanted = take_rows(parse_spec(spec, option))
    parsed, ood = take_ood(parsed)
    parsed, corruption = take_corruption(parsed)
    kind = _kind(parsed)
    module, function, samples = _READERS[kind]
    if samples:
        _check_reads(parsed, samples, reads or {})
    reader: Reader = getattr(importlib.import_module(module), function)
    first = limit if wanted is None else None  # of a part, the limit comes after it
    if kind in _DRAWN:
        dataset, raw = reader(parsed, first, seed)
    else:
        dataset, raw = reader(parsed, wanted.reach if wanted else first)
    _check_reads(parsed, dataset.kind, reads or {})
    dataset.labels, dataset.label_names = resolve_labels(
        raw, dataset.ids, parsed.where, labels=labels, label_map=label_map, need=need_labels, ignore=ignore_labels
    )
    dataset.label_hint = raw.hint
    dataset.skipped = {} if on_bad == "skip" else None
    if corruption is not None:
        dataset = CorruptedImages(dataset, *corruption)
    if wanted is not None:
        # By the labels as they stand in the data, so that every model has the same samples.
        rows = wanted.of(raw.values, len(dataset))
        own = None if dataset.labels is None or kind not in _DRAWN else dataset.labels[rows].tolist()
        dataset = part_of(dataset, spec, [rows[i] for i in limited(own, len(rows), limit, seed)])
    if ood is not None:
        if need_labels:
            raise UsageError(
                f"{parsed.where}: OOD samples have no labels, which are needed here", hint="leave ?ood= out"
            )
        dataset = PseudoOod(dataset, ood, seed)
    dataset.spec = spec  # as it was given, with what each of these adds
    return dataset


def _check_reads(spec: Spec, samples: str, reads: Mapping[str, str]) -> None:
    """Refuse texts for a model of images and the reverse, before anything is read."""
    others = [name for name, kind in reads.items() if kind != samples]
    if others:
        wanted, verb = reads[others[0]], "reads" if len(others) == 1 else "read"
        raise InputError(
            f"{spec.where} holds {samples}s, and {', '.join(others)} {verb} {wanted}s",
            hint=f"data of {wanted}s are {_FORMS[wanted]}",
        )


def _kind(spec: Spec) -> str:
    """Name of the reader for a SPEC; looks at the disk for paths."""
    if spec.kind in _READERS and spec.kind not in _FILES:
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

        return "image parquet" if holds_images(str(path)) else "text"
    if spec.kind in _FILES:
        return spec.kind
    if path.suffix.lower() in _LIST_SUFFIXES:
        return "list"
    raise InputError(f"{spec.where}: not a kind of data set that hydractl reads", hint=SUPPORTED)


def _not_found(spec: Spec, path: Path) -> InputError:
    """The error for a path that does not exist, with what may have been meant."""
    from hydractl.data.builtin import SPLITS

    folder = path.parent
    if spec.path.split("/")[0] in SPLITS:
        hint = f"did you mean builtin:{spec.path}?"
    elif not folder.is_dir():
        hint = f"the path exists up to {next(above for above in folder.parents if above.is_dir())}/"
    else:
        try:
            names = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            names = []
        near = ", ".join(difflib.get_close_matches(path.name, names, n=3, cutoff=0.5))
        hint = f"in {folder}/ there is: {near}" if near else f"nothing in {folder}/ has a name like it; {SUPPORTED}"
    return InputError(f"{spec.where}: no such file or folder", hint=hint)
