"""Rankings of trained models on real data: those of Algorithm 1 written plainly on timm's and transformers' own models.

Trained models have what random ones lack: heads that matter, samples that are certain, candidates that nearly tie.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVE_BY_NAME
from hydractl.circuit.samples import SampleSet, measure_certainty, undecided_first
from hydractl.circuit.search import GreedySearch, ObjectiveRanking
from hydractl.data import open_data
from hydractl.families.torchvision_operators import declare_operators
from hydractl.model.loading import build_model
from hydractl.model.source import ModelOptions, open_source
from tests.circuit import naive
from tests.pico import REAL
from tests.running import quiet as run

declare_operators()

import safetensors.torch  # noqa: E402
import timm  # noqa: E402
import transformers  # noqa: E402

HEADS = 3
VIT = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 48, "depth": 3, "num_heads": HEADS}
VIT |= {"mlp_ratio": 2, "num_classes": 10}
DIGITS, SYMBOLS = "builtin:digits/val", "builtin:symbols"

Candidate = tuple[int, int]


# --- plainly ----------------------------------------------------------------------------------------------------------


def plain_rankings(
    model: Any,
    forward: Callable[[str], torch.Tensor],
    labels: torch.Tensor,
    outputs: Sequence[Any],
    width: int,
    candidates: Sequence[Candidate],
    budget: int,
) -> dict[str, list[tuple[Candidate, Any]]]:
    """Per objective which heads go, and the bounds of the score after each.

    A trained model is another one on every machine, so that no data can be chosen of which rounding decides no sample.
    It must decide no step.

    Args:
        forward: logits of all samples of ``id`` or ``ood`` under the model as it is.
        outputs: the output projection of each site.
        width: of a head.
        candidates: (site, head) in model order.
    """
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen: dict[frozenset[Candidate], dict[str, torch.Tensor]] = {}
    data = naive.Data(["id"], [labels], ["ood"])

    def score(objective: str, removed: Sequence[Candidate]) -> Any:
        key = frozenset(removed)
        if key not in seen:
            model.load_state_dict(whole)
            with torch.no_grad():
                for site, head in removed:
                    outputs[site].weight[:, head * width : (head + 1) * width] = 0
                seen[key] = {name: forward(name) for name in ("id", "ood")}
        return naive.bounds(seen[key].__getitem__, objective, data)

    found: dict[str, list[tuple[Candidate, Any]]] = {}
    for objective in OBJECTIVE_BY_NAME:
        removed: list[Candidate] = []
        found[objective] = []
        for _ in range(budget):
            left = [head for head in candidates if head not in removed]
            scores = [score(objective, [*removed, head]) for head in left]
            best = naive.surely_highest(scores)
            removed.append(left[best])
            found[objective].append((left[best], scores[best]))
    return found


# --- hydractl ---------------------------------------------------------------------------------------------------------


def rankings(
    reference: str, data: str, ood: str, sizes: tuple[int, int], candidates: Sequence[Candidate] | None, **settings: Any
) -> dict[bool, tuple[dict[str, ObjectiveRanking], float]]:
    """With and without bounds, all objectives in one search, and the block evaluations it took."""
    budget, batch_size = settings["budget"], settings["batch_size"]
    source = open_source(reference, ModelOptions(max_length=settings.get("max_length")))
    model = build_model(source, "cpu")
    inside = open_data(data, limit=sizes[0], labels=source.description.labels or [], need_labels=True)
    sets = {"id": inside, "ood": open_data(ood, limit=sizes[1], ignore_labels=True)}
    certain = {n: measure_certainty(d, model, batch_size, 0, "msp", labelled=n == "id") for n, d in sets.items()}
    lengths = {name: dataset.lengths() for name, dataset in sets.items()}
    order = undecided_first(certain["id"], certain["ood"], list(OBJECTIVE_BY_NAME), lengths)
    parts = [SampleSet(d, order[n], model, batch_size, 0, labelled=n == "id") for n, d in sets.items()]
    heads = candidates or [(site, head) for site in range(len(model.sites)) for head in range(HEADS)]
    found = {}
    for bounds in (True, False):
        evaluator = Evaluator(model, [batch for part in parts for batch in part.batches], lanes=len(OBJECTIVE_BY_NAME))
        found[bounds] = (
            GreedySearch(evaluator, heads, bounds=bounds).run(list(OBJECTIVE_BY_NAME), budget),
            evaluator.work,
        )
        evaluator.close()
    return found


def check(
    found: dict[bool, tuple[dict[str, ObjectiveRanking], float]],
    expected: dict[str, list[tuple[Candidate, Any]]],
    samples: int,
) -> None:
    """The same heads in the same order, the same scores, and fewer evaluations with bounds."""
    for results, _ in found.values():
        for objective, ranking in results.items():
            assert ranking.removed == [head for head, _ in expected[objective]], objective
            loss = objective in ("nll", "brier")
            for step, (_, (least, most)) in zip(ranking.steps, expected[objective], strict=True):
                near, scale = (1e-4 * abs(least), samples) if loss else (1e-9, 1)
                assert least - near <= step.counts.score(objective) * scale <= most + near
                assert loss or not step.rivals
    assert found[True][1] < 0.95 * found[False][1]


# --- vision transformers ----------------------------------------------------------------------------------------------


def check_vit(path: Path) -> None:
    """The search of a ViT trained on digits, against the plain one on timm's own model."""
    model = timm.create_model("vit_tiny_patch16_224", **VIT).eval()
    model.load_state_dict(safetensors.torch.load_file(path))
    sizes = (60, 40)
    sets = {"id": open_data(DIGITS, limit=sizes[0]), "ood": open_data(SYMBOLS, limit=sizes[1])}
    images = {name: torch.stack([pixels(d[i]) for i in range(len(d))]) for name, d in sets.items()}
    labels = torch.tensor(sets["id"].labels)
    with torch.no_grad():
        assert float((model(images["id"]).argmax(-1) == labels).double().mean()) > 0.5, "it learned too little"
    expected = plain_rankings(
        model,
        lambda name: model(images[name]),
        labels,
        [block.attn.proj for block in model.blocks],
        VIT["embed_dim"] // HEADS,
        [(site, head) for site in range(VIT["depth"]) for head in range(HEADS)],
        budget=3,
    )
    check(rankings(str(path), DIGITS, SYMBOLS, sizes, None, budget=3, batch_size=8), expected, sizes[0])


def pixels(image: Image.Image) -> torch.Tensor:
    """A grey image of the model's own size as timm prepares it for a model of mean and deviation one half."""
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    return torch.from_numpy(grey / 255 - 0.5)[None] / 0.5


@pytest.mark.long
def test_a_trained_vit_on_digits(tmp_path: Path) -> None:
    """The first of five trainings whose ranking rests on no rounding: machines differ in what they train."""
    architecture = "&".join(f"{key}={value}" for key, value in {"pretrained": 0, **VIT}.items())
    training = ["--train", "builtin:digits/train", "--epochs", "5", "--batch-size", "32", "--lr", "5e-3"]
    for seed in range(5):
        path = tmp_path / f"{seed}.st"
        run("finetune", f"timm:vit_tiny_patch16_224?{architecture}", *training, "--seed", str(seed), "-o", path)
        try:
            check_vit(path)
        except naive.RestsOnRounding:
            continue
        return
    pytest.fail("the ranking rests on rounding in each of five trainings")


# --- MiniLM on SST-2 --------------------------------------------------------------------------------------------------


def texts(path: Path, count: int) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


@pytest.mark.release
def test_a_real_bert(real_data: Path) -> None:
    """Two heads of every site are candidates."""
    folder = real_data / REAL["BertForSequenceClassification"]
    paths = [real_data / "text" / name for name in ("sst2_train.jsonl.gz", "agnews_val.jsonl.gz")]
    sizes, length, budget = (10, 6), 20, 2
    candidates = [(site, head) for site in range(6) for head in (site, site + 6)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = {name: texts(path, n) for name, path, n in zip(("id", "ood"), paths, sizes, strict=True)}
    cut = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    inputs = {name: tokenizer([row["text"] for row in part], **cut) for name, part in rows.items()}
    expected = plain_rankings(
        model,
        lambda name: model(**inputs[name]).logits,
        torch.tensor([int(row["label"]) for row in rows["id"]]),
        [layer.attention.output.dense for layer in model.bert.encoder.layer],
        model.config.hidden_size // model.config.num_attention_heads,
        candidates,
        budget,
    )
    found = rankings(str(folder), *map(str, paths), sizes, candidates, budget=budget, batch_size=4, max_length=length)
    check(found, expected, sizes[0])
