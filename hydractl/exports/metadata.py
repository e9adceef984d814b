"""The metadata of an exported file: written, and read back with checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hydractl.errors import InputError
from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, OUTPUTS, PROBABILITIES
from hydractl.exports.formats import DATA_SHA256, EXPORT_SCHEMA, FORMATS, kind_of
from hydractl.exports.graph import IMAGES, PIXELS
from hydractl.exports.shapes import GraphShapes, Shapes, Size, TensorShape
from hydractl.families import FAMILIES, get_family
from hydractl.families.reading import refused_as
from hydractl.files.checkpoint import sha256_file
from hydractl.files.description import Description
from hydractl.files.version import __version__
from hydractl.jsonio import canonical_json, parse_json, shown
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
"""Entries of a checkpoint that calibrate wrote, which stand in the metadata as they are."""

FLOAT32, UINT8, TOKENS = INPUT_KINDS = ("float32", "uint8", "tokens")
"""What a graph takes: images preprocessed in float32, images at its size in uint8, or numbers of tokens."""


def metadata_of(description: Description, inputs: list[str], macs: int, shapes: GraphShapes) -> dict[str, str]:
    """Return the metadata of an exported file, every value a text.

    Args:
        description: of the model.
        inputs: SHA-256 of the models it was made of.
        macs: multiply-adds of one sample.
        shapes: what its graph takes and gives.
    """
    labels = None
    if description.labels is not None:
        labels = list(description.labels)
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
    for key in _CHOSEN:
        metadata[key] = canonical_json(description.extra.get(key))
    fitted_on = None
    stored_score = description.extra.get("ood_score")
    if isinstance(stored_score, Mapping):
        fitted_on = stored_score.get("fitted_on")
    metadata["fitted_on"] = canonical_json(fitted_on)
    if metadata["input"] != TOKENS:
        image_format = get_family(description.family).image_format(description.preprocess)
        metadata["image"] = canonical_json(asdict(image_format))
    return metadata


def _input_kind(shapes: GraphShapes) -> str:
    """Return what a graph takes, one of ``INPUT_KINDS``, by the names of its inputs."""
    if IMAGES in shapes.inputs:
        return UINT8
    if PIXELS in shapes.inputs:
        return FLOAT32
    return TOKENS


def chosen_of(metadata: Mapping[str, str]) -> Chosen:
    """Return what ``calibrate`` had chosen for the model of an exported file.

    Raises:
        InputError: for what ``calibrate`` does not write.
    """
    extra: dict[str, Any] = {"ood_score": {"score": metadata["ood_score"]}}
    for key in _CHOSEN:
        extra[key] = parse_json(metadata[key], key)
    return Chosen.of(extra)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an exported file, which is checked but for the numbers of its weights.

    Raises:
        InputError: it cannot be read, holds what no export of hydractl holds, or does not say what it is made of.
    """
    kind = kind_of(path)
    assert kind is not None
    with refused_as(f"cannot read {path}"):
        metadata, shapes, data = FORMATS[kind].facts(path)
    hint = f"write it with export --format {kind}, of this version"
    has_needed_keys = metadata.keys() >= set(_NEEDED)
    if not has_needed_keys or metadata["schema"] != EXPORT_SCHEMA:
        raise InputError(f"{path} does not say what it is made of", hint=hint)
    problems = _metadata_problems(metadata, path)
    if not problems:  # else shapes cannot be told from them
        problems = _shape_problems(metadata, shapes, path)
    if problems:
        raise InputError(f"{path} says of itself what cannot be", hint=hint, problems=problems)
    if metadata["format"] != kind:
        raise InputError(f"{path} ends like a file of {kind} and says it is {shown(metadata['format'])}", hint=hint)
    _check_weights_beside(metadata, data, path)
    return metadata


def _check_weights_beside(metadata: Mapping[str, str], data: Sequence[Path], path: Path) -> None:
    """Refuse weights beside a file that are not those that it was written with.

    Args:
        metadata: with the digest of those weights, where there are some.
        data: the files beside the graph that it takes weights from.
        path: of the file, for messages.

    Raises:
        InputError: naming the file that they lie in.
    """
    digest = metadata.get(DATA_SHA256)
    if not data and digest is None:
        return
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
    """List each value that :func:`metadata_of` would not write, a line each."""
    problems = []
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

    try:
        GraphShapes.from_json(parse_json(metadata["shapes"], f"shapes in {path}"))
    except ValueError as error:
        problems.append(str(error))
    try:
        chosen_of(metadata)
    except InputError as error:
        problems.append(error.message)
    if metadata["input"] not in INPUT_KINDS:
        problems.append(f"input {shown(metadata['input'])}")

    preprocess = parse_json(metadata["preprocess"], f"preprocess in {path}")
    takes_images = metadata["input"] in (FLOAT32, UINT8)
    problems += _preprocess_problems(preprocess, takes_images)
    return problems


def _preprocess_problems(preprocess: object, takes_images: bool) -> list[str]:
    """List what is wrong with how samples become inputs: sizes of images, and lengths of texts that are limited."""
    if not isinstance(preprocess, dict):
        return [f"preprocess {shown(preprocess)}"]
    problems = []
    size = preprocess.get("input_size")
    if takes_images and not _are_image_sizes(size):
        problems.append(f"images of {shown(size)}")
    tokens = preprocess.get("max_length")
    if tokens is not None and not _are_sizes([tokens], _MOST_TOKENS):
        problems.append(f"texts of {shown(tokens)} tokens")
    return problems


def _shape_problems(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> list[str]:
    """List how the graph differs from what the metadata say of it, a line each.

    Where it does not, list how what they say differs from the graph of a model of such metadata.

    Args:
        metadata: checked but for the shapes.
        shapes: what the graph takes and gives.
        path: of the file, for messages.
    """
    said = GraphShapes.from_json(parse_json(metadata["shapes"], f"shapes in {path}"))
    problems = [
        *_differences_from_graph("input", said.inputs, shapes.inputs),
        *_differences_from_graph("output", said.outputs, shapes.outputs),
    ]
    if problems:
        return problems
    expected = _expected_shapes(metadata, said, path)
    return _differences_from_expected(said, expected)


def _differences_from_graph(what: str, said: Shapes, of_graph: Shapes) -> list[str]:
    """List each input, or output, that the graph has otherwise than the metadata say."""
    if list(said) != list(of_graph):
        names = ", ".join(said)
        names_in_graph = ", ".join(of_graph)
        return [f"the {what}s {names}, and the graph has {names_in_graph}"]
    problems = []
    for name, tensor in said.items():
        in_graph = of_graph[name]
        if not tensor.like(in_graph):
            problems.append(f"{name} as {tensor}, and in the graph it is {in_graph}")
    return problems


def _differences_from_expected(said: GraphShapes, expected: Shapes) -> list[str]:
    """List each input and output that is not as expected, and outputs that are others; other inputs are let pass."""
    problems = []
    all_said = {**said.inputs, **said.outputs}
    for name, tensor in all_said.items():
        if name not in expected:
            continue
        wanted = expected[name]
        if not tensor.like(wanted):
            problems.append(f"{name} as {tensor}, and it would be {wanted}")
    wanted_outputs = [name for name in expected if name in OUTPUTS]
    if list(said.outputs) != wanted_outputs:
        names = ", ".join(said.outputs)
        wanted_names = ", ".join(wanted_outputs)
        problems.append(f"the outputs {names}, and they would be {wanted_names}")
    return problems


def _expected_shapes(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> Shapes:
    """Return the inputs and outputs that a model of such metadata has, outputs in their order.

    Args:
        metadata: of the file.
        shapes: what the file says that its graph takes and gives; the number of classes is read off it.
        path: of the file, for messages.
    """
    expected = _expected_inputs(metadata, shapes, path)
    members = int(metadata["members"])
    classes = _expected_classes(metadata, shapes, path)
    chosen = chosen_of(metadata)
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
    """Return the inputs that a graph may have: of images both kinds, of which it has one; of texts all it names."""
    expected = {}
    if metadata["input"] == TOKENS:
        for name in shapes.inputs:
            expected[name] = TensorShape("int64", ("batch", "tokens"))
        return expected
    preprocess = parse_json(metadata["preprocess"], f"preprocess in {path}")
    channels, height, width = preprocess["input_size"]
    expected[PIXELS] = TensorShape("float32", ("batch", channels, height, width))
    expected[IMAGES] = TensorShape("uint8", ("batch", height, width, channels))
    return expected


def _expected_classes(metadata: Mapping[str, str], shapes: GraphShapes, path: Path) -> Size:
    """Return the number of classes: that of the labels, else that of the probabilities; ``any`` where neither says."""
    labels = parse_json(metadata["labels"], f"labels in {path}")
    if labels is not None:
        return len(labels)
    probabilities = shapes.outputs.get(PROBABILITIES)
    if probabilities is not None and probabilities.shape:
        return probabilities.shape[-1]
    return "any"


def _are_texts(values: object) -> bool:
    """Return whether this is a list of texts, or nothing."""
    if values is None:
        return True
    if not isinstance(values, list):
        return False
    return all(isinstance(value, str) for value in values)


def _are_image_sizes(sizes: object) -> bool:
    """Return whether these are channels, height and width of an image that is not absurdly large."""
    if not isinstance(sizes, list) or len(sizes) != 3:
        return False
    return _are_sizes(sizes, _MOST_PIXELS)


def _are_sizes(sizes: Sequence[object], most: int) -> bool:
    """Return whether these are positive whole numbers whose product is ``most`` or less."""
    product = 1
    for size in sizes:
        if type(size) is not int:
            return False
        if not 0 < size <= most:
            return False
        product *= size
    return product <= most
