"""The paper as commands: a script for every table and figure; its commands are today's, and they all run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import hydractl
from hydractl.files.checkpoint import FileTensors
from tests.pico_clip import pico_clip, publish_clip
from tests.running import read_json, script
from tests.test_numbers import refused

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "examples" / "paper"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.sh") if path.stem != "common")
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
PAPER = read_json(ROOT / "docs" / "results" / "paper.json")["tables"]
IN_THE_PAPER = [*(f"Table {number}" for number in range(1, 29)), *(f"Figure {number}" for number in range(1, 8))]
PATHS = ("IMAGENET", "IMAGENET21K", "OPENOOD", "CIFAR", "SST2", "TEXTS", "AGNEWS", "TORCHVISION", "LAION")
OTHER_TABLES = ("sun397", "food101", "cifar10", "dtd", "eurosat", "caltech101")
"""Data sets of zero-shot classification that a small run leaves out."""


def printed(name: str, **variables: str) -> list[tuple[list[str], str]]:
    """The commands that a script prints, and the output of each."""
    command = ["sh", str(SCRIPTS / f"{name}.sh")]
    environment = {"PATH": os.environ["PATH"], "DRY": "1", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    parts = [line.rpartition("  # ") for line in done.stdout.splitlines()]
    return [(shlex.split(line), output) for line, _, output in parts]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_table_and_figure_stands_beside_the_script_that_makes_it() -> None:
    made: set[str] = set()
    for scripts, makes in re.findall(r"^\| `examples/paper/([\w-]+)\.sh` \| (.*?) \| .* \|$", PAGE, re.MULTILINE):
        assert (SCRIPTS / f"{scripts}.sh").is_file()
        made |= tables_and_figures(makes)
    assert made == set(IN_THE_PAPER)
    assert set(re.findall(r"examples/paper/([\w-]+)\.sh", PAGE)) == set(NAMES)


def tables_and_figures(text: str) -> set[str]:
    """What a sentence names of the paper: of ``Tables 8 and 9; Figure 1`` Table 8, Table 9 and Figure 1."""
    named = set()
    for kind, numbers in re.findall(r"\b(Table|Figure)s? (\d+(?:(?:, | and |, and )\d+\b)*)", text):
        named |= {f"{kind} {number}" for number in re.findall(r"\d+", numbers)}
    return named


def test_published_figures_of_every_table_are_kept() -> None:
    assert {name.partition("-")[0] for name in PAPER} == {str(number) for number in range(1, 29)}


def test_tables_have_a_value_in_each_column() -> None:
    for name, table in PAPER.items():
        for row in table["rows"]:
            assert len(row["values"]) == len(table["columns"]), (name, row["name"])


def test_what_steps_cost_is_counted_as_hydractl_counts() -> None:
    cost = script(SCRIPTS / "cost.py")
    measured = read_json(ROOT / "benchmarks" / "results" / "gpu-cost.json")["rows"]
    macs = {(row["arch"], row["model"]): row["macs"] for row in measured}
    assert cost.VIT.macs() == macs["vit_base_patch16_224", "single"]
    assert cost.Model(cost.VIT).with_heads(8).macs() == macs["vit_base_patch16_224", "first member alone"]
    assert cost.BERT.macs() == macs["bert-base", "single"]
    of_ten_classes = 10 * 512
    assert cost.CLIP_IMAGE.macs() + of_ten_classes == macs["open_clip:ViT-B-32", "single"]


@pytest.mark.parametrize("element", [2, 4])
def test_a_block_keeps_as_much_as_torch_does(element: int) -> None:
    """Of two models of which one has a block more, and two batches: what depends on both is a block's."""
    cost = script(SCRIPTS / "cost.py")

    def kept(depth: int, batch: int) -> int:
        size = f"img_size=32&patch_size=4&embed_dim=128&depth={depth}&num_heads=2&num_classes=10"
        module = hydractl.load(f"timm:vit_tiny_patch16_224?pretrained=0&{size}", device="cpu").train()
        bytes_at: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            bytes_at[storage.data_ptr()] = storage.nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=element == 2):
            loss = module(torch.randn(batch, 3, 32, 32)).sum()
        assert loss.requires_grad  # it holds what was kept
        return sum(bytes_at.values())

    of_four_samples = (kept(3, 8) - kept(3, 4)) - (kept(2, 8) - kept(2, 4))
    tower = cost.Tower(128, 65, 2, stem=0, ends=0, table=0)
    assert tower.kept_bytes(element) == pytest.approx(of_four_samples / 4, rel=0.02)


def test_a_script_costs_the_sum_of_its_steps() -> None:
    document = read_json(ROOT / "docs" / "results" / "paper-cost.json")
    operations = {step["name"]: step["operations"] for step in document["steps"]}
    (table11,) = (one for one in document["scripts"] if one["script"] == "table11")
    trainings = operations["ImageNet-1K: whole model, 20,000 steps"]
    trainings += 3 * operations["ImageNet-1K: 8 of 12 heads, 120,000 steps"]
    assert table11["operations"]["bfloat16"] == pytest.approx(trainings)
    others = operations["ImageNet-1K: search of 48 of 144 heads, 3 objectives"]
    others += operations["ImageNet-1K: predictions of the whole model"] * (1 + 2 * 3 * 14347737088 / 16348465152)
    assert table11["operations"]["float32"] == pytest.approx(others)
    assert table11["after_table1"]["counts"] == {"training": 0, "search": 0, "prediction": 1}
    rows = {(row["set"], row["row"]): row for row in document["rows"]}
    assert rows["imagenet", "hydra-circ"]["parameters"] == pytest.approx(116.31e6, rel=0.002)  # the paper's
    assert rows["sst2", "hydra-circ"]["trainings"] == 3 and rows["sst2", "mc-dropout"]["mac_ratio"] == 10


@pytest.mark.long
def test_costs_are_those_of_the_scripts_of_today() -> None:
    stored = read_json(ROOT / "docs" / "results" / "paper-cost.json")
    command = "run: python examples/paper/cost.py -o docs/results/paper-cost.json; make docs"
    assert json.loads(json.dumps(script(SCRIPTS / "cost.py").counted())) == stored, command


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small", ["", "1"])
@pytest.mark.long
def test_commands_are_those_of_today(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {name: f"/data/{name.lower()}" for name in PATHS}
    problems = []
    for name in NAMES:
        commands = printed(name, SMALL=small, **paths)
        assert len(commands) > 1, name
        assert all(output.startswith("runs/paper") for _, output in commands), script
        problems += refused([(name, words) for words, _ in commands], tmp_path, monkeypatch)
    assert problems == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_what_is_there_is_not_made_again(name: str, tmp_path: Path) -> None:
    paths = {key: f"/data/{key.lower()}" for key in PATHS}
    variables = {"RUNS": str(tmp_path / "runs"), "PYTHON": "noted", **paths}
    steps = printed(name, **variables)
    planned = {output: words for words, output in steps}
    commands = [words for words, _ in steps]
    assert len({tuple(words) for words in commands}) == len(planned), "each step has a file of its own"
    trained = [words for words in commands if words[1] in ("finetune", "extract-circuit")]
    unresumed = [words for words in trained if "--resume" not in words and "laplace" not in words]
    assert unresumed == []

    log = tmp_path / "log"
    for tool in ("hydractl", "noted"):
        (tmp_path / tool).write_text(f'#!/bin/sh\n[ "$1" = -c ] || echo "${{0##*/}} $*" >> {log}\n')
        (tmp_path / tool).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    for output in [*planned, *(output for _, output in printed("table1", **variables))]:  # others take rows of Table 1
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).touch()
    missing = list(planned)[::3]
    for run in ((), missing):
        log.write_text("")
        for output in run:
            Path(output).unlink(missing_ok=True)  # tables were taken away by the run before
        done = subprocess.run(
            ["sh", str(SCRIPTS / f"{name}.sh")], env=environment, capture_output=True, text=True, check=True
        )
        started = log.read_text().splitlines()
        made = [output for output in planned if output in run or output.endswith(".md")]  # tables are always written
        assert list(dict.fromkeys(started)) == [" ".join(planned[output]) for output in made]
        assert f"{len(planned)} steps; left are these" in done.stdout


def test_a_path_that_is_missing_is_named() -> None:
    command = ["sh", str(SCRIPTS / "table1.sh")]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "set OPENOOD to OpenOOD's folder, as its scripts/download/download.py leaves it, or SMALL=1 to try it out\n"
    )


def test_no_row_is_pretrained_without_the_images_for_it() -> None:
    paths = {name: f"/data/{name.lower()}" for name in PATHS if name != "IMAGENET21K"}
    commands = printed("table1", LR="0.01", **paths)
    assert not [words for words, _ in commands if "base-imagenet21k" in words]
    rates = [words[words.index("--lr") + 1] for words, _ in commands if words[1] == "finetune"]
    assert rates and set(rates) == {"0.01"}
    members = [words for words, output in commands if output.endswith("/deep.2.st")]
    assert len(members) == 2 and all("head" in words and "2" in words for words in members)


# --- one's own figures ------------------------------------------------------------------------------------------------


def test_own_figures_stand_below_the_published_ones(tmp_path: Path) -> None:
    beside = script(SCRIPTS / "beside.py")
    row = {"name": "fused", "id": {"accuracy": 0.81239, "brier": 0.2}, "ood_avg": {"auroc": None}}
    row["std"] = {"id.brier": 0.0123}
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet/table11.json").write_text(json.dumps({"models": [row], "over": "seed"}))
    lines = beside.markdown("11", tmp_path).splitlines()
    theirs = next(number for number, line in enumerate(lines) if line.startswith("| Hydra Ensembles (fused) | 80.88"))
    assert lines[theirs + 1] == "| *yours* | 81.24 | 0.20 ± 0.01 |  |  |  |  |  |  |"
    assert lines[3] == "| *yours* |  |  |  |  |  |  |  |  |", "the single model has not been measured"
    assert beside.markdown("11").count("| *yours* |  |  |  |  |  |  |  |  |") == 3

    results = [{"model": "hydra", "dtype": kind, "latency_ms": {"median": 2.0}} for kind in ("float32", "bfloat16")]
    (tmp_path / "imagenet/table7.json").write_text(json.dumps({"results": results}))
    assert "| *yours* | 7.50 | 2.00 | 7.50 | 2.00 |  |  |" in beside.markdown("7", tmp_path)
    beside.main(["11", "7", "--runs", str(tmp_path), "-o", str(tmp_path / "tables/11.md")])
    written = (tmp_path / "tables/11.md").read_text()
    assert written.startswith("Table 11: ") and "\nTable 7: " in written


def test_hessians_that_were_published_become_the_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the covariance of a projection as the authors compute it: by inverting both factors."""
    monkeypatch.chdir(tmp_path)
    Path("clip").mkdir()
    stock: Any = pico_clip("clip")
    publish_clip(stock, "clip", Path("clip"))
    torch.manual_seed(0)
    info = {"lambda_img": 4.0, "n_img": 1.0, "lambda_txt": 9.0, "n_txt": 0.25}
    Path("prior_precision_analytic.json").write_text(json.dumps(info))
    inverses = {}
    for part, (width, features) in {"img": stock.visual.proj.shape, "txt": stock.text_projection.shape}.items():
        for factor, size in (("A", width), ("B", features)):
            root = torch.randn(size, size)
            torch.save(root @ root.T, f"{factor}_{part}_analytic.pt")
            damped = info[f"n_{part}"] ** 0.5 * root @ root.T + info[f"lambda_{part}"] ** 0.5 * torch.eye(size)
            inverses[factor, part] = damped.double().inverse()
    monkeypatch.setattr(sys, "argv", ["bayesvlm.py", "clip", "--hessians", ".", "-o", "bayes.st"])
    script(SCRIPTS / "bayesvlm.py").main()

    file = FileTensors(Path("bayes.st"))
    for tower, part in (("visual", "img"), ("text", "txt")):
        basis, spread, outer = (
            file.read(f"hydractl.laplace.0.{tower}.{name}").double() for name in ("basis", "spread", "outer")
        )
        x, y = torch.randn(len(basis)).double(), torch.randn(len(outer)).double()
        variance = (basis.T @ x).square() @ spread @ (outer.T @ y).square()
        expected = (x @ inverses["A", part] @ x) * (y @ inverses["B", part] @ y)
        torch.testing.assert_close(variance, expected, rtol=1e-4, atol=0)
    plain, bayes = (hydractl.load(name, device="cpu").zero_shot(["cat", "dog"]) for name in ("clip", "bayes.st"))
    pixels = plain.preprocess([Image.new("RGB", (16, 16), "red")])
    assert not torch.allclose(plain.member_logits(pixels), bayes.member_logits(pixels))


# --- small runs -------------------------------------------------------------------------------------------------------

# By group: scripts in the order in which they use each other's models, and tables that must be full then.
GROUPS = {
    "images": (
        "table1, table4 imagenet, table6, table13, table10, table11, table12 imagenet, table7, table8",
        "1-imagenet, 1-cifar100, 6, 7, 8, 9, 10, 11, 12-imagenet, 13, 14, 15, 16, 21, 22, 23",
    ),
    "analyses": ("table5, proposition1 cifar100, figures5-6", ""),
    "texts": ("table2, table4 sst2", "2, 17, 18, 19, 20"),
    "clip": ("table3, table27, figure7", "3, 24, 25, 26, 27, 28"),
    "openood": ("openood imagenet200, openood cifar10", ""),
}


def test_the_table_of_openood_has_the_sets_of_each_group_and_their_mean() -> None:
    far = {"group": "far", "fpr95": 0.5, "auroc": 0.75, "aupr_in": 0.7, "aupr_trapezoid": 0.8}
    near = {"group": "near", "fpr95": 1.0, "auroc": 0.5, "aupr_in": 0.25, "aupr_trapezoid": 0.125}
    sets = {"mnist": far, "tin": near}
    model = {"id": {"accuracy": 0.90625}, "ood": sets, "near_avg": near, "far_avg": far}
    assert script(SCRIPTS / "openood_table.py").table(model).splitlines() == [
        "dataset,FPR@95,AUROC,AUPR_IN,AUPR_OUT,ACC",
        "tin,100.00,50.00,25.00,12.50,90.62",
        "nearood,100.00,50.00,25.00,12.50,90.62",
        "mnist,50.00,75.00,70.00,80.00,90.62",
        "farood,50.00,75.00,70.00,80.00,90.62",
    ]


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_small_runs_fill_the_tables(group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    scripts, tables = (text.split(", ") if text else [] for text in GROUPS[group])
    play, beside = (script(SCRIPTS / f"{name}.py") for name in ("play", "beside"))
    for line in scripts:
        text = _commands(line, tmp_path)
        play.play(text, tmp_path / "data")
        outputs = [row.rpartition("  # ")[2] for row in text.splitlines()]
        missing = [output for output in outputs if not Path(output).exists()]
        assert not missing
        capsys.readouterr()
        play.play(text, tmp_path / "data")
        started = [line for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
        assert [line for line in started if "beside.py" not in line] == [], "a second run makes tables alone"
    for name in tables:
        _check_filled(name, beside.markdown(name, tmp_path))
    if group == "analyses":
        figure = read_json(tmp_path / "imagenet/figure6.json")
        assert [row["name"] for row in figure["models"]] == ["12", "taylor-10", "avg-10", "taylor-6", "avg-6"]
    if group == "openood":
        lines = (tmp_path / "openood/cifar10/ood.csv").read_text().splitlines()
        assert lines[0] == "dataset,FPR@95,AUROC,AUPR_IN,AUPR_OUT,ACC"
        names = [line.partition(",")[0] for line in lines[1:]]
        assert names == ["cifar100", "tin", "nearood", "mnist", "svhn", "texture", "places365", "farood"]
        assert (tmp_path / "openood/imagenet200/fsood.csv").is_file()


def _commands(line: str, runs: Path) -> str:
    """The commands of a small run of a script, as it prints them."""
    name, *words = line.split()
    command = ["sh", str(SCRIPTS / f"{name}.sh"), *words]
    environment = {"PATH": os.environ["PATH"], "DRY": "1", "SMALL": "1", "RUNS": str(runs), "PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def _check_filled(name: str, text: str) -> None:
    """Every figure that a small run can make is in the table."""
    own = [line.split("|")[2:-1] for line in text.splitlines() if line.startswith("| *yours* |")]
    table = PAPER[name]
    rows = iter(own)
    for row in table["rows"]:
        places = [{"file": table.get("file"), **column, **row} for column in table["columns"]]
        made = [all(place.get(part) for part in ("file", "row", "key")) for place in places]
        if not any(made):
            continue
        cells = next(rows)
        for cell, place, there in zip(cells, places, made, strict=True):
            left_out = any(f"{data}.json" in str(place.get("file")) for data in OTHER_TABLES)
            assert bool(cell.strip()) == (there and not left_out), (name, row["name"], place)


@pytest.mark.long
def test_a_small_run_is_one_command(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "SMALL": "1", "RUNS": str(tmp_path), "PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = ["sh", "examples/paper/table6.sh"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "| *yours* | " in done.stdout
    _check_filled("6", (tmp_path / "tables/6.md").read_text())
