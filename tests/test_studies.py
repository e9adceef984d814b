"""The studies of ``examples``: on a tiny model with noise for data, they run, resume and print what was measured."""

from __future__ import annotations

import importlib
import io
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hydractl.cli.answer import Answer
from hydractl.cli.app import _parse
from tests.calls import checked
from tests.running import read_json, script

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1&num_classes=3"
)
MODULES = ("intervals", "chain", "study", "fashion_mnist", "shared_sites", "ood_validation", "seeds")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts as modules, in an empty folder with data; they leave no trace among the loaded modules."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name)
    draw = np.random.default_rng(0)
    for name, count in (("train", 30), ("val", 12), ("test", 24), ("seen", 9), ("noise", 20)):
        np.savez(f"{name}.npz", x=draw.integers(0, 256, (count, 8, 8), dtype=np.uint8), y=np.arange(count) % 3)
    return found


def study(chain: ModuleType, **others: object) -> object:
    common = {
        "runs": Path("runs"),
        "base": TINY,
        "train": "train.npz",
        "val": "val.npz",
        "test": "test.npz",
        "ood_val": "seen.npz",
        "ood_test": ["noise:far=noise.npz"],
        "remove": 2,
        "samples": 8,
        "pretraining": "--steps 2",
        "deep": "--steps 2",
        "search": "--limit 9 --batch-size 9",
        "evaluation": "--bootstrap 10",
        "timed": False,
    }
    return chain.Study(**{**common, **others})


@pytest.mark.long
def test_a_study_and_its_dial(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain, shared = modules["chain"], modules["shared_sites"]
    chain.run(study(chain, remove=4))
    printed = capsys.readouterr().out
    rows = {row["name"]: row for row in read_json("runs/eval.json")["models"]}
    assert list(rows) == [
        *("single", "deep1", "deep2", "deep"),
        *(f"taylor{seed}.pruned" for seed in range(3)),
        *(f"circuit-{objective}.pruned" for objective in ("acc", "ood", "avg")),
        *(f"{how}-{kind}" for kind in ("taylor", "circuit") for how in ("hydra", "ensemble")),
    ]
    assert rows["deep"]["cost"]["macs"] == 3 * rows["single"]["cost"]["macs"]
    lines = printed.splitlines()
    measured = next(line for line in lines if line.startswith("| hydra-taylor |")).split(" | ")
    assert measured[1] == f"{rows['hydra-taylor']['id']['accuracy']:.4f}"
    assert measured[4] == f"{rows['hydra-taylor']['ood']['noise']['auroc']:.4f}"
    change = rows["deep"]["difference"]["id.nll"]
    shown = f"{change['value']:+.4f} ({change['ci'][0]:+.3f}..{change['ci'][1]:+.3f})"
    assert any(line.startswith("| deep |") and shown in line for line in lines)

    chain.run(study(chain, remove=4, resume=True))
    assert "$ hydractl" not in capsys.readouterr().out, "everything was there"

    monkeypatch.setattr(shared, "RUNS", Path("runs/shared"))
    monkeypatch.setattr(shared, "SHARED", {"circuit": (0, 1), "taylor": (0, 1)})
    monkeypatch.setattr(modules["fashion_mnist"], "study", lambda data, folder: study(chain, remove=4))
    monkeypatch.setattr(sys, "argv", ["shared_sites", "."])
    shared.main()
    lines = capsys.readouterr().out.splitlines()
    first = [line.split(" | ") for line in lines if line.startswith(("| circuits |", "| Taylor |"))][:4]
    ratios = {(row[0].strip("| "), row[1]): float(row[2]) for row in first}
    assert ratios["circuits", "1"] <= ratios["circuits", "0"] and ratios["Taylor", "1"] <= ratios["Taylor", "0"]
    assert Path("runs/shared/shared-sites.png").stat().st_size > 1000


@pytest.mark.release
def test_circuits_by_every_kind_of_ood_sample(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--val", "val.npz", "--real", "seen=seen.npz", "--data", "test.npz", "--ood", "noise=noise.npz"]
    modules["chain"].main(["prune", TINY, "--method", "random", "--remove", "0", "-o", "base.st", "-q"])
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["x", "base.st", *data, "--budget", "1", "--evaluation", "--bootstrap 10"])
    modules["ood_validation"].main()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = ["jigsaw", "mixture", "noise", "rotate", "auto", "seen"]
    assert [line[0] for line in lines] == [
        *("| chosen with", "| single", *(f"| {name}" for name in names)),
        *("| minus single", *(f"| {name}" for name in names)),
    ]
    found = read_json("runs/ood-validation/jigsaw.json")
    assert lines[2][1:3] == [f"{found['gain'][when]:.3f}" for when in ("before", "after")]


def test_every_seed_has_an_ensemble_of_its_own_and_nothing_is_made_twice(
    modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = modules["seeds"]
    commands: list[list[str]] = []
    auroc = {"ood": {"mnist": {"auroc": 0.75}}, "ood_avg": {"auroc": 0.75}}
    nothing = {"ood": {"mnist": {"auroc": None}}, "ood_avg": {"auroc": None}}
    quality = {"accuracy": 0.5, "nll": 1.0, "ece": 0.25}
    found = {"answer": "helps", "against_baseline": [{"metric": "ood_avg.auroc", "value": 0.1, "ci": [0.0, 0.2]}]}
    part = {"row": "whole", "score": "msp", "mac_ratio": 1.5}
    rows = [{"name": "single", "temperature": 1.0}, {"name": "whole", "temperature": 0.9}]
    answer = {"rows": rows, "verdict": found, "choice": part, "use": part}

    def run(command: str, folder: Path) -> None:
        words = shlex.split(command)
        parse(words)
        commands.append(words)
        output = folder / words[words.index("-o") + 1]
        models = [word for word in words[1:] if word.endswith(".st") and "=" in word]
        names = [word.split("=")[0] for word in models]
        row = {"id": quality, "cost": {"macs": 10}, "scores": {"msp": auroc, "mi": nothing}}
        if words[0] == "study":
            output.mkdir()
            (output / "study.json").write_text(json.dumps(answer))
        else:
            output.write_text(json.dumps({"models": [{"name": name, **row} for name in names]}))

    def parse(words: list[str]) -> None:
        request = _parse(words, Answer(io.StringIO()))
        assert request is not None
        checked(request.verb, request.given, {}, tmp_path)

    monkeypatch.setattr(seeds, "run", run)
    monkeypatch.setattr(seeds.fashion_mnist, "prepare", lambda data, folder: None)
    monkeypatch.setattr(sys, "argv", ["seeds", "data", "--seeds", "3,5", "--deep", "5", "-o", str(tmp_path)])
    seeds.main()
    trained = [words[words.index("--seed") + 1] for words in commands if words[0] == "finetune"]
    assert trained == ["3", "5", "105", "205"]
    assert ["eval", "deep=vit-5.st+vit-105.st+vit-205.st"] in [words[:2] for words in commands]
    written = read_json(tmp_path / "seeds.json")
    assert {seed: [row["name"] for row in one["rows"]] for seed, one in written.items()} == {
        "3": ["single", "whole"],
        "5": ["single", "whole", "deep"],
    }
    assert written["5"]["rows"][2]["auroc"] == {"msp": {"mean": 0.75, "mnist": 0.75}}
    assert written["3"]["verdict"]["gain"] == {"value": 0.1, "ci": [0.0, 0.2]}
    commands.clear()
    seeds.main()
    assert not commands
    monkeypatch.setattr(seeds, "cut_cifar10", lambda data, images, folder: folder.mkdir(exist_ok=True))
    whole = str(tmp_path / "cifar10")
    monkeypatch.setattr(sys, "argv", ["seeds", "data", "--cifar10", "images", "--seeds", "1,2,3", "-o", whole])
    seeds.main()
    assert [words[:2] for words in commands if words[0] == "eval"][-1] == ["eval", "deep=vit-1.st+vit-2.st+vit-3.st"]
    written = read_json(tmp_path / "cifar10" / "seeds.json")
    assert [training["rows"][-1]["shared"] for training in written.values()] == [True, True, True]


def test_an_interval_over_seeds_covers_seeds_and_samples() -> None:
    effort = script(EXAMPLES / "effort.py")
    rounds = np.random.default_rng(0).normal(size=1000)

    def figures(values: list[float], spread: float) -> list[object]:
        """One row by seed, whose resamples lie around its value."""
        return [
            effort.Figures({}, {"msp": effort.Resampled({"msp": value}, {"msp": value + spread * rounds})})
            for value in values
        ]

    base = figures([0.0, 0.0, 0.0], 0.0)
    of_seeds = effort.difference(figures([0.1, 0.2, 0.3], 0.0), base, "msp")
    half = 4.302653 * 0.1 / 3**0.5  # Student's t of two degrees of freedom
    assert of_seeds["value"] == pytest.approx(0.2) and of_seeds["ci"] == pytest.approx([0.2 - half, 0.2 + half])
    of_samples = effort.difference(figures([0.2, 0.2, 0.2], 0.01), base, "msp")
    assert of_samples["ci"][1] - 0.2 == pytest.approx(1.959964 * 0.01 * rounds.std())
    both = effort.difference(figures([0.1, 0.2, 0.3], 0.01), base, "msp")
    assert both["ci"][1] - 0.2 == pytest.approx(np.hypot(half, 1.959964 * 0.01 * rounds.std()))
    (row,) = figures([0.2], 0.01)
    alone = effort.difference([row], base[:1], "msp")
    assert alone["ci"] == pytest.approx([0.2 + 0.01 * np.quantile(rounds, share) for share in (0.025, 0.975)])
    assert effort.difference([row], [row], "msp") is None
