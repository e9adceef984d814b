"""JSON entries that are the same in rows, checkpoints and the headers of predictions files."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from hydractl.data.base import SkippedSamples


class DataEntry(TypedDict):
    """The record of one data set."""

    spec: str
    n: int
    fingerprint: str
    list: NotRequired[str]  # the name of the list, if the set is one of the OpenOOD benchmark
    skipped: NotRequired[SkippedSamples]
    left_out: NotRequired[int]  # samples that were removed from a validation set because they are training data


class ScoreDataEntry(DataEntry):
    """The record of the training data and words to which OOD scores on features are fitted."""

    knn_k: int
    negative_words: NotRequired[str]


class StoredScoreEntry(TypedDict):
    """The OOD score in a checkpoint; for a score on features also the data to which it was fitted."""

    score: str
    fitted_on: NotRequired[ScoreDataEntry]


class Asking(TypedDict, total=False):
    """The length in tokens at which texts are cut, and the templates of prompts for a zero-shot model."""

    max_length: int
    prompt: list[str]
