"""The metadata of an exported file: what it is made of, takes and gives, for the programs that run it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import torch

from hydractl.exports.formats import EXPORT_SCHEMA
from hydractl.exports.graph import IMAGES, PIXELS, GraphShapes
from hydractl.families import get_family
from hydractl.files.description import Description
from hydractl.files.version import __version__
from hydractl.jsonio import canonical_json, json_list
from hydractl.model.prediction import Chosen

_CHOSEN = ("threshold", "calibration", "conformal")
"""Entries of a checkpoint that ``calibrate`` wrote; they are copied into the metadata unchanged."""


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
        "shapes": json.dumps(shapes),
        "ood_score": Chosen.of(description.extra).score,
    }

    # What calibrate has chosen, e.g. a threshold; null if it has not.
    for key in _CHOSEN:
        metadata[key] = canonical_json(description.extra.get(key))

    # The data to which the OOD score was fitted; null for a score that is fitted to none.
    fitted_on = None
    stored_score = description.extra.get("ood_score")
    if isinstance(stored_score, Mapping):
        fitted_on = stored_score.get("fitted_on")
    metadata["fitted_on"] = canonical_json(fitted_on)

    # How images have to be resized and normalised.
    if metadata["input"] != "tokens":
        image_format = get_family(description.family).image_format(description.preprocess)
        metadata["image"] = canonical_json(asdict(image_format))
    return metadata


def _input_kind(shapes: GraphShapes) -> str:
    """Return the kind of input of a graph, judging by the names of its inputs.

    Returns:
        ``float32`` for preprocessed images, ``uint8`` for images of the model's size, or ``tokens`` for texts.
    """
    if IMAGES in shapes["inputs"]:
        return "uint8"
    if PIXELS in shapes["inputs"]:
        return "float32"
    return "tokens"
