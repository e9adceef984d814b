"""Hostile text data through the command line: an answer, or one clean error with the right exit code and no output."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import hydractl
from hydractl.data import batches, open_data
from hydractl.data.part import DatasetPart
from hydractl.data.text import cut_warning
from hydractl.errors import InputError
from hydractl.families.hf import texts as hf_tokenizer
from tests.pico import named, publish, stock
from tests.running import read_json, run

LABELS = ["awful", "bad", "fair", "good", "great"]
IMAGES = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1&embed_dim=24&depth=2&num_heads=3"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bert`` and ``roberta`` with class names, ``nameless``, ``reordered`` (the classes of ``bert``), ``words``.

    ``reordered`` gives the logits of ``bert`` in another order; ``words`` has a tokenizer that knows one word more.
    """
    folder = tmp_path_factory.mktemp("models")
    for variant in ("bert", "roberta"):
        publish(named(stock(variant), LABELS), variant, folder / variant)
    publish(stock("bert"), "bert", folder / "nameless")
    reordered = named(stock("bert"), [*LABELS[2:], *LABELS[:2]])
    with torch.no_grad():
        for parameter in reordered.classifier.parameters():
            parameter.copy_(parameter.roll(-2, 0))
    publish(reordered, "bert", folder / "reordered")
    publish(named(stock("bert", seed=1), LABELS), "bert", folder / "words")
    path = folder / "words" / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["vocab"]["extra"] = len(document["model"]["vocab"])
    path.write_text(json.dumps(document))
    return folder


@pytest.fixture(autouse=True)
def inside(models: Path, here: Path) -> None:
    for folder in models.iterdir():
        Path(folder.name).symlink_to(folder)
    rows("data.jsonl", *({"text": "a fine film " * i, "label": LABELS[i % 5]} for i in range(4)))


def rows(name: str, *documents: dict[str, Any]) -> str:
    Path(name).write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return name


def evaluated(model: str, data: str, *more: str) -> Any:
    run("eval", model, "--test", data, *more, "-o", "e.json", "--force", "-q")
    return read_json("e.json")["models"][0]


# --- members that do not belong together ------------------------------------------------------------------------------


@pytest.mark.fault(23)
@pytest.mark.parametrize(("other", "expected"), {
    "words": "words against bert: another tokenizer",
    "reordered": "reordered against bert: the same classes in another order",
    "roberta": "roberta against bert: architecture 'RobertaForSequenceClassification', not",
}.items())  # fmt: skip
def test_members_that_differ(other: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("fuse", "bert", other, "-o", "hydra.st", code=3)
    assert f"  - {expected}" in capsys.readouterr().err and not Path("hydra.st").exists()


def test_rows_of_other_tokenizers_are_allowed_and_of_other_classes_not(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "bert", "words", "roberta", "nameless", "--test", "data.jsonl")
    capsys.readouterr()
    run("eval", "bert", "reordered", "--test", "data.jsonl", code=3)
    assert "reordered: the same classes in another order" in capsys.readouterr().err


# --- handled ----------------------------------------------------------------------------------------------------------


ODD = {
    "nothing": "",
    "spaces": " \t\n ",
    "NUL": "fine \0 film",
    "only NUL": "\0",
    "100,000 tokens": "fine " * 100_000,
    "one word": "f" * 300_000,
    "special tokens": "[CLS] [SEP] [PAD] <s> </s> [MASK]",
    "accents": "e" + "\u0301" * 5_000,
    "other planes": "\U0001f600 \u202e \ufeff \uffff",
}


@pytest.mark.fault(28)
@pytest.mark.long
@pytest.mark.parametrize("model", ["bert", "roberta"])
def test_strange_texts_are_texts(model: str) -> None:
    loaded = hydractl.load(model, device="cpu")
    samples = list(ODD.values())
    written = [{"text": text, "label": "good"} for text in samples]
    found = evaluated(model, rows("a.jsonl", *written), "--batch-size", "4")
    run("predict", model, "a.jsonl", "--batch-size", "4", "-o", "p.jsonl")
    lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    assert found["id"]["n"] == len(lines) == len(samples)
    with torch.no_grad():
        alone = [float(loaded(loaded.preprocess([text])).exp().max()) for text in samples]
    assert [line["confidence"] for line in lines] == pytest.approx(alone, rel=1e-4)


@pytest.mark.fault(25)
def test_one_sample_of_one_class_in_batches_of_one() -> None:
    rows("one.jsonl", {"text": "fine", "label": "good"})
    rows("ood.jsonl", {"text_a": "so", "text_b": "dull"})
    row = evaluated("bert", "one.jsonl", "--batch-size", "1", "--ood", "x=ood.jsonl")
    assert row["id"]["n"] == 1 and row["ood"]["x"]["auroc"] in (0.0, 0.5, 1.0)
    data = ["--data", "one.jsonl", "--batch-size", "1", "-q"]
    run("prune", "bert", "--method", "taylor", "--keep", "2", *data, "-o", "a.st")
    circuit = ["--val", *data[1:], "--ood-val", "ood.jsonl", "--budget", "2", "-o", "c.json"]
    run("extract-circuit", "bert", *circuit)
    run("finetune", "a.st", "--train", *data[1:], "--epochs", "1", "-o", "f.st")


# --- texts that are cut -----------------------------------------------------------------------------------------------


@pytest.mark.fault(28)
def test_texts_that_are_cut_are_counted() -> None:
    # [CLS] and [SEP] belong to the 16 tokens of a text, and one [SEP] more to those of a pair.
    texts = ["fine " * 14, "fine " * 15, "fine " * 5_000, "", "unkind " * 7, "unkind " * 8]
    data = open_data(rows("a.jsonl", *({"text": text} for text in texts)))
    collate = hydractl.load("bert", device="cpu").preprocess
    said = "--data a.jsonl: 3 of 6 texts are longer than 16 tokens, and what is behind them is not read"
    assert cut_warning(data, collate) == said
    some = cut_warning(DatasetPart(data, data.spec, [0, 1, 3]), collate)
    assert some is not None and "1 of 3 texts is longer" in some
    assert cut_warning(DatasetPart(data, data.spec, [0, 3]), collate) is None
    # Counting leaves the tokenizer, which cuts and pads, as it was.
    widths = [batch.inputs["input_ids"].shape[1] for batch in batches(data, collate, 1)]
    assert widths == [16, 16, 16, 16, 16, 2]
    pairs = open_data(rows("b.jsonl", *({"text_a": "fine " * n, "text_b": "so " * 6} for n in (7, 8, 0))))
    of_pairs = cut_warning(pairs, collate)
    assert of_pairs is not None and "1 of 3 texts is longer" in of_pairs
    assert cut_warning(open_data("builtin:digits/val", limit=3), None) is None


LONG = {"data.jsonl": [3, 9], "other.jsonl": [20]}
"""Which lines of these files are longer than the 16 tokens of ``bert``."""


@pytest.fixture
def long_texts() -> None:
    for name, long in LONG.items():
        rows(
            name,
            *(
                {"text": f"{name[0]} {i} " + "fine " * (30 if i in long else 3), "label": LABELS[i % 5]}
                for i in range(25)
            ),
        )


@pytest.mark.fault(100)
@pytest.mark.parametrize(
    ("command", "counted"),
    [
        ("eval bert --test data.jsonl", "--test data.jsonl: 2 of 25"),
        ("calibrate bert --val data.jsonl --temperature fit -o c.st", "--val data.jsonl: 2 of 25"),
        ("predict bert data.jsonl -o p.jsonl", "INPUT data.jsonl: 2 of 25"),
        ("score bert --method taylor --data data.jsonl -o s.json", "--data data.jsonl: 2 of 25"),
        ("finetune bert --train data.jsonl --epochs 1 -o f.st", "--train data.jsonl: 2 of 25"),
        (
            "extract-circuit bert --val data.jsonl --ood-val other.jsonl --budget 1 -o i.json",
            "--val data.jsonl: 2 of 25",
        ),
        ("prune bert --max-drop 0.9 --val data.jsonl --method magnitude -o m.st", "--val data.jsonl: 2 of 25"),
    ],
)
def test_every_verb_says_how_many_texts_it_cuts(
    command: str, counted: str, long_texts: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*command.split())
    words = " ".join(capsys.readouterr().err.split())
    assert words.count(f"{counted} texts are longer than 16 tokens, and what is behind them is not read") == 1


@pytest.mark.fault(100)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_prediction_says_whether_its_text_was_cut(ending: str, long_texts: None) -> None:
    run("predict", "bert", "data.jsonl", "-o", f"p.{ending}", "--report", "r.json", "--batch-size", "4")
    lines: list[dict[str, Any]]
    if ending == "jsonl":
        lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    else:
        with open("p.csv", newline="") as file:
            lines = [{**line, "cut": line["cut"] == "True"} for line in csv.DictReader(file)]
    assert [i for i, line in enumerate(lines) if line["cut"]] == LONG["data.jsonl"]
    report = read_json("r.json")
    assert report["cut"] == 2 and len(report["warnings"]) == 1


@pytest.mark.fault(100)
def test_images_are_not_cut() -> None:
    run("predict", IMAGES, "builtin:digits/val?take=2", "-o", "p.jsonl", "--report", "r.json")
    assert "cut" not in json.loads(Path("p.jsonl").read_text().splitlines()[0])
    assert "cut" not in read_json("r.json")


# --- tokenizers that are too large for a header -----------------------------------------------------------------------


def test_a_tokenizer_that_a_checkpoint_cannot_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prune", "bert", "--method", "magnitude", "--keep", "2", "-o", "a.st")
    header = Path("a.st").read_bytes()
    needed = int.from_bytes(header[:8], "little")
    stored = header.partition(b'\\"json\\":')[2].partition(b',\\"model_input_names')[0]
    assert 0.2 * needed < len(stored) < needed
    size = len(stored) + 2  # with quotes around it
    monkeypatch.setattr(hf_tokenizer, "MOST_BYTES", size)
    run("prune", "bert", "--method", "magnitude", "--keep", "2", "-o", "b.st")
    # One that is too large is compressed, and the same; only one that is still too large is refused.
    monkeypatch.setattr(hf_tokenizer, "MOST_BYTES", size - 1)
    run("prune", "bert", "--method", "magnitude", "--keep", "2", "-o", "packed.st")
    assert b'\\"json\\":\\"zlib:' in Path("packed.st").read_bytes()
    packed, plain = (hydractl.load(name).preprocess(["a fine film", "so dull"]) for name in ("packed.st", "a.st"))
    assert all(torch.equal(packed[name], plain[name]) for name in plain)
    settings = {**hydractl.load("a.st").description.preprocess["tokenizer"], "json": "zlib:eJw"}
    with pytest.raises(InputError, match="the stored tokenizer"):
        hf_tokenizer.stored_tokenizer({"tokenizer": settings})
    monkeypatch.setattr(hf_tokenizer, "MOST_BYTES", 10)
    capsys.readouterr()
    run("prune", "bert", "--method", "magnitude", "--keep", "2", "-o", "c.st", code=3)
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: the tokenizer in bert would take 0.0 MiB of a checkpoint's header, which has")
    assert hint.startswith("hint: remove the words that your texts do not use")
    assert not Path("c.st").exists()
    assert hf_tokenizer.MAX_HEADER_BYTES - (1 << 20) > 10 << 20  # XLM-R's takes about 11 MiB
