"""The signature of ``fuse``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from hydractl.api.options import (
    Arch,
    BatchSize,
    Config,
    Device,
    DryRun,
    Dtype,
    Force,
    Labels,
    Limit,
    MaxLength,
    Members,
    Output,
    Prompt,
    Seed,
    Workers,
)
from hydractl.api.values import Data
from hydractl.api.verb import verb
from hydractl.expressions.data_sets import DataSpec
from hydractl.expressions.models import ModelRef
from hydractl.options.call import Problems, all_checked, checked_or_none, current, log, texts, where
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.models import Model

fusing = partial(opt, group="Fusing")

Mergeable = Literal["mlp", "norm", "embed", "none", "auto"]


@verb("fuse", writes="weights", before=lambda call: call.drop_shared("val"))  # others validate on data of their own
def fuse(
    models: Members,
    *,
    merge: Annotated[
        Mergeable | Sequence[Mergeable],
        fusing(
            "What to average over the members; attention, LayerScale and classifiers never are. auto averages all "
            "three where the members come from one base and it moves their answers little, and nothing where it does "
            "not",
            metavar="auto|mlp,norm,embed|none",
            split=True,
            often=True,
        ),
    ] = ("auto",),
    val: Annotated[
        Data | None,
        fusing(
            "Labelled validation data, on which what averaging does to accuracy is measured", metavar="SPEC", often=True
        ),
    ] = None,
    output: Output = None,
    limit: Limit = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
) -> Model:
    """Fuse pruned members into one model that gives their averaged prediction in one pass.

    Args:
        models: the members, or one model that has several ``members``.

    Returns:
        The fused model; ``result`` holds what was averaged, the self-check and the cost. Without ``output`` its file is
        temporary.

    Raises:
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    parts = texts(merge)
    with Problems() as problems:
        for word in ("none", "auto"):
            if word in parts and len(parts) > 1:
                problems.add(f"--merge {word} stands alone, not with the others: {','.join(parts)}{where('merge')}")
                break
        if current().of_this_verb("limit"):
            problems.goes_with("limit", "val")

    from hydractl.api.making import made, place_of_model
    from hydractl.verbs.fuse import run
    from hydractl.verbs.opening import opening_options

    path, folder = place_of_model(output, "hydra.st")
    outcome = run(
        all_checked(ModelRef, models),
        opening_options(current().values, bodies=True),
        merge=[] if parts == ["none"] else parts,
        val=checked_or_none(DataSpec, val),
        output=path,
        limit=limit,
        seed=seed,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        workers=workers,
        force=force,
        dry_run=dry_run,
        log=log(),
    )
    return made(outcome, folder)
