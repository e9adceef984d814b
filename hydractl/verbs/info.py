"""``hydractl --info``: what any file of the tool is, from its header alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypedDict

from hydractl.errors import InputError
from hydractl.evaluation.features import FEATURES_SCHEMA
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.files.checkpoint import BESIDE
from hydractl.files.description import Description
from hydractl.files.header import DTYPES, Header, read_header
from hydractl.files.training_history import training_text, trainings_of, unfinished
from hydractl.heads.mask import MOST_HEADS, MOST_HEADS_OF_ALL, HeadMask
from hydractl.heads.overlap import comparable, mask_overlap
from hydractl.jsonio import parse_json, shown

INFO_SCHEMA = "hydractl.info/1"
TRAINING_SCHEMA = "hydractl.training/1"
OVERLAP_SCHEMA = "hydractl.overlap/1"
_MOST_COMPARED = 1 << 21
"""The most heads that are compared with each other: those of two thousand pairs of masks with a thousand heads each."""


class SiteEntry(TypedDict):
    """One site of a head map.

    In an untrusted file ``heads`` is None where it is no number of heads, and ``kept`` may be anything.
    """

    site: str
    heads: int | None
    kept: Any


def describe(path: str | Path) -> dict[str, Any]:
    """Return what a checkpoint, a predictions file, an exported file, a folder or a JSON artefact holds.

    Raises:
        InputError: for a file that is none of these.
    """
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise InputError(f"no such file: {path}")
    if path.is_dir():
        return _describe_folder(path)
    if path.suffix in (".onnx", ".pt2"):
        return _describe_export(path)
    try:
        with open(path, "rb") as handle:
            start = handle.read(64).lstrip()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if start[:1] == b"{":
        return _describe_json(path)
    return _describe_tensors(path, read_header(path))


def _describe_folder(path: Path) -> dict[str, Any]:
    """Return what a published folder holds."""
    from hydractl.model.source import ModelOptions, open_source

    source = open_source(str(path), ModelOptions(bodies=True))
    description = source.description
    info: dict[str, Any] = {"schema": INFO_SCHEMA, "file": str(path), "holds": f"a folder of {description.family}"}
    info.update(describe_model(description))
    return info


def _describe_export(path: Path) -> dict[str, Any]:
    """Return what an exported file says of itself; it is checked as ``bench`` checks it, and nothing in it is run."""
    from hydractl.exports.formats import EXPORT_SCHEMA
    from hydractl.exports.opened import exported_at

    exported = exported_at(path)
    info: dict[str, Any] = {
        "schema": INFO_SCHEMA,
        "file": str(path),
        "holds": EXPORT_SCHEMA,
        "bytes": exported.file_bytes,
    }
    info.update(exported.to_json())
    info["preprocess"] = _readable(info["preprocess"])
    return info


def _describe_json(path: Path) -> dict[str, Any]:
    """Return what a JSON artefact holds.

    Raises:
        InputError: for JSON that hydractl did not write.
    """
    document = parse_json(path.read_bytes(), str(path))
    schema = None
    if isinstance(document, dict):
        schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith("hydractl."):
        raise InputError(f"{path} is JSON, but not of hydractl (schema {shown(schema)})")

    info: dict[str, Any] = {"schema": INFO_SCHEMA, "file": str(path), "holds": schema}
    for key in ("arch", "objective", "algorithm", "method", "budget"):
        if key in document:
            info[key] = document[key]
    if schema == "hydractl.mask/1" and isinstance(document.get("sites"), dict):
        info.update(_head_map(_sites_of_mask(document)))
    if schema == "hydractl.circuit/2" and isinstance(document.get("removed"), list):
        info["steps"] = len(document["removed"])
        info.update(_head_map(_sites_of_circuit(document)))
    if schema in ("hydractl.eval/2", "hydractl.bench/1"):
        info["rows"] = _row_names(document, schema, path)
    if "source" in document:
        info["source"] = document["source"]
    return info


def _row_names(document: dict[str, Any], schema: str, path: Path) -> list[Any]:
    """Return the names of the rows of an eval or a bench.

    Raises:
        InputError: it has no list of rows.
    """
    rows = document.get("models", document.get("results"))
    if not isinstance(rows, list):
        raise InputError(f"{path} has no list of rows, as every {schema} has")
    names = []
    for row in rows:
        if isinstance(row, dict):
            names.append(row.get("name", row.get("model")))
    return names


def _head_map(sites: list[SiteEntry]) -> dict[str, Any]:
    """Return the heads of all sites as ``head_map``, or a ``note`` that they are too many to be shown."""
    heads = 0
    for site in sites:
        heads += site["heads"] or 0
    if heads > MOST_HEADS_OF_ALL:
        return {"note": f"{heads} heads, too many to be shown"}
    return {"head_map": sites}


def _sites_of_mask(document: dict[str, Any]) -> list[SiteEntry]:
    """Return the heads that a mask keeps; sites of which a broken file says nothing are left out."""
    sites: list[SiteEntry] = []
    for path, entry in document["sites"].items():
        if isinstance(entry, dict):
            heads = _head_count(entry.get("heads"))
            sites.append({"site": path, "heads": heads, "kept": entry.get("kept")})
    return sites


def _sites_of_circuit(document: dict[str, Any]) -> list[SiteEntry]:
    """Return the heads that a circuit leaves; empty where the file does not say how many heads there were."""
    heads_by_site = document.get("sites")
    if not isinstance(heads_by_site, dict):
        return []
    removed = set()
    for step in document["removed"]:
        # In a broken file a head may be a list, which no set holds.
        if isinstance(step, dict) and type(step.get("head")) is int:
            removed.add((str(step.get("site")), step["head"]))

    sites: list[SiteEntry] = []
    for path, heads in heads_by_site.items():
        count = _head_count(heads)
        at_start = _kept_at_start(document, path, count)
        kept = None
        if isinstance(at_start, list):
            kept = [head for head in at_start if type(head) is not int or (path, head) not in removed]
        sites.append({"site": path, "heads": count, "kept": kept})
    return sites


def _kept_at_start(document: dict[str, Any], path: str, heads: int | None) -> Any:
    """Return the heads of a site before the first removal: those of the mask that the circuit starts from, or all.

    In a broken file the mask may hold anything.
    """
    all_heads = list(range(heads or 0))
    mask = document.get("start_mask")
    if not isinstance(mask, dict):
        return all_heads
    sites = mask.get("sites")
    if not isinstance(sites, dict):
        return all_heads
    entry = sites.get(path)
    if not isinstance(entry, dict):
        return all_heads
    return entry.get("kept")


def _head_count(value: Any) -> int | None:
    """Return a number of heads that a file gives; None where the value cannot be one."""
    if type(value) is int and 0 <= value <= MOST_HEADS:
        return value
    return None


def compare(documents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return how far the heads of several files overlap, for all pairs of masks of the same sites.

    Args:
        documents: what :func:`describe` returned. Members of one fused file are compared in its own document.

    Returns:
        A document ``hydractl.overlap/1``; None where no two files can be compared, or the masks are too many.
    """
    masks: list[_NamedMask] = []
    for index, document in enumerate(documents):
        masks += _masks(document, str(document.get("file")), index)
    if not _few_enough([named.mask for named in masks]):
        return None
    pairs = []
    for first, second in combinations(masks, 2):
        if first.document == second.document:
            continue
        if comparable(first.mask, second.mask):
            pairs.append(_overlap(first, second))
    if not pairs:
        return None
    return {"schema": OVERLAP_SCHEMA, "pairs": pairs}


_MADE_WITH = (
    "sha256",
    "data",
    "samples",
    "prompt",
    "max_length",
    "batch_size",
    "dtype",
    "device",
    "whole_last_block",
)
"""What is told of a file of features; other keys, which a file may have for another purpose, are not."""


def _describe_tensors(path: Path, header: Header) -> dict[str, Any]:
    """Return what a safetensors file holds, by its header."""
    weights = [tensor for name, tensor in header.tensors.items() if not name.startswith(BESIDE)]
    info: dict[str, Any] = {
        "schema": INFO_SCHEMA,
        "file": str(path),
        "holds": "safetensors",
        "bytes": path.stat().st_size,
        "tensors": len(weights),
        "parameters": sum(tensor.numel for tensor in weights),
        "dtypes": sorted({DTYPES[tensor.dtype][0] for tensor in weights}),
    }
    document = header.description
    if document is None:
        return {**info, "note": "does not describe itself; use it with --arch"}
    schema = document.get("schema")
    info["holds"] = schema
    if str(schema).startswith("hydractl.predictions/"):
        return {**info, **_predictions(path)}
    if schema == FEATURES_SCHEMA:
        for key in _MADE_WITH:
            if key in document:
                info[key] = document[key]
        return info
    if schema == TRAINING_SCHEMA:
        return {**info, **unfinished(document)}
    return {**info, **describe_model(Description.from_json(document, str(path)))}


def describe_model(description: Description) -> dict[str, Any]:
    """Return what a model says of itself."""
    info: dict[str, Any] = {
        "kind": description.kind,
        "family": f"{description.family} {description.family_version}",
        "arch": description.arch,
        "layout": description.layout,
        "labels": None if description.labels is None else list(description.labels),
        "preprocess": _readable(description.preprocess),
    }
    if description.prompt is not None:
        info["prompt"] = list(description.prompt)
    if description.merge is not None:
        info["merge"] = list(description.merge)

    # Which heads it has.
    head_maps = [_site_entries(mask) for mask in description.masks]
    if len(head_maps) == 1:
        info["head_map"] = head_maps[0]
    else:
        info["head_maps"] = head_maps
        if _few_enough(description.masks):
            info["overlap"] = [_overlap(first, second) for first, second in combinations(_masks(info), 2)]
        else:
            info["note"] = f"{len(head_maps)} members of many heads, too many to be compared"

    # What it was fitted to, has seen and comes from.
    for key, value in description.extra.items():
        if isinstance(value, dict):
            info.setdefault(key, dict(value))
    if description.seen:
        info["seen"] = [f"{entry['n']} samples ({entry['as']}) by {entry['by']}" for entry in description.seen]
    trainings = []
    for training in trainings_of([description]):
        text = training_text(training)
        if description.kind == "fused":
            text = f"member {training.member}: {text}"
        trainings.append(text)
    if trainings:
        info["training"] = trainings
    info["source"] = dict(description.provenance)
    return info


def _site_entries(mask: HeadMask) -> list[SiteEntry]:
    """Return the heads of every site as a document lists them."""
    sites: list[SiteEntry] = []
    for path, heads in mask.heads.items():
        kept = list(mask.kept[path])
        sites.append({"site": path, "heads": heads, "kept": kept})
    return sites


def _predictions(path: Path) -> dict[str, Any]:
    """Return what a file of predictions says of the model and the data sets."""
    predictions = read_predictions(path)
    members, _, classes = predictions.shape(0)
    return {
        "model": predictions.model.name,
        "sha256": predictions.model.sha256,
        "members": members,
        "classes": classes,
        "data_sets": [f"{dataset.name} ({len(dataset.ids)} samples)" for dataset in predictions.sets],
    }


def _few_enough(masks: Sequence[HeadMask]) -> bool:
    """Return whether each of these masks can be compared with each other one in a moment."""
    most_heads = 0
    for mask in masks:
        heads = sum(mask.heads.values())
        most_heads = max(most_heads, heads)
    pairs = math.comb(len(masks), 2)
    return most_heads * pairs <= _MOST_COMPARED


@dataclass(frozen=True)
class _NamedMask:
    """The mask of one member.

    Attributes:
        name: the file, and the number of the member where it has several.
        mask: the heads that are kept.
        document: the index of its document among those that are compared.
    """

    name: str
    mask: HeadMask
    document: int


def _masks(document: dict[str, Any], file: str = "", index: int = 0) -> list[_NamedMask]:
    """Return the masks behind the head maps of a document; broken ones of an untrusted file are left out.

    Args:
        document: what :func:`describe` returned.
        file: begins the names.
        index: of the document.
    """
    maps_by_name = {file: document.get("head_map", [])}
    if "head_maps" in document:
        maps_by_name = {}
        for member, sites in enumerate(document["head_maps"]):
            name = f"{file} member {member}"
            maps_by_name[name.lstrip()] = sites
    masks = []
    for name, sites in maps_by_name.items():
        mask = _mask_of(sites)
        if mask is not None:
            masks.append(_NamedMask(name, mask, index))
    return masks


def _mask_of(sites: Sequence[SiteEntry]) -> HeadMask | None:
    """Return the mask of a head map; None for an empty or a broken one."""
    heads: dict[str, int] = {}
    kept: dict[str, tuple[int, ...]] = {}
    for site in sites:
        count = site["heads"]
        if count is None or not _lists_heads(site["kept"], count):
            return None
        heads[site["site"]] = count
        kept[site["site"]] = tuple(sorted(site["kept"]))
    if not heads:
        return None
    return HeadMask(heads, kept)


def _lists_heads(kept: Any, heads: int) -> bool:
    """Return whether ``kept`` lists some of ``heads`` heads, each once."""
    if not isinstance(kept, list):
        return False
    for head in kept:
        if type(head) is not int or not 0 <= head < heads:
            return False
    return len(set(kept)) == len(kept)


def _overlap(first: _NamedMask, second: _NamedMask) -> dict[str, Any]:
    """Return the overlap of two masks as an entry of ``hydractl.overlap/1``."""
    entry: dict[str, Any] = {"a": first.name, "b": second.name}
    entry.update(mask_overlap(first.mask, second.mask))
    return entry


def _readable(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Return preprocessing with the length of a tokenizer's vocabulary file in place of its text."""
    readable = dict(preprocess)
    tokenizer = preprocess.get("tokenizer")
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("json"), str):
        characters = len(tokenizer["json"])
        readable["tokenizer"] = {**tokenizer, "json": f"{characters} characters"}
    return readable
