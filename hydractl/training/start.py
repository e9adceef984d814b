"""Start of a training: data, and a model with the given weights or drawn ones, checked against each other.

Before any long work: weights drawn anew, a classifier of zeros, dropout, the classes that the data name. Then the model
made ready: adapters, which parameters are trained, by which optimizer, and speed-ups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydractl.criteria.weights import biases, matrices
from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.data.overlap import GivenSet, Validation, without_training_data
from hydractl.errors import InputError, UsageError
from hydractl.files.checkpoint import DictTensors, MappedTensors, with_tensors
from hydractl.files.header import torch_dtype
from hydractl.heads.mask import HeadMask
from hydractl.model.matching import check_labels_are_classes, named_by_data
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, need_classifier, with_labels
from hydractl.model.stored import sliced
from hydractl.training.adapters import remove_idle
from hydractl.training.data import open_pairs
from hydractl.training.members import AnyModel, Together
from hydractl.training.options import OptimizerOptions, TrainingDataOptions, TrainOptions, WeightOptions

_MATCHES_NOTHING = "$."
"""The pattern of the names of a part that a model does not have."""


@dataclass(frozen=True)
class Opened:
    """Data and model as a training starts.

    Attributes:
        source: the model with the weights, the classes and the names it starts from.
        train_set: the samples it is trained on.
        val_set: the samples it is validated on, or None.
        drawn: names of the tensors that a body did not have and that were drawn.
        members: the start of each model that is trained; the first of them is ``source``. Empty: that one.
        left_out: how many samples of ``--val`` are not in ``val_set``, as they are training data.
    """

    source: Source
    train_set: Dataset
    val_set: Dataset | None
    drawn: tuple[str, ...] = ()
    members: tuple[Source, ...] = ()
    left_out: int = 0


def open_all(source: Source, options: TrainOptions) -> Opened:
    """Open the data of a training and set up the model that it starts from.

    Args:
        source: the model as it was given: a classifier, a body without one, or a model that compares images with texts.
        options: of the training.

    Raises:
        InputError: for data that do not fit the model or each other.
        UsageError: for a start that the model does not have.
    """
    _refuse_filling_zeros(source, options)
    start = source
    if options.weights.init == "random":
        start = drawn(source, options.seed)
    if options.loss.name == "contrastive":
        return _open_contrastive(start, options)

    # The classifier, its classes named. A zero-shot model takes their names from the data.
    body = named_by_data(start, options.data.train, options.data.limit, "--train")
    classifier, train_set = _open_with_classifier(body, options)
    check_labels_are_classes(train_set, classifier)
    class_names = _class_names(classifier, train_set, options.data.train)
    named = replace(classifier, description=replace(classifier.description, labels=class_names))

    # Several of it where members are trained together.
    members: tuple[Source, ...] = (named,)
    if options.together is not None:
        members = options.together.sources(named, options.seed)
    without_validation = Opened(
        source=members[0],
        train_set=train_set,
        val_set=None,
        drawn=_drawn_names(body, named, options.weights),
        members=members,
    )
    validation = _open_validation(named, options.data, train_set, class_names)
    if validation is None:
        return without_validation
    return replace(without_validation, val_set=validation.dataset, left_out=validation.left_out)


def _refuse_filling_zeros(source: Source, options: TrainOptions) -> None:
    """Refuse to train a model with pruned weights in a way that makes other numbers of its zeros.

    Raises:
        UsageError: for an adapter, or members together, of a model with pruned weights.
    """
    if source.description.params_nonzero is None:
        return
    if options.weights.adapter is not None:
        filled_by = "an adapter"
    elif options.together is not None:
        filled_by = "members together"
    else:
        return
    hint = "train its weights, or take the model as it was before they were pruned"
    raise UsageError(f"{source.name} has pruned weights, which {filled_by} would fill", hint=hint)


def _open_with_classifier(body: Source, options: TrainOptions) -> tuple[Source, Dataset]:
    """Open the training data, and give the model the classifier that the training starts from.

    Args:
        body: the model, with or without a classifier.
        options: of the training.

    Returns:
        The model with its own classifier or a new one for the classes of the data; and the data, whose labels are in
        the order of its classes.

    Raises:
        UsageError: the model has no classifier and none is to be made, or one of another size than ``--classes`` says.
    """
    weights = options.weights
    if weights.reset_head:
        return _open_with_new_classifier(body, options)
    if body.classes == 0:
        if weights.init != "head":
            need_classifier(body)  # raises: nothing says that it is to get one
        return _open_with_new_classifier(body, options)

    # The model's own classifier, whose classes `--labels` may name anew.
    classifier = body
    if weights.labels is not None:
        # Names in another order than those before would be refused, so they are taken away first.
        nameless = replace(body, description=replace(body.description, labels=None))
        classifier = with_labels(nameless, weights.labels)
    class_names = classifier.description.labels
    train_set = _open_labelled(options.data.train, "--train", classifier, options.data, class_names)
    if weights.classes not in (None, classifier.classes):
        hint = "add --reset-head for a classifier of another size"
        raise UsageError(f"--classes {weights.classes}: {classifier.name} has {classifier.classes}", hint=hint)
    if weights.init == "head":
        return with_drawn_head(classifier, options.seed), train_set
    return classifier, train_set


def _open_with_new_classifier(body: Source, options: TrainOptions) -> tuple[Source, Dataset]:
    """Open the training data, and give the model a new classifier for their classes; return the model, and the data."""
    weights = options.weights
    train_set = _open_labelled(options.data.train, "--train", body, options.data, weights.labels)
    classes = _count_classes(train_set, weights.classes)
    source = with_new_head(body, train_set.label_names, classes, options.seed)
    if weights.init == "head":
        source = with_drawn_head(source, options.seed)
    return source, train_set


def _class_names(source: Source, train_set: Dataset, spec: str) -> list[str] | None:
    """Return the class names of the model; one from scratch takes those of the data it learns.

    Raises:
        InputError: they are not as many as its classes.
    """
    labels = source.description.labels
    if labels is None:
        labels = train_set.label_names
    if labels is None:
        return None
    if len(labels) != source.classes:
        raise InputError(
            f"{spec} has {len(labels)} classes, {source.name} has {source.classes}",
            hint="add --reset-head for a new classifier",
        )
    return list(labels)


def _drawn_names(body: Source, source: Source, weights: WeightOptions) -> tuple[str, ...]:
    """Return the names of the tensors that a body did not have and that were drawn at random.

    Args:
        body: the model before; one that had a classifier has got nothing that is reported.
        source: the same with its new classifier.
        weights: whether that classifier was drawn too (``init`` is ``head``), or is of zeros.
    """
    if body.classes != 0:
        return ()
    pattern_of_zeros = _MATCHES_NOTHING
    if weights.init != "head":
        pattern_of_zeros = source.family.named_parts["head"]
    names_before = set(body.tensors.names())
    drawn_names = []
    for name in source.tensors.names():
        is_new = name not in names_before
        is_zeros = re.match(pattern_of_zeros, name)
        if is_new and not is_zeros:
            drawn_names.append(name)
    return tuple(drawn_names)


def _open_validation(
    source: Source, options: TrainingDataOptions, train_set: Dataset, labels: Sequence[str] | None
) -> Validation | None:
    """Open the validation data without the samples that are training data too; None where none are asked for.

    Args:
        source: the model that is validated.
        options: with the SPEC of the data.
        train_set: the training data.
        labels: names of the classes in the order of the model; None where they have none.
    """
    if options.val is None:
        return None
    val_set = _open_labelled(options.val, "--val", source, options, labels)
    check_labels_are_classes(val_set, source)
    return without_training_data(GivenSet("--val", val_set), GivenSet("--train", train_set))


def _open_contrastive(source: Source, options: TrainOptions) -> Opened:
    """Open the pairs of a contrastive training, and labelled images to validate on if they are asked for.

    Pairs have no classes: those of the validation set are named by it, unless the model or ``--labels`` names them.
    """
    data = options.data
    train_set = open_pairs(source, data, options.per_step)
    if options.weights.init == "head":
        with_drawn_head(source, options.seed)  # raises: such a model has no classifier
    named_source = source
    if data.val is not None:
        named_source = named_by_data(source, data.val, data.limit, "--val")
    class_names = named_source.description.labels
    validation = _open_validation(named_source, data, train_set, class_names)
    if validation is None:
        return Opened(named_source, train_set, None)
    return Opened(named_source, train_set, validation.dataset, left_out=validation.left_out)


def _open_labelled(
    spec: str, option: str, source: Source, options: TrainingDataOptions, names: Sequence[str] | None
) -> Dataset:
    """Open labelled data that a model reads.

    Args:
        spec: of the data.
        option: that the SPEC was given to, for messages.
        source: the model.
        options: the limit, and the seed of its draw.
        names: of the classes, in the order that the labels are to have; None: in the data's.
    """
    return open_data(
        spec,
        option=option,
        limit=options.limit,
        seed=options.seed,
        labels=names,
        need_labels=True,
        reads={source.name: source.description.reads},
    )


def _count_classes(dataset: Dataset, asked: int | None) -> int:
    """Return the number of classes of a labelled set: by its names, else as asked for, else by its highest label.

    Args:
        dataset: the set.
        asked: what ``--classes`` says; None: nothing.

    Raises:
        UsageError: for another number than there are names, or for labels of one class.
    """
    if dataset.label_names is not None:
        count = len(dataset.label_names)
        if asked not in (None, count):
            raise UsageError(f"--classes {asked}: {count} classes have names", hint="name all of them with --labels")
        return count
    if asked is not None:
        return asked
    assert dataset.labels is not None  # it was opened with need_labels
    count = int(dataset.labels.max()) + 1
    if count < 2:
        raise UsageError(f"--reset-head: {dataset.where} has one class")
    return count


# --- the weights ------------------------------------------------------------------------------------------------------


def drawn(source: Source, seed: int) -> Source:
    """Return the same architecture with weights as its library draws them; heads that are gone stay gone."""
    description = source.description
    initial = DictTensors(source.family.initial(description.config, seed))
    all_heads = HeadMask.full(source.sites)
    present = sliced(initial, source.family, source.sites, all_heads, description.mask)
    extra = dict(description.extra)
    extra.pop("sparse", None)  # it is of the weights before
    return replace(source, description=replace(description, extra=extra), tensors=present, drawn_by=seed)


def with_new_head(source: Source, labels: list[str] | None, classes: int, seed: int = 0) -> Source:
    """Return the model with a classifier of zeros for these classes, and with whatever else its classifier needs.

    Args:
        source: a classifier, a body, or a zero-shot model, of which only the tower of images (its image encoder) stays.
        labels: names of the classes, or None where they have none.
        classes: how many.
        seed: draws what else a body lacks (a pooler, a dense layer before the last), as its library does.

    Raises:
        UsageError: for a zero-shot model whose library has no such classifier.
    """
    is_zero_shot = source.family.classes(source.description.config) is None
    body = _image_tower(source, classes) if is_zero_shot else source
    family = body.family
    config = family.with_classes(body.description.config, classes)
    expected = family.build(config).state_dict()
    head = _classifier_tensors(body, expected, "--reset-head")
    new_tensors = {name: torch.zeros(tensor.shape) for name, tensor in head.items()}

    # What a body lacks beside the classifier itself is drawn: from zeros it could not learn.
    names_before = set(body.tensors.names())
    lacking = expected.keys() - names_before - head.keys()
    if lacking:
        initial = family.initial(config, seed)
        for name in lacking:
            new_tensors[name] = initial[name]
    description = replace(body.description, config=config, labels=None if labels is None else list(labels))
    tensors = _with_new_tensors(body, new_tensors)
    return replace(body, description=description, tensors=tensors)


def _image_tower(source: Source, classes: int) -> Source:
    """Return the image encoder of a zero-shot model, as a classifier whose last layer is still missing.

    Args:
        source: a model that compares images with texts.
        classes: of the classifier.
    """
    family = source.family
    description = source.description
    arch, config, preprocess = family.image_classifier(description.config, description.preprocess, classes)
    # Its heads are those of the attention layers (sites) that are left; what was pruned there stays pruned.
    paths = [site.path for site in family.sites(config)]
    mask = description.mask.at(paths)
    names_of_classifier = set(family.build(config).state_dict())
    shared_names = names_of_classifier & set(source.tensors.names())
    infos = {name: source.tensors.info(name) for name in shared_names}
    tensors = MappedTensors(infos, source.tensors.read)
    description_of_tower = replace(
        description,
        arch=arch,
        config=config,
        preprocess=preprocess,
        masks=[mask],
        kind="dense" if mask.is_full else "pruned",
        prompt=None,
    )
    return replace(source, description=description_of_tower, tensors=tensors)


def with_drawn_head(source: Source, seed: int) -> Source:
    """Return the model with its classifier as the library draws it.

    Raises:
        UsageError: for a model without a classifier.
    """
    config = source.description.config
    initial = source.family.initial(config, seed)
    head = _classifier_tensors(source, initial, "--init head")
    tensors = _with_new_tensors(source, head)
    return replace(source, tensors=tensors)


def _classifier_tensors(source: Source, tensors: Mapping[str, Tensor], option: str) -> dict[str, Tensor]:
    """Return those of some tensors that belong to the classifier.

    Args:
        source: the model whose architecture says which these are.
        tensors: all weights of such a model, by name.
        option: that asks for a classifier, for messages.

    Raises:
        UsageError: for an architecture without a classifier.
    """
    pattern = source.family.named_parts.get("head", _MATCHES_NOTHING)
    head = {}
    for name, tensor in tensors.items():
        if re.match(pattern, name):
            head[name] = tensor
    if head:
        return head
    description = source.description
    hint = None
    is_zero_shot = source.family.classes(description.config) is None
    if is_zero_shot:
        hint = "add --reset-head"
    raise UsageError(f"{option}: {description.arch} has no classifier that can be made anew", hint=hint)


def _with_new_tensors(source: Source, tensors: Mapping[str, Tensor]) -> MappedTensors:
    """Return the weights of a model with some of them replaced, each in the dtype it had, or added as they are."""
    names_before = set(source.tensors.names())
    typed = {}
    for name, tensor in tensors.items():
        if name in names_before:
            tensor = tensor.to(torch_dtype(source.tensors.info(name)))
        typed[name] = tensor
    return with_tensors(source.tensors, typed)


def with_dropout(source: Source, rate: float | None) -> Source:
    """Return the model with dropout in each layer, for training; None: as it is."""
    if rate is None:
        return source
    config = source.family.with_dropout(source.description.config, rate)
    return replace(source, description=replace(source.description, config=config))


# --- the model made ready ---------------------------------------------------------------------------------------------


def adapt(model: HydraModel, options: WeightOptions, seed: int) -> None:
    """Put the adapter of the options on a model, in place: few numbers that are trained instead of its weights.

    Args:
        model: with one member.
        options: the adapter, if there is one, and which weights are to be trained: others get none.
        seed: of what the adapter draws.

    Raises:
        UsageError: as :func:`trainable` does.
    """
    if options.adapter is not None:
        options.adapter.add(model, seed)
        trainable(model, options)  # marks what is trained: where that is nothing of the adapter, it is taken off again
        remove_idle(model)


def trainable(model: AnyModel, options: WeightOptions) -> dict[str, nn.Parameter]:
    """Mark what is trained: everything, or the last N blocks of each tower, its final norm and the classifier.

    A tower is a stack of blocks: an image or a text encoder; a CLIP has one of each.

    Args:
        model: with one member, or of members that are trained together.
        options: which of its weights; of these, only what the adapter says and the classifier.

    Returns:
        The parameters that are trained, by name within the model.

    Raises:
        UsageError: when a tower has fewer blocks, the model has no such part, or nothing is left.
    """
    if isinstance(model, Together):
        for member in model.each:
            trainable(member, options)
        return requiring_gradients(model)
    model.requires_grad_(True)
    frozen_prefixes = _frozen_prefixes(model, options)
    frozen_names = _frozen_names(model, options)
    for name, parameter in model.networks[0].named_parameters():
        if name.startswith(frozen_prefixes) or name in frozen_names:
            parameter.requires_grad_(False)
    trained = requiring_gradients(model)
    if not trained:
        raise UsageError("nothing is left to train", hint="raise --train-last, or freeze less")
    return trained


def requiring_gradients(model: AnyModel) -> dict[str, nn.Parameter]:
    """Return the parameters of a model that are trained, by name."""
    parameters = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters[name] = parameter
    return parameters


def _frozen_prefixes(model: HydraModel, options: WeightOptions) -> tuple[str, ...]:
    """Return how the names of parameters begin that ``--tower`` and ``--train-last`` leave as they are.

    Raises:
        UsageError: when a tower has fewer blocks.
    """
    blocks_to_train = options.train_last
    prefixes: list[str] = []
    for stages in model.family.stages(model.networks[0]):
        is_to_train = options.tower in (None, "both", stages.tower)
        if not is_to_train:
            prefixes += stages.prefixes
            continue
        if blocks_to_train is None:
            continue
        blocks = len(stages.block_paths)
        if not 0 <= blocks_to_train <= blocks:
            raise UsageError(f"--train-last {blocks_to_train} is outside 0..{blocks}, the blocks of the model")
        # All that comes before the last blocks.
        prefixes += stages.stem_prefixes
        blocks_to_freeze = blocks - blocks_to_train
        for index in range(blocks_to_freeze):
            prefixes += stages.prefixes_of(index)
    return tuple(prefixes)


def _frozen_names(model: HydraModel, options: WeightOptions) -> set[str]:
    """Return the names of parameters that the library, ``--freeze`` or an adapter leaves as they are.

    Raises:
        UsageError: the model has no such part.
    """
    names = [name for name, _ in model.networks[0].named_parameters()]
    frozen = set()

    # Sines and cosines of positions are parameters that the library itself never trains.
    library_model = model.family.build(model.description.config)
    for name, parameter in library_model.named_parameters():
        if not parameter.requires_grad:
            frozen.add(name)

    for part in options.freeze:
        names_of_part = part_names(model, part, names)
        if not names_of_part and not options.lenient:
            raise UsageError(f"--freeze {part}: {model.description.arch} has no such part")
        frozen.update(names_of_part)

    # With an adapter nothing is trained but itself and the classifier.
    if options.adapter is not None:
        head_pattern = model.family.named_parts.get("head", _MATCHES_NOTHING)
        adapted = options.adapter.trains(model)
        for name in names:
            is_trained = name in adapted or re.match(head_pattern, name)
            if not is_trained:
                frozen.add(name)
    return frozen


def kept_weights(model: AnyModel, options: WeightOptions) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the trained weights of a model with pruned ones, each with a mask of the weights that are left.

    Where the gradient is multiplied by the mask, pruned weights stay zero: without a gradient no optimizer moves them,
    nor does weight decay. A classifier that starts from zeros is no pruned one.

    Returns:
        Each matrix and a bool tensor of its shape, True where it is not zero; empty for a model without pruned weights.
    """
    if isinstance(model, Together):
        weights_of_all = []
        for member in model.each:
            weights_of_all += kept_weights(member, options)
        return weights_of_all
    if model.description.params_nonzero is None:
        return []
    removable = matrices(model.networks[0])
    if model.description.extra["sparse"].get("biases", False):
        removable.update(biases(model.networks[0]))
    trained = {name: weight for name, weight in removable.items() if weight.requires_grad}
    names_of_new_head: list[str] = []
    if options.reset_head:
        names_of_new_head = part_names(model, "head", list(trained))
    kept = []
    for name, matrix in trained.items():
        if name not in names_of_new_head:
            is_kept = matrix.detach() != 0
            kept.append((matrix, is_kept))
    return kept


def part_names(model: HydraModel, part: str, names: Sequence[str]) -> list[str]:
    """Return which of some parameters belong to one part of a model; none where it has no such part.

    Args:
        model: with one member.
        part: ``stem``, ``attention``, ``mlp``, ``norm``, or a part that the family names, such as ``head``.
        names: of its parameters.
    """
    family = model.family
    if part == "stem":
        prefixes: list[str] = []
        for stages in family.stages(model.networks[0]):
            prefixes += stages.stem_prefixes
        return [name for name in names if name.startswith(tuple(prefixes))]
    if part in ("attention", "mlp", "norm"):
        return [name for name in names if _part_of_parameter(model, name) == part]
    pattern = family.named_parts.get(part)
    if pattern is None:
        return []
    return [name for name in names if re.match(pattern, name)]


def _part_of_parameter(model: HydraModel, name: str) -> str:
    """Return the part of a model that a parameter belongs to: ``attention``, ``mlp``, ``norm`` or another."""
    # The projections of the heads have names of hydractl's own here, inside the path of their attention layer (site).
    inside = tuple(f"{site.path}." for site in model.sites)
    if name.startswith(inside) and ".members." in name:
        return "attention"
    return model.family.part(name, model.sites)


def make_optimizer(parameters: Sequence[nn.Parameter], options: OptimizerOptions, lr: float) -> torch.optim.Optimizer:
    """Build AdamW or SGD, without weight decay on biases, norms and other vectors; with fused kernels on CPU and CUDA."""
    with_decay = []
    without_decay = []
    for parameter in parameters:
        if parameter.ndim > 1:
            with_decay.append(parameter)
        else:
            without_decay.append(parameter)
    groups: list[dict[str, object]] = [
        {"params": with_decay, "weight_decay": options.weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    device = parameters[0].device
    fused = True if device.type in ("cpu", "cuda") else None  # None: torch decides
    if options.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=options.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=lr, betas=options.betas, eps=options.eps, fused=fused)


def speed_up(model: HydraModel, *, checkpoint_blocks: bool, compile: bool) -> None:
    """Make a model train faster or in less memory, in place; the result stays what it is.

    Args:
        model: with one member.
        checkpoint_blocks: compute the activations of each block again in the backward pass instead of keeping them:
            the same bits, a third more work, far less memory.
        compile: compile the whole network as one graph.
    """
    if checkpoint_blocks:
        for path in model.block_paths:
            block = model.networks[0].get_submodule(path)
            block.forward = partial(_checkpointed, block)  # in a copy of the model, of the copied block
    if compile:
        model.compile()


def _checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a block as its class does; in training, without keeping its activations for the backward pass."""
    forward = partial(type(block).forward, block)
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
