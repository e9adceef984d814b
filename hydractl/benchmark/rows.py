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
from hydractl.families.meta_device import plain_sizes
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
        whole_last_block: whether the last block runs for all tokens, and not only for those that are read out;
            ``stock`` always runs it whole.
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
        """Return the parameters, mult-adds of one sample, and bytes of one model of an ensemble."""
        return cost_of(source.description, source.tensors, whole_last_block=self.whole_last_block)

    def _cost_of_file(self, file: ExportedFile) -> BenchCost:
        """Return the cost of an exported file, which does not say how many parameters it has."""
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
    """Return every MODEL of a bench in order, found and checked by its header; no weights are read.

    Args:
        texts: each MODEL as on the command line: an exported file (``.onnx`` or ``.pt2``), or what other verbs take.
        options: how to open them; with a ``max_length`` all texts are cut at so many tokens.

    Raises:
        UsageError, InputError: what is wrong with one of them, or with the options for it.
    """
    exported: dict[str, ExportedFile] = {}
    for text in texts:
        file = exported_file(text)
        if file is None:
            continue
        if options.max_length is not None:
            file = file.at_length(options.max_length)
        exported[text] = file

    # The others are opened together, so that one message lists the problems of all; they come back in their order.
    others = [text for text in texts if text not in exported]
    opened = iter(find_models(others, options))
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
    """Return the rows of a bench in order: each MODEL, and after it what ``--compare`` makes of it.

    Args:
        models: every MODEL; the others are compared with the first.
        compare: what to set beside them: ``stock`` and ``deep`` are made of the first, ``members`` of each fused one.
        whole_last_block: whether the last block runs for all tokens, and not only for those that are read out.

    Raises:
        UsageError: listing every comparison that these models do not allow, and names that would stand twice.
    """
    first = models[0]
    most_members = max(map(_fused_members, models))
    stock = None
    if len(first.sources) == 1:
        stock = unsliced(first.sources[0])
    problems = _comparison_problems(first, compare, has_fused=most_members > 1, has_stock=stock is not None)

    rows: list[BenchModel] = []
    for model in models:
        rows.append(_row_of_contestant(model))
        if model is first:
            if STOCK in compare and stock is not None:
                rows.append(_row_of_stock(first, stock))
            if DEEP in compare and first.sources:
                rows.append(_row_of_copies(first, most_members))
        if MEMBERS in compare and isinstance(model, ModelArgument) and _fused_members(model) > 1:
            rows += _rows_of_members(model)

    counts = Counter(row.name for row in rows)
    for name in sorted(counts):
        if counts[name] > 1:
            problems.append(f"two rows would be named {name}")
    _refuse_comparisons(problems)
    return [replace(row, whole_last_block=whole_last_block) for row in rows]


def _row_of_stock(first: Contestant, stock: Source) -> BenchModel:
    """Return the row of the library's own model on the weights of the first MODEL, which has all heads."""
    stock_model = ModelArgument(f"{first.name}.stock", [stock])
    return BenchModel(STOCK, stock_model)


def _row_of_copies(first: Contestant, copies: int) -> BenchModel:
    """Return the row of several copies of the first MODEL, one after another."""
    sources = [first.sources[0]] * copies
    return BenchModel(DEEP, ModelArgument(f"{first.name}.deep", sources))


def _row_of_contestant(model: Contestant) -> BenchModel:
    """Return the row of a MODEL itself."""
    if isinstance(model, ExportedFile):
        return BenchModel(model.kind, model)
    return BenchModel("model", model)


def _refuse_comparisons(problems: Sequence[str]) -> None:
    """Raise what is wrong with ``--compare``, if anything is.

    Raises:
        UsageError: with all problems.
    """
    if not problems:
        return
    hint = "hydractl bench --help"
    if len(problems) == 1:
        (only_problem,) = problems
        raise UsageError(f"--compare {only_problem}", hint=hint)
    raise UsageError(f"{len(problems)} problems with --compare", hint=hint, problems=problems)


def _comparison_problems(first: Contestant, compare: Sequence[str], *, has_fused: bool, has_stock: bool) -> list[str]:
    """Return why some of the comparisons asked for cannot be made with these models; empty where all can.

    Args:
        first: the first MODEL.
        compare: what is asked for.
        has_fused: whether any MODEL is fused.
        has_stock: whether the first one has the shapes of the library's own model.
    """
    problems = []
    first_is = f"{first.name} is {_kind_in_words(first)}"
    first_is_single = len(first.sources) == 1 and _fused_members(first) <= 1
    if STOCK in compare and not has_stock:
        problems.append(f"stock needs a first MODEL with all its heads (or --layout zeroed); {first_is}")
    if MEMBERS in compare and not has_fused:
        problems.append("members needs a fused MODEL")
    if DEEP in compare and not has_fused:
        problems.append("deep needs a fused MODEL, which says how many copies")
    if DEEP in compare and not first_is_single:
        problems.append(f"deep needs one single model as the first MODEL; {first_is}")
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
    """Return the models changed so that all read inputs of one shape.

    Models of images must do so already. Models of texts are all cut at the length of the shortest one, with a warning.

    Raises:
        InputError: for models of images and of texts, or of images of different sizes.
    """
    inputs = {model.name: input_of(model) for model in models}
    input_of_first = inputs[models[0].name]
    if all(sample == input_of_first for sample in inputs.values()):
        return list(models)

    # Only texts can be brought to one length.
    text_lengths = {}
    for name, sample in inputs.items():
        if sample.tokens is not None:
            text_lengths[name] = sample.tokens
    all_read_texts = len(text_lengths) == len(inputs)
    if not all_read_texts:
        raise InputError(
            "these models read different inputs, so their times cannot be compared",
            hint="bench models of the same input together, or add --unequal-inputs to run each on its own",
            problems=[f"{name}: {input_text(sample)}" for name, sample in inputs.items()],
        )

    shortest = min(text_lengths.values())
    each = ", ".join(f"{name} {length}" for name, length in text_lengths.items())
    log.warn(f"the models cut texts at different lengths ({each}): all run on {shortest} tokens; see --max-length")
    return [_at_length(model, shortest) for model in models]


def _at_length(model: Contestant, tokens: int) -> Contestant:
    """Return the model that cuts texts at so many tokens."""
    if isinstance(model, ExportedFile):
        return model.at_length(tokens)
    sources = [with_max_length(source, tokens) for source in model.sources]
    return replace(model, sources=sources)


def open_samples(rows: Sequence[BenchModel], spec: str, limit: int | None, seed: int, batch_size: int) -> Dataset:
    """Return the samples to run on instead of random inputs.

    Args:
        rows: the models that are to read them.
        spec: the data set.
        limit: take so many of its samples at most; None: all.
        seed: draws which.
        batch_size: there must be at least so many.

    Raises:
        UsageError, InputError: they cannot be opened, or do not fill one batch.
    """
    read_by_rows = {}
    for row in rows:
        sample = input_of(row.model)
        if sample.tokens is None:
            read_by_rows[row.name] = "image"
        else:
            read_by_rows[row.name] = "text"
    data = open_data(spec, limit=limit, seed=seed, reads=read_by_rows, ignore_labels=True)
    if len(data) < batch_size:
        raise InputError(f"{data.spec} has {len(data)} samples, too few for --batch-size {batch_size}")
    return data


def _rows_of_members(fused: ModelArgument) -> list[BenchModel]:
    """Return two rows of the members of a fused model: all of them one after another, and the first alone."""
    source = replace(fused.sources[0], name=fused.name)
    members = [member_source(source, index) for index in range(_fused_members(fused))]
    first = members[0]
    one_after_another = ModelArgument(f"{fused.name}.members", members)
    first_alone = ModelArgument(first.name, [first])
    return [
        BenchModel(MEMBERS, one_after_another),
        BenchModel("member", first_alone),
    ]


def _fused_members(model: Contestant) -> int:
    """Return how many members are fused into one model: 1 for a single one.

    Returns:
        0 for an ensemble of several models, and for an exported file.
    """
    if len(model.sources) != 1:
        return 0
    return len(model.sources[0].description.masks)


def _kind_in_words(model: Contestant) -> str:
    """Return what kind of model it is, as a message says it: ``sliced``, ``fused``, ``one model`` and so on."""
    if not model.sources:
        return "an exported file"
    if len(model.sources) > 1:
        return f"{len(model.sources)} models one after another"
    if _fused_members(model) > 1:
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
        source: a model of one member in the shapes of the library's own one, which has all heads.
        device: where it runs; on the meta device it has shapes and no numbers.
        dtype: the dtype to compute in.
    """

    def __init__(self, source: Source, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.family = source.family
        self.description = source.description
        self.network = self.family.build(self.description.config)
        self._read_weights(source, device, dtype)
        self.to(device).eval()
        self._features_of_labels: Tensor | None = None
        is_zero_shot = self.family.classes(self.description.config) is None
        if is_zero_shot:
            self._features_of_labels = self._compute_features_of_labels()

    def _read_weights(self, source: Source, device: torch.device, dtype: torch.dtype) -> None:
        """Put the tensors of a source in the place of the parameters and buffers that the library has made.

        Parameters are all read, and converted to the dtype. Buffers keep their dtype, and those that are not stored
        keep what the library has computed.
        """
        parameter_names = [name for name, _ in self.network.named_parameters()]
        buffer_names = [name for name, _ in self.network.named_buffers()]
        for name in parameter_names:
            module_path, _, attribute = name.rpartition(".")
            module = self.network.get_submodule(module_path)
            tensor = source.tensors.read(name).to(device, dtype, copy=True)
            parameter = nn.Parameter(tensor, requires_grad=False)
            module.register_parameter(attribute, parameter)
        stored_names = set(source.tensors.names())
        for name in buffer_names:
            if name not in stored_names:
                continue
            module_path, _, attribute = name.rpartition(".")
            module = self.network.get_submodule(module_path)
            buffer = source.tensors.read(name).clone()
            module.register_buffer(attribute, buffer)

    @torch.no_grad()
    def _compute_features_of_labels(self) -> Tensor:
        """Return the features of the class names, ``[classes, D]``, by the network that reads them.

        A model without class names computes those of stand-ins, which take the same time.
        """
        description = self.description
        labels = description.labels or STAND_INS
        templates = description.prompt or [DEFAULT_PROMPT]
        prompts = self.family.prompts(description.config, description.preprocess, labels, templates)
        towers = self.family.stages(self.network)
        tower_of_labels = next(tower for tower in towers if tower.of_labels)
        state = tower_of_labels.stem(self._moved(prompts))
        for block in tower_of_labels.blocks:
            state = block(state)
        return tower_of_labels.readout(state)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, by the library's own forward."""
        logits = self._logits(inputs)
        return log_mean_softmax(logits[None])

    def _logits(self, inputs: Any) -> Tensor:
        """Return logits ``[B, classes]``: of a zero-shot model by comparing features, else by the library's head."""
        if self._features_of_labels is not None:
            images = self.family.sample_features(self.network, inputs)
            return self.family.logits(self.network, [images, self._features_of_labels])
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
        """Return inputs on the device and in the dtype of the network."""
        parameter = next(self.parameters())
        inputs = move(inputs, parameter.device, parameter.dtype)
        if parameter.is_meta and isinstance(inputs, Mapping):
            # Libraries look at the numbers of a mask; where there are none, only shapes are asked for.
            inputs = dict(inputs)
            inputs.pop("attention_mask", None)
        return inputs


def unsliced(source: Source) -> Source | None:
    """Return a model in the shapes of the library's own one, which has all heads.

    Returns:
        The model as it is where no head was removed, and with zeros for the heads that were zeroed; None for a fused
        model, and for one whose removed heads are gone.
    """
    description = source.description
    if len(description.masks) != 1:
        return None
    if description.mask.is_full:
        return source
    if description.layout != "zeroed":
        return None
    mask = description.mask
    all_heads = HeadMask.full(source.sites)
    tensors = zeroed(source.tensors, source.family, source.sites, mask, mask)
    with_all_heads = replace(description, kind="dense", layout="sliced", masks=[all_heads])
    return replace(source, description=with_all_heads, tensors=tensors)


def build_stock(source: Source, device: str, dtype: str) -> StockModel:
    """Read the weights and build the library's own model."""
    check_finite_weights(source.name, source.tensors)
    return StockModel(source, resolve_device(device), resolve_dtype(dtype))


@plain_sizes()
def stock_cost(source: Source) -> dict[str, int]:
    """Return the cost of the library's own model by key.

    Returns:
        ``params`` (how many numbers), ``macs`` (mult-adds of one sample, by torch's counter) and ``bytes`` (of the
        weights).
    """
    from torch.utils.flop_counter import FlopCounterMode

    tensors = shapes_only(source.tensors)
    model = StockModel(replace(source, tensors=tensors), torch.device("meta"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.example_inputs(1))
    macs = int(counter.get_total_flops()) // 2
    return {"params": parameters(tensors), "macs": macs, "bytes": weight_bytes(tensors)}
