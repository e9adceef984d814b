"""A fused model as an ensemble of torch-uncertainty: its test routine, with its metrics, on our member logits.

python examples/interop/torch_uncertainty_ensemble.py hydra.st test.npz ood.npz
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hydractl

model_of = hydractl.load  # before torchvision, which torch-uncertainty imports

from lightning.pytorch import Trainer  # noqa: E402
from torch_uncertainty.ood_criteria import MaxSoftmaxCriterion  # noqa: E402
from torch_uncertainty.routines import ClassificationRoutine  # noqa: E402


class Ensemble(nn.Module):
    """The members one after another along the batch, as torch-uncertainty reads the outputs of ensembles.

    Args:
        model: a fused model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits ``[M * B, classes]``."""
        return self.model.member_logits(inputs).flatten(0, 1)  # [M, B, C] -> [M * B, C]


def measure(model: str, data: str, ood: str, batch_size: int = 64) -> dict[str, float]:
    """The metrics of torch-uncertainty on ``.npz`` files, ``x`` and, of the first, ``y``."""
    module = model_of(model, device="cpu")
    inside, outside = np.load(data), np.load(ood)
    sets = [(inside["x"], inside["y"]), (outside["x"], np.zeros(len(outside["x"]), np.int64))]
    loaders = [
        DataLoader(TensorDataset(module.preprocess(list(x)), torch.as_tensor(y).long()), batch_size) for x, y in sets
    ]
    routine = ClassificationRoutine(
        model=Ensemble(module),
        num_classes=module.classes,
        loss=None,
        is_ensemble=True,
        eval_ood=True,
        ood_criterion=MaxSoftmaxCriterion,
    )
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    found = trainer.test(routine, dataloaders=loaders, verbose=False)
    return {name: float(value) for part in found for name, value in part.items()}


if __name__ == "__main__":
    for name, value in measure(*sys.argv[1:4]).items():
        print(f"{name:24} {value:.4f}")
