"""Text data in the verbs: batches by length change no result, --max-length travels, the wrong kind is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.samples import SampleSet
from hydractl.circuit.search import GreedySearch
from hydractl.data import open_data
from hydractl.errors import UsageError
from hydractl.evaluation.predictions.reading import read_predictions
from hydractl.log import Log
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from hydractl.studies.sets import MADE_TEXTS, study_sets
from tests.calls import study_request
from tests.pico import WORDS, named, publish, stock
from tests.running import quiet as run
from tests.running import read_json
from tests.spread import marked_long

LABELS = ["awful", "bad", "fair", "good", "great"]
IMAGES = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1&embed_dim=24&depth=2&num_heads=3"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A published folder of a pico BERT of 5 classes that takes 16 tokens."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    publish(named(stock("bert"), LABELS), "bert", folder)
    return str(folder)


@pytest.fixture
def data(here: Path) -> Path:
    """``data.jsonl`` and ``ood.tsv``: texts of 0 to 20 words in no order of length, none of them in both files.

    A text in both would tie with itself, and a tie is broken by rounding, which depends on the batch.
    """
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[:5], n)) for n in random.permutation(21)]
    rows = [{"text": text, "label": LABELS[i % 5]} for i, text in enumerate(texts)]
    (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outside = [" ".join(random.choice(WORDS[5:], n)) for n in random.permutation(np.arange(1, 21))]
    (here / "ood.tsv").write_text("text\n" + "\n".join(outside) + "\n")
    return here / "data.jsonl"


def alone(model: Any, opened: Any) -> np.ndarray:
    """Member logits of every sample in a batch of its own, in the order of the data."""
    with torch.inference_mode():
        found = [model.member_logits(model.preprocess([opened[i]])) for i in range(len(opened))]
    return torch.cat(found, dim=1).numpy()


def test_eval_does_not_depend_on_the_grouping(bert: str, data: Path) -> None:
    model, opened = build_model(open_source(bert)), open_data(str(data), labels=LABELS)
    expected = alone(model, opened)
    assert len({row.tobytes() for row in expected[0].round(3)}) > 15  # or any order would do
    right = (expected[0].argmax(-1) == np.arange(21) % 5).mean()
    rows = []
    for size in ("1", "5", "64"):
        run("eval", bert, "--test", "data.jsonl", "--ood", "x=ood.tsv", "--batch-size", size, "--force",
            "--predictions", "p.st", "-o", "e.json")  # fmt: skip
        stored = read_predictions("p.st")
        found = np.concatenate([logits for _, logits, _ in stored.batches(stored.sets[0])], axis=1)
        assert np.allclose(found[:, :21], expected, atol=1e-4)
        document = read_json("e.json")
        assert document["conventions"]["max_length"] == {"bert": 16}
        rows += document["models"]
    for row in rows:
        assert row["id"]["accuracy"] == pytest.approx(right)
        assert row["id"]["nll"] == pytest.approx(rows[0]["id"]["nll"], rel=1e-4)
        assert row["ood"]["x"]["auroc"] == pytest.approx(rows[0]["ood"]["x"]["auroc"], abs=1e-9)


def test_the_search_counts_the_same_for_any_grouping(bert: str, data: Path) -> None:
    model, opened = build_model(open_source(bert)), open_data(str(data), labels=LABELS)
    with torch.inference_mode():
        expected = int((torch.from_numpy(alone(model, opened)[0]).argmax(-1).numpy() == opened.labels).sum())
    found = []
    for size in (1, 6):
        parts = SampleSet(opened, range(len(opened)), model, size, 0, True)
        search = GreedySearch(Evaluator(model, parts.batches, stream=parts.stream()), [(0, 0), (2, 1), (2, 0)])
        ranking = search.run(["acc"], 2)["acc"]
        search.evaluator.close()
        found.append((ranking.base.correct, [(step.head, step.counts.correct) for step in ranking.steps]))
    assert found[0] == found[1] and found[0][0] == expected


def max_length(path: str) -> Any:
    return open_source(path).description.preprocess["max_length"]


@pytest.mark.long
def test_max_length_travels_into_what_is_trained_or_fused(
    bert: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--max-length", "6"]
    run("prune", bert, "--method", "magnitude", "--keep", "1", "-o", "b.st")
    for name in "ac":
        run("finetune", "b.st", "--train", "data.jsonl", "--steps", "1", *short, "-o", f"{name}.st")
    run("fuse", "a.st", "c.st", "-o", "h.st")
    run("fuse", "a.st", "b.st", "--max-length", "9", "-o", "i.st")
    capsys.readouterr()
    run("fuse", "a.st", "b.st", "-o", "j.st", code=3)  # they cut texts at different lengths
    assert "hint: give all of them one length with --max-length" in capsys.readouterr().err
    assert [max_length(path) for path in ("c.st", "h.st", "i.st")] == [6, 6, 9]
    run("eval", "h.st", bert, "--test", "data.jsonl", "--max-length", "7", "-o", "e.json", "--allow-seen")
    assert read_json("e.json")["conventions"]["max_length"] == {"h": 7, "bert": 7}
    run("extract-circuit", "a.st", "--val", "data.jsonl", "--objective", "acc", "--budget", "1", "-o", "k.json")
    assert read_json("k.json")["source"]["settings"]["max_length"] == 6


def test_max_length_of_calibration_changes_no_model(bert: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, taylor = ["--max-length", "6"], ["--method", "taylor", "--data", "data.jsonl"]
    run("prune", bert, *taylor, "--keep", "2", *short, "-o", "a.st")
    run("score", bert, *taylor, *short, "-o", "s.json")
    found = read_json("a.mask.json")["source"]["settings"]["scores"]
    assert found["max_length"] == read_json("s.json")["source"]["settings"]["max_length"] == 6
    run("prune", bert, "--scores", "s.json", "--keep", "2", "-o", "b.st")
    assert (max_length("a.st"), max_length("b.st")) == (16, 16)
    for which in (["--scores", "s.json"], ["--mask", "a.mask.json"], ["--method", "random"]):
        run("prune", bert, *which, *short, "-o", "c.st", code=2)
        assert f"--max-length has no effect with {which[0]}" in capsys.readouterr().err


@pytest.mark.long
def test_bench_runs_all_rows_on_one_length(bert: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("finetune", bert, "--train", "data.jsonl", "--steps", "1", "--max-length", "6", "-o", "short.st")
    few = ["--rounds", "1", "--warmup", "0", "--batch-size", "2", "--force"]

    def rows(*options: str) -> list[tuple[dict[str, Any], bool]]:
        run("bench", bert, "short.st", *few, *options, "-o", "b.json")
        results = read_json("b.json")["results"]
        return [(row["input"], row["macs"] == results[0]["macs"]) for row in results]

    assert rows("--max-length", "5") == [({"tokens": 5}, True)] * 2
    assert "batch 2, 5 tokens, float32" in capsys.readouterr().out
    run("bench", bert, "short.st", *few, code=3)
    said = capsys.readouterr().err
    assert "- bert: 16 tokens" in said and "--max-length 6" in said
    run("bench", bert, IMAGES, *few, code=3)
    said = capsys.readouterr().err
    assert "read different inputs" in said and "- bert: 16 tokens" in said and ": 1x8x8" in said
    run("bench", IMAGES, f"large={IMAGES}".replace("img_size=8", "img_size=16"), *few, code=3)


@pytest.mark.parametrize("tokens", [1, 17, 100_000])
def test_a_max_length_that_the_model_does_not_take(
    bert: str, data: Path, capsys: pytest.CaptureFixture[str], tokens: int
) -> None:
    run("eval", bert, "--test", "data.jsonl", "--max-length", str(tokens), code=2)
    error = capsys.readouterr().err
    assert error.startswith(f"error: --max-length {tokens}: bert: ") and " to 16" in error


def test_max_length_means_nothing_to_a_model_of_images() -> None:
    with pytest.raises(UsageError, match="--max-length 8: .* reads images"):
        open_source(IMAGES, ModelOptions(max_length=8))


def test_data_of_the_wrong_kind(bert: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        "--ood-val": ["extract-circuit", bert, "--val", "data.jsonl", "--budget", "1", "--ood-val", "builtin:symbols"],
        "--val": ["finetune", bert, "--train", "data.jsonl", "--val", "builtin:symbols"],
        "--data": ["score", bert, "--method", "gate", "--data", "builtin:symbols"],
        "--test": ["eval", bert, "--test", "builtin:symbols"],
        "--ood x": ["eval", bert, "--test", "data.jsonl", "--ood", "x=builtin:symbols"],
    }
    for option, command in commands.items():
        run(*command, code=3)
        assert f"error: {option} builtin:symbols holds images, and bert reads texts" in capsys.readouterr().err
    run("eval", bert, f"pixels={IMAGES}&num_classes=5", "--test", "data.jsonl", code=3)
    assert "data.jsonl holds texts, and pixels reads images" in capsys.readouterr().err


@pytest.mark.parametrize(("outside", "warned"), [(["auto"], True), *marked_long([(["builtin:docstrings"], False)])])
def test_a_study_by_made_texts_alone_says_what_they_may_not_tell(
    bert: str, here: Path, outside: list[str], warned: bool
) -> None:
    random = np.random.default_rng(0)
    for name in ("val", "test", "ood"):
        texts = [" ".join([name, *random.choice(WORDS, 8)]) for _ in range(100)]
        rows = [{"text": text, "label": LABELS[number % 5]} for number, text in enumerate(texts)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = study_request(val="val.jsonl", ood_val=outside, test="test.jsonl", ood=["x=ood.jsonl"])
    assert (MADE_TEXTS in study_sets(settings, open_source(bert, ModelOptions()), Log()).warnings) == warned
