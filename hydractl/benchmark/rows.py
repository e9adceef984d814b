"""What a bench compares: the MODELs, and what ``--compare`` sets beside them, made of the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.data import open_data
from hydractl.data.base import Dataset
from hydractl.errors import InputError, UsageError
from hydractl.exports.opened import ExportedFile, exported_file
from hydractl.families.base import ModelFamily
from hydractl.families.config_json import Preprocessing
from hydractl.files.bench_answer import BenchCost, BenchInput
from hydractl.files.checkpoint import shapes_only
from hydractl.files.description import DEFAULT_PROMPT
from hydractl.heads.mask import HeadMask
from hydractl.log import Log
from hydractl.metrics.cascade import Cascade, stored_cascade
from hydractl.model.cost import cost_of, parameters, staged_macs, total_cost, weight_bytes
from hydractl.model.loading import ModelArgument, find_models, resolve_device, resolve_dtype
from hydractl.model.prompted import STAND_INS
from hydractl.model.runtime import log_mean_softmax, move
from hydractl.model.source import ModelOptions, Source, member_source, with_max_length
from hydractl.model.stored import check_finite_weights, zeroed
from hydractl.report.texts import input_text

STOCK, MEMBERS, DEEP = "stock", "members", "deep"

Contestant = ModelArgument | ExportedFile
"""One MODEL of a bench."""


@dataclass(frozen=True)
class BenchModel:
    """What one row of a bench runs, its weights not yet read.

    Attributes:
        kind: ``model`` (a MODEL as it was given), ``onnx``, ``onnx-int8`` or ``pt2`` (one that is an exported file),
            ``stock`` (the library's own model on its weights), ``member`` (one member of a fused model), ``members``
            (all of them, one after another) or ``deep`` (full copies of the first MODEL, one after another).
        model: what runs, under the name of the row.
        whole_last_block: as of :class:`hydractl.model.runtime.HydraModel`; ``stock`` always runs it whole.
    """

    kind: str
    model: Contestant
    whole_last_block: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        return self.model.name

    @property
    def cascade(self) -> Cascade | None:
        """The rule by which the first member of the model answers alone; None where all members run."""
        if len(self.model.sources) != 1:
            return None
        description = self.model.sources[0].description
        return stored_cascade(description.extra.get("cascade"), len(description.masks))

    def build(self, device: str, dtype: str) -> Any:
        """Read the weights and build the module that runs: ``inputs -> log p [B, classes]``."""
        if isinstance(self.model, ExportedFile):
            return self.model.build()
        if self.kind == STOCK:
            return build_stock(self.model.sources[0], device, dtype)
        model = self.model.build(device, dtype, whole_last_block=self.whole_last_block)
        return model.with_classes()

    def cost(self) -> BenchCost:
        """Return what is known without a measurement; of an exported file it is what the file says."""
        if isinstance(self.model, ExportedFile):
            return self._cost_of_file(self.model)
        sources = self.model.sources
        if self.kind == STOCK:
            size = stock_cost(sources[0])
        else:
            size = total_cost(self._cost_of_member(source) for source in sources)
        first_macs, rest_macs = self._staged_macs()
        members = sum(len(source.description.masks) for source in sources)
        return BenchCost(
            kind=self.kind,
            input=input_of(self.model),
            checkpoint_bytes=self.model.file_bytes,
            members=members,
            params=size["params"],
            macs=size["macs"],
            bytes=size["bytes"],
            params_nonzero=size.get("params_nonzero"),
            first_macs=first_macs,
            rest_macs=rest_macs,
            mac_ratio=None,
        )

    def _cost_of_member(self, source: Source) -> dict[str, int]:
        return cost_of(source.description, source.tensors, whole_last_block=self.whole_last_block)

    def _cost_of_file(self, file: ExportedFile) -> BenchCost:
        return BenchCost(
            kind=self.kind,
            input=input_of(file),
            checkpoint_bytes=file.file_bytes,
            members=file.members,
            params=None,
            macs=file.macs,
            mac_ratio=None,
        )

    def _staged_macs(self) -> tuple[int, int] | tuple[None, None]:
        """Return the mult-adds of the first member of a cascade, and of the others; None where all members run."""
        if self.cascade is None:
            return None, None
        (source,) = self.model.sources
        staged = staged_macs(source.description, source.tensors, whole_last_block=self.whole_last_block)
        return staged[self.cascade.member]


def with_ratios(costs: Sequence[BenchCost]) -> list[BenchCost]:
    """Return the costs of all rows, each with its ratio of mult-adds to the first; None where one is not known."""
    first = costs[0].macs
    with_ratio = []
    for cost in costs:
        ratio = None
        if cost.macs is not None and first is not None:
            ratio = cost.macs / first
        with_ratio.append(replace(cost, mac_ratio=ratio))
    return with_ratio


def find_contestants(texts: Sequence[str], options: ModelOptions) -> list[Contestant]:
    """Return every MODEL, checkpoints and exported files, found and checked by what it says of itself.

    Raises:
        UsageError, InputError: as of :func:`hydractl.model.loading.find_models`, and for exported files.
    """
    exported: dict[str, ExportedFile] = {}
    checkpoints = []
    for text in texts:
        file = exported_file(text)
        if file is None:
            checkpoints.append(text)
        elif options.max_length is None:
            exported[text] = file
        else:
            exported[text] = file.at_length(options.max_length)
    opened = iter(find_models(checkpoints, options))
    contestants: list[Contestant] = []
    for text in texts:
        if text in exported:
            contestants.append(exported[text])
        else:
            contestants.append(next(opened))
    return contestants


def bench_rows(
    models: Sequence[Contestant], compare: Sequence[str], *, whole_last_block: bool = False
) -> list[BenchModel]:
    """Return the rows of a bench in order: each MODEL, and after it what is made of it.

    Raises:
        UsageError: listing every comparison that these models do not allow, and names that would stand twice.
    """
    first = models[0]
    fused = [model for model in models if _members(model) > 1]
    stock = None
    if len(first.sources) == 1:
        stock = unsliced(first.sources[0])
    problems = _comparison_problems(first, compare, has_fused=bool(fused), has_stock=stock is not None)
    rows: list[BenchModel] = []
    for model in models:
        kind = "model"
        if isinstance(model, ExportedFile):
            kind = model.kind
        rows.append(BenchModel(kind, model))
        if model is first and STOCK in compare and stock is not None:
            stock_model = ModelArgument(f"{first.name}.stock", [stock])
            rows.append(BenchModel(STOCK, stock_model))
        if model is first and DEEP in compare and first.sources:
            copies = max(map(_members, fused), default=0)
            sources = [first.sources[0]] * copies
            deep = ModelArgument(f"{first.name}.deep", sources)
            rows.append(BenchModel(DEEP, deep))
        if MEMBERS in compare and model in fused and isinstance(model, ModelArgument):
            rows += _taken_apart(model)
    counts = Counter(row.name for row in rows)
    for name in sorted(counts):
        if counts[name] > 1:
            problems.append(f"two rows would be named {name}")
    if len(problems) == 1:
        raise UsageError(f"--compare {problems[0]}", hint="hydractl bench --help")
    if problems:
        message = f"{len(problems)} problems with --compare"
        raise UsageError(message, hint="hydractl bench --help", problems=problems)
    return [replace(row, whole_last_block=whole_last_block) for row in rows]


def _comparison_problems(first: Contestant, compare: Sequence[str], *, has_fused: bool, has_stock: bool) -> list[str]:
    """Return why comparisons are not to be had of these models.

    Args:
        first: the first MODEL.
        compare: what is asked for.
        has_fused: whether any MODEL is fused.
        has_stock: whether the first one has the shapes of the library's own model.
    """
    problems = []
    if STOCK in compare and not has_stock:
        problems.append(
            f"stock needs a first MODEL with all its heads (or --layout zeroed); {first.name} is {_is(first)}"
        )
    if MEMBERS in compare and not has_fused:
        problems.append("members needs a fused MODEL")
    if DEEP in compare and not has_fused:
        problems.append("deep needs a fused MODEL, which says how many copies")
    if DEEP in compare and (len(first.sources) != 1 or _members(first) > 1):
        problems.append(f"deep needs one single model as the first MODEL; {first.name} is {_is(first)}")
    return problems


def input_of(model: Contestant) -> BenchInput:
    """Return the shape of one sample: of an ``image`` ``[channels, height, width]``, or the ``tokens`` of a text."""
    if isinstance(model, ExportedFile):
        example = model.example_inputs()
    else:
        family, preprocess = preparation_of(model)
        example = family.example_inputs(preprocess, 1, 0)
    if isinstance(example, Tensor):
        return BenchInput(image=list(example.shape[1:]))
    ids = next(iter(example.values()))
    return BenchInput(tokens=ids.shape[1])


def preparation_of(model: Contestant) -> tuple[ModelFamily, Preprocessing]:
    """Return the family that prepares the samples of a model, and its settings for that."""
    if isinstance(model, ExportedFile):
        return model.family, model.preprocess
    return model.sources[0].family, model.sources[0].description.preprocess


def on_one_input(models: Sequence[Contestant], log: Log) -> list[Contestant]:
    """Return the models as all of them read the same: texts are cut where the model that cuts them shortest does.

    Raises:
        InputError: for models of images and of texts, or of images of different sizes.
    """
    inputs = {model.name: input_of(model) for model in models}
    first = inputs[models[0].name]
    if all(sample == first for sample in inputs.values()):
        return list(models)
    lengths = {}
    for name, sample in inputs.items():
        if sample.tokens is not None:
            lengths[name] = sample.tokens
    if len(lengths) < len(inputs):
        raise InputError(
            "these models read different inputs, so their times cannot be compared",
            hint="bench models of the same input together, or add --unequal-inputs to run each on its own",
            problems=[f"{name}: {input_text(sample)}" for name, sample in inputs.items()],
        )
    tokens = min(lengths.values())
    each = ", ".join(f"{name} {length}" for name, length in lengths.items())
    log.warn(f"the models cut texts at different lengths ({each}): all run on {tokens} tokens; see --max-length")
    return [_at_length(model, tokens) for model in models]


def _at_length(model: Contestant, tokens: int) -> Contestant:
    """Return the model that cuts texts at so many tokens."""
    if isinstance(model, ExportedFile):
        return model.at_length(tokens)
    sources = [with_max_length(source, tokens) for source in model.sources]
    return replace(model, sources=sources)


def open_samples(rows: Sequence[BenchModel], spec: str, limit: int | None, seed: int, batch_size: int) -> Dataset:
    """Return the samples to run on instead of random inputs.

    Raises:
        UsageError, InputError: they cannot be opened, or do not fill one batch.
    """
    reads = {}
    for row in rows:
        sample = input_of(row.model)
        if sample.tokens is None:
            reads[row.name] = "image"
        else:
            reads[row.name] = "text"
    data = open_data(spec, limit=limit, seed=seed, reads=reads, ignore_labels=True)
    if len(data) < batch_size:
        raise InputError(f"{data.spec} has {len(data)} samples, too few for --batch-size {batch_size}")
    return data


def _taken_apart(fused: ModelArgument) -> list[BenchModel]:
    """Return the members of a fused model: all of them one after another, and the first alone."""
    source = replace(fused.sources[0], name=fused.name)
    members = [member_source(source, index) for index in range(_members(fused))]
    first = members[0]
    together = ModelArgument(f"{fused.name}.members", members)
    first_alone = ModelArgument(first.name, [first])
    return [
        BenchModel(MEMBERS, together),
        BenchModel("member", first_alone),
    ]


def _members(model: Contestant) -> int:
    """Return the number of members of one fused model; 0 for an ensemble of several models and for an exported file."""
    if len(model.sources) != 1:
        return 0
    return len(model.sources[0].description.masks)


def _is(model: Contestant) -> str:
    """Say what kind of model it is, as a message does."""
    if not model.sources:
        return "an exported file"
    if len(model.sources) > 1:
        return f"{len(model.sources)} models one after another"
    if _members(model) > 1:
        return "fused"
    if model.sources[0].description.mask.is_full:
        return "one model"
    return "sliced"


# --- the library's own model ------------------------------------------------------------------------------------------


class StockModel(nn.Module):
    """The library's own class and attention on the weights of an unsliced source, called like a ``HydraModel``.

    Attributes:
        network: the library's model, as it builds it itself.

    Args:
        source: a model of one member with stock shapes, see :func:`unsliced`.
        device: where it runs; on the meta device it has shapes and no numbers.
        dtype: the dtype to compute in.
    """

    def __init__(self, source: Source, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.family = source.family
        self.description = source.description
        self.network = self.family.build(self.description.config)
        parameter_names = [name for name, _ in self.network.named_parameters()]
        buffer_names = [name for name, _ in self.network.named_buffers()]
        for name in parameter_names:
            parent, _, leaf = name.rpartition(".")
            module = self.network.get_submodule(parent)
            tensor = source.tensors.read(name).to(device, dtype, copy=True)
            module.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
        stored = set(source.tensors.names())
        for name in buffer_names:
            if name in stored:
                parent, _, leaf = name.rpartition(".")
                module = self.network.get_submodule(parent)
                module.register_buffer(leaf, source.tensors.read(name).clone())
        self.to(device).eval()
        self._features: Tensor | None = None
        if self.family.classes(self.description.config) is None:
            self._features = self._label_features()

    @torch.no_grad()
    def _label_features(self) -> Tensor:
        """Compute the features of the class names by the tower of the labels, once: ``[classes, D]``."""
        description = self.description
        labels = description.labels or STAND_INS
        templates = description.prompt or [DEFAULT_PROMPT]
        tower = next(stages for stages in self.family.stages(self.network) if stages.of_labels)
        prompts = self.family.prompts(description.config, description.preprocess, labels, templates)
        state = tower.stem(self._moved(prompts))
        for block in tower.blocks:
            state = block(state)
        return tower.readout(state)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, by the library's own forward."""
        logits = self._logits(inputs)
        return log_mean_softmax(logits[None])

    def _logits(self, inputs: Any) -> Tensor:
        """Compute logits ``[B, classes]``."""
        if self._features is not None:
            images = self.family.sample_features(self.network, inputs)
            return self.family.logits(self.network, [images, self._features])
        if isinstance(inputs, Mapping):
            answer = self.network(**inputs)
        else:
            answer = self.network(inputs)
        if isinstance(answer, Tensor):
            return answer
        logits: Tensor = answer.logits
        return logits

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Return random inputs of the right shape on the model's device and dtype."""
        preprocess = self.description.preprocess
        inputs = self.family.example_inputs(preprocess, batch, seed)
        return self._moved(inputs)

    def _moved(self, inputs: Any) -> Any:
        parameter = next(self.parameters())
        inputs = move(inputs, parameter.device, parameter.dtype)
        if parameter.is_meta and isinstance(inputs, Mapping):
            # Libraries look at the numbers of a mask; where there are none, only shapes are asked for.
            inputs = dict(inputs)
            inputs.pop("attention_mask", None)
        return inputs


def unsliced(source: Source) -> Source | None:
    """Return the model with stock shapes: as it is with all heads, or with zeros in place of zeroed heads.

    Returns:
        None for a fused model, and for one whose removed heads are gone.
    """
    description = source.description
    if len(description.masks) != 1:
        return None
    if description.mask.is_full:
        return source
    if description.layout != "zeroed":
        return None
    mask = description.mask
    tensors = zeroed(source.tensors, source.family, source.sites, mask, mask)
    with_all_heads = replace(description, kind="dense", layout="sliced", masks=[HeadMask.full(source.sites)])
    return replace(source, description=with_all_heads, tensors=tensors)


def build_stock(source: Source, device: str, dtype: str) -> StockModel:
    """Read the weights and build the library's own model."""
    check_finite_weights(source.name, source.tensors)
    return StockModel(source, resolve_device(device), resolve_dtype(dtype))


def stock_cost(source: Source) -> dict[str, int]:
    """Return ``params``, ``macs`` of one sample by torch's counter, and ``bytes``.

    The keys are those of :func:`hydractl.model.cost.cost_of`.
    """
    from torch.utils.flop_counter import FlopCounterMode

    tensors = shapes_only(source.tensors)
    model = StockModel(replace(source, tensors=tensors), torch.device("meta"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.example_inputs(1))
    macs = int(counter.get_total_flops()) // 2
    return {"params": parameters(tensors), "macs": macs, "bytes": weight_bytes(tensors)}
