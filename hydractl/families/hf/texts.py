"""Texts as inputs of transformers' models. The tokenizer is stored in a checkpoint as plain JSON."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hydractl.errors import InputError, SampleError
from hydractl.families.config_json import Preprocessing, is_whole_number
from hydractl.families.hf.architectures import quiet
from hydractl.families.reading import (
    cached_by_config,
    folder_for_library,
    names_only,
    naming_sample,
    read_config,
    refuse_link_elsewhere,
    refused_as,
    write_config,
)
from hydractl.files.header import MAX_HEADER_BYTES
from hydractl.files.preprocessing import TokenizerSettings
from hydractl.files.tokenizer_text import PACKED, unpacked
from hydractl.jsonio import canonical_json, shown

LONGEST_DEFAULT = 512
"""The greatest number of tokens in a text, unless the model has a lower limit."""

MOST_BYTES = MAX_HEADER_BYTES - (1 << 20)
"""The largest size of a tokenizer in the header of a checkpoint. The remaining MiB is for other entries."""

_EXAMPLE_TOKENS = 128
_ENDS = 8  # more special tokens than any tokenizer adds to a text or a pair of texts


_INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""The possible inputs of a model of texts."""

_KNOWN_SETTINGS = frozenset({
    *("tokenizer_class", "padding_side", "truncation_side", "model_input_names", "model_max_length", "max_len"),
    *("max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "backend"),
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "split_special_tokens"),
    *("add_bos_token", "add_eos_token", "add_prefix_space", "trim_offsets", "errors", "legacy", "unk_id"),
    *("clean_up_tokenization_spaces", "spaces_between_special_tokens", "token_type_ids_include_special_tokens"),
    *("do_basic_tokenize", "do_lower_case", "do_split_on_punc", "do_clean_text", "clean_text", "strip_accents"),
    *("tokenize_chinese_chars", "never_split", "max_input_chars_per_word", "wordpieces_prefix", "split_by_punct"),
    *("keep_accents", "remove_space", "return_token_type_ids", "use_default_system_prompt", "extra_ids"),
    *("src_lang", "tgt_lang", "token_type_ids_pattern", "fix_mistral_regex"),
})  # fmt: skip
"""The settings of a tokenizer that transformers gets from a file; so are all whose names end in ``_token``.

Others name files or repositories, or say how they are fetched.
"""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model"),
)
"""The files of a tokenizer that a published folder may have."""
_VOCABULARIES = (
    *("*.model", "added_tokens.json", "bpe.codes", "dict.txt", "merges.txt", "tekken.json", "tokenizer.json"),
    *("vocab.json", "vocab.txt"),
)
_SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_KIND_OF_MODEL = ("model_type", "tokenizer_class", "transformers_version")
_ONE_TOKENIZER = (
    "save it again with the present transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)

_FEW_CAPITALS = 0.05
"""The share of tokens with capitals that a vocabulary in lower case may have."""
_CANNOT_READ = "the tokenizer cannot read this text"
_LARGEST_ID = 1 << 21  # the Rust library allocates memory for all ids up to the largest, and aborts if that fails
_TOKEN_KEYS = {"__type", "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def text_preprocess(
    folder: Path,
    positions: int,
    vocabulary: int,
    always: Sequence[str],
    if_named: Sequence[str] = (),
    padding: int | None = None,
    pads_with_end: bool = False,
) -> dict[str, Any]:
    """Return what a checkpoint stores of the tokenizer in a published folder: its text, and settings.

    Args:
        folder: has a ``tokenizer.json``, or files from which transformers can make one.
        positions: the greatest number of tokens in a text that the model can take.
        vocabulary: the number of tokens that the model knows.
        always: names of the inputs that the model always gets: ``input_ids``, perhaps ``attention_mask``.
        if_named: names of inputs that the model gets if the tokenizer lists them among its outputs.
        padding: the id of the padding token in the configuration of the model; None if it has none.
        pads_with_end: whether a tokenizer without a padding token may use ``padding`` instead, or, if that is None, the
            token that ends a text.

    Raises:
        InputError: if there is no tokenizer of the Rust library, it has no padding token, it does not fit the model, or
            it is too large for the header of a checkpoint.
    """
    hint = "tokenizer.json and tokenizer_config.json belong beside config.json"
    _check_files(folder)
    cannot_read = f"{folder} has no tokenizer that transformers can read"
    with refused_as(cannot_read, hint):
        tokenizer = _open_tokenizer(folder)

    # Tokenizers of decoders often have no padding token.
    lacks_padding = tokenizer.pad_token is None
    if lacks_padding and pads_with_end:
        if padding is None:
            tokenizer.pad_token = tokenizer.eos_token
        else:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    problems = _tokenizer_problems(tokenizer, folder, vocabulary)
    if problems:
        raise InputError(f"the tokenizer in {folder} cannot be used", problems=problems)

    # A copy, without the truncation and padding that a file may still have from the last call.
    with refused_as(cannot_read, hint):
        rust_tokenizer = tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    _keep_lengths(rust_tokenizer)

    # What a checkpoint stores: the tokenizer itself as a text, and the settings that are not part of this text. A
    # special token may be an object with settings of its own, so take its text; lists of extra tokens are left out.
    longest = int(min(tokenizer.model_max_length, positions))
    known_tokens = tokenizer.special_tokens_map.items()
    special_tokens = {name: str(token) for name, token in known_tokens if not isinstance(token, list)}
    named_inputs = [name for name in if_named if name in tokenizer.model_input_names]
    return {
        "kind": "text",
        "max_length": min(longest, LONGEST_DEFAULT),
        "tokenizer": {
            "json": _pack_for_header(rust_tokenizer.to_str(), folder),
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
    """List the reasons why a model cannot use the tokenizer of a folder; empty if it can.

    Args:
        tokenizer: the tokenizer as transformers has opened it.
        folder: its folder.
        vocabulary: the number of tokens that the model knows.
    """
    problems = []

    # Without its files, transformers silently makes a tokenizer that knows only special tokens. A tokenizer needs
    # either tokenizer.json or all files of its vocabulary.
    files_by_purpose = dict(tokenizer.vocab_files_names)
    files_by_purpose.pop("tokenizer_file", None)
    vocabulary_files = list(files_by_purpose.values())
    has_vocabulary = all((folder / name).is_file() for name in vocabulary_files)
    has_json = (folder / "tokenizer.json").is_file()
    if not has_json and not has_vocabulary:
        listed_files = " and ".join(vocabulary_files) or "another vocabulary"
        problems.append(f"there is no tokenizer.json, nor {listed_files}")

    if not tokenizer.is_fast:
        problems.append(f"{type(tokenizer).__name__} has no tokenizer.json: it runs in Python only")
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float) or not longest >= 1:  # also true for NaN
        problems.append(f"its model_max_length is {shown(longest)}")
    if tokenizer.pad_token is None:
        problems.append("it has no padding token")
    if len(tokenizer) > vocabulary:
        problems.append(f"it knows {len(tokenizer)} tokens, the model {vocabulary}")
    return problems


def capitals_warning(folder: Path, preprocess: Preprocessing) -> str | None:
    """Return a warning if a tokenizer writes texts in lower case though many of its tokens have capitals; else None.

    transformers' tokenizers of BERT and its relatives write texts in lower case unless ``tokenizer_config.json`` says
    otherwise, whatever ``tokenizer.json`` says.

    Args:
        folder: the published folder.
        preprocess: what :func:`text_preprocess` has made of it; that of images has no tokenizer.
    """
    # A folder that says whether to lower the case means it.
    settings = read_config(folder / "tokenizer_config.json") or {}
    if "tokenizer" not in preprocess or "do_lower_case" in settings:
        return None

    # A tokenizer that keeps the case.
    tokenizer = stored_tokenizer(preprocess)
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is None or normalizer.normalize_str("A") != "a":
        return None

    # Tokens with capitals can never occur in lower case. Of 30,000 tokens, 1,500 of them (5 %) give no warning.
    tokens = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    with_capitals = [token for token in tokens if token != token.lower()]
    if len(with_capitals) <= _FEW_CAPITALS * len(tokens):
        return None
    return (
        f"{folder}: texts are written in lower case, though {len(with_capitals):,} of {len(tokens):,} tokens have "
        'capitals: say "do_lower_case": false in tokenizer_config.json, or true'
    )


def _keep_lengths(rust: Any) -> None:
    """Turn off truncation and padding of a Rust tokenizer, in place; both are settings of each call here."""
    rust.no_truncation()
    rust.no_padding()


def _open_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, opened with transformers, which sees only known files and settings.

    transformers' own tokenizer of SigLIP runs in Python. For a SigLIP, ``tokenizer.json`` is opened instead.

    Raises:
        InputError: if ``tokenizer.json`` of a SigLIP does not remove capitals and punctuation as SigLIP's own does.
    """
    file = folder / "tokenizer.json"
    settings = read_config(folder / "tokenizer_config.json") or {}
    class_name = settings.get("tokenizer_class")
    is_siglip = class_name == "SiglipTokenizer" and file.exists()
    # transformers gets a temporary folder with the files of vocabularies and the known settings. It is quiet, because
    # its warnings quote the files, including control characters.
    files, documents = _files_for_library(folder)
    with quiet(), folder_for_library(files, documents) as safe_folder:
        if not is_siglip:
            return AutoTokenizer.from_pretrained(str(safe_folder), local_files_only=True, trust_remote_code=False)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(safe_folder), local_files_only=True)

    # A SigLIP: check on one text that tokenizer.json does what SigLIP's own tokenizer does.
    with_capitals = tokenizer("A photo, of (a) CAT!")["input_ids"]
    without_capitals = tokenizer("a photo of a cat")["input_ids"]
    if with_capitals != without_capitals:
        raise InputError(f"{file} keeps capitals or punctuation, which {class_name} removes")
    return tokenizer


def _files_for_library(folder: Path) -> tuple[list[Path], dict[str, Mapping[str, object]]]:
    """Return what transformers gets to see of a folder to open its tokenizer.

    For safety only known settings pass, so none names a file: a setting such as ``vocab``, in any file of settings,
    would have any file of this machine read and stored with the model. No file may be a link out of the folder.

    Returns:
        The files of vocabularies, and the settings by file name.

    Raises:
        InputError: if a file is a link out of the folder, or the settings name several tokenizers.
    """
    # The files of vocabularies, which are only listed here.
    files: list[Path] = []
    for pattern in _VOCABULARIES:
        files += folder.glob(pattern)

    # The known settings of each file of settings. Special tokens, such as "pad_token", are known by the end of their
    # keys. Of several tokenizers, for several versions of the library, the first would be read, so they are refused.
    documents: dict[str, Mapping[str, object]] = {}
    for name in _SETTINGS_FILES:
        settings = read_config(folder / name)
        if settings is None:
            continue
        known = _KNOWN_SETTINGS.union(key for key in settings if key.endswith("_token"))
        documents[name] = {key: value for key, value in settings.items() if key in known}
        if settings.get("fast_tokenizer_files") not in (None, [], ["tokenizer.json"]):
            raise InputError(f"{folder / name} names several tokenizers (fast_tokenizer_files)", hint=_ONE_TOKENIZER)
    for file in files:
        refuse_link_elsewhere(file)

    # The class of the tokenizer may follow from the kind of the model. transformers guesses a kind that is not named by
    # the path of the folder, which is another one here.
    config = read_config(folder / "config.json") or {}
    if "model_type" in config:
        documents["config.json"] = names_only({key: config[key] for key in _KIND_OF_MODEL if key in config})
    return files, documents


def stored_tokenizer(preprocess: object) -> Any:
    """Return the tokenizer in a preprocessing that :func:`text_preprocess` has made.

    Raises:
        InputError: if the preprocessing has no tokenizer, or its description is wrong.
    """
    return _build_tokenizer(_settings_in(preprocess))


def text_collate(preprocess: object) -> TextCollate:
    """Return a function from a list of texts, or of pairs of texts, to token tensors.

    Raises:
        InputError: if the preprocessing has no tokenizer, or a ``max_length`` that the model cannot take.
    """
    tokenizer = stored_tokenizer(preprocess)
    max_length = preprocess.get("max_length") if isinstance(preprocess, Mapping) else None
    longest = tokenizer.model_max_length
    # Each text of a pair keeps at least one token beside the special ones.
    with refused_as("the stored tokenizer cannot be read"):
        shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    if not is_whole_number(max_length, shortest, longest):
        raise InputError(f"a text of at most {shown(max_length)} tokens: this model takes {shortest} to {longest}")
    return TextCollate(tokenizer, max_length)


def padding_of(preprocess: object) -> int:
    """Return the id of the padding token."""
    return int(stored_tokenizer(preprocess).pad_token_id)


def ends_in_padding(preprocess: object) -> bool:
    """Return whether the tokenizer ends every text with the token that it also pads with."""
    tokenizer = stored_tokenizer(preprocess)
    with refused_as("the stored tokenizer cannot be read"):
        ids = tokenizer("a")["input_ids"]
    return bool(ids) and ids[-1] == tokenizer.pad_token_id


def from_first_token(inputs: Any) -> Any:
    """Return the inputs of a model with padding on the left moved to the right, so that positions count from the text.

    Args:
        inputs: tensors by name, ``[B, T]`` each, of which ``attention_mask`` is 0 for padding. Inputs without a mask,
            and pixels, are returned as they are.
    """
    if not isinstance(inputs, Mapping) or "attention_mask" not in inputs:
        return inputs
    mask = inputs["attention_mask"]
    tokens = mask.shape[1]
    # argmax returns the first position with the greatest value: that of the first token that is not padding. With 2
    # tokens of padding before 3 of text, column 0 takes what was at position 2, and the columns are 2, 3, 4, 0, 1.
    first = mask.int().argmax(dim=1, keepdim=True)  # [B, 1]
    from_first = torch.arange(tokens, device=mask.device) + first  # [B, T]: 2, 3, 4, 5, 6 in the example
    positions = torch.where(from_first < tokens, from_first, from_first - tokens)
    moved = dict(inputs)
    for name in _INPUT_NAMES:
        if name in inputs:
            moved[name] = inputs[name].gather(1, positions)
    return moved


class TextCollate:
    """Tokenizes lists of texts, or of pairs of texts, with transformers' tokenizer.

    Attributes:
        max_length: the greatest number of tokens in a text or pair; longer ones are cut.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer = tokenizer
        self.max_length = max_length

    def __call__(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        """Return the inputs of the model by name, int64 ``[B, T]`` each: ``input_ids`` and so on.

        T is the number of tokens in the longest sample of the batch, and at most ``max_length``. Shorter ones are
        padded on the right, whatever the tokenizer says: many models count positions from the first column, so padding
        on the left would make an answer depend on the texts beside it.

        Args:
            samples: each a ``str`` or a pair ``(str, str)``.

        Raises:
            InputError: if ``samples`` is a single text, or a sample is not a text.
            SampleError: if a sample has no tokens, or the tokenizer cannot read it.
        """
        if isinstance(samples, str):  # iterating over it would give its letters
            raise InputError("preprocess takes a list of texts, not one alone", hint="preprocess([text])")
        batch_texts = [_as_texts(sample) for sample in samples]
        batch = naming_sample(_CANNOT_READ, self._tokenize, batch_texts)
        # An empty text has no tokens if the tokenizer adds no special ones.
        has_tokens = batch["attention_mask"].bool().any(dim=1)  # [B]
        if not bool(has_tokens.all()):
            first_empty = int(has_tokens.int().argmin())
            message = f"this text has no token that can be read: {shown(batch_texts[first_empty])}"
            raise SampleError(message, first_empty)
        return dict(batch)

    def _tokenize(self, batch_texts: Sequence[tuple[str, ...]]) -> Any:
        """Return the tokens of a batch, padded to its longest sample: ``[B, T]`` each, by name.

        Args:
            batch_texts: for each sample a tuple with one text, or with the two texts of a pair.
        """
        tokenize = partial(self._tokenizer, truncation=True, max_length=self.max_length)
        padded = {"padding_side": "right", "return_tensors": "pt"}
        texts_per_sample = {len(texts) for texts in batch_texts}
        mixes_texts_and_pairs = len(texts_per_sample) != 1
        if mixes_texts_and_pairs:  # transformers cannot tokenize these in one call
            tokenized = [tokenize(*texts) for texts in batch_texts]
            return self._tokenizer.pad(tokenized, **padded)
        # One list of all first texts and, for pairs, one list of all second texts.
        columns = [list(column) for column in zip(*batch_texts, strict=True)]
        return tokenize(*columns, padding="longest", **padded)

    def cut(self, samples: Iterable[Any]) -> list[bool]:
        """Return for each sample whether it has more than ``max_length`` tokens, and is truncated.

        A text that the tokenizer cannot read is not: it is an error, or left out, where it becomes an input.

        Raises:
            InputError: if a sample is not a text or a pair of texts.
        """
        rust_tokenizer = self._tokenizer.backend_tokenizer
        _keep_lengths(rust_tokenizer)  # transformers sets truncation and padding again in every call
        are_cut = []
        for sample in samples:
            texts = _as_texts(sample)
            tokens: Sequence[int] = ()  # stays empty, so not cut, for a text that is short or cannot be read
            if not self._is_surely_short(texts):
                with contextlib.suppress(InputError), refused_as(_CANNOT_READ):
                    tokens = rust_tokenizer.encode(*texts).ids
            are_cut.append(len(tokens) > self.max_length)
        return are_cut

    def _is_surely_short(self, texts: tuple[str, ...]) -> bool:
        """Return whether the texts certainly fit into ``max_length``, without tokenizing them, which takes longer.

        A text in ASCII has at most one token for each character, and a few special tokens.
        """
        if not all(map(str.isascii, texts)):
            return False
        characters = sum(map(len, texts))
        return characters <= self.max_length - _ENDS


def _as_texts(sample: Any) -> tuple[str, ...]:
    """Return a text as a tuple of one text, or a pair of texts as a tuple of two.

    Raises:
        InputError: if the sample is neither.
    """
    texts: tuple[Any, ...] = (sample,) if isinstance(sample, str) else tuple(sample)
    if len(texts) not in (1, 2) or not all(map(_is_text, texts)):
        raise InputError(f"this is no text that can be tokenized: {shown(texts)}")
    return texts


def prompt_tokens(preprocess: Any, texts: Sequence[str], full_length: bool) -> dict[str, Tensor]:
    """Tokenize the prompts of classes; return tensors int64 ``[len(texts), T]`` by name.

    Args:
        preprocess: a preprocessing that :func:`text_preprocess` has made.
        texts: the prompts.
        full_length: whether T is ``max_length``, with padding on the tokenizer's own side. Otherwise T is the length of
            the longest text, at most ``max_length``, with padding on the right.

    Raises:
        InputError: if the preprocessing has no tokenizer.
        SampleError: if the tokenizer cannot read a text.
    """
    tokenizer = stored_tokenizer(preprocess)
    tokenize = partial(
        tokenizer,
        padding="max_length" if full_length else "longest",
        padding_side=tokenizer.padding_side if full_length else "right",
        max_length=preprocess["max_length"],
        truncation=True,
        return_tensors="pt",
    )
    return dict(naming_sample(_CANNOT_READ, tokenize, list(texts)))


def random_tokens(preprocess: Preprocessing, batch: int, seed: int) -> dict[str, Tensor]:
    """Return random tokens without padding, ``[batch, T]`` with T at most 128, as inputs for measuring cost.

    Returns:
        The inputs of the model by name: ``input_ids``, perhaps ``attention_mask`` and ``token_type_ids``.
    """
    settings = _checked(_settings_in(preprocess))
    max_length: Any = preprocess["max_length"]
    tokens = min(max_length, _EXAMPLE_TOKENS)
    shape = (batch, tokens)
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "input_ids": torch.randint(settings.vocab_size, shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }
    return {name: inputs[name] for name in settings.model_input_names}


def write_tokenizer(folder: Path, preprocess: object, padding_side: str | None = None) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` in transformers' format.

    Args:
        folder: an existing folder.
        preprocess: a preprocessing that :func:`text_preprocess` has made.
        padding_side: ``left`` or ``right``; None means the tokenizer's own.
    """
    settings = _checked(_settings_in(preprocess))
    own_side = {} if padding_side is None else {"padding_side": padding_side}
    document = {
        **_library_settings(settings),
        **own_side,
        # This class uses tokenizer.json unchanged; a class named after a model would rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **settings.special_tokens,
    }
    tokenizer_json = unpacked(settings.json_)
    (folder / "tokenizer.json").write_text(f"{tokenizer_json}\n", encoding="utf-8")
    write_config(folder / "tokenizer_config.json", document)


def _library_settings(settings: TokenizerSettings) -> dict[str, object]:
    """Return the settings that transformers' ``PreTrainedTokenizerFast`` takes as arguments."""
    return {
        "padding_side": settings.padding_side,
        "truncation_side": settings.truncation_side,
        "pad_token_type_id": settings.pad_token_type_id,
        "model_input_names": list(settings.model_input_names),
        "model_max_length": settings.model_max_length,
    }


# --- files of a tokenizer ---------------------------------------------------------------------------------------------


def _check_files(folder: Path) -> None:
    """Raise an error if files of a tokenizer would make the Rust library misbehave, before it reads them.

    The library prints unknown settings of tokens to standard output without escaping them, and allocates memory for all
    ids up to the largest.

    Raises:
        InputError: if a token has unknown settings (all are listed), or an id is too large.
    """
    for name in ("tokenizer.json", *_SETTINGS_FILES, "vocab.json"):
        file = folder / name
        document = read_config(file) or {}
        origin = str(file)
        # The ids. vocab.json is only the vocabulary, from words to ids, which tokenizer.json has inside it.
        is_vocabulary = name == "vocab.json"
        _check_ids({"model": {"vocab": document}} if is_vocabulary else document, origin)

        # The settings of tokens.
        unknown_settings: set[str] = set()
        for token in _tokens_in(document, is_map=name == "special_tokens_map.json"):
            unknown_settings |= token.keys() - _TOKEN_KEYS
        if unknown_settings:
            problems = [shown(key) for key in sorted(unknown_settings)]
            raise InputError(f"{origin} has tokens with unknown settings", problems=problems)


def _tokens_in(document: Mapping[str, object], is_map: bool) -> Iterator[dict[str, object]]:
    """Yield every token that a file describes by an object with settings; a token may be yielded twice.

    Args:
        document: the content of the file.
        is_map: whether the file is a map of special tokens, in which every value is a token or a list of tokens.
    """
    # In a map of special tokens, transformers reads the entry "extra_special_tokens" only if it is a list, and ignores
    # an object. So it is no entry like the others.
    entries = dict(document)
    extra_tokens = entries.pop("extra_special_tokens", None) if is_map else None

    # The tables of a file in which an object is a token, each a list or an object; None if the file does not have it.
    tables = [entries.get("added_tokens"), entries.get("added_tokens_decoder")]
    if is_map:
        tables.append(entries)
    if isinstance(extra_tokens, list):
        tables.append(extra_tokens)
    for table in tables:
        for token in _values_of(table):
            if isinstance(token, dict):
                yield token
    # transformers treats every object with the key "__type" as a token, at any depth.
    for inner in _objects_inside(entries):
        if "__type" in inner:
            yield inner


def _check_ids(document: Mapping[str, object], origin: str) -> None:
    """Raise an error if the id of a token is larger than in any vocabulary.

    Args:
        document: the content of a ``tokenizer.json``, which may be anything. Ids are the values of ``model.vocab``, and
            the ``id`` of each object in ``added_tokens``.
        origin: the file, for messages.

    Raises:
        InputError: with the largest id.
    """
    # Collect all ids, of which a broken file may have some that are no numbers.
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    possible_ids = list(_values_of(vocabulary))
    for token in _values_of(document.get("added_tokens")):
        if isinstance(token, dict):
            possible_ids.append(token.get("id"))
    ids = [possible_id for possible_id in possible_ids if type(possible_id) is int]
    largest = max(ids, default=0)
    if largest > _LARGEST_ID:
        raise InputError(f"{origin} numbers a token {shown(largest)}, expected at most {_LARGEST_ID}")


def _values_of(value: object) -> Iterable[Any]:
    """Return the values of an object or the items of a list; nothing for any other value."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def _objects_inside(value: object) -> Iterator[dict[str, object]]:
    """Yield every object inside a JSON value, at any depth."""
    for inner in _values_of(value):
        if isinstance(inner, dict):
            yield inner
        yield from _objects_inside(inner)


# --- the stored tokenizer ---------------------------------------------------------------------------------------------


def _pack_for_header(text: str, folder: Path) -> str:
    """Return the text of a tokenizer for the header of a checkpoint; it is compressed if it would be too large.

    Args:
        text: the text of ``tokenizer.json``.
        folder: the folder of the tokenizer, for messages.

    Raises:
        InputError: if the tokenizer is too large even when compressed, because the checkpoint could not be opened.
    """
    packed = text
    if _size_in_header(text) > MOST_BYTES:
        compressed = zlib.compress(text.encode("utf-8"), 9)
        packed = PACKED + base64.b64encode(compressed).decode("ascii")
    size = _size_in_header(packed)
    if size > MOST_BYTES:
        raise InputError(
            f"the tokenizer in {folder} would take {size / 2**20:.1f} MiB of a checkpoint's header, which has room for "
            f"{MOST_BYTES / 2**20:.1f}",
            hint="remove the words that your texts do not use from the vocabulary, and their rows from the embeddings",
        )
    return packed


def _size_in_header(text: str) -> int:
    """Return the number of bytes that a text takes in the header of a checkpoint.

    The header is JSON that contains JSON as a string, so the text is escaped twice: a quote takes four bytes.
    """
    string_in_json = canonical_json(text)
    in_header = canonical_json(string_in_json)
    return len(in_header.encode("utf-8"))


def _is_text(value: Any) -> bool:
    """Return whether a value is a string that can be encoded, i.e. has no lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _settings_in(preprocess: object) -> Mapping[str, object]:
    """Return the settings of the tokenizer in a preprocessing, which comes from a file and may be anything.

    Raises:
        InputError: if there is no tokenizer.
    """
    settings = preprocess.get("tokenizer") if isinstance(preprocess, Mapping) else None
    if not isinstance(settings, Mapping):
        raise InputError("the preprocessing of a text model has no tokenizer")
    return settings


def _checked(settings: Mapping[str, object]) -> TokenizerSettings:
    """Return the settings of a tokenizer after checking them.

    Raises:
        InputError: if some keys are missing or have wrong values; all these keys are listed.
    """
    return TokenizerSettings.checked(settings, "the tokenizer is not described as it must be")


@cached_by_config
def _build_tokenizer(stored: Mapping[str, object]) -> Any:
    """Build transformers' tokenizer from its settings; results are cached, as a large vocabulary takes a second."""
    settings = _checked(stored)
    with refused_as("the stored tokenizer cannot be read"):  # the Rust library raises plain Exception
        text = unpacked(settings.json_)
        _check_ids(json.loads(text), "the stored tokenizer")
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(text),
            **settings.special_tokens,
            **_library_settings(settings),
        )
