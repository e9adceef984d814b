"""``torchvision:NAME[/split]?root=FOLDER``: sets in torchvision's own layout, from local files only."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hydractl.data.base import Dataset, Spec, UnreadableSample
from hydractl.data.labels import RawLabels, limited
from hydractl.errors import InputError, UsageError
from hydractl.families.reading import first_line
from hydractl.families.torchvision_operators import declare_operators

TORCHVISION_SETS: tuple[str, ...] = (
    "MNIST",
    "FashionMNIST",
    "KMNIST",
    "CIFAR10",
    "CIFAR100",
    "SVHN",
    "STL10",
    "DTD",
    "Food101",
    "Flowers102",
    "OxfordIIITPet",
    "EuroSAT",
    "SUN397",
    "Places365",
)
"""The sets that can be named: image classification, with labels that are known without reading the images."""


class TorchvisionImages(Dataset):
    """A torchvision data set."""

    def __init__(self, spec: Spec, rows: Sequence[int], source: Any) -> None:
        super().__init__(spec.text, spec.where, [f"torchvision:{spec.path}#{i}" for i in rows])
        self.rows = rows
        self.source = source

    def _sample(self, i: int) -> Any:
        try:
            image, _ = self.source[self.rows[i]]
            image.load()
        # A damaged file makes the decoders raise nearly anything.
        except Exception as error:
            raise UnreadableSample(f"cannot read image {self.ids[i]}: {error} ({self.where})") from error
        return image

    def _content(self, i: int) -> Iterable[bytes]:
        image = self._sample(i)
        return [f"{image.mode} {image.size}\n".encode(), image.tobytes()]


def read_torchvision(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open one of torchvision's data sets; nothing is ever downloaded.

    Raises:
        UsageError: an unknown name or split, or no ``?root=``.
        InputError: the files are not there, or not whole.
    """
    spec.check_query(("root",))
    name, _, split = spec.path.partition("/")
    if name not in TORCHVISION_SETS:
        raise UsageError(
            f"{spec.where}: unknown torchvision set {name!r}", hint=f"there are: {', '.join(TORCHVISION_SETS)}"
        )
    if "root" not in spec.query:
        raise UsageError(
            f"{spec.where}: the folder of the files is not given",
            hint=f"write torchvision:{spec.path}?root=FOLDER; nothing is downloaded",
        )
    source = _open(spec, name, split)
    if len(source) == 0:
        raise InputError(f"{spec.where}: the set is empty")
    # Each of them calls its labels by one of these names.
    labels_name = next(name for name in ("targets", "labels", "_labels") if hasattr(source, name))
    labels = np.asarray(getattr(source, labels_name), dtype=np.int64)
    rows = limited(labels.tolist(), len(source), limit, seed)
    dataset = TorchvisionImages(spec, rows, source)
    classes = getattr(source, "classes", None)
    names = [str(name) for name in classes] if classes else None
    return dataset, RawLabels(labels[rows], names)


def _open(spec: Spec, name: str, split: str) -> Any:
    """Return torchvision's data set object."""
    declare_operators()
    from torchvision import datasets

    make = getattr(datasets, name)
    parameters = inspect.signature(make.__init__).parameters
    settings: dict[str, Any] = {}
    if "train" in parameters:
        if split not in ("train", "test"):
            raise UsageError(f"{spec.where}: {name} has the splits train and test", hint=f"torchvision:{name}/test")
        settings["train"] = split == "train"
    elif "split" in parameters:
        if not split:
            raise UsageError(f"{spec.where}: {name} needs a split", hint=f"for example torchvision:{name}/test")
        settings["split"] = split
    elif split:
        raise UsageError(f"{spec.where}: {name} has no splits", hint=f"torchvision:{name}")
    try:
        return make(spec.query["root"], download=False, **settings)
    # torchvision says "not found" and "wrong split" with errors of many kinds.
    except Exception as error:
        raise InputError(
            f"{spec.where}: torchvision cannot open the set: {first_line(error)}",
            hint=f"put the files of {name} under {spec.query['root']} in torchvision's layout; nothing is downloaded",
        ) from error
