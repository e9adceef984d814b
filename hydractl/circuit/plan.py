"""The cost of a search: planned before it starts, and reported when it has run."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hydractl.circuit.evaluator import Evaluator, MemoryPlan
from hydractl.circuit.lazy import SLOPES_EVERY, USUALLY_ASKED
from hydractl.circuit.objective import reads_ood
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import evaluations
from hydractl.circuit.tower import SearchedTower
from hydractl.circuit.winners import CandidateHead
from hydractl.families.base import State
from hydractl.log import Log
from hydractl.metrics.probabilities import Floats
from hydractl.report.texts import bytes_text, duration_text

_TIMED_CALLS = 3
"""How many calls are timed to say how long a search takes."""

_ATTENTION_SHARE = 0.4
"""About which share of a block is attention: 4 of 12 products in a transformer, and the attention itself."""

_TIMED_BATCH = 0
"""The batch that is timed, which is one of ID samples."""


@dataclass(frozen=True)
class SearchPlan:
    """The cost of a search by Algorithm 1.

    Attributes:
        evaluations_per_objective: how often the whole data are evaluated, at most.
        sample_blocks_naive: how often a block runs on a sample in the plain algorithm, one objective after another.
        seconds: about how long the search takes without bounds, and without evaluations that objectives share.
        processor_seconds: the processor time of that, of all processes and threads.
        seconds_per_pass: the processor time of one sample in the whole model.
        memory_bytes: how many bytes are kept between evaluations.
        chunks: into how many parts the data are cut so that the memory suffices.
    """

    evaluations_per_objective: int
    sample_blocks_naive: int
    seconds: float
    processor_seconds: float
    seconds_per_pass: float
    memory_bytes: int
    chunks: int


def plan_search(
    evaluator: Evaluator,
    heads: Sequence[CandidateHead],
    budget: int,
    options: SearchOptions,
    sizes: Mapping[str, int],
    memory: MemoryPlan,
    processes: int,
) -> SearchPlan:
    """Count the evaluations of a search, and measure on one batch how long they take.

    Args:
        evaluator: an evaluator of the whole model, with all of the data or only some batches.
        heads: the candidates.
        budget: how many of them are removed.
        options: the options of the search.
        sizes: the number of samples in all data, by ``id`` and ``ood``.
        memory: how the memory is used for all data.
        processes: how many processes share the work.
    """
    # Count evaluations of the whole data: Headmap tries each head once, Algorithm 1 tries all heads left at every step.
    # A lazy step evaluates only some of these, usually two, those with the best forecasts. The forecasts need slopes,
    # for which the model runs forward once (1) and backward (about 2) at every SLOPES_EVERY-th step.
    asked_at_most = asked_by_lazy(options)
    passes = 0.0
    if options.algorithm == "headmap":
        naive_count = count = expected = len(heads)
    else:
        naive_count = evaluations(len(heads), budget)
        count = evaluations(len(heads), budget, asked_at_most)
        expected = count
        if asked_at_most is not None:
            expected = evaluations(len(heads), budget, min(asked_at_most, USUALLY_ASKED))
            passes = budget * 3 / SLOPES_EVERY

    # Time each tower on one batch. A pass of the label tower serves all batches of samples.
    of_pass = _time_of_pass(evaluator.sample_tower, evaluator.stem_of(_TIMED_BATCH))
    of_labels = np.zeros(2)
    if evaluator.label_tower is not None:
        first_stem, *others = evaluator.label_stems
        of_labels = _time_of_pass(evaluator.label_tower, first_stem) * (1 + len(others))

    # A candidate runs what follows its attention. Count the objectives one after another.
    sites = [site for site, _ in heads]
    naive_work = 0
    seconds = np.zeros(2)
    for objective in options.objective:
        ood_samples = sizes.get("ood", 0) if reads_ood([objective]) else 0
        samples = sizes["id"] + ood_samples
        batches = samples / evaluator.batches[_TIMED_BATCH].size
        naive_work += naive_count * evaluator.naive_work(samples, sites)
        of_candidates = []
        for site in sites:
            if evaluator.label_tower is not None and site in evaluator.label_tower.sites:
                of_candidates.append(of_labels * _share_run(evaluator.label_tower, site))
            else:
                of_candidates.append(of_pass * batches * _share_run(evaluator.sample_tower, site))
        seconds += expected * np.mean(of_candidates, axis=0) + passes * batches * of_pass
    of_clock, of_processor = seconds.tolist()
    return SearchPlan(
        evaluations_per_objective=count,
        sample_blocks_naive=naive_work,
        seconds=of_clock / processes,
        processor_seconds=of_processor,
        seconds_per_pass=float(of_pass[1]) / evaluator.batches[_TIMED_BATCH].size,
        memory_bytes=memory.bytes,
        chunks=len(memory.chunks),
    )


def asked_by_lazy(options: SearchOptions) -> int | None:
    """Return how many candidates a step of ``--approx lazy:N`` evaluates at most, N; None for an exact search."""
    if options.approx is None:
        return None
    count = options.approx.removeprefix("lazy:")
    return int(count)


def _share_run(tower: SearchedTower, site: int) -> float:
    """Return which share of a tower a candidate runs: the blocks after its own, and its own but for the attention.

    E.g. of 12 blocks, a candidate in the third one runs 9 and 0.6 of its own: a share of 9.6 / 12 = 0.8.
    """
    blocks = len(tower.sites)
    blocks_before = site - tower.sites.start
    return (blocks - blocks_before - _ATTENTION_SHARE) / blocks


@torch.inference_mode()
def _time_of_pass(tower: SearchedTower, stem: State) -> Floats:
    """Return how long a tower takes for one batch: seconds of the clock, and seconds of processor time, ``[2]``.

    The first call is not counted, as libraries do one-time work in it. Of the others the shortest counts: they may have
    waited for other work of the machine.
    """
    times = []  # [2] for each call: seconds of the clock and of the processor
    for _ in range(1 + _TIMED_CALLS):
        start = np.array([time.perf_counter(), time.process_time()])
        tower.trace(stem)  # runs all blocks
        end = np.array([time.perf_counter(), time.process_time()])
        times.append(end - start)
    return np.min(times[1:], axis=0)


def free_memory(device: torch.device) -> int:
    """Return how many bytes of memory are free on a device; half of all memory if the machine does not say.

    A GPU says it itself, Linux in /proc/meminfo (``MemAvailable:  16384 kB``).
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    with contextlib.suppress(OSError, ValueError):  # only Linux has this file
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                kilobytes = line.split()[1]
                return int(kilobytes) * 1024
    all_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return all_bytes // 2


# --- messages for the user --------------------------------------------------------------------------------------------


def tell_plan(log: Log, plan: SearchPlan, scope: Scope, options: SearchOptions, bounds: bool) -> None:
    """Log what the search will do, how long that takes about, and how much memory it needs.

    Args:
        log: receives two lines.
        plan: the cost of the search.
        scope: the heads that may be removed.
        options: the options of the search.
        bounds: whether candidates are given up early, which saves an unknown part of the time.
    """
    up_to = "up to " if options.max_drop is not None else ""
    objectives = ", ".join(options.objective)
    log.info(
        f"removing {up_to}{scope.budget} of {len(scope.heads)} heads: {plan.evaluations_per_objective:,} evaluations "
        f"of the whole data per objective, {objectives}; steps that objectives share are measured once"
    )
    before_bounds = " before bounds" if bounds else ""
    parts = f", the data in {plan.chunks} parts" if plan.chunks > 1 else ""
    log.info(
        f"about {duration_text(plan.seconds)}{before_bounds}; {bytes_text(plan.memory_bytes)} of states are kept{parts}"
    )


def tell_work(log: Log, plan: SearchPlan, evaluations: int, work: float, processes: int) -> None:
    """Log what the search did cost, and which share that is of the plain algorithm.

    Args:
        log: receives the line.
        plan: says what the plain algorithm costs.
        evaluations: how many candidates this process has evaluated; 0 if a journal had all of them.
        work: how often this process has run a block on a sample.
        processes: how many processes shared the search.
    """
    if not evaluations:
        log.info("nothing was left to evaluate: the journal has the whole search")
        return
    by_whom = " by this process" if processes > 1 else ""
    share_of_naive = work / plan.sample_blocks_naive
    log.info(
        f"{evaluations:,} candidates and {round(work):,} sample-block evaluations{by_whom}: "
        f"{share_of_naive:.3f} of the naive {plan.sample_blocks_naive:,}"
    )
