"""What the answer of an eval says of its own numbers: a sentence on each that is there, and on no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.evaluate import mc_dropout
from hydractl.evaluate.contenders import Contender
from hydractl.metrics.summary import CONVENTIONS

_KEYED_BY_DATA = ("ood", "diversity", "roc", "scores", "ood_flagged", "corruptions", "seen")
"""Objects whose keys are names that people give, and no names of metrics."""


def conventions(rows: Sequence[Mapping[str, Any]], contenders: Sequence[Contender], score: str) -> dict[str, Any]:
    """One sentence on every metric in the rows; the OOD score; how texts are cut and zero-shot models are asked.

    Args:
        rows: of the answer.
        contenders: what they are about.
        score: the OOD score.
    """
    there = {"probability", *(key for row in rows for key in _keys(row))}
    sentences = {**CONVENTIONS, **mc_dropout.CONVENTIONS}
    found: dict[str, Any] = {key: text for key, text in sentences.items() if key in there}
    found["ood_score"] = score
    for one in contenders:
        for key, value in one.conventions.items():
            found.setdefault(key, {})[one.name] = value
    return found


def _keys(block: Mapping[str, Any]) -> Iterator[str]:
    """The keys of everything that has a value, at any depth."""
    for key, value in block.items():
        if not _has_value(value):
            continue
        yield key
        parts = value if isinstance(value, list) else [value]
        for part in (part for part in parts if isinstance(part, Mapping)):
            inner = part.values() if key in _KEYED_BY_DATA else [part]
            for one in (one for one in inner if isinstance(one, Mapping)):
                yield from _keys(one)


def _has_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_value, value.values()))
    return bool(value) if isinstance(value, list) else value is not None
