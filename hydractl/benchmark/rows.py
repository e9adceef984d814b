"""The rows of a bench: the MODELs, and what ``--compare`` adds to them, made from the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import InputError, refuse_options
from hydractl.families.meta_device import plain_sizes
from hydractl.files.bench_answer import BenchCost, BenchInput
from hydractl.files.checkpoint import shapes_only
from hydractl.files.description import DEFAULT_PROMPT
from hydractl.heads.mask import HeadMask
from hydractl.model.cost import cost_of, parameters, total_cost, weight_bytes
from hydractl.model.loading import ModelArgument, resolve_device, resolve_dtype
from hydractl.model.prompted import STAND_INS
from hydractl.model.runtime import log_mean_softmax, move
from hydractl.model.source import Source, member_source
from hydractl.model.stored import check_finite_weights, zeroed
from hydractl.report.texts import input_text

STOCK, MEMBERS, DEEP = "stock", "members", "deep"


@dataclass(frozen=True)
class BenchModel:
    """What one row of a bench runs; its weights are not read yet.

    Attributes:
        kind: ``model`` (a MODEL), ``stock`` (the library's own model on the first MODEL's weights), ``member`` (one
            member of a fused model), ``members`` (all of its members, one after another) or ``deep`` (copies of the
            first MODEL, one after another).
        model: the model to run; its name is the name of the row.
        whole_last_block: whether the last block runs for all tokens, and not only for those that are read out;
            ``stock`` always runs all of it.
    """

    kind: str
    model: ModelArgument
    whole_last_block: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        return self.model.name

    def build(self, device: str, dtype: str) -> Any:
        """Read the weights and build the module to run, ``inputs -> log p [B, classes]``."""
        if self.kind == STOCK:
            return build_stock(self.model.sources[0], device, dtype)
        model = self.model.build(device, dtype, whole_last_block=self.whole_last_block)
        return model.with_classes()

    def cost(self) -> BenchCost:
        """Return what a model costs without a measurement: parameters, mult-adds of one sample, and bytes of weights.

        Several members are added up. ``mac_ratio`` is None here: it compares rows (the models of the bench), so it is
        set when all are known.
        """
        # The size and the multiply-adds, of the library's own model or of all members together.
        sources = self.model.sources
        if self.kind == STOCK:
            size = stock_cost(sources[0])
        else:
            whole = self.whole_last_block
            size = total_cost(cost_of(source.description, source.tensors, whole_last_block=whole) for source in sources)
        members = sum(len(source.description.masks) for source in sources)  # a file has one mask for each member

        return BenchCost(
            kind=self.kind,
            input=input_of(self.model),
            checkpoint_bytes=self.model.file_bytes,
            members=members,
            **size,
            mac_ratio=None,
        )


def with_ratios(costs: Sequence[BenchCost]) -> list[BenchCost]:
    """Return the costs with their ratio of mult-adds to the first row."""
    return [cost.model_copy(update={"mac_ratio": cost.macs / costs[0].macs}) for cost in costs]


def bench_rows(
    models: Sequence[ModelArgument], compare: Sequence[str], *, whole_last_block: bool = False
) -> list[BenchModel]:
    """Return the rows of a bench in order: each MODEL, followed by the rows that ``--compare`` makes from it.

    Args:
        models: every MODEL; the others are compared with the first.
        compare: the comparisons: ``stock`` and ``deep`` are made from the first MODEL, ``members`` from each fused
            MODEL.
        whole_last_block: whether the last block runs for all tokens, and not only for those that are read out.

    Raises:
        UsageError: a comparison is not possible with these models, or two rows would have the same name; it lists all.
    """
    first = models[0]
    most_members = max(map(_fused_members, models))
    problems = []
    rows: list[BenchModel] = []
    for model in models:
        rows.append(BenchModel("model", model, whole_last_block))
        if model is first and STOCK in compare:
            stock = unsliced(first.sources[0]) if len(first.sources) == 1 else None
            if stock is None:
                problems.append(
                    f"stock needs a first MODEL with all its heads (or --layout zeroed), unlike {first.name}"
                )
            else:
                rows.append(BenchModel(STOCK, ModelArgument(f"{first.name}.stock", [stock]), whole_last_block))
        if model is first and DEEP in compare:
            if most_members < 2:
                problems.append("deep needs a fused MODEL, which says how many copies")
            if _fused_members(first) != 1:
                problems.append(f"deep needs one single model as the first MODEL, unlike {first.name}")
            copies = [first.sources[0]] * most_members
            rows.append(BenchModel(DEEP, ModelArgument(f"{first.name}.deep", copies), whole_last_block))
        if MEMBERS in compare and _fused_members(model) > 1:
            source = replace(model.sources[0], name=model.name)
            members = [member_source(source, index) for index in range(_fused_members(model))]
            rows.append(BenchModel(MEMBERS, ModelArgument(f"{model.name}.members", members), whole_last_block))
            rows.append(BenchModel("member", ModelArgument(members[0].name, members[:1]), whole_last_block))
    if MEMBERS in compare and most_members < 2:
        problems.append("members needs a fused MODEL")

    counts = Counter(row.name for row in rows)
    for name in sorted(counts):
        if counts[name] > 1:
            problems.append(f"two rows would be named {name}")
    refuse_options([f"--compare {problem}" for problem in problems], "--compare", hint="hydractl bench --help")
    return rows


def input_of(model: ModelArgument) -> BenchInput:
    """Return the shape of one sample: ``image`` ``[channels, height, width]``, or the number of ``tokens``."""
    source = model.sources[0]
    example = source.family.example_inputs(source.description.preprocess, 1, 0)  # one sample, drawn from seed 0
    if isinstance(example, Tensor):  # an image, [1, channels, height, width]
        return BenchInput(image=list(example.shape[1:]))
    first_tensor = next(iter(example.values()))  # a text: several tensors by name, [1, tokens] each
    return BenchInput(tokens=first_tensor.shape[1])


def check_inputs(models: Sequence[ModelArgument]) -> None:
    """Raise an error unless all models take inputs of one shape, so that their times can be compared.

    Raises:
        InputError: some read images and some texts, or their images or texts have different sizes.
    """
    inputs = [input_of(model) for model in models]
    if all(sample == inputs[0] for sample in inputs):
        return
    # The lengths of texts can be made equal; other inputs can not.
    lengths = [sample.tokens for sample in inputs if sample.tokens is not None]
    all_read_texts = len(lengths) == len(inputs)
    if all_read_texts:
        hint = f"cut the texts of all at the same length: --max-length {min(lengths)}"
    else:
        hint = "bench models of the same input together"
    raise InputError(
        "these models read different inputs, so their times cannot be compared",
        hint=hint,
        problems=[f"{model.name}: {input_text(sample)}" for model, sample in zip(models, inputs, strict=True)],
    )


def _fused_members(model: ModelArgument) -> int:
    """Return how many members are fused into a model: 1 for a single model, 0 for several."""
    if len(model.sources) != 1:
        return 0
    return len(model.sources[0].description.masks)


# --- the library's own model ------------------------------------------------------------------------------------------

_NO_TOKEN = -1
"""An id that no token has."""


class StockModel(nn.Module):
    """The library's own class and attention with the weights of a model, callable like a ``HydraModel``.

    Attributes:
        network: the library's model, as the library builds it.

    Args:
        source: a model of one member that has all heads, in the shapes of the library's own model.
        device: the device to run on; on the meta device the model has shapes but no numbers.
        dtype: the dtype to compute in.
    """

    def __init__(self, source: Source, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Build the library's model, and read the weights into it; a zero-shot model also runs its text tower once."""
        super().__init__()
        self.family = source.family
        self.description = source.description
        self.network = self.family.build(self.description.config)
        # Without a padding token transformers refuses several texts at once. Those that are measured have no padding.
        config: Any = getattr(self.network, "config", None)
        if getattr(config, "pad_token_id", _NO_TOKEN) is None:
            config.pad_token_id = _NO_TOKEN

        # Read its parameters, in this dtype, and those of its buffers that the file has.
        tensors = {}
        for name, _ in self.network.named_parameters():
            tensors[name] = source.tensors.read(name).to(device, dtype, copy=True)
        stored_names = set(source.tensors.names())
        for name, _ in self.network.named_buffers():
            if name in stored_names:
                tensors[name] = source.tensors.read(name).clone()
        self.network.load_state_dict(tensors, strict=False, assign=True)  # not strict: other buffers stay as built
        self.requires_grad_(False).to(device).eval()

        # A zero-shot model compares images with class texts, of which it computes the features once.
        self._features_of_labels: Tensor | None = None
        is_zero_shot = self.family.classes(self.description.config) is None  # it has no classifier
        if is_zero_shot:
            self._features_of_labels = self._compute_features_of_labels()

    @torch.no_grad()
    def _compute_features_of_labels(self) -> Tensor:
        """Return the features of the class names, ``[classes, D]``, computed by the text tower.

        A class name becomes a prompt, e.g. "a photo of a cat". A model without class names gets the features of
        stand-in names, which take the same time.
        """
        description = self.description
        labels = description.labels or STAND_INS
        templates = description.prompt or [DEFAULT_PROMPT]
        prompts = self.family.prompts(description.config, description.preprocess, labels, templates)
        # Run the text tower: embed the prompts, then one transformer block after another, then read the features out.
        towers = self.family.stages(self.network)
        tower_of_labels = next(tower for tower in towers if tower.of_labels)
        state = tower_of_labels.stem(self._moved(prompts))
        for block in tower_of_labels.blocks:
            state = block(state)
        return tower_of_labels.readout(state)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, computed by the library's own forward."""
        logits = self._logits(inputs)
        return log_mean_softmax(logits[None])  # [1, B, classes]: one member

    def _logits(self, inputs: Any) -> Tensor:
        """Return logits ``[B, classes]``: for a zero-shot model by comparing features, else the library's own."""
        if self._features_of_labels is not None:
            image_features = self.family.sample_features(self.network, inputs)  # [B, D]
            return self.family.logits(self.network, [image_features, self._features_of_labels])
        # Texts are several tensors by name, images are one tensor.
        if isinstance(inputs, Mapping):
            output = self.network(**inputs)
        else:
            output = self.network(inputs)
        # timm returns the logits themselves, transformers an object with them.
        if isinstance(output, Tensor):
            return output
        logits: Tensor = output.logits
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
            # Libraries read the numbers in an attention mask. On the meta device there are none, so leave the mask out.
            inputs = dict(inputs)
            inputs.pop("attention_mask", None)
        return inputs


def unsliced(source: Source) -> Source | None:
    """Return a model in the shapes of the library's own model, with all heads; None if that is not possible.

    * a fused model: None;
    * all heads present: the model as it is;
    * heads removed, cut out of the weights (layout ``sliced``): None;
    * heads removed, their weights zeroed (layout ``zeroed``): a model with these heads as zeros.
    """
    description = source.description
    is_fused = len(description.masks) != 1  # one mask (of present heads) for each member
    if is_fused:
        return None
    mask = description.mask
    if mask.is_full:
        return source
    if description.layout != "zeroed":
        return None

    # Fill the removed heads with zeros, and describe the model as one that has all heads.
    tensors = zeroed(source.tensors, source.family, source.sites, mask, mask)
    all_heads = HeadMask.full(source.sites)
    with_all_heads = replace(description, kind="dense", layout="sliced", masks=[all_heads])
    return replace(source, description=with_all_heads, tensors=tensors)


def build_stock(source: Source, device: str, dtype: str) -> StockModel:
    """Read the weights and build the library's own model."""
    check_finite_weights(source.name, source.tensors)
    return StockModel(source, resolve_device(device), resolve_dtype(dtype))


@plain_sizes()
def stock_cost(source: Source) -> dict[str, int]:
    """Return the cost of the library's own model, by key.

    Returns:
        ``params`` (the number of parameters), ``macs`` (mult-adds of one sample, by torch's counter), and ``bytes`` (of
        the weights).
    """
    from torch.utils.flop_counter import FlopCounterMode

    # Build the model of tensors without data (device "meta"), and count the operations of one sample.
    tensors = shapes_only(source.tensors)
    model = StockModel(replace(source, tensors=tensors), torch.device("meta"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.example_inputs(1))
    macs = int(counter.get_total_flops()) // 2  # the counter counts a mult-add as two operations
    return {"params": parameters(tensors), "macs": macs, "bytes": weight_bytes(tensors)}
