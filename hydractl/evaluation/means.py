"""Means of several answers of eval, over seeds or over data sets, in the form of an answer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from hydractl.errors import InputError
from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.files.model_records import DataSetRecord
from hydractl.files.results import MISSING, value_at

Answers = Mapping[str, EvalAnswer]
"""Answers of eval, by the names of their files."""

Figures = Mapping[str, object]
"""A part of a row as JSON: numbers, and objects that hold numbers."""


class Run(NamedTuple):
    """One run of a row: the name of its file, and the row in it."""

    path: str
    row: EvalRow


_FACTS = ("ood_score", "heads", "cost", "fitted_on", "mc_dropout")
"""Keys of a row that are kept if all runs have the same value."""

_FIGURES = (
    "id",
    "errors",
    "scores",
    "ood",
    "near_avg",
    "far_avg",
    "ood_avg",
    "diversity",
    "corruptions",
    "corruption_avg",
    "conformal",
    "calibration",
    "threshold",
)
"""Keys of a row whose numbers are averaged."""


def means(answers: Answers, over: Literal["seed", "data"]) -> EvalAnswer:
    """Return an answer whose figures are means over runs, with sample standard deviations (n - 1) beside them.

    Over seeds, the runs of a row are the rows of all answers that have the same name before ``#``. A model that was
    measured again, with equal figures, is the same run. Over data sets, the runs are the rows of the same name. Counts
    and facts that differ between runs are left out, and so are members, curves, intervals and paired differences.

    Args:
        answers: the answers of eval, by file.
        over: ``seed`` if all answers have the same test sets, ``data`` if each has other ID data.

    Returns:
        An answer with ``over``. Each row has ``runs``, the number of runs, and ``std``, the deviations by dotted key; a
        row of one run has no deviations.

    Raises:
        InputError: the answers do not belong together, or no row has two runs.
    """
    # Check that the answers and the runs of each row belong together.
    if over == "seed":
        _check_same_data(answers)
    else:
        _check_other_data(answers)
    runs_by_name = _runs_by_row_name(answers, over)
    for name, runs in runs_by_name.items():
        _check_same_settings(name, runs, over)
    most_runs = max(map(len, runs_by_name.values()))
    if most_runs == 1:
        hint = "name the rows of one method alike: deep#0, deep#1, ..., or deep in each answer"
        raise InputError("every row has one run, and there is nothing to take means of", hint=hint)

    return EvalAnswer(
        over=over,
        models=[mean_row(name, [run.row for run in runs]) for name, runs in runs_by_name.items()],
        test=_test_sets(answers),
        conventions=_shared_conventions(answers, over),
        warnings=_all_warnings(answers),
    )


# --- which runs belong together ---------------------------------------------------------------------------------------


def _set_names(answers: Answers) -> list[str]:
    """Return the names of the test sets of all answers, in order."""
    return list(dict.fromkeys(name for answer in answers.values() for name in answer.test))


def _fingerprint(answer: EvalAnswer, path: str, name: str) -> str:
    """Return the fingerprint of a test set of an answer.

    Args:
        answer: the answer.
        path: its file, for the message.
        name: the name of the test set.

    Raises:
        InputError: the answer does not have the set, or holds means over data sets.
    """
    data = answer.test.get(name)
    if data is not None and data.fingerprint is not None:
        return data.fingerprint
    again = "means over data sets are not taken again"
    hint = again if name == "id" else "measure all answers on the same test sets"
    raise InputError(f"{path} has no fingerprint of the test set {name}", hint=hint)


def _check_same_data(answers: Answers) -> None:
    """Raise an error unless all answers have the same test sets, by their fingerprints, and none holds means.

    Raises:
        InputError: a test set is missing or different in some answer, or an answer holds means over runs.
    """
    first, *others = answers
    for name in dict.fromkeys(["id", *_set_names(answers)]):
        fingerprint = _fingerprint(answers[first], first, name)
        for path in others:
            if _fingerprint(answers[path], path, name) != fingerprint:
                hint = "of other data sets, take means with --over data"
                raise InputError(f"the test set {name} of {path} is not that of {first}", hint=hint)
    for path, answer in answers.items():
        if answer.over is not None:
            hint = "give the answers that it was made from"
            raise InputError(f"{path} holds means over runs already", hint=hint)


def _check_other_data(answers: Answers) -> None:
    """Raise an error unless each answer has other ID data, and all answers have rows of the same names.

    Raises:
        InputError: two answers have the same ID data, or rows of different names.
    """
    first, *_ = answers
    names_in_first = answers[first].names
    path_of_data: dict[str, str] = {}
    for path, answer in answers.items():
        fingerprint = _fingerprint(answer, path, "id")
        if fingerprint in path_of_data:
            earlier = path_of_data[fingerprint]
            hint = "of several seeds, take means with --over seed"
            raise InputError(f"{path} and {earlier} have the same ID data", hint=hint)
        path_of_data[fingerprint] = path
        if set(answer.names) != set(names_in_first):
            here, there = ", ".join(answer.names), ", ".join(names_in_first)
            raise InputError(f"the rows of {path} are {here}, and those of {first} {there}")


def _runs_by_row_name(answers: Answers, over: str) -> dict[str, list[Run]]:
    """Return the runs of each row, by the name that they share: over seeds ``deep`` for ``deep#0`` and ``deep#1``.

    Over seeds, the same model with the same figures in two answers counts once.

    Args:
        answers: the answers of eval, by file.
        over: ``seed`` or ``data``.
    """
    runs_by_name: dict[str, list[Run]] = {}
    for path, answer in answers.items():
        for row in answer.models:
            name = _shared_name(row.name, over)
            runs = runs_by_name.setdefault(name, [])
            # Over seeds, the same model with the same figures is the same run. Over data sets, every row is a run.
            earlier = [run.row for run in runs if run.row.sha256 == row.sha256]
            figures = _figures_as_json(row)
            is_repeated = any(_figures_as_json(other) == figures for other in earlier)
            if over != "seed" or not is_repeated:
                runs.append(Run(path, row))
    return runs_by_name


def _shared_name(name: str, over: str) -> str:
    """Return the name that the runs of a row share: over seeds the part before ``#``, else the whole name."""
    return name.partition("#")[0] if over == "seed" else name


def _check_same_settings(name: str, runs: Sequence[Run], over: str) -> None:
    """Raise an error if two runs of a row were measured with different settings, so that no mean can be taken.

    Args:
        name: the name of the row.
        runs: its runs.
        over: ``seed`` or ``data``.

    Raises:
        InputError: two runs differ in one of :func:`_settings_to_agree_on`.
    """
    first, *others = runs
    settings_of_first = _settings_to_agree_on(first.row, over)
    for run in others:
        settings = _settings_to_agree_on(run.row, over)
        for key, value in settings_of_first.items():
            if settings[key] == value:
                continue
            value_in_run = f"{settings[key]!r} in {run.path}"
            value_in_first = f"{value!r} in {first.path}"
            hint = "measure all runs with the same options of eval"
            raise InputError(f"{name}: {key} is {value_in_run}, and {value_in_first}", hint=hint)


_SETTINGS = (
    "ood_score",
    "calibration.kind",
    "conformal.method",
    "conformal.alpha",
    "threshold.score",
    "threshold.rule",
    "mc_dropout.p",
    "mc_dropout.passes",
    "fitted_on.knn_k",
)
"""Dotted keys of the settings that must be the same in all runs of a row."""

_SETTINGS_OF_SEEDS = (
    "calibration.fitted_on.fingerprint",
    "fitted_on.fingerprint",
)
"""Dotted keys of further settings that must be the same in runs over seeds."""


def _settings_to_agree_on(row: EvalRow, over: str) -> dict[str, object]:
    """Return the settings that must be the same in all runs of a row, by their names in messages.

    A setting that a run does not have is None.

    Args:
        row: one run of the row.
        over: ``seed`` or ``data``, what the runs differ in.
    """
    document = row.to_dict()
    settings = {key: _value_at(document, key) for key in _SETTINGS}

    # A given temperature is a setting; a fitted temperature is a figure of the run and may differ.
    was_fitted = _value_at(document, "calibration.fitted_on") is not None
    settings["calibration.temperature"] = None if was_fitted else _value_at(document, "calibration.temperature")
    settings["the number of members"] = max(1, len(row.members or ()))
    if over == "data":
        return settings

    # Runs over seeds must also have been fitted and measured on the same data sets.
    settings |= {key: _value_at(document, key) for key in _SETTINGS_OF_SEEDS}
    settings["the group of OOD sets"] = {name: measured.group for name, measured in row.ood.items()}
    return settings


def _value_at(document: Mapping[str, object], key: str) -> object:
    """Return the value of a dotted key, such as ``mc_dropout.p``; None if there is none."""
    value = value_at(document, key)
    return None if value is MISSING else value


# --- the row of means -------------------------------------------------------------------------------------------------


def mean_row(name: str, runs: Sequence[EvalRow]) -> EvalRow:
    """Return one row whose figures are the means over the runs of a row.

    ``std`` holds the sample standard deviation (n - 1) of each figure by its dotted key. Facts, such as the OOD score,
    are kept if they are the same in all runs; of seen samples, the largest number in any run is kept.
    """
    deviations: dict[str, float] = {}  # filled by _means()
    means_of_runs = _means([_figures_as_json(run) for run in runs], deviations)
    documents = [run.to_dict() for run in runs]
    facts = _in_common([{key: document[key] for key in _FACTS if key in document} for document in documents])
    most_seen: dict[str, int] = {}  # of any run, by data set
    for run in runs:
        for data_set, count in run.seen.items():
            most_seen[data_set] = max(most_seen.get(data_set, 0), count or 0)
    row = {
        "name": name,
        "runs": len(runs),
        "std": deviations,
        "sha256": [digest for run in runs for digest in run.files],
        **facts,
        **means_of_runs,
        "seen": most_seen,
    }
    return EvalRow.model_validate(row)


def _figures_as_json(run: EvalRow) -> dict[str, object]:
    """Return the parts of a row that hold figures, as JSON."""
    document = run.to_dict()
    return {key: document[key] for key in _FIGURES if document.get(key) is not None}


def _means(runs: Sequence[Figures], deviations: dict[str, float], path: str = "") -> dict[str, object]:
    """Return the mean over runs of every figure that all runs have, in objects nested as the figures are.

    * an object in all runs: the means of what it holds;
    * a text, a count or None: kept if it is the same in all runs, left out otherwise;
    * numbers of which one at least is a fraction: their mean, and their standard deviation in ``deviations``.

    Args:
        runs: the figures of each run.
        deviations: is filled here, with sample standard deviations (n - 1) by dotted key; a single run has none.
        path: what the dotted keys of these figures begin with, e.g. ``ood.svhn.``.
    """
    means: dict[str, object] = {}
    for key, first in runs[0].items():
        if not all(key in run for run in runs):
            continue
        values = [run[key] for run in runs]

        # An object: average what it holds.
        objects = [value for value in values if isinstance(value, Mapping)]
        if len(objects) == len(values):
            means[key] = _means(objects, deviations, f"{path}{key}.")
            continue

        # A text, a count or None that is the same in all runs.
        are_equal = all(value == first for value in values)
        if are_equal and not isinstance(first, float):
            means[key] = first
            continue

        # A fraction. Counts and texts that differ are left out.
        numbers = [value for value in values if isinstance(value, (int, float))]
        if len(numbers) == len(values) and any(type(value) is float for value in values):
            means[key] = statistics.mean(numbers)
            if len(numbers) > 1:
                deviations[f"{path}{key}"] = statistics.stdev(numbers)
    return means


# --- the rest of the answer -------------------------------------------------------------------------------------------


def _test_sets(answers: Answers) -> dict[str, DataSetRecord]:
    """Return the test sets of all answers by name; different sets of one name become ``NAME#0``, ``NAME#1``, ..."""
    sets: dict[str, DataSetRecord] = {}
    for name in _set_names(answers):
        entries = [answer.test[name] for answer in answers.values() if name in answer.test]
        if len({entry.fingerprint for entry in entries}) == 1:
            sets[name] = entries[0]
        else:
            sets |= {f"{name}#{index}": entry for index, entry in enumerate(entries)}
    return sets


def _shared_conventions(answers: Answers, over: str) -> dict[str, object]:
    """Return the conventions that are the same in all answers; row names in them become the names that runs share."""
    of_answers: list[dict[str, object]] = []
    for answer in answers.values():
        renamed: dict[str, object] = dict(answer.conventions)
        for key, said in answer.conventions.items():
            if isinstance(said, Mapping):  # by the name of a row
                renamed[key] = {_shared_name(name, over): text for name, text in said.items()}
        of_answers.append(renamed)
    return _in_common(of_answers)


def _in_common(documents: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the entries of the first document that all others have, too."""
    first, *others = documents
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _all_warnings(answers: Answers) -> list[str]:
    """Return the warnings of all answers, and a warning for each test set that is missing in some answers."""
    warnings = [f"{path}: {text}" for path, answer in answers.items() for text in answer.warnings]
    for name in _set_names(answers):
        paths_without = [path for path, answer in answers.items() if name not in answer.test]
        if paths_without:
            warnings.append(f"{name} is no test set of {', '.join(paths_without)}")
    return warnings
