"""Every model of timm by name, small: what hydractl opens says what the library's own model says, or is refused.

python -m tests.families.sweep [NAME ...]
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from hydractl.errors import HydraError, InputError
from hydractl.model.source import Source, open_source
from tests.pico import model_of, prune_source

import timm  # isort: skip - behind the families, which make it importable

_WIDTH = {"embed_dim": 48, "num_heads": 3, "num_classes": 5}
_SWIN = {"embed_dim": 24, "depths": [1] * 4, "num_heads": [3] * 4, "num_classes": 5}


def small(name: str) -> Iterator[dict[str, Any]]:
    """Arguments that make a model small, the smallest first; a model may not take them."""
    with torch.device("meta"):
        patch = getattr(getattr(timm.create_model(name), "patch_embed", None), "patch_size", None)
    depth = {**_WIDTH, "depth": 2}
    if isinstance(patch, tuple):
        yield {**depth, "img_size": 2 * patch[0]}
    yield depth
    yield {**depth, "num_kv_heads": 1}
    yield _SWIN
    yield {"depth": 2, "num_classes": 5}


def opened(name: str) -> tuple[Source, dict[str, Any]]:
    """A small model of this name with random weights, and the arguments it was made with."""
    problem: InputError | None = None
    for options in small(name):
        try:
            given = "&".join(f"{key}={value}".replace(" ", "") for key, value in options.items())
            return open_source(f"timm:{name}?pretrained=0&{given}"), options
        except InputError as error:
            if problem is None or "not supported" in error.message:
                problem = error
    assert problem is not None
    raise problem


@torch.no_grad()
def compared(name: str) -> str:
    """``equal``, or what is wrong, or ``refused: `` and why; with all heads and without the first of each site."""
    try:
        source, options = opened(name)
    except HydraError as error:
        return f"refused: {error.message}" if "\n" not in error.message else f"several lines: {error.message!r}"
    library = timm.create_model(name, **options).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in library.parameters():  # as drawn by the library, some heads would do nothing
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + parameter * (parameter.dim() == 1))
    source.tensors.tensors.update(library.state_dict())
    whole = source.description.mask
    mask = whole.without([(site.path, 0) for site in source.sites])
    model = model_of(source)
    images = model.example_inputs(2)
    found = [model.member_logits(images)[0]]
    pruned = prune_source(source, mask)
    found.append(model_of(pruned).member_logits(images)[0])
    expected = [library(images)]
    for site in source.sites:
        library.get_submodule(site.path).proj.weight[:, : site.head_dim] = 0
    expected.append(library(images))
    distances = []
    for ours, theirs in zip(found, expected, strict=True):
        largest = theirs.abs().max().clamp(min=1)
        distances.append(float((ours - theirs).abs().max() / largest))
    apart = max(distances)
    if torch.equal(*expected):
        return "the removed heads did nothing"
    return "equal" if apart <= 1e-4 else f"logits differ by {apart:.1e}"


def main(names: list[str]) -> int:
    """Print what is neither equal nor refused, and how many are what; exit code 1 where something is wrong."""
    wrong, answers = 0, Counter[str]()
    for name in names:
        try:
            answer = compared(name)
        except Exception:
            answer = f"traceback: {traceback.format_exc()}"
        answers[answer.partition(":")[0]] += 1
        if answer != "equal" and not answer.startswith("refused: "):
            wrong += 1
            print(f"{name}: {answer}", flush=True)
    print(dict(answers))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or timm.list_models(exclude_filters=["eva_pico", "vit_pico_map"])))  # of the tests
