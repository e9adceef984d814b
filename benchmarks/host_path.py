"""What a forward pass costs beside its arithmetic: operators, Python calls and processor time of tiny models.

    python benchmarks/host_path.py                                    # stock, single and fused models of this source
    python benchmarks/host_path.py ../before --rounds 9 -o FILE.json  # beside another version of the source, in turns

The models have 12 blocks so narrow that the arithmetic takes next to no time: what is left is what a processor does to
launch operators, which is what a GPU waits for at a small batch. Fused models run as on a GPU: side by side, batched.

Operators and calls are exact. Times are those of the processor, on one thread; each round times every model of every
version once, in an order drawn by --seed, and ratios are medians of the ratios within a round, with the 95 % bootstrap
interval. BEFORE is a folder with another version of the source (``git worktree add ../before COMMIT``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
MODEL = "vit_tiny_patch16_224?pretrained=0&img_size=32&embed_dim=48&depth=12&num_heads=3&num_classes=10"
MEMBERS = 3
STOCK = "stock"
SINGLE = "single"


@dataclass
class Count:
    """What one call of a model takes, which is the same in every call.

    Attributes:
        operators: that compute; views and dropout, which does nothing here, are none.
        calls: of functions, those written in C included, as ``sys.setprofile`` reports them.
    """

    operators: int
    calls: int


# --- one version of the source, in a process of its own ---------------------------------------------------------------


def models_by_name(arch: str, shared: list[int]) -> dict[str, Any]:
    """Build the library's model, the single model and the fused ones."""
    from dataclasses import replace

    from gpu_cost import member, opened

    from hydractl.benchmark.rows import build_stock
    from hydractl.fusion.plan import plan_fusion
    from hydractl.model.runtime import HydraModel

    base = opened(arch, Path("."))
    models: dict[str, Any] = {
        STOCK: build_stock(base, "cpu", "float32"),
        SINGLE: HydraModel(base.description, base.tensors),
    }
    for sites in shared:
        plan = plan_fusion([member(base, number, sites) for number in range(MEMBERS)])
        source = replace(base, description=plan.description, tensors=plan.tensors)
        fused = HydraModel(source.description, source.tensors)
        fused.side_by_side = True
        fused.batched = True
        models[f"fused{sites}"] = fused
    return models


def count_of(model: Callable[[Any], Any], inputs: Any) -> Count:
    """Count operators and calls of one call of a model, after calls that made what is made once."""
    import torch
    from gpu_cost import Operators

    with torch.inference_mode():
        for _ in range(2):
            model(inputs)
        with Operators() as operators:
            model(inputs)
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1

        sys.setprofile(count)
        try:
            model(inputs)
        finally:
            sys.setprofile(None)
    calls_of_stopping = 1  # sys.setprofile(None) itself
    return Count(operators.count, calls - calls_of_stopping)


def serve(arch: str, shared: list[int], calls: int) -> None:
    """Print the counts, then for every name that is read the processor seconds of one call of that model."""
    import torch

    torch.set_num_threads(1)
    models = models_by_name(arch, shared)
    inputs = models[SINGLE].example_inputs(1)
    counts = {name: asdict(count_of(model, inputs)) for name, model in models.items()}
    print(json.dumps(counts), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            model = models[line.strip()]
            model(inputs)
            begun = time.process_time()
            for _ in range(calls):
                model(inputs)
            print((time.process_time() - begun) / calls, flush=True)


# --- the rounds -------------------------------------------------------------------------------------------------------


class Version:
    """One version of the source, which a process of its own runs.

    Attributes:
        counts: by model.
        seconds: by model, one for each round.
    """

    def __init__(self, source: Path, options: argparse.Namespace) -> None:
        words = [sys.executable, str(Path(__file__).resolve()), "--serve", "--arch", options.arch]
        words += ["--shared", ",".join(map(str, options.shared)), "--calls", str(options.calls)]
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=source
        )
        self.counts: dict[str, dict[str, int]] = json.loads(self._answer())
        self.seconds: dict[str, list[float]] = {name: [] for name in self.counts}

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a process ended early; its error stands above")
        return line

    def time(self, name: str) -> None:
        """Time one model."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        self.seconds[name].append(float(self._answer()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(versions: dict[str, Version], rounds: int, seed: int) -> None:
    """Time every model of every version once in each round."""
    order = random.Random(seed)
    turns = [(version, name) for version in versions.values() for name in version.counts]
    for _ in range(rounds):
        order.shuffle(turns)
        for version, name in turns:
            version.time(name)


def show(versions: dict[str, Version]) -> None:
    """Print tables in Markdown, as for docs/numbers/."""
    from hydractl.benchmark.figures import paired_ratio

    def ratio(runs: list[float], reference: list[float]) -> str:
        middle, (low, high) = paired_ratio(runs, reference, 0)
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    print("| version | model | operators | calls | ms | over stock | over single |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for label, version in versions.items():
        for name, count in version.counts.items():
            runs = version.seconds[name]
            over = f"{ratio(runs, version.seconds[STOCK])} | {ratio(runs, version.seconds[SINGLE])}"
            milliseconds = statistics.median(runs) * 1e3
            print(f"| {label} | {name} | {count['operators']} | {count['calls']:,} | {milliseconds:.2f} | {over} |")
    if len(versions) == 1:
        return
    before, after = versions.values()
    print("\n| model | after over before |\n|---|---:|")
    for name in after.counts:
        print(f"| {name} | {ratio(after.seconds[name], before.seconds[name])} |")


def arguments() -> argparse.Namespace:
    """Parse the command line."""

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", metavar="BEFORE")
    parser.add_argument("--arch", default=MODEL, help="a model of timm")
    parser.add_argument("--shared", type=numbers, default=[0, 6, 10], help="numbers of leading sites in common")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20, help="of a model in a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print tables."""
    options = arguments()
    if options.serve:
        serve(options.arch, options.shared, options.calls)
        return
    sources = {"now": HERE} if options.before is None else {"before": options.before, "now": HERE}
    versions = {label: Version(source, options) for label, source in sources.items()}
    measure(versions, options.rounds, options.seed)
    for version in versions.values():
        version.close()
    show(versions)
    if options.output is not None:
        document = {
            label: {"counts": version.counts, "seconds": version.seconds} for label, version in versions.items()
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
