"""The leak guard: what was fitted to, or chosen on, is no test data; other sets of a command hardly share samples."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.data.overlap import Findings, GivenSet, compare_sets
from hydractl.errors import InputError
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import EvalSet, fitted_entries, fitted_sets, option_of, tested
from hydractl.files.fingerprints import Entry, incomparable, marked, other_decoder, who_saw


def check_apart(sets: Sequence[EvalSet]) -> list[str]:
    """Return warnings of data sets that share many samples; raise an error if two share most of them.

    Every set for fitting is compared with the others for fitting, and every test set with the other test sets. A test
    set that shares samples with a set for fitting is left to :func:`seen_samples`. Samples are compared by their
    content. Those that were not read yet are read here, so this is best done when the model has run on them.

    Args:
        sets: all data sets of the command; those without samples are left out.

    Returns:
        The warnings.

    Raises:
        InputError: with every pair of sets that shares too many samples.
    """
    problems: list[str] = []
    warnings: list[str] = []
    for compared_sets in (fitted_sets(sets), tested(sets)):
        with_samples = [GivenSet(option_of(each), each.dataset) for each in compared_sets if each.dataset]
        # All pairs of these sets.
        overlap = compare_sets(with_samples)
        problems += overlap.problems
        warnings += overlap.warnings
    Findings(problems=problems).refuse()  # raises an error if there are problems
    return warnings


Seen = dict[str, dict[str, int]]
"""The number of seen samples by the name of the model and then by the name of the data set; zeros are left out."""


def seen_samples(models: Sequence[LogitsProvider], sets: Sequence[EvalSet], *, allow: bool) -> Seen:
    """Return how many samples of each test set were used before, by the names of the model and of the set.

    A sample was used (seen) if the model was trained or fitted on it, or if this command fits or chooses something on
    it. Sets and models without such samples are left out.

    Args:
        models: the models that are measured.
        sets: all data sets of the command.
        allow: whether seen samples are only counted; otherwise they are an error.

    Raises:
        InputError: unless ``allow``, if there are seen samples; every model and test set is listed with the commands
            that used the samples.
    """
    # Records of used samples: `model.seen` has those of the commands that made the model.
    entries_of_command = fitted_entries(sets)
    seen: Seen = {}
    problems = []
    for model in models:
        why_incomparable = incomparable(model.seen)  # None if the records can be compared with these samples
        if why_incomparable is not None:
            problems.append(f"{model.name}: {why_incomparable}")
        entries = [*model.seen, *entries_of_command]
        # Corrupted sets need no check, because they have the images of the ID test set.
        for dataset in tested(sets):
            count, seen_by = _seen_count(model, entries, dataset)
            if count:
                seen.setdefault(model.name, {})[dataset.name] = count
                of_all = f"{count} of {len(dataset)} samples of {option_of(dataset)}"
                problems.append(f"{model.name}: {of_all} ({seen_by})")
    if allow or not problems:
        return seen
    hint = "test on other samples, or add --allow-seen to measure on them all the same, marked"
    if len(problems) == 1:
        raise InputError(f"test data that has been seen: {problems[0]}", hint=hint)
    raise InputError("test data that has been seen", hint=hint, problems=problems)


def warnings_of_seen(models: Sequence[LogitsProvider], sets: Sequence[EvalSet]) -> list[str]:
    """Return a sentence for each reason not to be certain whether a model was trained or fitted on test samples.

    The records of a model (``model.seen``) may be of a kind that cannot be compared with samples. Or its samples were
    decoded by another library than those of a test set, which can change the pixels by which samples are recognised.
    """
    warnings = []
    for model in models:
        why_incomparable = incomparable(model.seen)
        if why_incomparable is not None:
            warnings.append(f"{model.name}: {why_incomparable}")
        for dataset in tested(sets):
            if dataset.dataset is None:  # there are stored predictions only
                continue
            decoder = other_decoder(model.seen, dataset.dataset)
            if decoder is not None:
                warnings.append(
                    f"{model.name}: what it has seen was decoded by {decoder}, {option_of(dataset)} by "
                    f"{dataset.dataset.decoder}: pixels of JPEGs may differ in bits, and seen ones not be recognised"
                )
    return warnings


def _seen_count(model: LogitsProvider, entries: Sequence[Entry], dataset: EvalSet) -> tuple[int, str]:
    """Return how many samples of a test set a model was trained or fitted on, and words on the command that did it.

    If there are none, these are 0 and "".

    Args:
        model: the model, or stored predictions, which keep the number.
        entries: the records of the data that the model or this command was trained or fitted on.
        dataset: the test set.
    """
    # The whole set: it is recognised by its fingerprint, even if only predictions on it are stored and no samples.
    for entry in entries:
        if entry["data"] == dataset.fingerprint:
            return len(dataset), f"all of them by {entry['by']} ({entry['as']})"

    # The number that stored predictions keep; 0 for a model that runs.
    count_when_stored = model.already_seen(dataset)
    if count_when_stored:
        return count_when_stored, "as its predictions say"

    # Single samples, compared one by one.
    if dataset.dataset is None or not entries:
        return 0, ""
    is_seen = marked(entries, dataset.dataset)  # bool, [N]
    return int(is_seen.sum()), who_saw(entries, dataset.dataset)
