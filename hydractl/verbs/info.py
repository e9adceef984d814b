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


def _describe_published(path: Path) -> InfoAnswer:
    """Return what a published model holds: a folder of its library, or a state dict of torch (``.pth``).

    A folder describes its model. A ``.pth`` does not, so only its tensors are told (names, shapes and number formats
    are read, no numbers), with a hint how to open it.
    """
    from hydractl.model.source import ModelOptions, arch_hint, open_source

    if path.is_dir():
        source = open_source(str(path), ModelOptions(bodies=True))
        holds = f"a folder of {source.description.family}"
        info = InfoAnswer(file=str(path), holds=holds)
        return with_model(info, source.description)

    # A state dict, whose tensors may lie in an entry of the file.
    tensors = StateDict(path)
    holds = "a state dict"
    if tensors.entry is not None:
        holds = f"a state dict, its entry {tensors.entry}"
    return InfoAnswer(
        file=str(path),
        holds=holds,
        **_tensor_facts(path, [tensors.info(name) for name in tensors.names()]),
        note=f"does not describe itself; {arch_hint(tensors)}",
    )


def _tensor_facts(path: Path, infos: Sequence[TensorInfo]) -> dict[str, Any]:
    """Return the size of a file, and what tensors are in it."""
    return {
        "bytes": path.stat().st_size,
        "tensors": len(infos),
        "parameters": sum(tensor.numel for tensor in infos),
        "dtypes": sorted({DTYPES[tensor.dtype][0] for tensor in infos}),
    }


_TOLD_OF_ARTEFACT = ("arch", "objective", "algorithm", "method", "budget")
"""The entries of a JSON artefact that are shown unchanged."""


def _describe_json(path: Path, content: bytes) -> InfoAnswer:
    """Return what a JSON file that hydractl wrote holds; which of it is shown depends on its schema.

    ======================  =================================================================
    any                     the entries of :data:`_TOLD_OF_ARTEFACT`, and ``source``
    mask                    the heads that are kept, too
    circuit                 the same, and the number of removals (steps)
    answer of eval, bench   the names of its rows
    ======================  =================================================================

    Raises:
        InputError: hydractl did not write this JSON.
    """
    # The schema, which every document of hydractl names.
    document = parse_json(content, str(path))
    schema = None
    if isinstance(document, dict):
        schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith("hydractl."):
        raise InputError(f"{path} is JSON, but not of hydractl (schema {shown(schema)})")

    told = {key: document.get(key) for key in _TOLD_OF_ARTEFACT}
    info = InfoAnswer(file=str(path), holds=schema, source=document.get("source"), **_known(told))
    # Masks and circuits: the heads that are kept.
    if schema == MaskRecord.form():
        return _with_heads(info, MaskRecord.checked(document, f"{path} is no mask").head_map)
    if schema == CircuitAnswer.form():
        circuit = CircuitHeads.checked(document, f"{path} is no circuit")
        with_steps = info.model_copy(update={"steps": len(circuit.removed)})
        return _with_heads(with_steps, circuit.head_map)
    # Answers of eval ("models") and bench ("results"): the names of the rows.
    if schema in ("hydractl.eval/2", "hydractl.bench/1"):
        rows = document.get("models", document.get("results"))
        if not isinstance(rows, list):
            raise InputError(f"{path} has no list of rows, as every {schema} has")
        # In a broken file names may be values of any type.
        names = [row.get("name", row.get("model")) for row in rows if isinstance(row, dict)]
        return info.model_copy(update={"rows": names})
    return info


def _known(facts: Mapping[str, object]) -> dict[str, Any]:
    """Return the facts that are not None."""
    return {key: value for key, value in facts.items() if value is not None}


def _with_heads(info: InfoAnswer, sites: Sequence[KeptSite]) -> InfoAnswer:
    """Add the heads of all sites (attention modules) to the answer, or a note if they are too many to be shown."""
    heads = 0
    for site in sites:
        heads += site.heads or 0
    if heads > MOST_HEADS_OF_ALL:
        return info.model_copy(update={"note": f"{heads} heads, too many to be shown"})
    return info.model_copy(update={"head_maps": [sites]})


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
    # The size of the file, and its weights.
    weights = []
    for name, tensor in header.tensors.items():
        if not name.startswith(BESIDE):
            weights.append(tensor)
    description = header.description
    schema = None
    if description is not None:
        schema = description.get("schema")
    info = InfoAnswer(
        file=str(path),
        holds="safetensors" if description is None else schema,
        **_tensor_facts(path, weights),
    )

    # What the schema decides.
    if description is None:
        from hydractl.model.source import arch_hint

        return info.model_copy(update={"note": f"does not describe itself; {arch_hint(FileTensors(path))}"})
    if str(schema).startswith("hydractl.predictions/"):
        return info.model_copy(update=_known(_prediction_facts(path)))
    if schema == TRAINING_SCHEMA:
        unfinished = UnfinishedRecord.checked(description, f"{path} is no unfinished training")
        return info.model_copy(update=_known(unfinished.facts()))
    return with_model(info, Description.from_json(description, str(path)))


def with_model(info: InfoAnswer, description: Description) -> InfoAnswer:
    """Return the answer about a file, with what the description of the model in it says.

    That is the facts about the model, the results that are stored with it, the samples it has seen, its trainings, its
    provenance, and the heads that its members keep.

    Args:
        info: the answer so far, which names the file.
        description: the description of the model, from the header of the file.
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
    drawn: dict[str, object] = {"source": dict(description.provenance), "head_maps": head_maps}
    note = None
    if len(masks) > 1:
        drawn["overlap"] = _overlaps(masks)
        if drawn["overlap"] is None:
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
    facts = {
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
    }
    results = {key: dict(value) for key, value in description.extra.items() if isinstance(value, dict)}
    return info.model_copy(update={**drawn, **_known(facts), **results})


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
    readable = dict(preprocess)
    tokenizer = preprocess.get("tokenizer")
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("json"), str):
        characters = len(tokenizer["json"])
        readable["tokenizer"] = {**tokenizer, "json": f"{characters} characters"}
    return readable
