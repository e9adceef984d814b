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
from torch.nn import functional as F

from hydractl.errors import InputError, UsageError
from hydractl.families.config_json import LibraryConfig, Preprocessing, numbers_in, text_in
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
    """The linear layer that ends a tower whose features are compared.

    Attributes:
        inputs: the state after the last block to what enters it, ``[B, prompts, d]``; a sample is one prompt.
        parameters: its weight ``[D, d]`` and its bias ``[D]``, or None.
    """

    inputs: Callable[[State], Tensor]
    parameters: Callable[[], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Stages:
    """One tower of a model, cut where the residual stream can be looked at: ``readout(blocks(stem(inputs)))``.

    Attributes:
        stem: inputs of the stock model to the state before the first block.
        blocks: one callable per site, in model order, from state to state.
        block_paths: the module path of each block.
        merging: the module that makes fewer tokens before some blocks, by their places; part of their callables.
        spans: for each block, its tokens as a share of those of the stem, and the windows that they attend in; empty:
            all tokens in one.
        stem_prefixes: how the names of the parameters start that act before the first block.
        readout: the state after the last block to the output of the tower: the logits ``[B, classes]`` of a model of
            one tower, else features ``[B, D]`` that :meth:`ModelFamily.logits` brings together. Where ``reads`` is
            given, it also takes a state of those tokens only, ``[B, k, d_model]``, with ``read`` in its context.
        attention_inputs: for each block, what its attention is given of the state before it, ``[B, T, d_model]``.
        reads: the positions ``[B, k]`` of the only tokens that the readout looks at, from any state of the tower; None
            where it looks at all of them.
        per_sample: which entries of the context have the samples in dimension 0.
        per_member: which entries of the context come of weights: where the stems of members differ, ``[M, ...]``.
        tower: as in :class:`hydractl.heads.mask.Site`.
        of_labels: whether its inputs are the prompts of the classes, which are the same for every sample.
        prefixes: how the names of all parameters of the tower start; those of no tower belong to the whole model.
        projection: of features that are compared, the layer before they are normalised; None where it is not linear.
    """

    stem: Callable[[Any], State]
    blocks: Sequence[Callable[[State], State]]
    block_paths: Sequence[str]
    stem_prefixes: tuple[str, ...]
    readout: Callable[[State], Tensor]
    attention_inputs: Sequence[Callable[[State], Tensor]]
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
        """Return how the names of a block's parameters start, those of what makes fewer tokens before it included."""
        paths = [self.block_paths[block]]
        if block in self.merging:
            paths.append(self.merging[block])
        return tuple(f"{path}." for path in paths)


@dataclass(frozen=True)
class ImageFormat:
    """Image format of a model, for transforms other than the library's own for evaluation.

    Attributes:
        size: channels, height, width.
        mean, std: one number for each channel, of pixels in [0, 1].
        interpolation: ``nearest``, ``bilinear``, ``bicubic``, ``lanczos``, ``box`` or ``hamming``.
        resize: how the library's transform for evaluation comes to the size: ``shorter``: the shorter side is resized
            to ``shorter_side``, and the middle is cut out; ``squash``: resized to the size as it is; ``other``.
        shorter_side: pixels; None unless ``resize`` is ``shorter``.
    """

    size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    resize: str = "other"
    shorter_side: int | None = None

    def resized(self, how: str, shorter_side: int | None = None) -> ImageFormat:
        """Return the format of a library that resizes so; a size of the shorter side makes sense for ``shorter``."""
        return replace(self, resize=how, shorter_side=shorter_side if how == "shorter" else None)

    @classmethod
    def of_preprocessing(cls, size: Sequence[int], preprocess: Preprocessing) -> ImageFormat:
        """Build it from the names that several libraries use; their ``random`` interpolation is bilinear here."""
        channels, height, width = size
        origin = "the preprocessing"
        interpolation = text_in(preprocess, "interpolation", origin)
        return cls(
            size=(channels, height, width),
            mean=tuple(numbers_in(preprocess, "mean", origin)),
            std=tuple(numbers_in(preprocess, "std", origin)),
            interpolation=interpolation.replace("random", "bilinear"),
        )


ResultT = TypeVar("ResultT")


def for_each(function: Callable[[Any, State], ResultT], blocks: Iterable[Any]) -> list[Callable[[State], ResultT]]:
    """Return a function of a state for each block: ``function``, given that block first."""
    return [partial(function, block) for block in blocks]


def numbered_paths(path: str, modules: Iterable[Any]) -> list[str]:
    """Return the paths of the modules of a list."""
    paths = []
    for index, _ in enumerate(modules):
        paths.append(f"{path}.{index}")
    return paths


@dataclass(frozen=True)
class FirstTokens:
    """A :attr:`Stages.reads` of the first ``count`` tokens of every sample, which then need no gathering."""

    count: int

    def __call__(self, state: State) -> Tensor:
        """Return the positions, ``[B, count]``."""
        samples = state.hidden.shape[0]
        return torch.arange(self.count, device=state.hidden.device).expand(samples, -1)


def first_tokens(count: int) -> Callable[[State], Tensor]:
    """Return a :attr:`Stages.reads` of the first ``count`` tokens of every sample."""
    return FirstTokens(count)


@dataclass(frozen=True)
class AttentionLayout:
    """Where the heads of a library's attention stand among its tensors: how their names start, within the module.

    Each is the name of a ``weight`` and, where there is one, of a ``bias``, which follow behind a dot; behind a name
    that ends in an underscore they follow at once.

    Attributes:
        qkv: queries, keys and values: of one matrix ``[3 * heads * head_dim, d_model]`` (fewer rows where heads share
            keys), or of one each.
        out: of the output projection, ``[d_model, heads * head_dim]``.
        gate: of the gate of the attention output, a matrix like that of queries; empty: none.
        q_norm, k_norm: of norms that act on one head at a time; empty: none.
        table: of what each head adds to the scores of tokens by their distance, ``[R, heads]``, or where ``features``
            are made of distances of the linear layer behind them, ``[heads, F]``; empty: nothing.
        features: of the layer that makes features of coordinates of distances; empty: none.
        scale: of the logarithm of what each head multiplies the cosines of queries and keys by, ``[heads, 1, 1]``;
            empty: scores are products of queries and keys.
        positions: of the projections of vectors of distances to queries and to keys; empty: none.
        biases: where all biases are tensors of their own, their names, as in
            :class:`hydractl.heads.weights.HeadWeights`.
        transposed: whether all weights stand with the dimension of their inputs first.
    """

    qkv: tuple[str, ...]
    out: str
    gate: str = ""
    q_norm: str = ""
    k_norm: str = ""
    table: str = ""
    features: str = ""
    scale: str = ""
    positions: tuple[str, ...] = ()
    biases: tuple[str, ...] = ()
    transposed: bool = False

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """Return the weights of one attention block (site), head by head.

        Args:
            tensors: of the model, by the names of its library.
            site: the block; it may hold fewer heads than the whole model has there.
        """
        out_weight, out_bias = _weight_and_bias(site.path, self.out)
        output = self._outputs_first(tensors[out_weight])  # [d_model, heads * head_dim]
        rows = self._read_rows(tensors, site, queries=output.shape[1])
        return HeadWeights(
            q=rows["q"],
            k=rows["k"],
            v=rows["v"],
            # [d_model, heads * head_dim] -> [heads, d_model, head_dim]
            o=output.unflatten(1, (-1, site.head_dim)).permute(1, 0, 2),
            q_bias=rows.get("q_bias"),
            k_bias=rows.get("k_bias"),
            v_bias=rows.get("v_bias"),
            o_bias=tensors.get(out_bias),
            gate=rows.get("gate"),
            gate_bias=rows.get("gate_bias"),
            table=self._read_table(tensors, site),
            scale=self._read_scale(tensors, site),
            pos_q=rows.get("pos_q"),
            pos_q_bias=rows.get("pos_q_bias"),
            pos_k=rows.get("pos_k"),
            pos_k_bias=rows.get("pos_k_bias"),
            extra=self._read_common(tensors, site),
        )

    def _read_rows(self, tensors: Mapping[str, Tensor], site: Site, queries: int) -> dict[str, Tensor]:
        """Read the tensors whose rows belong to heads, by the fields of :class:`HeadWeights` they fill.

        Args:
            tensors: of the model.
            site: the attention block whose they are.
            queries: the number of rows that queries have, ``heads * head_dim``.

        Returns:
            Each as ``[heads, head_dim, ...]``; fields whose tensor is not there are left out.
        """
        head_rows = {}
        for name, fields in self._fields_by_name(site.path).items():
            if name not in tensors:
                continue
            tensor = self._outputs_first(tensors[name])
            parts = [tensor]
            is_stacked = len(fields) > 1
            if is_stacked:  # queries, keys and values: [heads * head_dim + 2 * key_heads * head_dim, ...]
                rows = tensor.shape[0]
                keys = (rows - queries) // 2
                parts = list(tensor.split([queries, keys, keys]))
            for field_name, part in zip(fields, parts, strict=True):
                head_rows[field_name] = part.unflatten(0, (-1, site.head_dim))
        return head_rows

    def _read_table(self, tensors: Mapping[str, Tensor], site: Site) -> Tensor | None:
        """Read what each head makes of distances, ``[heads, R]`` or ``[heads, F]``."""
        if not self.table:
            return None
        table = tensors.get(f"{site.path}.{self.table}")
        if table is None or self.features:
            return table
        return table.T  # [R, heads] -> [heads, R]

    def _read_scale(self, tensors: Mapping[str, Tensor], site: Site) -> Tensor | None:
        """Read the logarithms of the factors of cosines, ``[heads, 1]``."""
        if not self.scale:
            return None
        scale = tensors.get(f"{site.path}.{self.scale}")
        if scale is None:
            return None
        return scale.flatten(1)  # [heads, 1, 1] -> [heads, 1]

    def _read_common(self, tensors: Mapping[str, Tensor], site: Site) -> dict[str, Tensor]:
        """Read what belongs to no head, by the names of :attr:`HeadWeights.extra`."""
        common = {}
        for name, extra_name in self._common_names(site.path):
            if name in tensors:
                common[extra_name] = tensors[name]
        return common

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """Put the weights of one attention block (site) among the tensors of its library: the inverse of :meth:`read`.

        Args:
            tensors: of the model, by the names of its library; those of the block are added or replaced.
            site: the block.
            weights: its weights; what is None is not written.
        """
        self._write_rows(tensors, site, weights)
        out_weight, out_bias = _weight_and_bias(site.path, self.out)
        output = weights.o.permute(1, 0, 2).flatten(1)  # [heads, d_model, head_dim] -> [d_model, heads * head_dim]
        tensors[out_weight] = self._outputs_first(output)
        if weights.o_bias is not None:
            tensors[out_bias] = weights.o_bias
        if weights.table is not None:
            table = weights.table
            if not self.features:
                table = table.T  # [heads, R] -> [R, heads]
            tensors[f"{site.path}.{self.table}"] = table.contiguous()
        if weights.scale is not None:
            tensors[f"{site.path}.{self.scale}"] = weights.scale[..., None]  # [heads, 1] -> [heads, 1, 1]
        for name, extra_name in self._common_names(site.path):
            if extra_name in weights.extra:
                tensors[name] = weights.extra[extra_name]

    def _write_rows(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """Write the tensors whose rows belong to heads, ``[heads, head_dim, ...]`` each in ``weights``."""
        for name, fields in self._fields_by_name(site.path).items():
            parts = []
            for field_name in fields:
                part = getattr(weights, field_name)
                if part is not None:
                    parts.append(part.flatten(0, 1))  # [heads * head_dim, ...]
            if parts:
                stacked = torch.cat(parts)
                tensors[name] = self._outputs_first(stacked)

    def _outputs_first(self, tensor: Tensor) -> Tensor:
        """Return a weight with the dimension of its outputs first, or put it back as the library has it."""
        if self.transposed and tensor.dim() == 2:
            return tensor.T.contiguous()
        return tensor

    def _fields_by_name(self, path: str) -> dict[str, tuple[str, ...]]:
        """Return which fields of :class:`HeadWeights` stand in which tensors, of those whose rows belong to heads.

        Args:
            path: of the attention module.

        Returns:
            By name of the tensor its fields, in the order in which they are stacked: ``("q", "k", "v")`` of one matrix,
            ``("q",)`` of a matrix of its own. Not every one of these tensors need be there.
        """
        named_fields: dict[str, tuple[str, ...]] = {}
        for module, fields in self._fields_by_module().items():
            weight, bias = _weight_and_bias(path, module)
            named_fields[weight] = fields
            has_own_biases = bool(self.biases) and module in self.qkv
            if not has_own_biases:
                bias_fields = [f"{field_name}_bias" for field_name in fields]
                named_fields[bias] = tuple(bias_fields)
        for bias in self.biases:
            named_fields[f"{path}.{bias}"] = (bias,)
        return named_fields

    def _fields_by_module(self) -> dict[str, tuple[str, ...]]:
        """Return the fields of :class:`HeadWeights` that the weight of each linear layer with rows of heads holds."""
        fields_by_module: dict[str, tuple[str, ...]] = {}
        if len(self.qkv) == 1:
            (module_of_all,) = self.qkv
            fields_by_module[module_of_all] = ("q", "k", "v")
        else:
            for module, letter in zip(self.qkv, "qkv", strict=True):
                fields_by_module[module] = (letter,)
        if self.gate:
            fields_by_module[self.gate] = ("gate",)
        if self.positions:
            to_queries, to_keys = self.positions
            fields_by_module[to_queries] = ("pos_q",)
            fields_by_module[to_keys] = ("pos_k",)
        return fields_by_module

    def _common_names(self, path: str) -> list[tuple[str, str]]:
        """Return the names of the parameters that belong to no head, and their names in :attr:`HeadWeights.extra`."""
        pairs: list[tuple[str, str]] = []
        for kind in COMMON:
            module = getattr(self, kind)
            if module:
                pairs += zip(_weight_and_bias(path, module), _weight_and_bias("", kind), strict=True)
        return pairs


def _weight_and_bias(path: str, module: str) -> tuple[str, str]:
    """Return the names of a weight and a bias; behind a module that ends in an underscore they follow at once."""
    start = ".".join(filter(None, (path, module)))
    if not module.endswith("_"):
        start += "."
    return f"{start}weight", f"{start}bias"


@dataclass
class LoadedModel:
    """A model of a library as it was found, before hydractl touches it.

    Attributes:
        left: names of the stored tensors that are no part of the model, those of another task's head; a star stands
            for any end.
        origin: where it was published, as ``ORG/NAME@COMMIT`` of the hub; None for a local one.
    """

    arch: str
    config: LibraryConfig
    tensors: TensorSource
    preprocess: Preprocessing
    labels: list[str] | None
    left: Sequence[str] = ()
    origin: str | None = None


class ModelFamily(ABC):
    """One library. See ``docs/adding-a-family.md`` for a walk through an implementation."""

    name: str
    """The name of its file, and of its models: ``NAME:MODEL`` is a model of this library by name."""
    version: str
    """The version of the library."""
    priority: int = 0
    """A folder is offered to the families of higher priority first."""
    builds_by_name: bool = False
    """Whether an architecture can be built from its name alone, as for ``--arch``."""
    scaled: Mapping[str, str] = {}
    """Vectors that a block holds itself and multiplies by unless they are None, each with the module that is given the
    product."""
    named_parts: Mapping[str, str] = {}
    """Regular expressions for the names of parameters that can be spoken of: ``patch``, ``position``, ``class_token``,
    ``words``, ``layer_scale``, ``scale`` and ``head``, which is the last layer of the classifier."""

    parts: Mapping[str, str] = {}
    """Regular expressions for how the names of parameters start that belong to :meth:`part`; the first that fits
    counts."""
    attention: AttentionLayout = AttentionLayout((), "")
    """The names of the tensors of the library's attention, for a family that reads and writes no others."""

    @abstractmethod
    def load_folder(self, folder: Path) -> LoadedModel | None:
        """Load a published folder of this library; None when it is none of its own."""

    @abstractmethod
    def load_name(self, name: str, options: Mapping[str, object], seed: int) -> LoadedModel | Path:
        """Load a model by name from the hub, or with random weights drawn by ``seed`` (``pretrained=0``).

        Returns:
            The model, or the path of a checkpoint of hydractl where the name is that of one.
        """

    def known_names(self) -> Sequence[str]:
        """Return the names of models that the library knows; empty where any repository can be named."""
        return ()

    def arch_of_script(self, arguments: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return the ``NAME?OPTIONS`` of a model that the library's training script has made.

        Args:
            arguments: of the script, by name, as its checkpoint has them.
            shapes: of the tensors of the checkpoint, by name.

        Returns:
            None where the arguments do not say it.
        """
        return None

    def preprocess_of_script(
        self, arguments: Mapping[str, object], name: str, preprocess: Preprocessing
    ) -> Preprocessing:
        """Return the preprocessing that the library's training script has evaluated with.

        Args:
            arguments: of the script.
            name: of the model.
            preprocess: that of the model where nothing is said.

        Raises:
            InputError: for a preprocessing that the model cannot have.
        """
        return dict(preprocess)

    @abstractmethod
    def export_folder(
        self, folder: Path, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str] | None
    ) -> str:
        """Write what a published folder needs beside its weights; returns the name of the weights file."""

    @abstractmethod
    def build(self, config: LibraryConfig) -> nn.Module:
        """Build the library's own model in eval mode, its parameters on the meta device, its buffers real.

        Raises:
            InputError: for an architecture whose heads cannot be separated, naming its attention class.
        """

    @abstractmethod
    def sites(self, config: LibraryConfig) -> list[Site]:
        """Return the attention blocks in model order, from the configuration alone."""

    @abstractmethod
    def classes(self, config: LibraryConfig) -> int | None:
        """Return the number of classes.

        It is None for a zero-shot model, whose classes are given by name, and 0 for a body, which has no classifier yet
        and reads out features.
        """

    def prompts(
        self, config: LibraryConfig, preprocess: Preprocessing, labels: Sequence[str], templates: Sequence[str]
    ) -> Any:
        """Return the inputs of the tower of the labels: a mapping of tensors with the classes in dimension 0.

        Args:
            config, preprocess: of the model.
            labels: class names.
            templates: each makes a prompt of a class name, whose place in it is ``{label}`` or ``{}``.

        Raises:
            UsageError: for a template without such a place, and for models that have a classifier.
        """
        raise UsageError(f"{self.name} models have a classifier of their own: they take no prompts")

    def layout(self, site: Site) -> AttentionLayout:
        """Return the names of the tensors of one site."""
        return self.attention

    def read(self, tensors: Mapping[str, Tensor], site: Site) -> HeadWeights:
        """Read the weights of one site, which may hold any number of heads. Works on meta tensors too."""
        layout = self.layout(site)
        return layout.read(tensors, site)

    def write(self, tensors: MutableMapping[str, Tensor], site: Site, weights: HeadWeights) -> None:
        """Write the weights of one site: the inverse of :meth:`read`, bit for bit."""
        layout = self.layout(site)
        layout.write(tensors, site, weights)

    def part(self, name: str, sites: Sequence[Site]) -> str:
        """Return the part of the model that a tensor belongs to: ``attention``, ``mlp``, ``norm``, ``embed``, ``own``.

        ``own`` is never merged by the paper's reading: LayerScale, poolers, the classifier.
        """
        for part, pattern in self.parts.items():
            if re.match(pattern, name):
                return part
        return "own"

    def common(self, model: nn.Module, site: Site) -> list[nn.Module]:
        """Return the modules of an attention block (site) that act on every head alike, one for each of :data:`COMMON`.

        To be called before the attention is replaced. A module that the library does not have here has a stand-in,
        which does what the library does without it: nothing, or in attention by cosines, bring vectors to length 1.
        """
        layout = self.layout(site)
        attention_modules = dict(model.get_submodule(site.path).named_modules())
        common: list[nn.Module] = []
        for kind in COMMON:
            name = getattr(layout, kind)
            if name and name in attention_modules:
                common.append(attention_modules[name])
            elif layout.scale:  # attention by cosines
                common.append(_UnitLength())
            else:
                common.append(nn.Identity())
        return common

    def dropouts(self, model: nn.Module, site: Site) -> tuple[float, float]:
        """Return the dropout rates of the attention weights and of the attention output, used in training only."""
        return 0.0, 0.0

    def install(self, model: nn.Module, site: Site, attention: nn.Module) -> None:
        """Put ``attention`` in the place of the library's attention module."""
        model.set_submodule(site.path, attention)

    @abstractmethod
    def stages(self, model: nn.Module) -> list[Stages]:
        """Cut a model (with any attention installed) into stages: one for each tower, in the order of the sites."""

    def logits(self, model: nn.Module, outputs: Sequence[Tensor]) -> Tensor:
        """Compute logits ``[B, classes]`` from what each tower of one member reads out."""
        return outputs[0]

    def sample_features(self, model: Any, inputs: Any) -> Tensor:
        """Compute normalised features ``[B, D]`` of samples by the library's own forward, for a model of two towers."""
        raise UsageError(f"{self.name} models have a classifier of their own")

    @abstractmethod
    def collate(self, preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
        """Return the function from raw samples to the inputs of the stock model, exactly as the library would."""

    def image_shape(self, config: LibraryConfig) -> list[int] | None:
        """Return ``[channels, height, width]`` of the images a model takes; None where it takes more than one shape."""
        return None

    @abstractmethod
    def example_inputs(self, preprocess: Preprocessing, batch: int, seed: int) -> Any:
        """Draw random inputs of the right shape, for measuring cost."""

    def longest_text(self, preprocess: Preprocessing) -> int | None:
        """Return the number of tokens of a text that the model itself can take; None for images."""
        return None

    # --- training -----------------------------------------------------------------------------------------------------

    def image_format(self, preprocess: Preprocessing) -> ImageFormat:
        """Return the image format, from the checkpoint's own preprocessing."""
        raise UsageError("--augment crop: the model reads no images")

    def initial(self, config: LibraryConfig, seed: int) -> dict[str, Tensor]:
        """Draw weights as the library does for a model that is trained from scratch, with all heads."""
        with seeded(seed):
            return dict(self.drawn(config).state_dict())

    def drawn(self, config: LibraryConfig) -> nn.Module:
        """Return the library's model with weights by the library's own initialisation."""
        raise UsageError(f"--init random: {self.name} models cannot be drawn")

    def with_classes(self, config: LibraryConfig, classes: int) -> LibraryConfig:
        """Return the configuration of the same model with another number of classes."""
        raise UsageError(f"--reset-head: {self.name} models have no classifier of their own")

    def image_classifier(
        self, config: LibraryConfig, preprocess: Preprocessing, classes: int
    ) -> tuple[str, LibraryConfig, Preprocessing]:
        """Return architecture, configuration and preprocessing of a classifier on the images of a zero-shot model.

        The classifier is the tower of images, with the names of its tensors.
        """
        hint = "a CLIPModel or SiglipModel of transformers gets one"
        raise UsageError(f"--reset-head: {self.name} has no classifier on a tower of images", hint=hint)

    def too_long(self, config: LibraryConfig, preprocess: Preprocessing, texts: Sequence[str]) -> tuple[int, int]:
        """Return the number of texts that the model truncates as :meth:`prompts`, and the number of tokens it takes."""
        raise UsageError(f"{self.name} models have a classifier of their own: they read no captions")

    def judges_each_pair(self, model: nn.Module) -> bool:
        """Return whether logits of images and texts judge each pair by itself (SigLIP) or compare them (CLIP)."""
        return False

    def bound_scale(self, model: nn.Module) -> None:
        """Keep the factor of the logits within the bounds of the library's own training, in place, if it is trained."""
        return

    def with_heads(self, config: LibraryConfig, heads: int) -> LibraryConfig | None:
        """Return the configuration of the same model with so many heads of the same width at every site.

        None: there is no such configuration.
        """
        return None

    def _with_heads_alone(self, config: LibraryConfig, small: LibraryConfig, heads: int) -> LibraryConfig | None:
        """Return ``small`` where it is the same model with so many heads of the same width at every site, else None."""
        wanted = [replace(site, heads=heads) for site in self.sites(config)]
        try:
            sites = self.sites(small)
        except InputError:  # the library builds no such model
            return None
        if sites != wanted:
            return None
        return small

    def narrowed(self, config: LibraryConfig, share: Fraction) -> LibraryConfig | None:
        """Return the configuration of the same model with a share of its width, of its heads and of its MLPs.

        None: there is no such configuration. The caller checks that the share gives whole numbers.
        """
        return None

    def with_dropout(self, config: LibraryConfig, rate: float) -> LibraryConfig:
        """Return the same model's configuration with dropout behind attention, in the MLP and behind the embeddings."""
        raise UsageError(f"--dropout: {self.name} models have no dropout")

    adds_dropout: bool = False
    """Whether the library has no dropout layers, and :meth:`add_dropout` puts them into a model instead."""

    def add_dropout(self, model: nn.Module, rate: float) -> None:
        """Put dropout behind attention and behind the MLP of each block that reads samples, off until turned on."""
        raise UsageError(f"--mc-dropout: {self.name} models have no dropout")


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw random numbers by a seed; those of the caller go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class MultiheadStandIn(nn.Module):
    """:class:`hydractl.model.attention.HeadAttention` with the call and the answer of ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Attend from ``query`` ``[M * B, T, d_model]`` to itself: the blocks give it as key and value too."""
        attended = self.attention(query, attn_mask=attn_mask)
        return attended, None


class _UnitLength(nn.Module):
    """Queries and keys of cosine attention, ``[..., head_dim]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of length 1."""
        return F.normalize(x, dim=-1)


def read_heads(family: ModelFamily, tensors: Mapping[str, Tensor], site: Site, kept: Sequence[int]) -> HeadWeights:
    """Read tensors that hold the heads ``kept``, see :meth:`ModelFamily.read`; they tell which heads share keys."""
    weights = family.read(tensors, site)
    key_heads = site.key_heads(kept)
    return replace(weights, key_heads=key_heads)


def parts_by_name(family: ModelFamily, names: Iterable[str], sites: Sequence[Site]) -> dict[str, str]:
    """Return, for each tensor name, the part of the model that it belongs to: see :meth:`ModelFamily.part`."""
    return {name: family.part(name, sites) for name in names}


def attention_names(family: ModelFamily, names: Iterable[str], sites: Sequence[Site], site: Site) -> list[str]:
    """Return the tensor names that belong to the heads of one site (and not, say, to a norm beside them)."""
    start = f"{site.path}."
    names_of_heads = []
    for name in names:
        if name.startswith(start) and family.part(name, sites) == "attention":
            names_of_heads.append(name)
    return names_of_heads
