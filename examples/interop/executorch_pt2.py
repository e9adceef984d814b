"""An exported ``pt2`` file as an ExecuTorch program for phones and small devices, checked against the file.

    hydractl export hydra.st --format pt2
    python examples/interop/executorch_pt2.py hydra.pt2 hydra.pte

A program has room for the largest batch that it may get, so the batch is fixed here: the graph is exported once more
from the file, for ``batch`` samples.
"""

from __future__ import annotations

import sys

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime


def convert(source: str, target: str, batch: int = 1) -> float:
    """Write the program; the largest difference of its probabilities from the file's, on random inputs.

    The file is of images; a model of texts takes integers, by the names in ``docs/deploy.md``.
    """
    module = torch.export.load(source).module()
    size = next(node.meta["val"].shape for node in module.graph.nodes if node.target == "pixel_values")
    pixels = torch.randn([batch, *map(int, size[1:])], generator=torch.Generator().manual_seed(0))
    program = torch.export.export(module, (), {"pixel_values": pixels})
    with open(target, "wb") as file:
        file.write(to_edge_transform_and_lower(program).to_executorch().buffer)
    outputs = Runtime.get().load_program(target).load_method("forward").execute([pixels])
    expected = module(pixel_values=pixels)["probabilities"]
    probabilities = next(one for one in outputs if one.shape == expected.shape)
    return float((probabilities - expected).abs().max())


if __name__ == "__main__":
    print(f"probabilities differ by up to {convert(*sys.argv[1:3]):.1e}")
