"""Random changes of training images: torchvision's transforms, drawn by (seed, epoch, sample) and nothing else.

So an image is changed in the same way by any number of worker processes, and after a run was taken up again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydractl.data.base import Dataset
from hydractl.errors import UsageError
from hydractl.families.base import ModelFamily
from hydractl.families.pixels import in_mode
from hydractl.families.torchvision_operators import declare_operators

declare_operators()

from torchvision.transforms import InterpolationMode, v2  # noqa: E402

SMALLEST_SHARE = 0.08
"""Of an image that a crop takes, unless said otherwise: torchvision's and timm's default."""


class Numbered(Dataset):
    """A data set whose samples know their number: what is drawn for a sample must not depend on its batch."""

    def __init__(self, base: Dataset) -> None:
        super().__init__(base.spec, base.where, base.ids)
        self._base = base
        self.kind, self.labels, self.label_names = base.kind, base.labels, base.label_names

    def _sample(self, i: int) -> tuple[int, Any]:
        return i, self._base[i]

    def _content(self, i: int) -> Iterable[bytes]:
        return self._base._content(i)


class Augmentation:
    """Augmentation of the images of one model.

    Args:
        items: ``crop[:SMALLEST SHARE]``, ``flip``, ``randaugment[:N:M]``; they act in this order.
        family: of the model.
        preprocess: of the checkpoint: size, mean, standard deviation and interpolation are its own.
        seed: draws everything.

    Raises:
        UsageError: for a model that reads texts.
    """

    def __init__(self, items: Sequence[str], family: ModelFamily, preprocess: Mapping[str, Any], seed: int) -> None:
        if preprocess.get("kind") == "text":
            raise UsageError(f"--augment {','.join(items)}: the model reads texts")
        named = {item.partition(":")[0]: item.partition(":")[2] for item in items}
        form = family.image_format(preprocess)
        self._seed, self._mode = seed, "L" if form.size[0] == 1 else "RGB"
        interpolation = InterpolationMode(form.interpolation)
        steps: list[Any] = []
        if "crop" in named:
            scale = (float(named["crop"] or SMALLEST_SHARE), 1.0)
            steps.append(v2.RandomResizedCrop(form.size[1:], scale=scale, interpolation=interpolation))
        if "flip" in named:
            steps.append(v2.RandomHorizontalFlip())
        if "randaugment" in named:
            count, magnitude = map(int, (named["randaugment"] or "2:12").split(":"))
            steps.append(v2.RandAugment(count, magnitude))
        self._change = v2.Compose(steps)
        # A crop has the model's size already; without one, images are resized as in evaluation.
        scaled = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(form.mean), list(form.std))]
        collate = family.collate(preprocess)
        self._finish = v2.Compose(scaled) if "crop" in named else lambda image: collate([image])[0]

    def collate(self, epoch: int) -> Callable[[list[tuple[int, Any]]], Tensor]:
        """From samples of a :class:`Numbered` data set to inputs ``[B, C, H, W]``, as of one epoch."""

        def collated(samples: list[tuple[int, Any]]) -> Tensor:
            # The generator of dropout goes on as if nothing had been drawn here.
            with torch.random.fork_rng(devices=[]):
                return torch.stack([self._changed(image, epoch, number) for number, image in samples])

        return collated

    def _changed(self, image: Any, epoch: int, number: int) -> Tensor:
        digest = hashlib.sha256(f"hydractl.augment/1 {self._seed} {epoch} {number}".encode()).digest()
        # Of the CPU alone: torch.manual_seed would seed the generators of GPUs as well.
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return self._finish(self._change(in_mode(image, self._mode)))
