"""Published folders of transformers: strictly read, and shown under the library's present names."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from hydractl.errors import InputError
from hydractl.families.config_json import LibraryConfig, Preprocessing
from hydractl.families.hf import clip, dinov3
from hydractl.families.hf.architectures import (
    TWO_TOWERS,
    class_name,
    implementation,
    is_decoder,
    quiet,
    towers_of,
    without_traces,
)
from hydractl.families.hf.decoders import longest_text_of
from hydractl.families.hf.images import image_preprocess
from hydractl.families.hf.texts import text_preprocess
from hydractl.families.reading import refused_as
from hydractl.files.checkpoint import DictTensors, TensorSource
from hydractl.files.header import TensorInfo, torch_dtype
from hydractl.jsonio import shown

_NEVER = (
    ("auto_map", "code of its own", "where its class is one of transformers itself, remove auto_map from config.json"),
    ("quantization_config", "quantized weights", "transformers writes plain ones: model.dequantize(), save_pretrained"),
)
# The default image processor of each model type that reads images.
_PROCESSORS = {
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "swin": "ViTImageProcessor",
    "swinv2": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "dinov3_vit": "DINOv3ViTImageProcessor",
    "clip": "CLIPImageProcessor",
    "metaclip_2": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
    "siglip2": "Siglip2ImageProcessor",
    "beit": "BeitImageProcessor",
    "data2vec-vision": "BeitImageProcessor",
}
# How the names of what a body comes with start, its pooler included where a classifier of the library has none.
_OTHER_TASKS = (
    r"(cls|lm_head|(lm|mask)_predictions|vocab_\w+|predictions|discriminator_predictions|generator_\w+|qa_outputs|decoder|classifier|"
    r"(\w+\.)?pooler)\."
)


def kept_config(published: LibraryConfig, origin: str) -> dict[str, object]:
    """Return the configuration of a folder as a checkpoint keeps it: without labels and traces of who wrote it.

    Args:
        published: the ``config.json`` of the folder.
        origin: the folder, for messages.

    Returns:
        With the name of the classifier as its ``architectures``, and the number of its classes as ``num_labels``: 0 for
        a body, an encoder that has no classifier yet; a model of two towers has neither.

    Raises:
        InputError: for code, quantized weights, and a class whose heads cannot be taken apart.
    """
    for key, description, hint in _NEVER:
        if published.get(key):
            raise InputError(f"{origin} comes with {description} ({key}), which hydractl never uses", hint=hint)
    config = without_traces(published)
    name = class_name(config)
    if name in TWO_TOWERS:
        return config
    is_body = config["architectures"] != [name] or name == dinov3.NAME  # perhaps with the head of another task
    if is_body:
        config["architectures"] = [name]
        config["num_labels"] = 0
    if "num_labels" not in config:
        labels = published.get("id2label")
        if isinstance(labels, Mapping):
            config["num_labels"] = len(labels)
        else:  # the library's own default, where a file says nothing
            config["num_labels"] = getattr(transformers, name).config_class().num_labels
    return config


def converted_weights(weights: TensorSource, folder: Path, model: Any) -> tuple[DictTensors, list[str]]:
    """Read weights by the library itself, under its present names, in the dtypes of the file.

    Args:
        weights: of the folder, whose names may be older ones.
        folder: of the weights.
        model: of the library, on the meta device: it has the names and shapes that are expected.

    Returns:
        The weights by the library's present names; and for a body, the names in the file of what belongs to the head of
        another task and is left out.

    Raises:
        InputError: listing every tensor that is missing, unexpected or of another shape.
    """
    infos = {name: weights.info(name) for name in weights.names()}
    dtypes_in_file = {info.dtype for info in infos.values()}
    is_body = not model.config.num_labels
    loaded, report = _read_by_library(folder, model, is_body, wide="F64" in dtypes_in_file)
    expected = set(model.state_dict())
    missing = set(report["missing_keys"])
    unexpected = set(report["unexpected_keys"])
    left_out: list[str] = []
    if is_body:
        missing &= expected  # it lacks the classifier that the library has made for it
        left_out = sorted(name for name in unexpected if re.match(_OTHER_TASKS, name))
    problems = _loading_problems(missing, unexpected - set(left_out), report)
    if problems:
        raise InputError(
            f"{folder} does not hold the weights of {type(model).__name__}",
            problems=problems[:40],
        )
    tensors = {}
    for name, tensor in loaded.state_dict().items():
        if name not in expected:
            continue
        if len(dtypes_in_file) == 1:
            dtype = torch_dtype(next(iter(infos.values())))
        else:
            dtype = _dtype_in_file(name, tensor, loaded, infos)
        tensors[name] = tensor.to(dtype)
    return DictTensors(tensors), left_out


def _read_by_library(folder: Path, model: Any, is_body: bool, wide: bool) -> tuple[Any, Any]:
    """Return the library's model of the weights in a folder, and its report on the names that it met.

    Args:
        folder: of the weights.
        model: of the same class and configuration.
        is_body: whether it has no classifier, which no class of the library lacks.
        wide: whether float32 does not hold every number of the file exactly.
    """
    config = copy.deepcopy(model.config)
    if is_body:
        config.num_labels = 2
    # The library draws what is missing; the caller's own random numbers go on as if it had not.
    with refused_as(f"transformers cannot read the weights in {folder}"), quiet(), torch.random.fork_rng(devices=[]):
        return type(model).from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float64 if wide else torch.float32,
            attn_implementation=implementation(type(model)),
            ignore_mismatched_sizes=True,  # so that they are reported, all of them
            output_loading_info=True,
        )


def _loading_problems(missing: Iterable[str], unexpected: Iterable[str], report: Any) -> list[str]:
    """List what is wrong with the tensors that the library read, a line each.

    Args:
        missing: names of tensors that the model has and the file has not.
        unexpected: the reverse.
        report: of the library, with ``mismatched_keys``: name, shape in the file and expected shape of each tensor.
    """
    problems = []
    for name in sorted(missing):
        problems.append(f"missing tensor {shown(name, 200)}")
    for name in sorted(unexpected):
        problems.append(f"unexpected tensor {shown(name, 200)}")
    for name, shape, expected in sorted(report["mismatched_keys"]):
        problems.append(f"tensor {shown(name, 200)} is {list(shape)}, expected {list(expected)}")
    for message in report.get("error_msgs", ()):
        problems.append(shown(message, 200))
    return problems


def _dtype_in_file(name: str, tensor: Tensor, loaded: Any, infos: Mapping[str, TensorInfo]) -> torch.dtype:
    """Return the dtype of one tensor in a file of several; as it was read where the file holds it in another form."""
    published_names = revert_weight_conversion(loaded, {name: tensor})
    names_in_file = [published for published in published_names if published in infos]
    if len(names_in_file) != 1:
        return tensor.dtype
    info = infos[names_in_file[0]]
    return torch_dtype(info)


def preprocessing_in(folder: Path, model: Any) -> Preprocessing:
    """Read the tokenizer or the image processor of a folder; both for a model of two towers.

    Args:
        folder: of the published model.
        model: of the library.
    """
    towers = towers_of(model)
    config = model.config
    if config.model_type not in _PROCESSORS:
        return _preprocess_of_texts(folder, model)
    images = towers[0]
    size = patch_image_size(model)
    if images.prefix.startswith("dinov2"):  # which stretches its positions to any size
        size = None
    patch = None
    if config.model_type == "siglip2":  # which is given patches
        patch = images.base.config.patch_size
    preprocess = image_preprocess(
        folder,
        default=_PROCESSORS[config.model_type],
        channels=images.base.config.num_channels,
        size=size,
        patch=patch,
    )
    if len(towers) > 1:
        preprocess["texts"] = clip.text_preprocess_of(folder, model)
    return preprocess


def _preprocess_of_texts(folder: Path, model: Any) -> Preprocessing:
    """Read the tokenizer of a folder, for a model of texts."""
    config = model.config
    # Some models number their positions from a token's number on: the first rows of their table are never used.
    architecture = towers_of(model)[0].prefix
    unused_positions = 0
    if architecture in ("roberta", "roberta_prelayernorm", "data2vec_text"):
        unused_positions = (config.pad_token_id or 0) + 1
    elif architecture == "mpnet":
        unused_positions = 2
    has_token_types = getattr(config, "type_vocab_size", 1) > 1
    return text_preprocess(
        folder,
        positions=longest_text_of(config) - unused_positions,
        vocabulary=config.vocab_size,
        always=("input_ids", "attention_mask"),
        if_named=("token_type_ids",) if has_token_types else (),
        padding=config.pad_token_id,
        pads_with_end=is_decoder(model),
    )


def patch_image_size(model: Any) -> tuple[int, int] | None:
    """Return height and width of the images that the patch embedding takes.

    None for a model of texts, and of images of any size.
    """
    model_type = model.config.model_type
    if model_type not in _PROCESSORS:
        return None
    if model_type in ("dinov3_vit", "siglip2"):
        return None
    base = towers_of(model)[0].base
    patches = getattr(base.embeddings, "patch_embeddings", base.embeddings)
    size = getattr(patches, "image_size", base.config.image_size)
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)


def class_labels(published: LibraryConfig, classes: int) -> list[str] | None:
    """Return the names of the classes in their order, from ``id2label``; None where they have none.

    The library's own placeholders (``LABEL_0``) are no names.
    """
    names = published.get("id2label")
    numbers = [str(number) for number in range(classes)]
    if not isinstance(names, Mapping) or sorted(names) != sorted(numbers):
        return None
    labels = [str(names[number]) for number in numbers]
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        return None
    return labels
