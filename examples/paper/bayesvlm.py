"""Give a CLIP the posterior whose Hessians BayesVLM's authors publish for its checkpoint.

    git clone https://github.com/AaltoML/BayesVLM
    python examples/paper/bayesvlm.py open_clip:ViT-B-32/laion2b_s34b_b79k -o bayesvlm.st \\
        --hessians BayesVLM/hessians/hessian_CLIP-ViT-B-32-laion2B-s34B-b79K

Their precision of a projection is (root(n) A + root(l) I) (x) (root(n) B + root(l) I), with n and l in a JSON file
beside A and B, and it is kept exactly. That of ``finetune --ensemble laplace`` has l I once, added to the product.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from hydractl.files.atomic import Output
from hydractl.files.checkpoint import with_tensors, write_checkpoint
from hydractl.jsonio import read_json_file
from hydractl.model.laplace import KEY, Posterior, stored_tensors
from hydractl.model.source import open_source

TOWERS = {"visual": "img", "text": "txt"}
"""The parts of the names of their files."""


def posterior(folder: Path, part: str) -> Posterior:
    """The posterior of the projection of one tower."""
    info = read_json_file(folder / "prior_precision_analytic.json")
    vectors, roots = {}, {}
    for factor in ("A", "B"):
        hessian = torch.load(folder / f"{factor}_{part}_analytic.pt", map_location="cpu", weights_only=True).double()
        values, vectors[factor] = torch.linalg.eigh(hessian)
        roots[factor] = info[f"n_{part}"] ** 0.5 * values.clamp(min=0) + info[f"lambda_{part}"] ** 0.5
    return Posterior(vectors["A"], 1 / torch.outer(roots["A"], roots["B"]), vectors["B"])


def main() -> None:
    """Read the arguments and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="the CLIP")
    parser.add_argument("--hessians", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.st")
    asked = parser.parse_args()
    source = open_source(asked.model)
    tensors = stored_tensors([{tower: posterior(asked.hessians, part) for tower, part in TOWERS.items()}])
    record = {"chosen_by": "given", "hessians": asked.hessians.name}
    description = replace(source.description, extra={**source.description.extra, KEY: record})
    with Output(asked.output, force=True) as output:
        write_checkpoint(output, with_tensors(source.tensors, tensors), description.to_json())


if __name__ == "__main__":
    main()
