"""Whether models can be averaged, from their descriptions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.errors import InputError
from hydractl.families import classes_of
from hydractl.files.description import Description


def preprocess_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """List where two ways of preparing samples differ, in words; a whole tokenizer is not printed."""
    differences = []
    for key in dict.fromkeys([*a, *b]):
        if a.get(key) != b.get(key):
            values = [repr(settings.get(key)) for settings in (a, b)]
            plain = max(map(len, values)) <= _SHORT
            differences.append(f"preprocessing {key} {values[1]}, not {values[0]}" if plain else f"another {key}")
    return differences


def length_hint(problems: Sequence[str]) -> str | None:
    """Suggest what to do where models differ in nothing but the length at which they cut texts; else None."""
    only = problems and all(": preprocessing max_length " in problem for problem in problems)
    return "give all of them one length with --max-length" if only else None


def label_differences(a: Sequence[str] | None, b: Sequence[str] | None) -> list[str]:
    """List where two lists of class names differ, in words; empty when they agree or one is unknown."""
    if a is None or b is None or list(a) == list(b):
        return []
    if len(a) != len(b):
        return [f"{len(b)} classes, not {len(a)}"]
    if sorted(a) == sorted(b):
        return ["the same classes in another order"]
    index = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return [f"class {index} is {b[index]!r}, not {a[index]!r}"]


def check_agreement(models: Sequence[tuple[str, Description]]) -> None:
    """Check from descriptions alone that models can be averaged.

    Args:
        models: what to call each model, and what it says of itself.

    Raises:
        InputError: listing every difference in labels (names and order), number of classes and preprocessing. A
            model whose labels are unknown agrees with any other of as many classes.
    """
    first_name, first = models[0]
    # Labels are compared with the first model that knows its own: an unknown list would hide a difference.
    known_name, known = next((model for model in models if model[1].labels is not None), models[0])
    problems: list[str] = []
    for name, other in models[1:]:
        differences = _differences(first, other)
        problems += [f"{name} against {first_name}: {what}" for what in differences]
        if not differences and name != known_name:
            problems += [
                f"{name} against {known_name}: {what}" for what in label_differences(known.labels, other.labels)
            ]
    if problems:
        raise InputError("these models cannot be averaged", length_hint(problems), problems)


def _differences(a: Description, b: Description) -> list[str]:
    """List where number of classes and preprocessing differ."""
    counts = [classes_of(d) for d in (a, b)]
    problems = [f"{counts[1]} classes, not {counts[0]}"] if None not in counts and counts[0] != counts[1] else []
    return problems + preprocess_differences(a.preprocess, b.preprocess)


_SHORT = 80
