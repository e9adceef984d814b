"""What a predictions file says of its model and its sets, checked so far that eval can make a row of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.files.document_check import anything, count, listing, maybe, number, record, text
from hydractl.files.training_history import COURSE
from hydractl.jsonio import shown

_SITE = record(
    {"site": text, "tower": text, "heads": count, "kept": listing(listing(count))}, ("site", "tower", "heads", "kept")
)
_MODEL = record(
    {
        "name": text,
        "sha256": anything,
        "labels": listing(text, 1),
        "heads": listing(_SITE),
        "training": listing(COURSE),
        "cost": record({"params": maybe(count), "macs": maybe(number), "single_macs": maybe(number)}),
        "prompt": listing(text),
        "max_length": count,
        "mc_dropout": record({"p": number, "samples": count, "seed": count}, ("p", "samples", "seed")),
    },
    ("name",),
)


def model_problems(model: Any, classes: int) -> list[str]:
    """What is wrong with the block ``model`` of a header; its calibration and threshold are read by their own modules.

    Args:
        model: the block.
        classes: of the logits.
    """
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        return ["it does not say of what model it is"]
    problems = list(_MODEL(model, "its model"))
    labels = model.get("labels")
    if isinstance(labels, list) and len(labels) != classes:
        problems.append(f"its model has {len(labels)} labels and {classes} classes")
    return problems


def set_problems(sets: Sequence[tuple[str, str]], shapes: Sequence[Sequence[int]]) -> list[str]:
    """What is wrong with the data sets taken together.

    Args:
        sets: role and name of each.
        shapes: ``(members, N, classes)`` of their logits.
    """
    problems = []
    if len(set(sets)) < len(sets) or [role for role, _ in sets].count("id") != 1:
        problems.append("it has no one ID set, or two sets of one name")
    for role, name in sets:
        if role not in ("id", "ood", "val", "val_ood", "corruption"):
            problems.append(f"a set has the role {shown(role)}")
        elif (role == "id") != (name == "id") or (role == "ood" and name == "edges"):
            problems.append(f"the set of the role {role} has the name {shown(name)}")
    if len({(shape[0], shape[2]) for shape in shapes}) > 1:
        problems.append("its sets are of different numbers of members or classes")
    kinds = [name.rpartition("/") for role, name in sets if role == "corruption"]
    by_kind: dict[str, set[str]] = {}
    for kind, _, severity in kinds:
        by_kind.setdefault(kind, set()).add(severity)
    if any(found != set().union(*by_kind.values()) for found in by_kind.values()):
        problems.append("its corruptions are of different severities")
    return problems
