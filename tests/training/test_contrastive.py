"""The contrastive losses: open_clip's own on its own model; in parts, in processes and with heads removed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hydractl.distributed import Processes
from hydractl.errors import UsageError
from hydractl.files.checkpoint import DictTensors
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_source
from hydractl.training import losses
from hydractl.training.data import TrainingData
from hydractl.training.distribution import backward
from hydractl.training.losses import Contrastive
from hydractl.training.options import LossOptions, TrainOptions, WeightOptions
from hydractl.training.start import trainable
from tests.calls import training_request
from tests.pico_clip import clip_images, clip_tokenizer, open_clip, pico_clip, publish_clip
from tests.spread import marked_long, marked_release, spread
from tests.training.test_loop import train

WORDS = ["tin", "a large oak in the snow", "salt", "two boats", "an egg", "fog over a lake at night", "rust", "a cat"]
PAIRS = 32
DTYPES = [torch.float64, torch.float32]
TEXTS = [f"{word} number {i}" for i, word in enumerate(WORDS * (PAIRS // len(WORDS)))]

Batch = tuple[Tensor, dict[str, Tensor]]


@cache
def source_of(variant: str, folder: Path) -> Source:
    folder.mkdir()
    return open_source(str(publish_clip(pico_clip(variant), variant, folder)))


@pytest.fixture
def published(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.getbasetemp()
    return lambda variant: source_of(variant, root / f"published-{variant}")


def settings(**changes: Any) -> TrainOptions:
    values = {"train": "captions:x.csv", "loss": "contrastive", "batch_size": PAIRS, **changes}
    return training_request(**values).with_method()


def pairs(variant: str, dtype: torch.dtype, size: int = PAIRS) -> list[Batch]:
    """Batches of images and tokens."""
    pixels, tokens = clip_images(variant, PAIRS).to(dtype), clip_tokenizer(variant)(TEXTS)[:, None]
    return [(pixels[i : i + size], {"text": tokens[i : i + size]}) for i in range(0, PAIRS, size)]


def stock_gradients(model: Any, variant: str, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by open_clip's own loss; no gradient is a gradient of zero."""
    model = model.to(dtype).train()
    pixels, tokens = clip_images(variant, PAIRS).to(dtype), clip_tokenizer(variant)(TEXTS)
    found = model(pixels, tokens)
    images, texts, scale, *bias = found if isinstance(found, tuple) else found.values()
    loss = (open_clip.loss.SigLipLoss() if bias and bias[0] is not None else open_clip.ClipLoss())(
        images, texts, scale, *bias
    )
    loss.backward()
    return float(loss.detach()), {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }


def value_of(loss: Contrastive, batches: Sequence[Batch]) -> float:
    """The loss of one step; it leaves gradients."""
    return backward(loss, loss.calls(batches, []), Processes())


def gradients(
    model: HydraModel,
    batches: Sequence[Batch],
    team: Processes | None = None,
    tower: str | None = None,
    freeze: Sequence[str] = (),
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients under the names of the library: the weights are lost."""
    trainable(model, WeightOptions(tower=tower, freeze=tuple(freeze)))
    model.train()
    loss = value_of(Contrastive(model, LossOptions(loss="contrastive"), team or Processes()), batches)
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    return loss, {name: tensor.clone() for name, tensor in model.stock_tensors().items()}


FLOAT32 = 1e-5
"""A gradient adds up some hundred terms of size one, each rounded to 6e-8; the sums themselves may be small."""


def agree(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float) -> None:
    """Each tensor to ``within``, times the largest gradient of all where that is more than 1."""
    largest = max(float(t.abs().max()) for t in theirs.values() if t.numel())
    assert largest > 0.1 and ours.keys() == theirs.keys()
    apart = {n: float((ours[n] - t).abs().max()) if t.numel() else 0.0 for n, t in theirs.items()}
    assert max(apart.values()) < within * max(1.0, largest), max(apart, key=lambda n: apart[n])


def check_gradients(
    source: Source, variant: str, batches: Sequence[Batch], dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """Compare loss and gradients of one step with those of open_clip, which are returned."""
    loss, theirs = stock_gradients(pico_clip(variant), variant, dtype)
    found, ours = gradients(HydraModel(source.description, source.tensors, dtype=dtype), batches)
    exact = dtype == torch.float64
    assert found == pytest.approx(loss, rel=1e-12 if exact else 1e-6)
    agree(ours, theirs, 1e-12 if exact else FLOAT32)
    return loss, theirs


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        *spread(["clip", "clip-bias", "custom-text-first-token"], DTYPES),
        *marked_release(spread(["clip-both-ways", "clip-eos"], DTYPES)),
    ],
)
def test_loss_and_gradients_are_those_of_open_clip(variant: str, dtype: torch.dtype, published: Any) -> None:
    _, theirs = check_gradients(published(variant), variant, pairs(variant, dtype), dtype)
    assert float(theirs["logit_scale"].abs().max()) > 1e-3


@pytest.mark.parametrize("freeze", [[], ["scale"]])
def test_a_locked_image_tower_has_no_gradients_and_the_others_are_the_same(freeze: list[str], published: Any) -> None:
    source = published("clip")
    _, theirs = stock_gradients(pico_clip("clip"), "clip", torch.float64)
    for size in (PAIRS, 8):
        model = HydraModel(source.description, source.tensors, dtype=torch.float64)
        _, ours = gradients(model, pairs("clip", torch.float64, size), None, "text", freeze)
        scale = model.networks[0].get_parameter("logit_scale")
        assert scale.requires_grad == (not freeze)
        locked = {n for n in theirs if n.startswith("visual.") or (freeze and n == "logit_scale")}
        assert all(not ours[name].any() for name in locked)
        agree(
            {n: t for n, t in ours.items() if n not in locked},
            {n: t for n, t in theirs.items() if n not in locked},
            1e-12,
        )


@pytest.mark.parametrize("variant", ["clip", *marked_long(["clip-bias"])])
def test_four_batches_of_eight_are_one_of_thirty_two(variant: str, published: Any) -> None:
    source, parts = published(variant), pairs(variant, torch.float32, 8)
    loss, _ = check_gradients(source, variant, parts, torch.float32)
    # Added up, the losses of small batches are something else.
    model = HydraModel(source.description, source.tensors).train()
    alone = [value_of(Contrastive(model, LossOptions(loss="contrastive"), Processes()), [part]) for part in parts]
    assert abs(sum(alone) / 4 - loss) > 0.01


def test_random_draws_are_the_same_the_second_time(published: Any) -> None:
    """Patch dropout draws: gradients of accumulated batches are those of the very pass whose loss they are of."""
    source = published("clip")
    config = {**source.description.config}
    config["vision_cfg"] = {**config["vision_cfg"], "patch_dropout": 0.5}
    source = replace(source, description=replace(source.description, config=config))
    results = []
    for parts in (True, False):
        model = HydraModel(source.description, source.tensors, dtype=torch.float64)
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch:
            if not parts:  # keeps everything, as a plain step does
                patch.setattr(losses, "checkpoint", lambda run, *given, **_: run(*given))
            results.append(gradients(model, pairs("clip", torch.float64, 8)))
    assert results[0][0] == results[1][0]
    agree(results[0][1], results[1][1], 1e-12)
    assert losses.checkpoint is checkpoint


@pytest.mark.parametrize("variant", ["clip", "clip-bias"])
def test_large_steps_are_compared_in_parts(variant: str, published: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = losses.sigmoid_loss if variant == "clip-bias" else losses.softmax_loss
    name = plain.__name__
    monkeypatch.setattr(losses, name, lambda compare, images, texts: plain(compare, images, texts, rows=5))
    check_gradients(published(variant), variant, pairs(variant, torch.float64), torch.float64)


class Threads(Processes):
    """Processes that are threads, for what they say to each other."""

    def __init__(self, rank: int, size: int, said: dict[int, Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._said, self._barrier = rank, size, said, barrier

    def gather(self, value: Any) -> list[Any]:
        self._barrier.wait(60)
        self._said[self.rank] = value
        self._barrier.wait(60)
        return [self._said[rank] for rank in range(self.size)]

    def add(self, numbers: Tensor) -> None:
        parts = self.gather(numbers.clone())
        numbers.copy_(torch.stack(parts).sum(0))


@pytest.mark.parametrize("variant", ["clip", "clip-bias"])
def test_processes_that_share_a_step_compare_all_of_its_pairs(variant: str, published: Any) -> None:
    source = published(variant)
    loss, theirs = stock_gradients(pico_clip(variant), variant, torch.float64)
    said: dict[int, Any] = {}
    barrier, found = threading.Barrier(3), {}

    def work(rank: int) -> None:
        # Of batches of 16 and 16 pairs, as the loop divides them: 6, 5 and 5 of each.
        batches = [
            (images[rank::3], {"text": tokens["text"][rank::3]}) for images, tokens in pairs(variant, torch.float64, 16)
        ]
        model = HydraModel(source.description, source.tensors, dtype=torch.float64)
        found[rank] = gradients(model, batches, Threads(rank, 3, said, barrier))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each has a third of the loss, and so of the gradients, whose mean is taken once they are three times as much.
    assert [found[rank][0] for rank in range(3)] == [pytest.approx(loss / 3, rel=1e-12)] * 3
    agree({name: sum(found[rank][1][name] for rank in range(3)) for name in theirs}, theirs, 1e-12)


def data_of(variant: str, size: int, count: int) -> TrainingData:
    pixels, tokens = clip_images(variant, count), clip_tokenizer(variant)(TEXTS[:count])[:, None]

    def read(indices: Sequence[int], epoch: int) -> Any:
        for start in range(0, len(indices), size):
            part = list(indices[start : start + size])
            yield pixels[part], {"text": tokens[part]}

    return TrainingData(count, read)


def test_a_step_is_that_of_open_clip_and_the_factor_stays_below_a_hundred(published: Any) -> None:
    """Two epochs of 20 pairs in steps of 8: 4 pairs of each are left out. The factor starts near its bound."""
    source = published("clip")
    stock = pico_clip("clip")
    with torch.no_grad():
        stock.logit_scale.fill_(4.6)
    source = replace(source, tensors=DictTensors(stock.state_dict()))
    s = settings(batch_size=4, accumulate=2, epochs=2, lr=0.05, optimizer="sgd", momentum=0.0, clip=0.0, warmup=0,
                 schedule="constant", weight_decay=0.0, tower="text", seed=3)  # fmt: skip
    model = HydraModel(source.description, source.tensors)
    history = train(model, data_of("clip", 4, 20), s)
    assert history.steps == 4 and [e["steps"] for e in history.epochs] == [2, 4]
    pixels, tokens = clip_images("clip", 20), clip_tokenizer("clip")(TEXTS[:20])
    stock.visual.requires_grad_(False)
    stock.train()
    generator, losses, scales = torch.Generator().manual_seed(3), [], []
    for _ in range(2):
        for chunk in torch.randperm(20, generator=generator)[:16].split(8):
            stock.zero_grad()
            loss = open_clip.ClipLoss()(*stock(pixels[chunk], tokens[chunk]))
            loss.backward()
            with torch.no_grad():
                for parameter in stock.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.05 * parameter.grad
                stock.logit_scale.clamp_(0, torch.tensor(100.0).log())
            losses.append(float(loss.detach()))
            scales.append(float(stock.logit_scale.detach()))
    assert history.losses == pytest.approx(losses, rel=1e-4)
    ours = model.stock_tensors()
    assert all(torch.allclose(ours[name], t, rtol=1e-4, atol=1e-4) for name, t in stock.state_dict().items())
    assert float(ours["logit_scale"]) == pytest.approx(scales[-1], abs=1e-6)


BAD = {
    "smoothing": ({"label_smoothing": 0.1}, "label_smoothing has no effect with --loss contrastive"),
    "a new classifier": ({"reset_head": True}, "--reset-head has no effect with --loss contrastive"),
    "compiled": ({"compile": True}, "--compile has no effect with --loss contrastive"),
}


@pytest.mark.parametrize("case", BAD)
def test_settings_that_make_no_sense(case: str) -> None:
    changes, complaint = BAD[case]
    with pytest.raises(UsageError) as caught:
        settings(**changes)
    assert complaint in "\n".join([caught.value.message, *caught.value.problems])
