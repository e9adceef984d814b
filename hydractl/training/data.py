"""Batches of a training from data sets: labelled samples, augmented images, or pairs of images and captions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hydractl.data import batches, open_data
from hydractl.data.base import PAIRS, Dataset
from hydractl.data.batching import longest_first
from hydractl.data.part import DatasetPart
from hydractl.data.text import cut_warning, warning_of_cut
from hydractl.distributed import Processes
from hydractl.errors import InputError, UsageError
from hydractl.families.base import ImageFormat, ModelFamily
from hydractl.families.config_json import Preprocessing
from hydractl.families.pixels import in_mode, upright
from hydractl.families.torchvision_operators import declare_operators
from hydractl.log import Log
from hydractl.model.runtime import move
from hydractl.model.source import Source
from hydractl.training.members import AnyModel
from hydractl.training.options import TrainOptions

declare_operators()

from torchvision.transforms import InterpolationMode, v2  # noqa: E402

SMALLEST_SHARE = 0.08
"""The smallest share of an image that a crop takes by default, as in torchvision and timm."""

CACHE_BYTES = 1 << 30
"""Preprocessed inputs up to this size in bytes stay in memory instead of being made anew each epoch."""

_USUAL_STRENGTH = "2:12"
"""The default strength of RandAugment: how many operations are applied to an image, and their magnitude."""

COUNTED = 100_000
"""How many captions are checked before a training for being too long."""
_CAPTION_ALONE = ("{label}",)

Batches = Callable[[Sequence[int], int], Iterator[tuple[Any, Any]]]
"""A function from sample indices and the epoch (from 0) to batches of (inputs, labels) or (images, captions).

The batches are on the model's device. Each has the batch size divided by the number of processes; the last batch of an
epoch may be smaller."""

ValidationBatches = Callable[[], Iterator[tuple[Any, Tensor]]]
"""A function that goes once through this process's validation samples, in batches of (inputs, labels) on the device."""

NumberedSamples = list[tuple[int, Any]]
"""The samples of a batch, each with its index in the data set."""


@dataclass
class TrainingData:
    """The training set of a loop and optionally a validation set, as one process reads them; ``size`` in samples."""

    size: int
    batches: Batches
    validation: ValidationBatches | None = None


def training_data(
    model: AnyModel, train_set: Dataset, val_set: Dataset | None, options: TrainOptions, team: Processes
) -> TrainingData:
    """Return the data of a training as this process reads them: functions that yield its share of the batches.

    Each of n processes reads an n-th of every training batch, and an n-th of the validation set in whole batches.

    Args:
        model: the model that reads the data.
        train_set: labelled samples, or pairs of image and caption.
        val_set: labelled samples, or None.
        options: the options of the training.
        team: the processes that train together.

    Raises:
        UsageError: the batch cannot be divided among the processes, or texts are to be augmented.
    """
    batch_size = options.batch_size
    workers = options.workers
    if batch_size % team.size:
        raise UsageError(f"--batch-size {batch_size} cannot be divided among {team.size} processes")

    # Only training data are augmented.
    augmentation = None
    if options.augment:
        preprocess = model.description.preprocess
        augmentation = Augmentation(options.augment, model.family, preprocess, options.seed)

    batch_size_of_process = batch_size // team.size
    read_train = Reader(model, train_set, batch_size_of_process, workers, augmentation)
    validation = None
    if val_set is not None:
        # A single process reads texts of similar length together, which saves padding. Of n processes, the one of rank
        # r reads the samples r, r + n, r + 2n, ...
        order = longest_first(val_set) if team.size == 1 else range(team.rank, len(val_set), team.size)
        first_epoch = 0
        validation = partial(Reader(model, val_set, batch_size, workers), order, first_epoch)
    return TrainingData(len(train_set), read_train, validation)


def report_all_cut(model: AnyModel, datasets: Iterable[Dataset | None], log: Log) -> None:
    """Warn about texts and captions in some data sets that are longer than the model reads."""
    for dataset in datasets:
        if dataset is None:
            continue
        if dataset.captions is not None:
            log.warn_all([_warning_of_cut_captions(model, dataset, dataset.captions[:COUNTED])])
        else:
            log.warn_all([cut_warning(dataset, model.preprocess)])


def _warning_of_cut_captions(model: AnyModel, dataset: Dataset, texts: Sequence[str]) -> str | None:
    """Return a warning if some captions are longer than the model reads, so that it cuts them; None if all fit.

    Args:
        model: the model that reads the captions.
        dataset: the pairs of image and caption.
        texts: the captions that are looked at: the first 100,000 of the set.
    """
    description = model.description
    too_long, most_tokens = model.family.too_long(description.config, description.preprocess, texts)
    if not too_long:
        return None

    # Say how many of how many are cut.
    looked_at = f"{len(texts)}"
    if len(texts) < len(dataset):
        looked_at = f"the first {len(texts):,}"
    return warning_of_cut(dataset, too_long, looked_at, most_tokens, "captions")


def open_pairs(source: Source, options: TrainOptions) -> Dataset:
    """Return the pairs of image and caption to train on.

    Raises:
        UsageError: the model has a classifier, so it does not compare images with texts.
        InputError: the data are not pairs, or fewer pairs than one step takes.
    """
    if source.family.classes(source.description.config) is not None:
        raise UsageError(
            f"--loss contrastive: {source.name} has a classifier and does not compare images with texts",
            hint="train a CLIP, or leave --loss out",
        )
    dataset = open_data(options.train, limit=options.limit, reads={source.name: PAIRS})
    if len(dataset) < options.per_step:
        raise InputError(
            f"{options.train} has {len(dataset)} pairs, and a step compares {options.per_step}",
            hint="lower --batch-size or --accumulate",
        )
    return dataset


# --- augmentation -----------------------------------------------------------------------------------------------------
#
# Random changes of training images depend only on (seed, epoch, sample): an image is changed in the same way with any
# number of worker processes, and after a run was resumed.


class Numbered(DatasetPart):
    """A data set that returns each sample with its index, on which random changes of the sample depend."""

    def __init__(self, base: Dataset) -> None:
        super().__init__(base, base.spec, range(len(base)))

    def _sample(self, i: int) -> tuple[int, Any]:
        return i, super()._sample(i)

    def fingerprint_of(self, sample: tuple[int, Any]) -> str:
        """Return the fingerprint of a sample without its index."""
        return super().fingerprint_of(sample[1])


class Augmentation:
    """Augmentation of the images of one model.

    Args:
        items: ``crop[:SMALLEST SHARE]``, ``flip``, ``randaugment[:N:M]``; they are applied in this order.
        family: the family of the model.
        preprocess: the preprocessing of the checkpoint, with its size, mean, standard deviation and interpolation.
        seed: the seed of all random changes.

    Raises:
        UsageError: the model reads texts.
    """

    def __init__(self, items: Sequence[str], family: ModelFamily, preprocess: Preprocessing, seed: int) -> None:
        """Set up the random changes, and after them the conversion to the model's input, as one function of an image.

        Args:
            items: the changes, ``crop[:SMALLEST SHARE]``, ``flip`` and ``randaugment[:N:M]``.
            family: the family of the model's architecture.
            preprocess: the preprocessing of the checkpoint, with its size, mean, standard deviation and interpolation.
            seed: the seed of all random changes.
        """
        if preprocess.get("kind") == "text":
            raise UsageError(f"--augment {','.join(items)}: the model reads texts")
        values = {}
        for item in items:
            name, _, value = item.partition(":")  # NAME:VALUE, or NAME for the default, with an empty value
            values[name] = value
        image_format = family.image_format(preprocess)
        channels, _, _ = image_format.size
        self._seed = seed
        self._turns = family.turns_images
        self._mode = "L" if channels == 1 else "RGB"
        changes = _random_changes(values, image_format)

        # After the changes, convert the image. A crop has the model's size already: scale its pixels to 0..1 and
        # normalise them. Without a crop, do what evaluation does, which also resizes.
        has_model_size = "crop" in values
        if has_model_size:
            to_float = v2.ToDtype(torch.float32, scale=True)
            normalize = v2.Normalize(list(image_format.mean), list(image_format.std))
            changes += [v2.ToImage(), to_float, normalize]
        else:
            as_in_evaluation = family.collate(preprocess)
            changes.append(lambda image: as_in_evaluation([image])[0])
        self._change: Callable[[Any], Tensor] = v2.Compose(changes)

    def collate(self, samples: NumberedSamples, epoch: int) -> Tensor:
        """Return the inputs ``[B, C, H, W]`` of samples of a :class:`Numbered` data set in an epoch."""
        # Restore torch's generator afterwards: dropout, which uses it, is not affected by these draws.
        with torch.random.fork_rng(devices=[]):
            return torch.stack([self._augmented(image, epoch, number) for number, image in samples])

    def _augmented(self, image: Any, epoch: int, number: int) -> Tensor:
        """Return one image, changed at random and converted to the model's input, ``[C, H, W]``.

        The change depends on nothing but the seed of the training, the epoch and ``number``, the index of the sample.
        """
        # Derive a seed from these three.
        text = f"hydractl.augment/1 {self._seed} {epoch} {number}"
        digest = hashlib.sha256(text.encode()).digest()
        first_bytes = digest[:8]
        seed = int.from_bytes(first_bytes, "big") >> 1  # 63 bits, since torch's seeds are signed

        # torchvision draws from torch's generator of the CPU. torch.manual_seed would seed those of GPUs as well.
        torch.default_generator.manual_seed(seed)
        if self._turns:
            image = upright(image)
        in_colours = in_mode(image, self._mode)
        return self._change(in_colours)


def _random_changes(values: Mapping[str, str], image_format: ImageFormat) -> list[Callable[[Any], Any]]:
    """Return the random changes of an image, in order.

    Args:
        values: the changes by name: ``crop`` with its smallest share of the image, ``randaugment`` with ``N:M``,
            ``flip``; an empty value means the default.
        image_format: the image format of the model.
    """
    changes: list[Callable[[Any], Any]] = []

    # A random part of the image, resized to the size of the model.
    if "crop" in values:
        smallest = float(values["crop"] or SMALLEST_SHARE)
        _, height, width = image_format.size
        interpolation = InterpolationMode(image_format.interpolation)
        crop = v2.RandomResizedCrop((height, width), scale=(smallest, 1.0), interpolation=interpolation)
        changes.append(crop)

    # Mirrored left to right, half of the time.
    if "flip" in values:
        flip = v2.RandomHorizontalFlip()
        changes.append(flip)

    # N random operations of magnitude M, as "N:M".
    if "randaugment" in values:
        strength = values["randaugment"] or _USUAL_STRENGTH
        count, magnitude = strength.split(":")
        operations = v2.RandAugment(int(count), int(magnitude))
        changes.append(operations)
    return changes


# --- batches ----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads batches for given indices and an epoch: inputs and labels, or images ``[B, C, H, W]`` and captions.

    Args:
        model: the model that reads the batches.
        dataset: a set of labelled samples, or of pairs.
        size: how many samples a batch has.
        workers: how many processes prepare samples; None means :func:`hydractl.data.batching.default_workers`.
        augmentation: changes the images. Without it, inputs are prepared as in evaluation; if they are tensors of one
            size that take less than :data:`CACHE_BYTES`, they are prepared once and kept.
    """

    def __init__(
        self,
        model: AnyModel,
        dataset: Dataset,
        size: int,
        workers: int | None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """Also prepare all inputs now, if they are not augmented and fit into memory."""
        self._model = model
        self._size = size
        self._workers = workers

        # Of pairs the captions are the targets instead of labels.
        self._samples = dataset
        self._augmentation = augmentation
        self._memory: Tensor | None = None
        if augmentation is None:
            self._memory = self._prepare_all()

    def __call__(self, indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield batches of inputs and targets (labels or captions), on the model's device and in its dtype.

        Args:
            indices: the samples to read, in order; each batch has the reader's size, but the last may be smaller.
            epoch: the epoch, from 0, which decides the random changes of images.
        """
        # Inputs that fit into memory were prepared once, by __init__.
        parameter = next(self._model.parameters())
        device = parameter.device
        dtype = parameter.dtype
        if self._memory is None:
            read = self._batches_from_workers(indices, epoch)
        else:
            read = self._batches_from_memory(self._memory, indices)
        for inputs, targets in read:
            yield move(inputs, device, dtype), move(targets, device, dtype)

    def _prepare_all(self) -> Tensor | None:
        """Return the prepared inputs of all samples as one tensor, ``[samples, ...]``, to be kept in memory.

        None if they are not tensors (e.g. texts), or would take more than :data:`CACHE_BYTES`, all being as large as
        the first.
        """
        samples = self._samples
        preprocess = self._model.preprocess
        first = preprocess([samples[0]])
        if not isinstance(first, Tensor):
            return None
        bytes_of_all = first.nbytes * len(samples)
        if bytes_of_all > CACHE_BYTES:
            return None
        every_sample = range(len(samples))
        parts = batches(samples, preprocess, 256, workers=self._workers, indices=every_sample)  # 256 at a time
        return torch.cat([batch.inputs for batch in parts])

    def _batches_from_memory(self, memory: Tensor, indices: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        """Yield batches of inputs and targets from the inputs of all samples in memory."""
        for start in range(0, len(indices), self._size):
            stop = start + self._size
            chunk = list(indices[start:stop])
            inputs = memory[chunk]
            yield inputs, self._targets(chunk)

    def _batches_from_workers(self, indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield batches of inputs and targets (labels or captions) that worker processes prepare.

        Images are changed at random if the reader was made with an augmentation; else they are prepared as in
        evaluation.

        Args:
            indices: the samples to read, in order.
            epoch: the epoch, from 0, which decides the random changes.
        """
        preprocess = self._model.preprocess

        def collate(samples: NumberedSamples) -> tuple[Any, Any]:
            """Return inputs and targets of samples that come with their indices; runs in the workers."""
            if self._augmentation is not None:
                inputs = self._augmentation.collate(samples, epoch)
            else:
                inputs = preprocess([sample for _, sample in samples])
            return inputs, self._targets([number for number, _ in samples])

        # The random changes of a sample depend on its index, and so do its targets: let each sample come with it.
        numbered = Numbered(self._samples)
        for batch in batches(numbered, collate, self._size, workers=self._workers, indices=indices):
            yield batch.inputs  # the pair that `collate` has returned: inputs and targets

    def _targets(self, numbers: list[int]) -> Any:
        """Return the targets of some samples, given by their indices in the data set.

        These are labels ``[B]``, or for pairs captions as the model reads them: ``{"text": [B, 1, tokens]}``.
        """
        labels = self._samples.labels
        captions = self._samples.captions
        if captions is None:
            assert labels is not None  # the set was opened with need_labels
            return torch.from_numpy(labels[numbers])

        # The family turns class names into prompts, e.g. "a photo of a {label}". Here the prompt is the caption alone.
        texts = [captions[number] for number in numbers]
        description = self._model.description
        return self._model.family.prompts(description.config, description.preprocess, texts, _CAPTION_ALONE)
