"""Published folders of transformers: strictly read, and shown under the library's present names."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from hydractl.errors import InputError
from hydractl.families.base import LoadedModel
from hydractl.families.hf.architectures import ARCHITECTURES, class_name, meta_model, quiet, without_traces
from hydractl.families.hf.inputs import image_preprocess, text_preprocess
from hydractl.families.reading import published_weights, read_config, refused_as
from hydractl.files.checkpoint import DictTensors, FileTensors, TensorSource
from hydractl.files.header import Header, torch_dtype
from hydractl.jsonio import shown

WEIGHTS = "model.safetensors"
OTHER_FILES = (
    *("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model"),
)
_PROCESSORS = {"vit": "ViTImageProcessor", "deit": "DeiTImageProcessor", "dinov2": "BitImageProcessor"}


def open_folder(folder: Path) -> LoadedModel | None:
    """A folder with transformers' ``config.json`` and ``model.safetensors``; None for another library's.

    Raises:
        InputError: for a model that is not supported, or weights that are not exactly its own.
    """
    published = read_config(folder / "config.json")
    if published is None or "architectures" not in published or "model_type" not in published:
        return None
    config = _kept(published, str(folder))
    hint = "hydractl opens one file of safetensors, no pickles: save_pretrained(..., max_shard_size='100GB')"
    weights = published_weights(folder / WEIGHTS, hint)
    model = meta_model(config)
    tensors: TensorSource = weights
    if set(weights.names()) != set(model.state_dict()):
        # Older names, or a mistake: the library knows the first and the answer to it tells the second.
        tensors = _converted(weights, model)
    return LoadedModel(
        arch=class_name(config),
        config=config,
        tensors=tensors,
        preprocess=_preprocess(folder, model),
        labels=_labels(published, model.config.num_labels),
    )


def _kept(published: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The configuration of a folder that a checkpoint keeps: without traces of who wrote it, and without labels."""
    for key, what in (("auto_map", "code of its own"), ("quantization_config", "quantized weights")):
        if published.get(key):
            raise InputError(f"{origin} comes with {what} ({key}), which hydractl never uses")
    config = without_traces(published)
    name = class_name(config)
    if "num_labels" not in config:
        names = published.get("id2label")
        # The library's own default, where a file says nothing.
        config["num_labels"] = (
            len(names) if isinstance(names, Mapping) else getattr(transformers, name).config_class().num_labels
        )
    return config


def _converted(weights: FileTensors, model: Any) -> DictTensors:
    """Weights under the library's present names, read by the library itself, in the dtypes of the file.

    Raises:
        InputError: listing every tensor that is missing, unexpected or of another shape.
    """
    header, file = weights.header, weights.path
    stored = {info.dtype for info in header.tensors.values()}
    wide = torch.float64 if "F64" in stored else torch.float32  # holds every number of the file exactly
    with refused_as(f"transformers cannot read {file}"), quiet():
        loaded, report = type(model).from_pretrained(
            str(file.parent),
            config=copy.deepcopy(model.config),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=wide,
            attn_implementation="sdpa",
            ignore_mismatched_sizes=True,  # so that they are reported, all of them
            output_loading_info=True,
        )
    problems = [f"missing tensor {shown(name, 200)}" for name in sorted(report["missing_keys"])]
    problems += [f"unexpected tensor {shown(name, 200)}" for name in sorted(report["unexpected_keys"])]
    problems += [
        f"tensor {shown(name, 200)} is {list(found)}, expected {list(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    problems += [shown(message, 200) for message in report.get("error_msgs", ())]
    if problems:
        what = f"{file} does not hold the weights of {type(model).__name__}"
        raise InputError(what, problems=problems[:40])
    state = loaded.state_dict()
    only = torch_dtype(next(iter(header.tensors.values()))) if len(stored) == 1 else None
    return DictTensors({n: t.to(only or _dtype_in_file(n, t, loaded, header)) for n, t in state.items()})


def _dtype_in_file(name: str, tensor: Tensor, loaded: Any, header: Header) -> torch.dtype:
    """The dtype of one tensor in a file of several; as it was read where the file holds it in another form."""
    published = revert_weight_conversion(loaded, {name: tensor})
    infos = [header.tensors[n] for n in published if n in header.tensors]
    return torch_dtype(infos[0]) if len(infos) == 1 else tensor.dtype


def _preprocess(folder: Path, model: Any) -> dict[str, Any]:
    """The tokenizer or the image processor of a folder."""
    prefix, config = ARCHITECTURES[type(model).__name__][0], model.config
    if prefix not in _PROCESSORS:
        # RoBERTa counts positions from behind the padding token's number.
        skipped = (config.pad_token_id or 0) + 1 if prefix == "roberta" else 0
        types = getattr(config, "type_vocab_size", 1)
        return text_preprocess(folder, config.max_position_embeddings - skipped, config.vocab_size, types)
    size = None  # DINOv2 stretches its positions to any size
    if prefix != "dinov2":
        height, width = model.get_submodule(prefix).embeddings.patch_embeddings.image_size
        size = (int(height), int(width))
    return image_preprocess(folder, _PROCESSORS[prefix], config.num_channels, size)


def _labels(published: Mapping[str, Any], classes: int) -> list[str] | None:
    """The names of the classes; the library's own placeholders are no names."""
    names = published.get("id2label")
    if not isinstance(names, Mapping) or sorted(names) != sorted(map(str, range(classes))):
        return None
    labels = [str(names[str(index)]) for index in range(classes)]
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels
