"""The chain on a real BERT (MiniLM on SST-2); that on real images is test_chain.py.

Small enough for every run of the tests.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import tokenizers
import torch

import hydractl
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.header import read_header
from tests.pico import REAL, close
from tests.running import run

declare_operators()

import transformers  # noqa: E402


def first(path: Path, count: int) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


@pytest.mark.long
@torch.no_grad()
def test_predictions_of_minilm_are_the_librarys(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, test = real_data / REAL["BertForSequenceClassification"], real_data / "text" / "sst2_test.jsonl.gz"
    run("eval", str(folder), "--test", str(test), "--limit", "64", "--predictions", "p.jsonl", "-o", "e.json", "-q")
    found = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    rows = first(test, 64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    p = model(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits.softmax(-1)
    names = [model.config.id2label[int(i)] for i in p.argmax(-1)]
    assert [row["predicted"] for row in found] == names
    assert [row["confidence"] for row in found] == pytest.approx(p.amax(-1).tolist(), rel=1e-5)
    accuracy = json.loads(Path("e.json").read_text())["models"][0]["id"]["accuracy"]
    labels = torch.tensor([int(row["label"]) for row in rows])
    assert accuracy == float((p.argmax(-1) == labels).double().mean())


@pytest.mark.long
@torch.no_grad()
def test_pruned_and_fused_minilm(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, text = str(real_data / REAL["BertForSequenceClassification"]), real_data / "text"
    keep = ["--method", "magnitude", "--keep", "8"]
    run("prune", folder, *keep, "-o", "a.st")
    run("prune", folder, *keep, "-o", "zeroed/")
    run("prune", folder, "--method", "random", "--keep", "8", "--seed", "1", "-o", "b.st")
    assert {info.dtype for info in read_header("a.st").tensors.values()} == {"F16"}
    sliced = hydractl.load("a.st", device="cpu")
    assert [attention.head_counts for attention in sliced.attentions] == [[8]] * 6
    zeroed, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        "zeroed", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    pairs = [(row["text_a"], row["text_b"]) for row in first(text / "rte_dev.jsonl.gz", 4)]
    sentences = [row["text"] for row in first(text / "sst2_test.jsonl.gz", 12)]
    tokenizer = transformers.AutoTokenizer.from_pretrained("zeroed")
    for samples, columns in ((sentences, [sentences]), (pairs, [list(column) for column in zip(*pairs, strict=True)])):
        batch = tokenizer(*columns, padding=True, truncation=True, return_tensors="pt")
        close(sliced.member_logits(sliced.preprocess(samples))[0], zeroed.eval()(**batch).logits)

    run("fuse", "a.st", "b.st", "-o", "hydra.st", "-q")
    test = ["--test", str(text / "sst2_test.jsonl.gz"), "--ood", f"rte:far={text / 'rte_dev.jsonl.gz'}"]
    limit = ["--limit", "12", "--max-length", "64"]
    run("eval", "hydra.st", "deep=a.st+b.st", *test, *limit, "-o", "eval.json", "-q")
    hydra, deep = json.loads(Path("eval.json").read_text())["models"]
    # Nothing was trained, so averaging equal MLPs changes nothing, and fp16 holds the mean of two equal numbers.
    assert hydra["id"]["nll"] == pytest.approx(deep["id"]["nll"], rel=1e-4)
    assert hydra["ood"]["rte"] == pytest.approx(deep["ood"]["rte"]) and hydra["ood"]["rte"]["n"] == 12
    assert len(hydra["members"]) == 2 and hydra["diversity"]["rte"]["mi"] > 0


# --- the paper's way, from a language model ---------------------------------------------------------------------------


def published_language_model(sentences: list[str], folder: Path) -> None:
    """A BERT as it comes from pre-training, but small and untrained, with a WordPiece tokenizer of these sentences."""
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(sentences, vocab_size=2000)
    folder.mkdir()
    tokenizer.save_model(str(folder))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(folder)


@pytest.mark.release
def test_from_a_language_model_to_an_ensemble(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = real_data / "text"
    rows = first(text / "sst2_train.jsonl.gz", 5500)
    for name, part in (("val", rows[:300]), ("train", rows[3000:])):  # the first 3,000 are validation data
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    published_language_model([row["text"] for row in rows[3000:]], Path("bert"))
    data = ["--recipe", "sst2", "--train", "train.jsonl", "--val", "val.jsonl", "--max-length", "64"]
    run("finetune", "bert", *data, "--init", "head", "--lr", "2e-3", "--epochs", "3", "-o", "base.st")
    said = capsys.readouterr().err
    assert "bert has no classifier; drawn by --seed 0: bert.pooler" in said and "classifier.weight" in said
    search = ["--val", "val.jsonl", "--ood-val", str(text / "agnews_val.jsonl.gz"), "--limit", "100"]
    run("extract-circuit", "base.st", *search, "--objective", "acc,ood,avg", "--keep", "2", "-o", "paper.json", "-q")
    for objective in ("acc", "ood", "avg"):
        run("prune", "base.st", "--circuit", f"paper.{objective}.json", "-o", f"{objective}.st", "-q")
        run("finetune", f"{objective}.st", *data, "--steps", "10", "-o", f"{objective}.tuned.st", "-q")
    run("fuse", "acc.tuned.st", "ood.tuned.st", "avg.tuned.st", "-o", "hydra.st", "-q")
    near, far = f"reviews:near={text / 'customer_reviews.jsonl.gz'}", f"trec:far={text / 'trec.jsonl.gz'}"
    test = ["--test", str(text / "sst2_test.jsonl.gz"), "--limit", "300"]
    run("eval", "base.st", "hydra.st", *test, "--ood", near, "--ood", far, "-o", "e.json")
    single, hydra = json.loads(Path("e.json").read_text())["models"]
    assert single["id"]["accuracy"] > 0.6 and hydra["id"]["accuracy"] > 0.55, "more than the half of a guess"
    assert len(hydra["members"]) == 3 and {*hydra["ood"]} == {"reviews", "trec"}
    model, theirs = hydractl.load("hydra.st", device="cpu"), transformers.AutoTokenizer.from_pretrained("bert")
    sentences = [row["text"] for row in first(text / "sst2_test.jsonl.gz", 8)]
    expected = theirs(sentences, padding=True, truncation=True, max_length=64, return_tensors="pt")
    assert torch.equal(model.preprocess(sentences)["input_ids"], expected["input_ids"])
