"""Cost of a training step: the dense model, members pruned to fewer heads, and ways to train faster.

    python benchmarks/finetune_speed.py                     # four blocks of ViT-S/16 with random weights, on the CPU
    python benchmarks/finetune_speed.py MODEL --keep 8,6,4 --batch-size 8 --rounds 15 --also train-last,checkpoint
    python benchmarks/finetune_speed.py --device cuda --batch-size 64 --also bfloat16,compile,checkpoint -o FILE.json

Each round takes one step of every contender, in an order drawn by --seed, and the ratios are medians over rounds of a
contender's time over the dense model's of the same round. On the CPU the time is the processor's, which other work on
the machine disturbs less; on a GPU it is wall time between synchronisations. The step is hydractl's own: forward,
backward, clipping, optimizer. Beside the time stand the mult-adds of one forward pass, whose ratio is the best that
fewer heads can do.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MODEL = "timm:vit_small_patch16_224?pretrained=0&depth=4"


@dataclass
class Contender:
    """One way to train: a name, one step of it, and the mult-adds of a forward pass of one sample."""

    name: str
    run: Any
    batch: Any
    macs: int
    memory_bytes: int = 0


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    """The dense model first."""
    from hydractl.model.source import open_source

    source = open_source(arguments.model)
    found = [contender("dense", source, arguments)]
    for keep in arguments.keep:
        found.append(contender(f"{keep} heads", kept(source, keep, arguments.seed), arguments))
    for name in arguments.also:
        more = {
            "train-last": {"train_last": max(1, len(source.sites) // 2)},
            "checkpoint": {"checkpoint_blocks": True},
            "bfloat16": {"autocast": "bfloat16"},
            "compile": {"compile": True},
            "sgd": {"optimizer": "sgd"},
        }[name]
        found.append(contender(f"dense, {name}", source, arguments, **more))
    return found


def kept(source: Any, keep: int, seed: int) -> Any:
    """The model with so many heads of each site, drawn by the seed."""
    from hydractl.heads.mask import HeadMask
    from hydractl.model.source import pruned

    draw = random.Random(seed)
    heads = {site.path: site.heads for site in source.sites}
    mask = HeadMask(heads, {path: tuple(sorted(draw.sample(range(n), keep))) for path, n in heads.items()})
    description, tensors = pruned(source, mask, "sliced")
    return replace(source, description=description, tensors=tensors)


def contender(name: str, source: Any, arguments: argparse.Namespace, **more: Any) -> Contender:
    """A training, ready to take steps."""
    import torch

    from hydractl.expressions.data_sets import DataSpec
    from hydractl.log import Log
    from hydractl.model.cost import cost_of
    from hydractl.model.loading import build_model
    from hydractl.training.data import TrainingData
    from hydractl.training.loop import Training, TrainingContext
    from hydractl.training.options import TrainOptions
    from hydractl.training.start import speed_up

    options = TrainOptions(
        train=DataSpec.of_option("--train", "none"),
        batch_size=arguments.batch_size,
        steps=10**6,
        train_last=more.get("train_last"),
    )
    model = build_model(source, arguments.device)
    speed_up(model, checkpoint_blocks="checkpoint_blocks" in more, compile="compile" in more)
    data = TrainingData(arguments.batch_size, lambda *_: iter(()))
    run = Training(model, data, options, 1e-4, TrainingContext(Log()))
    model.train()
    inputs = model.example_inputs(arguments.batch_size, arguments.seed)
    labels = torch.arange(arguments.batch_size, device=run.device) % source.classes
    return Contender(name, run, (inputs, labels), cost_of(source.description, source.tensors)["macs"])


def step(one: Contender) -> float:
    """Seconds of one step."""
    import torch

    cuda = one.run.device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begun = clock()
    rate = one.run.lr * one.run.course.share_of_peak(one.run.history.steps)
    one.run.history.losses.append(one.run._step([one.batch], [1.0], rate))
    if cuda:
        torch.cuda.synchronize()
        one.memory_bytes = torch.cuda.max_memory_allocated()
    return clock() - begun


def measure(found: list[Contender], rounds: int, warmup: int, seed: int) -> list[dict[str, Any]]:
    """All times, interleaved."""
    draw = random.Random(seed)
    times: dict[str, list[float]] = {one.name: [] for one in found}
    for number in range(warmup + rounds):
        for one in draw.sample(found, len(found)):
            seconds = step(one)
            if number >= warmup:
                times[one.name].append(seconds)
    dense = times[found[0].name]
    return [
        {
            "name": one.name,
            "step_ms": [1000 * s for s in times[one.name]],
            "ratio": statistics.median(a / b for a, b in zip(times[one.name], dense, strict=True)),
            "mac_ratio": one.macs / found[0].macs,
            "memory_bytes": one.memory_bytes,
        }
        for one in found
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--keep", type=lambda text: [int(n) for n in text.split(",")], default=[4, 3, 2])
    parser.add_argument("--also", type=lambda text: text.split(","), default=["train-last", "checkpoint"])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = measure(contenders(arguments), arguments.rounds, arguments.warmup, arguments.seed)
    print("| training | ms a step, median | time | mult-adds | time over mult-adds |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        median, over = statistics.median(row["step_ms"]), row["ratio"] / row["mac_ratio"]
        print(f"| {row['name']} | {median:.0f} | {row['ratio']:.2f} | {row['mac_ratio']:.2f} | {over:.2f} |")
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"arguments": vars(arguments), "rows": rows}, indent=2, default=str) + "\n"
        )


if __name__ == "__main__":
    main()
