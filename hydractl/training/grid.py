"""One training for each of several learning rates; the best on the validation set is kept."""

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
"""The prefix of the names of the best weights so far in the saved run."""


class CandidateResult(TypedDict):
    """The result of one of several learning rates, as JSON.

    Attributes:
        lr: the learning rate.
        val_accuracy, val_nll: the validation of the epoch that was kept; None if the training failed.
        error: why the training failed; only if it did.
        kept_epoch, stopped_early, epochs, loss_curve: as in :class:`TrainingOutcome`; only if it did not fail.
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
    """The outcome of a training.

    Attributes:
        outcome: epochs, loss and kept epoch of the training whose weights are kept.
        lr: the learning rate of that training.
        grid: the result of each learning rate; empty if there was only one.
        run: the last training; its model has the weights that are kept.
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
    """Train with each learning rate, each time from the same start and with the same random draws.

    Args:
        make: returns the model to start from and its data; called anew for each learning rate.
        options: the options of the training.
        context: log, checkpointing and the other processes; ``context.extra`` is replaced for each training.
        saved: the state of an earlier run to resume; trainings that it finished are not repeated.

    Returns:
        The only training, or the one with the best validation accuracy, the first of equals. The model of its ``run``
        has the weights that are kept.

    Raises:
        NonFiniteError: a loss is not finite with every learning rate. If only some fail, they are left out.
        Interrupted: by a signal, after saving.
    """
    rates = len(options.lr)
    results: list[CandidateResult] = []
    weights_of_best: dict[str, Tensor] = {}
    first_index = 0

    # Resume: take over what is known, and begin with the training that was running.
    if saved is not None:
        results = saved.progress["results"]
        weights_of_best = saved.part(_BEST)
        first_index = saved.progress["candidate"]

    # Train with one learning rate after another.
    for index in range(first_index, rates):
        lr = options.lr[index]
        is_last = index == rates - 1

        # State to save together with this training's own state: which rate is tried, and what the others gave.
        context.extra = Saved({"candidate": index, "results": results}, _named_as_saved(weights_of_best))
        if rates > 1:
            context.log.info(f"learning rate {lr:g}, {index + 1} of {rates}")
            context.run_log.event("candidate", lr=lr)
        model, data = make()
        run = Training(model, data, options, lr, context)

        # Restore the state of the training that was running; there is none if the run was saved between two trainings.
        if index == first_index and saved is not None and "steps" in saved.progress:
            run.load_state_dict(saved)

        # With one learning rate, errors are raised and nothing is compared.
        if rates == 1:
            history = run.run()
            return Trained(history.outcome(), lr, [], run)

        # With several, one that fails is left out, and the best weights so far are kept on the CPU.
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

        # Save between two trainings: the next one begins anew on a resume.
        if not is_last and context.team.rank == 0:
            progress = {"candidate": index + 1, "results": results, "log": context.run_log.position()}
            context.checkpointing.save(Saved(progress, _named_as_saved(weights_of_best)))

    # Give the model of the last training the weights of the best one.
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
    """Return the index of the highest validation accuracy, the first of equals, ignoring trainings that failed.

    Args:
        results: results of which at least one did not fail.
    """
    accuracies = []
    for result in results:
        accuracy = result["val_accuracy"]
        if accuracy is None:  # the training failed
            accuracy = -1.0
        accuracies.append(accuracy)
    return accuracies.index(max(accuracies))


def _result(lr: float, history: History) -> CandidateResult:
    """Return the result of a training that did not fail: its course, and the validation of the kept epoch."""
    assert history.kept_epoch is not None  # None only with methods like snapshots, which take one learning rate
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
    """Return copies on the CPU of whole parameters, which may be divided among processes."""
    copies = {}
    for name, parameter in parameters.items():
        weights = whole(parameter)
        copies[name] = weights.to("cpu", copy=True)
    return copies


def _named_as_saved(weights_of_best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by the names that they have in the saved run."""
    saved = {}
    for name, tensor in weights_of_best.items():
        saved[f"{_BEST}{name}"] = tensor
    return saved
