"""Reads published folders of transformers strictly, and gives tensors the names of the installed version."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from hydractl.errors import InputError
from hydractl.families.config_json import LibraryConfig, Preprocessing, are_whole_numbers
from hydractl.families.hf import clip
from hydractl.families.hf.architectures import (
    TWO_TOWERS,
    class_name,
    implementation,
    is_decoder,
    quiet,
    towers_of,
    without_traces,
)
from hydractl.families.hf.images import image_preprocess
from hydractl.families.hf.texts import text_preprocess
from hydractl.families.reading import folder_for_library, refused_as
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
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "dinov2_with_registers": "BitImageProcessor",
    "clip": "CLIPImageProcessor",
    "metaclip_2": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
}
_MOST_TIMES = 4
"""A model may be so many times as large as its weights, whose heads may have been cut out."""
_FEW_PARAMETERS = 1 << 24
_FEW_TENSORS = 1000
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


def converted_weights(
    weights: TensorSource, folder: Path, model: Any, *, lacks_heads: bool = False
) -> tuple[DictTensors, list[str]]:
    """Return weights by the names of the installed transformers, which converts older ones, in the dtypes of the file.

    Args:
        weights: the weights of the folder; their names may be those of an older version.
        folder: the published folder.
        model: transformers' model on the meta device, which has the expected names and shapes.
        lacks_heads: whether some tensors are smaller, since heads were cut out of them; these come as they are stored.

    Returns:
        The weights by the names of the installed version. For a body (an encoder without a classifier) also the names
        of the tensors in the file that belong to the head of another task and are left out; otherwise an empty list.

    Raises:
        InputError: with up to 40 tensors that are missing, unexpected or have another shape; or if the model is far
            larger than the weights.
    """
    infos = {name: weights.info(name) for name in weights.names()}
    _check_size(model, list(infos.values()), folder)
    dtypes_in_file = {info.dtype for info in infos.values()}
    is_body = not model.config.num_labels
    loaded_model, report = _read_by_library(folder, model, is_body, wide="F64" in dtypes_in_file)

    # The library draws tensors of another shape at random: those of layers that lack heads are read here.
    read_tensors = loaded_model.state_dict()
    if lacks_heads:
        unknown = []
        for mismatch in report["mismatched_keys"]:
            name, _, _ = mismatch
            name_in_file = _name_in_file(name, read_tensors[name], loaded_model, infos)
            if name_in_file is None:
                unknown.append(mismatch)
            else:
                read_tensors[name] = weights.read(name_in_file)
        report["mismatched_keys"] = unknown

    # Compare the names that were read with those of the model.
    expected_names = set(model.state_dict())
    missing_names = set(report["missing_keys"])
    unexpected_names = set(report["unexpected_keys"])
    left_out: list[str] = []
    if is_body:
        # transformers loads a body as a classifier, and reports the classifier's tensors as missing.
        missing_names &= expected_names
        left_out = sorted(name for name in unexpected_names if re.match(_OTHER_TASKS, name))
    problems = _loading_problems(missing_names, unexpected_names - set(left_out), report)
    if problems:
        raise InputError(
            f"{folder} does not hold the weights of {type(model).__name__}",
            problems=problems[:40],
        )

    # transformers loaded everything in one dtype. Give each tensor the dtype that it has in the file.
    tensors = {}
    for name, tensor in read_tensors.items():
        if name not in expected_names:
            continue
        if len(dtypes_in_file) == 1:
            dtype = torch_dtype(next(iter(infos.values())))
        else:
            # Made from several tensors of the file, or from a part of one, it stays as transformers loaded it.
            name_in_file = _name_in_file(name, tensor, loaded_model, infos)
            dtype = tensor.dtype if name_in_file is None else torch_dtype(infos[name_in_file])
        tensors[name] = tensor.to(dtype)
    return DictTensors(tensors), left_out


def _check_size(model: Any, infos: Sequence[TensorInfo], folder: Path) -> None:
    """Raise an error if a model is far larger than the weights of its folder.

    transformers would draw all missing weights at random, so a small folder could fill the memory. What counts is the
    number of parameters, and that of tensors, each of which takes the library milliseconds.

    Args:
        model: transformers' model on the meta device.
        infos: the tensors of the folder.
        folder: for the message.

    Raises:
        InputError: with both numbers.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    stored = sum(math.prod(info.shape) for info in infos)
    # What the model asks for, what is stored, how many are always allowed, and their name.
    counts = [
        (sum(sizes), stored, _FEW_PARAMETERS, "parameters"),
        (len(sizes), len(infos), _FEW_TENSORS, "tensors"),
    ]
    for asked, there, few, things in counts:
        if asked > max(_MOST_TIMES * there, few):
            raise InputError(
                f"{folder} does not hold the weights of {type(model).__name__}: its configuration asks for "
                f"{asked:,} {things}, and {there:,} are stored"
            )


def _read_by_library(folder: Path, model: Any, is_body: bool, wide: bool) -> tuple[Any, Any]:
    """Return the model that transformers loads from a folder, and its report of names that do not fit.

    Args:
        folder: the published folder.
        model: a model of the same class and configuration.
        is_body: whether the model has no classifier. It is then loaded as a classifier with 2 classes.
        wide: whether to load in float64, because the file has such tensors, else in float32.

    Returns:
        The loaded model, and transformers' report with the missing, unexpected and mismatched names.
    """
    config = copy.deepcopy(model.config)
    if is_body:
        config.num_labels = 2
    # transformers draws missing tensors at random; forking keeps the state of the caller's generator. It is shown a
    # folder with the files of weights alone, because it would look at others, too: an adapter's may name another model.
    with (
        folder_for_library(_files_of_weights(folder), {}) as seen,
        refused_as(f"transformers cannot read the weights in {folder}"),
        quiet(),
        torch.random.fork_rng(devices=[]),
    ):
        return type(model).from_pretrained(
            str(seen),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float64 if wide else torch.float32,
            attn_implementation=implementation(type(model)),
            ignore_mismatched_sizes=True,  # report all of them instead of raising an error at the first
            output_loading_info=True,
        )


def _files_of_weights(folder: Path) -> list[Path]:
    """Return the files that hold the weights of a folder: one, or several and their index."""
    weights = folder / "model.safetensors"
    if weights.exists():
        return [weights]
    return [folder / f"{weights.name}.index.json", *folder.glob("*.safetensors")]


def _loading_problems(missing: Iterable[str], unexpected: Iterable[str], report: Any) -> list[str]:
    """Return one line for each problem with the tensors that transformers has loaded.

    Args:
        missing: names of tensors that the model has and the file does not have.
        unexpected: names of tensors that the file has and the model does not have.
        report: transformers' report. ``mismatched_keys`` has the name, the shape in the file and the expected shape of
            each tensor of another shape; ``error_msgs`` may have further messages.
    """
    problems = [f"missing tensor {shown(name, 200)}" for name in sorted(missing)]
    problems += [f"unexpected tensor {shown(name, 200)}" for name in sorted(unexpected)]
    for name, shape, expected_shape in sorted(report["mismatched_keys"]):
        problems.append(f"tensor {shown(name, 200)} is {list(shape)}, expected {list(expected_shape)}")
    problems += [shown(message, 200) for message in report.get("error_msgs", ())]
    return problems


def _name_in_file(name: str, tensor: Tensor, loaded: Any, infos: Mapping[str, TensorInfo]) -> str | None:
    """Return the name that a tensor has in the file; None if it was made of several or of a part of one."""
    published_names = revert_weight_conversion(loaded, {name: tensor})
    names_in_file = [published for published in published_names if published in infos]
    return names_in_file[0] if len(names_in_file) == 1 else None


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
    """Return the names of the classes in ``id2label``, in the order of the classes, and a warning where they are lost.

    The names are an object with the numbers of the classes as its keys, or a list. They are None where there is not
    exactly one for each class, or all are transformers' placeholders (``LABEL_0``).

    Args:
        published: the ``config.json`` of the folder.
        classes: the number of classes.
        origin: the folder, for the warning.
    """
    names = published.get("id2label")
    if isinstance(names, list):
        names = {str(number): name for number, name in enumerate(names)}
    numbers = [str(number) for number in range(classes)]
    if not isinstance(names, Mapping) or not names:
        return None, []

    # Only keys that are missing, too many or no numbers deserve a warning; placeholders are no loss.
    if sorted(names) != sorted(numbers):
        keys = shown(sorted(names))
        return None, [f"{origin}: id2label has the keys {keys} and not 0 to {classes - 1}, so its names are not used"]
    labels = [str(names[number]) for number in numbers]
    if all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        return None, []
    return labels, []


def removed_heads(published: LibraryConfig, config: dict[str, object], origin: str) -> dict[int, Sequence[int]]:
    """Return the heads that transformers' own pruning has cut out of a folder: by layer, their numbers.

    ``pruned_heads`` leaves the configuration, so that the library builds the whole model; a mask says what is gone.

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
