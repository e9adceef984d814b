"""Reading an eval again that was written to a file, checked so far that every report can be made of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hydractl.errors import InputError
from hydractl.files.document_check import (
    Check,
    anything,
    count,
    equally_long,
    listing,
    mapping,
    maybe,
    number,
    record,
    text,
)
from hydractl.files.training_history import COURSE
from hydractl.jsonio import read_json_file, shown
from hydractl.metrics.registry import metrics

SCHEMA = "hydractl.eval/1"
_MOST_HEADS = 4096
_MOST_PROBLEMS = 10


def _real(value: Any, where: str) -> Iterator[str]:
    """A number that must be there, such as a point of a curve."""
    yield from number(value, where) if value is not None else [f"{where} is null"]


def _pair(check: Check) -> Check:
    def run(value: Any, where: str) -> Iterator[str]:
        problems = list(listing(check)(value, where))
        yield from problems or ([] if len(value) == 2 else [f"{where} has {len(value)} entries, not 2"])

    return run


def _rising(value: Any, where: str) -> Iterator[str]:
    """Edges of bins: two numbers or more, each above the one before."""
    problems = list(listing(_real, 2)(value, where))
    yield from problems
    if not problems and any(high <= low for low, high in pairwise(value)):
        yield f"{where} does not rise"


def _scores(value: Any, where: str) -> Iterator[str]:
    """Edges first, then counts of every set, one fewer."""
    whole = record({"edges": _rising, "id": listing(count)}, ("edges", "id"))
    problems = list(whole(value, where))
    problems = problems or list(mapping(listing(count))({k: v for k, v in value.items() if k != "edges"}, where))
    yield from problems
    if not problems and {len(v) for k, v in value.items() if k != "edges"} != {len(value["edges"]) - 1}:
        yield f"the lists of {where} differ in length"


def _site(value: Any, where: str) -> Iterator[str]:
    """One site: how many heads, and for every member which of them are kept."""
    form = record(
        {"site": text, "tower": text, "heads": count, "kept": listing(listing(count))}, ("site", "heads", "kept")
    )
    problems = list(form(value, where))
    yield from problems
    if not problems:
        if value["heads"] > _MOST_HEADS:
            yield f"{where}.heads is {value['heads']}"
        if any(head >= value["heads"] for kept in value["kept"] for head in kept):
            yield f"{where}.kept names a head that is not there"


_ID_NUMBERS: dict[str, Check] = {one.key: mapping(number) if one.parts else number for one in metrics("id")}
_ID = record({"n": count, **_ID_NUMBERS})
_OOD_NUMBERS: dict[str, Check] = {one.key: number for one in metrics("ood")}
_SPREAD: dict[str, Check] = {one.key: number for one in metrics("diversity")}
_PAIRS = listing(record({"a": count, "b": count, **_SPREAD}, ("a", "b")))
_DATA = record({"spec": text, "n": count, "fingerprint": text, "list": text, "skipped": anything})
_SEVERITY = mapping(record({"n": count, **{one.key: number for one in metrics("id") if one.by_severity}}))
_CURVES = record(
    {
        "reliability": equally_long(
            record(
                {
                    "edges": _rising,
                    "n": listing(count),
                    **dict.fromkeys(("confidence", "accuracy", "low", "high"), listing(number)),
                },
                ("edges", "n", "confidence", "accuracy", "low", "high"),
            ),
            *("edges", "n", "confidence", "accuracy", "low", "high"),
            first_longer=True,
        ),
        "risk_coverage": equally_long(
            record({"coverage": listing(_real), "risk": listing(_real)}, ("coverage", "risk")), "coverage", "risk"
        ),
        "roc": mapping(
            equally_long(record({"fpr": listing(_real, 1), "tpr": listing(_real, 1)}, ("fpr", "tpr")), "fpr", "tpr")
        ),
        "scores": _scores,
    }
)
_ROW = record(
    {
        "name": text,
        "sha256": anything,
        "id": _ID,
        "ood": mapping(record({"n": count, "group": text, **_OOD_NUMBERS})),
        **dict.fromkeys(("near_avg", "far_avg", "ood_avg"), record(_OOD_NUMBERS)),
        "diversity": mapping(record({**_SPREAD, "pairs": _PAIRS})),
        "members": listing(_ID),
        "curves": _CURVES,
        "heads": listing(_site),
        "training": listing(COURSE),
        "cost": record(dict.fromkeys(("params", "macs", "single_macs"), count)),
        "ci": mapping(maybe(_pair(number))),
        "difference": mapping(maybe(record({"value": number, "ci": _pair(number)}))),
        "calibration": record(
            {
                "kind": text,
                "temperature": number,
                "scale": listing(number),
                "bias": listing(number),
                "fitted_on": _DATA,
            }
        ),
        "conformal": record(
            {
                "method": text,
                "n_val": count,
                **dict.fromkeys(("alpha", "qhat", "coverage", "mean_size", "empty"), number),
            }
        ),
        "threshold": record(
            {"score": text, "value": number, "rule": text, "id_flagged": number, "ood_flagged": mapping(number)}
        ),
        "corruptions": mapping(_SEVERITY),
        "corruption_avg": _SEVERITY,
        "seen": mapping(maybe(count)),
        "mc_dropout": record({"p": number, "samples": count, "seed": count}, ("p", "samples", "seed")),
    },
    ("name", "id"),
)
_DOCUMENT = record(
    {
        "models": listing(_ROW, 1),
        "data": mapping(_DATA),
        "conventions": mapping(anything),
        "suite": record({"name": text, "left_out": listing(text), "notes": listing(text)}),
        "bootstrap": record({"rounds": count, "level": number, "seed": count}),
    },
    ("models",),
)


def read_eval(path: str) -> dict[str, Any]:
    """The document of an eval; ``-`` is standard input.

    Raises:
        InputError: for anything else, listing what is wrong with it.
    """
    document = read_json_file(path)
    origin = "standard input" if path == "-" else path
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = shown(document.get("schema")) if isinstance(document, dict) else "none"
        raise InputError(f"{origin} is not the JSON of an eval (schema {found})")
    if document.get("dry_run"):
        raise InputError(f"{origin} holds no results", hint="a dry run measures nothing")
    problems = eval_problems(document)
    if problems:
        raise InputError(f"{origin} is no document that eval writes", problems=problems[:_MOST_PROBLEMS])
    return document


def eval_problems(document: Any) -> list[str]:
    """Everything that keeps a report from being made of a document; empty where nothing does."""
    problems = [line.replace("document.", "", 1) for line in _DOCUMENT(document, "document")]
    if not problems:
        names = [row["name"] for row in document["models"]]
        problems = [f"two rows have the name {shown(one)}" for one in dict.fromkeys(names) if names.count(one) > 1]
    return problems
