"""``torchvision:NAME[/split]?root=FOLDER``: sets in torchvision's own layout, from local files only."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from hydractl.data.base import Dataset, RowIds, UnreadableSample
from hydractl.data.labels import RawLabels
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.pixels import in_eight_bits
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
"""The sets that can be named: sets for image classification whose labels are known before an image is read."""


class TorchvisionImages(Dataset):
    """The images of a torchvision data set.

    Args:
        spec: the SPEC of the set.
        source: torchvision's data set object.
    """

    is_encoded = True  # as most of torchvision's sets are

    def __init__(self, spec: DataSpec, source: Any) -> None:
        super().__init__(spec.text, spec.where, RowIds(f"torchvision:{spec.path}", len(source)))
        self.source = source

    def _sample(self, i: int) -> Any:
        """Return image ``i``, fully loaded."""
        try:
            image, _ = self.source[i]
            image.load()
            image = in_eight_bits(image)
        # Decoders raise nearly anything for a damaged file.
        except Exception as error:
            raise UnreadableSample(f"cannot read image {self.ids[i]}: {error} ({self.where})") from error
        return image


def read_torchvision(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the samples and labels of one of torchvision's data sets. Nothing is ever downloaded.

    The labels are read now, images later.

    Args:
        spec: the SPEC (the text that names the data set) ``torchvision:NAME[/split]?root=FOLDER``, in its parts.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: for an unknown name or split, or if ``?root=`` is missing.
        InputError: if files are missing or incomplete.
    """
    spec.check_query(("root",))  # refuses other settings
    name, _, split = spec.path.partition("/")
    if name not in TORCHVISION_SETS:
        known = ", ".join(TORCHVISION_SETS)
        raise UsageError(f"{spec.where}: unknown torchvision set {name!r}", hint=f"there are: {known}")
    if "root" not in spec.query:
        raise UsageError(
            f"{spec.where}: the folder of the files is not given",
            hint=f"write torchvision:{spec.path}?root=FOLDER; nothing is downloaded",
        )

    source = _open_source(spec, name, split)
    if len(source) == 0:
        raise InputError(f"{spec.where}: the set is empty")
    labels = np.asarray(_labels_of(source)).tolist()

    # Not every set of torchvision has class names.
    class_names = None
    classes = getattr(source, "classes", None)
    if classes:
        class_names = [str(name) for name in classes]
    return TorchvisionImages(spec, source), RawLabels(labels, class_names)


def _labels_of(source: Any) -> Any:
    """Return the labels of all samples of a torchvision set, which stores them under one of three names."""
    for attribute in ("targets", "labels"):
        if hasattr(source, attribute):
            return getattr(source, attribute)
    return source._labels


def _open_source(spec: DataSpec, name: str, split: str) -> Any:
    """Open the set with torchvision, without downloading anything, and return torchvision's data set object.

    Args:
        spec: the SPEC, whose ``?root=`` is the folder of the files.
        name: the name of torchvision's class.
        split: the name of the split; empty if none was given.

    Raises:
        UsageError: if the set does not have the split, or has splits and none was given.
        InputError: if files are missing or incomplete.
    """
    declare_operators()
    from torchvision import datasets

    set_class = getattr(datasets, name)
    split_argument = _argument_of_split(spec, name, split, set_class)
    try:
        return set_class(spec.query["root"], download=False, **split_argument)
    # torchvision raises many kinds of errors for missing files and wrong splits.
    except Exception as error:
        raise InputError(
            f"{spec.where}: torchvision cannot open the set: {first_line(error)}",
            hint=f"put the files of {name} under {spec.query['root']} in torchvision's layout; nothing is downloaded",
        ) from error


def _argument_of_split(spec: DataSpec, name: str, split: str, set_class: Any) -> dict[str, bool | str]:
    """Return the argument that selects a split in torchvision's class of a set, by name; empty if it has no splits.

    The split ``test`` is ``{"train": False}`` for some classes, and ``{"split": "test"}`` for others.

    Raises:
        UsageError: if the set does not have the split, or has splits and none was given.
    """
    parameters = inspect.signature(set_class.__init__).parameters

    # The class takes `train=True` or `train=False`.
    if "train" in parameters:
        if split not in ("train", "test"):
            raise UsageError(f"{spec.where}: {name} has the splits train and test", hint=f"torchvision:{name}/test")
        return {"train": split == "train"}

    # The class takes the name of the split.
    if "split" in parameters:
        if not split:
            raise UsageError(f"{spec.where}: {name} needs a split", hint=f"for example torchvision:{name}/test")
        return {"split": split}

    # The set has no splits.
    if split:
        raise UsageError(f"{spec.where}: {name} has no splits", hint=f"torchvision:{name}")
    return {}
