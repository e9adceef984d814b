"""Means of several answers of eval, over seeds or over data sets, as an answer of the same form."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydractl.errors import InputError
from hydractl.report.eval_tables import at

Documents = Mapping[str, Mapping[str, Any]]
"""Answers of eval by the name of their file."""

_FIGURES = (
    *("id", "scores", "ood", "near_avg", "far_avg", "ood_avg", "diversity", "corruptions", "corruption_avg"),
    *("conformal", "calibration", "threshold"),
)
_FACTS = ("ood_score", "heads", "cost", "cascade", "fitted_on", "mc_dropout", "probe")
_ALIKE = (
    *("ood_score", "calibration.kind", "conformal.method", "conformal.alpha", "threshold.score", "threshold.rule"),
    *("probe.name", "mc_dropout.p", "mc_dropout.samples", "fitted_on.knn_k"),
)
_ALIKE_OVER_SEEDS = tuple(f"{what}fitted_on.fingerprint" for what in ("calibration.", "", "probe."))


def means(documents: Documents, over: str) -> dict[str, Any]:
    """Return the answer whose figures are means over runs, with sample standard deviations (n - 1) beside them.

    Over seeds, the runs of a row are the rows of all answers with the same name before ``#``; the same model measured
    again, with equal figures, is the same run. Over data sets, they are the rows of the same name. Counts and facts
    that differ between runs are left out, as are members, curves, intervals and paired differences.

    Args:
        documents: ``hydractl.eval/1``.
        over: ``seed``, where all answers have the same test sets, or ``data``, where each has other ID data.

    Returns:
        ``hydractl.eval/1`` with ``over``, and for each row ``runs``, their number, and ``std`` by dotted key; a row of
        one run has no deviation.

    Raises:
        InputError: the answers do not belong together, or no row has two runs.
    """
    (_check_same_data if over == "seed" else _check_other_data)(documents)
    rows = []
    for name, runs in _runs(documents, over).items():
        _check_alike(name, runs, over)
        rows.append(_mean_row(name, [row for _, row in runs]))
    if all(row["runs"] == 1 for row in rows):
        hint = "name the rows of one method alike: deep#0, deep#1, ..., or deep in each answer"
        raise InputError("every row has one run, and there is nothing to take means of", hint=hint)
    found = {"schema": next(iter(documents.values()))["schema"], "over": over, "models": rows}
    found["data"] = _data(documents)
    conventions = [_conventions(document, over) for document in documents.values()]
    shared = {k: v for k, v in conventions[0].items() if all(other.get(k) == v for other in conventions)}
    warnings = [f"{path}: {text}" for path, document in documents.items() for text in document.get("warnings") or []]
    sets = {name: [p for p in documents if name not in documents[p]["data"]] for name in _names(documents)}
    warnings += [f"{name} is no test set of {', '.join(without)}" for name, without in sets.items() if without]
    return found | {"conventions": shared} | ({"warnings": warnings} if warnings else {})


# --- which runs belong together ---------------------------------------------------------------------------------------


def _names(documents: Documents) -> list[str]:
    return list(dict.fromkeys(name for document in documents.values() for name in document.get("data") or {}))


def _fingerprint(document: Mapping[str, Any], path: str, name: str) -> str:
    found = at(document, "data", name, "fingerprint")
    if found is None:
        hint = (
            "measure all answers on the same test sets" if name != "id" else "means over data sets are not taken again"
        )
        raise InputError(f"{path} has no fingerprint of the test set {name}", hint=hint)
    return str(found)


def _check_same_data(documents: Documents) -> None:
    first, *others = documents
    for name in dict.fromkeys(["id", *_names(documents)]):
        known = _fingerprint(documents[first], first, name)
        for path in others:
            if _fingerprint(documents[path], path, name) != known:
                hint = "of other data sets, take means with --over data"
                raise InputError(f"the test set {name} of {path} is not that of {first}", hint=hint)
    for path, document in documents.items():
        if document.get("over"):
            raise InputError(f"{path} holds means over runs already", hint="give the answers that it was made from")


def _check_other_data(documents: Documents) -> None:
    first, *_ = documents
    seen: dict[str, str] = {}
    names = [row["name"] for row in documents[first]["models"]]
    for path, document in documents.items():
        same = seen.setdefault(_fingerprint(document, path, "id"), path)
        if same != path:
            raise InputError(
                f"{path} and {same} have the same ID data", hint="of several seeds, take means with --over seed"
            )
        if {row["name"] for row in document["models"]} != set(names):
            other = ", ".join(row["name"] for row in document["models"])
            raise InputError(f"the rows of {path} are {other}, and those of {first} {', '.join(names)}")


def _runs(documents: Documents, over: str) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Group runs by the name of their row, each with the name of its file."""
    runs: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for path, document in documents.items():
        for row in document["models"]:
            found = runs.setdefault(_name(row["name"], over), [])
            if over == "data" or not any(_same_run(row, other) for _, other in found):
                found.append((path, row))
    return runs


def _name(name: str, over: str) -> str:
    return name.partition("#")[0] if over == "seed" else name


def _same_run(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(row.get(key) == other.get(key) for key in ("sha256", *_FIGURES))


def _check_alike(name: str, runs: Sequence[tuple[str, Mapping[str, Any]]], over: str) -> None:
    """Refuse figures that do not mean the same."""
    (first, known), *others = [(path, _settings(row, over)) for path, row in runs]
    for path, settings in others:
        for key, value in known.items():
            if settings[key] != value:
                text = f"{name}: {key} is {settings[key]!r} in {path}, and {value!r} in {first}"
                raise InputError(text, hint="measure all runs with the same options of eval")


def _settings(row: Mapping[str, Any], over: str) -> dict[str, Any]:
    found = {key: at(row, *key.split(".")) for key in (*_ALIKE, *(_ALIKE_OVER_SEEDS if over == "seed" else ()))}
    given = at(row, "calibration", "fitted_on") is None
    found["calibration.temperature"] = at(row, "calibration", "temperature") if given else None
    groups = {name: entry.get("group") for name, entry in (row.get("ood") or {}).items()}
    grouped = {"the group of OOD sets": groups} if over == "seed" else {}
    return found | grouped | {"the number of members": max(1, len(row.get("members") or []))}


# --- what is written --------------------------------------------------------------------------------------------------


def _mean_row(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    files = [sha if isinstance(sha, list) else [sha] for run in runs if (sha := run.get("sha256")) is not None]
    row: dict[str, Any] = {"name": name, "runs": len(runs), "std": {}, "sha256": [one for of in files for one in of]}
    row |= {key: runs[0][key] for key in _FACTS if key in runs[0] and all(run.get(key) == runs[0][key] for run in runs)}
    figures = [{key: run[key] for key in _FIGURES if run.get(key) is not None} for run in runs]
    row |= _mean(figures, (), row["std"])
    seen = [(run.get("seen") or {}) for run in runs]
    most = {one: max(counts.get(one) or 0 for counts in seen) for counts in seen for one in counts}
    return row | ({"seen": most} if most else {})


def _mean(runs: Sequence[Mapping[str, Any]], place: tuple[str, ...], std: dict[str, float]) -> dict[str, Any]:
    """Average every figure that all runs have; deviations go into ``std``."""
    found = {}
    for key in (key for key in runs[0] if all(key in run for run in runs)):
        values = [run[key] for run in runs]
        if all(isinstance(value, Mapping) for value in values):
            found[key] = _mean(values, (*place, key), std)
        elif all(value == values[0] for value in values) and not isinstance(values[0], float):
            found[key] = values[0]
        elif all(isinstance(value, (int, float)) for value in values) and float in map(type, values):
            found[key] = statistics.mean(values)
            if len(values) > 1:
                std[".".join((*place, key))] = statistics.stdev(values)
    return found


def _conventions(document: Mapping[str, Any], over: str) -> dict[str, Any]:
    """Return a document's sentences, those on single rows by the names that these have now."""
    found = (document.get("conventions") or {}).items()
    return {k: {_name(n, over): t for n, t in v.items()} if isinstance(v, Mapping) else v for k, v in found}


def _data(documents: Documents) -> dict[str, Any]:
    """Return the test sets of all answers: one that is not the same in all of them has a number behind its name."""
    found: dict[str, Any] = {}
    for name in _names(documents):
        entries = [entry for document in documents.values() if (entry := at(document, "data", name)) is not None]
        prints = {entry.get("fingerprint") for entry in entries}
        numbered: Iterator[tuple[str, Any]] = ((f"{name}#{place}", entry) for place, entry in enumerate(entries))
        found |= {name: entries[0]} if len(prints) == 1 else dict(numbered)
    return found
