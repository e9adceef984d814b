"""Fine-tune one dense or pruned model. Pruned heads stay pruned: there is nothing left of them to train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.errors import NonFiniteError, UsageError
from hydractl.fusion.runtime import HydraModel
from hydractl.log import Log
from hydractl.training.schedule import factor, warmup_steps

if TYPE_CHECKING:
    from hydractl.settings import FinetuneSettings

Batches = Callable[[list[int] | None], Iterator[tuple[Any, Tensor]]]
"""Given indices (None: all in order), batches of (inputs, labels) on the model's device."""


@dataclass
class TrainingData:
    """What the loop reads: a training set and optionally a validation set."""

    size: int
    batches: Batches
    validation: Callable[[], Iterator[tuple[Any, Tensor]]] | None = None


@dataclass
class History:
    """What happened: one entry per epoch, and the epoch whose weights were kept."""

    epochs: list[dict[str, float | int]] = field(default_factory=list)
    kept_epoch: int = 0
    steps: int = 0
    stopped_early: bool = False


def trainable(model: HydraModel, train_last: int | None, tower: str | None = None) -> list[torch.nn.Parameter]:
    """Mark what is trained: everything, or the last N blocks of each tower, its final norm and the classifier.

    Args:
        model: with one member.
        train_last: number of blocks of each tower; None: all of it.
        tower: the one tower to train; the others stay as they are. None or ``both``: all.

    Raises:
        UsageError: when a tower has fewer blocks.
    """
    model.requires_grad_(True)
    network = model.networks[0]
    frozen: tuple[str, ...] = ()
    for stages in model.family.stages(network):
        blocks = len(stages.block_paths)
        if tower not in (None, "both", stages.tower):
            frozen += stages.prefixes
        elif train_last is not None:
            if not 0 <= train_last <= blocks:
                raise UsageError(f"--train-last {train_last} is outside 0..{blocks}, the blocks of the model")
            frozen += stages.stem_prefixes + tuple(f"{p}." for p in stages.block_paths[: blocks - train_last])
    for name, parameter in network.named_parameters():
        if name.startswith(frozen):
            parameter.requires_grad_(False)
    return [p for p in model.parameters() if p.requires_grad]


def make_optimizer(parameters: list[torch.nn.Parameter], settings: FinetuneSettings) -> torch.optim.Optimizer:
    """AdamW or SGD; no weight decay on biases, norms and other vectors."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=settings.lr)


def train(model: HydraModel, data: TrainingData, settings: FinetuneSettings, log: Log) -> History:
    """Train in place; with validation data the weights of the best epoch are kept (first of equals).

    Raises:
        NonFiniteError: at the first step whose loss is not finite.
    """
    torch.manual_seed(settings.seed)
    parameters = trainable(model, settings.train_last, settings.tower)
    if not parameters:
        raise UsageError("nothing is left to train", hint="raise --train-last")
    optimizer = make_optimizer(parameters, settings)
    per_epoch = -(-data.size // settings.batch_size)
    total = settings.steps if settings.steps is not None else (settings.epochs or 0) * per_epoch
    warmup = warmup_steps(settings.warmup, total)
    order = torch.Generator().manual_seed(settings.seed)
    history = History()
    best: tuple[float, dict[str, Tensor]] | None = None
    waited = 0
    with log.progress("finetune", total, "steps") as progress:
        while history.steps < total:
            losses: list[float] = []
            indices = torch.randperm(data.size, generator=order).tolist()
            model.train()
            for inputs, labels in data.batches(indices[: (total - history.steps) * settings.batch_size]):
                rate = settings.lr * factor(history.steps, total, warmup, settings.schedule)
                losses.append(_step(model, inputs, labels, optimizer, parameters, rate, settings, history.steps))
                history.steps += 1
                progress.advance(1, f"loss {losses[-1]:.4f}")
            epoch = {"epoch": len(history.epochs) + 1, "steps": history.steps, "loss": sum(losses) / len(losses)}
            if data.validation is not None:
                epoch.update(validate(model, data.validation))
            history.epochs.append(epoch)
            log.info("epoch " + ", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{v}" for k, v in epoch.items()))
            if data.validation is None:
                continue
            if best is None or epoch["val_accuracy"] > best[0] + settings.min_delta:
                best = (float(epoch["val_accuracy"]), {k: v.detach().clone() for k, v in model.state_dict().items()})
                history.kept_epoch, waited = len(history.epochs), 0
            else:
                waited += 1
                if settings.patience is not None and waited >= settings.patience:
                    history.stopped_early = history.steps < total
                    break
    if best is not None:
        model.load_state_dict(best[1])
    else:
        history.kept_epoch = len(history.epochs)
    model.eval()
    return history


def _step(
    model: HydraModel,
    inputs: Any,
    labels: Tensor,
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    rate: float,
    settings: FinetuneSettings,
    number: int,
) -> float:
    """One update; returns the mean loss of the batch before it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    logits = model.member_logits(inputs)[0].float()
    loss = F.cross_entropy(logits, labels, label_smoothing=settings.label_smoothing)
    value = float(loss.detach())
    if value != value or value in (float("inf"), float("-inf")):
        raise NonFiniteError(
            f"the loss is {value} at step {number + 1}", hint="lower --lr, or raise --warmup; nothing was written"
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if settings.clip:
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
    optimizer.step()
    return value


@torch.inference_mode()
def validate(model: HydraModel, batches: Callable[[], Iterator[tuple[Any, Tensor]]]) -> dict[str, float]:
    """Accuracy and mean negative log-likelihood on the validation set."""
    model.eval()
    right, loss, count = 0, 0.0, 0
    for inputs, labels in batches():
        log_p = model(inputs)
        right += int((log_p.argmax(-1) == labels).sum())
        loss += float(F.nll_loss(log_p.double(), labels, reduction="sum"))
        count += len(labels)
    return {"val_accuracy": right / count, "val_nll": loss / count}
