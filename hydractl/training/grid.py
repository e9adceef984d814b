"""One training for each learning rate; the best on the validation set is kept, the first of equals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from torch import Tensor, nn

from hydractl.errors import NonFiniteError
from hydractl.training.checkpointing import Saved
from hydractl.training.data import TrainingData
from hydractl.training.distribution import whole
from hydractl.training.loop import EpochFigures, History, Training, TrainingContext, TrainingOutcome
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions

_BEST = "chosen."
"""How the names of the best weights so far begin in the saved run."""


class CandidateResult(TypedDict):
    """The result of one learning rate of several, as JSON.

    Attributes:
        lr: the learning rate.
        val_accuracy, val_nll: of the epoch that was kept; None where the training failed.
        error: why it failed; only then.
        kept_epoch, stopped_early, epochs, loss_curve: as of :class:`TrainingOutcome`, where it did not.
    """

    lr: float
    val_accuracy: float | None
    val_nll: float | None
    error: NotRequired[str]
    kept_epoch: NotRequired[int | None]
    stopped_early: NotRequired[bool]
    epochs: NotRequired[list[EpochFigures]]
    loss_curve: NotRequired[list[float]]


@dataclass
class Trained:
    """Outcome of a training.

    Attributes:
        outcome: epochs, loss and kept epoch of the training whose weights are kept.
        lr: its learning rate.
        grid: the result of each learning rate; empty where there was only one.
        run: the last training, whose model has the weights that are kept.
    """

    outcome: TrainingOutcome
    lr: float
    grid: list[CandidateResult]
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

    Returns:
        The only training, or the one with the best validation accuracy, the first of equals. The model of its ``run``
        has the weights that are kept.

    Raises:
        NonFiniteError: a loss that is not finite, with every learning rate. Of several, one that does so is out.
        Interrupted: by a signal, after saving.
    """
    candidates = len(options.lr)
    results: list[CandidateResult] = []
    weights_of_best: dict[str, Tensor] = {}
    first = 0
    if saved is not None:
        results = saved.progress["results"]
        weights_of_best = saved.part(_BEST)
        first = saved.progress["candidate"]
    for index in range(first, candidates):
        lr = options.lr[index]
        is_last = index == candidates - 1
        # What is saved within this training, beside its own state.
        context.extra = Saved({"candidate": index, "results": results}, _named_as_saved(weights_of_best))
        if candidates > 1:
            context.log.info(f"learning rate {lr:g}, {index + 1} of {candidates}")
            context.run_log.event("candidate", lr=lr)
        model, data = make()
        run = Training(model, data, options, lr, context)
        # Only the first training goes on where a run was saved, and not where that was between two trainings.
        if index == first and saved is not None and "steps" in saved.progress:
            run.load_state_dict(saved)
        if candidates == 1:
            history = run.run()
            return Trained(history.outcome(), lr, [], run)
        try:
            history = run.run()
            results.append(_result(lr, history))
            is_best = best_of(results) == len(results) - 1
            if is_best:
                weights_of_best = _copied_to_cpu(run.parameters)
        except NonFiniteError as error:
            all_have_failed = is_last and not weights_of_best
            if all_have_failed:
                raise
            context.log.warn(f"learning rate {lr:g} is out: {error.message}")
            results.append({"lr": lr, "val_accuracy": None, "val_nll": None, "error": error.message})
        if not is_last and context.team.rank == 0:
            progress = {"candidate": index + 1, "results": results, "log": context.run_log.position()}
            context.checkpointing.save(Saved(progress, _named_as_saved(weights_of_best)))

    # The model of the last training takes the weights of the best one.
    run.put(weights_of_best)
    run.model.eval()
    best = results[best_of(results)]
    context.log.info(f"learning rate {best['lr']:g} is kept: validation accuracy {best['val_accuracy']:.4f}")
    outcome: TrainingOutcome = {
        "kept_epoch": best["kept_epoch"],
        "stopped_early": best["stopped_early"],
        "epochs": best["epochs"],
        "loss_curve": best["loss_curve"],
    }
    return Trained(outcome, best["lr"], results, run)


def best_of(results: Sequence[CandidateResult]) -> int:
    """Return the index of the highest validation accuracy, the first of equals; never of a training that failed.

    Args:
        results: at least one of a training that did not fail.
    """
    accuracies = []
    for result in results:
        accuracy = result["val_accuracy"]
        if accuracy is None:  # it failed
            accuracy = -1.0
        accuracies.append(accuracy)
    return accuracies.index(max(accuracies))


def _result(lr: float, history: History) -> CandidateResult:
    """Return the result of a training that did not fail: how it went, and the accuracy of the epoch that was kept."""
    assert history.kept_epoch is not None  # several learning rates have no snapshots
    kept = history.epochs[history.kept_epoch - 1]
    outcome = history.outcome()
    return {
        "lr": lr,
        "val_accuracy": kept["val_accuracy"],
        "val_nll": kept["val_nll"],
        "kept_epoch": outcome["kept_epoch"],
        "stopped_early": outcome["stopped_early"],
        "epochs": outcome["epochs"],
        "loss_curve": outcome["loss_curve"],
    }


def _copied_to_cpu(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return copies of whole parameters, which may be divided among processes, on the CPU."""
    copies = {}
    for name, parameter in parameters.items():
        weights = whole(parameter)
        copies[name] = weights.to("cpu", copy=True)
    return copies


def _named_as_saved(weights_of_best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the names that they have in the saved run."""
    saved = {}
    for name, tensor in weights_of_best.items():
        saved[f"{_BEST}{name}"] = tensor
    return saved
