"""Start of a training: its data, and a model with given or newly drawn weights, checked against each other.

First, before any long work: new weights, a classifier of zeros, dropout, and the classes that the data name. Then the
model is made ready: adapters, the choice of trained parameters, the optimizer, and speed-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydractl.criteria.weights import prunable
from hydractl.data.base import Dataset
from hydractl.data.overlap import without_training_data
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.checkpoint import DictTensors, MappedTensors, with_tensors
from hydractl.files.header import torch_dtype
from hydractl.heads.mask import HeadMask
from hydractl.model.matching import check_labels_are_classes, named_by_data, open_labelled
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, need_classifier, with_labels
from hydractl.model.stored import sliced, stock_tensors
from hydractl.training.adapters import remove_idle
from hydractl.training.data import open_pairs
from hydractl.training.members import AnyModel, Together
from hydractl.training.options import OptimizerOptions, TrainOptions, WeightOptions


@dataclass(frozen=True)
class Opened:
    """The data and the model that a training starts with.

    Attributes:
        members: the model, with the weights and the class names it starts from; the start of each of several models
            that are trained together.
        train_set: the samples it is trained on.
        val_set: the samples it is validated on, or None.
        left_out: how many samples of ``--val`` are not in ``val_set`` because they are training data.
        drawn: names of the tensors that the model did not have before and that were drawn at random.
    """

    members: tuple[Source, ...]
    train_set: Dataset
    val_set: Dataset | None
    left_out: int
    drawn: tuple[str, ...]

    @property
    def source(self) -> Source:
        """The model, the first of several."""
        return self.members[0]

    @property
    def data_sets(self) -> list[Dataset]:
        """The training data, and the validation data if there are any."""
        return [self.train_set] if self.val_set is None else [self.train_set, self.val_set]


def open_all(source: Source, options: TrainOptions) -> Opened:
    """Return the data of a training, and the model or models that it starts from.

    Training data are labelled samples, or with ``--loss contrastive`` pairs of image and caption. Validation data lack
    the samples that are training data, too.

    Args:
        source: the model as given: a classifier, a body without a classifier, or a model that compares images with
            texts.
        options: the options of the training.

    Raises:
        InputError: the data do not fit the model or each other.
        UsageError: the options ask for a start that the model does not have.
    """
    # The weights to start from: the model's, or new random ones. The zeros of pruned weights have to
    # stay, so an adapter and members that are trained together are refused for such a model.
    _refuse_filling_zeros(source, options)
    start = drawn(source, options.seed) if options.init == "random" else source
    drawn_names: tuple[str, ...] = ()
    if options.loss == "contrastive":
        # Pairs of images and captions have no classes, and the model has no classifier. The class names come from the
        # model or ``--labels``, else from the validation set.
        train_set = open_pairs(start, options)
        if options.init == "head":
            with_drawn_head(start, options.seed)  # raises, since such a model has no classifier
        named = start if options.val is None else named_by_data(start, options.val, options.limit)
        class_names = named.description.labels
    else:
        # Give the model its classifier and class names; a zero-shot model takes the names from the data.
        if options.reset_head and start.family.classes(start.description.config) is None:
            hint = "take its tower of images alone, as CLIPForImageClassification of transformers or a model of timm"
            raise UsageError(f"--reset-head: {start.name} compares images with texts", hint=hint)
        body = named_by_data(start, options.train, options.limit)
        classifier, train_set = _open_with_classifier(body, options)
        check_labels_are_classes(train_set, classifier)
        class_names = _class_names(classifier, train_set, options.train)
        named = replace(classifier, description=replace(classifier.description, labels=class_names))
        drawn_names = _drawn_names(body, named, options)

    # Make the start of each member, if several are trained together.
    members: tuple[Source, ...] = (named,)
    if options.together is not None:
        members = options.together.sources(named, options.seed)

    # Add the validation data, if any, without samples that are training data, too.
    if options.val is None:
        return Opened(members, train_set, None, left_out=0, drawn=drawn_names)
    val_set = open_labelled(options.val, named, class_names, limit=options.limit, seed=options.seed)
    check_labels_are_classes(val_set, named)
    val_set, left_out = without_training_data(val_set, train_set)
    return Opened(members, train_set, val_set, left_out=left_out, drawn=drawn_names)


def _refuse_filling_zeros(source: Source, options: TrainOptions) -> None:
    """Raise an error for a training that would turn pruned weights, which are zero, into other numbers.

    Raises:
        UsageError: the model has pruned weights, and an adapter or members trained together are asked for.
    """
    if source.description.params_nonzero is None:
        return
    if options.adapter is not None:
        filled_by = "an adapter"
    elif options.together is not None:
        filled_by = "members together"
    else:
        return
    hint = "train its weights, or take the model as it was before they were pruned"
    raise UsageError(f"{source.name} has pruned weights, which {filled_by} would fill", hint=hint)


def _open_with_classifier(body: Source, options: TrainOptions) -> tuple[Source, Dataset]:
    """Return the model with the classifier that the training starts from, and the training data.

    The labels of the data are in the order of the model's classes. Two options choose the classifier:

    ==============  ============  ================  ====================================
    the model has   --reset-head  --init            the classifier
    ==============  ============  ================  ====================================
    any             yes           any but ``head``  new, of zeros
    a classifier    no            any but ``head``  the model's, with the names of --labels
    no classifier   no            any but ``head``  an error
    any             any           ``head``          drawn at random
    ==============  ============  ================  ====================================

    Args:
        body: the model, with or without a classifier.
        options: the options of the training.

    Raises:
        UsageError: the model has no classifier and the options do not ask for one.
    """
    # A new classifier, if it is asked for, or if the body has none.
    if options.reset_head or body.classes == 0:
        if not options.reset_head and options.init != "head":
            need_classifier(body)  # raises, since nothing asks for a classifier
        train_set = open_labelled(options.train, body, options.labels, limit=options.limit, seed=options.seed)
        classifier = with_new_head(body, train_set.label_names, _count_classes(train_set), options.seed)
    else:
        # Otherwise keep the model's own classifier. `--labels` may rename its classes.
        classifier = body
        if options.labels is not None:
            # Remove the old names first: names in another order than the old ones would be refused.
            nameless = replace(body, description=replace(body.description, labels=None))
            classifier = with_labels(nameless, options.labels)
        train_set = open_labelled(
            options.train, classifier, classifier.description.labels, limit=options.limit, seed=options.seed
        )
    if options.init == "head":
        classifier = with_drawn_head(classifier, options.seed)
    return classifier, train_set


def _class_names(source: Source, train_set: Dataset, spec: DataSpec) -> list[str] | None:
    """Return the class names of the model, or those of the training data if the model has none; None if neither has.

    Args:
        source: the model, a classifier.
        train_set: the training data.
        spec: the training data as the user gave them, for the message.

    Raises:
        InputError: the number of names is not the number of classes.
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
    """Return the names of the tensors that a model did not have before and that were drawn at random.

    Empty if the model had a classifier. The new classifier itself is listed if it was drawn (``--init head``), but not
    if it consists of zeros; other new tensors, e.g. a pooler before the classifier, are always drawn.

    Args:
        body: the model before.
        source: the same model with its new classifier.
        weights: has the option ``init``.
    """
    if body.classes != 0:
        return ()
    names_before = set(body.tensors.names())
    new_names = [name for name in source.tensors.names() if name not in names_before]
    if weights.init != "head":
        new_names = [name for name in new_names if not source.family.has_role(name, "head")]
    return tuple(new_names)


def _count_classes(dataset: Dataset) -> int:
    """Return the number of classes of a labelled set: that of its names, else the highest label + 1.

    Raises:
        UsageError: it has no names, and all labels are 0.
    """
    if dataset.label_names is not None:
        return len(dataset.label_names)
    assert dataset.labels is not None  # the set was opened with need_labels
    count = int(dataset.labels.max()) + 1
    if count < 2:
        raise UsageError(f"--reset-head: {dataset.where} has one class")
    return count


# --- the weights ------------------------------------------------------------------------------------------------------


def drawn(source: Source, seed: int) -> Source:
    """Return the model with new random weights, as its library initialises them; pruned heads stay removed.

    Args:
        source: the model, whose configuration is used, but none of its weights.
        seed: the seed of the random weights.
    """
    # The library knows no pruned heads, so draw all weights, and take out ("slice") those of the pruned heads.
    description = source.description
    initial = DictTensors(source.family.initial(description.config, seed))
    all_heads = HeadMask.full(source.sites)
    present = sliced(initial, source.family, source.sites, all_heads, description.mask)
    extra = dict(description.extra)
    extra.pop("sparse", None)  # describes the old weights
    return replace(source, description=replace(description, extra=extra), tensors=present, drawn_by=seed)


def with_new_head(source: Source, labels: list[str] | None, classes: int, seed: int = 0) -> Source:
    """Return the model with a classifier of zeros for these classes, and with all other tensors a classifier needs.

    Args:
        source: a classifier, or a body.
        labels: names of the classes, or None if they have no names.
        classes: the number of classes.
        seed: draws what else a body lacks (e.g. a pooler, a dense layer before the last), in the way of its library.
    """
    family = source.family

    # `expected` has every tensor of the new architecture. The classifier itself starts from zeros.
    config = family.with_classes(source.description.config, classes)
    expected = stock_tensors(family, config)
    head = _classifier_tensors(source, expected, "--reset-head")
    new_tensors = {name: torch.zeros(tensor.shape) for name, tensor in head.items()}

    # Other tensors that the body lacks are drawn, since they could not learn from zeros.
    names_before = set(source.tensors.names())
    lacking = expected.keys() - names_before - head.keys()
    if lacking:
        initial = family.initial(config, seed)
        for name in lacking:
            new_tensors[name] = initial[name]
    description = replace(source.description, config=config, labels=None if labels is None else list(labels))
    tensors = _with_new_tensors(source, new_tensors)
    return replace(source, description=description, tensors=tensors)


def with_drawn_head(source: Source, seed: int) -> Source:
    """Return the model with its classifier drawn in the way of its library.

    Raises:
        UsageError: for a model without a classifier.
    """
    config = source.description.config
    initial = source.family.initial(config, seed)
    head = _classifier_tensors(source, initial, "--init head")
    tensors = _with_new_tensors(source, head)
    return replace(source, tensors=tensors)


def _classifier_tensors(source: Source, tensors: Mapping[str, Tensor], option: str) -> dict[str, Tensor]:
    """Return those of some tensors that belong to the classifier, by name.

    Args:
        source: the model, whose architecture says which tensors these are.
        tensors: all weights of a model of this architecture, by name.
        option: the option that asks for a classifier, for messages.

    Raises:
        UsageError: the architecture has no classifier.
    """
    head = {name: tensor for name, tensor in tensors.items() if source.family.has_role(name, "head")}
    if not head:
        raise UsageError(f"{option}: {source.description.arch} has no classifier that can be made anew")
    return head


def _with_new_tensors(source: Source, tensors: Mapping[str, Tensor]) -> MappedTensors:
    """Return the weights of a model with some tensors replaced or added.

    A tensor that replaces one of the same name gets its dtype; a tensor with a new name is added as it is.
    """
    names_before = set(source.tensors.names())
    typed = {}
    for name, tensor in tensors.items():
        if name in names_before:
            tensor = tensor.to(torch_dtype(source.tensors.info(name)))
        typed[name] = tensor
    return with_tensors(source.tensors, typed)


def with_dropout(source: Source, rate: float | None) -> Source:
    """Return the model with dropout in each layer, for training; with None, the model as it is."""
    if rate is None:
        return source
    config = source.family.with_dropout(source.description.config, rate)
    return replace(source, description=replace(source.description, config=config))


# --- the model made ready ---------------------------------------------------------------------------------------------


def adapt(model: HydraModel, options: TrainOptions) -> None:
    """Put the adapter of the options on a model, in place: a few numbers that are trained instead of the weights.

    Args:
        model: a model with one member.
        options: the adapter, if there is one, the seed of the numbers that it draws, and which weights are to be
            trained: only these get the adapter.

    Raises:
        UsageError: in the same cases as :func:`trainable`.
    """
    if options.adapter is not None:
        options.adapter.add(model, options.seed)
        trainable(model, options)  # marks the trained parameters; weights whose adapter is not trained lose it again
        remove_idle(model)


def trainable(model: AnyModel, options: WeightOptions) -> dict[str, nn.Parameter]:
    """Mark the parameters that are trained (``requires_grad``), and return them.

    Without options these are all parameters. With ``--train-last N`` they are those of the last N blocks of each tower,
    its final norm and the classifier. A tower is a stack of blocks: an image or a text encoder; a CLIP has one of each.

    Args:
        model: a model with one member, or members that are trained together.
        options: which weights are trained; with an adapter, only the adapter and the classifier.

    Returns:
        The parameters that are trained, by name within the model.

    Raises:
        UsageError: a tower has fewer blocks, the model has no such part, or nothing is left to train.
    """
    for member in _models_of(model):
        frozen = _frozen_names(member, options)
        for name, parameter in member.networks[0].named_parameters():
            parameter.requires_grad_(name not in frozen)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise UsageError("nothing is left to train", hint="raise --train-last, or freeze less")
    return trained


def _models_of(model: AnyModel) -> list[HydraModel]:
    """Return the models that a training trains, each with one member."""
    return model.each if isinstance(model, Together) else [model]


def _frozen_names(model: HydraModel, options: WeightOptions) -> set[str]:
    """Return the names of the parameters that are frozen, i.e. not trained.

    A parameter is frozen if any of these say so:

    * ``--tower`` and ``--train-last``, which choose an encoder and its last blocks,
    * the library, which never trains it,
    * ``--freeze``, which names parts of the model,
    * an adapter, which is trained instead of the weights.

    Raises:
        UsageError: the model has no such part, or a tower has fewer blocks.
    """
    names = [name for name, _ in model.networks[0].named_parameters()]

    # By --tower and --train-last.
    prefixes = _frozen_prefixes(model, options)
    frozen = {name for name in names if name.startswith(prefixes)}

    # By the library: e.g. sines and cosines of positions are parameters that the library never trains.
    library_model = model.family.build(model.description.config)
    frozen.update(name for name, parameter in library_model.named_parameters() if not parameter.requires_grad)

    # By --freeze. If a recipe (a set of defaults) and not the user has set it, it may name parts that are not there.
    for part in options.freeze:
        names_of_part = part_names(model, part, names)
        if not names_of_part and not options.lenient:
            raise UsageError(f"--freeze {part}: {model.description.arch} has no such part")
        frozen.update(names_of_part)

    # With an adapter, only the adapter and the classifier are trained.
    if options.adapter is not None:
        adapted = options.adapter.trains(model)
        frozen.update(name for name in names if name not in adapted and not model.family.has_role(name, "head"))
    return frozen


def _frozen_prefixes(model: HydraModel, options: WeightOptions) -> tuple[str, ...]:
    """Return the beginnings of the names of parameters that ``--tower`` and ``--train-last`` freeze; perhaps none.

    A tower is a stack of blocks: an image or a text encoder; a CLIP has one of each. With ``--train-last 2``, of 12
    blocks the first 10 are frozen, and what comes before them.

    Raises:
        UsageError: ``--train-last`` exceeds the number of blocks of a tower.
    """
    blocks_to_train = options.train_last
    prefixes: list[str] = []
    for stages in model.family.stages(model.networks[0]):
        blocks = len(stages.block_paths)
        if options.tower not in (None, "both", stages.tower):
            prefixes += stages.prefixes  # the whole tower
        elif blocks_to_train is not None:
            # Freeze everything before the last blocks: the stem (e.g. embeddings) and the first blocks.
            if blocks_to_train > blocks:
                raise UsageError(f"--train-last {blocks_to_train} is outside 0..{blocks}, the blocks of the model")
            prefixes += stages.stem_prefixes
            for index in range(blocks - blocks_to_train):
                prefixes += stages.prefixes_of(index)
    return tuple(prefixes)


def kept_weights(model: AnyModel, options: WeightOptions) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the trained matrices of a model with pruned weights, each with a mask of the weights that are not zero.

    The caller multiplies gradients by the mask. Pruned weights then stay zero: without a gradient, no optimizer moves
    them, nor does weight decay. A new classifier that starts from zeros is not pruned, and is left out.

    Returns:
        Each matrix (and bias, if biases were pruned too) with a bool tensor of its shape, True where the weight is not
        zero; empty for a model without pruned weights.
    """
    kept = []
    for member in _models_of(model):
        if member.description.params_nonzero is None:
            continue

        # Only weights that pruning could have removed have zeros to keep, and only trained ones could lose them.
        with_biases = member.description.extra["sparse"].get("biases", False)
        removable = prunable(member.networks[0], with_biases=with_biases)
        trained = {name: weight for name, weight in removable.items() if weight.requires_grad}

        # Leave out a new classifier, whose zeros are its start.
        names_of_new_head: list[str] = []
        if options.reset_head:
            names_of_new_head = part_names(member, "head", list(trained))
        for name, matrix in trained.items():
            if name not in names_of_new_head:
                is_kept = matrix.detach() != 0
                kept.append((matrix, is_kept))
    return kept


def part_names(model: HydraModel, part: str, names: Sequence[str]) -> list[str]:
    """Return the names of the parameters that belong to one part of a model; empty if it has no such part.

    Args:
        model: a model with one member.
        part: ``stem``, ``attention``, ``mlp``, ``norm``, or a part that the family names, such as ``head``.
        names: the names of parameters to choose from.
    """
    family = model.family
    if part == "stem":  # what comes before the blocks, in each tower
        stems = [prefix for stages in family.stages(model.networks[0]) for prefix in stages.stem_prefixes]
        return [name for name in names if name.startswith(tuple(stems))]

    # Parts that every model has.
    if part in ("attention", "mlp", "norm"):
        return [name for name in names if _part_of_parameter(model, name) == part]

    # Parts that only the family knows, e.g. the classifier, by patterns of names.
    return [name for name in names if family.has_role(name, part)]


def _part_of_parameter(model: HydraModel, name: str) -> str:
    """Return the part of a model that a parameter belongs to: ``attention``, ``mlp``, ``norm`` or another."""
    # hydractl names the projections of heads itself, inside the path of their attention layer (site).
    inside = tuple(f"{site.path}." for site in model.sites)
    if name.startswith(inside) and ".members." in name:
        return "attention"
    return model.family.part(name)


def make_optimizer(parameters: Sequence[nn.Parameter], options: OptimizerOptions, lr: float) -> torch.optim.Optimizer:
    """Return AdamW or SGD for the parameters, without weight decay of biases, norms and other vectors.

    Args:
        parameters: what is trained, at least one, all on one device.
        options: which optimizer, and its settings.
        lr: the learning rate.
    """
    # Biases and the scales and shifts of norms are vectors or single numbers; weights have two axes or more.
    with_decay = [parameter for parameter in parameters if parameter.ndim > 1]
    without_decay = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups: list[dict[str, object]] = [
        {"params": with_decay, "weight_decay": options.weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    device = parameters[0].device
    # The fused implementation is faster; torch has it for these devices. None lets torch decide.
    fused = True if device.type in ("cpu", "cuda") else None
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=options.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=lr, betas=options.betas, eps=options.eps, fused=fused)


def speed_up(model: HydraModel, *, checkpoint_blocks: bool, compile: bool) -> None:
    """Make a model train faster or in less memory, in place; results stay the same.

    Args:
        model: a model with one member.
        checkpoint_blocks: compute the activations of each block again in the backward pass instead of keeping them:
            bitwise equal, a third more work, far less memory.
        compile: compile the whole network as one graph.
    """
    if checkpoint_blocks:
        for path in model.block_paths:
            block = model.networks[0].get_submodule(path)
            block.forward = partial(_checkpointed, block)  # in a deep copy of the model, the copied block
    if compile:
        model.compile()


def _checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a block's own forward method; in training, do not keep its activations for the backward pass."""
    forward = partial(type(block).forward, block)
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
