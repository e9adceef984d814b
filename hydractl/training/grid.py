"""One training for each of several learning rates; the best on the validation set is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hydractl.errors import NonFiniteError
from hydractl.training.checkpointing import Saved
from hydractl.training.course import LeftModel
from hydractl.training.data import TrainingData
from hydractl.training.loop import Training, TrainingContext
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions

_BEST = "chosen"
"""The prefix of the weights that the best training so far ends with, in the saved run."""
_LEFT = "left"
"""The name of the models that it leaves in the saved run, and the prefix of their weights."""

TrialResult = Mapping[str, Any]
"""What one learning rate reached, as JSON: ``lr``; ``val_accuracy`` and ``val_nll`` of the weights that the training
ends with, those of the epoch that was kept or, for instance, an average; and the outcome of its history. Of a training
that failed the figures are None, and ``error`` says why in the place of the outcome."""


@dataclass
class Trained:
    """The outcome of a training.

    Attributes:
        outcome: the learning rate ``lr`` of the training whose weights are kept, with the outcome of its history.
        grid: the result of each learning rate; empty if there was only one.
        run: the last training; its model has the weights that are kept, its ``left`` what the kept training leaves.
    """

    outcome: Mapping[str, Any]
    grid: Sequence[TrialResult]
    run: Training


def train_each(
    first: AnyModel,
    build: Callable[[], AnyModel],
    data: TrainingData,
    options: TrainOptions,
    context: TrainingContext,
    saved: Saved | None,
) -> Trained:
    """Train once with each learning rate of the options, and return the best training.

    With one learning rate that is the only training, and it is compared with nothing. With several it is the one with
    the best validation accuracy, the first of equals. All start from the same weights with the same random draws. The
    model of the returned training (``run``) has the weights that are kept.

    Args:
        first: the model to start from.
        build: returns it anew, for each learning rate after the first.
        data: the samples.
        options: the options of the training.
        context: log, checkpointing and the other processes; ``context.extra`` is replaced for each training.
        saved: the state of an unfinished run to resume, or None. Trainings that had ended are not repeated.

    Raises:
        NonFiniteError: a loss is not finite with every learning rate. If only some fail, they are left out.
        Interrupted: by a signal, after saving.
    """
    results: list[TrialResult] = []  # one for each learning rate that was tried, in order
    kept = Saved({_LEFT: []})  # the weights of the best so far, under the names that they have in the state file
    first_index = 0  # of the learning rate to begin with

    # Resume: take over the results and the best weights, and begin with the learning rate that was running.
    if saved is not None:
        results = saved.progress["results"]
        kept = Saved({_LEFT: saved.progress[_LEFT]})
        for prefix in (f"{_BEST}.", f"{_LEFT}."):
            kept.add(prefix, saved.part(prefix))
        first_index = saved.progress["candidate"]

    # Train with one learning rate after another.
    several = len(options.lr) > 1
    for index in range(first_index, len(options.lr)):
        lr = options.lr[index]

        # What is saved together with this training's own state: which rate is tried, and what the others gave.
        context.extra = Saved({"candidate": index, "results": results, **kept.progress}, kept.tensors)
        if several:
            context.log.info(f"learning rate {lr:g}, {index + 1} of {len(options.lr)}")
            context.run_log.event("candidate", lr=lr)
        model = first if index == first_index else build()
        run = Training(model, data, options, lr, context)
        if index == first_index and saved is not None:
            run.load_state_dict(saved)

        # With only one learning rate, errors are raised and nothing is compared.
        if not several:
            return Trained({"lr": lr, **run.run().outcome()}, [], run)

        # With several, one that fails is left out, but an error is raised if all have failed. `best_of` returns the
        # first of equals, so the newest result is the best only if it exceeds all earlier ones; then keep its weights.
        try:
            outcome = run.run().outcome()
            accuracy, nll = run.validate_result()
            results.append({"lr": lr, "val_accuracy": accuracy, "val_nll": nll, **outcome})
            if best_of(results) is results[-1]:
                kept = _left_by(run)
        except NonFiniteError as error:
            all_have_failed = index == len(options.lr) - 1 and not kept.tensors
            if all_have_failed:
                raise
            context.log.warn(f"learning rate {lr:g} is out: {error.message}")
            results.append({"lr": lr, "val_accuracy": None, "val_nll": None, "error": error.message})

    # Give the model of the last training the weights of the best one, which `kept` has: its final weights, and the
    # models that it has collected on its way, if it has collected any (e.g. one for each cycle of the learning rate).
    run.put(kept.part(f"{_BEST}."))
    run.model.eval()
    run.left = []
    for number, facts in enumerate(kept.progress[_LEFT]):
        weights = kept.part(f"{_LEFT}.{number}.")
        run.left.append(LeftModel(weights, **facts))
    best = best_of(results)
    context.log.info(f"learning rate {best['lr']:g} is kept: validation accuracy {best['val_accuracy']:.4f}")
    return Trained(best, results, run)


def best_of(results: Sequence[TrialResult]) -> TrialResult:
    """Return the result with the highest validation accuracy, the first of equals; at least one has not failed."""
    not_failed = [result for result in results if "error" not in result]
    return max(not_failed, key=itemgetter("val_accuracy"))


def _left_by(run: Training) -> Saved:
    """Return the weights that a finished training leaves, copied to the CPU, under their names in the state file.

    These are the final weights, and those of each model that the training has collected on its way, if it collects any.
    The JSON values of the result say, for each collected model, after how many steps it was collected.
    """
    left = [{"steps": model.steps, "facts": dict(model.facts)} for model in run.left]
    kept = Saved({_LEFT: left})
    for name, parameter in run.parameters.items():
        kept.tensors[f"{_BEST}.{name}"] = parameter.detach().to("cpu", copy=True)
    for number, model in enumerate(run.left):
        kept.add(f"{_LEFT}.{number}.", model.weights)
    return kept
