"""Texts as inputs of transformers' models: the tokenizer as plain data, which a checkpoint holds itself."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import tokenizers
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hydractl.errors import InputError
from hydractl.families.config_json import Preprocessing, is_whole_number
from hydractl.families.hf.architectures import quiet
from hydractl.families.reading import cached_by_config, read_config, refused_as, write_config
from hydractl.files.header import MAX_HEADER_BYTES
from hydractl.jsonio import canonical_json, shown

LONGEST_DEFAULT = 512
"""Tokens of a text at most, where the checkpoint itself sets no lower limit."""

MOST_BYTES = MAX_HEADER_BYTES - (1 << 20)
"""Largest size of a tokenizer in the header of a checkpoint; the rest is for the other entries."""

_PACKED = "zlib:"
_MOST_UNPACKED = 1 << 27
_EXAMPLE_TOKENS = 128
_ENDS = 8  # more tokens than any tokenizer adds to a text or a pair


class TokenizerSettings(TypedDict):
    """A tokenizer of the Rust library and its settings, by transformers' names for them.

    ``json`` is its ``tokenizer.json``, perhaps packed; ``vocab_size`` how many tokens it knows.
    """

    json: str
    special_tokens: dict[str, str]
    padding_side: str
    truncation_side: str
    pad_token_type_id: int
    model_input_names: list[str]
    model_max_length: int
    vocab_size: int


class TextPreprocessing(TypedDict):
    """How texts become tokens: ``max_length`` of them at most."""

    kind: str
    max_length: int
    tokenizer: TokenizerSettings


_TYPES = {
    "json": str,
    "special_tokens": dict,
    "padding_side": str,
    "truncation_side": str,
    "pad_token_type_id": int,
    "model_input_names": list,
    "model_max_length": int,
    "vocab_size": int,
}
"""The types of the :class:`TokenizerSettings` in JSON."""
_INPUT_NAMES = ["input_ids", "attention_mask", "token_type_ids"]
"""What a model may be given of a text: the first of these."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model"),
)
"""The files of a tokenizer that a folder of the hub may hold."""

_LARGEST_ID = 1 << 21  # of a token: the Rust library sets memory aside for as many, and aborts where there is none
_TOKEN_KEYS = {"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def text_preprocess(
    folder: Path,
    positions: int,
    vocabulary: int,
    always: Sequence[str],
    if_named: Sequence[str] = (),
    padding: int | None = None,
    pads_with_end: bool = False,
) -> TextPreprocessing:
    """Read the tokenizer of a published folder with its settings.

    Args:
        folder: holds ``tokenizer.json``, or what the library can make one of.
        positions: how many tokens the model can take.
        vocabulary: how many tokens it knows.
        always: what the model is given of a text: ``input_ids``, perhaps ``attention_mask``.
        if_named: what it is given beside where the tokenizer names it among its outputs.
        padding: the number of the padding token that the model knows.
        pads_with_end: whether a tokenizer without a padding token takes that one, or else the one that ends a text.

    Raises:
        InputError: for a folder without a tokenizer of the Rust library, without a padding token, or of another model,
            and for a tokenizer that is too large for the header of a checkpoint.
    """
    hint = "tokenizer.json and tokenizer_config.json belong beside config.json"
    _check_files(folder)
    with refused_as(f"{folder} has no tokenizer that transformers can read", hint):
        tokenizer = _open_tokenizer(folder)
    lacks_padding = tokenizer.pad_token is None
    if lacks_padding and pads_with_end:
        if padding is None:
            tokenizer.pad_token = tokenizer.eos_token
        else:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    problems = _tokenizer_problems(tokenizer, folder, vocabulary)
    if problems:
        raise InputError(f"the tokenizer in {folder} cannot be used", problems=problems)
    rust = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    _keep_lengths(rust)  # a file may still hold those of the last call
    longest = int(min(tokenizer.model_max_length, positions))
    special_tokens = {}
    for name, token in tokenizer.special_tokens_map.items():
        if not isinstance(token, list):
            special_tokens[name] = str(token)
    named_inputs = [name for name in if_named if name in tokenizer.model_input_names]
    return {
        "kind": "text",
        "max_length": min(longest, LONGEST_DEFAULT),
        "tokenizer": {
            "json": _pack_for_header(rust.to_str(), folder),
            "special_tokens": special_tokens,
            "padding_side": tokenizer.padding_side,
            "truncation_side": tokenizer.truncation_side,
            "pad_token_type_id": tokenizer.pad_token_type_id,
            "model_input_names": [*always, *named_inputs],
            "model_max_length": longest,
            "vocab_size": len(tokenizer),
        },
    }


def _tokenizer_problems(tokenizer: Any, folder: Path, vocabulary: int) -> list[str]:
    """List why the tokenizer of a folder cannot be used by a model.

    Args:
        tokenizer: as the library has opened it.
        folder: of it.
        vocabulary: how many tokens the model knows.
    """
    problems = []
    files_by_purpose = dict(tokenizer.vocab_files_names)
    files_by_purpose.pop("tokenizer_file", None)
    vocabulary_files = list(files_by_purpose.values())
    has_vocabulary = all((folder / name).exists() for name in vocabulary_files)
    has_json = (folder / "tokenizer.json").exists()
    if not has_json and not has_vocabulary:
        # Without its files the library makes a tokenizer that knows nothing but special tokens.
        listed = " and ".join(vocabulary_files) or "another vocabulary"
        problems.append(f"there is no tokenizer.json, nor {listed}")
    if not tokenizer.is_fast:
        problems.append(f"{type(tokenizer).__name__} has no tokenizer.json: it runs in Python only")
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float) or not longest >= 1:  # NaN is not
        problems.append(f"its model_max_length is {shown(longest)}")
    if tokenizer.pad_token is None:
        problems.append("it has no padding token")
    if len(tokenizer) > vocabulary:
        problems.append(f"it knows {len(tokenizer)} tokens, the model {vocabulary}")
    return problems


def _keep_lengths(rust: Any) -> None:
    """Make a tokenizer of the Rust library neither cut nor pad texts: lengths are settings of a call."""
    rust.no_truncation()
    rust.no_padding()


def _open_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a folder as the library does; for SigLIP's, which runs in Python, the one of its file.

    Raises:
        InputError: for a file that is to stand in for SigLIP's tokenizer, and does not clean texts as that does.
    """
    file = folder / "tokenizer.json"
    settings = read_config(folder / "tokenizer_config.json") or {}
    class_name = settings.get("tokenizer_class")
    is_siglip = class_name == "SiglipTokenizer" and file.exists()
    with quiet():  # the library's warnings quote the files, control characters and all
        if not is_siglip:
            return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    with_capitals = tokenizer("A photo, of (a) CAT!")["input_ids"]
    without_capitals = tokenizer("a photo of a cat")["input_ids"]
    if with_capitals != without_capitals:
        raise InputError(f"{file} keeps capitals or punctuation, which {class_name} removes")
    return tokenizer


def stored_tokenizer(preprocess: object) -> Any:
    """Return the tokenizer that :func:`text_preprocess` describes.

    Raises:
        InputError: for what describes none.
    """
    settings = _checked_settings(preprocess)
    return _build_tokenizer(settings)


def text_collate(preprocess: object) -> TextCollate:
    """Return the function from a list of ``str`` or ``(str, str)`` to token tensors.

    These are ``input_ids``, ``attention_mask`` (and ``token_type_ids``).

    Raises:
        InputError: for preprocessing that describes no tokenizer, or a length that the model cannot take.
    """
    tokenizer = stored_tokenizer(preprocess)
    length = None
    if isinstance(preprocess, Mapping):
        length = preprocess.get("max_length")
    longest = tokenizer.model_max_length
    least = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if not is_whole_number(length, least, longest):
        raise InputError(f"a text of at most {shown(length)} tokens: this model takes {least} to {longest}")
    return TextCollate(tokenizer, length)


def padding_of(preprocess: object) -> int:
    """Return the number of the padding token."""
    tokenizer = stored_tokenizer(preprocess)
    return int(tokenizer.pad_token_id)


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
        batch_texts = [_as_texts(sample) for sample in samples]
        batch = self._tokenize(batch_texts)
        has_tokens = batch["attention_mask"].bool().any(dim=1)
        if not bool(has_tokens.all()):  # of a tokenizer that adds none of its own
            first_empty = int(has_tokens.int().argmin())
            raise InputError(f"this text has no token that can be read: {shown(batch_texts[first_empty])}")
        return dict(batch)

    def _tokenize(self, batch_texts: Sequence[tuple[str, ...]]) -> Any:
        """Return the library's tokens of a batch, padded to its longest: ``[B, T]`` each, by name.

        Args:
            batch_texts: each a text, or a pair of texts.
        """
        tokenize = partial(self._tokenizer, truncation=True, max_length=self.max_length)
        lengths = {len(texts) for texts in batch_texts}
        has_texts_and_pairs = len(lengths) != 1
        if has_texts_and_pairs:  # which the library does not take in one call
            tokenized = [tokenize(*texts) for texts in batch_texts]
            return self._tokenizer.pad(tokenized, return_tensors="pt")
        columns = [list(column) for column in zip(*batch_texts, strict=True)]  # all first texts, all second ones
        return tokenize(*columns, padding="longest", return_tensors="pt")

    def cut(self, samples: Iterable[Any]) -> int:
        """Count the samples with more than ``max_length`` tokens, which are truncated.

        Raises:
            InputError: for what is no text.
        """
        rust = self._tokenizer.backend_tokenizer
        _keep_lengths(rust)  # the library sets both anew at every call
        count = 0
        for sample in samples:
            texts = _as_texts(sample)
            if self._is_surely_short(texts):
                continue
            tokens = rust.encode(*texts).ids
            if len(tokens) > self.max_length:
                count += 1
        return count

    def _is_surely_short(self, texts: tuple[str, ...]) -> bool:
        """Return whether the texts need not be tokenized to know that they fit, which holds for most of them.

        Plain ASCII has at most a token for each character, and a few that mark its ends.
        """
        if not all(map(str.isascii, texts)):
            return False
        characters = sum(map(len, texts))
        return characters <= self.max_length - _ENDS


def _as_texts(sample: Any) -> tuple[str, ...]:
    """Return a sample, a text or a pair of texts, as a tuple of one or two.

    Raises:
        InputError: it is neither.
    """
    texts: tuple[Any, ...] = (sample,)
    if not isinstance(sample, str):
        texts = tuple(sample)
    if len(texts) not in (1, 2) or not all(map(_is_text, texts)):
        raise InputError(f"this is no text that can be tokenized: {shown(texts)}")
    return texts


def prompt_tokens(preprocess: Any, texts: Sequence[str], full_length: bool) -> dict[str, Tensor]:
    """Return tokens int64 ``[len(texts), T]`` of the prompts of classes.

    Args:
        preprocess: as of :func:`text_preprocess`.
        texts: the prompts.
        full_length: whether T is ``max_length``; else it is that of the longest text, and at most that.

    Raises:
        InputError: for preprocessing that describes no tokenizer.
    """
    tokenizer = stored_tokenizer(preprocess)
    tokens = tokenizer(
        list(texts),
        padding="max_length" if full_length else "longest",
        max_length=preprocess["max_length"],
        truncation=True,
        return_tensors="pt",
    )
    return dict(tokens)


def random_tokens(preprocess: Preprocessing, batch: int, seed: int) -> dict[str, Tensor]:
    """Draw random token ids ``[batch, T]`` without padding, T at most 128: inputs for measuring cost.

    Returns:
        What the model is given of a text, by name: ``input_ids``, perhaps ``attention_mask`` and ``token_type_ids``.
    """
    settings = _checked_settings(preprocess)
    max_length: Any = preprocess["max_length"]
    tokens = min(max_length, _EXAMPLE_TOKENS)
    shape = (batch, tokens)
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "input_ids": torch.randint(settings["vocab_size"], shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }
    return {name: inputs[name] for name in settings["model_input_names"]}


def write_tokenizer(folder: Path, preprocess: object) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` as the library reads them."""
    settings = _checked_settings(preprocess)
    document = {
        **_library_settings(settings),
        # The class that takes tokenizer.json as it is; a class named after a model would rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **settings["special_tokens"],
    }
    tokenizer_json = _unpack(settings["json"])
    (folder / "tokenizer.json").write_text(f"{tokenizer_json}\n", encoding="utf-8")
    write_config(folder / "tokenizer_config.json", document)


def _library_settings(settings: TokenizerSettings) -> dict[str, object]:
    """Return the settings that the library's own class takes."""
    return {
        "padding_side": settings["padding_side"],
        "truncation_side": settings["truncation_side"],
        "pad_token_type_id": settings["pad_token_type_id"],
        "model_input_names": settings["model_input_names"],
        "model_max_length": settings["model_max_length"],
    }


# --- files of a tokenizer ---------------------------------------------------------------------------------------------


def _check_files(folder: Path) -> None:
    """Refuse files of a tokenizer by which the Rust library would do harm, before it is given them.

    It prints the names of unknown settings of tokens on standard output as they are, and sets memory aside for as many
    tokens as the largest number says.

    Raises:
        InputError: naming the settings, or the number.
    """
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"):
        file = folder / name
        document = read_config(file) or {}
        origin = str(file)
        if name == "vocab.json":  # the vocabulary alone
            _check_ids({"model": {"vocab": document}}, origin)
        else:
            _check_ids(document, origin)
        unknown: set[str] = set()
        for token in _tokens_in(document, is_map=name == "special_tokens_map.json"):
            unknown |= token.keys() - _TOKEN_KEYS
        if unknown:
            problems = [shown(key) for key in sorted(unknown)]
            raise InputError(f"{origin} has tokens with unknown settings", problems=problems)


def _tokens_in(document: Mapping[str, object], is_map: bool) -> Iterator[dict[str, object]]:
    """Yield the tokens that a file describes with their settings.

    Args:
        document: the file.
        is_map: whether all its values are tokens, or a list of them.
    """
    values = dict(document)
    tables = [values.get("added_tokens"), values.get("added_tokens_decoder")]
    if is_map:
        extra = values.pop("extra_special_tokens", None)
        tables.append(values)
        if isinstance(extra, list):
            tables.append(extra)
    for table in tables:
        for token in _values_of(table):
            if isinstance(token, dict):
                yield token
    for inner in _objects_inside(values):
        if "__type" in inner:  # which marks a token wherever it stands
            yield inner


def _check_ids(document: Mapping[str, object], origin: str) -> None:
    """Refuse numbers of tokens that are larger than any vocabulary.

    Args:
        document: a ``tokenizer.json``, in which anything may stand: the numbers are the values of ``model.vocab`` and
            the ``id`` of each of ``added_tokens``.
        origin: the file, for messages.

    Raises:
        InputError: naming the largest number.
    """
    model = document.get("model")
    vocabulary = None
    if isinstance(model, dict):
        vocabulary = model.get("vocab")
    numbers = list(_values_of(vocabulary))
    for token in _values_of(document.get("added_tokens")):
        if isinstance(token, dict):
            numbers.append(token.get("id"))
    whole_numbers = [number for number in numbers if type(number) is int]
    largest = max(whole_numbers, default=0)
    if largest > _LARGEST_ID:
        raise InputError(f"{origin} numbers a token {shown(largest)}, expected at most {_LARGEST_ID}")


def _values_of(value: object) -> Iterable[Any]:
    """Return the values of an object or of a list; nothing of anything else."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def _objects_inside(value: object) -> Iterator[dict[str, object]]:
    """Yield every object at any depth."""
    for inner in _values_of(value):
        if isinstance(inner, dict):
            yield inner
        yield from _objects_inside(inner)


# --- the stored tokenizer ---------------------------------------------------------------------------------------------


def _pack_for_header(text: str, folder: Path) -> str:
    """Return a tokenizer as the header of a checkpoint holds it: as it is, or compressed where that would be too large.

    Args:
        text: its ``tokenizer.json``.
        folder: it comes from, for messages.

    Raises:
        InputError: now, for one that would make a checkpoint that cannot be opened again.
    """
    packed = text
    if _size_in_header(text) > MOST_BYTES:
        compressed = zlib.compress(text.encode("utf-8"), 9)
        packed = _PACKED + base64.b64encode(compressed).decode("ascii")
    size = _size_in_header(packed)
    if size > MOST_BYTES:
        raise InputError(
            f"the tokenizer in {folder} would take {size / 2**20:.1f} MiB of a checkpoint's header, which has room for "
            f"{MOST_BYTES / 2**20:.1f}",
            hint="remove the words that your texts do not use from the vocabulary, and their rows from the embeddings",
        )
    return packed


def _size_in_header(text: str) -> int:
    """Return how many bytes a text takes in the header of a checkpoint.

    It is a string in JSON there, which is itself a string in JSON: every quote takes four bytes.
    """
    string_in_json = canonical_json(text)
    in_header = canonical_json(string_in_json)
    return len(in_header.encode("utf-8"))


def _unpack(text: str) -> str:
    """Return the ``tokenizer.json``, the inverse of :func:`_pack_for_header`.

    Raises:
        InputError: for one that would fill the memory, or is cut off.
    """
    if not text.startswith(_PACKED):
        return text
    inflate = zlib.decompressobj()
    compressed = base64.b64decode(text.removeprefix(_PACKED), validate=True)
    unpacked = inflate.decompress(compressed, _MOST_UNPACKED)
    if not inflate.eof:
        raise InputError(f"the stored tokenizer is cut off, or larger than {_MOST_UNPACKED / 2**20:.0f} MiB")
    return unpacked.decode("utf-8")


def _is_text(value: Any) -> bool:
    """Return whether this is a string without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _checked_settings(preprocess: object) -> TokenizerSettings:
    """Return the description of the tokenizer in a preprocessing, which comes from a file and may hold anything.

    Raises:
        InputError: it has none, or one with keys that are missing or have impossible values; all of them are named.
    """
    settings = None
    if isinstance(preprocess, Mapping):
        settings = preprocess.get("tokenizer")
    if not isinstance(settings, Mapping):
        raise InputError("the preprocessing of a text model has no tokenizer")
    wrong = []
    for key, kind in _TYPES.items():
        if type(settings.get(key)) is not kind:
            wrong.append(key)
    if not wrong:
        wrong = _keys_of_impossible_values(settings)
    if wrong:
        raise InputError("the tokenizer is not described as it must be", problems=[repr(key) for key in wrong])
    return cast("TokenizerSettings", settings)


def _keys_of_impossible_values(settings: Mapping[str, Any]) -> list[str]:
    """List the keys whose values are of the right type, but no tokenizer has them."""
    wrong = []
    for key in ("padding_side", "truncation_side"):
        if settings[key] not in ("left", "right"):
            wrong.append(key)
    names = settings["model_input_names"]
    are_first_names = names == _INPUT_NAMES[: len(names)]
    if not names or not are_first_names:
        wrong.append("model_input_names")
    special_tokens = settings["special_tokens"].values()
    if not all(isinstance(token, str) for token in special_tokens):
        wrong.append("special_tokens")
    if settings["vocab_size"] < 1:
        wrong.append("vocab_size")
    return wrong


@cached_by_config
def _build_tokenizer(settings: TokenizerSettings) -> Any:
    """Build the library's tokenizer of a description, once for each: reading a large vocabulary takes a second."""
    with refused_as("the stored tokenizer cannot be read"):  # the Rust library raises bare Exception
        text = _unpack(settings["json"])
        _check_ids(json.loads(text), "the stored tokenizer")
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(text),
            **settings["special_tokens"],
            **_library_settings(settings),
        )
