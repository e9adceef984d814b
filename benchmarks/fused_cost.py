"""Cost of a fused model compared with a single one, its members run sequentially and a deep ensemble.

    python benchmarks/fused_cost.py                                     # ViT-B/16 with random weights, three members
    python benchmarks/fused_cost.py MODEL --heads 8 --shared 0,6,10 --batch-size 1,8 --rounds 9 -o FILE.json

Members keep so many heads of every site, drawn at random, and the heads of the first member in the sites that they
share; all have the weights of MODEL. A last fused model is made of members of different weights, nothing of it
averaged. Everything is done by hydractl's own commands, which are printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

MODEL = "timm:vit_base_patch16_224?pretrained=0"


def hydractl(*arguments: object) -> None:
    """Run one command and say which."""
    words = [str(argument) for argument in arguments]
    print(f"$ hydractl {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "hydractl", *words], check=True, stdout=subprocess.DEVNULL)


def prepare(folder: Path, model: str, heads: int, shared: list[int], members: int) -> list[str]:
    """Write the members and fuse them; returns the MODEL arguments of the fused models."""
    base = folder / "base.st"
    hydractl("prune", model, "--method", "random", "--remove", 0, "-o", base, "--force", "-q")
    draw = ["--method", "random", "--keep", heads, "--force", "-q"]
    found = []
    for sites in shared:
        files = [folder / f"s{sites}.m{seed}.st" for seed in range(members)]
        for seed, file in enumerate(files):
            first = ["--share-sites", sites, "--with", folder / f"s{sites}.m0.mask.json"] if seed and sites else []
            hydractl("prune", base, *draw, "--seed", seed, *first, "-o", file)
        hydractl("fuse", *files, "-o", folder / f"shared{sites}.st", "--force", "-q")
        found.append(f"shared{sites}={folder / f'shared{sites}.st'}")
    if model.endswith("pretrained=0"):  # the seed then draws the weights as well
        files = [folder / f"own.m{seed}.st" for seed in range(members)]
        for seed, file in enumerate(files):
            hydractl("prune", model, *draw, "--seed", seed, "-o", file)
        hydractl("fuse", *files, "--merge", "none", "-o", folder / "unmerged.st", "--force", "-q")
        found.append(f"unmerged={folder / 'unmerged.st'}")
    return found


def show(path: Path) -> None:
    """A table of the rows as for docs/numbers/."""
    print("\n| batch | model | time (95 %) | mult-adds | time over mult-adds | of peak | parameters |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for row in json.loads(path.read_text())["results"]:
        low, high = row["ratio_ci"]
        time = f"{row['ratio']:.2f} ({low:.2f}..{high:.2f}) | {row['mac_ratio']:.2f}"
        over = f"{row['ratio'] / row['mac_ratio']:.2f}"
        rest = f"{over} | {row['peak_share']:.0%} | {row['params']:,}"
        print(f"| {row['batch_size']} | {row['model']} | {time} | {rest} |")


def main() -> None:
    """Prepare, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--folder", type=Path, default=Path("runs/fused-cost"))
    parser.add_argument("--heads", type=int, default=8, help="heads kept at every site")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--shared", default="0,6,10", help="numbers of leading sites with the same heads")
    parser.add_argument("--batch-size", default="1,8")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, default=None)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    shared = [int(text) for text in options.shared.split(",")]
    fused = prepare(options.folder, options.model, options.heads, shared, options.members)
    output = options.output or options.folder / "bench.json"
    models = [f"single={options.folder / 'base.st'}", *fused]
    measure = ["--batch-size", options.batch_size, "--rounds", options.rounds, "--warmup", 1]
    hydractl("bench", *models, "--compare", "stock,members,deep", *measure, "-o", output, "--force")
    show(output)


if __name__ == "__main__":
    main()
