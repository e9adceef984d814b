"""What a bench compares: the MODELs, and what ``--compare`` sets beside them, made of the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydractl.bench.stock import build_stock, stock_cost, unsliced
from hydractl.errors import UsageError
from hydractl.model.cost import cost_of, total_cost
from hydractl.model.loading import ModelArgument
from hydractl.model.source import Source, member_source

STOCK, MEMBERS, DEEP = "stock", "members", "deep"


@dataclass(frozen=True)
class Row:
    """One row of a bench, its weights not yet read.

    Attributes:
        kind: ``model`` (a MODEL as it was given), ``stock`` (the library's own model on its weights), ``member`` (one
            member of a fused model), ``members`` (all of them, one after another) or ``deep`` (full copies of the
            first MODEL, one after another).
        model: what runs, under the name of the row.
        whole_last_block: as of :class:`hydractl.model.runtime.HydraModel`; ``stock`` always runs it whole.
    """

    kind: str
    model: ModelArgument
    whole_last_block: bool = False

    @property
    def name(self) -> str:
        """The name of the row."""
        return self.model.name

    def build(self, device: str, dtype: str) -> Any:
        """Read the weights and build the module that runs: ``inputs -> log p [B, classes]``."""
        if self.kind != STOCK:
            return self.model.build(device, dtype, whole_last_block=self.whole_last_block).with_classes()

        return build_stock(self.model.sources[0], device, dtype)

    def cost(self) -> dict[str, Any]:
        """The part of a row that needs no measurement."""
        sources = self.model.sources
        if self.kind == STOCK:
            cost = stock_cost(sources[0])
        else:
            cost = total_cost(
                cost_of(s.description, s.tensors, whole_last_block=self.whole_last_block) for s in sources
            )
        return {
            "kind": self.kind,
            "members": sum(len(source.description.masks) for source in sources),
            "params": cost["params"],
            "macs": cost["macs"],
            "bytes": cost["bytes"],
            "checkpoint_bytes": self.model.file_bytes,
        }


def rows_of(models: Sequence[ModelArgument], compare: Sequence[str], *, whole_last_block: bool = False) -> list[Row]:
    """The rows of a bench in order: each MODEL, and after it what is made of it.

    Raises:
        UsageError: listing every comparison that these models do not allow, and names that would stand twice.
    """
    first = models[0]
    fused = [model for model in models if _members(model) > 1]
    whole = unsliced(first.sources[0]) if len(first.sources) == 1 else None
    problems = []
    if STOCK in compare and whole is None:
        problems.append(
            f"stock needs a first MODEL with all its heads (or --layout zeroed); {first.name} is {_is(first)}"
        )
    if MEMBERS in compare and not fused:
        problems.append("members needs a fused MODEL")
    if DEEP in compare and not fused:
        problems.append("deep needs a fused MODEL, which says how many copies")
    if DEEP in compare and (len(first.sources) > 1 or _members(first) > 1):
        problems.append(f"deep needs one single model as the first MODEL; {first.name} is {_is(first)}")
    rows: list[Row] = []
    for model in models:
        rows.append(Row("model", model))
        if model is first and not problems:
            rows += _beside_first(first, whole, max(map(_members, fused), default=0), compare)
        if MEMBERS in compare and model in fused:
            rows += _taken_apart(model)
    names = [row.name for row in rows]
    problems += [f"two rows would be named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        message = f"--compare {problems[0]}" if len(problems) == 1 else f"{len(problems)} problems with --compare"
        raise UsageError(message, hint="hydractl bench --help", problems=problems if len(problems) > 1 else ())
    return [replace(row, whole_last_block=whole_last_block) for row in rows]


def _beside_first(first: ModelArgument, whole: Source | None, copies: int, compare: Sequence[str]) -> list[Row]:
    rows = []
    if STOCK in compare and whole is not None:
        rows.append(Row(STOCK, ModelArgument(f"{first.name}.stock", [whole])))
    if DEEP in compare:
        rows.append(Row(DEEP, ModelArgument(f"{first.name}.deep", [first.sources[0]] * copies)))
    return rows


def _taken_apart(fused: ModelArgument) -> list[Row]:
    """The members of a fused model: all of them one after another, and the first alone."""
    source = replace(fused.sources[0], name=fused.name)
    members = [member_source(source, index) for index in range(_members(fused))]
    together = ModelArgument(f"{fused.name}.members", members)
    return [Row(MEMBERS, together), Row("member", ModelArgument(members[0].name, members[:1]))]


def _members(model: ModelArgument) -> int:
    """Members inside one fused model; an ensemble of several models is none."""
    return len(model.sources[0].description.masks) if len(model.sources) == 1 else 0


def _is(model: ModelArgument) -> str:
    if len(model.sources) > 1:
        return f"{len(model.sources)} models one after another"
    return "fused" if _members(model) > 1 else "one model" if model.sources[0].description.mask.is_full else "sliced"
