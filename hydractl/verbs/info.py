"""``hydractl --info``: describe any file of the tool from its header alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from hydractl.errors import InputError, near_path
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.files.checkpoint import BESIDE, FileTensors
from hydractl.files.circuit_answer import CircuitAnswer, CircuitHeads, KeptSite, MaskRecord
from hydractl.files.description import Description
from hydractl.files.header import DTYPES, Header, TensorInfo, read_header
from hydractl.files.state_dict import StateDict, is_state_dict
from hydractl.files.training_history import UnfinishedRecord, training_text, trainings_of
from hydractl.files.verb_answers import ComparedMasks, InfoAnswer
from hydractl.heads.mask import MOST_HEADS_OF_ALL, HeadMask
from hydractl.heads.overlap import mask_overlap
from hydractl.jsonio import json_list, parse_json, read_whole, shown

TRAINING_SCHEMA = "hydractl.training/1"
_MOST_COMPARED = 1 << 21
"""The most comparisons of heads that are made: two thousand pairs of members with a thousand heads each."""


def describe(path: str | Path) -> InfoAnswer:
    """Return what a checkpoint, a predictions file, a folder, a ``.pth`` or a JSON artefact holds.

    The kind of a file is told by its ending or its first bytes. Exported models (``.onnx``, ``.pt2``) are refused.

    Raises:
        InputError: the file is none of these.
    """
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise InputError(f"no such file: {path}", hint=near_path(path))
    if path.is_dir() or is_state_dict(path):
        return _describe_published(path)
    if path.suffix in (".onnx", ".pt2"):
        from hydractl.model.source import refuse_exported

        refuse_exported(path)

    # A safetensors file starts with the length of its header, JSON with a brace.
    try:
        with open(path, "rb") as handle:
            start = handle.read(64).lstrip()
        document = read_whole(path) if start[:1] == b"{" else None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if document is not None:
        return _describe_json(path, document)
    return _describe_tensors(path, read_header(path))


def described(file: str | Path, holds: Any, facts: Mapping[str, object]) -> InfoAnswer:
    """Return the answer about a file.

    Args:
        file: its name.
        holds: the schema of what is in it, or what else it is.
        facts: what is shown of it, in this order, by the fields of the answer; those that are None are left out.
    """
    known = {key: value for key, value in facts.items() if value is not None}
    return InfoAnswer.partly(**{"file": str(file), "holds": holds, **known})


def _describe_published(path: Path) -> InfoAnswer:
    """Return what a published model holds: a folder of its library, or a state dict of torch (``.pth``).

    A folder describes its model. A ``.pth`` does not, so only its tensors are told (names, shapes and number formats
    are read, no numbers), with a hint how to open it.
    """
    from hydractl.model.source import ModelOptions, arch_hint, open_source

    if path.is_dir():
        source = open_source(str(path), ModelOptions(bodies=True))
        return described(path, f"a folder of {source.description.family}", model_facts(source.description))

    # A state dict, whose tensors may lie in an entry of the file.
    tensors = StateDict(path)
    holds = "a state dict" if tensors.entry is None else f"a state dict, its entry {tensors.entry}"
    facts = _tensor_facts(path, [tensors.info(name) for name in tensors.names()])
    return described(path, holds, {**facts, "note": f"does not describe itself; {arch_hint(tensors)}"})


def _tensor_facts(path: Path, infos: Sequence[TensorInfo]) -> dict[str, object]:
    """Return the size of a file, and what tensors are in it."""
    return {
        "bytes": path.stat().st_size,
        "tensors": len(infos),
        "parameters": sum(tensor.numel for tensor in infos),
        "dtypes": sorted({DTYPES[tensor.dtype][0] for tensor in infos}),
    }


_TOLD_OF_ARTEFACT = ("source", "arch", "objective", "algorithm", "method", "budget")
"""The entries of a JSON artefact that are shown unchanged."""


def _describe_json(path: Path, content: bytes) -> InfoAnswer:
    """Return what a JSON file that hydractl wrote holds; which of it is shown depends on its schema.

    ======================  =================================================================
    any                     the entries of :data:`_TOLD_OF_ARTEFACT`
    mask                    the heads that are kept, too
    circuit                 the same, and the number of removals (steps)
    answer of eval, bench   the names of its rows
    ======================  =================================================================

    Raises:
        InputError: hydractl did not write this JSON.
    """
    # The schema, which every document of hydractl names.
    document = parse_json(content, str(path))
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("hydractl."):
        raise InputError(f"{path} is JSON, but not of hydractl (schema {shown(schema)})")

    facts = {key: document.get(key) for key in _TOLD_OF_ARTEFACT}
    if schema == MaskRecord.form():
        facts |= _head_facts(MaskRecord.checked(document, f"{path} is no mask").head_map)
    elif schema == CircuitAnswer.form():
        circuit = CircuitHeads.checked(document, f"{path} is no circuit")
        facts |= {"steps": len(circuit.removed), **_head_facts(circuit.head_map)}
    elif schema in ("hydractl.eval/2", "hydractl.bench/1"):
        rows = document.get("models", document.get("results"))  # of eval, and of bench
        if not isinstance(rows, list):
            raise InputError(f"{path} has no list of rows, as every {schema} has")
        # In a broken file names may be values of any type.
        facts["rows"] = [row.get("name", row.get("model")) for row in rows if isinstance(row, dict)]
    return described(path, schema, facts)


def _head_facts(sites: Sequence[KeptSite]) -> dict[str, object]:
    """Return the heads of all sites (attention modules), or a note if they are too many to be shown."""
    heads = sum(site.heads or 0 for site in sites)
    if heads > MOST_HEADS_OF_ALL:
        return {"note": f"{heads} heads, too many to be shown"}
    return {"head_maps": [sites]}


def _describe_tensors(path: Path, header: Header) -> InfoAnswer:
    """Return what a safetensors file holds, from its header.

    That is its size and its weights; tensors that are stored beside the weights, such as statistics, are not counted.
    What else is shown depends on the schema in the metadata of the file:

    =====================  ==============================================
    none                   how a file of another program is opened
    predictions            the model, and the data sets
    unfinished training    how far it has come
    any other              the model that the file describes
    =====================  ==============================================
    """
    weights = [tensor for name, tensor in header.tensors.items() if not name.startswith(BESIDE)]
    facts = _tensor_facts(path, weights)
    description = header.description
    if description is None:
        from hydractl.model.source import arch_hint

        note = f"does not describe itself; {arch_hint(FileTensors(path))}"
        return described(path, "safetensors", {**facts, "note": note})
    schema = description.get("schema")
    if str(schema).startswith("hydractl.predictions/"):
        facts |= _prediction_facts(path)
    elif schema == TRAINING_SCHEMA:
        facts |= UnfinishedRecord.checked(description, f"{path} is no unfinished training").facts()
    else:
        facts |= model_facts(Description.from_json(description, str(path)))
    return described(path, schema, facts)


def model_facts(description: Description) -> dict[str, object]:
    """Return what is shown of a model, from the description in the header of its file.

    That is the facts about the model, the results that are stored with it, the samples it has seen, its trainings, its
    provenance, and the heads that its members keep. A fact that is not known is None.
    """
    # The heads that each member keeps at each site (attention layer).
    masks = description.masks
    head_maps = []
    for mask in masks:
        sites = []
        for path, heads in mask.heads.items():
            sites.append(KeptSite(site=path, heads=heads, kept=list(mask.kept[path])))
        head_maps.append(sites)

    # One member has one map; of several it is said, too, how far each two overlap, unless that takes too long.
    overlap = None
    note = None
    if len(masks) > 1:
        overlap = _overlaps(masks)
        if overlap is None:
            note = f"{len(head_maps)} members of many heads, too many to be compared"

    # Its trainings; for a fused model each line names the member.
    trainings = []
    for training in trainings_of([description]):
        text = training_text(training)
        if description.kind == "fused":
            text = f"member {training.member}: {text}"
        trainings.append(text)

    # The samples that it has seen, e.g. "500 samples (train) by finetune".
    seen = [f"{entry['n']} samples ({entry['as']}) by {entry['by']}" for entry in description.seen]

    # As JSON has it: lists in place of tuples, and no text of a vocabulary.
    return {
        "source": dict(description.provenance),
        "head_maps": head_maps,
        "overlap": overlap,
        "kind": description.kind,
        "family": f"{description.family} {description.family_version}",
        "arch": description.arch,
        "layout": description.layout,
        "labels": json_list(description.labels),
        "preprocess": _preprocess_without_vocabulary(description.preprocess),
        "prompt": json_list(description.prompt),
        "merge": json_list(description.merge),
        "note": note,
        "seen": seen or None,
        "training": trainings or None,
        # Results of whatever made it.
        **{key: dict(value) for key, value in description.extra.items() if isinstance(value, dict)},
    }


def _prediction_facts(path: Path) -> dict[str, object]:
    """Return what a file of predictions says about the model and the data sets."""
    predictions = read_predictions(path)
    return {
        "model": predictions.record.name,
        "sha256": predictions.record.sha256,
        "members": predictions.members,
        "classes": predictions.classes,
        "data_sets": [f"{dataset.name} ({len(dataset.ids)} samples)" for dataset in predictions.sets],
    }


def _overlaps(masks: Sequence[HeadMask]) -> list[ComparedMasks] | None:
    """Return how far each two members agree on the heads that are kept, and on the heads that are removed.

    None if comparing would take more than a moment: the heads of the largest member times the number of pairs are
    limited.

    Args:
        masks: the heads that each member keeps.
    """
    most_heads = max(sum(mask.heads.values()) for mask in masks)
    if most_heads * math.comb(len(masks), 2) > _MOST_COMPARED:
        return None
    pairs = []
    for (member, mask), (other, other_mask) in combinations(enumerate(masks), 2):
        overlap = mask_overlap(mask, other_mask)
        pairs.append(ComparedMasks.model_validate({"a": f"member {member}", "b": f"member {other}", **overlap}))
    return pairs


def _preprocess_without_vocabulary(preprocess: Mapping[str, object]) -> dict[str, object]:
    """Return the preprocessing with the text of a tokenizer's file, which may be megabytes, replaced by its length.

    The text stands under ``tokenizer``, ``json``; without it the preprocessing is returned as it is.
    """
    tokenizer = preprocess.get("tokenizer")
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("json"), str):
        return dict(preprocess)
    characters = len(tokenizer["json"])
    return {**preprocess, "tokenizer": {**tokenizer, "json": f"{characters} characters"}}
