"""How long a study takes: the processor time of each of its steps, from one batch of a search timed on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hydractl.circuit.plan import SearchPlan
from hydractl.circuit.scope import SearchOptions, scope_of
from hydractl.circuit.session import Session
from hydractl.distributed import processes
from hydractl.log import Log
from hydractl.model.source import open_source
from hydractl.options.call import filled
from hydractl.studies.plan import Plan, Row
from hydractl.studies.sets import StudySets
from hydractl.studies.steps import Step
from hydractl.verbs.opening import opening_options

_AROUND = 12.0
"""Seconds of what is no step, about the same in every study: libraries are imported, data compared, pages written."""
_OF_A_STEP = 0.6
"""Seconds that any step takes, however small its model: files are opened, and what they hold is checked."""
_TRAINING_PASSES = 4
"""Number of forward passes that take about as long as one training step (forward, backward and update)."""
_MC_PASSES = 10
"""Passes of a row whose samples run several times with other dropout."""
_COMPARED = 2
"""What the verdict compares takes about as long as so many rows of a table, each on all resamples of the test data."""
_OF_A_SET = 3e-4
"""Seconds that a resample of one set takes on a core of a server, however few its samples."""
_OF_A_SAMPLE = 1.5e-7
"""Seconds that each of its samples adds to that."""


StepSeconds = Mapping[tuple[Path, ...], float]
"""The seconds of each step, by the files that it writes."""


def in_all(seconds: StepSeconds) -> float:
    """Return how long a study takes, with what is no step."""
    return sum(seconds.values()) + _AROUND


def step_seconds(plan: Plan, sets: StudySets) -> StepSeconds:
    """Return about how many seconds of the processor each step of a study takes, by the files that it writes.

    They are those of a study in which every row (a model to compare) runs on the test data. One batch of a search is
    timed, which gives the seconds that one sample takes in the model. Then a step takes this times samples and passes
    (runs of the whole model).

    Args:
        plan: the plan of the study.
        sets: its data.
    """
    # The searches of the plan, each timed on one batch, and the seconds of one sample in the whole model: a pass. Where
    # no row needs a search, one is timed only for its speed.
    searches = {step.outputs: _probe_search(step) for step in plan.steps if step.verb == "extract-circuit"}
    timed = next(iter(searches.values()), None) or _probe_search(plan.search_of_circuits)
    seconds_per_pass = timed.seconds_per_pass

    # Every step takes some seconds to begin, a search what was estimated, and a training its passes.
    seconds = {}
    for step in plan.outline():
        seconds[step.outputs] = _OF_A_STEP
        if step.outputs in searches:
            seconds[step.outputs] += searches[step.outputs].processor_seconds
        if step.verb == "finetune":
            seconds[step.outputs] += _passes_of_training(step, sets) * seconds_per_pass

    # Every row runs on the second halves of the validation data, on what its scores are fitted to, and on test data.
    choosing = sum(sets.halves)
    if sets.fit is not None:
        choosing += sets.fit.count
    tested = [len(given_set.dataset) for given_set in sets.tested]
    for row, testing_step in zip(plan.rows, plan.testing_steps(plan.rows), strict=True):
        of_a_sample = _passes_of(row) * seconds_per_pass
        seconds[plan.choosing_step(row).outputs] += of_a_sample * choosing
        seconds[testing_step.outputs] += of_a_sample * sum(tested)

    # The test data are resampled for the table, for the best row, and for what the verdict compares. The keys are
    # tuples of one file.
    resampling = plan.request.bootstrap * _seconds_of_a_round(tested)
    seconds[plan.folder / "test.json",] += len(plan.rows) * resampling
    seconds[plan.folder / "best.json",] += (1 + _COMPARED) * resampling
    return seconds


def _passes_of(row: Row) -> int:
    """Return how many passes of the single model a sample of a row takes: about two for a row of several members."""
    if "mc_dropout" in row.options:
        return _MC_PASSES
    return 1 if row.name == "single" else 2


def _passes_of_training(step: Step, sets: StudySets) -> int:
    """Return how many passes of one sample (runs of the whole model) take as long as a training.

    It is learning rates * epochs * (passes of a training step * training samples + validation samples). 0 for a
    posterior, which is fitted without a training.
    """
    if sets.train is None or "epochs" not in step.arguments:  # a posterior takes no more than a pass
        return 0
    passes_of_epoch = _TRAINING_PASSES * len(sets.train.dataset) + sets.halves[0]
    return len(sets.request.lr) * sets.request.epochs * passes_of_epoch


def _seconds_of_a_round(sizes: Sequence[int]) -> float:
    """Return the seconds of the processor that one resample of sets of these sizes takes, as was measured once."""
    return _OF_A_SET * len(sizes) + _OF_A_SAMPLE * sum(sizes)


def _probe_search(step: Step) -> SearchPlan:
    """Return the plan of the search that a step runs, with its time measured on one batch."""
    values = step.call(Log()).values
    opening = opening_options(values)
    source = open_source(values["model"][0], opening)
    options = filled(SearchOptions, values)
    with processes(values["timeout"]) as team:
        scope = scope_of(source, options, Log())
        session = Session(scope, options, Log(), team)
        return session.probe()
