"""A CLIP as a zero-shot classifier: Taylor members of its visual tower, circuits over both towers, on your own data.

    python examples/zero_shot.py --train train/ --val val/ --test test/ --ood-val others/ --ood rocks:far=rocks/

    # A small CLIP is trained first; nothing is downloaded, and the data come with the package.
    python examples/zero_shot.py --small --remove 12 --limit 100 --prompt "The digit {label}." \\
        --train builtin:digits/train --val builtin:digits/val --test builtin:digits/test \\
        --ood-val builtin:symbols --ood letters:near=builtin:letters --ood photos:far=builtin:photos

Data are folders of class folders, or any other SPEC; class folders name the classes, unless ``--labels`` does: a file,
or the name of a list that is built in (``imagenet``, ``cifar100``, ...). ``--prompt openai-imagenet`` asks 80.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from chain import Study, run

RUNS = Path("runs/zero-shot")
MODEL = "open_clip:ViT-B-32/laion2b_s34b_b79k"
PROMPT = "A photo of a {label}."
REMOVED = 24  # of the 144 + 96 heads of a ViT-B-32, as in the paper

SMALL = (
    "open_clip:ViT-B-32?pretrained=0&embed_dim=64"
    "&vision_cfg.image_size=28&vision_cfg.patch_size=4&vision_cfg.width=96&vision_cfg.head_width=24&vision_cfg.layers=6"
    "&text_cfg.context_length=16&text_cfg.width=64&text_cfg.heads=4&text_cfg.layers=3"
)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (("train", "calibration"), ("val", "circuits"), ("test", "figures"), ("ood-val", "circuits")):
        parser.add_argument(f"--{name}", required=True, metavar="SPEC", help=f"data for the {what}")
    parser.add_argument("--ood", action="append", required=True, metavar="NAME[:near|far]=SPEC", help="OOD test sets")
    parser.add_argument("--labels", metavar="FILE|NAME", help="class names, where the data do not name them")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEMPLATE|FILE")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--small", action="store_true", help="train a small CLIP on --train instead of --model")
    parser.add_argument("--remove", type=int, default=REMOVED, help="heads to remove from each member")
    parser.add_argument("--limit", type=int, help="use only so many samples for circuits")
    arguments = parser.parse_args()
    asked = ["--prompt", arguments.prompt, *(["--labels", arguments.labels] if arguments.labels else [])]
    run(
        Study(
            runs=RUNS,
            base=SMALL if arguments.small else arguments.model,
            train=arguments.train,
            val=arguments.val,
            test=arguments.test,
            ood_val=arguments.ood_val,
            ood_test=arguments.ood,
            remove=arguments.remove,
            pretraining="--epochs 30 --lr 1e-3 --config '{warmup: 0.1}' --weight-decay 0.05" if arguments.small else "",
            everywhere=shlex.join(asked),
            samples=128 if arguments.small else 512,
            scoring="--tower visual",
            search=f"--limit {arguments.limit}" if arguments.limit else "",
            bench="--batch-size 32 --rounds 20",
        )
    )


if __name__ == "__main__":
    main()
