"""The metadata of an exported file: how they are made, and how they are read back and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hydractl.errors import HydraError, InputError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, OUTPUTS, PROBABILITIES
from hydractl.exports.formats import DATA_SHA256, EXPORT_SCHEMA, FORMATS, kind_of
from hydractl.exports.graph import IMAGES, PIXELS
from hydractl.exports.shapes import GraphShapes, Shapes, Size, TensorShape
from hydractl.families import FAMILIES, get_family
from hydractl.families.config_json import Preprocessing
from hydractl.families.reading import refused_as
from hydractl.files.checkpoint import sha256_file
from hydractl.files.description import Description
from hydractl.files.version import __version__
from hydractl.jsonio import canonical_json, json_list, parse_json, shown
from hydractl.metrics.ood_scores import says_nothing
from hydractl.model.prediction import Chosen

_COUNT = re.compile(r"[0-9]{1,18}")
_MOST_PIXELS = 1 << 26
_MOST_TOKENS = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEEDED = (
    *("schema", "family", "preprocess", "macs", "members", "format", "labels", "shapes", "input"),
    *("ood_score", "threshold", "calibration", "conformal"),
)
_CHOSEN = ("threshold", "calibration", "conformal")
"""Entries of a checkpoint that ``calibrate`` wrote; they are copied into the metadata unchanged."""

FLOAT32, UINT8, TOKENS = INPUT_KINDS = ("float32", "uint8", "tokens")
"""The kinds of input of a graph: preprocessed images in float32, images of its size in uint8, or token ids."""


def metadata_of(description: Description, inputs: list[str], macs: int, shapes: GraphShapes) -> dict[str, str]:
    """Return the metadata of an exported file; every value is a text, most of them JSON.

    Args:
        description: the description of the model.
        inputs: SHA-256 of the models from which it was made.
        macs: multiply-adds for one sample.
        shapes: the inputs and outputs of the graph.
    """
    labels = json_list(description.labels)

    # What the graph is, what it takes, and how its outputs are to be read.
    metadata = {
        "schema": EXPORT_SCHEMA,
        "hydractl": __version__,
        "torch": torch.__version__.split("+")[0],
        "family": description.family,
        "arch": description.arch,
        "macs": str(macs),
        "members": str(len(description.masks)),
        "labels": json.dumps(labels, ensure_ascii=False),
        "preprocess": canonical_json(dict(description.preprocess)),
        "inputs": json.dumps(inputs),
        "input": _input_kind(shapes),
        "shapes": json.dumps(shapes.to_json()),
        "ood_score": Chosen.of(description.extra).score,
    }

    # What calibrate has chosen, e.g. a threshold; null if it has not.
    for key in _CHOSEN:
        metadata[key] = canonical_json(description.extra.get(key))

    # The data to which the OOD score was fitted.
    fitted_on = None
    stored_score = description.extra.get("ood_score")
    if isinstance(stored_score, Mapping):
        fitted_on = stored_score.get("fitted_on")
    metadata["fitted_on"] = canonical_json(fitted_on)

    # How images have to be resized and normalised.
    if metadata["input"] != TOKENS:
        image_format = get_family(description.family).image_format(description.preprocess)
        metadata["image"] = canonical_json(asdict(image_format))
    return metadata


def _input_kind(shapes: GraphShapes) -> str:
    """Return the kind of input of a graph, one of :data:`INPUT_KINDS`, judging by the names of its inputs."""
    if IMAGES in shapes.inputs:
        return UINT8
    if PIXELS in shapes.inputs:
        return FLOAT32
    return TOKENS


def chosen_of(metadata: Mapping[str, str]) -> Chosen:
    """Return the choices of ``calibrate`` for the model of an exported file.

    Raises:
        InputError: if the metadata have values that ``calibrate`` does not write.
    """
    extra: dict[str, Any] = {"ood_score": {"score": metadata["ood_score"]}}
    for key in _CHOSEN:
        extra[key] = parse_json(metadata[key], key)
    return Chosen.of(extra)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of an exported file, and check everything in the file except the values of its weights.

    Raises:
        InputError: if the file cannot be read, has something that hydractl never exports, or its metadata are missing,
            wrong, or do not agree with its graph.
    """
    kind = kind_of(path)
    assert kind is not None
    with refused_as(f"cannot read {path}"):
        metadata, graph_shapes, weight_files = FORMATS[kind].facts(path)
    hint = f"write it with export --format {kind}, of this version"
    has_needed_keys = metadata.keys() >= set(_NEEDED)
    if not has_needed_keys or metadata["schema"] != EXPORT_SCHEMA:
        raise InputError(f"{path} does not say what it is made of", hint=hint)

    # Check the values first: the expected shapes follow from them.
    value_problems = _metadata_problems(metadata, path)
    if value_problems:
        problems = value_problems
    else:
        problems = _shape_problems(metadata, graph_shapes, path)
    if problems:
        raise InputError(f"{path} says of itself what cannot be", hint=hint, problems=problems)
    if metadata["format"] != kind:
        raise InputError(f"{path} ends like a file of {kind} and says it is {shown(metadata['format'])}", hint=hint)
    _check_weights_beside(metadata, weight_files, path)
    return metadata


def _check_weights_beside(metadata: Mapping[str, str], data: Sequence[Path], path: Path) -> None:
    """Raise an error if the weights of an exported file are in a second file, and this is not the original one.

    Args:
        metadata: the metadata of the file; at :data:`DATA_SHA256` they have the digest of the second file, if the
            weights are not in the file itself.
        data: the files to which the graph refers for weights. An intact export has none or one.
        path: the file, for messages.

    Raises:
        InputError: if there are several such files, the digest is missing, or the weights have another digest.
    """
    digest = metadata.get(DATA_SHA256)
    # All weights are in the file itself.
    if not data and digest is None:
        return
    # One file needs one valid digest, and the other way round.
    is_digest = digest is not None and _SHA256.fullmatch(digest) is not None
    if len(data) != 1 or not is_digest:
        raise InputError(
            f"{path} has weights in {len(data)} files beside it, and the digest {shown(digest)} of them",
            hint="export its checkpoint again",
        )
    (weights,) = data
    if sha256_file(weights) != digest:
        raise InputError(
            f"{weights} does not hold the weights that {path} was written with",
            hint="keep both files of one export together, or export its checkpoint again",
        )


def _metadata_problems(metadata: Mapping[str, str], path: Path) -> list[str]:
    """Return one line for each value in the metadata that :func:`metadata_of` would not write.

    Args:
        metadata: metadata with all needed keys, but any values.
        path: the file, for messages.
    """
    problems = []

    # Plain values.
    for key in ("macs", "members"):
        count = metadata[key]
        if _COUNT.fullmatch(count) is None:
            problems.append(f"{key} {shown(count)}")
    if metadata["family"] not in FAMILIES.names:
        problems.append(f"the unknown family {shown(metadata['family'])}")
    for key in ("labels", "inputs"):
        values = parse_json(metadata.get(key, "null"), f"{key} in {path}")
        if not _are_texts(values):
            problems.append(f"{key} {shown(metadata[key])}")

    # Values with functions of their own to read them.
    try:
        GraphShapes.from_json(parse_json(metadata["shapes"], f"shapes in {path}"))
    except ValueError as error:
        problems.append(str(error))
    try:
        chosen_of(metadata)
    except InputError as error:
        problems.append(error.message)

    # How samples become inputs.
    if metadata["input"] not in INPUT_KINDS:
        problems.append(f"input {shown(metadata['input'])}")
    preprocess = parse_json(metadata["preprocess"], f"preprocess in {path}")
    if not isinstance(preprocess, dict):
        return [*problems, f"preprocess {shown(preprocess)}"]
    takes_images = metadata["input"] in (FLOAT32, UINT8)
    if takes_images and metadata["family"] in FAMILIES.names:
        problems += _size_problems(metadata["family"], preprocess)
    tokens = preprocess.get("max_length")
    if tokens is not None and not _are_sizes([tokens], _MOST_TOKENS):
        problems.append(f"texts of {shown(tokens)} tokens")
    return problems


def _size_problems(family: str, preprocess: Preprocessing) -> list[str]:
    """Return one line if a preprocessing does not describe images of a sensible size, else nothing.

    Args:
        family: the name of a family that is known here.
        preprocess: the object in the metadata, whose values may be anything.
    """
    try:
        size = _image_size(family, preprocess)
    except HydraError as error:
        return [error.message]
    if not _are_sizes(size, _MOST_PIXELS):
        return [f"images of {shown(size)}"]
    return []


def _image_size(family: str, preprocess: Preprocessing) -> list[int]:
    """Return channels, height and width of the images that a graph takes.

    Every library has its own entries for it, e.g. open_clip has no ``input_size`` but ``size``. So the family is asked:
    what is checked is then what its transform makes.

    Args:
        family: the name of the family.
        preprocess: the preprocessing of the model.

    Raises:
        HydraError: if the family cannot read the preprocessing.
    """
    with refused_as("the preprocessing cannot be read"):
        image_format = get_family(family).image_format(preprocess)
    return list(image_format.size)


def _shape_problems(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> list[str]:
    """Return one line for each wrong input or output, first of the graph, then of the metadata.

    First the shapes in the metadata are compared with the graph. If they agree, they are compared with the shapes that
    follow from the other metadata.

    Args:
        metadata: metadata in which everything but the shapes was checked.
        shapes: the inputs and outputs of the graph.
        path: the file, for messages.
    """
    declared = GraphShapes.from_json(parse_json(metadata["shapes"], f"shapes in {path}"))
    problems = [
        *_differences_from_graph("input", declared.inputs, shapes.inputs),
        *_differences_from_graph("output", declared.outputs, shapes.outputs),
    ]
    if problems:
        return problems
    expected = _expected_shapes(metadata, declared, path)
    return _differences_from_expected(declared, expected)


def _differences_from_graph(what: str, declared: Shapes, in_graph: Shapes) -> list[str]:
    """Return one line for each input (or output) in which metadata and graph differ.

    Args:
        what: ``input`` or ``output``, for messages.
        declared: the inputs or outputs in the metadata.
        in_graph: the inputs or outputs of the graph.
    """
    if list(declared) != list(in_graph):
        declared_names = ", ".join(declared)
        names_in_graph = ", ".join(in_graph)
        return [f"the {what}s {declared_names}, and the graph has {names_in_graph}"]
    problems = []
    for name, declared_tensor in declared.items():
        graph_tensor = in_graph[name]
        if not declared_tensor.like(graph_tensor):
            problems.append(f"{name} as {declared_tensor}, and in the graph it is {graph_tensor}")
    return problems


def _differences_from_expected(declared: GraphShapes, expected: Shapes) -> list[str]:
    """Return one line for each input or output in the metadata that differs from the expected one.

    Args:
        declared: the inputs and outputs in the metadata.
        expected: the inputs and outputs that follow from the other metadata. Inputs that are missing here are not
            checked; outputs must be exactly these, in this order.
    """
    problems = []
    all_declared = {**declared.inputs, **declared.outputs}
    for name, declared_tensor in all_declared.items():
        if name not in expected:
            continue
        expected_tensor = expected[name]
        if not declared_tensor.like(expected_tensor):
            problems.append(f"{name} as {declared_tensor}, and it would be {expected_tensor}")

    # Outputs must be exactly these, in this order.
    expected_outputs = [name for name in expected if name in OUTPUTS]
    if list(declared.outputs) != expected_outputs:
        declared_names = ", ".join(declared.outputs)
        expected_names = ", ".join(expected_outputs)
        problems.append(f"the outputs {declared_names}, and they would be {expected_names}")
    return problems


def _expected_shapes(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> Shapes:
    """Return the inputs and outputs that a graph with these metadata should have, outputs in order.

    Args:
        metadata: the metadata of the file.
        shapes: the inputs and outputs in the metadata. The names of token inputs, and the number of classes if there
            are no labels, are taken from here.
        path: the file, for messages.
    """
    expected = _expected_inputs(metadata, shapes, path)
    members = int(metadata["members"])
    classes = _expected_classes(metadata, shapes, path)
    chosen = chosen_of(metadata)

    # The outputs, in the order of the graph. Three of them exist only if they were chosen for the model, and no score
    # exists if it would say nothing about a single member.
    expected[PROBABILITIES] = TensorShape("float32", ("batch", classes))
    has_score = not says_nothing(chosen.score, members)
    if has_score:
        expected[OOD_SCORE] = TensorShape("float64", ("batch",))
    if has_score and chosen.threshold is not None:
        expected[IS_OOD] = TensorShape("bool", ("batch",))
    if chosen.conformal is not None:
        expected[CONFORMAL_SET] = TensorShape("bool", ("batch", classes))
    expected[MEMBER_LOGITS] = TensorShape("float32", (members, "batch", classes))
    return expected


def _expected_inputs(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> dict[str, TensorShape]:
    """Return the inputs that a graph with these metadata may have.

    For texts these are all inputs in ``shapes``, as token tensors. For images these are both kinds of inputs
    (preprocessed, and uint8), of which a graph has one.
    """
    expected = {}
    if metadata["input"] == TOKENS:
        for name in shapes.inputs:
            expected[name] = TensorShape("int64", ("batch", "tokens"))
        return expected
    preprocess = parse_json(metadata["preprocess"], f"preprocess in {path}")
    channels, height, width = _image_size(metadata["family"], preprocess)
    expected[PIXELS] = TensorShape("float32", ("batch", channels, height, width))
    expected[IMAGES] = TensorShape("uint8", ("batch", height, width, channels))
    return expected


def _expected_classes(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> Size:
    """Return the number of labels, or without labels the declared size of the probabilities, or else ``any``."""
    labels = parse_json(metadata["labels"], f"labels in {path}")
    if labels is not None:
        return len(labels)
    probabilities = shapes.outputs.get(PROBABILITIES)
    if probabilities is not None and probabilities.shape:
        return probabilities.shape[-1]
    return "any"


def _are_texts(values: object) -> bool:
    """Return whether a value is a list of texts, or None."""
    if values is None:
        return True
    if not isinstance(values, list):
        return False
    return all(isinstance(value, str) for value in values)


def _are_sizes(sizes: Sequence[object], most: int) -> bool:
    """Return whether all values are positive whole numbers and their product is at most ``most``."""
    product = 1
    for size in sizes:
        if type(size) is not int:
            return False
        if not 0 < size <= most:
            return False
        product *= size
    return product <= most
