"""How often is a word of the verdict wrong? Two models whose true difference is known are compared on many test sets.

    python benchmarks/verdict_words.py -o docs/results/verdict-words.json

A verdict says of each difference that it is better, worse, slightly so, no difference, or that the data cannot tell.
All but the last may be wrong, because a test set is a draw. Here two models are made up, whose logits have a part in
common and a part of their own, and test sets of them are drawn by the hundred, with as many OOD samples as ID samples.
Each is judged as ``study`` judges, by hydractl's own bootstrap of 1,000 rounds and its own words:

* where both models are the same but for their own parts, every word that says better or worse is wrong;
* where one is better, by a difference that 400,000 samples show, so is every word that says worse, or no difference;
* where the data cannot tell and a number of samples is said to be enough, another test set of that number is drawn.

What is measured is written after each part, and what is there already is kept: delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hydractl.metrics.bootstrap import (
    Resampled,
    mean_over_sets,
    paired_differences,
    resample,
    resample_aurocs,
)
from hydractl.metrics.samples import Samples, samples_of
from hydractl.studies.words import ACCURACY, AUROC, CANNOT_TELL, KINDS, NLL, NO_DIFFERENCE, Finding, judge

CLASSES = 10
ROUNDS = 1000
SIZES = (30, 100, 300, 1000)
SLOW_SIZES = (100, 300)
SLOW_SHARE = 5
"""ECE and FPR95, which are slow to resample, are judged on one of so many test sets of these sizes."""
ECE, FPR95 = "id.ece", "ood_avg.fpr95"
AT_MOST = 5000
"""The largest number of samples said to be enough that is tried."""
TRUTH_SAMPLES = 400_000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Two models, of which test sets are drawn.

    Attributes:
        name: in the result.
        margins: how far the logit of the true class lies above the others in each of the two models, on average.
        own: the standard deviation of the part of each logit that is the model's own; that of the common part is 2.
    """

    name: str
    margins: tuple[float, float]
    own: float


EQUAL = (
    Pair("weak, alike", (3.0, 3.0), own=0.2),
    Pair("weak, apart", (3.0, 3.0), own=1.0),
    Pair("strong, alike", (8.0, 8.0), own=0.2),
    Pair("strong, apart", (8.0, 8.0), own=1.0),
)
UNEQUAL = (
    Pair("better", (5.0, 5.3), own=0.5),
    Pair("much better", (5.0, 6.0), own=0.5),
)


@dataclass(frozen=True)
class TestSet:
    """One draw of ID and of OOD samples.

    Attributes:
        labels: of the ID samples, [N].
        inside, outside: the logits of both models for ID and for OOD samples, [2, N, classes].
    """

    labels: NDArray[np.int64]
    inside: Floats
    outside: Floats


def draw_test_set(pair: Pair, n: int, rng: np.random.Generator) -> TestSet:
    """Draw ``n`` ID samples and as many OOD samples, and what both models say of them."""
    labels = rng.integers(0, CLASSES, n)
    common_inside = 2 * rng.normal(size=(n, CLASSES))
    common_outside = 2 * rng.normal(size=(n, CLASSES))
    inside = []
    outside = []
    for margin in pair.margins:
        own_inside = pair.own * rng.normal(size=(n, CLASSES))
        own_outside = pair.own * rng.normal(size=(n, CLASSES))
        logits = common_inside + own_inside
        logits[np.arange(n), labels] += margin
        inside.append(logits)
        outside.append(common_outside + own_outside)
    return TestSet(labels, np.stack(inside), np.stack(outside))


# --- the words --------------------------------------------------------------------------------------------------------


def fast_findings(drawn: TestSet) -> dict[str, Finding]:
    """Judge accuracy, NLL and AUROC of the second model minus the first, as a study does."""
    rows = [fast_metrics(*row) for row in rows_of(drawn)]
    return judged(rows, (ACCURACY, NLL, AUROC), len(drawn.labels))


def fast_metrics(inside: Samples, outside: Samples) -> Resampled:
    """Resample accuracy, NLL and AUROC of one model."""
    of_id = resample(inside, {}, {}, rounds=ROUNDS, names={"accuracy", "nll"})
    aurocs = resample_aurocs(inside, {"ood": outside}, ["msp"], rounds=ROUNDS)
    of_ood = mean_over_sets(aurocs["msp"], AUROC)
    return Resampled({**of_id.values, **of_ood.values}, {**of_id.rounds, **of_ood.rounds})


def slow_findings(drawn: TestSet) -> dict[str, Finding]:
    """Judge ECE and FPR95 of the second model minus the first, as a study does."""
    rows = []
    for inside, outside in rows_of(drawn):
        rows.append(resample(inside, {"ood": outside}, {"ood": None}, rounds=ROUNDS, names={"ece", "fpr95"}))
    return judged(rows, (ECE, FPR95), len(drawn.labels))


def rows_of(drawn: TestSet) -> Iterator[tuple[Samples, Samples]]:
    """Yield the ID and the OOD samples of each of the two models, with MSP as their score."""
    for inside, outside in zip(drawn.inside, drawn.outside, strict=True):
        yield samples_of(inside[None], drawn.labels), samples_of(outside[None])


def judged(rows: list[Resampled], metrics: tuple[str, ...], n: int) -> dict[str, Finding]:
    """Return the finding of each metric for the second of two rows minus the first."""
    first, second = rows
    differences = paired_differences(first, second)
    findings = {}
    for metric in metrics:
        findings[metric] = judge(metric, differences[metric], n)
    return findings


# --- the parts --------------------------------------------------------------------------------------------------------


def words_of(pair: Pair, n: int, trials: int) -> dict[str, Any]:
    """Judge ``trials`` test sets of ``n`` samples; return how often each word was said of each metric.

    ``differ`` counts the test sets on which a difference was said of accuracy, NLL or AUROC, of how many. Where the
    data could not tell and a number of samples was said to be enough, another test set of that number is judged:
    ``enough`` counts how often it could tell, of how many that were tried.
    """
    words: dict[str, Counter[str]] = {metric: Counter() for metric in KINDS}
    enough: dict[str, list[bool]] = {metric: [] for metric in KINDS}
    differ = 0
    rng = np.random.default_rng([n, *pair.name.encode()])
    for _ in range(trials):
        findings = fast_findings(draw_test_set(pair, n, rng))
        differ += any(finding.kind not in (NO_DIFFERENCE, CANNOT_TELL) for finding in findings.values())
        for metric, finding in findings.items():
            words[metric][finding.kind] += 1
            if pair in UNEQUAL and finding.needed is not None and finding.needed <= AT_MOST:
                again = fast_findings(draw_test_set(pair, finding.needed, rng))
                enough[metric].append(again[metric].kind != CANNOT_TELL)
    if n in SLOW_SIZES and pair in EQUAL:
        for _ in range(trials // SLOW_SHARE):
            for metric, finding in slow_findings(draw_test_set(pair, n, rng)).items():
                words[metric][finding.kind] += 1
    return {
        "words": {metric: dict(sorted(counted.items())) for metric, counted in words.items() if counted},
        "differ": [differ, trials],
        "enough": {metric: [sum(told), len(told)] for metric, told in enough.items() if told},
    }


def truth_of(pair: Pair) -> dict[str, float]:
    """Return the accuracy of the first model, and of unequal models the differences of the second, of many samples."""
    drawn = draw_test_set(pair, TRUTH_SAMPLES, np.random.default_rng(1))
    rows = []
    for inside, outside in rows_of(drawn):
        assert inside.label_log_probs is not None and inside.score is not None and outside.score is not None
        ranks = rankdata(np.concatenate([inside.score, outside.score]))
        # The Mann-Whitney U of the OOD samples over the number of pairs.
        u = ranks[TRUTH_SAMPLES:].sum() - TRUTH_SAMPLES * (TRUTH_SAMPLES + 1) / 2
        rows.append(
            {
                ACCURACY: float(inside.correct.mean()),
                NLL: float(-inside.label_log_probs.mean()),
                AUROC: float(u / TRUTH_SAMPLES**2),
            }
        )
    first, second = rows
    truth = {"accuracy": round(first[ACCURACY], 3)}
    if pair in UNEQUAL:
        for metric, value in first.items():
            truth[metric] = round(second[metric] - value, 4)
    return truth


def main() -> None:
    """Measure what is missing in the result, and write it after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the JSON file with the result")
    parser.add_argument("--trials", type=int, default=500, help="test sets of each pair of models and size")
    arguments = parser.parse_args()
    output = arguments.output
    trials = arguments.trials
    settings = {"rounds": ROUNDS, "trials": trials, "slow_trials": trials // SLOW_SHARE, "at_most": AT_MOST}
    result: dict[str, Any] = {"settings": settings, "pairs": {}}
    if output.exists():
        result = json.loads(output.read_text(encoding="utf-8"))
        if result["settings"] != settings:
            parser.error(f"{output} was begun with other settings: {result['settings']}")
    for pair in (*EQUAL, *UNEQUAL):
        if pair.name not in result["pairs"]:
            result["pairs"][pair.name] = {"truth": truth_of(pair), "sizes": {}}
        part = result["pairs"][pair.name]
        for n in SIZES:
            if str(n) in part["sizes"]:
                continue
            part["sizes"][str(n)] = words_of(pair, n, trials)
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(pair.name, n, part["sizes"][str(n)], flush=True)


if __name__ == "__main__":
    main()
