"""Texts through the command line: scores, circuits, folders and a whole chain, against transformers' own models.

What is expected is computed here from the library's model and tokenizer and from the paper's definitions alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hydractl.families.torchvision_operators import declare_operators
from tests.pico import WORDS, close, images, logits, named, publish, removed_heads, stock, zero_columns
from tests.running import json_lines, link_files, read_json
from tests.running import quiet as run
from tests.spread import marked_long

declare_operators()

import transformers  # noqa: E402

LABELS = ["awful", "bad", "fair", "good", "great"]
SITES = [f"bert.encoder.layer.{layer}.attention" for layer in range(3)]
HEADS = [(site, head) for site in SITES for head in range(3)]


def sentences(random: np.random.Generator, words: Sequence[str], count: int) -> list[str]:
    """Different texts of 1 to 11 tokens, in no order of length: most of them are padded in any batch."""
    lengths = random.permutation(np.arange(count) % 11 + 1)
    texts = [" ".join(random.choice(words, int(length))) for length in lengths]
    assert len(set(texts)) > count // 2
    return texts


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bert``, a published folder, and data: ``id.jsonl``, ``val.csv``, ``pairs.tsv`` (labelled), ``ood.jsonl``."""
    folder = tmp_path_factory.mktemp("text")
    publish(named(stock("bert"), LABELS), "bert", folder / "bert")
    random = np.random.default_rng(0)
    known, strange = WORDS[:6], WORDS[6:]
    rows = [{"text": t, "label": LABELS[i % 5]} for i, t in enumerate(sentences(random, known, 23))]
    (folder / "id.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = [f"{t},{i * 3 % 5}\n" for i, t in enumerate(sentences(random, known, 9))]
    (folder / "val.csv").write_text("text,label\n" + "".join(fields))
    first = sentences(random, known, 17)
    second = sentences(random, strange, 17)
    labels = [LABELS[i * 2 % 5] for i in range(17)]
    fields = [f"{label}\t{a}\t{b}\n" for label, a, b in zip(labels, first, second, strict=True)]
    (folder / "pairs.tsv").write_text("label\ttext_a\ttext_b\n" + "".join(fields))
    outside = [{"sentence": text} for text in sentences(random, strange, 13)]
    (folder / "ood.jsonl").write_text("".join(json.dumps(row) + "\n" for row in outside))
    return folder


@pytest.fixture(autouse=True)
def inside(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a working directory of its own that sees the files of the fixture."""
    monkeypatch.chdir(tmp_path)
    link_files(chain, tmp_path)


def labelled() -> tuple[list[str], torch.Tensor]:
    rows = json_lines("id.jsonl")
    return [row["text"] for row in rows], torch.tensor([LABELS.index(row["label"]) for row in rows])


def unlabelled() -> list[str]:
    return [json.loads(line)["sentence"] for line in Path("ood.jsonl").read_text().splitlines()]


def tokens(folder: str | Path, *columns: Sequence[str]) -> Any:
    """The library's own batch, all of it padded to the longest."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batch = tokenizer(*map(list, columns), padding=True, truncation=True, return_tensors="pt")
    assert bool((batch["attention_mask"] == 0).any())
    return dict(batch)


def theirs(folder: str | Path, kind: Any = transformers.AutoModelForSequenceClassification) -> Any:
    """The library's own model of a folder, in fp32; nothing may be missing from it or left over."""
    model, report = kind.from_pretrained(folder, local_files_only=True, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values())
    return model.eval()


# --- scores -----------------------------------------------------------------------------------------------------------


def naive_taylor(model: Any, site: str) -> list[float]:
    """The paper's D.1.1 word for word: autograd on the library's model, mean loss over the whole sample."""
    texts, labels = labelled()
    model.zero_grad()
    F.cross_entropy(model(**tokens("bert", texts)).logits, labels).backward()
    attention = model.get_submodule(site).self
    scores = []
    for head in range(3):
        rows = slice(head * 8, (head + 1) * 8)
        total = 0.0
        for name in ("query", "key", "value"):
            weight = getattr(attention, name).weight
            total += float((weight.detach()[rows] * weight.grad[rows]).abs().mean())
        scores.append(total / 3)
    return scores


def test_sequential_taylor_scores_the_model_as_pruned_so_far() -> None:
    how = ["--method", "taylor", "--data", "id.jsonl", "--order", "sequential", "--keep", "1"]
    run("score", "bert", *how, "--batch-size", "6", "-o", "scores.json")
    run("prune", "bert", *how, "--batch-size", "6", "-o", "a.st")
    found, kept = read_json("scores.json")["sites"], read_json("a.mask.json")["sites"]
    removed: list[tuple[str, int]] = []
    for site in SITES:
        expected = naive_taylor(zero_columns(stock("bert"), removed), site)
        assert found[site] == pytest.approx(expected, rel=1e-4)
        order = sorted(range(3), key=lambda head: expected[head])
        removed += [(site, head) for head in order[:2]]
        assert kept[site]["kept"] == order[2:]
    one_shot = naive_taylor(stock("bert"), SITES[2])
    assert found[SITES[2]] != pytest.approx(one_shot, rel=1e-2)  # or the order would make no difference here


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["hf-vit", *marked_long(["hf-deit", "hf-dinov2-registers"])])
@torch.no_grad()
def test_a_folder_is_the_library_s_own_model_with_zeroed_heads(variant: str, capsys: Any) -> None:
    published = stock(variant)
    publish(published, variant, Path("in"))
    run("prune", "in", "--method", "random", "--keep", "2", "-o", "pruned/")
    library = theirs("pruned", transformers.AutoModelForImageClassification)
    assert library.num_parameters() == published.num_parameters()
    kept = {path: site["kept"] for path, site in read_json("pruned/hydractl.mask.json")["sites"].items()}
    reference = zero_columns(published, removed_heads(kept))
    close(logits(library, images()), logits(reference, images()))
    run("prune", "pruned", "--method", "magnitude", "--keep", "1", "-o", "again.st")  # its heads have their old numbers
    for path, site in read_json("again.mask.json")["sites"].items():
        assert set(site["kept"]) < set(kept[path])
    run("prune", "in", "--method", "random", "--keep", "2", "--layout", "sliced", "-o", "x/", code=2)
    assert "a folder has the shapes of all heads" in capsys.readouterr().err


# --- all verbs --------------------------------------------------------------------------------------------------------


def by_hand(masks: dict[str, str], *columns: Sequence[str]) -> np.ndarray:
    """softmax per member, then the mean: of the library's own models of zeroed folders, in float64."""
    members = []
    for name, mask in masks.items():
        if not Path(f"{name}-folder").exists():
            run("prune", name, "--mask", mask, "--layout", "zeroed", "-o", f"{name}-folder/")
        with torch.no_grad():
            found = theirs(f"{name}-folder")(**tokens(f"{name}-folder", *columns)).logits
        members.append(found.double().softmax(-1))
    return torch.stack(members).mean(0).numpy()


@pytest.mark.long
def test_the_whole_chain_on_texts() -> None:
    data, search = ["--data", "id.jsonl"], ["--val", "id.jsonl", "--ood-val", "ood.jsonl"]
    run("score", "bert", "--method", "gate", *data, "-o", "gate.json")
    run("prune", "bert", "--scores", "gate.json", "--keep", "2", "-o", "a.st")
    run("prune", "bert", "--method", "taylor", "--keep", "2", *data, "--samples", "8", "--seed", "1", "-o", "b.st")
    run("extract-circuit", "bert", *search, "--objective", "avg", "--budget", "3", "-o", "c.json")
    run("prune", "bert", "--circuit", "c.json", "-o", "c.st")
    train = ["--train", "id.jsonl", "--val", "val.csv", "--epochs", "2", "--lr", "1e-2", "--batch-size", "8"]
    run("finetune", "b.st", *train, "-o", "t.st")
    masks = {"a.st": "a.mask.json", "t.st": "b.mask.json", "c.st": "c.mask.json"}
    run("fuse", *masks, "--merge", "none", "-o", "hydra.st")
    run("fuse", *masks, "-o", "merged.st")
    test = ["--test", "pairs.tsv", "--ood", "words:far=ood.jsonl", "--ood", "val:near=val.csv"]
    models = ["hydra.st", f"deep={'+'.join(masks)}", "merged.st", "single=bert"]
    run("eval", *models, *test, "--batch-size", "5", "--allow-seen", "-o", "eval.json")
    run("predict", "hydra.st", "pairs.tsv", "--batch-size", "5", "-o", "p.hydra.jsonl")

    lines = [line.split("\t") for line in Path("pairs.tsv").read_text().splitlines()[1:]]
    labels = np.array([LABELS.index(label) for label, _, _ in lines])
    p = by_hand(masks, *([line[i] for line in lines] for i in (1, 2)))
    outside = by_hand(masks, unlabelled())
    rows = {row["name"]: row for row in read_json("eval.json")["models"]}
    for name in ("hydra", "deep"):
        found = rows[name]["id"]
        assert found["n"] == 17 and found["accuracy"] == (p.argmax(-1) == labels).mean()
        assert found["nll"] == pytest.approx(-np.log(p[np.arange(17), labels]).mean(), rel=1e-4)
        squares = (p - np.eye(5)[labels]) ** 2
        assert found["brier"] == pytest.approx(squares.sum(-1).mean(), rel=1e-4)
        of_id = p.max(-1)[:, None]
        of_ood = outside.max(-1)[None]
        auroc = (of_ood < of_id).mean() + (of_ood == of_id).mean() / 2  # over all pairs
        assert rows[name]["ood"]["words"]["auroc"] == pytest.approx(auroc, abs=1e-9)
    written = json_lines("p.hydra.jsonl")
    assert [line["id"] for line in written] == [f"pairs.tsv#{i}" for i in range(17)]
    assert [line["predicted"] for line in written] == [LABELS[i] for i in p.argmax(-1)]
    assert [line["confidence"] for line in written] == pytest.approx(p.max(-1), rel=1e-4)
    # Fine-tuning changed the MLPs of one member, so averaging them changes what the ensemble says.
    assert rows["merged"]["id"]["nll"] != pytest.approx(rows["hydra"]["id"]["nll"], rel=1e-3)
