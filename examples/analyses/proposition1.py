"""Does Proposition 1 hold: is pruning worse under noise because of the gradient and the curvature (paper 3.2, B.1)?

    python examples/analyses/proposition1.py vit.st --data test.npz --noise 0.5 --remove 4,8 \\
        --ranking taylor=taylor.json --ranking circuit=circuit.json

With t the clean and n the noisy data, d the step from the full to the pruned weights and gap = L_n - L_t: the two
conditions are ``grad L_n . d >= 0`` and ``H_n - H_t`` positive (the paper looks at its diagonal; ``d (H_n - H_t) d`` is
what the proof needs of it). What they are to imply is that the gap grows, which is measured too, all the way from the
full to the pruned weights. Everything is in float64, and everything but the diagonal is exact.
"""

from __future__ import annotations

import torch
from common import arguments, open_model, orders, samples, save, show
from matplotlib.figure import Figure

from hydractl.analysis import curvature
from hydractl.criteria.head_outputs import Batches

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


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    """All of them as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])


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
    diagonals = {k: flat(curvature.hessian_diagonal(losses, parameters, asked.draws, 0)) for k, losses in on.items()}
    wider = diagonals["n"] - diagonals["t"]
    loss = {name: curvature.loss(losses) for name, losses in on.items()}
    print(f"loss: clean {loss['t']:.4f}, noisy {loss['n']:.4f}")
    print(f"gradient norm: clean {flat(slopes['t']).norm():.4f}, noisy {flat(slopes['n']).norm():.4f}")
    print(
        f"diagonal of H_n - H_t, all head weights: mean {wider.mean():.6f}, positive {(wider > 0).double().mean():.3f}"
    )
    rows, lines = [], {}
    for name, order in orders(model, asked.ranking).items():
        for count in map(int, asked.remove.split(",")):
            step = curvature.pruning_step(model, order[:count])
            first = {k: float(curvature.inner(slope, step)) for k, slope in slopes.items()}
            second = {
                k: float(curvature.inner(step, curvature.hessian_product(losses, parameters, step)))
                for k, losses in on.items()
            }
            own = wider[flat(step) != 0]
            path = []
            for share in torch.linspace(0, 1, POINTS).tolist():
                moved(parameters, step, share)
                path.append(curvature.loss(on["n"]) - curvature.loss(on["t"]))
                moved(parameters, step, -share)
            predicted = first["n"] - first["t"] + (second["n"] - second["t"]) / 2
            lines[f"{name}, {count} heads"] = (path, first["n"] - first["t"], second["n"] - second["t"])
            curve = second["n"] - second["t"]
            share = float((own > 0).double().mean())
            rows.append([f"{name}, {count}", first["n"], first["t"], curve, float(own.mean()), share, predicted])
            rows[-1].append(path[-1] - path[0])
    columns = ["removed", "grad L_n . d", "grad L_t . d", "d (H_n - H_t) d", "mean diagonal", "positive"]
    show([*columns, "growth of the gap, 2nd order", "growth of the gap"], rows)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    at = torch.linspace(0, 1, POINTS)
    for name, (path, slope, curve) in lines.items():
        (line,) = axis.plot(at, path, label=name)
        axis.plot(at, path[0] + slope * at + curve * at**2 / 2, linestyle=":", color=line.get_color())
    axis.set_xlabel("part of the way from the full to the pruned weights (dotted: second order)")
    axis.set_ylabel("noisy loss - clean loss")
    axis.set_ylim(0, 1.2 * max(max(path) for path, _, _ in lines.values()))
    axis.legend(fontsize=8)
    save(figure, asked.output / "proposition1.png")


if __name__ == "__main__":
    main()
