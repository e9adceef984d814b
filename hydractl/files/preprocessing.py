"""What checkpoints hold of how texts and images become inputs, as far as it must have a form of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from hydractl.files.results import Record

_INPUT_NAMES = ["input_ids", "attention_mask", "token_type_ids"]
"""The possible inputs of a model of texts; a model takes the first one, two or three."""


def _first_inputs(names: Sequence[str]) -> Sequence[str]:
    """Return names of inputs, which must be the first one, two or three of all, in their order."""
    if not names or list(names) != _INPUT_NAMES[: len(names)]:
        raise ValueError("are not the first of input_ids, attention_mask, token_type_ids")
    return names


def _special_tokens(tokens: Mapping[str, str]) -> Mapping[str, str]:
    """Return special tokens; each becomes an argument of transformers' tokenizer, whose name must end in ``_token``."""
    if not all(name.endswith("_token") for name in tokens):
        raise ValueError("has keys that do not end in _token")
    return tokens


class TokenizerSettings(Record):
    """A tokenizer of the Rust library ``tokenizers`` and its settings, by transformers' names."""

    json_: str
    """The text of its ``tokenizer.json``, perhaps compressed."""
    special_tokens: Annotated[Mapping[str, str], AfterValidator(_special_tokens)]
    padding_side: Literal["left", "right"]
    truncation_side: Literal["left", "right"]
    pad_token_type_id: int
    model_input_names: Annotated[Sequence[str], AfterValidator(_first_inputs)]
    model_max_length: int
    vocab_size: Annotated[int, Field(ge=1)]
    """The number of its tokens."""


class ClipImages(Record):
    """The entries of open_clip's ``PreprocessCfg`` that its transform can use."""

    kind: Literal["image"]
    size: Annotated[Sequence[Annotated[int, Field(ge=1, le=16_383)]], Field(min_length=2, max_length=2)]
    """Height and width."""
    mode: Literal["RGB"]
    mean: Annotated[Sequence[float], Field(min_length=3, max_length=3)]
    std: Annotated[Sequence[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]
    interpolation: Literal["bicubic", "bilinear", "random"]
    resize_mode: Literal["shortest", "longest", "squash"]
    fill_color: Annotated[int, Field(ge=0, le=255)]
