"""What a training minimises: one file for each loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.distributed import Processes
from hydractl.model.runtime import HydraModel
from hydractl.settings import FinetuneSettings

if TYPE_CHECKING:
    from hydractl.training.losses.base import Loss


def make_loss(model: HydraModel, settings: FinetuneSettings, team: Processes) -> Loss:
    """The loss that ``--loss`` asks for."""
    if settings.loss == "contrastive":
        from hydractl.training.losses.contrastive import Contrastive

        return Contrastive(model, settings, team)
    from hydractl.training.losses.cross_entropy import CrossEntropy

    return CrossEntropy(model, settings, team)


def steps_per_epoch(samples: int, settings: FinetuneSettings) -> int:
    """Steps of one pass over the data.

    A cross-entropy is a mean over samples, so the last step may have fewer of them. What a contrastive loss is depends
    on how many pairs are compared: those that do not fill a step are left out, as open_clip leaves them out. They are
    others in each epoch.
    """
    per_step = settings.batch_size * settings.accumulate
    return samples // per_step if settings.loss == "contrastive" else -(-samples // per_step)
