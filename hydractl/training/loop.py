"""Fine-tune one dense or pruned model. Pruned heads stay pruned: there is nothing left of them to train."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.distributed import Processes
from hydractl.errors import HydraError, Interrupted, NonFiniteError
from hydractl.log import Log, Progress
from hydractl.model.runtime import HydraModel
from hydractl.settings import FinetuneSettings
from hydractl.training.checkpointing import Saved, load_optimizer, optimizer_tensors, random_state, set_random_state
from hydractl.training.context import Around, History, TrainingData
from hydractl.training.losses import make_loss, steps_per_epoch
from hydractl.training.prepare import make_optimizer, trained_by
from hydractl.training.schedule import Cycles, factor, warmup_steps

_SIGNALS_APART_S = 0.5
"""A signal to several processes reaches one of them before another."""


def train(model: HydraModel, data: TrainingData, settings: FinetuneSettings, log: Log | Around) -> History:
    """Train in place with the first learning rate; with validation data the weights of the best epoch are kept.

    Raises:
        NonFiniteError: at the first step whose loss is not finite.
        Interrupted: by a signal, after saving.
    """
    around = log if isinstance(log, Around) else Around(log)
    return Training(model, data, settings, settings.lr[0], around).run()


class Training:
    """One run of the loop, which can be saved after any step and taken up again (:meth:`state_dict`).

    Args:
        model: trained in place.
        data: what it is trained on.
        settings: of the verb.
        lr: the peak of the learning rate.
        around: log, keeper and the other processes.

    Attributes:
        parameters: what is trained, by name.
        history: what happened so far.
        position: how many samples of the current epoch are done.
        order, epoch_start: the generator of the order of the samples, and its state before the current epoch.
        best: the best validation accuracy and its weights.
        waited: epochs since then.
        total, warmup: in steps.
        cycles: of the learning rate; one but for ``--snapshots``.
        snapshots: the weights at the end of each cycle so far, on the CPU.
        device: where it computes.
        loss: what is minimised.
    """

    def __init__(
        self, model: HydraModel, data: TrainingData, settings: FinetuneSettings, lr: float, around: Around
    ) -> None:
        # Dropout differs between processes, as it would between the parts of one batch.
        torch.manual_seed(settings.seed + around.team.rank)
        self.model, self.data, self.settings, self.lr, self.around = model, data, settings, lr, around
        self.parameters = trained_by(model, settings)
        self.optimizer = make_optimizer(list(self.parameters.values()), settings)
        self.loss = make_loss(model, settings, around.team)
        self.per_step = settings.batch_size * settings.accumulate
        self.per_epoch = steps_per_epoch(data.size, settings)
        self.total = settings.steps if settings.steps is not None else (settings.epochs or 0) * self.per_epoch
        self.cycles = Cycles(self.total, settings.snapshots or 1)
        self.warmup = min(warmup_steps(settings.warmup, self.total), self.cycles.length)
        self.snapshots: list[dict[str, Tensor]] = []
        self.history = History()
        self.position = 0
        self.order = torch.Generator().manual_seed(settings.seed)
        self.epoch_start = self.order.get_state()
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.waited = 0
        self._signals = around.signals
        self.device = next(iter(self.parameters.values())).device

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Train to the end, from the beginning or from where :meth:`load_state_dict` has set it."""
        history = self.history
        with self._signals, self.around.log.progress("finetune", self.total, "steps") as progress:
            progress.advance(history.steps)
            # A run may have been saved between the last step of an epoch and its validation.
            while (history.steps < self.total or self.position) and not history.stopped_early:
                self.epoch_start = self.order.get_state()
                done = history.epochs[-1]["steps"] if history.epochs else 0
                indices = torch.randperm(self.data.size, generator=self.order).tolist()
                self._steps(indices[: min(self.total - done, self.per_epoch) * self.per_step], progress)
                self._end_epoch(done)
        if self.best is not None:
            self.put(self.best[1])
        else:  # of the weights at the ends of cycles none is kept for its epoch
            history.kept_epoch = len(history.epochs) if self.settings.snapshots is None else None
        self.model.eval()
        return history

    def _steps(self, indices: Sequence[int], progress: Progress) -> None:
        """The rest of one epoch."""
        size, team = self.settings.batch_size, self.around.team
        rest = indices[self.position :]
        batches = [rest[i : i + size] for i in range(0, len(rest), size)]
        mine = [index for batch in batches for index in batch[team.rank :: team.size]]
        self.model.train()
        stream = self.data.batches(mine, len(self.history.epochs))
        for start in range(0, len(batches), self.settings.accumulate):
            parts = batches[start : start + self.settings.accumulate]
            count = sum(map(len, parts))
            with_samples = [part for part in parts if len(part) > team.rank]
            with self._saving():
                read = [next(stream) for _ in with_samples]
            loss = self._step(read, count)
            self.history.losses.append(loss)
            self.position += count
            self.around.run_log.step(self.history.steps, self.total, loss, self._rate(-1), count)
            progress.advance(1, f"loss {loss:.4f}")
            self._end_cycle()
            self._save_or_stop()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Around reading: a signal to all processes of a job ends those that read data too; then save and go."""
        try:
            yield
        except HydraError:
            time.sleep(_SIGNALS_APART_S)
            if self._requested and self.around.team.size == 1:
                self._interrupt()
            raise

    def _rate(self, offset: int = 0) -> float:
        """The learning rate of the step that comes, or of one before it."""
        settings, step = self.settings, self.history.steps + offset
        start, length = self.cycles.of(step)
        warmup = 0 if start else self.warmup
        return self.lr * factor(step - start, length, warmup, settings.schedule, settings.lr_floor)

    def _step(self, batches: Sequence[tuple[Any, Tensor]], count: int) -> float:
        """One update from the batches of this process, of ``count`` samples in all. Returns the mean loss before it."""
        settings, team = self.settings, self.around.team
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss.backward(batches, count)
        if team.size > 1:
            value = self._shared(value)
        self._check(value)
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.clip)
        self.optimizer.step()
        self.loss.after_step()
        return value

    def _check(self, value: float) -> None:
        if math.isfinite(value):
            return
        file, hint = self.around.keeper.file, "lower --lr, or raise --warmup; nothing was written"
        if file is not None and file.exists():
            hint = f"lower --lr, or raise --warmup; {file.path} has the last good state"
        raise NonFiniteError(f"the loss is {value} at step {self.history.steps + 1}", hint=hint)

    def _end_cycle(self) -> None:
        """Where a cycle of ``--snapshots`` ends, keep its weights."""
        steps, number = self.history.steps, len(self.snapshots) + 1
        if self.settings.snapshots is None or steps != self.cycles.ends[number - 1]:
            return
        self._check_weights()  # all that is written must be good before anything is
        self.snapshots.append({name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()})
        self.around.log.info(f"cycle {number} of {self.cycles.count} ends at step {steps}")
        self.around.run_log.event("cycle", cycle=number, step=steps)

    def _end_epoch(self, done: int) -> None:
        """Validate, and keep the weights if they are the best so far (the first of equals)."""
        history, settings, data = self.history, self.settings, self.data
        losses = history.losses[done:]
        epoch = {"epoch": len(history.epochs) + 1, "steps": history.steps, "loss": sum(losses) / len(losses)}
        if data.validation is not None:
            # Processes can only stop together, which they agree on at the next step.
            alone = self.around.team.size == 1
            try:
                with self._saving():
                    found = validate(self.model, data.validation, self.around.team, lambda: alone and self._requested)
                epoch.update(found)
            except Broken:
                self._interrupt()
        history.epochs.append(epoch)
        self.position = 0
        said = ", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{v}" for k, v in epoch.items())
        self.around.log.info(f"epoch {said}")
        self.around.run_log.event("epoch", **epoch)
        if data.validation is None or settings.snapshots is not None:
            return
        if self.best is None or epoch["val_accuracy"] > self.best[0] + settings.min_delta:
            self.best = (float(epoch["val_accuracy"]), {k: p.detach().clone() for k, p in self.parameters.items()})
            history.kept_epoch, self.waited = len(history.epochs), 0
        else:
            self.waited += 1
            if settings.patience is not None and self.waited >= settings.patience:
                history.stopped_early = history.steps < self.total

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Set what is trained, in place."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])

    # --- several processes --------------------------------------------------------------------------------------------

    def _shared(self, value: float) -> float:
        """Add up the gradients of all processes, their losses, and whether one of them wants to stop or to save."""
        for parameter in self.parameters.values():
            if parameter.grad is None:  # of a process without samples in the last batch of an epoch
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.parameters.values()]
        due = self.around.team.rank == 0 and self.around.keeper.due(self.history.steps + 1)
        said = gradients[0].new_tensor([value, float(self._signals.requested), float(due)])  # type: ignore[union-attr]
        flat = torch.cat([said, *[g.reshape(-1) for g in gradients]])  # type: ignore[union-attr]
        self.around.team.add(flat)
        position = 3
        for gradient in gradients:
            assert gradient is not None
            gradient.copy_(flat[position : position + gradient.numel()].view_as(gradient))
            position += gradient.numel()
        self._all_stop, self._all_save = bool(flat[1]), bool(flat[2])
        return float(flat[0])

    def _check_weights(self) -> None:
        if not all(bool(torch.isfinite(p).all()) for p in self.parameters.values()):
            raise NonFiniteError(
                f"the weights are not finite after step {self.history.steps}", hint="lower --lr, or raise --warmup"
            )

    # --- saving -------------------------------------------------------------------------------------------------------

    @property
    def _requested(self) -> bool:
        return self._signals.requested

    def _save_or_stop(self) -> None:
        several = self.around.team.size > 1
        if self._all_stop if several else self._requested:
            self._interrupt()
        if self._all_save if several else self.around.keeper.due(self.history.steps):
            self.save()

    def _interrupt(self) -> None:
        """Save and go.

        Raises:
            Interrupted: always.
        """
        self.save()
        file = self.around.keeper.file
        if file is None:
            raise KeyboardInterrupt
        where = f"{file.path} has step {self.history.steps} of {self.total}"
        raise Interrupted(hint=f"add --resume to the same command to go on; {where}")

    def save(self) -> None:
        """Save what :meth:`load_state_dict` needs. All processes call it at the same step.

        Raises:
            NonFiniteError: the weights are not finite; what was saved before is kept.
        """
        self._check_weights()
        saved = self.state_dict()
        if saved is not None:
            extra = self.around.extra
            self.around.keeper.save(Saved({**saved.progress, **extra.progress}, {**saved.tensors, **extra.tensors}))

    # --- saving and going on ------------------------------------------------------------------------------------------

    def state_dict(self) -> Saved | None:
        """Everything that decides how the training goes on; None in processes other than the first.

        All processes call it at the same step. Put back by :meth:`load_state_dict`, it gives the same bits as a
        training without a break.
        """
        history, team = self.history, self.around.team
        random = [bytes.fromhex(one) for one in team.gather(random_state(self.device).numpy().tobytes().hex())]
        if team.rank:
            return None
        progress = {
            "steps": history.steps,
            "total": self.total,
            "position": self.position,
            "epochs": history.epochs,
            "kept_epoch": history.kept_epoch,
            "stopped_early": history.stopped_early,
            "waited": self.waited,
            "best": None if self.best is None else self.best[0],
            "snapshots": len(self.snapshots),
            "log": self.around.run_log.position(),
        }
        tensors = {
            **{f"model.{name}": p.detach() for name, p in self.parameters.items()},
            **{f"best.{name}": t for name, t in (self.best[1] if self.best else {}).items()},
            **{f"optimizer.{name}": t for name, t in optimizer_tensors(self.optimizer).items()},
            **{f"random.{rank}": torch.frombuffer(bytearray(b), dtype=torch.uint8) for rank, b in enumerate(random)},
            **{f"snapshot.{index}.{n}": t for index, one in enumerate(self.snapshots) for n, t in one.items()},
            "order": self.epoch_start,
            "losses": torch.tensor(history.losses, dtype=torch.float64),
        }
        return Saved(progress, tensors)

    def load_state_dict(self, saved: Saved) -> None:
        """Set a training, newly made from the same settings, to where another was saved."""
        progress, history = saved.progress, self.history
        self.put(saved.part("model."))
        load_optimizer(self.optimizer, saved.part("optimizer."))
        if progress["best"] is not None:
            self.best = (progress["best"], {name: t.to(self.device) for name, t in saved.part("best.").items()})
        self.snapshots = [saved.part(f"snapshot.{index}.") for index in range(progress["snapshots"])]
        self.order.set_state(saved.tensors["order"])
        history.epochs, history.kept_epoch = progress["epochs"], progress["kept_epoch"]
        history.losses, history.stopped_early = saved.tensors["losses"].tolist(), progress["stopped_early"]
        self.position, self.waited = progress["position"], progress["waited"]
        random = saved.part("random.")
        # A process that was not there before takes the numbers of the first; without dropout they decide nothing.
        set_random_state(random.get(str(self.around.team.rank), random["0"]), self.device)


class Broken(Exception):
    """The validation was left in its midst, because the run was interrupted."""


@torch.inference_mode()
def validate(
    model: HydraModel,
    batches: Callable[[], Iterator[tuple[Any, Tensor]]],
    team: Processes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Accuracy and mean negative log-likelihood on the validation set.

    Args:
        model: set to eval mode.
        batches: the samples of this process.
        team: all processes, each with samples of its own.
        stop: asked before each batch; True ends the validation.

    Raises:
        Broken: ``stop`` said so.
        NonFiniteError: the loss is not finite.
    """
    model.eval()
    right, loss, count = 0, 0.0, 0
    for inputs, labels in batches():
        if stop():
            raise Broken
        log_p = model(inputs)
        right += int((log_p.argmax(-1) == labels).sum())
        loss += float(F.nll_loss(log_p.double(), labels, reduction="sum"))
        count += len(labels)
    if team is not None and team.size > 1:
        # As text: a sum that is not finite is told as well.
        parts = [(r, float.fromhex(text), n) for r, text, n in team.gather([right, loss.hex(), count])]
        right, loss, count = (sum(values) for values in zip(*parts, strict=True))
    if not math.isfinite(loss):
        raise NonFiniteError(f"the validation loss is {loss}", hint="lower --lr, or raise --warmup")
    return {"val_accuracy": right / count, "val_nll": loss / count}
