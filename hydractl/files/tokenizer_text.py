"""The text of a tokenizer in the header of a checkpoint, and whether its tokens look like those of another file.

A folder could once name any file of the machine as its vocabulary, which was then stored with the model.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping

from hydractl.errors import InputError

PACKED = "zlib:"
"""The start of a text that is compressed."""
_MOST_UNPACKED = 1 << 27

_CHECKED = "Checked are NAME=value, -----BEGIN, the beginnings of known keys, and long words of letters and digits"
_FOREIGN = re.compile(
    r"[A-Za-z_][\w.-]{2,}\s?=\s?[\w./:@+-]{3}"  # an entry of an environment or of settings
    r"|-----BEGIN"
    r"|\b(hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[\w-]{16}",
    re.ASCII,
)
_LONG_WORD = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}", re.ASCII)
_MOST_COUNTED = 1000


def unpacked(text: str) -> str:
    """Return the text of ``tokenizer.json``, which a large one has compressed.

    Raises:
        InputError: if the compressed text is cut off, or would be larger than 128 MiB.
    """
    if not text.startswith(PACKED):
        return text
    inflate = zlib.decompressobj()
    compressed = base64.b64decode(text.removeprefix(PACKED), validate=True)
    plain = inflate.decompress(compressed, _MOST_UNPACKED)
    if not inflate.eof:
        raise InputError(f"the stored tokenizer is cut off, or larger than {_MOST_UNPACKED / 2**20:.0f} MiB")
    return plain.decode("utf-8")


def foreign_tokens(preprocess: Mapping[str, object]) -> str | None:
    """Return a warning if tokens of a stored tokenizer look like lines of another file; None if none does.

    This is a hint and no proof: most files have no such lines. The tokens themselves are not quoted, as they may be
    secrets.

    Args:
        preprocess: the preprocessing of a model; it comes from a file and may hold anything.
    """
    count = 0
    for token in _tokens(preprocess):
        if _looks_foreign(token):
            count += 1
            if count == _MOST_COUNTED:
                break
    if count == 0:
        return None
    many = "or more " if count == _MOST_COUNTED else ""
    return (
        f"{count} {many}tokens of its tokenizer look like lines of a file that is no vocabulary, such as an "
        f"environment or a key: look at them before you pass it on. {_CHECKED}: a hint, no proof"
    )


def _looks_foreign(token: str) -> bool:
    """Return whether a token looks like a setting with its value, or like a key."""
    if _FOREIGN.search(token):
        return True
    word = _LONG_WORD.fullmatch(token)
    if word is None:
        return False
    digits = sum(character.isdigit() for character in token)
    letters = sum(character.isalpha() for character in token)
    return digits >= 4 and letters >= 4 and len(set(token)) >= 10


def _tokens(preprocess: Mapping[str, object]) -> Iterator[str]:
    """Yield the tokens of the tokenizer in a preprocessing; those of a broken one as far as they can be read."""
    for holder in (preprocess, preprocess.get("texts")):
        settings = holder.get("tokenizer") if isinstance(holder, Mapping) else None
        if not isinstance(settings, Mapping):
            continue
        special = settings.get("special_tokens")
        if isinstance(special, Mapping):
            yield from _texts_in(list(special.values()))
        text = settings.get("json")
        if not isinstance(text, str):
            continue
        try:
            document = json.loads(unpacked(text))
        except (ValueError, InputError, zlib.error, RecursionError):  # whoever opens the tokenizer says so
            continue
        if not isinstance(document, dict):
            continue
        model = document.get("model")
        if isinstance(model, dict):
            yield from _texts_in(model.get("vocab"))
        for added in document.get("added_tokens") or ():
            if isinstance(added, dict):
                yield from _texts_in([added.get("content")])


def _texts_in(vocabulary: object) -> Iterator[str]:
    """Yield the words of a vocabulary: the keys of a table, or the items of a list, which may be pairs with scores."""
    for item in vocabulary if isinstance(vocabulary, (dict, list)) else ():
        word = item[0] if isinstance(item, list) and item else item
        if isinstance(word, str):
            yield word
