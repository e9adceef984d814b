"""The signature of ``fuse``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from hydractl.api.making import made, place_for_model
from hydractl.api.options import Arch, Config, Device, DryRun, Force, Labels, MaxLength, Members, Output, Prompt, Seed
from hydractl.api.verb import verb
from hydractl.options.call import checking
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.models import Model

fusing = partial(opt, group="Fusing")

Mergeable = Literal["mlp", "norm", "embed", "none", "auto"]


@verb("fuse", writes="weights")
def fuse(
    models: Members,
    *,
    merge: Mergeable | Sequence[Mergeable] = fusing(
        "What to average over the members; attention, LayerScale and classifiers never are. auto averages all "
        "three where the members come from one base and it moves their answers little, and nothing where it does "
        "not",
        default=("auto",),
        metavar="auto|mlp,norm,embed|none",
        split=True,
        often=True,
    ),
    output: Output = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    prompt: Prompt = (),
    arch: Arch = None,
    force: Force = False,
    device: Device = "auto",
    seed: Seed = 0,
    dry_run: DryRun = False,
    config: Config = None,
) -> Model:
    """Fuse pruned members into one model that gives their averaged prediction in one pass.

    :mod:`hydractl.verbs.fuse` stores what the members share once, averages the parts in ``merge``, and checks the
    result against the members.

    Args:
        models: the members, or one model that has several ``members``.

    Returns:
        The fused model; ``result`` holds what was averaged, the self-check and the cost. Without ``output`` its file is
        temporary.

    Raises:
        UsageError, InputError: an option or a model is wrong, or the models cannot be members of one fused model.
        NonFiniteError: a weight or a logit is not finite.
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    with checking() as call:
        parts = call.values["merge"]
        for word in ("none", "auto"):  # each says something of all parts
            if word in parts and len(parts) > 1:
                call.add(f"--merge {word} stands alone, not with the others: {','.join(parts)}", "merge")
                break

    from hydractl.verbs.fuse import run

    folder = place_for_model(call, "hydra.st")
    return made(call, run(call), folder)
