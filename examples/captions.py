"""A CLIP trained on captions: a small one from nothing, then members with heads removed and their image towers locked.

    python examples/captions.py                                      # scikit-learn's digits; nothing is downloaded
    python examples/captions.py --train train/ --test test/ --model clip.st --remove 24 --template "a photo of a {}"

The captions are made of class names and templates here; ``--pairs captions:FILE`` takes captions that are there.
"""

from __future__ import annotations

import argparse
import csv
import random
import shlex
import shutil
import sys
from pathlib import Path

from hydractl.cli.app import main
from hydractl.data import open_data

RUNS = Path("runs/captions")
SMALL = (
    "open_clip:ViT-B-32?pretrained=0&embed_dim=32"
    "&vision_cfg.image_size=8&vision_cfg.patch_size=2&vision_cfg.width=72&vision_cfg.head_width=12&vision_cfg.layers=4"
    "&text_cfg.context_length=16&text_cfg.width=32&text_cfg.heads=4&text_cfg.layers=2"
)
TEMPLATES = ("the digit {}", "a {}", "the number {}, written by hand", "a {} in white on black", "someone wrote a {}")
PROMPT = "The digit {label}."
WARMUP = ("--config", "{warmup: 0.1}")


def make_pairs(spec: str, templates: list[str]) -> str:
    """Images as files and a table of captions, each of the class name in one of the templates; the SPEC of it."""
    dataset = open_data(spec, need_labels=True)
    assert dataset.labels is not None and dataset.label_names is not None, "the data have no class names"
    draw = random.Random(0)
    (RUNS / "images").mkdir(parents=True)
    with open(RUNS / "captions.csv", "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for i, label in enumerate(dataset.labels):
            dataset[i].save(RUNS / f"images/{i}.png")
            table.writerow([f"images/{i}.png", draw.choice(templates).format(dataset.label_names[label])])
    return f"captions:{RUNS}/captions.csv"


def hydractl(*arguments: str) -> None:
    """Run one command of the tool in this process, as a shell would, and show it."""
    print(f"\n$ hydractl {shlex.join(arguments)}", flush=True)
    code = main(arguments)
    if code:
        sys.exit(code)


def study(arguments: argparse.Namespace) -> None:
    """From the pairs to a table of the base and of members before and after their training."""
    shutil.rmtree(RUNS, ignore_errors=True)
    pairs = arguments.pairs or make_pairs(arguments.train, arguments.template or list(TEMPLATES))
    asked = ["--prompt", arguments.prompt]
    base = arguments.model
    if base is None:
        base = f"{RUNS}/base.st"
        how = "--loss contrastive --epochs 30 --batch-size 125 --lr 2e-3 --weight-decay 0.05 -q"
        hydractl("finetune", SMALL, "--train", pairs, *how.split(), *WARMUP, "-o", base)
    models = [f"base={base}"]
    tuned = []
    for seed in "012":
        cut = f"{RUNS}/cut{seed}.st"
        how = f"--method taylor --tower visual --scope global --remove {arguments.remove} --samples 128 --seed {seed}"
        hydractl("prune", base, *how.split(), "--data", arguments.train, *asked, "-o", cut)
        tuned.append(f"{RUNS}/tuned{seed}.st")
        how = f"--recipe clip-locked-image --seed {seed} -q {arguments.tuning}"
        hydractl("finetune", cut, "--train", pairs, *how.split(), *WARMUP, "-o", tuned[-1])
        models += [f"cut{seed}={cut}", f"tuned{seed}={tuned[-1]}"]
    hydractl("fuse", *tuned, *asked, "-o", f"{RUNS}/hydra.st")
    hydractl("eval", *models, f"hydra={RUNS}/hydra.st", "--test", arguments.test, *asked, "-o", f"{RUNS}/eval.json")


def run() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="builtin:digits/train", metavar="SPEC", help="labelled images with names")
    parser.add_argument("--test", default="builtin:digits/test", metavar="SPEC", help="labelled images for the figures")
    parser.add_argument("--pairs", metavar="captions:FILE", help="captions that are there; else they are made")
    parser.add_argument("--template", action="append", metavar="TEXT", help="of a caption, {} is the class name")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEMPLATE|FILE")
    parser.add_argument("--model", help="a CLIP to start from; else a small one is trained on the pairs")
    parser.add_argument("--remove", type=int, default=8, help="heads to remove from the image tower of each member")
    parser.add_argument(
        "--tuning",
        default="--lr 2e-3 --batch-size 125 --accumulate 1 --epochs 4",
        help="options of the members' training",
    )
    study(parser.parse_args())


if __name__ == "__main__":
    run()
