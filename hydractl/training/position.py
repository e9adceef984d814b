"""Everything that decides how a training goes on, taken after a step and put back: the same bits as without a break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hydractl.training.optimizer_state import load_optimizer, optimizer_tensors
from hydractl.training.state import Saved

if TYPE_CHECKING:
    from hydractl.training.loop import Training


def position_of(run: Training) -> Saved | None:
    """What :func:`restore` needs; None in processes other than the first. All processes call it at the same step."""
    history, team = run.history, run.around.team
    random = [bytes.fromhex(one) for one in team.gather(_random_state(run.device).numpy().tobytes().hex())]
    if team.rank:
        return None
    progress = {
        "steps": history.steps,
        "total": run.total,
        "position": run.position,
        "epochs": history.epochs,
        "kept_epoch": history.kept_epoch,
        "stopped_early": history.stopped_early,
        "waited": run.waited,
        "best": None if run.best is None else run.best[0],
        "snapshots": len(run.snapshots),
        "log": run.around.run_log.position(),
    }
    tensors = {
        **{f"model.{name}": p.detach() for name, p in run.parameters.items()},
        **{f"best.{name}": t for name, t in (run.best[1] if run.best else {}).items()},
        **{f"optimizer.{name}": t for name, t in optimizer_tensors(run.optimizer).items()},
        **{f"random.{rank}": torch.frombuffer(bytearray(b), dtype=torch.uint8) for rank, b in enumerate(random)},
        **{f"snapshot.{index}.{n}": t for index, one in enumerate(run.snapshots) for n, t in one.items()},
        "order": run.epoch_start,
        "losses": torch.tensor(history.losses, dtype=torch.float64),
    }
    return Saved(progress, tensors)


def restore(run: Training, saved: Saved) -> None:
    """Set a run, newly made from the same settings, to where another was saved."""
    progress, history = saved.progress, run.history
    run.put(saved.part("model."))
    load_optimizer(run.optimizer, saved.part("optimizer."))
    if progress["best"] is not None:
        run.best = (progress["best"], {name: t.to(run.device) for name, t in saved.part("best.").items()})
    run.snapshots = [saved.part(f"snapshot.{index}.") for index in range(progress["snapshots"])]
    run.order.set_state(saved.tensors["order"])
    history.epochs, history.kept_epoch = progress["epochs"], progress["kept_epoch"]
    history.losses, history.stopped_early = saved.tensors["losses"].tolist(), progress["stopped_early"]
    run.position, run.waited = progress["position"], progress["waited"]
    random = saved.part("random.")
    # A process that was not there before takes the numbers of the first; without dropout they decide nothing.
    _set_random_state(random.get(str(run.around.team.rank), random["0"]), run.device)


def _random_state(device: torch.device) -> Tensor:
    """Of the generators that dropout draws from: of the CPU, and behind it of the GPU."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


def _set_random_state(state: Tensor, device: torch.device) -> None:
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size].clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[size:].clone(), device)
