"""Samples that two sets of one command have in common: which of them are refused, left out, or warned of.

Samples are compared as they are given, by their content, and not by what they were made of: OOD samples made of the
validation data, and corrupted images, are other samples.

One rule for every verb. A sample that something was fitted to or chosen by is no test sample: any number is refused.
Of validation data, the samples that are also training data are left out, and counted. Of any other two sets, more than
a handful is warned of, and more than half of either set is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydractl.data.base import Dataset
from hydractl.data.part import dataset_part
from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, trained_on

_HANDFUL, _SHARE = 5, 0.01

SETS_APART_HINT = "give every set samples of its own"
"""The hint of a command whose sets are not apart."""


def is_more_than_a_handful(count: int, total: int) -> bool:
    """Return whether so many samples of a set are worth a warning: real data repeat a few."""
    return count > max(_HANDFUL, _SHARE * total)


@dataclass(frozen=True)
class GivenSet:
    """One data set of a command.

    Attributes:
        option: the option it was given to, and its name if there are several.
        dataset: the samples.
    """

    option: str
    dataset: Dataset


@dataclass(frozen=True)
class SharedSamples:
    """How many samples two sets have in common.

    Attributes:
        first, second: the sets.
        of_first, of_second: how many samples of each are in the other one, too.
    """

    first: GivenSet
    second: GivenSet
    of_first: int
    of_second: int

    def __bool__(self) -> bool:
        return self.of_first > 0

    @property
    def is_many(self) -> bool:
        """Whether it is more than a handful of either set."""
        in_first = is_more_than_a_handful(self.of_first, len(self.first.dataset))
        in_second = is_more_than_a_handful(self.of_second, len(self.second.dataset))
        return in_first or in_second

    @property
    def is_most(self) -> bool:
        """Whether it is more than half of either set."""
        in_first = 2 * self.of_first > len(self.first.dataset)
        in_second = 2 * self.of_second > len(self.second.dataset)
        return in_first or in_second

    def __str__(self) -> str:
        first = len(self.first.dataset)
        second = len(self.second.dataset)
        if self.of_first == first and self.of_second == second:
            return f"{self.first.option} and {self.second.option} are the same samples"
        return (
            f"{self.of_first} of {first} samples of {self.first.option} are among the {second} of {self.second.option}"
        )


@dataclass
class Findings:
    """What the sets of a command have in common that they should not.

    Attributes:
        warnings: pairs of sets with more than a handful.
        problems: pairs of sets that no result can come from.
    """

    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def refuse(self, hint: str = SETS_APART_HINT) -> None:
        """Raise the problems, if there are any.

        Raises:
            InputError: with all of them.
        """
        if self.problems:
            raise InputError(self.problems[0], hint=hint, problems=self.problems[1:])


def shared_samples(first: GivenSet, second: GivenSet) -> SharedSamples:
    """Count the samples of two sets that are in both."""
    digests_of_first = first.dataset.sample_fingerprints()
    digests_of_second = second.dataset.sample_fingerprints()
    in_both = set(digests_of_first) & set(digests_of_second)
    if not in_both:
        return SharedSamples(first, second, 0, 0)
    return SharedSamples(first, second, _count(digests_of_first, in_both), _count(digests_of_second, in_both))


def _count(digests: Iterable[str], among: Collection[str]) -> int:
    """Return how many of the digests are among others."""
    return sum(digest in among for digest in digests)


def compare_sets(sets: Sequence[GivenSet]) -> Findings:
    """Hold every two of some sets against each other of which neither is fitted to where the other one is tested on."""
    findings = Findings()
    for first, second in itertools.combinations(sets, 2):
        shared = shared_samples(second, first)
        if shared.is_most:
            findings.problems.append(str(shared))
        elif shared.is_many:
            findings.warnings.append(f"{shared}: {SETS_APART_HINT}")
    return findings


def compare_fitted(fitted: Sequence[GivenSet], tested: Sequence[GivenSet]) -> Findings:
    """Hold the sets that something is fitted to, or chosen by, against those that are tested on."""
    findings = Findings()
    for test, other in itertools.product(tested, fitted):
        shared = shared_samples(test, other)
        if shared:
            findings.problems.append(str(shared))
    return findings


@dataclass(frozen=True)
class Validation:
    """Validation data without the training data among them.

    Attributes:
        dataset: what is left.
        left_out: how many samples are not.
    """

    dataset: Dataset
    left_out: int = 0

    def words(self, option: str, training: str) -> str:
        """Say what was left out."""
        verb = "is" if self.left_out == 1 else "are"
        total = self.left_out + len(self.dataset)
        return f"{self.left_out} of {total} samples of {option} {verb} among those of {training}, and left out of it"


def without_training_data(validation: GivenSet, training: GivenSet) -> Validation:
    """Return the validation data without the samples that are among the training data.

    Raises:
        InputError: that would be more than half of them.
    """
    shared = shared_samples(validation, training)
    if not shared:
        return Validation(validation.dataset)
    if 2 * shared.of_first > len(validation.dataset):
        raise InputError(str(shared), hint="give a validation set of its own")
    known = set(training.dataset.sample_fingerprints())
    digests = validation.dataset.sample_fingerprints()
    rows = np.flatnonzero([digest not in known for digest in digests]).tolist()
    return Validation(dataset_part(validation.dataset, validation.dataset.spec, rows), shared.of_first)


def trained_on_doubt(model: str, seen: Iterable[Entry], validation: GivenSet) -> str | None:
    """Return what is odd about validation data that weights of a model were trained on; None for a handful of them.

    Args:
        model: its name.
        seen: the samples behind it.
        validation: what something is chosen by.
    """
    count = trained_on(seen, validation.dataset)
    total = len(validation.dataset)
    if not is_more_than_a_handful(count, total):
        return None
    return (
        f"{model} was trained on {count} of {total} samples of {validation.option}, on which it looks surer and better "
        "than it is, and so does what is chosen by them: give validation data of its own"
    )
