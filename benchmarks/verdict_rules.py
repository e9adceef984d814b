"""Compare rules by which a study may choose a row and an OOD score: what each loses, and how much harm it does.

    python benchmarks/verdict_cases.py DATA -o runs/verdict
    python benchmarks/verdict_rules.py runs/verdict/cases -o docs/results/verdict-rules.json

A case is a model: its rows with their OOD scores of every sample of validation and test data, as ``verdict_cases.py``
writes them. A rule sees validation data alone: one or more of the OOD validation sets, with all scores or those on
logits alone. Its choice is measured on the test data, by the mean AUROC over the OOD test sets, none of which it saw:

* *lost*: that of the best candidate in hindsight, among rows within the limits of accuracy and NLL, minus its own;
* *harm*: by how much it is below that of the single model with MSP, where it is.

One of the OOD validation sets of every model, ``blind``, is no OOD data at all: other ID samples, hardly changed.

This is a second implementation of the rule of docs/study.md, from its words, in numpy alone: nothing is imported from
``hydractl``. All AUROC differences on validation data are paired: ID samples and each OOD set are resampled, the same
samples for all candidates.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ORDER = (
    *("msp", "entropy", "margin", "gen", "energy", "maxlogit", "mi", "variance"),
    *("mahalanobis", "rmd", "knn", "vim", "react", "ash", "vilu"),
)
"""The OOD scores in the order of docs/metrics.md."""
ON_FEATURES = ORDER[8:]

ACCURACY_LIMIT = 0.01
NLL_LIMIT = 0.02

BLIND = "val.blind"
PARTS = ("seen", "beside blind", "blind")
"""Choices of OOD validation sets: without the blind one, with it among others, that one alone."""

ROUNDS = 300
SIZES = (150, 500)
DRAWS = 3


# --- the rule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One way to settle the open choices.

    Attributes:
        pick: how a row takes its score among admissible ones: the ``highest`` AUROC; the first in ``order`` that is at
            most the margin below that; or the first that is not ``significantly`` below it.
        over: the AUROC that counts: the ``mean`` over OOD validation sets, or that of the ``worst``.
        bound: when a candidate does harm on a set, by its difference to single + MSP: ``margin`` (below minus the
            margin, or significantly below 0), ``low -.02`` and ``low -.05`` (the lower end is below that),
            ``significant`` (significantly below 0), ``none`` (never).
        gain: whether an admissible candidate must be significantly better than single + MSP in the mean.
        blind: a set is blind where no score of the single model has a lower end above this; 0: never.
        margin: of AUROC.
        scores: ``own``, each row has the score it takes; ``one``, all rows have that of the single model.
    """

    pick: str = "highest"
    over: str = "mean"
    bound: str = "margin"
    gain: bool = True
    blind: float = 0.6
    margin: float = 0.01
    scores: str = "own"


@dataclass(frozen=True)
class Candidate:
    """A row with a score."""

    row: int
    score: str


@dataclass
class Validation:
    """What a rule sees of a model.

    Attributes:
        candidates: C of them, rows in the order of the table, scores in theirs; the first is single + MSP.
        prices: (mult-adds, members, place in the table) of each row.
        within: whether each row keeps to the limits of accuracy and NLL, see :func:`keeps_to`.
        points: AUROC of each candidate on each of S sets [C, S].
        resampled: the same on R resamples [C, S, R].
    """

    candidates: list[Candidate]
    prices: list[tuple[float, int, int]]
    within: list[bool]
    points: np.ndarray
    resampled: np.ndarray


@dataclass
class Compared:
    """The candidates on the sets that vote, as far as a setting's numbers do not matter.

    Attributes:
        merit: the AUROC that counts [C], ``merit_resampled`` on resamples [C, R].
        gain_low: the lower end of the mean difference to single + MSP [C].
        differences, lows, highs: of the difference to single + MSP on each set [C, voting sets].
        above: answers of :func:`significantly_above`, by pair.
    """

    merit: np.ndarray
    merit_resampled: np.ndarray
    gain_low: np.ndarray
    differences: np.ndarray
    lows: np.ndarray
    highs: np.ndarray
    above: dict[tuple[int, int], bool] = field(default_factory=dict)


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % interval over the last axis."""
    low, high = np.quantile(values, (0.025, 0.975), axis=-1)
    return low, high


def keeps_to(limit: float, loss: float, resampled: np.ndarray) -> bool:
    """Return whether a row keeps to a limit: not where its loss is above it, and significantly above 0.

    Args:
        limit: how much worse than the single model it may be.
        loss: how much worse it is.
        resampled: the same on R resamples [R].
    """
    low, _ = interval(resampled)
    return bool(loss <= limit + 1e-9 or low <= 0)


def voting_sets(validation: Validation, sets: Sequence[int], blind: float) -> tuple[int, ...]:
    """Return the sets that some score of the single model can tell from ID samples."""
    if blind == 0:
        return tuple(sets)
    of_single = [place for place, candidate in enumerate(validation.candidates) if candidate.row == 0]
    low, _ = interval(validation.resampled[of_single])
    return tuple(each for each in sets if low[:, each].max() > blind)


def compared(validation: Validation, sets: Sequence[int], over: str) -> Compared:
    """Return what the sets say of the candidates."""
    points = validation.points[:, sets]
    resampled = validation.resampled[:, sets]
    differences = points - points[0]
    lows, highs = interval(resampled - resampled[0])
    gain_low, _ = interval((resampled - resampled[0]).mean(axis=1))
    summary = np.mean if over == "mean" else np.min
    return Compared(summary(points, axis=1), summary(resampled, axis=1), gain_low, differences, lows, highs)


def does_harm(sets: Compared, setting: Setting) -> np.ndarray:
    """Return for each candidate whether it does harm on some set [C]."""
    significant = sets.highs < 0
    harmful = {
        "margin": (sets.differences < -setting.margin) | significant,
        "low -.02": sets.lows < -0.02,
        "low -.05": sets.lows < -0.05,
        "significant": significant,
        "none": np.zeros_like(significant),
    }
    return harmful[setting.bound].any(axis=1)


def first_choice(places: Sequence[int], sets: Compared, validation: Validation, setting: Setting) -> int:
    """Return which candidate of one row is its own."""
    best = max(places, key=lambda place: sets.merit[place])
    if setting.pick == "highest":
        return best
    in_order = sorted(places, key=lambda place: ORDER.index(validation.candidates[place].score))
    for place in in_order:
        if setting.pick == "order" and sets.merit[place] >= sets.merit[best] - setting.margin:
            return place
        if setting.pick == "significantly" and not significantly_above(sets, best, place):
            return place
    return best


def significantly_above(sets: Compared, first: int, second: int) -> bool:
    """Return whether the lower end of the difference of two candidates is above 0."""
    pair = (first, second)
    if pair not in sets.above:
        low, _ = interval(sets.merit_resampled[first] - sets.merit_resampled[second])
        sets.above[pair] = bool(low > 0)
    return sets.above[pair]


def decide(validation: Validation, sets: Sequence[int], setting: Setting, cache: dict[Any, Any]) -> int:
    """Return the place of the candidate that a rule takes; 0 is single + MSP."""
    key: tuple[Any, ...] = (tuple(sets), setting.blind)
    if key not in cache:
        cache[key] = voting_sets(validation, sets, setting.blind)
    voting = cache[key]
    if not voting:
        return 0
    key = (voting, setting.over)
    if key not in cache:
        cache[key] = compared(validation, voting, setting.over)
    # Which sets are blind matters no more.
    decision = (voting, replace(setting, blind=0))
    if decision not in cache:
        cache[decision] = decided(validation, cache[key], setting)
    return int(cache[decision])


def decided(validation: Validation, voted: Compared, setting: Setting) -> int:
    """Return the place of the candidate that a rule takes, of those that the sets do not exclude."""
    admissible = ~does_harm(voted, setting)
    if setting.gain:
        admissible &= voted.gain_low > 0
    admissible[0] = True
    places_of: dict[int, list[int]] = {}
    for place in np.flatnonzero(admissible).tolist():
        row = validation.candidates[place].row
        if validation.within[row]:
            places_of.setdefault(row, []).append(place)
    shared = None
    if setting.scores == "one":
        shared = validation.candidates[first_choice(places_of[0], voted, validation, setting)].score
    chosen_of: dict[int, int] = {}
    for row, places in places_of.items():
        allowed = [place for place in places if shared in (None, validation.candidates[place].score)]
        if allowed:
            chosen_of[row] = first_choice(allowed, voted, validation, setting)
    return cheapest(chosen_of, voted, validation, setting)


def cheapest(chosen_of: dict[int, int], sets: Compared, validation: Validation, setting: Setting) -> int:
    """Return the choice of the cheapest row of which no dearer one is better by more than the margin."""
    rows = sorted(chosen_of, key=lambda row: validation.prices[row])
    for number, row in enumerate(rows):
        mine = chosen_of[row]
        beaten = False
        for dearer in rows[number + 1 :]:
            rival = chosen_of[dearer]
            enough = sets.merit[rival] - sets.merit[mine] > setting.margin
            beaten = beaten or (enough and significantly_above(sets, rival, mine))
        if not beaten:
            return mine
    raise AssertionError("the dearest row has no dearer one")


def before(validation: Validation, sets: Sequence[int]) -> int:
    """Return the choice by an earlier rule: no look at harm, the order decides within significance."""
    voted = compared(validation, sets, "mean")
    setting = Setting(pick="significantly")
    own = {}
    for row in range(len(validation.prices)):
        places = [place for place, candidate in enumerate(validation.candidates) if candidate.row == row]
        own[row] = first_choice(places, voted, validation, setting)
    admissible = [place for row, place in own.items() if validation.within[row]]
    best = max(admissible, key=lambda place: voted.merit[place])
    near = [
        place
        for place in admissible
        if voted.merit[place] >= voted.merit[best] - 0.01 or not significantly_above(voted, best, place)
    ]
    return min(near, key=lambda place: validation.prices[validation.candidates[place].row])


# --- cases ------------------------------------------------------------------------------------------------------------


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Return the chance that an OOD sample scores higher than an ID sample, ties counted half."""
    ordered = np.sort(inside)
    below = np.searchsorted(ordered, outside, side="left")
    not_above = np.searchsorted(ordered, outside, side="right")
    return float((below + not_above).sum() / (2 * len(inside) * len(outside)))


def auroc_resampled(
    inside: np.ndarray, outside: np.ndarray, inside_counts: np.ndarray, outside_counts: np.ndarray
) -> np.ndarray:
    """Return the AUROC of R resamples, in which each sample stands as often as counts say [R, N], [R, K]."""
    order = np.argsort(inside)
    ordered = inside[order]
    cumulated = np.zeros((len(inside_counts), len(inside) + 1))
    np.cumsum(inside_counts[:, order], axis=1, out=cumulated[:, 1:])
    below = cumulated[:, np.searchsorted(ordered, outside, side="left")]
    not_above = cumulated[:, np.searchsorted(ordered, outside, side="right")]
    wins = (below + not_above) / 2
    return (wins * outside_counts).sum(axis=1) / (len(inside) * len(outside))


class Case:
    """A model: its rows, and their values of every sample."""

    def __init__(self, path: Path) -> None:
        """Read a case."""
        with np.load(path) as stored:
            self.arrays = {name: stored[name] for name in stored.files if name != "about"}
            about = json.loads(str(stored["about"]))
        self.name: str = about["model"]
        self.family: str = about["family"]
        self.rows: list[dict[str, Any]] = about["rows"]
        names = {name.split("|")[2] for name in self.arrays}
        self.val_sets = sorted(name for name in names if name.startswith("val."))
        self.test_sets = sorted(name for name in names if name.startswith("test."))

    def candidates(self) -> list[Candidate]:
        """Return every row with every score it has."""
        found = []
        for row, about in enumerate(self.rows):
            found += [Candidate(row, score) for score in ORDER if f"{about['name']}|{score}|val" in self.arrays]
        return found

    def values(self, candidate: Candidate, name: str) -> np.ndarray:
        """Return the scores of the samples of a set."""
        return self.arrays[f"{self.rows[candidate.row]['name']}|{candidate.score}|{name}"]

    def prices(self) -> list[tuple[float, int, int]]:
        """Return what rows are ordered by."""
        return [(row["macs"], row["members"], place) for place, row in enumerate(self.rows)]

    def validation(self, size: int | None, seed: int, rounds: int) -> Validation:
        """Return what a rule sees, of all samples or of so many of each set."""
        random = np.random.default_rng(seed)
        kept = {}
        for name in ("val", *self.val_sets):
            count = len(self.arrays[f"single|msp|{name}"])
            places = np.arange(count)
            if size is not None and size < count:
                places = np.sort(random.permutation(count)[:size])
            kept[name] = places
        counts = {}
        for name, places in kept.items():
            counts[name] = random.multinomial(len(places), [1 / len(places)] * len(places), size=rounds)
        candidates = self.candidates()
        points = np.zeros((len(candidates), len(self.val_sets)))
        resampled = np.zeros((*points.shape, rounds), dtype=np.float32)
        for place, candidate in enumerate(candidates):
            inside = self.values(candidate, "val")[kept["val"]]
            for number, name in enumerate(self.val_sets):
                outside = self.values(candidate, name)[kept[name]]
                points[place, number] = auroc(inside, outside)
                resampled[place, number] = auroc_resampled(inside, outside, counts["val"], counts[name])
        return Validation(candidates, self.prices(), self.within(kept["val"], counts["val"]), points, resampled)

    def within(self, places: np.ndarray, counts: np.ndarray) -> list[bool]:
        """Return which rows keep to both limits, on samples that are drawn as often as counts say [R, N]."""
        passed = []
        for row in self.rows:
            kept = []
            for what, sign, limit in (("correct", -1, ACCURACY_LIMIT), ("nll", 1, NLL_LIMIT)):
                own, single = (self.arrays[f"{name}|{what}|val"][places] for name in (row["name"], "single"))
                lost = sign * (own.astype(np.float64) - single)  # of each sample
                kept.append(keeps_to(limit, lost.mean(), counts @ lost / len(places)))
            passed.append(all(kept))
        return passed

    def test_aurocs(self) -> np.ndarray:
        """Return the AUROC of each candidate on each test set [C, T]."""
        found = []
        for candidate in self.candidates():
            inside = self.values(candidate, "test")
            found.append([auroc(inside, self.values(candidate, name)) for name in self.test_sets])
        return np.asarray(found)


def without_features(validation: Validation) -> tuple[Validation, list[int]]:
    """Return what a rule sees where no score on features is there, and the places of what is left."""
    kept = [place for place, each in enumerate(validation.candidates) if each.score not in ON_FEATURES]
    fewer = replace(
        validation,
        candidates=[validation.candidates[place] for place in kept],
        points=validation.points[kept],
        resampled=validation.resampled[kept],
    )
    return fewer, kept


# --- the comparison ---------------------------------------------------------------------------------------------------


@dataclass
class Situation:
    """A model, what is seen of it, and its test data.

    Attributes:
        case: the model.
        validation: what a rule sees.
        tests: the AUROC of the candidates on the test sets [C, T].
        subsets: the choices of OOD validation sets, by number.
        cache: of :func:`decide`.
    """

    case: Case
    validation: Validation
    tests: np.ndarray
    subsets: list[tuple[int, ...]]
    cache: dict[Any, Any]

    def outcome(self, place: int) -> tuple[float, float, float, float]:
        """Return what a choice loses, its difference to single + MSP, that on the worst test set, and its price."""
        means = self.tests.mean(axis=1)
        rows = [candidate.row for candidate in self.validation.candidates]
        within = [number for number, row in enumerate(rows) if self.validation.within[row]]
        best = means[within].max()
        gains = self.tests[place] - self.tests[0]
        price = self.validation.prices[rows[place]][0] / self.validation.prices[0][0]
        return best - means[place], means[place] - means[0], gains.min(), price


def situations(case: Case, size: int | None, seed: int, rounds: int) -> list[Situation]:
    """Return a model with all scores and with those on logits, under every choice of its OOD validation sets."""
    validation = case.validation(size, seed, rounds)
    tests = case.test_aurocs()
    numbers = range(len(case.val_sets))
    subsets = []
    for count in range(1, len(case.val_sets) + 1):
        subsets += list(itertools.combinations(numbers, count))
    fewer, kept = without_features(validation)
    return [
        Situation(case, validation, tests, subsets, {}),
        Situation(case, fewer, tests[kept], subsets, {}),
    ]


def outcomes(situation: Situation, setting: Setting | str) -> np.ndarray:
    """Return the outcome of a setting, or of a fixed rule by name, under every choice of sets.

    Returns:
        [subsets, 6]: lost, difference to single + MSP, that on the worst test set, price, whether it is single + MSP,
        and the place in PARTS.
    """
    found = []
    blind = situation.case.val_sets.index(BLIND)
    for sets in situation.subsets:
        if isinstance(setting, Setting):
            place = decide(situation.validation, sets, setting, situation.cache)
        elif setting == "before":
            place = before(situation.validation, sets)
        elif setting == "single + MSP":
            place = 0
        else:
            scores = [each.score for each in situation.validation.candidates]
            place = scores.index(setting) if setting in scores else scores.index("energy")
        part = "seen"
        if blind in sets:
            part = "blind" if len(sets) == 1 else "beside blind"
        found.append((*situation.outcome(place), float(place == 0), PARTS.index(part)))
    return np.asarray(found)


def summary(by_model: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what a setting does, from its outcomes by model, each model counted alike."""
    lost = {name: float(rows[:, 0].mean()) for name, rows in by_model.items()}
    worst = {name: float(rows[:, 1].min()) for name, rows in by_model.items()}
    every = np.concatenate(list(by_model.values()))
    return {
        "lost": statistics.fmean(lost.values()),
        "gain": statistics.fmean(float(rows[:, 1].mean()) for rows in by_model.values()),
        "worst": min(worst.values()),
        "mean_worst": statistics.fmean(worst.values()),
        "harmed": statistics.fmean(float((rows[:, 1] < -0.01).mean()) for rows in by_model.values()),
        "worst_on_a_set": float(every[:, 2].min()),
        "lost_by_part": {part: parted(by_model, number, 0) for number, part in enumerate(PARTS)},
        "worst_by_part": {part: parted(by_model, number, 1) for number, part in enumerate(PARTS)},
        "price": statistics.fmean(float(rows[:, 3].mean()) for rows in by_model.values()),
        "kept_msp": statistics.fmean(float(rows[:, 4].mean()) for rows in by_model.values()),
        "lost_by_model": {name: round(value, 5) for name, value in lost.items()},
        "worst_by_model": {name: round(value, 5) for name, value in worst.items()},
    }


def parted(by_model: dict[str, np.ndarray], part: int, column: int) -> float:
    """Return the mean over models of what is lost in a part (column 0), or the worst difference there (1)."""
    found = [rows[rows[:, 5] == part, column] for rows in by_model.values()]
    if column == 0:
        return statistics.fmean(float(values.mean()) for values in found)
    return min(float(values.min()) for values in found)


def variations() -> dict[str, Setting]:
    """Return the rule as method and margin stand in docs/study.md, and with one choice changed at a time."""
    rule = Setting()
    return {
        RULE: rule,
        "score: first in order within the margin": replace(rule, pick="order"),
        "score: first in order that is not significantly worse": replace(rule, pick="significantly"),
        "AUROC: of the worst set": replace(rule, over="worst"),
        "harm: lower end below -0.02": replace(rule, bound="low -.02"),
        "harm: lower end below -0.05": replace(rule, bound="low -.05"),
        "harm: significantly below 0": replace(rule, bound="significant"),
        "harm: not looked at": replace(rule, bound="none"),
        "gain: need not be significant": replace(rule, gain=False),
        "blind: no set": replace(rule, blind=0),
        "blind: not above 0.5": replace(rule, blind=0.5),
        "blind: not above 0.55": replace(rule, blind=0.55),
        "blind: not above 0.65": replace(rule, blind=0.65),
        "blind: not above 0.7": replace(rule, blind=0.7),
        "margin: 0.005": replace(rule, margin=0.005),
        "margin: 0.02": replace(rule, margin=0.02),
        "rows: all with the single model's score": replace(rule, scores="one"),
    }


def combinations() -> dict[str, Setting]:
    """Return settings in which several choices are changed."""
    every_set = Setting(blind=0)
    one_score = Setting(scores="one")
    return {
        "no blind set, harm: lower end below -0.02": replace(every_set, bound="low -.02"),
        "no blind set, harm: lower end below -0.05": replace(every_set, bound="low -.05"),
        "no blind set, harm: significantly below 0": replace(every_set, bound="significant"),
        "no blind set, harm: not looked at": replace(every_set, bound="none"),
        "one score, margin 0.005": replace(one_score, margin=0.005),
        "one score, margin 0.02": replace(one_score, margin=0.02),
        "one score, gain need not be significant": replace(one_score, gain=False),
        "one score, harm not looked at": replace(one_score, bound="none"),
    }


FIXED = ("before", "single + MSP", "mahalanobis")
"""Rules without a setting: that the study had before, and two that look at nothing."""
RULE = "the rule"
BY_SIZE = (
    RULE,
    "harm: lower end below -0.02",
    "harm: not looked at",
    "blind: no set",
    "blind: not above 0.55",
    "blind: not above 0.65",
    "margin: 0.02",
    "rows: all with the single model's score",
    "before",
)
"""Rules that the page shows by the number of validation samples."""


def every_setting() -> list[Setting]:
    """Return all combinations of the open choices."""
    choices = itertools.product(
        ("highest", "order", "significantly"),
        ("mean", "worst"),
        ("margin", "low -.02", "low -.05", "significant", "none"),
        (True, False),
        (0, 0.5, 0.55, 0.6, 0.65),
        (0.005, 0.01, 0.02),
        ("own", "one"),
    )
    return [Setting(*values) for values in choices]


def measured(groups: dict[str, list[Situation]], setting: Setting | str) -> dict[str, np.ndarray]:
    """Return the outcomes of a setting by model."""
    return {
        name: np.concatenate([outcomes(situation, setting) for situation in group]) for name, group in groups.items()
    }


def lost_alone(rows: np.ndarray) -> float:
    """Return what a setting loses on one model."""
    return float(rows[:, 0].mean())


def lost_and_harm(rows: np.ndarray) -> float:
    """Return what a setting loses on one model, and its worst harm there."""
    return float(rows[:, 0].mean()) + max(0.0, -float(rows[:, 1].min()))


CRITERIA = {"lost": lost_alone, "lost and worst harm": lost_and_harm}
"""What settings are chosen by, of their outcomes on one model; the mean over models decides."""


def left_out(
    results: list[dict[str, np.ndarray]], together: dict[str, str], criterion: Callable[[np.ndarray], float]
) -> dict[str, Any]:
    """Choose among all settings on the other models, and measure on the ones left out together.

    Args:
        results: outcomes by model, of every setting.
        together: for each model the name of what is left out with it.
        criterion: what is to be low.
    """
    settings = every_setting()
    names = list(together)
    judged = np.asarray([[criterion(by_model[name]) for name in names] for by_model in results])
    chosen: dict[str, np.ndarray] = {}
    taken: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(together.values()):
        others = [place for place, name in enumerate(names) if together[name] != group]
        best = int(np.argmin(judged[:, others].mean(axis=1)))
        taken[group] = vars(settings[best])
        for name in names:
            if together[name] == group:
                chosen[name] = results[best][name]
    means = judged.mean(axis=1)
    overall = np.argsort(means, kind="stable")
    rule = settings.index(Setting())
    differences = judged - judged[overall[0]]
    errors = differences.std(axis=1, ddof=1) / len(names) ** 0.5
    return {
        "settings": len(settings),
        "measured": summary(chosen),
        "taken": taken,
        "best": [{**vars(settings[place]), "judged": round(float(means[place]), 5)} for place in overall[:10]],
        "rule": round(float(means[rule]), 5),
        "rule_rank": int(np.flatnonzero(overall == rule)[0]) + 1,
        "rule_minus_best": [round(float(value), 5) for value in (means[rule] - means[overall[0]], errors[rule])],
    }


def paired_difference(row: dict[str, Any], first: dict[str, Any]) -> list[float]:
    """Return the mean over models of the difference in what is lost, and its standard error."""
    differences = [row["lost_by_model"][model] - value for model, value in first["lost_by_model"].items()]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return [statistics.fmean(differences), error]


def without_models(row: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without its figures by model."""
    return {name: value for name, value in row.items() if not name.endswith("_by_model")}


def rounded(value: Any) -> Any:
    """Return a document whose numbers have five digits behind the point."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return value


def shown(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """Print a table."""
    print(f"\n{title}")
    columns = ("lost", "gain", "worst", "mean_worst", "harmed", "worst_on_a_set", "price", "kept_msp")
    # Behind the columns with a title: the two figures by part, in the order of PARTS.
    parts = [(key, part) for key in ("lost_by_part", "worst_by_part") for part in PARTS]
    print(f"{'':54}" + "".join(f"{column:>15}" for column in columns) + f"{'lost, to first':>24}")
    first = next(iter(rows.values()))
    for name, row in rows.items():
        row["minus_first"] = paired_difference(row, first)
        paired = "{:+.4f} +- {:.4f}".format(*row["minus_first"])
        print(
            f"{name:54}"
            + "".join(f"{row[column]:15.4f}" for column in columns)
            + f"{paired:>24}  "
            + "  ".join(f"{row[key][part]:.4f}" for key, part in parts)
        )


def main() -> None:
    """Compare, print the tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, help="the folder of cases")
    parser.add_argument("-o", "--output", type=Path, help="the JSON of all tables")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--all", action=argparse.BooleanOptionalAction, default=True, help="leave models out in turn")
    arguments = parser.parse_args()
    cases = [Case(path) for path in sorted(arguments.cases.glob("*.npz"))]
    if not cases:
        sys.exit(f"error: no case in {arguments.cases}")
    document: dict[str, Any] = {"rounds": arguments.rounds, "models": [], "tables": {}}
    document["single_changes"] = [*variations(), *FIXED]
    document["several_changes"] = [RULE, *combinations()]
    document["by_size"] = BY_SIZE
    groups: dict[str, list[Situation]] = {}
    for case in cases:
        groups[case.name] = situations(case, None, 0, arguments.rounds)
        document["models"].append(described(case, groups[case.name][0]))
    varied: dict[str, Setting | str] = variations() | combinations()
    varied |= {name: name for name in FIXED}
    tables = document["tables"]
    tables["all samples"] = {name: summary(measured(groups, setting)) for name, setting in varied.items()}
    shown("all samples", tables["all samples"])
    for size in SIZES:
        smaller: dict[str, list[Situation]] = {}
        for case in cases:
            smaller[case.name] = []
            for draw in range(DRAWS):
                smaller[case.name] += situations(case, size, draw + 1, arguments.rounds)
        table = {name: summary(measured(smaller, setting)) for name, setting in varied.items()}
        shown(f"{size} samples", table)
        tables[f"{size} samples"] = {name: without_models(row) for name, row in table.items()}
    if arguments.all:
        document["left_out"] = {}
        results = [measured(groups, setting) for setting in every_setting()]
        for what, together in (
            ("model", {name: name for name in groups}),
            ("family", {case.name: case.family for case in cases}),
        ):
            for name, criterion in CRITERIA.items():
                part = left_out(results, together, criterion)
                document["left_out"][f"{what}, {name}"] = part
                shown(f"one {what} left out, by {name}", {"chosen on the others": part["measured"]})
                for group, setting in part["taken"].items():
                    print(f"  without {group}: {setting}")
                print("the rule", part["rule"], part["rule_rank"], part["rule_minus_best"], *part["best"], sep="\n  ")
    if arguments.output:
        arguments.output.write_text(json.dumps(rounded(document), indent=1) + "\n", encoding="utf-8")


def described(case: Case, situation: Situation) -> dict[str, Any]:
    """Return what a model is like on its test data."""
    means = situation.tests.mean(axis=1)
    candidates = situation.validation.candidates
    of_single = [place for place, candidate in enumerate(candidates) if candidate.row == 0]
    best_single = max(of_single, key=lambda place: means[place])
    best = int(means.argmax())
    low, _ = interval(situation.validation.resampled[of_single])
    return {
        "name": case.name,
        "family": case.family,
        "accuracy": float(case.arrays["single|correct|test"].mean()),
        "msp": float(means[0]),
        "best_single": [candidates[best_single].score, float(means[best_single])],
        "best": [case.rows[candidates[best].row]["name"], candidates[best].score, float(means[best])],
        "samples": {name: len(case.arrays[f"single|msp|{name}"]) for name in ("val", *case.val_sets)},
        "seen_from": {name: float(value) for name, value in zip(case.val_sets, low.max(axis=0), strict=True)},
    }


if __name__ == "__main__":
    main()
