"""``hydractl --info``: what any file of the tool is, from its header alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydractl.checkpoint import DTYPES, Header, read_header
from hydractl.description import Description
from hydractl.errors import InputError
from hydractl.heads import parse_json

INFO_SCHEMA = "hydractl.info/1"


def describe(path: str | Path) -> dict[str, Any]:
    """What a checkpoint, a predictions file or a JSON artefact holds.

    Raises:
        InputError: for a file that is none of these.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint="give the files in it")
    with open(path, "rb") as handle:
        start = handle.read(64).lstrip()
    if start[:1] == b"{":
        return _describe_json(path)
    return _describe_tensors(path, read_header(path))


def _describe_json(path: Path) -> dict[str, Any]:
    document = parse_json(path.read_bytes(), str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("hydractl."):
        raise InputError(f"{path} is JSON, but not of hydractl (schema {schema!r})")
    info: dict[str, Any] = {"schema": INFO_SCHEMA, "file": str(path), "holds": schema}
    for key in ("arch", "objective", "algorithm", "method", "budget"):
        if key in document:
            info[key] = document[key]
    if schema == "hydractl.mask/1" and isinstance(document.get("sites"), dict):
        info["head_map"] = [
            {"site": p, "heads": e.get("heads"), "kept": e.get("kept")}
            for p, e in document["sites"].items()
            if isinstance(e, dict)
        ]
    if schema == "hydractl.circuit/1" and isinstance(document.get("removed"), list):
        info["steps"] = len(document["removed"])
        info["head_map"] = _circuit_map(document)
    if schema in ("hydractl.eval/1", "hydractl.bench/1"):
        rows = document.get("models", document.get("results", []))
        info["rows"] = [row.get("name", row.get("model")) for row in rows if isinstance(row, dict)]
    if "source" in document:
        info["source"] = document["source"]
    return info


def _circuit_map(document: dict[str, Any]) -> list[dict[str, Any]]:
    gone = {(s.get("site"), s.get("head")) for s in document["removed"] if isinstance(s, dict)}
    start = document.get("start_mask", {}).get("sites", {})
    result = []
    for site, heads in document.get("sites", {}).items():
        there = start.get(site, {}).get("kept", range(heads))
        result.append({"site": site, "heads": heads, "kept": [h for h in there if (site, h) not in gone]})
    return result


def _describe_tensors(path: Path, header: Header) -> dict[str, Any]:
    info: dict[str, Any] = {
        "schema": INFO_SCHEMA,
        "file": str(path),
        "holds": "safetensors",
        "bytes": path.stat().st_size,
        "tensors": len(header.tensors),
        "parameters": sum(t.numel for t in header.tensors.values()),
        "dtypes": sorted({DTYPES[t.dtype][0] for t in header.tensors.values()}),
    }
    document = header.description
    if document is None:
        return {**info, "note": "does not describe itself; use it with --arch"}
    info["holds"] = document.get("schema")
    if document.get("schema") == "hydractl.predictions/1":
        return {**info, "samples": len(document.get("ids", []))}
    description = Description.from_json(document, str(path))
    info.update(
        kind=description.kind,
        family=f"{description.family} {description.family_version}",
        arch=description.arch,
        layout=description.layout,
        labels=None if description.labels is None else list(description.labels),
        preprocess=_readable(description.preprocess),
    )
    if description.prompt is not None:
        info["prompt"] = list(description.prompt)
    if description.merge is not None:
        info["merge"] = list(description.merge)
    maps = [
        [{"site": p, "heads": n, "kept": list(mask.kept[p])} for p, n in mask.heads.items()]
        for mask in description.masks
    ]
    info["head_map" if len(maps) == 1 else "head_maps"] = maps[0] if len(maps) == 1 else maps
    info.update({key: dict(value) for key, value in description.extra.items() if isinstance(value, dict)})
    info["source"] = dict(description.provenance)
    return info


def _readable(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Preprocessing with the length of a tokenizer's vocabulary file in the place of its text."""
    tokenizer = preprocess.get("tokenizer")
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("json"), str):
        return dict(preprocess)
    return {**preprocess, "tokenizer": {**tokenizer, "json": f"{len(tokenizer['json'])} characters"}}
