"""The words of ``--negative-words``: texts that name none of the classes, for an OOD score on class texts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from hydractl.data.names import read_words
from hydractl.evaluation.options import FitOptions
from hydractl.metrics.ood_scores import ON_FEATURES


def words_for(scores: Collection[str], fit: FitOptions) -> list[str]:
    """Read the words of ``--negative-words`` if one of the OOD scores needs words; otherwise return an empty list.

    Raises:
        InputError: if the file cannot be read, or has no words.
    """
    if fit.negative_words is None:
        return []
    if not any(ON_FEATURES[name] == "words" for name in scores):
        return []
    return read_words(fit.negative_words)


def digest_of_words(words: Collection[str]) -> str:
    """Return the SHA-256 of words, joined by line breaks."""
    lines = "\n".join(words)
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
