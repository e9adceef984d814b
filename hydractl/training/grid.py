"""One training for each of several learning rates; the best on the validation set is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from torch import Tensor, nn

from hydractl.errors import NonFiniteError
from hydractl.training.checkpointing import Saved
from hydractl.training.course import LeftModel
from hydractl.training.data import TrainingData
from hydractl.training.loop import EpochFigures, Training, TrainingContext, TrainingOutcome
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions

_BEST = "chosen"
"""The name of the best training so far in the saved run, and the prefix of the weights that it ends with."""
_LEFT = "left"
"""The prefix of the weights of the models that it leaves, in the saved run."""


class CandidateResult(TypedDict):
    """The result of one of several learning rates, as JSON.

    Attributes:
        lr: the learning rate.
        val_accuracy, val_nll: the validation of the weights that the training ends with, those of the epoch that was
            kept or, for instance, an average; None if the training failed.
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
        models: the models that the kept training leaves if these are several; empty for one.
        facts: what the provenance of one model says of its course, beside what decided the training.
    """

    outcome: TrainingOutcome
    lr: float
    grid: list[CandidateResult]
    run: Training
    models: Sequence[LeftModel]
    facts: Mapping[str, int]


@dataclass(frozen=True)
class _Kept:
    """What is kept of the best training so far, on the CPU.

    Attributes:
        weights: that it ends with, by name; empty before any training has ended.
        models, facts: as of :class:`Trained`.
    """

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    models: Sequence[LeftModel] = ()
    facts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: Training) -> _Kept:
        """Return what is kept of a training that has ended."""
        weights = _copied_to_cpu(run.parameters)
        return cls(weights, run.course.left_models(), run.course.facts())

    @classmethod
    def of_saved(cls, saved: Saved) -> _Kept:
        """Return what was saved by :meth:`as_saved`."""
        record = saved.progress.get(_BEST, {"models": [], "facts": {}})  # older versions had nothing but weights
        models = []
        for place, model in enumerate(record["models"]):
            weights = saved.part(f"{_LEFT}.{place}.")
            models.append(LeftModel(weights, model["steps"], model["facts"]))
        return cls(saved.part(f"{_BEST}."), models, record["facts"])

    def as_saved(self) -> Saved:
        """Return the same under the names that it has in the saved run."""
        tensors = {}
        for name, tensor in self.weights.items():
            tensors[f"{_BEST}.{name}"] = tensor
        models: list[dict[str, Any]] = []
        for place, model in enumerate(self.models):
            models.append({"steps": model.steps, "facts": dict(model.facts)})
            for name, tensor in model.weights.items():
                tensors[f"{_LEFT}.{place}.{name}"] = tensor
        return Saved({_BEST: {"models": models, "facts": dict(self.facts)}}, tensors)


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
    kept = _Kept()
    first_index = 0

    # Resume: take over what is known, and begin with the training that was running.
    if saved is not None:
        results = saved.progress["results"]
        kept = _Kept.of_saved(saved)
        first_index = saved.progress["candidate"]

    # Train with one learning rate after another.
    for index in range(first_index, rates):
        lr = options.lr[index]
        is_last = index == rates - 1

        # State to save together with this training's own state: which rate is tried, and what the others gave.
        before = kept.as_saved()
        context.extra = Saved({"candidate": index, "results": results, **before.progress}, before.tensors)
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
            return Trained(history.outcome(), lr, [], run, run.course.left_models(), run.course.facts())

        # With several, one that fails is left out, and what the best so far leaves is kept on the CPU.
        try:
            run.run()
            results.append(_result(run))
            is_best = best_of(results) == len(results) - 1
            if is_best:
                kept = _Kept.of_run(run)
        except NonFiniteError as error:
            all_have_failed = is_last and not kept.weights
            if all_have_failed:
                raise
            context.log.warn(f"learning rate {lr:g} is out: {error.message}")
            results.append({"lr": lr, "val_accuracy": None, "val_nll": None, "error": error.message})

        # Save between two trainings: the next one begins anew on a resume.
        if not is_last and context.team.rank == 0:
            now = kept.as_saved()
            progress = {"candidate": index + 1, "results": results, "log": context.run_log.position(), **now.progress}
            context.checkpointing.save(Saved(progress, now.tensors))

    # Give the model of the last training the weights of the best one.
    run.put(kept.weights)
    run.model.eval()
    best = results[best_of(results)]
    context.log.info(f"learning rate {best['lr']:g} is kept: validation accuracy {best['val_accuracy']:.4f}")
    outcome: TrainingOutcome = {
        "kept_epoch": best["kept_epoch"],
        "stopped_early": best["stopped_early"],
        "epochs": best["epochs"],
        "loss_curve": best["loss_curve"],
    }
    return Trained(outcome, best["lr"], results, run, kept.models, kept.facts)


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


def _result(run: Training) -> CandidateResult:
    """Return the result of a training that did not fail: its course, and the validation of the weights it ends with.

    Raises:
        NonFiniteError: the validation loss of these weights is not finite.
        Interrupted: by a signal, after saving.
    """
    figures = run.validate_result()
    outcome = run.history.outcome()
    return {
        "lr": run.lr,
        "val_accuracy": figures["val_accuracy"],
        "val_nll": figures["val_nll"],
        "kept_epoch": outcome["kept_epoch"],
        "stopped_early": outcome["stopped_early"],
        "epochs": outcome["epochs"],
        "loss_curve": outcome["loss_curve"],
    }


def _copied_to_cpu(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return copies on the CPU of parameters."""
    copies = {}
    for name, parameter in parameters.items():
        copies[name] = parameter.detach().to("cpu", copy=True)
    return copies
