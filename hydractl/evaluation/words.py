"""The words of ``--negative-words``, which an OOD score on class texts takes for what no class is."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from hydractl.data.names import read_words
from hydractl.evaluation.options import FitOptions
from hydractl.metrics.ood_scores import ON_FEATURES


def words_for(scores: Collection[str], fit: FitOptions) -> list[str]:
    """Return the words of the command, where one of the scores on features needs them; else none.

    Raises:
        InputError: the file cannot be read, or has no words.
    """
    if fit.negative_words is None:
        return []
    if not any(ON_FEATURES[name] == "words" for name in scores):
        return []
    return read_words(fit.negative_words, "--negative-words")


def digest_of_words(words: Collection[str]) -> str:
    """Return the SHA-256 of words, one a line."""
    lines = "\n".join(words)
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
