"""Multiply-adds by closed formula, as a check of what torch's counter finds (see :mod:`hydractl.model.cost`).

One block with h heads of width dk, d-wide tokens of which q ask and T answer:

    Q and O           2 q d h dk        (and q d h dk more where the library gates the heads)
    K and V           2 T d h dk
    both products     2 q T h dk
    MLP               q times the elements of its matrices: 2 q d d_ff, or 3 q d d_ff for a gated one

summed over blocks and over the members that run them; where the heads of all members attend together, each member runs
only O, its gates and its MLP. Stem and readout are linear layers and convolutions: the elements
of the weight times the tokens it is applied to. Nothing here runs attention or an MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydractl.families import get_family
from hydractl.families.base import ModelFamily, Stages, attention_names
from hydractl.files.checkpoint import TensorSource
from hydractl.files.description import Description
from hydractl.heads.mask import Site
from hydractl.model.cost import ShapesOnly
from hydractl.model.members import united
from hydractl.model.prompted import STAND_INS
from hydractl.model.runtime import HydraModel, move

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class BlockWork:
    """What one block runs for one call.

    Attributes:
        heads: the heads of each run: one entry a member, or a single one where the members share the block.
        last_only: whether only the tokens that are read out ask, instead of all of them.
        pool: how many heads attend once for all runs, each of which then projects its own; None: each attends itself.
    """

    heads: Sequence[int]
    last_only: bool = False
    pool: int | None = None


@dataclass(frozen=True)
class Work:
    """What a model runs for one call of the tower of the samples.

    Attributes:
        stems: how often the stem runs.
        blocks: in model order.
        readouts: how often the readout runs: once a member.
    """

    stems: int
    blocks: Sequence[BlockWork]
    readouts: int


@dataclass(frozen=True)
class Block:
    """The sizes of one block.

    Attributes:
        d_model, head_dim: widths of a token and of a head.
        gated: whether the library scales the output of every head by a projection of its input.
        mlp: elements of the matrices of its MLP.
    """

    d_model: int
    head_dim: int
    gated: bool
    mlp: int

    def macs(self, work: BlockWork, asking: int, tokens: int) -> int:
        """Multiply-adds of all runs for one sample."""
        attending = sum(work.heads) if work.pool is None else work.pool
        queries = asking * self.d_model + 2 * tokens * self.d_model
        attention = attending * self.head_dim * (queries + 2 * asking * tokens)
        outputs = (2 if self.gated else 1) * sum(work.heads) * self.head_dim * asking * self.d_model
        return attention + outputs + len(work.heads) * asking * self.mlp


def work_of(description: Description, tensors: TensorSource, *, whole_last_block: bool = False) -> Work:
    """What hydractl runs of a model: leading blocks that are the same in all members once, the last for few tokens."""
    import torch

    model = HydraModel(description, ShapesOnly(tensors), torch.device("meta"))
    chain, masks, blocks = model.chain_of_samples, description.masks, []
    for index in chain.sites:
        path, last = model.sites[index].path, not whole_last_block and index == chain.sites.stop - 1
        counts = [len(mask.kept[path]) for mask in masks]
        if chain.start.once(index):
            blocks.append(BlockWork(counts[:1], last))
        else:
            pool = len(united(masks, path)) if chain.start.pooled(index) else None
            blocks.append(BlockWork(counts, last, pool))
    return Work(1 if chain.start.shared_stem else len(masks), blocks, len(masks))


def stock_work(description: Description) -> Work:
    """What the library itself runs of a single model: every block once, for all tokens."""
    family, mask = get_family(description.family), description.mask
    stages = _of_samples(family.stages(family.build(description.config)))
    sites = [site for site in family.sites(description.config) if site.tower == stages.tower]
    return Work(1, [BlockWork([len(mask.kept[site.path])]) for site in sites], 1)


def single_work(description: Description, *, whole_last_block: bool = False) -> Work:
    """What hydractl runs of the one model with all its heads that a description descends from."""
    family = get_family(description.family)
    tower = _of_samples(family.stages(family.build(description.config))).tower
    sites = [site for site in family.sites(description.config) if site.tower == tower]
    last = len(sites) - 1
    blocks = [BlockWork([site.heads], not whole_last_block and place == last) for place, site in enumerate(sites)]
    return Work(1, blocks, 1)


def macs_formula(description: Description, work: Work) -> int | None:
    """Multiply-adds of one call on one sample.

    Args:
        description: of the model.
        work: what it runs.

    Returns:
        None where the readout pools by attention, which this formula does not know.
    """
    import torch

    family = get_family(description.family)
    model = family.build(description.config).to("meta")
    stages, sites = _of_samples(family.stages(model)), family.sites(description.config)
    inside = tuple(f"{path}." for path in stages.block_paths)
    modules = [(f"{name}.", module) for name, module in model.named_modules() if name]
    outside = [m for name, m in modules if name.startswith(stages.prefixes) and not name.startswith(inside)]
    if any("Attention" in type(module).__name__ for module in outside):
        return None
    inputs = move(family.example_inputs(description.preprocess, 1, 0), torch.device("meta"), torch.float32)
    with torch.no_grad(), _counted(outside) as stem:
        state = stages.stem(inputs)
    with torch.no_grad(), _counted(outside) as readout:
        output = stages.readout(state)
    tokens, width = int(state.hidden.shape[1]), int(output.shape[-1])
    asking = tokens if stages.reads is None else int(stages.reads(state).shape[1])
    readout += _bare_matrices(family, model, sites, stages, inside)
    if family.classes(description.config) is None:  # features of the sample against those of the classes
        readout.append(width * len(description.labels or STAND_INS))
    total = work.stems * sum(stem) + work.readouts * sum(readout)
    for block, one in zip(_blocks(family, model, sites, stages), work.blocks, strict=True):
        total += block.macs(one, asking if one.last_only else tokens, tokens)
    return total


def _of_samples(towers: Sequence[Stages]) -> Stages:
    return next(stages for stages in towers if not stages.of_labels)


@contextmanager
def _counted(modules: Sequence[nn.Module]) -> Iterator[list[int]]:
    """The multiply-adds of every linear layer and convolution that runs in the meantime."""
    from torch import nn

    found: list[int] = []

    def count(module: Any, _: Any, output: Tensor) -> None:
        found.append(output.numel() * module.weight[0].numel())  # each output is a product with one row of weights

    hooks = [m.register_forward_hook(count) for m in modules if isinstance(m, (nn.Linear, nn.Conv2d))]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _bare_matrices(
    family: ModelFamily, model: nn.Module, sites: Sequence[Site], stages: Stages, inside: tuple[str, ...]
) -> list[int]:
    """The elements of matrices that are held by no layer and applied to the one feature that is read out."""
    from torch import nn

    return [
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and name.startswith(stages.prefixes) and not name.startswith(inside)
        if family.part(name, sites) == "own" and not isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)
    ]


def _blocks(family: ModelFamily, model: nn.Module, sites: Sequence[Site], stages: Stages) -> list[Block]:
    """The sizes of the blocks of one tower, from the shapes of their parameters."""
    shapes: dict[str, Tensor] = dict(model.named_parameters())
    found = []
    for site, path in zip((s for s in sites if s.tower == stages.tower), stages.block_paths, strict=True):
        mlp = sum(
            tensor.numel()
            for name, tensor in shapes.items()
            if name.startswith(f"{path}.") and tensor.dim() == 2 and family.part(name, sites) == "mlp"
        )
        heads = family.read({n: shapes[n] for n in attention_names(family, shapes, sites, site)}, site)
        found.append(Block(site.d_model, site.head_dim, heads.gate is not None, mlp))
    return found
