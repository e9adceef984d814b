"""Write the minimal valid files of every reader: ``python -m tests.fuzz.make_corpus``."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from hydractl.cli.app import main
from tests.fuzz.readers import CORPUS
from tests.pico import publish, stock

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=4&patch_size=2&in_chans=1"
    "&embed_dim=6&depth=2&num_heads=3&mlp_ratio=1&num_classes=2"
)
ROWS = [{"text": "a fine film", "label": "one"}, {"text": "dull, not so", "label": "zero"}]


def _run(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(list(words)) == 0, words


def _keep(name: str, *files: str, folder: str = "") -> None:
    place = CORPUS / name
    place.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(Path(folder) / file, place / Path(file).name)


def _unfinished_training(words: list[str]) -> None:
    """The file of progress, which a training removes when it is done."""

    def removed(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and arguments[0] == "t.st.state":
            _keep("training", "t.st.state")

    sys.addaudithook(removed)
    _run(*words)


def _results() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    np.savez("images.npz", x=images, y=np.arange(6) % 2, classes=np.array(["zero", "one"]))
    search = ["--val", "images.npz"]
    train = ["--train", "images.npz"]
    _run("finetune", MODEL, *train, "--steps", "1", "--batch-size", "2", "-o", "vit.st")
    _run("score", "vit.st", "--method", "magnitude", "-o", "s.scores.json")
    _run("prune", "vit.st", "--method", "random", "--keep", "2", "-o", "pruned.st")
    _run("fuse", "pruned.st", "vit.st", "-o", "fused.st")
    _run("extract-circuit", "vit.st", *search, "--objective", "acc", "--budget", "2", "-o", "c.circuit.json")
    _run("extract-circuit", "vit.st", *search, "--objective", "acc", "--budget", "2", "-o", "c.json")
    _keep("journal", "c.json.journal")
    _unfinished_training(["finetune", "vit.st", *train, "--steps", "3", "--save-every", "1", "-o", "t.st"])
    _run("eval", "fused.st", "--test", "images.npz", "--allow-seen", "--predictions", "p.pred.st", "-o", "e.eval.json")
    _run("bench", "vit.st", "--rounds", "1", "--warmup", "1", "-o", "b.bench.json")
    _keep("checkpoint", "vit.st", "pruned.st", "fused.st")
    _keep("mask", "pruned.mask.json")
    _keep("scores", "s.scores.json")
    _keep("circuit", "c.circuit.json")
    _keep("eval", "e.eval.json")
    _keep("bench", "b.bench.json")
    _keep("predictions", "p.pred.st")
    _keep("beside", "vit.st", "images.npz")
    _keep("npz", "images.npz")


def _texts() -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    Path("t.jsonl").write_bytes(lines)
    Path("t.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    for name, mark in [("t.csv", ","), ("t.tsv", "\t")]:
        rows = [mark.join(['"' + row["text"] + '"', row["label"]]) for row in ROWS]
        Path(name).write_text("\n".join([mark.join(["text", "label"]), *rows]) + "\n")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), "t.parquet", compression="NONE")
    for name in ("jsonl", "csv", "tsv", "parquet"):
        _keep(name, f"t.{name}")
    _keep("gz", "t.jsonl.gz")
    Path("labels.txt").write_text("zero\none\n")
    Path("labels.json").write_text('["zero", "one"]')
    _keep("labels", "labels.txt", "labels.json")
    Path("map.json").write_text('{"zero": "one", "one": "zero"}')
    _keep("label-map", "map.json")
    Path("hydra.yaml").write_text(
        "seed: 3\nprune:\n  method: magnitude\n  keep: 1\n  scope: site\n  quiet: true\n"
        "fuse:\n  merge: [mlp, norm]\nx-study:\n  rows: [1, 2]\n"
    )
    _keep("config", "hydra.yaml")


def _images() -> None:
    import pyarrow
    from pyarrow import parquet

    picture = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    encoded = {}
    for kind in ("png", "jpg", "gif", "webp", "tiff"):
        picture.save(f"i.{kind}")
        encoded[kind] = Path(f"i.{kind}").read_bytes()
        _keep(kind, f"i.{kind}")
    rows = [{"image": {"bytes": encoded["png"], "path": "a.png"}, "label": i % 2} for i in range(2)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "i.parquet", compression="NONE")
    _keep("image-parquet", "i.parquet")
    with tarfile.open("s.tar", "w") as shard:
        for i in range(2):
            for name, content in [(f"{i}.png", encoded["png"]), (f"{i}.txt", b"an oak")]:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    _keep("shards", "s.tar")
    Path("list.txt").write_text("i.png 0\ni.jpg 1\n")
    _keep("list", "list.txt")
    _keep("beside", "i.png", "i.jpg")


def _published() -> None:
    import torch

    layer = torch.nn.Linear(3, 2).half()
    torch.save({**layer.state_dict(), "parameter": layer.bias, "turned": layer.weight.T}, "w.pth")
    _keep("state-dict", "w.pth")
    publish(stock("bert"), "bert", Path("bert"))
    for name, file in [
        ("hf-config", "config.json"),
        ("hf-tokenizer", "tokenizer.json"),
        ("hf-tokenizer-config", "tokenizer_config.json"),
        ("hf-weights", "model.safetensors"),
    ]:
        _keep(name, file, folder="bert")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.chdir(folder):
        _results()
        _texts()
        _images()
        _published()
