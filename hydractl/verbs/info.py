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
    said = exported.to_json()
    info = {"schema": INFO_SCHEMA, "file": str(path), "holds": EXPORT_SCHEMA, "bytes": exported.file_bytes}
    return {**info, **said, "preprocess": _readable(said["preprocess"])}


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
        entries = [
            {"site": path, "heads": _count(entry.get("heads")), "kept": entry.get("kept")}
            for path, entry in document["sites"].items()
            if isinstance(entry, dict)
        ]
        info |= _head_map(entries)
    if schema == "hydractl.circuit/1" and isinstance(document.get("removed"), list):
        info["steps"] = len(document["removed"])
        info |= _head_map(_circuit_map(document))
    if schema in ("hydractl.eval/1", "hydractl.bench/1"):
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
    sites, start = document.get("sites"), document.get("start_mask")
    first = start.get("sites") if isinstance(start, dict) else None
    result = []
    for site, heads in sites.items() if isinstance(sites, dict) else ():
        entry = first.get(site) if isinstance(first, dict) else None
        there = entry.get("kept") if isinstance(entry, dict) else list(range(_count(heads) or 0))
        kept = None
        if isinstance(there, list):
            kept = [head for head in there if type(head) is not int or (site, head) not in gone]
        result.append({"site": site, "heads": _count(heads), "kept": kept})
    return result


def _count(value: Any) -> int | None:
    """Return a number of heads as a file gives it, if it can be one."""
    return value if type(value) is int and 0 <= value <= MOST_HEADS else None


def compare(documents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Say how far the heads of several files overlap: ``hydractl.overlap/1`` of all pairs of masks of the same sites.

    Args:
        documents: what :func:`describe` gave. Members of one fused file are compared in its own document.

    Returns:
        None where no two files can be compared.
    """
    masks = [(index, named) for index, d in enumerate(documents) for named in _masks(d, str(d.get("file")))]
    if not _few_enough([mask for _, (_, mask) in masks]):
        return None
    pairs = [_pair(a, b) for (i, a), (j, b) in combinations(masks, 2) if i != j and comparable(a[1], b[1])]
    return {"schema": OVERLAP_SCHEMA, "pairs": pairs} if pairs else None


def _describe_tensors(path: Path, header: Header) -> dict[str, Any]:
    weights = [tensor for name, tensor in header.tensors.items() if not name.startswith(BESIDE)]
    info: dict[str, Any] = {
        "schema": INFO_SCHEMA,
        "file": str(path),
        "holds": "safetensors",
        "bytes": path.stat().st_size,
        "tensors": len(weights),
        "parameters": sum(t.numel for t in weights),
        "dtypes": sorted({DTYPES[t.dtype][0] for t in weights}),
    }
    document = header.description
    if document is None:
        return {**info, "note": "does not describe itself; use it with --arch"}
    info["holds"] = document.get("schema")
    if str(document.get("schema")).startswith("hydractl.predictions/"):
        return {**info, **_predictions(path)}
    if document.get("schema") == FEATURES_SCHEMA:
        return {**info, **{key: value for key, value in document.items() if key not in ("schema", *info)}}
    if document.get("schema") == TRAINING_SCHEMA:
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
    maps = [
        [{"site": p, "heads": n, "kept": list(mask.kept[p])} for p, n in mask.heads.items()]
        for mask in description.masks
    ]
    info["head_map" if len(maps) == 1 else "head_maps"] = maps[0] if len(maps) == 1 else maps
    if len(maps) > 1 and _few_enough(description.masks):
        info["overlap"] = [_pair(a, b) for a, b in combinations(_masks(info), 2)]
    elif len(maps) > 1:
        info["note"] = f"{len(maps)} members of many heads, too many to be compared"
    extra = {key: dict(value) for key, value in description.extra.items() if isinstance(value, dict)}
    info.update({key: value for key, value in extra.items() if key not in info})
    if description.seen:
        info["seen"] = [f"{entry['n']} samples ({entry['as']}) by {entry['by']}" for entry in description.seen]
    trainings = trainings_of([description])
    if trainings:
        names = [f"member {training['member']}: " if description.kind == "fused" else "" for training in trainings]
        info["training"] = [name + training_text(one) for name, one in zip(names, trainings, strict=True)]
    info["source"] = dict(description.provenance)
    return info


def _predictions(path: Path) -> dict[str, Any]:
    """Return the model and the data sets that the predictions are of."""
    found = read_predictions(path)
    members, _, classes = found.shape(0)
    sets = [f"{dataset.name} ({len(dataset.ids)} samples)" for dataset in found.sets]
    own = {"model": found.model["name"], "sha256": found.model.get("sha256"), "members": members, "classes": classes}
    return {**own, "data_sets": sets}


def _few_enough(masks: Sequence[HeadMask]) -> bool:
    """Return whether each of these masks can be compared with each other one in a moment."""
    heads = max((sum(mask.heads.values()) for mask in masks), default=0)
    return heads * math.comb(len(masks), 2) <= _MOST_COMPARED


def _masks(document: dict[str, Any], file: str = "") -> Iterator[tuple[str, HeadMask]]:
    """Yield the masks behind the head maps of a document, by name; broken ones of an untrusted file are left out."""
    if "head_maps" in document:
        named = [(f"{file} member {index}".lstrip(), entries) for index, entries in enumerate(document["head_maps"])]
    else:
        named = [(file, document.get("head_map", []))]
    for name, entries in named:
        heads = {entry["site"]: entry["heads"] for entry in entries}
        kept = {entry["site"]: entry["kept"] for entry in entries}
        if heads and all(_is_part(kept[site], count) for site, count in heads.items()):
            yield name, HeadMask(heads, {site: tuple(sorted(some)) for site, some in kept.items()})


def _is_part(kept: Any, heads: int | None) -> bool:
    """Return whether ``kept`` lists some of ``heads`` heads, each once."""
    if heads is None or not isinstance(kept, list) or not all(type(head) is int for head in kept):
        return False
    return len(set(kept)) == len(kept) and all(0 <= head < heads for head in kept)


def _pair(a: tuple[str, HeadMask], b: tuple[str, HeadMask]) -> dict[str, Any]:
    """Return two named masks as they stand in ``hydractl.overlap/1``."""
    return {"a": a[0], "b": b[0], **mask_overlap(a[1], b[1])}


def _readable(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Return preprocessing with the length of a tokenizer's vocabulary file in place of its text."""
    tokenizer = preprocess.get("tokenizer")
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("json"), str):
        return dict(preprocess)
    return {**preprocess, "tokenizer": {**tokenizer, "json": f"{len(tokenizer['json'])} characters"}}
