"""Reads published folders of transformers strictly, and gives tensors the names of the installed version."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from hydractl.errors import InputError
from hydractl.families.config_json import LibraryConfig, Preprocessing, are_whole_numbers
from hydractl.families.hf import clip
from hydractl.families.hf.architectures import (
    TWO_TOWERS,
    class_name,
    is_decoder,
    towers_of,
    without_traces,
)
from hydractl.families.hf.images import image_preprocess
from hydractl.families.hf.texts import text_preprocess
from hydractl.families.meta_device import plain_sizes
from hydractl.files.checkpoint import MappedTensors, TensorSource
from hydractl.files.header import TensorInfo, meta_tensor, tensor_info
from hydractl.jsonio import shown

_NEVER = (
    ("auto_map", "code of its own", "where its class is one of transformers itself, remove auto_map from config.json"),
    ("quantization_config", "quantized weights", "transformers writes plain ones: model.dequantize(), save_pretrained"),
)
# The default image processor of each model type that reads images.
_PROCESSORS = {
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "metaclip_2": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
}
# The beginnings of the names of tensors that belong to the head of another task. Poolers are included: a pooler appears
# here only if the classifier of the same encoder has none.
_OTHER_TASKS = (
    r"(cls|lm_head|(lm|mask)_predictions|vocab_\w+|predictions|discriminator_predictions|generator_\w+|qa_outputs|decoder|classifier|"
    r"(\w+\.)?pooler)\."
)


def kept_config(published: LibraryConfig, origin: str) -> dict[str, object]:
    """Return the configuration of a folder in the form in which a checkpoint stores it.

    Only entries that are part of the architecture are kept. ``architectures`` becomes the class with which hydractl
    opens the model. ``num_labels`` becomes the number of classes, or 0 for a body (an encoder without a classifier). A
    model with two towers gets neither.

    Args:
        published: the ``config.json`` of the folder.
        origin: the folder, for messages.

    Raises:
        InputError: if the folder needs its own code or has quantized weights, or the class is not supported.
    """
    for key, description, hint in _NEVER:
        if published.get(key):
            raise InputError(f"{origin} comes with {description} ({key}), which hydractl never uses", hint=hint)
    config = without_traces(published)
    name = class_name(config)
    if name in TWO_TOWERS:
        return config
    # The file names another class, e.g. BertModel or BertForMaskedLM.
    is_body = config["architectures"] != [name]
    if is_body:
        config["architectures"] = [name]
        config["num_labels"] = 0
    # A classifier without this entry has one class for each name.
    if "num_labels" not in config:
        labels = published.get("id2label")
        if isinstance(labels, Mapping | list):
            config["num_labels"] = len(labels)
        else:  # the file says nothing, so transformers' default applies
            config["num_labels"] = getattr(transformers, name).config_class().num_labels
    return config


def converted_weights(weights: TensorSource, model: Any) -> tuple[MappedTensors, list[str]]:
    """Return weights by the names of the installed transformers, whose rules convert older ones; nothing is read yet.

    Args:
        weights: the weights of a folder; their names may be those of an older version.
        model: transformers' model on the meta device, which has the expected names.

    Returns:
        The weights. For a body (an encoder without a classifier) also the names of the tensors in the file that belong
        to the head of another task and are left out; otherwise an empty list.
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    expected = model.state_dict()

    def converted(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        """Return what a tensor of the file becomes: itself under another name, or several parts by their names."""
        # The model has a tensor of this name, or the tensor is only renamed.
        if name in expected:
            return {name: tensor}
        new_name, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, expected)
        if pattern is None:
            return {new_name: tensor}

        # The tensor is cut into parts. The rule is copied, because it keeps the tensors that it is given.
        rule = next(converter for converter in converters if pattern in converter.source_patterns)
        own_rule = copy.deepcopy(rule)
        own_rule.add_tensor(new_name, name, pattern, tensor)
        parts: Mapping[str, Any] = own_rule.convert(new_name, model=model, config=model.config)
        return {part_name: part[0] if isinstance(part, list) else part for part_name, part in parts.items()}

    infos: dict[str, TensorInfo] = {}
    name_in_file: dict[str, str] = {}
    with plain_sizes():
        for name in weights.names():
            for new_name, tensor in converted(name, meta_tensor(weights.info(name))).items():
                infos[new_name] = tensor_info(tensor)
                name_in_file[new_name] = name

    # Tensors that the library never takes from a file, such as the positions that older versions have stored.
    unknown = SimpleNamespace(missing_keys=set(), unexpected_keys=infos.keys() - expected.keys())
    model._adjust_missing_and_unexpected_keys(unknown)
    left_out = []
    if not model.config.num_labels:
        left_out = sorted(name for name in unknown.unexpected_keys if re.match(_OTHER_TASKS, name))
    taken = (expected.keys() | unknown.unexpected_keys) - set(left_out)
    taken_infos = {name: info for name, info in infos.items() if name in taken}

    def read(name: str) -> Tensor:
        return converted(name_in_file[name], weights.read(name_in_file[name]))[name]

    return MappedTensors(taken_infos, read), left_out


def preprocessing_in(folder: Path, model: Any) -> Preprocessing:
    """Return how a model's inputs are prepared, from the tokenizer or the image processor in its folder.

    A model with two towers (encoders of images and of texts) has both.

    Args:
        folder: the published folder.
        model: transformers' model.

    Returns:
        The preprocessing; a model with two towers has the tokenizer as its entry ``texts``.
    """
    towers = towers_of(model)
    config = model.config
    # A model of texts.
    if config.model_type not in _PROCESSORS:
        # A RoBERTa starts to count positions after the id of the padding token, so it never uses the first rows of its
        # table of positions.
        unused_positions = 0
        if towers[0].prefix == "roberta":
            unused_positions = (config.pad_token_id or 0) + 1

        # Only some models tell the two texts of a pair apart by token types.
        has_token_types = getattr(config, "type_vocab_size", 1) > 1
        return text_preprocess(
            folder,
            positions=config.max_position_embeddings - unused_positions,
            vocabulary=config.vocab_size,
            always=("input_ids", "attention_mask"),
            if_named=("token_type_ids",) if has_token_types else (),
            padding=config.pad_token_id,
            pads_with_end=is_decoder(model),
        )

    # A model of images, perhaps with a text tower.
    image_tower = towers[0]
    # DINOv2 interpolates its positions, so it takes images of any size.
    size = None if image_tower.prefix.startswith("dinov2") else patch_image_size(model)
    preprocess = image_preprocess(
        folder,
        default=_PROCESSORS[config.model_type],
        channels=image_tower.base.config.num_channels,
        size=size,
    )
    if len(towers) > 1:
        preprocess["texts"] = clip.text_preprocess_of(folder, model)
    return preprocess


def patch_image_size(model: Any) -> tuple[int, int] | None:
    """Return the height and width of the images that the patch embedding of a model takes.

    None means that the model reads texts, or images of any size.
    """
    model_type = model.config.model_type
    # A model of texts has no image processor.
    if model_type not in _PROCESSORS:
        return None
    encoder = towers_of(model)[0].base
    # CLIP and SigLIP have no separate module for patches.
    patch_embedding = getattr(encoder.embeddings, "patch_embeddings", encoder.embeddings)
    size = getattr(patch_embedding, "image_size", encoder.config.image_size)
    # The size is one number if images are square.
    if isinstance(size, int):
        return size, size
    height, width = size
    return int(height), int(width)


def class_labels(published: LibraryConfig, classes: int, origin: str) -> tuple[list[str] | None, list[str]]:
    """Return the names of the classes in the order of the classes, or None; and at most one warning, in a list.

    ========================================================  ==============  ===========
    the entry ``id2label``, an object by number, or a list    names           warnings
    ========================================================  ==============  ===========
    is missing or empty                                       None            none
    has other numbers than those of the classes               None            one
    has only transformers' placeholders (``LABEL_0``)         None            none
    anything else                                             its names       none
    ========================================================  ==============  ===========

    Args:
        published: the ``config.json`` of the folder.
        classes: the number of classes.
        origin: the folder, for the warning.
    """
    entry = published.get("id2label")
    by_number = entry
    if isinstance(entry, list):
        by_number = {str(number): name for number, name in enumerate(entry)}
    if not isinstance(by_number, Mapping) or not by_number:
        return None, []
    numbers = [str(number) for number in range(classes)]
    if sorted(by_number) != sorted(numbers):
        keys = shown(sorted(by_number))
        return None, [f"{origin}: id2label has the keys {keys} and not 0 to {classes - 1}, so its names are not used"]
    labels = [str(by_number[number]) for number in numbers]
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        return None, []
    return labels, []


def removed_heads(published: LibraryConfig, config: dict[str, object], origin: str) -> dict[int, Sequence[int]]:
    """Return the heads that transformers' own pruning has removed, by layer, e.g. ``{0: [2, 3]}``; empty for none.

    As an effect, ``config`` loses its entry ``pruned_heads``, so that the library builds the model with all heads.

    Args:
        published: the ``config.json`` of the folder.
        config: what is kept of it, which loses the entry.
        origin: the folder, for the message.

    Raises:
        InputError: the entry is no object of lists of whole numbers.
    """
    config.pop("pruned_heads", None)
    entry = published.get("pruned_heads") or {}
    removed: dict[int, Sequence[int]] = {}
    problem = InputError(f"{origin}/config.json: pruned_heads {shown(entry)} names no heads by layer")
    if not isinstance(entry, Mapping):
        raise problem
    for layer, heads in entry.items():
        if not layer.isdecimal() or not isinstance(heads, list) or not are_whole_numbers(heads, 0):
            raise problem
        removed[int(layer)] = heads
    return removed
