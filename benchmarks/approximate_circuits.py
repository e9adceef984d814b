"""How fast the approximate circuit searches are, and how much of the exact circuit they find.

    python benchmarks/approximate_circuits.py MODEL --data SPEC --ood SPEC --limit 500 --budget 8 -o FILE.json

Every search is the command ``hydractl extract-circuit`` itself, in this process, on one thread; the plain side is
Algorithm 1 written plainly on the library's own model (``extract_circuit.py``). All of them run once in every round,
in an order drawn by --seed, and their times hold reading the model and the data. What is the same as in the exact
circuit is what ``--check-against`` says. With ``--parts N`` each round reads another of N parts of the data. With
``-o`` everything is also written to a file, anew after every round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

APPROXIMATIONS = "lazy:8,lazy:4,lazy:2"
UNBOUNDED = "exact, no bounds"
EXACT = {UNBOUNDED: ["--no-bounds"], "exact": []}


def arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="SPEC", help="in-distribution samples")
    parser.add_argument("--ood", required=True, metavar="SPEC", help="out-of-distribution samples")
    parser.add_argument("--limit", type=int, default=500, metavar="N", help="the first N samples of each set [500]")
    parser.add_argument("--objective", default="avg", metavar="LIST", help="what is maximised, one or several [avg]")
    parser.add_argument("--budget", type=int, required=True, metavar="N", help="heads to remove")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples per batch [32]")
    parser.add_argument("--approx", default=APPROXIMATIONS, metavar="LIST", help=f"what to try [{APPROXIMATIONS}]")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="rounds of all searches [1]")
    parser.add_argument("--parts", type=int, default=1, metavar="N", help="parts of the data, one a round in turn [1]")
    parser.add_argument(
        "--unbounded",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="time the exact search without bounds [on]",
    )
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True, help="time the plain side [on]")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of the searches [0]")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write times and circuits")
    asked = parser.parse_args()
    if asked.plain and (asked.parts > 1 or "," in asked.objective):
        parser.error("the plain side has one objective and reads the data whole: add --no-plain")
    return asked


Circuits = dict[str, dict[str, Any]]
"""The circuits that one search found, by objective."""


def search(asked: argparse.Namespace, folder: Path, name: str, part: int, more: list[str]) -> Circuits:
    """The circuits of one ``extract-circuit``, on one part of the data."""
    from hydractl.cli.app import main
    from hydractl.verbs.extract_circuit import circuit_paths

    data, ood = (spec if asked.parts == 1 else f"{spec}?part={part}/{asked.parts}" for spec in (asked.data, asked.ood))
    path = folder / f"{name.replace(', ', '-').replace(' ', '-').replace(':', '-')}.json"
    given = ["--val", data, "--ood-val", ood, "--limit", str(asked.limit), "--objective", asked.objective]
    how = ["--budget", str(asked.budget), "--batch-size", str(asked.batch_size), "--device", "cpu", "-q", "--force"]
    if main(["extract-circuit", asked.model, *given, *how, *more, "-o", str(path)]):
        sys.exit(f"{name} failed")
    paths = circuit_paths(path, asked.objective.split(","))
    return {objective: json.loads(one.read_text(encoding="utf-8")) for objective, one in paths.items()}


def plainly(asked: argparse.Namespace) -> float:
    """Algorithm 1 plainly, with reading model and data; its block evaluations of samples."""
    from extract_circuit import plain

    from hydractl.data import open_data
    from hydractl.model.source import ModelOptions, open_source

    source = open_source(asked.model, ModelOptions())
    labels = source.description.labels or []
    reads = {source.name: source.description.reads}
    inside = open_data(asked.data, limit=asked.limit, labels=labels, need_labels=True, reads=reads)
    outside = open_data(asked.ood, option="--ood", limit=asked.limit, ignore_labels=True, reads=reads)
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

    def tell(self, log: Any, plan: Any, search: Any, work: float) -> None:
        """The closing lines of ``extract-circuit``."""
        self.evaluations, self.work, self.naive = search.evaluations, work, plan.sample_blocks_naive
        self._tell(log, plan, search, work)


def main() -> None:
    """Run everything, print a table."""
    asked = arguments()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    import torch

    from hydractl.circuit.agreement import agreement

    torch.set_num_threads(1)
    sides = {**EXACT, **{name: ["--approx", name] for name in asked.approx.split(",")}}
    if not asked.unbounded:
        del sides[UNBOUNDED]
    counted, draw = Counted(), random.Random(asked.seed)
    times: dict[str, list[tuple[float, float]]] = {}
    circuits: dict[str, dict[int, Circuits]] = {name: {} for name in sides}  # by search and part
    works: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def timed(name: str, run: Callable[[], Any]) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            found = run()
            times.setdefault(name, []).append((time.perf_counter() - wall, time.process_time() - cpu))
            print(f"{name}: {times[name][-1][0]:.1f} s, CPU {times[name][-1][1]:.1f} s", file=sys.stderr, flush=True)
            return found

        search(asked, Path(folder), "warm", 1, ["--approx", "lazy:2"])  # imports, and files in memory
        for number in range(asked.rounds):
            part = 1 + number % asked.parts
            order = [*sides, *(["plain"] if asked.plain else [])]
            draw.shuffle(order)
            for name in order:
                if name == "plain":
                    timed(name, lambda: plainly(asked))
                    continue
                run = partial(search, asked, Path(folder), name, part, sides[name])
                circuits[name][part] = timed(name, run)
                works[name] = counted.evaluations, counted.work
            if asked.output is not None:
                write(asked, times, works, circuits)
    reference = "plain" if asked.plain else "exact"
    print(f"| search | evaluations | work | time, {reference} / this | CPU | same heads | Kendall's tau | score lost |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in sides:
        evaluations, work = works[name]
        pairs = list(zip(times[reference], times[name], strict=True))
        wall, cpu = (statistics.median(a[i] / b[i] for a, b in pairs) for i in (0, 1))
        # Of all parts and objectives the mean.
        shares, taus, lost = [], [], []
        for part, exact_circuits in circuits["exact"].items():
            for objective, exact in exact_circuits.items():
                circuit = circuits[name][part][objective]
                found = agreement(circuit, heads(exact), exact)
                shares.append(len(set(heads(circuit)) & set(heads(exact))) / len(heads(exact)))
                lost.append(found["score_lost"])
                if found["kendall_tau"] is not None:
                    taus.append(found["kendall_tau"])
        tau = f"{statistics.mean(taus):.2f}" if taus else "-"
        print(
            f"| {name} | {evaluations:,} | {work / counted.naive:.3f} | {wall:.1f} x | {cpu:.1f} x "
            f"| {statistics.mean(shares):.0%} | {tau} | {statistics.mean(lost):.4f} |"
        )


def write(
    asked: argparse.Namespace,
    times: dict[str, list[tuple[float, float]]],
    works: dict[str, tuple[int, float]],
    circuits: dict[str, dict[int, Circuits]],
) -> None:
    """Write the rounds so far: for each search its seconds, the evaluations and work of the last round, and its heads.

    ``removed`` has the heads for each part of the data, by objective.
    """
    import torch

    of_search: dict[str, dict[str, Any]] = {}
    for name, pairs in times.items():
        of_search[name] = {"wall": [wall for wall, _ in pairs], "cpu": [cpu for _, cpu in pairs]}
        if name in circuits:
            evaluations, work = works[name]
            removed = []
            for of_part in circuits[name].values():
                removed.append({objective: heads(circuit) for objective, circuit in of_part.items()})
            of_search[name] |= {"evaluations": evaluations, "work": work, "removed": removed}
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    settings = {name: getattr(asked, name) for name in ("limit", "budget", "objective", "batch_size", "parts")}
    document = {"machine": machine, "settings": settings, "searches": of_search}
    asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def heads(circuit: dict[str, Any]) -> list[tuple[str, int]]:
    """The heads in the order of their removal."""
    return [(step["site"], step["head"]) for step in circuit["removed"]]


if __name__ == "__main__":
    main()
