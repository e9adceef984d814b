"""Memory and time of `prune` and `fuse` on big checkpoints, against a process that only reads and writes the bytes.

    python benchmarks/big_models.py                                    # ViT-L/16, float32
    python benchmarks/big_models.py vit_huge_patch14_224 --dtype float16 --folder /tmp -o FILE.json
    python benchmarks/big_models.py llama16 --dtype bfloat16 --shards 4         # a Llama of 16 blocks, width 2,048
    python benchmarks/big_models.py --before ../before --repeat 5               # beside another version of the source

Makes a checkpoint with random weights, scores and prunes it and fuses the members. Each command runs in a process of
its own, watched through /proc/PID/status (so: Linux), and its memory is that above a process which has only imported
torch, timm and what hydractl needs of itself to run a model. With --before, a folder with another version of the source
(``git worktree add ../before COMMIT``), each repeat runs both versions by turns, the other one first every second time;
the ratio of their processor times is the median of the ratios within a repeat, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
HERE = Path(__file__).resolve().parents[1]

IMPORTS = """
import importlib, sys
from hydractl.cli.compiler_on_demand import import_compiler_on_demand
import_compiler_on_demand()
importlib.import_module(sys.argv[1])
import hydractl.model.runtime, hydractl.fusion.selfcheck, hydractl.verbs.fuse, hydractl.verbs.prune
"""
"""Import what a verb does, and as it does, to open and run a model of one family."""

MAKE = """
import json, sys, zlib
import torch
import hydractl.families.hf.family  # transformers is imported as hydractl imports it
import transformers
from pathlib import Path
from safetensors.torch import save_file

name, dtype, folder, shards = *sys.argv[1:4], int(sys.argv[4])
folder = Path(folder)
folder.mkdir()
if name.startswith("llama"):
    from tokenizers import Tokenizer, models
    words = Tokenizer(models.WordLevel({"a": 0}, "a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a").save_pretrained(folder)
    width = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 5632}
    layers = {"num_hidden_layers": int(name.removeprefix("llama")), "pad_token_id": 0, "num_labels": 2}
    config = transformers.LlamaConfig(**width, **layers, architectures=["LlamaForSequenceClassification"])
    with torch.device("meta"):
        model = transformers.LlamaForSequenceClassification(config)
    config.save_pretrained(folder)
else:
    from hydractl.families.timm import timm
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, num_classes=1000)
    written = {"architecture": name, "num_classes": 1000, "pretrained_cfg": dict(model.pretrained_cfg)}
    (folder / "config.json").write_text(json.dumps(written))

def drawn(name, like):
    values = torch.randn(like.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) * 0.02
    return (values + 1 if "norm" in name and name.endswith("weight") else values).to(getattr(torch, dtype))

whole = model.state_dict()
size, parts, held = sum(t.numel() for t in whole.values()) / shards, [{}], 0
for key, like in whole.items():
    if held + like.numel() > size * 1.02 and parts[-1] and len(parts) < shards:
        parts, held = [*parts, {}], 0
    parts[-1][key], held = like, held + like.numel()
names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
names = ["model.safetensors"] if shards == 1 else names
for file, part in zip(names, parts, strict=True):
    save_file({key: drawn(key, like) for key, like in part.items()}, folder / file, {"format": "pt"})
if shards > 1:
    places = {key: file for file, part in zip(names, parts, strict=True) for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
"""

REFERENCE = """
import hashlib, os, sys
inputs, output, size = sys.argv[3:], sys.argv[1], int(sys.argv[2])
block = bytearray(1 << 22)
def blocks(path):
    with open(path, "rb", buffering=0) as handle:
        while count := handle.readinto(block):
            yield memoryview(block)[:count]
for path in inputs:
    digest = hashlib.sha256()
    for part in blocks(path):
        digest.update(part)
digest, left = hashlib.sha256(), size
with open(output, "wb", buffering=0) as handle:
    for path in inputs:
        for part in blocks(path):
            if part := part[:left]:
                digest.update(part)
                handle.write(part)
                left -= len(part)
    os.fsync(handle.fileno())
"""
"""Hash the inputs, read them once more, and write and hash as many bytes as the output has."""


@dataclass
class Run:
    """One process: its seconds, and its peaks in bytes (VmHWM; RssAnon and RssFile as sampled)."""

    name: str
    seconds: float
    cpu: float
    peak: int
    anonymous: int
    file_backed: int


def memory(pid: int) -> dict[str, int]:
    """The memory fields of /proc/PID/status, in bytes; empty when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {key: int(fields[key].split()[0]) * 1024 for key in ("VmHWM", "RssAnon", "RssFile") if key in fields}


def watched(name: str, command: Sequence[str], threads: int, source: Path = HERE) -> Run:
    """Run a command by a version of the source to its end, looking at its memory every 2 ms."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(source)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as where a package is installed
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile() as said,
        # Python looks in the working directory before PYTHONPATH.
        tempfile.TemporaryDirectory() as empty,
        subprocess.Popen(command, stdout=said, stderr=said, env=environment, cwd=empty) as child,
    ):
        peaks = {"VmHWM": 0, "RssAnon": 0, "RssFile": 0}
        while True:
            found, status, usage = os.wait4(child.pid, os.WNOHANG)
            if found:
                break
            for key, value in memory(child.pid).items():
                peaks[key] = max(peaks[key], value)
            time.sleep(0.002)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"{name}: exit {child.returncode}\n{said.read().decode(errors='replace')}")
    return Run(name, seconds, usage.ru_utime + usage.ru_stime, peaks["VmHWM"], peaks["RssAnon"], peaks["RssFile"])


def compared(run: Run, reference: Run, bare: Run, inputs: Sequence[Path], output: Path) -> dict[str, Any]:
    """One command with the ratios of its memory above the bare process to the output, and the reference beside it."""
    size = output.stat().st_size
    return {
        **asdict(run),
        "input_bytes": sum(path.stat().st_size for path in inputs),
        "output_bytes": size,
        "peak_ratio": (run.peak - bare.peak) / size,
        "anonymous_ratio": (run.anonymous - bare.anonymous) / size,
        "file_backed_ratio": (run.file_backed - bare.file_backed) / size,
        "reference_seconds": reference.seconds,
        "reference_cpu": reference.cpu,
        "bare_seconds": bare.seconds,
        "bare_cpu": bare.cpu,
    }


class Bench:
    """The commands on one checkpoint, each against its reference."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked, self.folder = asked, folder.resolve()
        self.base = self.folder / "base"
        self.rows: list[dict[str, Any]] = []
        python(asked.threads, MAKE, asked.model, asked.dtype, str(self.base), str(asked.shards))
        self.files = sorted(self.base.glob("*.safetensors"))
        self.shard = max(path.stat().st_size for path in self.files)
        self.block = largest_block(self.files)
        size = sum(path.stat().st_size for path in self.files) / MIB
        print(f"{asked.model} {asked.dtype}: {size:.0f} MiB in {len(self.files)} files", file=sys.stderr)
        family = "hydractl.families.hf.family" if asked.model.startswith("llama") else "hydractl.families.timm"
        imports = [sys.executable, "-c", IMPORTS, family]
        bare = [watched("imports", imports, asked.threads) for _ in range(asked.repeat)]
        self.bare = min(bare, key=lambda run: run.peak)
        self.bare.seconds = statistics.median(run.seconds for run in bare)

    def command(self, name: str, inputs: Sequence[Path], output: Path, *arguments: str) -> None:
        """Time and watch one verb (the repeat with the median time), then the reference on the same bytes."""
        verb, *options = arguments
        line = [sys.executable, "-m", "hydractl", verb, *map(str, inputs), *options, "-o", str(output), "--force", "-q"]
        runs, before = self.by_turns(name, line)
        # Without another version there are no ratios. This is before sorting: the runs of a repeat belong together.
        over_before = [ours.cpu / theirs.cpu for ours, theirs in zip(runs, before, strict=False)]
        runs.sort(key=lambda r: r.seconds)
        run = runs[len(runs) // 2]
        run.peak, run.anonymous, run.file_backed = (
            max(getattr(r, field) for r in runs) for field in ("peak", "anonymous", "file_backed")
        )
        scratch = self.folder / "reference"
        read = self.files if inputs == [self.base] else inputs
        plain = [sys.executable, "-c", REFERENCE, str(scratch), str(output.stat().st_size), *map(str, read)]
        reference = [watched("reference", plain, 1) for _ in range(self.asked.repeat)]
        scratch.unlink()
        reference.sort(key=lambda r: r.seconds)
        row = compared(run, reference[len(reference) // 2], self.bare, read, output)
        row["peak_over_shard_and_block"] = (run.peak - self.bare.peak) / (self.shard + self.block)
        said = f"{name}: {run.seconds:.1f} s, {(run.peak - self.bare.peak) / MIB:.0f} MiB"
        if over_before:
            row["cpu_over_before"] = [min(over_before), statistics.median(over_before), max(over_before)]
            said += ", {1:.2f} ({0:.2f} to {2:.2f}) of before".format(*row["cpu_over_before"])
        self.rows.append(row)
        print(said, file=sys.stderr, flush=True)

    def by_turns(self, name: str, line: Sequence[str]) -> tuple[list[Run], list[Run]]:
        """Run a command so many times as asked, by this version and, where there is one, by the other."""
        runs: dict[Path, list[Run]] = {HERE: []}
        if self.asked.before is not None:
            runs[self.asked.before.resolve()] = []
        for repeat in range(self.asked.repeat):
            order = list(runs) if repeat % 2 == 0 else list(reversed(runs))
            for source in order:
                runs[source].append(watched(name, line, self.asked.threads, source))
        ours, *others = runs.values()
        return ours, others[0] if others else []

    def all(self) -> None:
        """A score, three members by prune, then fuse, each also as a dry run."""
        self.command("score magnitude", [self.base], self.folder / "scores.json", "score", "--method", "magnitude")
        keep, members = str(self.asked.keep), [self.folder / f"member{m}.st" for m in range(3)]
        methods = [("random", "0"), ("random", "1"), ("magnitude", "0")]
        for member, (method, seed) in zip(members, methods, strict=True):
            options = ("prune", "--method", method, "--seed", seed, "--keep", keep)
            name = f"prune {method}" + (f" {seed}" if method == "random" else "")
            self.command(name, [self.base], member, *options)
        self.command("prune --dry-run", [self.base], members[0], *options, "--dry-run")
        fused = self.folder / "hydra.st"
        self.command("fuse", members, fused, "fuse", "--device", "cpu")
        self.command("fuse --dry-run", members, fused, "fuse", "--device", "cpu", "--dry-run")


def largest_block(files: Sequence[Path]) -> int:
    """Bytes of the largest block of a model: of all tensors whose names have the same number in them."""
    sizes: dict[str, int] = {}
    for path in files:
        with open(path, "rb") as handle:
            header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
        for name, entry in header.items():
            if (number := re.search(r"\.\d+\.", name)) is not None:
                begin, end = entry["data_offsets"]
                sizes[number.group()] = sizes.get(number.group(), 0) + end - begin
    return max(sizes.values())


def python(threads: int, code: str, *arguments: str) -> None:
    """Run Python code in a process of its own: what this process holds would hide what its children do."""
    subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)}
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown; memory as ratios to the output file; bare is importing torch, then reading and writing."""
    lines = [
        "| command | output, MiB | peak, MiB | over output | anonymous | file-backed | over shard + block "
        "| s | CPU, s | bare: s | CPU, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['name']} | {row['output_bytes'] / MIB:.0f} | {row['peak_ratio'] * row['output_bytes'] / MIB:.0f} "
            f"| {row['peak_ratio']:.2f} | {row['anonymous_ratio']:.2f} | {row['file_backed_ratio']:.2f} "
            f"| {row['peak_over_shard_and_block']:.2f} "
            f"| {row['seconds']:.1f} | {row['cpu']:.1f} "
            f"| {row['bare_seconds'] + row['reference_seconds']:.1f} | {row['bare_cpu'] + row['reference_cpu']:.1f} |"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="vit_large_patch16_224", help="of timm, or llamaN")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="files of the checkpoint [1]")
    parser.add_argument("--keep", type=int, default=8, metavar="N", help="heads that each site keeps [8]")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each command [1]")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of torch [1]")
    parser.add_argument("--before", type=Path, metavar="SOURCE", help="a folder with another version of the source")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the files are made, and removed again")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and print a table."""
    asked = arguments()
    if asked.folder is not None:
        asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix="big-models-") as folder:
        bench = Bench(asked, Path(folder))
        bench.all()
    print(table(bench.rows))
    if asked.output is not None:
        settings = {k: v for k, v in vars(asked).items() if k not in ("output", "folder", "before")}
        machine = {"machine": platform.machine(), "python": platform.python_version()}
        document = {"settings": settings, **machine, "imports": asdict(bench.bare), "commands": bench.rows}
        asked.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
