"""The leak guard: samples that something was fitted or chosen on are no test data."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.errors import InputError
from hydractl.evaluate.models import Model, PredictedModel
from hydractl.evaluate.sets import VAL, VAL_OOD, EvalSet, of_role, option_of, tested
from hydractl.files.fingerprints import Entry, entry, marked, who_saw

Seen = dict[str, dict[str, int]]
"""By row and data set, how many of its samples the row has seen; what is 0 is left out."""


def seen_samples(models: Sequence[Model], sets: Sequence[EvalSet], *, allow: bool) -> Seen:
    """Count the test samples that a model, or this command, has seen.

    Args:
        models: the rows.
        sets: all data sets of the command.
        allow: count them instead of refusing them.

    Raises:
        InputError: listing every row and test set that share samples, and by whom these were seen.
    """
    here = fitted_entries(sets)
    same = {one.fingerprint for role in (VAL, VAL_OOD) for one in of_role(sets, role)}
    seen: Seen = {}
    problems = []
    for model in models:
        entries = [*model.seen, *here]
        for one in tested(sets):  # corrupted images are counted where they are clean
            count, by = _count(model, entries, one)
            if one.fingerprint in same:
                count, by = len(one), "all of them chosen on by this eval"
            if not count:
                continue
            seen.setdefault(model.name, {})[one.name] = count
            problems.append(f"{model.name}: {count} of {len(one)} samples of {option_of(one)} ({by})")
    if problems and not allow:
        raise InputError(
            f"test data that has been seen: {problems[0]}" if len(problems) == 1 else "test data that has been seen",
            hint="test on other samples, or add --allow-seen to measure on them all the same, marked",
            problems=problems if len(problems) > 1 else (),
        )
    return seen


def fitted_entries(sets: Sequence[EvalSet]) -> list[Entry]:
    """What this command fits on, as :mod:`hydractl.files.fingerprints` notes it."""
    return [
        entry("eval", role, one.dataset)
        for role in (VAL, VAL_OOD)
        for one in of_role(sets, role)
        if one.dataset is not None
    ]


def _count(model: Model, entries: Sequence[Entry], one: EvalSet) -> tuple[int, str]:
    if isinstance(model, PredictedModel):
        # Who saw them was said when the predictions were made.
        stored = model.already_seen(one)
        if stored:
            return stored, "as its predictions say"
    if one.dataset is None or not entries:
        return 0, ""
    return int(marked(entries, one.dataset).sum()), who_saw(entries, one.dataset)
