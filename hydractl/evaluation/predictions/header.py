"""Entries that rows, checkpoints and the headers of predictions files have in common, as JSON."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from hydractl.data.base import SkippedSamples


class DataEntry(TypedDict):
    """One data set as documents hold it."""

    spec: str
    n: int
    fingerprint: str
    list: NotRequired[str]  # the list of OpenOOD that it is
    skipped: NotRequired[SkippedSamples]
    left_out: NotRequired[int]  # training samples that are not in a validation set


class ScoreDataEntry(DataEntry):
    """The training data, and the words, that OOD scores on features are fitted to."""

    knn_k: int
    negative_words: NotRequired[str]


class StoredScoreEntry(TypedDict):
    """The OOD score of a checkpoint; one on features with what it was fitted to."""

    score: str
    fitted_on: NotRequired[ScoreDataEntry]


class Asking(TypedDict, total=False):
    """At how many tokens a text is cut, and with which templates a zero-shot model is asked."""

    max_length: int
    prompt: list[str]
