"""Fine-tuning of one dense or pruned model. Pruned heads stay removed: there is nothing left of them to train."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.distributed import Processes
from hydractl.errors import HydraError, Interrupted, NonFiniteError
from hydractl.files.model_records import EpochRecord
from hydractl.files.training_history import epoch_text
from hydractl.log import Log, Progress
from hydractl.training.checkpointing import (
    Interruptions,
    Saved,
    StateFile,
    load_optimizer,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from hydractl.training.course import LeftModel
from hydractl.training.data import TrainingData, ValidationBatches
from hydractl.training.distribution import backward, shared
from hydractl.training.losses import make_loss
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions
from hydractl.training.run_log import RunLog
from hydractl.training.start import kept_weights, make_optimizer, trainable

_SIGNALS_APART_S = 0.5
"""Seconds to wait for a signal that has reached another process of this run first."""
_LOWER = "lower --lr, or raise warmup, a key of hydra.yaml"
_POINTS = 60
"""The most points of a loss curve."""
_COUNTERS = ("epochs", "kept_epoch", "stopped_early", "position", "waited", "best")
"""The attributes of :class:`History` that are saved as JSON."""


@dataclass
class History:
    """The course of a training so far.

    Attributes:
        epochs: the fields of :class:`EpochRecord` for each epoch; without validation, without its figures.
        kept_epoch: the epoch whose weights were kept; None if the weights are of several epochs, or an average.
        losses: the loss of each step.
        stopped_early: whether the training stopped because the validation accuracy did not improve.
        position: how many samples of the current epoch are done.
        waited: how many epochs have passed since the best one.
        best: the best validation accuracy; None before the first.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int | None = 0
    losses: list[float] = field(default_factory=list)
    stopped_early: bool = False
    position: int = 0
    waited: int = 0
    best: float | None = None

    def loss_curve(self) -> list[float]:
        """Return the loss over the steps in at most 60 points, e.g. of 120 steps the mean of every two neighbours."""
        count = len(self.losses)
        points = min(count, _POINTS)
        curve = []
        for index in range(points):
            start = index * count // points
            stop = (index + 1) * count // points
            neighbours = self.losses[start:stop]
            curve.append(sum(neighbours) / len(neighbours))
        return curve

    def outcome(self) -> dict[str, Any]:
        """Return the summary as JSON, with the loss curve in the place of the losses."""
        return {
            "kept_epoch": self.kept_epoch,
            "stopped_early": self.stopped_early,
            "epochs": self.epochs,
            "loss_curve": self.loss_curve(),
        }

    @property
    def steps(self) -> int:
        """The number of steps made."""
        return len(self.losses)


@dataclass
class TrainingContext:
    """Everything that a training uses besides its model and data.

    Attributes:
        log: receives messages to the user.
        run_log: receives an event for each step and epoch.
        state: the file that the unfinished run is saved in; None: nothing is saved.
        team: the processes among which each batch is divided.
        extra: progress and tensors that are saved in addition, by a caller that runs several trainings.
        signals: notes a signal to stop; several trainings share it, so that no signal is lost between two of them.
    """

    log: Log
    run_log: RunLog = field(default_factory=RunLog)
    state: StateFile | None = None
    team: Processes = field(default_factory=Processes)
    extra: Saved = field(default_factory=lambda: Saved({}))
    signals: Interruptions = field(default_factory=Interruptions)


class Training:
    """One run of the training loop, which can be saved after any step and resumed (:meth:`save`).

    Args:
        model: the model, trained in place.
        data: the samples it is trained and validated on.
        options: the options of the training.
        lr: the peak of the learning rate.
        context: log, checkpointing and the other processes.

    Attributes:
        parameters: the parameters that are trained, by name.
        history: the course so far.
        order, epoch_start: the random generator of the order of samples, and its state before the current epoch.
        best: the weights that reached the best validation accuracy; empty before the first.
        course: decides the learning rate of each step, and which weights the training leaves.
        left: the models that a finished training leaves; empty if it leaves its own weights.
        device: the device that computes.
        loss: the loss that is minimised.
    """

    def __init__(
        self, model: AnyModel, data: TrainingData, options: TrainOptions, lr: float, context: TrainingContext
    ) -> None:
        """Prepare a training at its beginning: mark what is trained, build optimizer and loss, and set all counters.

        Args:
            model: the model, trained in place; its parameters are marked by ``requires_grad``.
            data: the samples it is trained and validated on.
            options: the options of the training.
            lr: the peak of the learning rate.
            context: the logs, the file of the saved state, and the processes that train together (``team``).
        """
        # Each process seeds its dropout by its number (rank): with one seed for all, the samples of different processes
        # would lose the same units.
        torch.manual_seed(options.seed + context.team.rank)
        self.model = model
        self.data = data
        self.options = options
        self.lr = lr
        self.context = context

        # The trained parameters by name, the masks that keep pruned weights at zero, the optimizer and the loss. The
        # shared loss exchanges gradients between processes.
        self.parameters = trainable(model, options)
        self.device = next(iter(self.parameters.values())).device
        self._kept_weights = kept_weights(model, options)
        self.optimizer = make_optimizer(list(self.parameters.values()), options, lr)
        self.loss = make_loss(model, options, context.team)
        self._shared_loss = shared(self.loss, context.team)

        # The course decides the learning rate of each step; it may also collect models on the way, which then are left
        # (written at the end) instead of the final weights.
        self.course = options.begin_course(data.size)
        self.left: list[LeftModel] = []

        # The state of the loop: everything below is saved and restored.
        self.history = History()
        self.order = torch.Generator().manual_seed(options.seed)  # draws the order of the samples
        self.epoch_start = self.order.get_state()  # its state before the current epoch
        self.best: dict[str, Tensor] = {}  # the weights with the best validation accuracy; empty before the first

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Train to the end, and return the history of the whole training: losses, epochs, and which epoch was kept.

        It begins with the first step, or behind the last one if :meth:`load_state_dict` has restored a saved run. At
        the end the model has its final weights and is in eval mode.

        Raises:
            NonFiniteError: a loss or the weights are not finite.
            Interrupted: a signal has stopped the run, after saving.
        """
        with self.context.signals, self.context.log.progress("finetune", self.course.total, "steps") as progress:
            progress.advance(self.history.steps)
            while not self._is_finished():
                samples = self._draw_epoch()
                self._train_on(samples, progress)
                self._end_epoch()

        # Give the model the weights of the best epoch; without validation, it keeps those of the last epoch.
        if self.best:
            self.put(self.best)
        elif self.course.keeps_epoch:
            self.history.kept_epoch = len(self.history.epochs)
        else:
            self.history.kept_epoch = None  # the course makes the weights out of several epochs, see below

        # The course may put other weights into the model, e.g. an average over several epochs, or leave several models.
        self.left = self.course.finish(self.options.seed, self.put)
        self.model.eval()
        return self.history

    def _is_finished(self) -> bool:
        """Return whether all steps are made, or the training has stopped early."""
        if self.history.stopped_early:
            return True

        # A run may have been saved after the last step of an epoch but before its validation: that is still to do.
        is_inside_epoch = self.history.position > 0
        return self.history.steps >= self.course.total and not is_inside_epoch

    def _steps_of_ended_epochs(self) -> int:
        """Return the number of steps that were made before the current epoch."""
        epochs = self.history.epochs
        return epochs[-1]["steps"] if epochs else 0

    def _draw_epoch(self) -> list[int]:
        """Return the indices of the samples of the next epoch, in random order.

        An epoch of 10 steps of 32 samples has 320 samples; the last epoch may have fewer steps than a full one. A
        resumed epoch draws the same samples once more: for that, the state of the random generator before the draw is
        stored in ``epoch_start``, which is saved with an unfinished run.
        """
        self.epoch_start = self.order.get_state()
        shuffled = torch.randperm(self.data.size, generator=self.order)
        steps_left = self.course.total - self._steps_of_ended_epochs()
        steps = min(steps_left, self.course.per_epoch)
        samples = steps * self.options.per_step
        return shuffled[:samples].tolist()

    def _train_on(self, samples: Sequence[int], progress: Progress) -> None:
        """Make the steps of one epoch; in a resumed epoch only the steps that are not made yet.

        A step changes the weights once, from the gradients of ``accumulate`` batches.

        Args:
            samples: the indices of all samples of the epoch in order; the first ``history.position`` are done already.
            progress: a progress bar, advanced by every step.
        """
        # Divide each batch among n processes: process r computes the samples r, r + n, r + 2n, ... of it, its part. A
        # short last batch may leave a process without a part. It then computes any sample (`batch[:1]`), as all have to
        # compute equally often; its share below is 0, so that it changes nothing.
        history = self.history
        team = self.context.team
        size = self.options.batch_size
        batches = [samples[start : start + size] for start in range(history.position, len(samples), size)]
        parts = [batch[team.rank :: team.size] for batch in batches]
        indices_to_read: list[int] = []
        for batch, part in zip(batches, parts, strict=True):
            indices_to_read += part or batch[:1]

        # Make the steps, each from `accumulate` batches. A batch's loss counts by its share of the step's samples: with
        # two batches of 32, each divided between two processes, the share here is 16 / 64 for both.
        self.model.train()
        stream = self.data.batches(indices_to_read, len(history.epochs))
        for start in range(0, len(batches), self.options.accumulate):
            of_step = slice(start, start + self.options.accumulate)
            samples_of_step = sum(map(len, batches[of_step]))
            shares = [len(part) / samples_of_step for part in parts[of_step]]
            with self._stopping_if_workers_are_ended():
                parts_read = [next(stream) for _ in shares]  # inputs and labels
            rate = self.lr * self.course.share_of_peak(history.steps)
            loss = self._step(parts_read, shares, rate)

            # Add the step to the history and the logs. The course may collect the weights now, e.g. for an average. If
            # it is time, save the run; after a signal, stop.
            history.losses.append(loss)
            history.position += samples_of_step
            self.context.run_log.step(history.steps, loss, rate, samples_of_step)
            progress.advance(1, f"loss {loss:.4f}")
            self.course.after_step(history.steps, self.finite_weights, self.context.log, self.context.run_log)
            self._save_or_stop()

    @contextmanager
    def _stopping_if_workers_are_ended(self) -> Iterator[None]:
        """Return a context for reading data. If reading fails after a signal, save and stop instead of raising.

        A signal to all processes of a job also ends the worker processes that read data, perhaps before it reaches this
        process: a reading error may be caused by the signal, not by the data.
        """
        try:
            yield
        except HydraError:
            time.sleep(_SIGNALS_APART_S)
            self._stop_alone()
            raise

    def _step(self, batches: Sequence[tuple[Any, Tensor]], shares: Sequence[float], rate: float) -> float:
        """Change the weights once, and return the loss of the step before the change, over all processes.

        Args:
            batches: what this process computes: inputs and labels for each batch of the step.
            shares: the size of each of them, as a share of all samples of the step in all processes.
            rate: the learning rate.

        Raises:
            NonFiniteError: the loss is not finite; the weights are not changed.
        """
        team = self.context.team
        for group in self.optimizer.param_groups:
            group["lr"] = rate

        # Compute the gradients, which `backward` exchanges between processes, and this process's share of the loss.
        self.optimizer.zero_grad(set_to_none=True)
        calls = self.loss.calls(batches, shares)
        loss_here = backward(self._shared_loss, calls, team)

        # Sum the loss over all processes. Then each has the same loss, and if it is not finite, all of them stop.
        total = torch.tensor(loss_here, dtype=torch.float64)
        team.add(total)  # in place
        loss = total.item()
        if not math.isfinite(loss):
            self._refuse_loss(loss)  # raises

        # Pruned weights stay zero: a mask sets their gradients to zero.
        for parameter, is_kept in self._kept_weights:
            if parameter.grad is not None:
                parameter.grad.mul_(is_kept)
        largest_norm = self.options.clip
        if largest_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), largest_norm)
        self.optimizer.step()
        self.loss.after_step()  # the loss may adjust parameters of its own
        return loss

    def _refuse_loss(self, value: float) -> NoReturn:
        """Raise an error for a loss that is not finite, which says whether a good state was saved before.

        Raises:
            NonFiniteError: always.
        """
        state = self.context.state
        what_is_left = "nothing was written"
        if state is not None and state.exists():
            what_is_left = f"{state.path} has the last good state"
        step = self.history.steps + 1
        raise NonFiniteError(f"the loss is {value} at step {step}", hint=f"{_LOWER}; {what_is_left}")

    def finite_weights(self) -> dict[str, Tensor]:
        """Return the trained parameters by name, without a copy, after checking that all of them are finite.

        All processes call it at the same step, since they tell each other the result of the check.

        Raises:
            NonFiniteError: some weight is not finite, in this process or another one.
        """
        is_finite = all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters.values())
        finite_in_processes = self.context.team.gather(is_finite)
        if not all(finite_in_processes):
            steps = self.history.steps
            raise NonFiniteError(f"the weights are not finite after step {steps}", hint=_LOWER)
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def _end_epoch(self) -> None:
        """Validate, add the epoch to the history and the logs, and keep the weights if they are the best so far.

        Without validation data, the record of the epoch has no validation figures, and no weights are kept.
        """
        # The losses of the steps that follow the epochs before.
        history = self.history
        losses = history.losses[self._steps_of_ended_epochs() :]
        epoch: dict[str, Any] = {
            "epoch": len(history.epochs) + 1,
            "steps": history.steps,
            "loss": sum(losses) / len(losses),
        }
        if self.data.validation is not None:
            with self._stopping_if_workers_are_ended():
                accuracy, nll = validate(self.model, self.data.validation, self.context.team, self._stop_alone)
            epoch["val_accuracy"] = accuracy
            epoch["val_nll"] = nll

        # Record the epoch, and go on with the next one from its first sample.
        history.epochs.append(epoch)
        history.position = 0  # the next epoch begins
        self.context.log.info(epoch_text(EpochRecord(**epoch)))
        self.context.run_log.event("epoch", **epoch)

        # Some courses, e.g. of averaged weights, make the weights out of several epochs and choose none.
        if self.data.validation is not None and self.course.keeps_epoch:
            self._keep_best(epoch["val_accuracy"])

    def _keep_best(self, accuracy: float) -> None:
        """Keep a copy of the weights if they are the best so far; otherwise count the wait, and perhaps stop early.

        An epoch is better only if it exceeds the best accuracy by more than ``min_delta``, so of equal epochs the first
        is kept. With a patience of 2, the second epoch in a row that is not better ends the training.

        Args:
            accuracy: the validation accuracy after the epoch that has just ended.
        """
        history = self.history
        if history.best is None or accuracy > history.best + self.options.min_delta:
            self.best = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
            history.best = accuracy
            history.kept_epoch = len(history.epochs)
            history.waited = 0
            return

        # It is not better. If that is so after the very last step, the training is at its end and does not stop early.
        history.waited += 1
        patience = self.options.patience
        if patience is not None and history.waited >= patience:
            history.stopped_early = history.steps < self.course.total

    def validate_result(self) -> tuple[float, float]:
        """Return the validation accuracy and the mean loss of the weights that a finished training ends with.

        If they are the weights of an epoch, they were measured after it. If not (e.g. an average), they are measured
        now.

        Raises:
            NonFiniteError: the loss of these weights is not finite.
            Interrupted: by a signal, after saving.
        """
        kept_epoch = self.history.kept_epoch
        if kept_epoch is not None:
            figures = self.history.epochs[kept_epoch - 1]
            return figures["val_accuracy"], figures["val_nll"]
        assert self.data.validation is not None  # several learning rates need it
        with self.context.signals, self._stopping_if_workers_are_ended():
            return validate(self.model, self.data.validation, self.context.team, self._stop_alone)

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Copy these weights into the trained parameters, in place."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])

    # --- saving and going on ------------------------------------------------------------------------------------------

    def _save_or_stop(self) -> None:
        """Save the run if it is time, or save and stop if a signal asks for it; called after each step.

        All processes do so, or none. To agree, they add up two wishes: to stop, of each process that a signal has
        reached; and to save, of the first process alone, which has the clock and the file.

        Raises:
            Interrupted, KeyboardInterrupt: the run stops.
        """
        context = self.context
        is_due = context.team.rank == 0 and context.state is not None and context.state.due(self.history.steps)
        wishes = torch.tensor([context.signals.requested, is_due], dtype=torch.float64)  # to stop, to save
        context.team.add(wishes)  # in place: now the number of processes with each wish
        to_stop, to_save = wishes.tolist()
        if to_stop:
            self._interrupt()  # saves, and raises
        if to_save:
            self.save()

    def _stop_alone(self) -> None:
        """Stop at once, if a signal asks for it. Several processes do nothing here: they agree after the next step."""
        is_alone = self.context.team.size == 1
        if is_alone and self.context.signals.requested:
            self._interrupt()

    def _interrupt(self) -> NoReturn:
        """Save and stop.

        Raises:
            Interrupted: always, with a hint how to resume; KeyboardInterrupt if nothing is saved.
        """
        self.save()
        state = self.context.state
        if state is None:
            raise KeyboardInterrupt
        where = f"{state.path} has step {self.history.steps} of {self.course.total}"
        raise Interrupted(hint=f"add --resume to the same command to go on; {where}")

    def save(self) -> None:
        """Write everything that decides how the training goes on to the state file.

        All processes call it at the same step; only the first one writes. A training that continues from the file with
        :meth:`load_state_dict` gives the same bits as a training without a break.

        Raises:
            NonFiniteError: the weights are not finite; the state saved before is kept.
        """
        weights = self.finite_weights()
        history = self.history
        team = self.context.team
        extra = self.context.extra

        # Each process has its own random state, e.g. for dropout. All processes exchange them, as hex.
        random_bytes = random_state(self.device).numpy().tobytes()
        random_states = team.gather(random_bytes.hex())
        if team.rank != 0 or self.context.state is None:  # only the first process writes
            return
        counters = {name: getattr(history, name) for name in _COUNTERS}
        progress = {
            **counters,
            "steps": history.steps,
            "total": self.course.total,
            "log": self.context.run_log.position(),
        }

        # A saved state has JSON values (`progress`) and tensors. Besides this training's own there are `collected`,
        # what the course has collected, e.g. averaged weights; and `extra`, which belongs to other trainings of the
        # run, e.g. with other learning rates. Their keys differ from each other and from those of this training.
        collected = self.course.state()
        saved = Saved(progress | collected.progress | extra.progress, collected.tensors | extra.tensors)
        saved.add("model.", weights)
        saved.add("best.", self.best)
        saved.add("optimizer.", optimizer_tensors(self.optimizer))
        for rank, state_as_hex in enumerate(random_states):
            state = bytearray.fromhex(state_as_hex)
            saved.tensors[f"random.{rank}"] = torch.frombuffer(state, dtype=torch.uint8)
        saved.tensors["order"] = self.epoch_start
        saved.tensors["losses"] = torch.tensor(history.losses, dtype=torch.float64)
        self.context.state.save(saved)

    def load_state_dict(self, saved: Saved) -> None:
        """Restore the state that :meth:`save` has written into a new training with the same options.

        Args:
            saved: JSON values by name (``progress``), and tensors by name; ``part`` returns those under a prefix.
        """
        progress = saved.progress

        # The weights, the optimizer, and the best weights so far.
        self.put(saved.part("model."))
        load_optimizer(self.optimizer, saved.part("optimizer."))
        self.best = {name: tensor.to(self.device) for name, tensor in saved.part("best.").items()}
        self.course.load(saved)

        # The counters.
        counters = {name: progress[name] for name in _COUNTERS}
        self.history = History(losses=saved.tensors["losses"].tolist(), **counters)

        # The random generators. The order is set to before the current epoch, whose samples are drawn once more.
        self.order.set_state(saved.tensors["order"])
        random_states = saved.part("random.")

        # If there are more processes now, a new one takes the state of the first. This matters for dropout only.
        state_of_first = random_states["0"]
        state = random_states.get(str(self.context.team.rank), state_of_first)
        set_random_state(state, self.device)


@torch.no_grad()
def validate(
    model: AnyModel,
    batches: ValidationBatches,
    team: Processes,
    before_batch: Callable[[], None],
) -> tuple[float, float]:
    """Return the accuracy (0 to 1) and the mean cross-entropy (nats a sample) of a model on the validation set.

    If several processes train together, each computes its own samples, and all return the figures over all samples.

    Args:
        model: the model, which is set to eval mode.
        batches: called without arguments, yields the batches of this process: inputs and labels ``[B]``.
        team: all processes.
        before_batch: called before each batch; may end the validation by raising an exception, e.g. after a signal.

    Raises:
        NonFiniteError: the loss is not finite.
    """
    model.eval()

    # Sums over the samples of this process.
    correct = loss = count = 0.0
    for inputs, labels in batches():
        before_batch()
        log_p = model(inputs)  # log-probabilities, [B, classes]
        correct += int((log_p.argmax(-1) == labels).sum())
        loss += float(F.nll_loss(log_p.double(), labels, reduction="sum"))
        count += len(labels)

    # Sum over all processes. Then each has the same loss, and if it is not finite, all of them stop.
    sums = torch.tensor([correct, loss, count], dtype=torch.float64)  # [3], changed in place by `add`
    team.add(sums)
    correct, loss, count = sums.tolist()
    if not math.isfinite(loss):
        raise NonFiniteError(f"the validation loss is {loss}", hint=_LOWER)
    return correct / count, loss / count
