"""Importance criteria: one file each, found by name. ``docs/adding-a-criterion.md`` describes how to add one.

Importing this module, or the file of a criterion, must not import torch: help texts list what the criteria declare.
"""

from __future__ import annotations

from hydractl.criteria.criterion import AnyCriterion, Calibration, Criterion, Decider, Decision, ScoredModel, argument
from hydractl.criteria.weights import WEIGHT_CRITERIA
from hydractl.errors import did_you_mean
from hydractl.files.plugins import Registry

CRITERIA: Registry[Criterion] = Registry(__name__, __path__, "CRITERION", helpers=("arguments", "criterion", "weights"))


def read_criterion(text: str) -> Criterion:
    """Return the criterion that ``NAME[:ARGUMENT=NUMBER,...]`` stands for.

    Raises:
        ValueError: there is no such criterion, or an argument is wrong; the name of the option stands before the
            message.
    """
    criterion = _read(text, CRITERIA.names)
    assert isinstance(criterion, Criterion)
    return criterion


def read_any_criterion(text: str) -> AnyCriterion:
    """Return :func:`read_criterion`, or a criterion that scores single weights alone."""
    return _read(text, any_criterion_names())


def any_criterion_names() -> list[str]:
    """Return the names of the criteria of heads and of single weights, sorted; some are of both."""
    return sorted({*CRITERIA.names, *WEIGHT_CRITERIA})


def _read(text: str, names: list[str]) -> AnyCriterion:
    """Return the criterion that a text such as ``cahp:degree=2`` stands for: a name, perhaps with arguments.

    Args:
        text: the text, as ``--method`` takes it.
        names: the criteria that may be chosen: of heads, of single weights, or of both.

    Raises:
        ValueError: the name is not in ``names``, or an argument is wrong.
    """
    name, colon, arguments = text.strip().partition(":")
    if name not in names:
        listed = ", ".join(names)
        raise ValueError(f"must be one of {listed}, not {name!r}{did_you_mean(name, names)}")
    # A name may be in both tables; then it is the criterion of heads.
    criterion: AnyCriterion = CRITERIA.get(name) or WEIGHT_CRITERIA[name]()
    if not colon:
        return criterion
    try:
        return criterion.with_arguments(arguments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def arguments_help() -> list[tuple[str, str]]:
    """Return a line of help for each argument of a criterion: how it is written, and what it is."""
    lines = []
    for criterion in CRITERIA.all():
        for name, declared in criterion.arguments().items():
            default = getattr(criterion, name)
            lines.append((f"{criterion.name}:{name}=N", f"{declared.help} [default: {default}]"))
    return lines


__all__ = [
    "CRITERIA",
    "AnyCriterion",
    "Calibration",
    "Criterion",
    "Decider",
    "Decision",
    "ScoredModel",
    "any_criterion_names",
    "argument",
    "arguments_help",
    "read_any_criterion",
    "read_criterion",
]
