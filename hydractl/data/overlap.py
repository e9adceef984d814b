"""Samples that two data sets of one command have in common: refused, left out, or reported in a warning.

Samples are compared by what a model would see of them. OOD samples made from the validation data and corrupted images
differ from the samples they were made from.

All verbs follow one rule. A sample that something was fitted to, or chosen by, cannot be a test sample: even one is
refused. Validation samples that are also training data are left out and counted. For any other two sets, more than a
handful of common samples gives a warning, and more than half of either set is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hydractl.data.base import Dataset
from hydractl.data.batching import read_ahead
from hydractl.data.part import DatasetPart
from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, incomparable, trained_on

# Real data repeat a few samples. So many samples, or this share of a set, are not the user's mistake.
_HANDFUL, _SHARE = 5, 0.01

SETS_APART_HINT = "give every set samples of its own"
"""The hint of an error about sets that share samples."""


def is_more_than_a_handful(count: int, total: int) -> bool:
    """Return whether ``count`` samples of a set of ``total`` are so many that a warning is needed."""
    handful = max(_HANDFUL, _SHARE * total)
    return count > handful


@dataclass(frozen=True)
class GivenSet:
    """One data set of a command.

    Attributes:
        option: the option that received the set, and its name if the option takes several sets.
        dataset: the samples.
    """

    option: str
    dataset: Dataset


@dataclass(frozen=True)
class SharedSamples:
    """How many samples two sets have in common.

    Attributes:
        first, second: the two sets.
        of_first, of_second: how many samples of each set are also in the other one.
    """

    first: GivenSet
    second: GivenSet
    of_first: int
    of_second: int

    def __bool__(self) -> bool:
        return self.of_first > 0

    def _counts(self) -> list[tuple[int, int]]:
        """Return for each set how many of its samples are common, and how many it has."""
        return [(self.of_first, len(self.first.dataset)), (self.of_second, len(self.second.dataset))]

    @property
    def is_many(self) -> bool:
        """Whether the common samples are more than a handful of either set."""
        return any(is_more_than_a_handful(common, total) for common, total in self._counts())

    @property
    def is_most(self) -> bool:
        """Whether the common samples are more than half of either set."""
        return any(2 * common > total for common, total in self._counts())

    def __str__(self) -> str:
        """Return a sentence that says how many samples the two sets share."""
        first = self.first.option
        second = self.second.option
        # Of each set: how many of its samples are also in the other, and how many it has.
        (of_first, total), (of_second, total_of_second) = self._counts()
        if of_first == total and of_second == total_of_second:
            return f"{first} and {second} are the same samples"
        return f"{of_first} of {total} samples of {first} are among the {total_of_second} of {second}"


@dataclass
class Findings:
    """Samples that the sets of a command should not have in common.

    Attributes:
        warnings: one sentence for each pair of sets that share more than a handful of samples.
        problems: one sentence for each pair of sets that share so many samples that no result is valid.
    """

    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def refuse(self, hint: str = SETS_APART_HINT) -> None:
        """Raise an error with all problems, if there are any.

        Raises:
            InputError: if there are problems.
        """
        if not self.problems:
            return
        first, *others = self.problems
        raise InputError(first, hint=hint, problems=others)


def shared_samples(first: GivenSet, second: GivenSet) -> SharedSamples:
    """Return how many samples of each of two sets are also in the other; 0 and 0 if the sets are apart.

    Samples are the same if they have the same fingerprint, i.e. the hash of what a model sees of them. A sample that a
    set repeats counts every time.
    """
    # Decode many images in several processes, and store their fingerprints; the result would be the same without it.
    for given_set in (first, second):
        read_ahead(given_set.dataset)
    digests_of_first = first.dataset.sample_fingerprints()
    digests_of_second = second.dataset.sample_fingerprints()
    in_both = set(digests_of_first) & set(digests_of_second)
    of_first = sum(digest in in_both for digest in digests_of_first)
    of_second = sum(digest in in_both for digest in digests_of_second)
    return SharedSamples(first, second, of_first, of_second)


def compare_sets(sets: Sequence[GivenSet]) -> Findings:
    """Return what pairs of sets have in common that they should not: problems and warnings.

    A pair is a problem if more than half of either set is also in the other, and a warning if more than a handful of
    samples is. The sets are such that nothing is fitted to one of them and tested on another.
    """
    findings = Findings()
    for first, second in itertools.combinations(sets, 2):
        shared = shared_samples(second, first)
        if shared.is_most:
            findings.problems.append(str(shared))
        elif shared.is_many:
            findings.warnings.append(f"{shared}: {SETS_APART_HINT}")
    return findings


def compare_fitted(fitted: Sequence[GivenSet], tested: Sequence[GivenSet]) -> Findings:
    """Compare every set that something is fitted to, or chosen by, with every set that is tested on."""
    findings = Findings()
    for test_set, fitted_set in itertools.product(tested, fitted):
        shared = shared_samples(test_set, fitted_set)
        if shared:
            findings.problems.append(str(shared))
    return findings


def without_training_data(validation: Dataset, training: Dataset) -> tuple[Dataset, int]:
    """Return ``--val`` without the samples that are also in ``--train``, and how many these are.

    Raises:
        InputError: if these are more than half of the validation data.
    """
    shared = shared_samples(GivenSet("--val", validation), GivenSet("--train", training))
    if not shared:  # no sample is in both
        return validation, 0
    if 2 * shared.of_first > len(validation):
        raise InputError(str(shared), hint="give a validation set of its own")

    # Keep the samples whose fingerprint, the hash of what a model sees, is not among those of the training data.
    digests_of_training = set(training.sample_fingerprints())
    fingerprints = validation.sample_fingerprints()
    kept_rows = [index for index, digest in enumerate(fingerprints) if digest not in digests_of_training]
    return DatasetPart(validation, validation.spec, kept_rows), shared.of_first


def left_out_words(remaining: Dataset, left_out: int) -> str:
    """Return a sentence that says how many samples were left out of ``--val``, which has the remaining ones."""
    total = left_out + len(remaining)
    verb = "is" if left_out == 1 else "are"
    return f"{left_out} of {total} samples of --val {verb} among those of --train, and left out of it"


def trained_on_warning(model: str, seen: Iterable[Entry], validation: GivenSet) -> str | None:
    """Return a warning if a model was trained on validation samples, or may have been; None if on none or a handful.

    Args:
        model: the name of the model.
        seen: records of the data sets that its weights have seen, with the fingerprints (hashes) of their samples.
        validation: the data by which something is chosen, with the option that they were given by.
    """
    # Records of an older version may have fingerprints of another kind, by which nothing can be compared. The phrase
    # says whose records these are.
    records = list(seen)
    phrase_on_older = incomparable(record for record in records if record["as"] == "train")
    if phrase_on_older is not None:
        return f"{model}: {phrase_on_older}: whether {validation.option} is apart from it is not known"
    count = trained_on(records, validation.dataset)
    total = len(validation.dataset)
    if not is_more_than_a_handful(count, total):
        return None
    return (
        f"{model} was trained on {count} of {total} samples of {validation.option}, on which it looks surer and better "
        "than it is, and so does what is chosen by them: give validation data of its own"
    )
