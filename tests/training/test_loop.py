"""The training loop against a plain torch loop on timm's own model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydractl.errors import UsageError
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.training.course import rate_share, warmup_steps
from hydractl.training.data import TrainingData
from hydractl.training.loop import History, Training, TrainingContext
from hydractl.training.options import TrainOptions, WeightOptions
from hydractl.training.start import adapt, trainable
from tests.calls import training_request
from tests.pico import images, mask_of, prune_source, shared_stock, source_of, stock, zero_columns
from tests.spread import spread

SIZE, BATCH = 20, 8


def settings(**changes: Any) -> TrainOptions:
    return training_request(**{"batch_size": BATCH, "warmup": 2, "seed": 3, **changes}).with_method()


def prepare(model: HydraModel, s: TrainOptions) -> None:
    """Put an adapter on the model, as the verb does."""
    adapt(model, s)


def train(model: HydraModel, data: TrainingData, s: TrainOptions) -> History:
    """Train in place, as the verb does."""
    return Training(model, data, s, s.lr[0], TrainingContext(Log())).run()


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    return images(SIZE, seed=8), torch.randint(0, 5, (SIZE,), generator=torch.Generator().manual_seed(9))


def training_data(validation: bool = False, size: int = BATCH) -> TrainingData:
    x, y = sample()

    def read(indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, torch.Tensor]]:
        for chunk in torch.tensor(indices).split(size):
            yield x[chunk], y[chunk]

    return TrainingData(SIZE, read, (lambda: read(range(SIZE), 0)) if validation else None)


def batches(steps: int, seed: int = 3) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of a training with this seed, in the order of its steps."""
    x, y = sample()
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        for chunk in torch.randperm(SIZE, generator=generator).split(BATCH)[: steps - done]:
            yield x[chunk], y[chunk]
            done += 1


def plain_loop(model: Any, s: TrainOptions, rates: list[float]) -> None:
    """What anyone would write: torch's optimizers, clipping and loss on the stock model."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": s.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if s.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=s.lr[0], momentum=s.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=s.lr[0])
    for (x, y), rate in zip(batches(len(rates), s.seed), rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(model(x), y, label_smoothing=s.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()


@pytest.mark.parametrize(("schedule", "optimizer"), spread(["cosine", "linear", "constant"], ["adamw", "sgd"]))
def test_training_equals_a_plain_loop_on_the_stock_model(schedule: str, optimizer: str) -> None:
    reference = stock("layer-scale")
    source = source_of(reference, "layer-scale")
    more = {"momentum": 0.8} if optimizer == "sgd" else {}
    s = settings(
        optimizer=optimizer,
        schedule=schedule,
        steps=5,
        lr=1e-2,
        label_smoothing=0.1,
        clip=0.5,
        weight_decay=0.1,
        **more,
    )
    model = HydraModel(source.description, source.tensors)
    train(model, training_data(), s)
    after = {
        "constant": [1.0, 1.0, 1.0],
        "linear": [1.0, 2 / 3, 1 / 3],
        "cosine": [1e-5 + (1 - 1e-5) * 0.5 * (1 + math.cos(math.pi * k / 3)) for k in range(3)],
    }[schedule]
    plain_loop(reference, s, [1e-2 * f for f in (0.5, 1.0, *after)])
    trained = model.stock_tensors()
    for name, tensor in reference.state_dict().items():
        pairs = [(trained[name], tensor)]
        if name.endswith("qkv.bias"):
            # The bias of the keys changes nothing (softmax does not see what all keys have in common), so its gradient
            # is rounding, which AdamW scales up.
            queries, _, values = zip(trained[name].chunk(3), tensor.chunk(3), strict=True)
            pairs = [queries, values]
        assert all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5) for ours, theirs in pairs), name


def test_accumulated_batches_are_one_batch() -> None:
    """20 samples: steps of 8, 8 and 4, the last of them a single batch of 4."""
    trained = []
    for size, count in ((8, 1), (4, 2)):
        source = source_of(shared_stock("class-token"), "class-token")
        model = HydraModel(source.description, source.tensors)
        s = settings(batch_size=size, accumulate=count, epochs=2, lr=0.02, optimizer="sgd", label_smoothing=0.1)
        history = train(model, training_data(size=size), s)
        assert history.steps == 6
        trained.append((model.stock_tensors(), history.losses))
    (one, losses), (other, same_losses) = trained
    assert losses == pytest.approx(same_losses, rel=1e-5)
    assert all(torch.allclose(tensor, other[name], atol=1e-5) for name, tensor in one.items())


def test_a_pruned_model_trains_as_the_stock_model_with_dead_heads() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    pruned = prune_source(source, mask_of(source, [[0, 2], [], [1]]))
    s = settings(
        optimizer="sgd", steps=3, lr=1e-2, clip=0.0, weight_decay=0.0, momentum=0.0, warmup=0, schedule="constant"
    )
    model = HydraModel(pruned.description, pruned.tensors)
    train(model, training_data(), s)
    removed = pruned.description.mask.removed_heads
    stock_model = zero_columns(reference, removed)
    for x, y in batches(3, s.seed):
        stock_model.zero_grad()
        F.cross_entropy(stock_model(x), y).backward()
        with torch.no_grad():
            for parameter in stock_model.parameters():
                parameter -= 1e-2 * parameter.grad
        stock_model = zero_columns(stock_model, removed)  # pruned heads stay pruned
    x, _ = sample()
    with torch.no_grad():
        assert torch.allclose(model.member_logits(x)[0], stock_model(x), rtol=1e-3, atol=1e-4)


def test_the_best_epoch_is_kept_and_patience_ends_the_training() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    # A learning rate of nearly nothing: no epoch is better than the first.
    s = settings(epochs=6, lr=1e-12, patience=2, val="v.npz")
    history = train(model, training_data(validation=True), s)
    assert len(history.epochs) == 3
    assert history.kept_epoch == 1
    assert history.stopped_early
    before = HydraModel(source.description, source.tensors).stock_tensors()
    after = model.stock_tensors()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_validation_reports_accuracy_and_nll() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    history = train(model, training_data(validation=True), settings(epochs=2, lr=1e-3))
    kept = history.epochs[history.kept_epoch - 1]
    x, y = sample()
    with torch.no_grad():
        log_p = model(x)
    assert kept["val_accuracy"] == pytest.approx(float((log_p.argmax(-1) == y).float().mean()))
    assert kept["val_nll"] == pytest.approx(float(F.nll_loss(log_p, y)), rel=1e-5)


def test_what_is_frozen() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    trainable(model, WeightOptions(train_last=1))
    names = {n for n, p in model.networks[0].named_parameters() if p.requires_grad}
    assert all(n.startswith(("blocks.2.", "norm.", "head.")) for n in names)
    assert any(n.startswith("blocks.2.") for n in names)
    with pytest.raises(UsageError, match=r"--train-last 4 is outside 0\.\.3"):
        trainable(model, WeightOptions(train_last=4))


def test_the_schedule() -> None:
    assert warmup_steps(0.1, 95) == 10
    assert warmup_steps(7, 95) == 7
    assert warmup_steps(200, 95) == 95
    assert [rate_share(s, 10, 4, "constant") for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rate_share(10, 10, 4, "cosine") == pytest.approx(1e-5)
    assert rate_share(7, 10, 4, "linear") == pytest.approx(0.5)
