"""Complementary attention head pruning (CAHP, arXiv 2606.19150), which decides by itself how many heads are kept.

This is our reading, made from the abstract and a review of the paper. Every head has a separability signature, the
Jeffries-Matusita distance of each pair of classes in its output (:mod:`hydractl.criteria.separability`). k-medoids over
the Euclidean distances between signatures (FasterPAM, Schubert and Rousseeuw 2021, doi 10.1016/j.is.2021.101804) gives
k heads that represent all, for every k. The accuracy with only those heads is fitted by a polynomial in k, and its knee
is the number of heads kept (:mod:`hydractl.criteria.knee`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from hydractl.criteria.base import Calibration, Decision
from hydractl.criteria.head_outputs import Batches, count_correct, head_outputs, part_of
from hydractl.criteria.knee import Knee, find_knee
from hydractl.criteria.separability import LEAST_SAMPLES, Floats, Ints, class_pairs, signatures
from hydractl.errors import InputError, UsageError
from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.runtime import HydraModel

DEGREES = (2, 3, 4, 5)
"""The degrees whose knees are reported beside that of the degree asked for."""

MOST_SIZES = 40
"""How many numbers of heads are tried at most; a model with no more heads than that has every number tried."""

_PACKAGES = {"sklearn": "scikit-learn", "kmedoids": "kmedoids"}
_SPLIT, _PAIRS, _MEDOIDS = 1, 2, 3  # what is drawn by the seed, each independently of the others
_PARTS_OF_ONE = 2**32  # the grid of distances; they are below 64, so their sums stay far within 64 bits
_POINTS_PER_LINE = 8

Place = tuple[int, int]
"""(index of the site, position of the head among those present)."""


class CAHP:
    """The score of a head is the share of the numbers k for which it is one of the k representatives."""

    name = "cahp"
    needs_data = True
    options = ("degree",)

    def check(self, sites: Sequence[Site]) -> None:
        """Heads must read samples, and two packages are needed.

        Raises:
            UsageError: for the heads of a tower of texts, or a package that is not installed.
        """
        missing = [name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None]
        if missing:
            install = " ".join(missing)
            raise UsageError(f"--method cahp needs {install}, not installed here", hint=f"pip install {install}")
        if any(site.tower == "text" for site in sites):
            raise UsageError(
                "--method cahp compares heads by what they make of samples, the text tower reads prompts",
                hint="add --tower visual",
            )

    def score(self, model: HydraModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """See :meth:`decide`."""
        return self.decide(model, calibration, sites).scores

    def decide(self, model: HydraModel, calibration: Calibration, sites: Sequence[int]) -> Decision:
        """One pass over a part of the sample for the signatures, then one over the rest for each number of heads.

        Raises:
            InputError: where there are no heads, fewer than two classes, or too few samples of a class.
            NonFiniteError: where the output of a head or a logit is not finite.
        """
        heads = [(i, position) for i in sites for position in range(model.attentions[i].head_counts[0])]
        if not heads:
            raise InputError("there are no heads left to choose from")
        # The sample is read once and stays in memory, because each number of heads runs over it again.
        batches = list(calibration.batches())
        labels, classes = _class_numbers(np.concatenate([known.cpu().numpy() for _, known in batches]), model)
        if len(classes) < (model.classes or 0):
            calibration.log.warn(f"cahp: only {len(classes)} of {model.classes} classes occur in the sample drawn")
        first = split_by_class(labels, np.random.default_rng([calibration.seed, _SPLIT]))
        pairs = class_pairs(len(classes), np.random.default_rng([calibration.seed, _PAIRS]))
        distances = _distances(
            model, calibration, part_of(batches, first), labels[first], pairs, sorted({*dict(heads)})
        )
        rest = part_of(batches, ~first)
        del batches
        sizes = sizes_to_try(len(heads))
        chosen = [representatives(distances, k, calibration.seed) for k in sizes]
        correct = _curve(model, calibration.log, rest, heads, chosen)
        total = int((~first).sum())
        accuracy = [count / total for count in correct]
        degree = calibration.options.get("degree", 3)
        knees = {d: find_knee(sizes, accuracy, d) for d in sorted({*DEGREES, degree})}
        _report(calibration.log, sizes, accuracy, knees, degree)
        knee = knees[degree]
        curve = zip(sizes, correct, accuracy, knee.fitted.tolist(), strict=True)
        info = {
            "degree": degree,
            "classes": len(classes),
            "class_pairs": len(pairs),
            "samples": {"signatures": len(labels) - total, "accuracy": total},
            "curve": [{"heads": k, "correct": c, "accuracy": a, "fitted": f} for k, c, a, f in curve],
            "knee": {"heads": knee.heads, "distance": knee.distance},
            "knees": {str(d): found.heads for d, found in knees.items()},
        }
        scores: dict[int, list[float]] = {i: [] for i in sites}
        kept: dict[int, list[int]] = {i: [] for i in sites}
        at_knee = chosen[sizes.index(knee.heads)]
        for number, (i, position) in enumerate(heads):
            scores[i].append(sum(number in members for members in chosen) / len(sizes))
            if number in at_knee:
                kept[i].append(position)
        return Decision(scores, kept, info)


# --- the sample -------------------------------------------------------------------------------------------------------


def _class_numbers(labels: Ints, model: HydraModel) -> tuple[Ints, list[int]]:
    """Labels as positions among the classes that occur, and those classes.

    Raises:
        InputError: for fewer than two classes, or too few samples of one.
    """
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError("--method cahp compares classes, and the samples drawn are all of one class")
    names = model.labels or [str(c) for c in range(int(classes[-1]) + 1)]
    few = [f"class {names[c]}: {n}" for c, n in zip(classes, counts, strict=True) if n <= LEAST_SAMPLES]
    if few:
        raise InputError(
            f"--method cahp needs {LEAST_SAMPLES + 1} samples of each class; among the {len(labels)} drawn, "
            f"{len(few)} of {len(classes)} classes have fewer",
            hint="draw more with --samples, or give data with more samples of these classes",
            problems=few,
        )
    return numbers.astype(np.int64), classes.tolist()


def split_by_class(labels: Ints, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which samples make signatures: a drawn half of each class, at least ``LEAST_SAMPLES``; the rest measures."""
    first = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        shuffled = random.permutation(np.flatnonzero(labels == label))
        first[shuffled[: max(LEAST_SAMPLES, (len(shuffled) + 1) // 2)]] = True
    return first


def _distances(
    model: HydraModel, calibration: Calibration, batches: Batches, labels: Ints, pairs: Ints, sites: Sequence[int]
) -> Floats:
    """The Euclidean distance between the signatures of each two heads."""
    outputs = head_outputs(model, batches, sites, calibration.log)
    parts = []
    with calibration.log.progress("cahp: signatures", len(sites), "sites") as progress:
        for i in sites:
            parts.append(signatures(outputs[i], labels, pairs))
            progress.advance()
    together = np.concatenate(parts)
    return np.stack([np.linalg.norm(together - one, axis=1) for one in together])


# --- the curve --------------------------------------------------------------------------------------------------------


def sizes_to_try(heads: int) -> list[int]:
    """1 to ``heads``; of more than ``MOST_SIZES`` numbers, as many spread evenly, the first and the last among them."""
    return sorted({round(k) for k in np.linspace(1, heads, min(heads, MOST_SIZES)).tolist()})


def representatives(distances: Floats, count: int, seed: int) -> set[int]:
    """The medoids of ``count`` clusters by FasterPAM, started from a draw by ``seed``."""
    from kmedoids import fasterpam

    # Either of two heads can stand for both, a tie that sums of floats would leave to rounding; integers are exact.
    exact = np.rint(distances * _PARTS_OF_ONE).astype(np.int64)
    # The package takes 32 bits of a seed, and gives other answers on other numbers of threads.
    state = int(np.random.SeedSequence([seed, _MEDOIDS]).generate_state(1)[0])
    return set(fasterpam(exact, count, random_state=state, n_cpu=1).medoids.tolist())


def _curve(
    model: HydraModel, log: Log, batches: Batches, heads: Sequence[Place], chosen: Sequence[set[int]]
) -> list[int]:
    """How many samples are classified right with only the chosen heads, for each choice."""
    correct = []
    with log.progress("cahp: accuracy", len(chosen), "numbers of heads") as progress:
        for members in chosen:
            with _only(model, heads, members):
                correct.append(count_correct(model, batches))
            progress.advance(note=f"{len(members)} heads")
    return correct


@contextmanager
def _only(model: HydraModel, heads: Sequence[Place], members: set[int]) -> Iterator[None]:
    """Of these heads, gate off all but the members."""
    before = [attention.head_gate for attention in model.attentions]
    parameter = next(model.parameters())
    gates: dict[int, list[float]] = {}
    for number, (i, _) in enumerate(heads):
        gates.setdefault(i, []).append(float(number in members))
    try:
        for i, gate in gates.items():
            model.attentions[i].head_gate = torch.tensor([gate], device=parameter.device, dtype=parameter.dtype)
        yield
    finally:
        for attention, gate_before in zip(model.attentions, before, strict=True):
            attention.head_gate = gate_before


def _report(log: Log, sizes: Sequence[int], accuracy: Sequence[float], knees: dict[int, Knee], degree: int) -> None:
    """The curve, the knee, and the knees of other degrees."""
    points = [f"{k}: {a:.4f}" for k, a in zip(sizes, accuracy, strict=True)]
    log.info("cahp: accuracy against the number of heads kept")
    for start in range(0, len(points), _POINTS_PER_LINE):
        log.info("  " + "  ".join(points[start : start + _POINTS_PER_LINE]))
    knee = knees[degree]
    if knee.distance is None:
        log.warn(f"cahp: the curve has no knee with degree {degree}, so all {knee.heads} heads are kept")
    at_knee = accuracy[list(sizes).index(knee.heads)]
    others = ", ".join(f"{found.heads} with degree {d}" for d, found in knees.items() if d != degree)
    log.info(f"cahp: {knee.heads} of {sizes[-1]} heads are kept (accuracy {at_knee:.4f}), degree {degree}; {others}")


CRITERION = CAHP()
