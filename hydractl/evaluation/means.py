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

    A row holds the figures of one model, and a run is one row of an answer. Which runs a mean is taken over:

    * over seeds: the rows of all answers that have the same name before ``#``, e.g. ``deep#0`` and ``deep#1``; a model
      that was measured again, with equal figures, is the same run;
    * over data sets: the rows of the same name.

    Counts and facts that differ between runs are left out, and so are members, curves, intervals and paired
    differences.

    Args:
        answers: the answers of eval, by file.
        over: ``seed`` if all answers have the same test sets, ``data`` if each has other ID data.

    Returns:
        An answer with ``over``. Each row has ``runs``, the number of runs, and ``std``, the deviations by dotted key; a
        row of one run has no deviations.

    Raises:
        InputError: the answers do not belong together, or no row has two runs.
    """
    _check_data(answers, over)
    runs_by_name = _runs_by_row_name(answers, over)
    if all(len(runs) == 1 for runs in runs_by_name.values()):
        hint = "name the rows of one method alike: deep#0, deep#1, ..., or deep in each answer"
        raise InputError("every row has one run, and there is nothing to take means of", hint=hint)
    for name, runs in runs_by_name.items():
        _check_same_settings(name, runs, over)
    return EvalAnswer(
        over=over,
        models=[mean_row(name, [run.row for run in runs]) for name, runs in runs_by_name.items()],
        test=_test_sets(answers),
        conventions=_in_common([answer.conventions for answer in answers.values()]),
        warnings=_all_warnings(answers),
    )


# --- which runs belong together ---------------------------------------------------------------------------------------


def _set_names(answers: Answers) -> list[str]:
    """Return the names of the test sets of all answers, in order."""
    return list(dict.fromkeys(name for answer in answers.values() for name in answer.test))


def _check_data(answers: Answers, over: str) -> None:
    """Raise an error unless all answers have the same test sets, or over data sets each has other ID data.

    Sets are compared by their fingerprints. Over data sets, all answers must have rows of the same names.

    Raises:
        InputError: two answers do not belong together, or one holds means already, but those over seeds have a mean
            over data sets.
    """
    first = next(iter(answers))
    names_in_first = answers[first].names
    sets_of_first = _fingerprints(answers[first])
    path_by_id_data: dict[str | None, str] = {}  # the first answer on an ID set, by the fingerprint of the set
    for path, answer in answers.items():
        if answer.over is not None and (over, answer.over) != ("data", "seed"):
            raise InputError(f"{path} holds means over runs already", hint="give the answers that it was made from")
        sets = _fingerprints(answer)
        if None in sets.values():
            raise InputError(
                f"{path} has a test set without a fingerprint", hint="measure all answers on the same sets"
            )
        if over == "seed":
            others = [name for name in {**sets_of_first, **sets} if sets.get(name) != sets_of_first.get(name)]
            if others:
                hint = "measure all answers on the same test sets; of other data sets, take means with --over data"
                raise InputError(f"{path} and {first} differ in the test sets {', '.join(others)}", hint=hint)
            continue
        path_of_set = path_by_id_data.setdefault(sets.get("id"), path)
        if path_of_set != path:
            hint = "of several seeds, take means with --over seed"
            raise InputError(f"{path} and {path_of_set} have the same ID data", hint=hint)
        if set(answer.names) != set(names_in_first):
            here, there = ", ".join(answer.names), ", ".join(names_in_first)
            raise InputError(f"the rows of {path} are {here}, and those of {first} {there}")


def _fingerprints(answer: EvalAnswer) -> dict[str, str | None]:
    """Return the fingerprint of each test set of an answer, by its name."""
    return {name: data.fingerprint for name, data in answer.test.items()}


def _runs_by_row_name(answers: Answers, over: str) -> dict[str, list[Run]]:
    """Return the runs that a mean is taken over, by the name that they share.

    Over data sets that is the name of the row; over seeds what stands before ``#``: ``deep`` for ``deep#0`` and
    ``deep#1``. Over seeds, the same model with the same figures in two answers counts once.

    Args:
        answers: the answers of eval, by file.
        over: ``seed`` or ``data``.
    """
    runs_by_name: dict[str, list[Run]] = {}
    for path, answer in answers.items():
        for row in answer.models:
            if over == "data":
                runs_by_name.setdefault(row.name, []).append(Run(path, row))
                continue
            name, _, _ = row.name.partition("#")
            runs = runs_by_name.setdefault(name, [])
            figures_of_same_model = [_figures_as_json(run.row) for run in runs if run.row.sha256 == row.sha256]
            if _figures_as_json(row) not in figures_of_same_model:
                runs.append(Run(path, row))
    return runs_by_name


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
        for key, value in _settings_to_agree_on(run.row, over).items():
            if value != settings_of_first[key]:
                in_both = f"{value!r} in {run.path}, and {settings_of_first[key]!r} in {first.path}"
                hint = "measure all runs with the same options of eval"
                raise InputError(f"{name}: {key} is {in_both}", hint=hint)


_SETTINGS = (
    "ood_score",
    "calibration.kind",
    "calibration.temperature",
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
    number_of_members = max(1, len(row.members or ()))  # a row of one model lists no members
    settings: dict[str, object] = {"the number of members": number_of_members}
    keys = list(_SETTINGS)  # dotted, e.g. threshold.rule
    if over == "seed":
        keys += _SETTINGS_OF_SEEDS
    for key in keys:
        value = value_at(document, key)
        settings[key] = None if value is MISSING else value
    # A given temperature is a setting; a fitted temperature is a figure of the run and may differ.
    if row.calibration is not None and row.calibration.fitted_on is not None:
        settings["calibration.temperature"] = None
    if over == "seed":
        settings["the group of OOD sets"] = {name: measured.group for name, measured in row.ood.items()}
    return settings


# --- the row of means -------------------------------------------------------------------------------------------------


def mean_row(name: str, runs: Sequence[EvalRow]) -> EvalRow:
    """Return one row whose figures are the means over the runs of a row.

    ``std`` holds the sample standard deviation (n - 1) of each figure by its dotted key. Facts, such as the OOD score,
    are kept if they are the same in all runs; of seen samples, the largest number in any run is kept.
    """
    # The means and deviations of figures.
    deviations: dict[str, float] = {}  # filled by _means()
    means_of_runs = _means([_figures_as_json(run) for run in runs], deviations)

    # Facts that are the same in all runs.
    in_common = _in_common([run.to_dict() for run in runs])
    facts = {key: value for key, value in in_common.items() if key in _FACTS}

    # The largest number of seen samples in any run, by data set.
    most_seen: dict[str, int] = {}
    for run in runs:
        for data_set, count in run.seen.items():
            most_seen[data_set] = max(most_seen.get(data_set, 0), count or 0)
    row = {
        "name": name,
        "runs": len(runs),
        "std": deviations,
        "sha256": [digest for run in runs for digest in run.files],  # of the files of all runs
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

    What a key has in the runs decides:

    * an object in all runs: the means of what it holds;
    * a number (float) in all runs: their mean, and their standard deviation in ``deviations``;
    * the same text, count (int) or None in all runs: this value;
    * anything else, e.g. texts or counts that differ: left out.

    Args:
        runs: the figures of each run.
        deviations: is filled here, with sample standard deviations (n - 1) by dotted key; a single run has none.
        path: what the dotted keys of these figures begin with, e.g. ``ood.svhn.``.
    """
    means: dict[str, object] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs if key in run]
        objects = [value for value in values if isinstance(value, Mapping)]
        numbers = [value for value in values if isinstance(value, float)]
        if len(objects) == len(runs):
            means[key] = _means(objects, deviations, f"{path}{key}.")
        elif len(numbers) == len(runs):
            means[key] = statistics.mean(numbers)
            if len(numbers) > 1:
                deviations[f"{path}{key}"] = statistics.stdev(numbers)
        elif len(values) == len(runs) and all(value == first for value in values):
            means[key] = first
    return means


# --- the rest of the answer -------------------------------------------------------------------------------------------


def _test_sets(answers: Answers) -> dict[str, DataSetRecord]:
    """Return the test sets of all answers by name; different sets of one name become ``NAME#0``, ``NAME#1``, ..."""
    sets: dict[str, DataSetRecord] = {}
    for name in _set_names(answers):
        entries = [answer.test[name] for answer in answers.values() if name in answer.test]
        is_one_set = len({entry.fingerprint for entry in entries}) == 1
        if is_one_set:
            sets[name] = entries[0]
            continue
        for index, entry in enumerate(entries):
            sets[f"{name}#{index}"] = entry
    return sets


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
