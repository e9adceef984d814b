"""How much the exact circuit search saves over Algorithm 1 written plainly on the library's own model.

    python benchmarks/extract_circuit.py                                  # the digits of `make demo`
    python benchmarks/extract_circuit.py MODEL --data SPEC --ood SPEC --limit 1000 --objective acc -o FILE.json

Both sides remove the same heads, step by step in an order drawn by --seed, and have to agree at every step. The plain
side ablates one head after another by zeroing its columns of the output projection, and runs everything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_MODEL = "runs/digits/base.st"
DEFAULT_DATA = ("builtin:digits/val", "builtin:symbols")

Head = tuple[int, int]


@dataclass
class Timed:
    """One step of one contestant: seconds by the clock, seconds of the processor, block evaluations of samples."""

    wall: float
    cpu: float
    work: float


@dataclass
class Contestant:
    """Someone who removes one head per step.

    Attributes:
        step: from the heads removed so far to the next one and its score.
        work: block evaluations of samples so far.
        preparation: what it took to get ready, the evaluation before the first removal included.
    """

    step: Callable[[list[Head]], tuple[Head, float]]
    work: Callable[[], float]
    preparation: Timed
    steps: list[Timed] = field(default_factory=list)


def timed(run: Callable[[], Any], work: Callable[[], float]) -> tuple[Any, Timed]:
    """The result of ``run``, and its time."""
    before, wall, cpu = work(), time.perf_counter(), time.process_time()
    found = run()
    return found, Timed(time.perf_counter() - wall, time.process_time() - cpu, work() - before)


# --- Algorithm 1, plainly ---------------------------------------------------------------------------------------------


def library_model(source: Any) -> Any:
    """The model as timm or transformers has it, with its own attention."""
    import torch

    model = source.family.build(source.description.config)
    # Copies: the columns of heads are zeroed in place.
    tensors = {name: source.tensors.read(name).to(torch.float32, copy=True) for name in source.tensors.names()}
    model.load_state_dict(tensors, assign=True)
    return model.eval()


class Plain:
    """Every candidate on every batch by the library's own forward; all batches are in memory."""

    def __init__(self, source: Any, datasets: Sequence[Any], objective: str, batch_size: int) -> None:
        from hydractl.data import batches

        self.model, self.objective = library_model(source), objective
        collate = source.family.collate(source.description.preprocess)
        sets = [[(b.inputs, b.labels) for b in batches(d, collate, batch_size)] for d in datasets]
        self.inside, self.outside = sets[0], sets[1] if objective in ("ood", "avg") else []
        self.sites = source.sites
        self.heads = [(i, head) for i, site in enumerate(self.sites) for head in range(site.heads)]
        self.samples = sum(len(d) for d in (datasets if self.outside else datasets[:1]))
        self.work = 0.0

    def logits(self, inputs: Any) -> Any:
        """One batch, ``[B, classes]`` in float64."""
        found = self.model(**inputs) if isinstance(inputs, Mapping) else self.model(inputs)
        return getattr(found, "logits", found).double()

    def score(self) -> float:
        """The objective of the model as it is; counts stay integers, so that ties are ties."""
        import torch
        from torch.nn import functional as F

        self.work += self.samples * len(self.sites)
        with torch.inference_mode():
            inside = torch.cat([self.logits(inputs) for inputs, _ in self.inside])
            labels = torch.cat([labels for _, labels in self.inside])
            if self.objective == "nll":
                return -float(F.cross_entropy(inside, labels, reduction="sum"))
            correct = int((inside.argmax(-1) == labels).sum())
            if self.objective == "acc":
                return correct
            outside = torch.cat([self.logits(inputs) for inputs, _ in self.outside])
            confident = inside.softmax(-1).amax(-1).sort().values
            strange = outside.softmax(-1).amax(-1)
            not_above = [torch.searchsorted(confident, strange, right=right).sum() for right in (False, True)]
            two_u = 2 * len(confident) * len(strange) - int(sum(not_above))
            return two_u if self.objective == "ood" else 2 * len(strange) * correct + two_u

    def step(self, removed: list[Head]) -> tuple[Head, float]:
        """Ablate each remaining head alone and keep the best, the first one on a tie."""
        best: tuple[Head, float] | None = None
        for head in [h for h in self.heads if h not in removed]:
            columns = self.columns(head)
            saved = columns.clone()
            columns.zero_()
            score = self.score()
            columns.copy_(saved)
            if best is None or score > best[1]:
                best = head, score
        assert best is not None
        self.columns(best[0]).zero_()
        return best

    def columns(self, head: Head) -> Any:
        """The columns of the output projection that belong to a head."""
        site = self.sites[head[0]]
        modules = dict(self.model.get_submodule(site.path).named_modules())
        names = ("proj", "output.dense", "out_lin", "o_proj", "out_proj")
        out = next(modules[name] for name in names if name in modules)
        return out.weight.data[:, head[1] * site.head_dim : (head[1] + 1) * site.head_dim]


def plain(source: Any, datasets: Sequence[Any], objective: str, batch_size: int) -> Contestant:
    """The plain side, ready."""
    side = Plain(source, datasets, objective, batch_size)
    _, preparation = timed(side.score, lambda: side.work)
    return Contestant(side.step, lambda: side.work, preparation)


# --- hydractl ---------------------------------------------------------------------------------------------------------


def exact(source: Any, datasets: Sequence[Any], objective: str, batch_size: int, bounds: bool) -> Contestant:
    """The search of ``extract-circuit`` in this process, ready."""
    from hydractl.circuit.evaluator import Evaluator
    from hydractl.circuit.samples import SampleSet
    from hydractl.circuit.search import GreedySearch
    from hydractl.model.loading import build_model

    model = build_model(source, "cpu")

    def prepare() -> Evaluator:
        parts = [
            SampleSet(dataset, order, model, batch_size, 0, labelled=dataset is datasets[0])
            for dataset, order in zip(datasets, orders(datasets, model, objective, batch_size, bounds), strict=True)
        ]
        found = Evaluator(model, [batch for part in parts for batch in part.batches])
        found.go_to_model_without([])
        for batch in range(len(found.batches)):
            found.current_values(batch)
        return found

    evaluator, preparation = timed(prepare, lambda: 0.0)
    # Finding the order takes one evaluation of all samples, which the evaluator does not see.
    preparation.work = evaluator.work + (sum(map(len, datasets)) * len(model.sites) if bounds else 0)
    heads = [(i, head) for i, site in enumerate(model.sites) for head in range(site.heads)]
    search = GreedySearch(evaluator, heads, bounds=bounds)
    candidates = search.heads

    def step(removed: list[Head]) -> tuple[Head, float]:
        evaluator.go_to_model_without(removed)
        left = [head for head in candidates if head not in removed]
        found = search.choose_winners([objective], len(removed) + 1, left)[objective]
        return found.head, found.counts.key(objective)

    return Contestant(step, lambda: evaluator.work, preparation)


def orders(
    datasets: Sequence[Any], model: Any, objective: str, batch_size: int, bounds: bool
) -> Sequence[Sequence[int]]:
    """The order of the samples of each set: by length where nobody gives up, else the undecided first."""
    from hydractl.circuit.samples import undecided_first

    lengths = [dataset.lengths() for dataset in datasets]
    if not bounds:
        return [sorted(range(len(d)), key=lambda i: -n[i] if n else 0) for d, n in zip(datasets, lengths, strict=True)]
    return [undecided_first(d, model, [objective], batch_size, 0, "msp", labelled=d is datasets[0]) for d in datasets]


# --- the contest ------------------------------------------------------------------------------------------------------


def contest(sides: Mapping[str, Contestant], steps: int, seed: int, names: Sequence[str]) -> list[str]:
    """Every side makes every step, in an order drawn anew each time; the heads they removed, which have to be equal."""
    draw = random.Random(seed)
    removed: list[Head] = []
    for number in range(1, steps + 1):
        order = list(sides)
        draw.shuffle(order)
        chosen = {}
        for name in order:
            side = sides[name]
            chosen[name], cost = timed(lambda side=side: side.step(list(removed)), side.work)
            side.steps.append(cost)
        heads = {head for head, _ in chosen.values()}
        times = ", ".join(f"{name} {sides[name].steps[-1].wall:.2f} s" for name in sides)
        site, head = chosen["plain"][0]
        print(f"step {number}/{steps}: {names[site]} head {head}; {times}", file=sys.stderr, flush=True)
        if len(heads) > 1:
            sys.exit(f"the rankings part at step {number}: {chosen}")
        removed.append((site, head))
    return [f"{names[site]} {head}" for site, head in removed]


def summary(sides: Mapping[str, Contestant]) -> dict[str, dict[str, float]]:
    """Of each exact side against the plain one: ratios of the steps, and of everything with the preparation."""
    reference = sides["plain"]
    found = {}
    for name, side in sides.items():
        if side is reference:
            continue
        pairs = list(zip(reference.steps, side.steps, strict=True))
        plain_work, work = (sum(step.work for step in s.steps) for s in (reference, side))
        plain_wall, wall = (sum(step.wall for step in s.steps) for s in (reference, side))
        found[name] = {
            "work": work / plain_work,
            "work_with_preparation": (work + side.preparation.work) / (plain_work + reference.preparation.work),
            "wall": statistics.median(p.wall / s.wall for p, s in pairs),
            "cpu": statistics.median(p.cpu / s.cpu for p, s in pairs),
            "wall_total": plain_wall / wall,
            "wall_with_preparation": (plain_wall + reference.preparation.wall) / (wall + side.preparation.wall),
            "step_seconds": statistics.median(s.wall for s in side.steps),
        }
    return found


def arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL")
    parser.add_argument("--data", metavar="SPEC", help=f"in-distribution samples [{DEFAULT_DATA[0]}]")
    parser.add_argument("--ood", metavar="SPEC", help=f"out-of-distribution samples [{DEFAULT_DATA[1]}]")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N samples of each set")
    parser.add_argument("--max-length", type=int, metavar="N", help="tokens of a text at most")
    parser.add_argument("--objective", default="acc,ood,avg,nll", help="one or several [acc,ood,avg,nll]")
    parser.add_argument("--steps", "--budget", type=int, default=6, metavar="N", help="heads to remove [6]")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples per batch [32]")
    parser.add_argument(
        "--bounds", action=argparse.BooleanOptionalAction, help="only with, or only without giving up early [both]"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch [1]")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of the sides at each step [0]")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write ratios and all raw times as JSON")
    asked = parser.parse_args()
    if asked.data is None:
        asked.data, asked.ood = DEFAULT_DATA[0], asked.ood or DEFAULT_DATA[1]
    if asked.model == DEFAULT_MODEL and not Path(DEFAULT_MODEL).exists():
        parser.error(f"there is no {DEFAULT_MODEL} yet: run `make demo` first, or name a MODEL")
    return asked


def main() -> None:
    """Measure one objective after another and print a table."""
    asked = arguments()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)  # before torch is imported

    import torch

    from hydractl.data import open_data
    from hydractl.model.source import ModelOptions, open_source

    torch.set_num_threads(asked.threads)
    source = open_source(asked.model, ModelOptions(max_length=asked.max_length))
    if source.classes is None or not source.description.mask.is_full:
        sys.exit("the plain side runs whole models with a classifier: no zero-shot model, no pruned one")
    reads = {source.name: source.description.reads}
    labels = source.description.labels or []
    datasets = [open_data(asked.data, limit=asked.limit, labels=labels, need_labels=True, reads=reads)]
    if asked.ood is not None:
        datasets.append(open_data(asked.ood, limit=asked.limit, ignore_labels=True, reads=reads))
    results = []
    for objective in asked.objective.split(","):
        used = datasets if objective in ("ood", "avg") else datasets[:1]
        sides = {"plain": plain(source, used, objective, asked.batch_size)}
        for name, bounds in (("exact", False), ("bounded", True)):
            if asked.bounds is None or asked.bounds == bounds:
                sides[name] = exact(source, used, objective, asked.batch_size, bounds)
        removed = contest(sides, asked.steps, asked.seed, [site.path for site in source.sites])
        results.append(
            {
                "objective": objective,
                "removed": removed,
                "ratios": summary(sides),
                "raw": {
                    name: {"preparation": asdict(side.preparation), "steps": [asdict(step) for step in side.steps]}
                    for name, side in sides.items()
                },
            }
        )
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    settings = {k: v for k, v in vars(asked).items() if k != "output"}
    document = {"settings": settings, **machine, "samples": [len(d) for d in datasets], "results": results}
    print("| objective | bounds | work | work, prepared | wall | wall, prepared | CPU | step, s |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for result in results:
        for name, row in result["ratios"].items():
            print(
                f"| {result['objective']} | {'yes' if name == 'bounded' else 'no'} | {row['work']:.3f} "
                f"| {row['work_with_preparation']:.3f} | {row['wall']:.2f} | {row['wall_with_preparation']:.2f} "
                f"| {row['cpu']:.2f} | {row['step_seconds']:.2f} |"
            )
    if asked.output is not None:
        asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
