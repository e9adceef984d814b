"""Does Proposition 1 hold: is pruning worse under noise because of the gradient and the curvature (paper 3.2, B.1)?

    python examples/analyses/proposition1.py vit.st --data test.npz --noise 0.5 --remove 4,8 \\
        --ranking taylor=taylor.json --ranking circuit=circuit.json

With t the clean and n the noisy data, d the step from the full to the pruned weights and gap = L_n - L_t: the two
conditions are ``grad L_n . d >= 0`` and ``H_n - H_t`` positive (the paper looks at its diagonal; ``d (H_n - H_t) d`` is
what the proof needs of it). What they are to imply is that the gap grows, which is measured too, all the way from the
full to the pruned weights. Everything is in float64, and everything but the diagonal is exact: its mean over the
removed weights is estimated from draws of signs and stands with its standard error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import curvature
import torch
from common import arguments, open_model, orders, samples, save, show
from matplotlib.figure import Figure

from hydractl.criteria.cahp.head_choice import Batches

POINTS = 11


def noisy(batches: Batches, size: float, seed: int) -> Batches:
    """The same samples with Gaussian noise on their prepared pixels."""
    generator = torch.Generator().manual_seed(seed)
    return [(x + size * torch.randn(x.shape, generator=generator, dtype=x.dtype), labels) for x, labels in batches]


def moved(parameters: list[torch.Tensor], step: list[torch.Tensor], share: float) -> None:
    """Go a part of the way along the step."""
    with torch.no_grad():
        for parameter, part in zip(parameters, step, strict=True):
            parameter += share * part


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    """The mean of independent draws and its standard error."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    """All of them as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])


def picture(lines: Mapping[str, tuple[list[float], float, float]], path: Path) -> None:
    """The gap along each step, and its second-order expansion by its slope and curvature (dotted)."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis, at = figure.subplots(), torch.linspace(0, 1, POINTS)
    for name, (gaps, slope, curve) in lines.items():
        (line,) = axis.plot(at, gaps, label=name)
        axis.plot(at, gaps[0] + slope * at + curve * at**2 / 2, linestyle=":", color=line.get_color())
    axis.set_xlabel("part of the way from the full to the pruned weights (dotted: second order)")
    axis.set_ylabel("noisy loss - clean loss")
    axis.set_ylim(0, 1.2 * max(max(gaps) for gaps, _, _ in lines.values()))
    axis.legend(fontsize=8)
    save(figure, path)


def main() -> None:
    """Read the arguments and run."""
    parser = arguments(__doc__, ood=False)
    parser.add_argument("model", metavar="MODEL", help="of images, with all its heads")
    parser.add_argument("--ranking", action="append", required=True, metavar="NAME=FILE", help="scores or a circuit")
    parser.add_argument("--remove", default="8", help="how many heads, or several numbers with commas")
    parser.add_argument("--noise", type=float, default=0.5, help="standard deviation, in units of prepared pixels")
    parser.add_argument("--noisy", metavar="SPEC", help="labelled corrupted samples, instead of --noise")
    parser.add_argument("--draws", type=int, default=20, help="of signs, for the diagonal of the Hessian")
    asked = parser.parse_args()
    model = open_model(asked.model, "float64")
    clean = samples(model, asked.data, asked.limit, labelled=True)
    rough = (
        noisy(clean, asked.noise, 0) if asked.noisy is None else samples(model, asked.noisy, asked.limit, labelled=True)
    )
    on = {"t": curvature.losses_of(model, clean), "n": curvature.losses_of(model, rough)}
    parameters = curvature.head_parameters(model)
    slopes = {name: curvature.gradient(losses, parameters) for name, losses in on.items()}
    draws = [
        flat(curvature.hessian_diagonal(on["n"], parameters, 1, seed))
        - flat(curvature.hessian_diagonal(on["t"], parameters, 1, seed))
        for seed in range(asked.draws)
    ]
    loss = {name: curvature.loss(losses) for name, losses in on.items()}
    print(f"loss: clean {loss['t']:.4f}, noisy {loss['n']:.4f}")
    print(f"gradient norm: clean {flat(slopes['t']).norm():.4f}, noisy {flat(slopes['n']).norm():.4f}")
    mean, error = mean_and_error(torch.stack([draw.mean() for draw in draws]))
    print(f"mean diagonal of H_n - H_t, all head weights: {mean:.5f} +- {error:.5f}")
    rows, lines = [], {}
    for name, order in orders(model, asked.ranking).items():
        for count in map(int, asked.remove.split(",")):
            step = curvature.pruning_step(model, order[:count])
            first = {k: float(curvature.inner(slope, step)) for k, slope in slopes.items()}
            second = {
                k: float(curvature.inner(step, curvature.hessian_product(losses, parameters, step)))
                for k, losses in on.items()
            }
            touched = flat(step) != 0
            mean, error = mean_and_error(torch.stack([draw[touched].mean() for draw in draws]))
            gaps = []
            for share in torch.linspace(0, 1, POINTS).tolist():
                moved(parameters, step, share)
                gaps.append(curvature.loss(on["n"]) - curvature.loss(on["t"]))
                moved(parameters, step, -share)
            slope, curve = first["n"] - first["t"], second["n"] - second["t"]
            lines[f"{name}, {count} heads"] = (gaps, slope, curve)
            rows.append([f"{name}, {count}", first["n"], first["t"], curve, f"{mean:.4f} +- {error:.4f}"])
            rows[-1] += [slope + curve / 2, gaps[-1] - gaps[0]]
    columns = ["removed", "grad L_n . d", "grad L_t . d", "d (H_n - H_t) d", "mean diagonal of H_n - H_t"]
    show([*columns, "growth of the gap, 2nd order", "growth of the gap"], rows)
    picture(lines, asked.output / "proposition1.png")


if __name__ == "__main__":
    main()
