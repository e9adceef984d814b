"""A real BERT (MiniLM on SST-2), as it is and pruned.

Small enough for every run of the tests.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

import hydractl
from hydractl.families.torchvision_operators import declare_operators
from hydractl.files.header import read_header
from tests.pico import REAL, close
from tests.running import json_lines, read_json, run

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
    run("eval", str(folder), "--test", str(test), "--limit", "64", "-o", "e.json", "-q")
    run("predict", str(folder), str(test), "--limit", "64", "-o", "p.jsonl", "-q")
    found = json_lines("p.jsonl")
    rows = first(test, 64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    p = model(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits.softmax(-1)
    names = [model.config.id2label[int(i)] for i in p.argmax(-1)]
    assert [row["predicted"] for row in found] == names
    assert [row["confidence"] for row in found] == pytest.approx(p.amax(-1).tolist(), rel=1e-5)
    accuracy = read_json("e.json")["models"][0]["id"]["accuracy"]
    labels = torch.tensor([int(row["label"]) for row in rows])
    assert accuracy == float((p.argmax(-1) == labels).double().mean())


@pytest.mark.long
@torch.no_grad()
def test_a_pruned_minilm_is_the_library_s_model_of_zeroed_heads(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, text = str(real_data / REAL["BertForSequenceClassification"]), real_data / "text"
    keep = ["--method", "magnitude", "--keep", "8"]
    run("prune", folder, *keep, "-o", "a.st")
    run("prune", folder, *keep, "-o", "zeroed/")
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
