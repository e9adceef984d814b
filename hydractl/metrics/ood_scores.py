"""Out-of-distribution scores: one number per sample, computed from the members' logits; higher = more OOD.

Each score is one function of a :class:`~hydractl.metrics.probabilities.Block`, which holds numpy arrays, or tensors in
an exported graph. The choices of ``--ood-score`` are read from here when help is shown. Nothing here imports numpy,
which would be slow; the block does the arithmetic. Other packages declare scores by entry points of the group
``hydractl.ood_scores``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hydractl.files.plugins import load_entry_point, named_entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hydractl.metrics.probabilities import Block, Floats


Chance = Literal["", "right", "wrong"]
"""What kind of probability a score is. ``wrong``: the score is the probability that the answer is wrong. ``right``:
minus the score is the probability that the answer is right. Empty: the score is no probability."""


@dataclass(frozen=True)
class OodScore:
    """One OOD score.

    Attributes:
        function: computes the score float64 [n] from a block of n samples.
        convention: the sentence that defines it.
        of_several: whether it needs several members; for one member it is constant.
        chance: what kind of probability it is; empty if it is none.
        in_studies: whether a study chooses from it unasked, if it is of another package; those of this file always are.
    """

    function: Callable[[Block], Floats]
    convention: str
    of_several: bool = False
    chance: Chance = ""
    in_studies: bool = False

    def __call__(self, block: Block) -> Floats:
        return self.function(block)


_GEN_GAMMA, _GEN_CLASSES = 0.1, 100

GROUP = "hydractl.ood_scores"


class ScoreTable(Mapping[str, OodScore]):
    """Scores by name: first those of this file in the order of their declaration, then those of other packages by name.

    Installed packages are searched only when a name is not in this file; a score is imported when it is asked for.
    """

    def __init__(self) -> None:
        self._declared_here: dict[str, OodScore] = {}

    def __setitem__(self, name: str, score: OodScore) -> None:
        self._declared_here[name] = score

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        """The entry points of other packages by name, sorted.

        Raises:
            InputError: a name is taken by a score of hydractl.
        """
        return named_entry_points(GROUP, [*self._declared_here, *ON_FEATURES])

    def __getitem__(self, name: str) -> OodScore:
        """Return a score by name, imported from another package if need be.

        Raises:
            KeyError: there is no such score.
            InputError: another package names something else than a score.
        """
        if name in self._declared_here:
            return self._declared_here[name]
        return load_entry_point(self._points[name], OodScore)

    def __contains__(self, name: object) -> bool:
        return name in self._declared_here or name in self._points

    def __iter__(self) -> Iterator[str]:
        yield from self._declared_here
        yield from self._points

    def __len__(self) -> int:
        return len(self._declared_here) + len(self._points)

    def of_studies(self) -> list[str]:
        """Return the names of the scores that a study chooses from: those of this file, and others that ask for it."""
        return [name for name in self if name in self._declared_here or self[name].in_studies]


SCORES = ScoreTable()


ON_FEATURES = {
    "mahalanobis": "labels",
    "rmd": "labels",
    "mahalanobis-layers": "labels",
    "knn": "data",
    "vim": "data",
    "react": "data",
    "ash": "",
    "hedge": "labels",
    "vilu": "labels",
    "vilu-scaled": "labels",
    "mcm": "",
    "neglabel": "words",
}
"""Scores on features (:mod:`hydractl.metrics.feature_scores.scores`) by name, and what each is fitted to: ``labels``,
the labelled data of ``--train``; ``data``, the data of ``--train``, labelled or not; ``words``, the words of
``--negative-words``; empty, nothing."""
CHANCES_ON_FEATURES: dict[str, Chance] = {"vilu": "wrong", "vilu-scaled": "wrong", "mcm": "right"}
"""The scores on features that are a probability, and of which kind."""
OF_ZERO_SHOT = ("vilu", "vilu-scaled", "mcm", "neglabel")
"""Scores that need a classifier whose weight holds the features of class texts."""
OF_UNSIGNED = {"react", "ash"}
"""Scores for features that are never negative, e.g. after a ReLU; others they clip, or add up to sums that cancel."""
OF_STUDY = ("mahalanobis", "rmd", "mahalanobis-layers", "knn", "vim", "react", "ash", "vilu")
"""Scores that a study chooses from by default, where their sums over layers may have the memory that they need."""
HEDGE = "hedge"
"""The score that a study takes where it has no OOD samples to choose one by. As a sum of others it is not among ``all``
where the file does not hold it."""
LAYERS = "mahalanobis-layers"
OF_LAYERS = {LAYERS: "centre.0", HEDGE: f"{LAYERS}.centre.0"}
"""Scores that take what every block gives, beside the features, and the array with an entry for each feature that only
those keep that do. ``hedge`` does without where the sums of all layers need too much memory."""


def on_features(names: Iterable[str]) -> list[str]:
    """Return those of some scores that are computed from features."""
    return [name for name in names if name in ON_FEATURES]


def needs_training_data(name: str) -> bool:
    """Return whether a score on features, by its name, is fitted to training data."""
    return ON_FEATURES[name] in ("labels", "data")


def says_nothing(name: str, members: int) -> bool:
    """Return whether a score is constant for this number of members, so that it cannot tell samples apart."""
    if members > 1 or name not in SCORES:
        return False
    return SCORES[name].of_several


def chance_of(name: str) -> Chance:
    """Return what kind of probability a score is, by its name; empty if it is none."""
    if name in SCORES:
        return SCORES[name].chance
    return CHANCES_ON_FEATURES.get(name, "")


def ood_score(
    convention: str, *, of_several: bool = False, chance: Chance = "", in_studies: bool = False
) -> Callable[[Callable[[Block], Floats]], OodScore]:
    """Return a decorator that turns a function into an :class:`OodScore`.

    A function of this file also becomes one of :data:`SCORES`, under its name; scores of other packages are found by
    their entry points.

    Args:
        convention: the sentence that defines the score.
        of_several: whether it needs several members; for one member it is constant.
        chance: what kind of probability it is; empty if it is none.
        in_studies: whether a study chooses from it unasked, although it is of another package.
    """

    def declare(function: Callable[[Block], Floats]) -> OodScore:
        score = OodScore(function, convention, of_several, chance, in_studies)
        is_of_this_file = function.__module__ == __name__
        if is_of_this_file:
            SCORES[function.__name__] = score
        return score

    return declare


@ood_score("OOD score: minus the highest p.", chance="right")
def msp(block: Block) -> Floats:
    """Minus the maximum softmax probability of p, [n]. Source: Hendrycks and Gimpel 2017."""
    return -block.confidence


@ood_score("OOD score: entropy of p, in nats.")
def entropy(block: Block) -> Floats:
    """Entropy of p in nats, [n]."""
    return block.entropy


@ood_score("OOD score: the second highest p minus the highest.")
def margin(block: Block) -> Floats:
    """The second highest p minus the highest, [n], -1..0; minus p for one class. Source: Scheffer et al. 2001."""
    rising = block.rising_probs  # [n, C]
    classes = rising.shape[1]
    if classes == 1:
        return -rising[:, 0]
    highest = rising[:, -1]
    second_highest = rising[:, -2]
    return second_highest - highest


@ood_score("OOD score: sum of (p_k (1 - p_k))^0.1 over the 100 classes of highest p.")
def gen(block: Block) -> Floats:
    """Generalised entropy of p, [n]. Source: Liu et al. 2023, gamma = 0.1 and M = 100."""
    highest = block.rising_probs[:, -_GEN_CLASSES:]  # [n, at most 100]
    spread = highest * (1.0 - highest)
    terms = spread ** block.arrays.number(_GEN_GAMMA)
    return terms.sum(axis=1)


@ood_score("OOD score: mean over members of -logsumexp of the logits (temperature 1).")
def energy(block: Block) -> Floats:
    """Mean over members of the energy -logsumexp(logits), [n]. Source: Liu et al. 2020, equation 4, T = 1."""
    mean_over_members = block.logsumexp.mean(axis=0)
    return -mean_over_members


@ood_score("OOD score: mean over members of minus the highest logit.")
def maxlogit(block: Block) -> Floats:
    """Mean over members of minus the highest logit, [n]. Source: Hendrycks et al. 2022."""
    mean_over_members = block.highest.mean(axis=0)
    return -mean_over_members


@ood_score("OOD score: H(p) - mean over members of H(p_m), in nats; constant for one member.", of_several=True)
def mi(block: Block) -> Floats:
    """Mutual information in nats, [n]; 0 for one member. Source: Depeweg et al. 2018."""
    return block.mi


@ood_score(
    "OOD score: population variance over members of the probability of the class with the highest p;"
    " constant for one member.",
    of_several=True,
)
def variance(block: Block) -> Floats:
    """Population variance over members of the probability of the ensemble's predicted class, [n]; 0 for one member."""
    probs = block.member_probs_of_predicted  # [M, n]
    # Subtracting a constant does not change the variance, but makes that of equal members exactly 0.
    shifted = probs - probs[0]
    return block.arrays.variance(shifted)
