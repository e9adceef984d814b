"""Taylor members and circuits of a BERT fine-tuned on SST-2, against topics, questions, news and pairs of sentences.

    python examples/sst2.py DATA [CHECKPOINT]

DATA holds the files named below; their rows have ``text`` (or ``text_a`` and ``text_b``) and ``label``. For data of
your own, change those names; for a model that is not of 6 sites with 12 heads each, KEPT and REMOVED. CHECKPOINT is a
folder as transformers saves it, or any other MODEL, and is used as it is: nothing is trained.
"""

from __future__ import annotations

import argparse
import gzip
from itertools import islice
from pathlib import Path

from chain import Study, run

RUNS = Path("runs/sst2")
CHECKPOINT = "hf:distilbert/distilbert-base-uncased-finetuned-sst-2-english"

TRAIN = "sst2_train.jsonl.gz"
VALIDATION = 3000  # the first rows of it become the validation set
TEST = "sst2_test.jsonl.gz"
OOD_VALIDATION = "agnews_val.jsonl.gz"  # chooses the circuits, so it is no test set
OOD_TEST = {
    "reviews:near": "customer_reviews.jsonl.gz",
    "trec:far": "trec.jsonl.gz",
    "20ng:far": "20ng.jsonl.gz",
    "mnli:far": "mnli_matched_1000.jsonl.gz",
    "rte:far": "rte_dev.jsonl.gz",
    "wmt16:far": "wmt16.jsonl.gz",
}

KEPT = 8  # heads that a Taylor member keeps of each site
REMOVED = 24  # heads that a circuit removes in all


def split(data: Path, folder: Path) -> None:
    """Cut the validation set from the start of the training set."""
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(data / TRAIN, "rb") as rows:
        for name, count in (("val", VALIDATION), ("train", None)):
            with gzip.open(folder / f"{name}.jsonl.gz", "wb") as part:
                part.writelines(islice(rows, count))


def study(data: Path, folder: Path, checkpoint: str, limit: int | None) -> Study:
    """Members as pruned, without fine-tuning, and the single model; texts of at most 128 tokens, as in the paper."""
    return Study(
        runs=RUNS / "pruned",
        base=checkpoint,
        train=str(folder / "train.jsonl.gz"),
        val=str(folder / "val.jsonl.gz"),
        test=str(data / TEST),
        ood_val=str(data / OOD_VALIDATION),
        ood_test=[f"{name}={data / file}" for name, file in OOD_TEST.items()],
        remove=REMOVED,
        everywhere=f"--limit {limit}" if limit else "",
        scoring=f"--keep {KEPT} --max-length 128",
        evaluation="--max-length 128",
        # 72 heads, 24 of them removed: 1,452 evaluations of these samples for each objective. More and longer texts
        # choose better, and cost in proportion.
        search=f"--limit {min(limit or 100, 100)} --max-length 24 --batch-size 8",
        bench="--batch-size 8 --rounds 10 --max-length 128",
    )


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("checkpoint", nargs="?", default=CHECKPOINT, metavar="CHECKPOINT")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N samples of every set, for a trial")
    arguments = parser.parse_args()
    folder = RUNS / "data"
    split(arguments.data, folder)
    run(study(arguments.data, folder, arguments.checkpoint, arguments.limit))


if __name__ == "__main__":
    main()
