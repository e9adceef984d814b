"""Inputs of transformers' encoders: tokenizer and image processor as plain data, which a checkpoint holds itself."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerFast

from hydractl.errors import InputError, UsageError
from hydractl.families.base import ImageFormat
from hydractl.families.hf.architectures import quiet
from hydractl.families.pixels import images_of, in_mode, input_size, is_size, mode_of, random_pixels
from hydractl.families.reading import kept, read_config, refused_as, write_config
from hydractl.files.header import MAX_HEADER_BYTES
from hydractl.jsonio import canonical_json, shown

LONGEST_DEFAULT = 512
"""Tokens of a text at most, where the checkpoint itself sets no lower limit."""

MOST_BYTES = MAX_HEADER_BYTES - (1 << 20)
"""Largest size of a tokenizer in the header of a checkpoint; the rest is for the other entries."""

_PACKED, _MOST_UNPACKED = "zlib:", 1 << 27
_EXAMPLE_TOKENS = 128
_ENDS = 8  # more tokens than any tokenizer adds to a text or a pair
_NEEDED = {
    "json": str,
    "special_tokens": dict,
    "padding_side": str,
    "truncation_side": str,
    "pad_token_type_id": int,
    "model_input_names": list,
    "model_max_length": int,
    "vocab_size": int,
}

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model"),
)
"""The files of a tokenizer that a folder of the hub may hold."""

_LARGEST_ID = 1 << 21  # of a token: the Rust library sets memory aside for as many, and aborts where there is none
_TOKEN = {"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}

PROCESSORS = (
    *("ViTImageProcessor", "DeiTImageProcessor", "BitImageProcessor", "BeitImageProcessor"),
    *("CLIPImageProcessor", "SiglipImageProcessor", "Siglip2ImageProcessor", "DINOv3ViTImageProcessor"),
)
_PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR_FILES = (_PROCESSOR_FILE, "processor_config.json")  # the latter beside a tokenizer, of newer versions
_INTERPOLATION = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers


# --- texts ------------------------------------------------------------------------------------------------------------


def text_preprocess(
    folder: Path,
    positions: int,
    vocabulary: int,
    always: Sequence[str],
    named: Sequence[str] = (),
    padding: int | None = None,
    ends: bool = False,
) -> dict[str, Any]:
    """Read the tokenizer of a published folder with its settings.

    Args:
        folder: holds ``tokenizer.json``, or what the library can make one of.
        positions: how many tokens the model can take.
        vocabulary: how many tokens it knows.
        always: what the model is given of a text: ``input_ids``, perhaps ``attention_mask``.
        named: what it is given beside where the tokenizer names it among its outputs.
        padding: the number of the padding token that the model knows.
        ends: whether a tokenizer without a padding token takes that one, or else the one that ends a text.

    Raises:
        InputError: for a folder without a tokenizer of the Rust library, without a padding token, or of another model,
            and for a tokenizer that is too large for the header of a checkpoint.
    """
    hint = "tokenizer.json and tokenizer_config.json belong beside config.json"
    _check_tokens(folder)
    with refused_as(f"{folder} has no tokenizer that transformers can read", hint):
        tokenizer = _opened(folder)
    problems = []
    files = {kind: name for kind, name in tokenizer.vocab_files_names.items() if kind != "tokenizer_file"}
    if not (folder / "tokenizer.json").exists() and not all((folder / name).exists() for name in files.values()):
        # Without its files the library makes a tokenizer that knows nothing but special tokens.
        problems.append(f"there is no tokenizer.json, nor {' and '.join(files.values()) or 'another vocabulary'}")
    if not tokenizer.is_fast:
        problems.append(f"{type(tokenizer).__name__} has no tokenizer.json: it runs in Python only")
    if type(tokenizer.model_max_length) not in (int, float) or not tokenizer.model_max_length >= 1:
        problems.append(f"its model_max_length is {shown(tokenizer.model_max_length)}")
    if ends and tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token if padding is None else tokenizer.convert_ids_to_tokens(padding)
    if tokenizer.pad_token is None:
        problems.append("it has no padding token")
    if len(tokenizer) > vocabulary:
        problems.append(f"it knows {len(tokenizer)} tokens, the model {vocabulary}")
    if problems:
        raise InputError(f"the tokenizer in {folder} cannot be used", problems=problems)
    rust = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # Lengths are settings of a call; a file may still hold those of the last one.
    rust.no_truncation()
    rust.no_padding()
    text = _packed(rust.to_str(), folder)
    longest = int(min(tokenizer.model_max_length, positions))
    return {
        "kind": "text",
        "max_length": min(longest, LONGEST_DEFAULT),
        "tokenizer": {
            "json": text,
            "special_tokens": {k: str(v) for k, v in tokenizer.special_tokens_map.items() if not isinstance(v, list)},
            "padding_side": tokenizer.padding_side,
            "truncation_side": tokenizer.truncation_side,
            "pad_token_type_id": tokenizer.pad_token_type_id,
            "model_input_names": [*always, *(name for name in named if name in tokenizer.model_input_names)],
            "model_max_length": longest,
            "vocab_size": len(tokenizer),
        },
    }


def _opened(folder: Path) -> Any:
    """Open the tokenizer of a folder as the library does; for SigLIP's, which runs in Python, the one of its file."""
    named = (read_config(folder / "tokenizer_config.json") or {}).get("tokenizer_class")
    with quiet():  # the library's warnings quote the files, control characters and all
        if named != "SiglipTokenizer" or not (folder / "tokenizer.json").exists():
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    if tokenizer("A photo, of (a) CAT!")["input_ids"] != tokenizer("a photo of a cat")["input_ids"]:
        raise InputError(f"{folder / 'tokenizer.json'} keeps capitals or punctuation, which {named} removes")
    return tokenizer


def tokenizer_of(preprocess: Any) -> Any:
    """Return the tokenizer that :func:`text_preprocess` describes.

    Raises:
        InputError: for what describes none.
    """
    return _tokenizer(_settings(preprocess if isinstance(preprocess, Mapping) else {}))


def text_collate(preprocess: Mapping[str, Any]) -> TextCollate:
    """Return the function from a list of ``str`` or ``(str, str)`` to token tensors.

    These are ``input_ids``, ``attention_mask`` (and ``token_type_ids``).

    Raises:
        InputError: for preprocessing that describes no tokenizer, or a length that the model cannot take.
    """
    tokenizer = _tokenizer(_settings(preprocess))
    length, longest = preprocess.get("max_length"), tokenizer.model_max_length
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if type(length) is not int or not least <= length <= longest:
        raise InputError(f"a text of at most {shown(length)} tokens: this model takes {least} to {longest}")
    return TextCollate(tokenizer, length)


def padding_of(preprocess: Mapping[str, Any]) -> int:
    """Return the number of the padding token."""
    return int(_tokenizer(_settings(preprocess)).pad_token_id)


class TextCollate:
    """The library's tokenizer on a list of texts, or of pairs of texts.

    Attributes:
        max_length: tokens of a text (or of a pair) at most; longer ones are cut.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer = tokenizer
        self.max_length = max_length

    def __call__(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        """Return tensors int64 ``[B, T]``: T is the longest of the batch in tokens, and at most ``max_length``.

        Raises:
            InputError: for what is no text or has no token, and for one text alone.
        """
        if isinstance(samples, str):  # it would be read letter by letter
            raise InputError("preprocess takes a list of texts, not one alone", hint="preprocess([text])")
        rows = [_row(sample) for sample in samples]
        options = {"truncation": True, "max_length": self.max_length}
        if len({len(row) for row in rows}) == 1:
            columns = [list(column) for column in zip(*rows, strict=True)]
            batch = self._tokenizer(*columns, padding="longest", return_tensors="pt", **options)
        else:  # texts and pairs in one batch
            batch = self._tokenizer.pad([self._tokenizer(*row, **options) for row in rows], return_tensors="pt")
        whole = batch["attention_mask"].bool().any(dim=1)
        if not bool(whole.all()):  # of a tokenizer that adds none of its own
            raise InputError(f"this text has no token that can be read: {shown(rows[int(whole.int().argmin())])}")
        return dict(batch)

    def cut(self, samples: Iterable[Any]) -> int:
        """Count the samples with more than ``max_length`` tokens, which are truncated.

        Raises:
            InputError: for what is no text.
        """
        rust = self._tokenizer.backend_tokenizer
        # The library sets both anew at every call.
        rust.no_truncation()
        rust.no_padding()
        rows = (_row(sample) for sample in samples)
        # Plain ASCII has at most a token for each character, and a few that mark its ends: most texts need no look.
        rows = (row for row in rows if not all(map(str.isascii, row)) or sum(map(len, row)) > self.max_length - _ENDS)
        return sum(len(rust.encode(*row).ids) > self.max_length for row in rows)


def _row(sample: Any) -> tuple[str, ...]:
    """Return a sample as one or two texts."""
    row = (sample,) if isinstance(sample, str) else tuple(sample)
    if len(row) not in (1, 2) or not all(map(_is_text, row)):
        raise InputError(f"this is no text that can be tokenized: {shown(row)}")
    return row


def prompt_tokens(preprocess: Any, texts: Sequence[str], whole: bool) -> dict[str, Tensor]:
    """Return tokens int64 ``[len(texts), T]`` of the prompts of classes.

    Args:
        preprocess: as of :func:`text_preprocess`.
        texts: the prompts.
        whole: whether T is ``max_length``; else it is that of the longest text, and at most that.

    Raises:
        InputError: for preprocessing that describes no tokenizer.
    """
    tokenizer, padding = tokenizer_of(preprocess), "max_length" if whole else "longest"
    options: dict[str, Any] = {"max_length": preprocess["max_length"], "truncation": True, "return_tensors": "pt"}
    return dict(tokenizer(list(texts), padding=padding, **options))


def random_tokens(preprocess: Mapping[str, Any], batch: int, seed: int) -> dict[str, Tensor]:
    """Draw random token ids ``[batch, T]`` without padding, T at most 128."""
    settings = _settings(preprocess)
    shape = (batch, min(preprocess["max_length"], _EXAMPLE_TOKENS))
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "input_ids": torch.randint(settings["vocab_size"], shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }
    return {name: inputs[name] for name in settings["model_input_names"]}


def write_tokenizer(folder: Path, preprocess: Mapping[str, Any]) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` as the library reads them."""
    settings = _settings(preprocess)
    document = {k: v for k, v in settings.items() if k not in ("json", "special_tokens", "vocab_size")}
    # The class that takes tokenizer.json as it is; a class named after a model would rebuild parts of it.
    document |= {"tokenizer_class": "PreTrainedTokenizerFast", **settings["special_tokens"]}
    (folder / "tokenizer.json").write_text(_unpacked(settings["json"]) + "\n", encoding="utf-8")
    write_config(folder / "tokenizer_config.json", document)


def _check_tokens(folder: Path) -> None:
    """Refuse tokens with unknown settings: the Rust library prints their names on standard output as they are."""
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"):
        document = read_config(folder / file) or {}
        _check_ids({"model": {"vocab": document}} if file == "vocab.json" else document, str(folder / file))
        tables = [document.get("added_tokens"), document.get("added_tokens_decoder")]
        if "map" in file:
            extra = document.pop("extra_special_tokens", None)
            tables += [document, extra if isinstance(extra, list) else None]
        tokens = [token for table in tables for token in _parts(table)]
        tokens += [inner for inner in _inside(document) if "__type" in inner]
        unknown = {key for token in tokens if isinstance(token, dict) for key in token} - _TOKEN
        if unknown:
            problems = [shown(key) for key in sorted(unknown)]
            raise InputError(f"{folder / file} has tokens with unknown settings", problems=problems)


def _check_ids(document: Any, origin: str) -> None:
    model, added = document.get("model"), document.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = [token.get("id") for token in _parts(added) if isinstance(token, dict)]
    ids = [number for number in [*_parts(vocabulary), *tokens] if type(number) is int]
    if max(ids, default=0) > _LARGEST_ID:
        raise InputError(f"{origin} numbers a token {shown(max(ids))}, expected at most {_LARGEST_ID}")


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _inside(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object at any depth."""
    for part in _parts(value):
        if isinstance(part, dict):
            yield part
        yield from _inside(part)


def _packed(text: str, folder: Path) -> str:
    """Return a tokenizer as the header of a checkpoint holds it: as it is, or compressed where that would be too large.

    Raises:
        InputError: now, for one that would make a checkpoint that cannot be opened again.
    """
    packed = text
    if _size(text) > MOST_BYTES:
        packed = _PACKED + base64.b64encode(zlib.compress(text.encode("utf-8"), 9)).decode("ascii")
    if (size := _size(packed)) > MOST_BYTES:
        raise InputError(
            f"the tokenizer in {folder} would take {size / 2**20:.1f} MiB of a checkpoint's header, which has room for "
            f"{MOST_BYTES / 2**20:.1f}",
            hint="remove the words that your texts do not use from the vocabulary, and their rows from the embeddings",
        )
    return packed


def _size(text: str) -> int:
    # In the header it is a string in JSON, which is itself a string in JSON: every quote takes four bytes.
    return len(canonical_json(canonical_json(text)).encode("utf-8"))


def _unpacked(text: str) -> str:
    """Return the tokenizer, the inverse of :func:`_packed`; a file that would fill the memory is refused."""
    if not text.startswith(_PACKED):
        return text
    inflate = zlib.decompressobj()
    inner = inflate.decompress(base64.b64decode(text.removeprefix(_PACKED), validate=True), _MOST_UNPACKED)
    if not inflate.eof:
        raise InputError(f"the stored tokenizer is cut off, or larger than {_MOST_UNPACKED / 2**20:.0f} MiB")
    return inner.decode("utf-8")


def _is_text(value: Any) -> bool:
    """Return whether this is a string without lone surrogates."""
    try:
        return isinstance(value, str) and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


def _settings(preprocess: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the checked description of the tokenizer."""
    settings = preprocess.get("tokenizer")
    if not isinstance(settings, Mapping):
        raise InputError("the preprocessing of a text model has no tokenizer")
    wrong = [key for key, kind in _NEEDED.items() if type(settings.get(key)) is not kind]
    if not wrong:
        wrong += [key for key in ("padding_side", "truncation_side") if settings[key] not in ("left", "right")]
        names = settings["model_input_names"]
        if not names or names != ["input_ids", "attention_mask", "token_type_ids"][: len(names)]:
            wrong.append("model_input_names")
        if not all(isinstance(token, str) for token in settings["special_tokens"].values()):
            wrong.append("special_tokens")
        if settings["vocab_size"] < 1:
            wrong.append("vocab_size")
    if wrong:
        raise InputError("the tokenizer is not described as it must be", problems=[f"{key!r}" for key in wrong])
    return settings


@kept
def _tokenizer(settings: Mapping[str, Any]) -> Any:
    """Build one tokenizer per description: reading a large vocabulary takes a second."""
    with refused_as("the stored tokenizer cannot be read"):  # the Rust library raises bare Exception
        text = _unpacked(settings["json"])
        _check_ids(json.loads(text), "the stored tokenizer")
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(text),
            **settings["special_tokens"],
            **{k: settings[k] for k in _NEEDED if k not in ("json", "special_tokens", "vocab_size")},
        )


# --- images -----------------------------------------------------------------------------------------------------------


def image_preprocess(
    folder: Path, default: str, channels: int, size: tuple[int, int] | None, patch: int | None = None
) -> dict[str, Any]:
    """Read the image processor of a published folder, else the default of the architecture.

    Args:
        folder: may hold ``preprocessor_config.json``.
        default: the class of processor without one.
        channels: of the images that the model takes.
        size: their height and width, or None where the model takes images of any size.
        patch: pixels of a side of what the processor cuts them into; None: it cuts none.

    Raises:
        InputError: for a processor that is unknown or does not fit the model.
    """
    file = next((folder / name for name in _PROCESSOR_FILES if (folder / name).exists()), None)
    if file is not None:
        with refused_as(f"transformers cannot read {file}"):
            processor = AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    else:
        processor = getattr(transformers, default)(**({} if patch is None else {"patch_size": patch}))
        if size is not None:
            (height, width), edge = size, processor.size.shortest_edge
            if getattr(processor, "do_center_crop", False):
                # DeiT's default crops 224 of 256 pixels, CLIP's all of them; the same share of another size.
                share = (edge or processor.size.height) / processor.crop_size.height
                processor.crop_size = {"height": height, "width": width}
                height, width = round(height * share), round(width * share)
            processor.size = {"shortest_edge": height} if edge else {"height": height, "width": width}
    # Through JSON, so that what is used now is what a checkpoint will say.
    settings = json.loads(processor.to_json_string())
    shape = _try(_processor(settings), channels)
    if size is not None and shape[1:] != list(size):
        raise InputError(f"{folder} prepares images of {shape[1]}x{shape[2]}, its model takes {size[0]}x{size[1]}")
    if patch is not None and settings.get("patch_size") != patch:
        raise InputError(f"{folder} cuts images into patches of {shown(settings.get('patch_size'))}, not of {patch}")
    return {"kind": "image", "input_size": shape, "processor": settings}


def image_collate(preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Any]:
    """Return the function from a list of PIL images to pixels ``[B, C, H, W]``, or to patches.

    With patches come which of them are not padding, and their rows and columns.

    Raises:
        InputError: for preprocessing that describes no known image processor.
    """
    size = input_size(preprocess)
    processor = _processor(preprocess.get("processor"))
    shape = _try(processor, size[0])
    if shape != size:
        raise InputError(f"the image processor makes images of {shape}, the checkpoint says {size}")
    mode = mode_of(size[0])
    return lambda samples: _pixels(processor, [in_mode(image, mode) for image in images_of(samples)])


def image_format(preprocess: Mapping[str, Any]) -> ImageFormat:
    """Image format, from the settings of the image processor; its rescaling is part of mean and std."""
    settings, size = preprocess["processor"], preprocess["input_size"]
    if "max_num_patches" in settings:
        raise UsageError("--augment: the model reads patches that its processor cuts; augment the files instead")
    scale = 255 * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 255.0
    normalized = settings.get("do_normalize", True)
    mean, std = (settings["image_mean"], settings["image_std"]) if normalized else ([0.0] * size[0], [1.0] * size[0])
    return ImageFormat(
        tuple(size),
        tuple(m / scale for m in mean),
        tuple(s / scale for s in std),
        _INTERPOLATION[settings.get("resample", 2)],
    )


def random_images(preprocess: Mapping[str, Any], batch: int, seed: int) -> Any:
    """Draw random pixels as :func:`image_collate` gives them; of patches, a square and perhaps some of padding."""
    settings, size = preprocess["processor"], preprocess["input_size"]
    if (most := settings.get("max_num_patches")) is None:
        return random_pixels(size, batch, seed)
    patch = settings["patch_size"]
    rows = size[1] // patch
    mask = (torch.arange(most) < rows**2).int().repeat(batch, 1)
    pixels = random_pixels([most, size[0] * patch**2], batch, seed)
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": torch.full((batch, 2), rows)}


def write_processor(folder: Path, preprocess: Mapping[str, Any]) -> None:
    """Write ``preprocessor_config.json``."""
    write_config(folder / _PROCESSOR_FILE, preprocess["processor"])


def _processor(settings: Any) -> Any:
    """Build the library's processor from its settings."""
    name = settings.get("image_processor_type") if isinstance(settings, Mapping) else None
    if name not in PROCESSORS:
        raise InputError(
            f"transformers' image processor {shown(name)} is not supported", hint=f"supported: {', '.join(PROCESSORS)}"
        )
    for key in ("size", "crop_size", "pad_size"):  # before an image of that size is made
        sizes = settings.get(key) or {}
        if not isinstance(sizes, Mapping) or not is_size([n for n in sizes.values() if n]):
            raise InputError(f"the image processor has the {key} {shown(sizes)}")
    patches = [settings[key] for key in ("patch_size", "max_num_patches") if key in settings]
    if not is_size(patches):
        raise InputError(f"the image processor has the patch_size and max_num_patches {shown(patches)}")
    with refused_as(f"transformers cannot build its {name}"):
        return getattr(transformers, name).from_dict(dict(settings))


def _try(processor: Any, channels: int) -> list[int]:
    """Return the shape ``[C, H, W]`` that a processor gives: the library checks this only when it meets an image.

    Where the processor gives patches, it is the shape of the largest square of them.
    """
    with refused_as("the image processor cannot be used"):
        pixels = _pixels(processor, [Image.new(mode_of(channels), (8, 8))])
    if isinstance(pixels, dict):
        most, width = pixels["pixel_values"].shape[1:]
        shape = [width // processor.patch_size**2, *[processor.patch_size * math.isqrt(most)] * 2]
    else:
        shape = list(pixels.shape[1:])
    if shape[0] != channels:
        raise InputError(f"the image processor gives {shape[0]} channels, the model takes {channels}")
    return shape


def _pixels(processor: Any, images: list[Image.Image]) -> Any:
    batch = processor(images=images, return_tensors="pt")
    return dict(batch) if "spatial_shapes" in batch else batch["pixel_values"]
