"""Simulate watched traffic: how often clean inputs raise an alarm, and how often OOD samples among them do.

    python benchmarks/watching.py -o docs/results/watching.json

ID scores are normal, the threshold flags 5 % of them, OOD scores are as many standard deviations higher as give the
TPR. OOD samples are predicted to be of the same classes as ID samples, so that nothing but their scores gives them
away. Every window is compared by ``hydractl.metrics.watching``, as ``predict`` does. A deployment is a reference of its
own, and 100 windows that it is compared with. ``docs/make_results.py`` makes the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from hydractl.metrics.watching import Reference, WatchedInputs, compare_with_reference, reference_of

FLAGGED = 0.05
THRESHOLD = NormalDist().inv_cdf(1 - FLAGGED)
WINDOWS = 100
CLEAN = ((600, 10), (2000, 2), (2000, 10), (2000, 1000), (10_000, 10))
"""Samples of the reference, and classes, of deployments without any OOD sample; windows of 1,000."""
SIZES = ((600, 1000), (2000, 1000), (2000, 4000), (10_000, 1000), (10_000, 4000), (10_000, 20_000))
"""Samples of the reference, and inputs of the window, of those with some."""
TPRS = (0.3, 0.5, 0.8, 0.95)
SHARES = (0.05, 0.5)
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="file for the counts")
    parser.add_argument("--deployments", type=int, default=200, help="of each size of the reference")
    parser.add_argument("--draws", type=int, default=200, help="windows with OOD samples of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    document = {
        "settings": {"deployments": arguments.deployments, "draws": arguments.draws, "seed": arguments.seed},
        "clean": list(clean_deployments(arguments.deployments, arguments.seed)),
        "ood": list(windows_with_ood(arguments.draws, arguments.seed)),
    }
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if arguments.output:
        Path(arguments.output).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


# --- traffic ----------------------------------------------------------------------------------------------------------


def drawn_reference(generator: np.random.Generator, n: int, classes: int) -> Reference:
    """Return the reference of ``n`` ID samples."""
    scores = generator.normal(size=n)
    flagged = int((scores >= THRESHOLD).sum())
    return reference_of(scores, np.ones(n), drawn_classes(generator, n, classes), flagged)


def drawn_window(generator: np.random.Generator, n: int, classes: int, ood: int = 0, tpr: float = 0.0) -> WatchedInputs:
    """Return ``n`` inputs, ``ood`` of which are OOD samples that are flagged with the probability ``tpr``."""
    scores = generator.normal(size=n)
    if ood:
        scores[:ood] += THRESHOLD + NormalDist().inv_cdf(tpr)
    inputs = WatchedInputs(n=n, flagged=int((scores >= THRESHOLD).sum()))
    inputs.scores.extend(scores)
    inputs.classes.update(drawn_classes(generator, n, classes))
    return inputs


def drawn_classes(generator: np.random.Generator, n: int, classes: int) -> dict[str, int]:
    """Return how often each class is predicted; the most frequent one is twice as frequent as the rarest."""
    weights = np.linspace(1, 2, classes)
    counts = generator.multinomial(n, weights / weights.sum())
    return {str(index): count for index, count in enumerate(counts.tolist())}


# --- counting ---------------------------------------------------------------------------------------------------------


def clean_deployments(deployments: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield for each size how many deployments had an alarm within 100 windows, and how many windows were what."""
    for samples, classes in CLEAN:
        generator = np.random.default_rng([seed, samples, classes])
        with_alarm = 0
        verdicts: dict[str, int] = {}
        for _ in range(deployments):
            reference = drawn_reference(generator, samples, classes)
            alarms = 0
            for _ in range(WINDOWS):
                window = compare_with_reference(reference, drawn_window(generator, 1000, classes))
                verdicts[window.verdict] = verdicts.get(window.verdict, 0) + 1
                alarms += window.verdict == "alarm"
            with_alarm += alarms > 0
        yield {"reference": samples, "classes": classes, "with_alarm": with_alarm, "verdicts": verdicts}
        print(f"clean: {samples} samples, {classes} classes", file=sys.stderr)


def windows_with_ood(draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield for each size, share of OOD samples and TPR how many windows were what."""
    for samples, n in SIZES:
        for share in SHARES:
            for tpr in TPRS:
                generator = np.random.default_rng([seed, samples, n, round(100 * share), round(100 * tpr)])
                verdicts: dict[str, int] = {}
                for _ in range(draws):
                    reference = drawn_reference(generator, samples, CLASSES)
                    inputs = drawn_window(generator, n, CLASSES, round(share * n), tpr)
                    verdict = compare_with_reference(reference, inputs).verdict
                    verdicts[verdict] = verdicts.get(verdict, 0) + 1
                yield {"reference": samples, "window": n, "share": share, "tpr": tpr, "verdicts": verdicts}
        print(f"OOD samples: {samples} samples, {n} inputs", file=sys.stderr)


if __name__ == "__main__":
    main()
