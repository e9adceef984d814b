"""Interface of a model family. Everything that is specific to a library stays behind it."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.families.config_json import LibraryConfig, Preprocessing
from hydractl.families.pixels import input_size, random_pixels
from hydractl.files.checkpoint import TensorSource
from hydractl.heads.mask import Site
from hydractl.heads.weights import COMMON, HeadWeights

MERGEABLE = ("mlp", "norm", "embed")
"""The parts of a model that fusing may average."""


@dataclass
class State:
    """State of the residual stream between blocks.

    Attributes:
        hidden: ``[B, T, d_model]``, or ``[M * B, T, d_model]`` member-major.
        context: other inputs of every block (attention masks); never changed by a block.
    """

    hidden: Tensor
    context: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Projection:
    """The last linear layer of a tower whose features are compared, e.g. CLIP's visual projection.

    Attributes:
        inputs: computes the inputs of the layer, ``[B, prompts, d]``, from the state after the last block; an image
            counts as one prompt.
        parameters: returns the weight ``[D, d]`` and the bias ``[D]`` of the layer; the bias is None if it has none.
    """

    inputs: Callable[[State], Tensor]
    parameters: Callable[[], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Stages:
    """One tower of a model, cut where the residual stream can be looked at: ``readout(blocks(stem(inputs)))``.

    Attributes:
        stem: computes the state before the first block from the inputs of the library's model.
        blocks: one function from state to state for each site (attention block), in model order.
        block_paths: the dotted module name of each block.
        merging: the module that merges tokens before a block (patch merging of Swin), by the index of the block. The
            function of the block in ``blocks`` already calls it.
        spans: for each block, the number of its tokens as a share of the tokens after the stem, and the number of
            windows in which they attend. Empty means that every block attends to all tokens in one window.
        stem_prefixes: the beginnings of the names of all parameters that the stem uses.
        readout: computes the output of the tower from the state after the last block: logits ``[B, classes]`` if the
            model has one tower, otherwise features ``[B, D]``, which :meth:`ModelFamily.logits` combines. If ``reads``
            is set, it also takes a state with only the tokens that it reads, ``[B, k, d_model]``, whose context has
            the entry ``read``.
        attention_input: a function from the state before the last block to the inputs of its attention,
            ``[B, T, d_model]``; only needed with ``reads``.
        reads: computes the positions ``[B, k]`` of the only tokens that the readout uses, from any state of the tower;
            None means that it uses all tokens.
        per_sample: the keys of the context whose tensors have the samples in dimension 0.
        per_member: the keys of the context whose tensors depend on weights. If the stems of ensemble members differ,
            these tensors are ``[M, ...]``.
        tower: the name of the tower, as in :class:`hydractl.heads.mask.Site`.
        of_labels: whether the inputs of the tower are the prompts of the classes, which are the same for every sample.
        prefixes: the beginnings of the names of all parameters of the tower; a parameter that fits no tower belongs to
            the whole model.
        projection: the layer before the features are normalised and compared; None if this layer is not linear.
    """

    stem: Callable[[Any], State]
    blocks: Sequence[Callable[[State], State]]
    block_paths: Sequence[str]
    stem_prefixes: tuple[str, ...]
    readout: Callable[[State], Tensor]
    attention_input: Callable[[State], Tensor] | None = None
    reads: Callable[[State], Tensor] | None = None
    per_sample: tuple[str, ...] = ()
    per_member: tuple[str, ...] = ()
    tower: str = "main"
    of_labels: bool = False
    prefixes: tuple[str, ...] = ("",)
    merging: Mapping[int, str] = field(default_factory=dict)
    spans: Sequence[tuple[float, int]] = ()
    projection: Projection | None = None

    def prefixes_of(self, block: int) -> tuple[str, ...]:
        """Return the beginnings of the names of a block's parameters, and of the module that merges tokens before it.

        Args:
            block: the index of the block.
        """
        paths = [self.block_paths[block]]
        if block in self.merging:
            paths.append(self.merging[block])
        return tuple(f"{path}." for path in paths)


@dataclass(frozen=True)
class ImageFormat:
    """The images that a model takes, for transforms that are not the library's own transform for evaluation.

    Attributes:
        size: channels, height, width.
        mean, std: one number for each channel, for pixels in [0, 1].
        interpolation: ``nearest``, ``bilinear``, ``bicubic``, ``lanczos``, ``box`` or ``hamming``.
        resize: how the library's transform for evaluation brings an image to the size. ``shorter``: it resizes the
            shorter side to ``shorter_side`` and cuts out the middle. ``squash``: it resizes both sides and ignores the
            aspect ratio. ``other``: anything else.
        shorter_side: length in pixels; None unless ``resize`` is ``shorter``.
    """

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    resize: str = "other"
    shorter_side: int | None = None

    def resized(self, how: str, shorter_side: int | None = None) -> ImageFormat:
        """Return the same format with ``resize`` set to ``how``.

        Args:
            how: ``shorter``, ``squash`` or ``other``.
            shorter_side: the length of the shorter side in pixels; ignored unless ``how`` is ``shorter``.
        """
        return replace(self, resize=how, shorter_side=shorter_side if how == "shorter" else None)

    @classmethod
    def of_preprocessing(cls, size: Sequence[int], preprocess: Preprocessing) -> ImageFormat:
        """Build the format from a preprocessing with the keys ``interpolation``, ``mean`` and ``std``.

        The interpolation ``random``, which libraries use in training, becomes ``bilinear``.
        """
        channels, height, width = size
        settings: Any = preprocess  # which the transform of the library has taken
        return cls(
            size=(channels, height, width),
            mean=tuple(settings["mean"]),
            std=tuple(settings["std"]),
            interpolation=settings["interpolation"].replace("random", "bilinear"),
        )


ResultT = TypeVar("ResultT")


def for_each(function: Callable[[Any, State], ResultT], blocks: Iterable[Any]) -> list[Callable[[State], ResultT]]:
    """Return one function of a state for each block: ``function`` with the block as its first argument."""
    return [partial(function, block) for block in blocks]


def normed_input(norm: str, block: Any, state: State) -> Tensor:
    """Return the inputs of a block's attention, computed from the state before the block.

    Args:
        norm: dotted name of the norm before the attention in the block; empty if there is none.
        block: the block.
        state: the state before it.
    """
    return block.get_submodule(norm)(state.hidden) if norm else state.hidden


def numbered_paths(path: str, modules: Iterable[Any]) -> list[str]:
    """Return the dotted names of the modules of a list: ``path.0``, ``path.1`` and so on."""
    return [f"{path}.{index}" for index, _ in enumerate(modules)]


@dataclass(frozen=True)
class FirstTokens:
    """A function for :attr:`Stages.reads`: the readout uses only the first ``count`` tokens of every sample.

    A caller that knows this class can slice these tokens and need not gather them.
    """

    count: int

    def __call__(self, state: State) -> Tensor:
        """Return the positions ``0 ... count - 1`` for every sample, ``[B, count]``."""
        samples = state.hidden.shape[0]
        return torch.arange(self.count, device=state.hidden.device).expand(samples, -1)


@dataclass(frozen=True)
class AttentionLayout:
    """The names that a library gives to the tensors of its attention, relative to the attention module.

    Each name stands for a ``weight`` and an optional ``bias``: ``proj`` for ``proj.weight`` and ``proj.bias``. If a
    name ends in an underscore, no dot follows: ``in_proj_`` stands for ``in_proj_weight``. An empty name means that the
    library has no such tensor.

    Attributes:
        qkv: the name of one matrix with queries, keys and values, ``[3 * heads * head_dim, d_model]`` (fewer rows if
            heads share keys), or three names with one matrix each.
        out: the output projection, ``[d_model, heads * head_dim]``.
        q_norm, k_norm: norms that act on the queries and the keys of one head at a time.
        table: the tensor of relative positions: what each head adds to the score of two tokens at each of R distances,
            ``[R, heads]``.
        positions: the two projections of vectors of distances, first to queries, then to keys.
        biases: fields of :class:`hydractl.heads.weights.HeadWeights`, e.g. ``q_bias``, if the library stores the biases
            of queries, keys and values as separate tensors with these names.
        transposed: whether the library stores every weight with the dimension of the inputs first.
    """

    qkv: tuple[str, ...]
    out: str
    q_norm: str = ""
    k_norm: str = ""
    table: str = ""
    positions: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    transposed: bool = False

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """Return the weights of one attention block (site), head by head.

        Args:
            tensors: the tensors of the model, by the library's names.
            site: the block; it may have fewer heads than the block of the whole model.
        """
        out_weight, out_bias = _weight_and_bias(site.path, self.out)
        output = self._outputs_first(tensors[out_weight])  # [d_model, heads * head_dim]
        queries = output.shape[1]

        # All tensors whose rows belong to heads, by the field of HeadWeights: [heads, head_dim, ...]. A tensor of the
        # library holds one field, e.g. fields = ("q",), or three of them on top of each other, e.g. fields = ("q", "k",
        # "v") for `attn.qkv.weight`.
        rows: dict[str, Any] = {}
        for name, fields in self._fields_by_name(site.path).items():
            if name not in tensors:
                continue  # e.g. a model without biases
            tensor = self._outputs_first(tensors[name])
            tensors_of_fields = [tensor]
            if len(fields) > 1:
                # Split it into queries, keys and values. Keys and values have equally many rows, but fewer than queries
                # if heads share keys: [heads * head_dim + 2 * key_heads * head_dim, ...].
                key_rows = (tensor.shape[0] - queries) // 2
                tensors_of_fields = list(tensor.split([queries, key_rows, key_rows]))
            for field_name, field_tensor in zip(fields, tensors_of_fields, strict=True):
                # [heads * head_dim, ...] -> [heads, head_dim, ...]
                rows[field_name] = field_tensor.unflatten(0, (-1, site.head_dim))

        table = tensors.get(f"{site.path}.{self.table}")

        # Fields that the library does not have in this block stay None.
        return HeadWeights(
            **rows,
            # [d_model, heads * head_dim] -> [heads, d_model, head_dim]
            o=output.unflatten(1, (-1, site.head_dim)).permute(1, 0, 2),
            o_bias=tensors.get(out_bias),
            table=None if table is None else table.T,  # [R, heads] -> [heads, R]
            extra={key: tensors[name] for name, key in self._common_names(site.path) if name in tensors},
        )

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """Write the weights of one attention block (site) into ``tensors``: the inverse of :meth:`read`.

        Args:
            tensors: the tensors of the model, by the library's names. The tensors of the block are added or replaced;
                all others stay as they are.
            site: the block.
            weights: the weights of the block; fields that are None are not written.
        """
        # Queries, keys, values and positions. One tensor may hold several of them, one below the other.
        for name, fields in self._fields_by_name(site.path).items():
            rows_of_fields = []
            for field_name in fields:
                field_tensor = getattr(weights, field_name)  # [heads, head_dim, ...]
                if field_tensor is not None:
                    rows_of_fields.append(field_tensor.flatten(0, 1))  # [heads * head_dim, ...]
            if rows_of_fields:
                stacked = torch.cat(rows_of_fields)
                tensors[name] = self._outputs_first(stacked)

        # The output projection.
        out_weight, out_bias = _weight_and_bias(site.path, self.out)
        output = weights.o.permute(1, 0, 2).flatten(1)  # [heads, d_model, head_dim] -> [d_model, heads * head_dim]
        tensors[out_weight] = self._outputs_first(output)
        if weights.o_bias is not None:
            tensors[out_bias] = weights.o_bias

        # The table of relative positions, [heads, R] -> [R, heads].
        if weights.table is not None:
            tensors[f"{site.path}.{self.table}"] = weights.table.T.contiguous()

        # The modules that all heads share.
        for name, extra_name in self._common_names(site.path):
            if extra_name in weights.extra:
                tensors[name] = weights.extra[extra_name]

    def _outputs_first(self, tensor: Tensor) -> Tensor:
        """Transpose a weight if the library stores the dimension of the inputs first; return others as they are.

        Transposing is its own inverse, so :meth:`read` and :meth:`write` both use it.
        """
        if self.transposed and tensor.dim() == 2:
            return tensor.T.contiguous()
        return tensor

    def _fields_by_name(self, path: str) -> dict[str, tuple[str, ...]]:
        """Return which fields of :class:`HeadWeights` each tensor holds, for all tensors whose rows belong to heads.

        Args:
            path: dotted name of the attention module, e.g. ``blocks.0.attn``.

        Returns:
            Names of tensors with their fields, in the order in which the tensor stacks them:
            ``{"blocks.0.attn.qkv.weight": ("q", "k", "v"), "blocks.0.attn.qkv.bias": ("q_bias", "k_bias", "v_bias")}``.
            A model need not have all of these tensors.
        """
        # Which fields the weight of each layer holds, by the name of the layer. Queries, keys and values are one layer,
        # {"qkv": ("q", "k", "v")}, or three, {"query": ("q",)} and so on.
        fields_by_module: dict[str, tuple[str, ...]] = {}
        if len(self.qkv) == 1:
            (stacked_layer,) = self.qkv
            fields_by_module[stacked_layer] = ("q", "k", "v")
        else:
            for module, letter in zip(self.qkv, "qkv", strict=True):
                fields_by_module[module] = (letter,)

        # What only some models have: projections of positions to queries and keys.
        if self.positions:
            to_queries, to_keys = self.positions
            fields_by_module[to_queries] = ("pos_q",)
            fields_by_module[to_keys] = ("pos_k",)

        # The same by the names of weights and biases.
        fields_by_tensor: dict[str, tuple[str, ...]] = {}
        for module, fields in fields_by_module.items():
            weight_name, bias_name = _weight_and_bias(path, module)
            fields_by_tensor[weight_name] = fields
            # Some libraries store the biases of queries, keys and values beside the matrix, under names of their own.
            has_separate_biases = bool(self.biases) and module in self.qkv
            if not has_separate_biases:
                bias_fields = [f"{field_name}_bias" for field_name in fields]
                fields_by_tensor[bias_name] = tuple(bias_fields)
        # The library's name of a separate bias is also the name of its field.
        for bias_field in self.biases:
            fields_by_tensor[f"{path}.{bias_field}"] = (bias_field,)
        return fields_by_tensor

    def _common_names(self, path: str) -> list[tuple[str, str]]:
        """Return the names of the parameters that all heads share, each with its key in :attr:`HeadWeights.extra`.

        An example is ``("blocks.0.attn.q_norm.weight", "q_norm.weight")``. A model need not have all of them.
        """
        pairs: list[tuple[str, str]] = []
        for kind in COMMON:
            module = getattr(self, kind)  # the library's name of the module; empty if the model has none
            if module:
                names = _weight_and_bias(path, module)
                keys = _weight_and_bias("", kind)
                pairs += zip(names, keys, strict=True)
        return pairs


def _weight_and_bias(path: str, module: str) -> tuple[str, str]:
    """Return the names of the weight and the bias of a module, e.g. ``blocks.0.attn.proj.weight``.

    Args:
        path: dotted name of the module that holds ``module``; may be empty.
        module: name of the module. After a final underscore no dot is added: ``in_proj_`` gives ``in_proj_weight``.
    """
    start = ".".join(filter(None, (path, module)))
    if not module.endswith("_"):
        start += "."
    return f"{start}weight", f"{start}bias"


@dataclass
class LoadedModel:
    """A published model of a library, before hydractl changes it.

    Attributes:
        left: names of stored tensors that the model does not use, e.g. of a head for another task.
        origin: the repository and commit on the hub, as ``ORG/NAME@COMMIT``; None for a local model.
        removed: by the index of a site, the heads that the stored weights lack.
        warnings: what is odd about the model.
    """

    arch: str
    config: LibraryConfig
    tensors: TensorSource
    preprocess: Preprocessing
    labels: list[str] | None
    left: Sequence[str] = ()
    origin: str | None = None
    removed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    warnings: Sequence[str] = ()


class ModelFamily(ABC):
    """One library. See ``docs/adding-a-family.md`` for a walk through an implementation."""

    name: str
    """The name of the family's file. Users write ``NAME:MODEL`` for a model of this library."""
    version: str
    """The version of the library."""
    priority: int = 0
    """A published folder is offered first to the families with higher priority."""
    builds_by_name: bool = False
    """Whether an architecture can be built from its name alone (``--arch``)."""
    scaled: Mapping[str, str] = {}
    """Names of vectors that a block holds itself and multiplies its hidden state by (if they are not None), each with
    the name of the module that receives the product."""
    named_parts: Mapping[str, str] = {}
    """Regular expressions for the names of the parameters of a role. The roles are ``patch``, ``position``,
    ``class_token``, ``words``, ``layer_scale``, ``scale`` and ``head`` (the last layer of the classifier)."""

    parts: Mapping[str, str] = {}
    """For each part of a model (see :meth:`part`), a regular expression for the beginnings of its parameters' names;
    the first expression that matches decides."""
    attention: AttentionLayout = AttentionLayout((), "")
    """The names of the tensors of the library's attention, if they are the same at every site."""

    @abstractmethod
    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Load a published folder of this library; return None if the folder is not a model of this library."""

    @abstractmethod
    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel | Path:
        """Load a model by name from the hub, or with random weights drawn by ``seed`` (``pretrained=0``).

        Returns:
            The model, or the path of a file if the name stands for a checkpoint of hydractl.
        """

    def arch_of_script(self, arguments: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return ``NAME?OPTIONS`` for a model that was trained by the library's own training script.

        Args:
            arguments: the arguments of the script, by name, as stored in its checkpoint.
            shapes: the shapes of the tensors in the checkpoint, by name.

        Returns:
            The architecture, or None if the arguments do not name it.
        """
        return None

    def with_weights(self, loaded: LoadedModel, name: str, tensors: TensorSource) -> LoadedModel:
        """Return a model that :meth:`load_name` has built, with weights that somebody has trained.

        Args:
            loaded: the model.
            name: its name.
            tensors: the weights, by names that the family knows; a training script may have noted in their file how it
                prepared samples.

        Raises:
            InputError: if the model cannot have such a preprocessing.
        """
        return replace(loaded, tensors=tensors)

    @abstractmethod
    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write all files of a published folder except its weights; return the file name to use for the weights."""

    @abstractmethod
    def build(self, config: LibraryConfig) -> nn.Module:
        """Build the library's own model in eval mode, with parameters on the meta device and real buffers.

        Raises:
            InputError: if the heads of the architecture cannot be separated; the message names its attention class.
        """

    @abstractmethod
    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the attention blocks in model order, from the configuration alone."""

    @abstractmethod
    def classes(self, config: LibraryConfig) -> int | None:
        """Return the number of classes.

        None means a zero-shot model, whose classes users name. 0 means a model without a classifier, whose outputs are
        features.
        """

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Any:
        """Return the inputs of the text tower for the prompts of all classes: tensors with classes in dimension 0.

        Args:
            config, preprocess: the configuration and the preprocessing of the model.
            labels: class names.
            templates: prompts with ``{label}`` or ``{}`` in the place of the class name, e.g. ``a photo of a {}``.

        Raises:
            UsageError: if a template has no place for the class name, or the model has a classifier.
        """
        raise UsageError(f"{self.name} models have a classifier of their own: they take no prompts")

    def layout(self, site: Site) -> AttentionLayout:
        """Return the names of the tensors of one site."""
        return self.attention

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """Read the weights of one site (attention block), with any number of heads. Works on meta tensors too."""
        return self.layout(site).read(tensors, site)

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """Write the weights of one site: the inverse of :meth:`read`, bit for bit."""
        self.layout(site).write(tensors, site, weights)

    def part(self, name: str) -> str:
        """Return the part of the model that a tensor belongs to: ``attention``, ``mlp``, ``norm``, ``embed``, ``own``.

        ``own`` is everything that is never merged, following the paper: LayerScale, poolers, the classifier.
        """
        for part, pattern in self.parts.items():
            if re.match(pattern, name):
                return part
        return "own"

    def has_role(self, name: str, role: str) -> bool:
        """Return whether a parameter has a role of :attr:`named_parts`."""
        pattern = self.named_parts.get(role)
        return pattern is not None and re.match(pattern, name) is not None

    def common(self, model: nn.Module, site: Site) -> list[nn.Module]:
        """Return the modules of an attention block (site) that all heads share, one for each name in :data:`COMMON`.

        Call it before the attention is replaced. If the library has no such module in this block, an identity takes its
        place.
        """
        layout = self.layout(site)
        attention = model.get_submodule(site.path)
        modules: list[nn.Module] = []
        for kind in COMMON:
            name = getattr(layout, kind)  # the library's name of the module; empty if it has none
            module = getattr(attention, name, None)
            modules.append(module or nn.Identity())
        return modules

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rates of the attention weights and of the attention output; only training uses them."""
        return 0.0, 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Replace the library's attention module of this site by ``attention``."""
        model.set_submodule(site.path, attention)

    @abstractmethod
    def stages(self, model: nn.Module) -> list[Stages]:
        """Cut a model (with any attention installed) into stages: one for each tower, in the order of the sites."""

    def logits(self, model: Any, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logits ``[B, classes]`` of one ensemble member, from the outputs of its towers (encoders).

        The output of a single tower is the logits. Two towers give features of length 1, of images ``[B, D]`` and of
        classes ``[classes, D]``; a logit is scale * cosine + bias. The model stores the logarithm of the scale, and
        only a SigLIP has a bias.
        """
        if len(outputs) == 1:
            return outputs[0]
        images, classes = outputs
        logits = model.logit_scale.exp() * images @ classes.T
        bias = getattr(model, "logit_bias", None)
        return logits if bias is None else logits + bias

    def sample_features(self, model: Any, inputs: Any) -> Tensor:
        """Compute normalised features ``[B, D]`` of samples by the library's own forward, for a model of two towers."""
        raise UsageError(f"{self.name} models have a classifier of their own")

    @abstractmethod
    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
        """Return a function from raw samples to the inputs of the library's model, with the library's own results."""

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return ``[channels, height, width]`` of the images a model takes; None if it takes several shapes."""
        return None

    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Any:
        """Draw random inputs of the right shape, for measuring cost; of images standard normal pixels."""
        return random_pixels(input_size(preprocess), batch, seed)

    def longest_text(self, preprocess: Preprocessing) -> int | None:
        """Return the greatest number of tokens in a text that the model can take; None for images."""
        return None

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format that the preprocessing of a checkpoint describes."""
        raise UsageError("--augment crop: the model reads no images")

    def initial(self, config: LibraryConfig, seed: int) -> dict[str, Tensor]:
        """Draw the weights of a new model with all heads, with the library's own initialisation."""
        with seeded(seed):
            return dict(self.drawn(config).state_dict())

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Return the library's model with weights by the library's own initialisation."""
        raise UsageError(f"--init random: {self.name} models cannot be drawn")

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Return the configuration of the same model with another number of classes."""
        raise UsageError(f"--reset-head: {self.name} models have no classifier of their own")

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Return how many of the texts the model truncates, and the number of tokens that it can take."""
        raise UsageError(f"{self.name} models have a classifier of their own: they read no captions")

    def judges_each_pair(self, model: nn.Module) -> bool:
        """Return whether logits judge each pair of image and text separately (SigLIP) or against others (CLIP)."""
        return getattr(model, "logit_bias", None) is not None

    def bound_scale(self, model: nn.Module) -> None:
        """Clamp the trained factor of the logits, in place, to the bounds that the library's own training has."""
        return

    def narrowed(self, config: LibraryConfig, share: Fraction) -> LibraryConfig | None:
        """Return the configuration of the same model with its width, heads and MLPs reduced to ``share``.

        None means that the library has no such configuration. The caller checks that the share gives whole numbers.
        """
        return None

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Return the configuration of the same model with dropout after attention, in the MLP and after embeddings."""
        raise UsageError(f"--dropout: {self.name} models have no dropout")

    turns_images: bool = False
    """Whether the library turns images as their EXIF orientation says."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers inside the block, and restore the state of the caller's generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def read_heads(family: ModelFamily, tensors: Mapping[str, Tensor], site: Site, kept: Sequence[int]) -> HeadWeights:
    """Read the weights of one site (see :meth:`ModelFamily.read`) and set which heads share keys.

    Args:
        family: the family of the model.
        tensors: the tensors of the model, with only the kept heads.
        site: the attention block.
        kept: the indices that the kept heads have in the whole model; they decide which heads share keys.
    """
    weights = family.read(tensors, site)
    return replace(weights, key_heads=site.key_heads(kept))


def attention_names(family: ModelFamily, names: Iterable[str], site: Site) -> list[str]:
    """Return the names of the tensors that belong to the heads of one site, without e.g. a norm in its module."""
    start = f"{site.path}."
    names_of_heads = []
    for name in names:
        if name.startswith(start) and family.part(name) == "attention":
            names_of_heads.append(name)
    return names_of_heads
