"""How fast the approximate circuit searches are, and how much of the exact circuit they find.

    python benchmarks/approximate_circuits.py MODEL --data SPEC --ood SPEC --limit 500 --budget 8

Every search is the command ``hydractl extract-circuit`` itself, in this process, on one thread; the plain side is
Algorithm 1 written plainly on the library's own model (``extract_circuit.py``). All of them run once in every round,
in an order drawn by --seed, and their times hold reading the model and the data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

APPROXIMATIONS = "lazy:8,lazy:4,lazy:2"


def arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="SPEC", help="in-distribution samples")
    parser.add_argument("--ood", required=True, metavar="SPEC", help="out-of-distribution samples")
    parser.add_argument("--limit", type=int, default=500, metavar="N", help="the first N samples of each set [500]")
    parser.add_argument("--objective", default="avg", help="what is maximised [avg]")
    parser.add_argument("--budget", type=int, required=True, metavar="N", help="heads to remove")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples per batch [32]")
    parser.add_argument("--approx", default=APPROXIMATIONS, metavar="LIST", help=f"what to try [{APPROXIMATIONS}]")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="rounds of all searches [1]")
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True, help="time the plain side [on]")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of the searches [0]")
    return parser.parse_args()


def search(asked: argparse.Namespace, folder: Path, name: str, more: list[str]) -> dict[str, Any]:
    """The circuit of one ``extract-circuit``."""
    from hydractl.cli.app import main

    path = folder / f"{name.replace(', ', '-').replace(' ', '-').replace(':', '-')}.json"
    given = ["--val", asked.data, "--ood-val", asked.ood, "--limit", str(asked.limit), "--objective", asked.objective]
    how = ["--budget", str(asked.budget), "--batch-size", str(asked.batch_size), "--device", "cpu", "-q", "--force"]
    if main(["extract-circuit", asked.model, *given, *how, *more, "-o", str(path)]):
        sys.exit(f"{name} failed")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def plainly(asked: argparse.Namespace) -> float:
    """Algorithm 1 plainly, with reading model and data; its block evaluations of samples."""
    from extract_circuit import plain

    from hydractl.data import open_data
    from hydractl.model.source import ModelOptions, open_source

    source = open_source(asked.model, ModelOptions())
    labels = source.description.labels or []
    reads = {source.name: source.description.reads}
    inside = open_data(asked.data, limit=asked.limit, labels=labels, need_labels=True, reads=reads)
    outside = open_data(asked.ood, limit=asked.limit, ignore_labels=True, reads=reads)
    side = plain(source, [inside, outside], asked.objective, asked.batch_size)
    removed: list[tuple[int, int]] = []
    for _ in range(asked.budget):
        removed.append(side.step(removed)[0])
    return side.work()


class Counted:
    """Takes down the work of the searches, as they count it themselves."""

    def __init__(self) -> None:
        from hydractl.circuit import session

        self.evaluations, self.work, self.naive = 0, 0.0, 0
        self._tell = session.tell_work
        session.tell_work = self.tell  # type: ignore[assignment]

    def tell(self, log: Any, plan: Any, evaluations: int, work: float, processes: int) -> None:
        """The closing lines of ``extract-circuit``."""
        self.evaluations, self.work, self.naive = evaluations, work, plan.sample_blocks_naive
        self._tell(log, plan, evaluations, work, processes)


def main() -> None:
    """Run everything, print a table."""
    asked = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    import torch

    torch.set_num_threads(1)
    sides = {"exact": [], **{name: ["--approx", name] for name in asked.approx.split(",")}}
    counted, draw = Counted(), random.Random(asked.seed)
    times: dict[str, list[tuple[float, float]]] = {}
    circuits: dict[str, dict[str, Any]] = {}
    works: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def timed(name: str, run: Callable[[], Any]) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            found = run()
            times.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - cpu))
            print(f"{name}: {times[name][-1][0]:.1f} s, CPU {times[name][-1][1]:.1f} s", file=sys.stderr, flush=True)
            return found

        search(asked, Path(folder), "warm", ["--approx", "lazy:2"])  # imports, and files in memory
        for _ in range(asked.rounds):
            order = [*sides, *(["plain"] if asked.plain else [])]
            draw.shuffle(order)
            for name in order:
                if name == "plain":
                    timed(name, lambda: plainly(asked))
                    continue
                circuits[name] = timed(name, lambda name=name: search(asked, Path(folder), name, sides[name]))
                works[name] = counted.evaluations, counted.work
    reference = "plain" if asked.plain else "exact"
    exact = circuits["exact"]
    print(f"| search | evaluations | work | time, {reference} / this | CPU | same heads | score lost |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in sides:
        evaluations, work = works[name]
        pairs = list(zip(times[reference], times[name], strict=True))
        wall, cpu = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
        same = len(set(heads(circuits[name])) & set(heads(exact))) / len(heads(exact))
        print(
            f"| {name} | {evaluations:,} | {work / counted.naive:.3f} | {wall:.1f} x | {cpu:.1f} x "
            f"| {same:.0%} | {score(exact) - score(circuits[name]):.4f} |"
        )


def heads(circuit: dict[str, Any]) -> list[tuple[str, int]]:
    """The heads in the order of their removal."""
    return [(step["site"], step["head"]) for step in circuit["removed"]]


def score(circuit: dict[str, Any]) -> float:
    """The score after the last removal."""
    last: float = circuit["removed"][-1]["score"]
    return last


if __name__ == "__main__":
    main()
