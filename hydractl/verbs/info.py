"""``hydractl --info``: what any file of the tool is, from its header alone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

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


def describe(path: str | Path) -> dict[str, Any]:
    """Describe what a checkpoint, a predictions file or a JSON artefact holds.

    Raises:
        InputError: for a file that is none of these.
    """
    path = Path(path)
    if not os.path.exists(path):  # that of pathlib raises for a name that is too long
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
    """Describe what a published folder holds."""
    from hydractl.model.source import ModelOptions, open_source

    source = open_source(str(path), ModelOptions(bodies=True))
    info = {"schema": INFO_SCHEMA, "file": str(path), "holds": f"a folder of {source.description.family}"}
    return {**info, **describe_model(source.description)}


def _describe_export(path: Path) -> dict[str, Any]:
    """Describe an exported file by what it says; it is checked as ``bench`` checks it, and nothing in it is run."""
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
    document = parse_json(path.read_bytes(), str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("hydractl."):
        raise InputError(f"{path} is JSON, but not of hydractl (schema {shown(schema)})")
    info: dict[str, Any] = {"schema": INFO_SCHEMA, "file": str(path), "holds": schema}
    for key in ("arch", "objective", "algorithm", "method", "budget"):
        if key in document:
            info[key] = document[key]
    if schema == "hydractl.mask/1" and isinstance(document.get("sites"), dict):
        entries = []
        for site, entry in document["sites"].items():
            if isinstance(entry, dict):
                entries.append({"site": site, "heads": _count(entry.get("heads")), "kept": entry.get("kept")})
        info |= _head_map(entries)
    if schema == "hydractl.circuit/2" and isinstance(document.get("removed"), list):
        info["steps"] = len(document["removed"])
        info |= _head_map(_circuit_map(document))
    if schema in ("hydractl.eval/2", "hydractl.bench/1"):
        rows = document.get("models", document.get("results"))
        if not isinstance(rows, list):
            raise InputError(f"{path} has no list of rows, as every {schema} has")
        info["rows"] = [row.get("name", row.get("model")) for row in rows if isinstance(row, dict)]
    if "source" in document:
        info["source"] = document["source"]
    return info


def _head_map(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the heads of all sites, or a word on why they are not shown."""
    heads = sum(entry["heads"] or 0 for entry in entries)
    if heads > MOST_HEADS_OF_ALL:
        return {"note": f"{heads} heads, too many to be shown"}
    return {"head_map": entries}


def _circuit_map(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the heads that a circuit leaves; empty where the file does not say of how many."""
    steps = [step for step in document["removed"] if isinstance(step, dict)]
    # Of text and number alone: lists, which a broken file may hold, are in no set.
    gone = {(str(step.get("site")), step["head"]) for step in steps if type(step.get("head")) is int}
    sites = document.get("sites")
    if not isinstance(sites, dict):
        return []
    start = document.get("start_mask")
    sites_at_start = start.get("sites") if isinstance(start, dict) else None
    entries = []
    for site, heads in sites.items():
        entry = sites_at_start.get(site) if isinstance(sites_at_start, dict) else None
        heads_at_start = entry.get("kept") if isinstance(entry, dict) else list(range(_count(heads) or 0))
        kept = None
        if isinstance(heads_at_start, list):
            kept = [head for head in heads_at_start if type(head) is not int or (site, head) not in gone]
        entries.append({"site": site, "heads": _count(heads), "kept": kept})
    return entries


def _count(value: Any) -> int | None:
    """Return a number of heads as a file gives it; None for what can be none."""
    if type(value) is int and 0 <= value <= MOST_HEADS:
        return value
    return None


def compare(documents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Say how far the heads of several files overlap: ``hydractl.overlap/1`` of all pairs of masks of the same sites.

    Args:
        documents: what :func:`describe` gave. Members of one fused file are compared in its own document.

    Returns:
        None where no two files can be compared.
    """
    masks = []
    for index, document in enumerate(documents):
        for name, mask in _masks(document, str(document.get("file"))):
            masks.append((index, name, mask))
    if not _few_enough([mask for _, _, mask in masks]):
        return None
    pairs = []
    for (file, name, mask), (other_file, other_name, other) in combinations(masks, 2):
        if file != other_file and comparable(mask, other):
            pairs.append(_pair((name, mask), (other_name, other)))
    if not pairs:
        return None
    return {"schema": OVERLAP_SCHEMA, "pairs": pairs}


def _describe_tensors(path: Path, header: Header) -> dict[str, Any]:
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
        for key, value in document.items():
            if key != "schema":
                info.setdefault(key, value)
        return info
    if schema == TRAINING_SCHEMA:
        return {**info, **unfinished(document)}
    return {**info, **describe_model(Description.from_json(document, str(path)))}


def describe_model(description: Description) -> dict[str, Any]:
    """Describe a model by what it says."""
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
    maps = [_entries(mask) for mask in description.masks]
    if len(maps) == 1:
        info["head_map"] = maps[0]
    else:
        info["head_maps"] = maps
        if _few_enough(description.masks):
            info["overlap"] = [_pair(mask, other) for mask, other in combinations(_masks(info), 2)]
        else:
            info["note"] = f"{len(maps)} members of many heads, too many to be compared"
    for key, value in description.extra.items():
        if isinstance(value, dict):
            info.setdefault(key, dict(value))
    if description.seen:
        info["seen"] = [f"{entry['n']} samples ({entry['as']}) by {entry['by']}" for entry in description.seen]
    trainings = []
    for training in trainings_of([description]):
        member = f"member {training.member}: " if description.kind == "fused" else ""
        trainings.append(member + training_text(training))
    if trainings:
        info["training"] = trainings
    info["source"] = dict(description.provenance)
    return info


def _entries(mask: HeadMask) -> list[dict[str, Any]]:
    """Return the heads of every site as a document lists them."""
    entries = []
    for path, heads in mask.heads.items():
        entries.append({"site": path, "heads": heads, "kept": list(mask.kept[path])})
    return entries


def _predictions(path: Path) -> dict[str, Any]:
    """Return the model and the data sets that the predictions are of."""
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
    heads = max((sum(mask.heads.values()) for mask in masks), default=0)
    return heads * math.comb(len(masks), 2) <= _MOST_COMPARED


def _masks(document: dict[str, Any], file: str = "") -> Iterator[tuple[str, HeadMask]]:
    """Yield the masks behind the head maps of a document, by name; broken ones of an untrusted file are left out."""
    maps_by_name = {file: document.get("head_map", [])}
    if "head_maps" in document:
        maps_by_name = {}
        for index, entries in enumerate(document["head_maps"]):
            maps_by_name[f"{file} member {index}".lstrip()] = entries
    for name, entries in maps_by_name.items():
        heads = {entry["site"]: entry["heads"] for entry in entries}
        kept = {entry["site"]: entry["kept"] for entry in entries}
        if heads and all(_is_part(kept[site], count) for site, count in heads.items()):
            yield name, HeadMask(heads, {site: tuple(sorted(listed)) for site, listed in kept.items()})


def _is_part(kept: Any, heads: int | None) -> bool:
    """Return whether ``kept`` lists some of ``heads`` heads, each once."""
    if heads is None or not isinstance(kept, list):
        return False
    for head in kept:
        if type(head) is not int or not 0 <= head < heads:
            return False
    return len(set(kept)) == len(kept)


def _pair(a: tuple[str, HeadMask], b: tuple[str, HeadMask]) -> dict[str, Any]:
    """Return two named masks as they stand in ``hydractl.overlap/1``."""
    return {"a": a[0], "b": b[0], **mask_overlap(a[1], b[1])}


def _readable(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Return preprocessing with the length of a tokenizer's vocabulary file in place of its text."""
    tokenizer = preprocess.get("tokenizer")
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("json"), str):
        return dict(preprocess)
    return {**preprocess, "tokenizer": {**tokenizer, "json": f"{len(tokenizer['json'])} characters"}}
