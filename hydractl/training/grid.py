"""One training for each learning rate; the best on the validation set is kept, the first of equals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hydractl.errors import NonFiniteError
from hydractl.training.checkpointing import Saved
from hydractl.training.data import TrainingData
from hydractl.training.distribution import whole
from hydractl.training.loop import History, Training, TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions


@dataclass
class Trained:
    """Outcome of a training.

    Attributes:
        outcome: epochs, loss and kept epoch of the training whose weights are kept (:meth:`History.outcome`).
        lr: its learning rate.
        grid: the result of each learning rate; empty where there was only one.
        run: the last training, whose model has the weights that are kept.
    """

    outcome: dict[str, Any]
    lr: float
    grid: list[dict[str, Any]]
    run: Training


def train_each(
    make: Callable[[], tuple[AnyModel, TrainingData]],
    options: TrainOptions,
    context: TrainingContext,
    saved: Saved | None,
) -> Trained:
    """Train with each learning rate, each from the same start and with the same draws.

    Args:
        make: the model to start from, made anew for each, and its data.
        options: of the training.
        context: log, checkpointing and the other processes.
        saved: where an earlier run was left; what it finished is not trained again.

    Raises:
        NonFiniteError: a loss that is not finite, with every learning rate. Of several, one that does so is out.
        Interrupted: by a signal, after saving.
    """
    results: list[dict[str, Any]] = []
    chosen: dict[str, Tensor] = {}
    first = 0
    if saved is not None:
        results = saved.progress["results"]
        chosen = saved.part("chosen.")
        first = saved.progress["candidate"]
    for index in range(first, len(options.lr)):
        context.extra = Saved({"candidate": index, "results": results}, _named(chosen))
        lr = options.lr[index]
        if len(options.lr) > 1:
            context.log.info(f"learning rate {lr:g}, {index + 1} of {len(options.lr)}")
            context.run_log.event("candidate", lr=lr)
        model, data = make()
        run = Training(model, data, options, lr, context)
        if saved is not None and "steps" in saved.progress:
            run.load_state_dict(saved)
        saved = None
        if len(options.lr) == 1:
            return Trained(run.run().outcome(), lr, [], run)
        try:
            results.append(_result(lr, run.run()))
            if best_of(results) == len(results) - 1:
                chosen = {name: whole(p).to("cpu", copy=True) for name, p in run.parameters.items()}
        except NonFiniteError as error:
            if index == len(options.lr) - 1 and not chosen:
                raise
            context.log.warn(f"learning rate {lr:g} is out: {error.message}")
            results.append({"lr": lr, "val_accuracy": None, "val_nll": None, "error": error.message})
        if index < len(options.lr) - 1 and not context.team.rank:
            progress = {"candidate": index + 1, "results": results, "log": context.run_log.position()}
            context.checkpointing.save(Saved(progress, _named(chosen)))
    run.put(chosen)
    run.model.eval()
    best = results[best_of(results)]
    context.log.info(f"learning rate {best['lr']:g} is kept: validation accuracy {best['val_accuracy']:.4f}")
    return Trained(best, best["lr"], results, run)


def best_of(results: list[dict[str, Any]]) -> int:
    """Index of the highest validation accuracy, the first of equals; one that failed is never it."""
    accuracies = []
    for result in results:
        has_failed = result["val_accuracy"] is None
        accuracies.append(-1.0 if has_failed else result["val_accuracy"])
    return accuracies.index(max(accuracies))


def _result(lr: float, history: History) -> dict[str, Any]:
    assert history.kept_epoch is not None  # several learning rates have no snapshots
    kept = history.epochs[history.kept_epoch - 1]
    return {"lr": lr, "val_accuracy": kept["val_accuracy"], "val_nll": kept["val_nll"], **history.outcome()}


def _named(chosen: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"chosen.{name}": tensor for name, tensor in chosen.items()}
