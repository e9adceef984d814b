"""A checkpoint over Parquet shards with Ray Data, on a Ray that runs inside this program.

    python examples/interop/ray_data.py best.st shards/*.parquet -o predictions.jsonl [--actors 2]

Shards have a column ``id`` and a column of images (``image``: bytes, or ``{bytes, path}`` as Hugging Face writes them)
or of texts (``text``). Each actor loads the checkpoint once. The lines are those of ``hydractl predict``, in the order
of the shards, with the column ``id`` as their id. Ray cuts batches where its blocks end, so the last bits of a figure
may differ from those of a single process: ``same_answers`` compares rows by their id, with a tolerance.

A cluster takes the place of the embedded Ray by ``ray.init("ray://...")``; its nodes must see checkpoint and shards.
"""

from __future__ import annotations

import argparse
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported; it would report its use to its makers

import numpy as np
import ray
import ray.data
from PIL import Image

import hydractl

FIGURES = ("confidence", "entropy", "mi", "ood_score")


class Predictor:
    """One actor: the checkpoint, loaded once, and what it says of each batch.

    Args:
        checkpoint: the file.
        device: where it runs.
    """

    def __init__(self, checkpoint: str, device: str) -> None:
        self._model = hydractl.load(checkpoint, device=device)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the columns of the predictions of a batch, each ``[batch]``."""
        if "text" in batch:
            samples: list[Any] = batch["text"].tolist()
        else:
            samples = [opened(value) for value in batch["image"]]
        answer = self._model.predict(self._model.preprocess(samples))
        predicted: list[Any] = answer.predicted.tolist()
        if answer.labels is not None:  # classes without names are numbers, as in the lines of ``hydractl predict``
            predicted = answer.predicted_labels
        columns: dict[str, Any] = {
            "id": batch["id"],
            "predicted": np.array(predicted),
            "confidence": answer.confidence.cpu().numpy(),
            "entropy": answer.entropy.cpu().numpy(),
            "mi": answer.mi.cpu().numpy(),
            "ood_score": answer.ood_score.cpu().numpy(),
        }
        if answer.is_ood is not None:
            columns["is_ood"] = answer.is_ood.cpu().numpy()
        return columns


def opened(value: Any) -> Image.Image:
    """Return the image that a cell holds: its bytes, or a mapping with them."""
    content = value["bytes"] if isinstance(value, dict) else value
    return Image.open(io.BytesIO(content))


def predictions(
    checkpoint: str, shards: Sequence[str], *, actors: int, batch_size: int = 64, device: str = "cpu"
) -> Iterator[dict[str, Any]]:
    """Yield the prediction of every row, in the order of the shards.

    Args:
        checkpoint: the file of the model.
        shards: the Parquet files.
        actors: how many processes hold the model.
        batch_size: rows that are computed together, at most.
        device: of each actor; for GPUs give ``map_batches`` also ``num_gpus=1``.
    """
    ray.init(num_cpus=actors + 1, include_dashboard=False, ignore_reinit_error=True, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = ray.data.read_parquet(list(shards))
    predicted = rows.map_batches(
        Predictor,
        fn_constructor_args=(os.path.abspath(checkpoint), device),
        batch_size=batch_size,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    yield from predicted.iter_rows()


def same_answers(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], within: float = 1e-5) -> bool:
    """Whether two runs say the same of every id: the same class and flag, figures within max(1, |figure|) times this.

    A figure that lies within the tolerance of its threshold may lead to another class or flag: rerun such a row alone.
    """
    by_id = {row["id"]: row for row in second}
    if len(first) != len(second) or len(by_id) != len(second):
        return False
    for row in first:
        other = by_id.get(row["id"])
        if other is None or row["predicted"] != other["predicted"] or row.get("is_ood") != other.get("is_ood"):
            return False
        for figure in FIGURES:
            allowed = within * max(1.0, abs(other[figure]))
            if abs(row[figure] - other[figure]) > allowed:
                return False
    return True


def main() -> None:
    """Predict the rows of all shards into a file of JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("shards", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    rows = predictions(
        arguments.checkpoint,
        arguments.shards,
        actors=arguments.actors,
        batch_size=arguments.batch_size,
        device=arguments.device,
    )
    unfinished = arguments.output.with_name(f".{arguments.output.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as lines:
        for row in rows:
            plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
            lines.write(json.dumps(plain, ensure_ascii=False) + "\n")
    unfinished.replace(arguments.output)
    ray.shutdown()


if __name__ == "__main__":
    main()
