"""All seven verbs in a row on real data (scikit-learn's digits), through the command line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hydractl
from tests.forked import Forked
from tests.pico import removed_heads
from tests.running import link_files, read_json, run

pytestmark = pytest.mark.long

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=48&depth=3&num_heads=3&mlp_ratio=2&num_classes=10"
)
TEST = ["--test", "builtin:digits/test", "--limit", "60"]
SEARCH = ["--val", "builtin:digits/val", "--limit", "60", "--ood-val", "builtin:symbols"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained base, three Taylor members, a circuit, members of it and a fused model."""
    folder = tmp_path_factory.mktemp("chain")
    with contextlib.chdir(folder):
        train = ["--train", "builtin:digits/train", "--epochs", "8", "--batch-size", "32", "--lr", "4e-3", "-q"]
        run("finetune", BASE, *train, "--val", "builtin:digits/val", "-o", "base.st")
        for seed in range(3):
            taylor = ["--method", "taylor", "--keep", "2", "--data", "builtin:digits/train", "--samples", "64"]
            run("prune", "base.st", *taylor, "--seed", str(seed), "-o", f"t{seed}.st")
        run("extract-circuit", "base.st", *SEARCH, "--objective", "acc,ood,avg", "--budget", "3", "-o", "c.json")
        for objective in ("acc", "ood", "avg"):
            run("prune", "base.st", "--circuit", f"c.{objective}.json", "-o", f"{objective}.st")
        run("fuse", "t0.st", "t1.st", "t2.st", "-o", "hydra.st")
        run("fuse", "acc.st", "ood.st", "avg.st", "--merge", "none", "-o", "unmerged.st")
    return folder


@pytest.fixture(autouse=True)
def inside(chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in a folder of its own that sees the files of the chain."""
    monkeypatch.chdir(tmp_path)
    link_files(chain, tmp_path)


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_rows_say_what_they_are_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    sets = ["--ood", "letters:far=builtin:letters", "--ood", "photos:far=builtin:photos"]
    run("eval", "base.st", "hydra=hydra.st", "deep=t0.st+t1.st+t2.st", *TEST, *sets, "--json")
    single, hydra, deep = document(capsys)["models"]
    assert single["id"]["accuracy"] > 0.7 and hydra["id"]["accuracy"] > single["id"]["accuracy"] - 0.1
    # Nothing was trained after pruning, so averaging equal MLPs changes nothing.
    assert hydra["id"]["nll"] == pytest.approx(deep["id"]["nll"], rel=1e-4)
    assert hydra["ood_avg"]["auroc"] == pytest.approx(deep["ood_avg"]["auroc"], abs=1e-4)
    assert hydra["far_avg"]["auroc"] == hydra["ood_avg"]["auroc"] and hydra["diversity"]["letters"]["mi"] > 0
    assert [single["name"], hydra["name"], deep["name"]] == ["base", "hydra", "deep"]
    assert len(hydra["members"]) == 3 and single["members"] == []
    assert deep["sha256"] == [digest(f"t{i}.st") for i in range(3)] and hydra["sha256"] == digest("hydra.st")


IN_ONE_PROCESS = """
import json, sys
from hydractl.cli.app import main
sys.exit(max(main(words) for words in json.loads(sys.argv[1])))
"""


def test_the_same_commands_give_the_same_bytes_under_another_hash_seed() -> None:
    data = ["--data", "builtin:digits/train", "--limit", "80"]
    commands = {
        "score.json": ["score", "base.st", "--method", "taylor", *data, "--samples", "40"],
        "prune.st": ["prune", "base.st", "--method", "gate", "--scope", "global", "--keep", "2", *data],
        "circuit.json": ["extract-circuit", "base.st", *SEARCH, "--budget", "1"],
        "finetune.st": ["finetune", "t0.st", "--train", *data[1:], "--steps", "3"],
        "fuse.st": ["fuse", "t0.st", "t1.st", "t2.st"],
        "eval.json": ["eval", "hydra.st", *TEST, "--ood", "b=builtin:letters", "--ood", "a=builtin:photos"],
    }
    for words, name in zip(commands.values(), commands, strict=True):
        run(*words, "-o", f"here.{name}")  # under the seed of this process
    lines = [[*words, "-o", name] for words, name in zip(commands.values(), commands, strict=True)]
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    written = done.stdout.splitlines()
    assert all(name in written for name in commands if "eval" not in name)  # the answer of eval is the table
    for name in commands:
        assert Path(name).read_bytes() == Path(f"here.{name}").read_bytes(), name


def test_scores_through_a_pipe() -> None:
    scores = Forked(["score", "base.st", "--method", "magnitude", "-o", "-"])
    text, said = scores.communicate()
    assert scores.returncode == 0, said
    Path("scores").write_text(text)
    with open("scores") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", pipe)
        run("prune", "base.st", "--scores", "-", "--keep", "1", "-o", "piped.st")
    run("prune", "base.st", "--method", "magnitude", "--keep", "1", "-o", "direct.st")
    masks = [read_json(f"{name}.mask.json")["sites"] for name in ("piped", "direct")]
    assert masks[0] == masks[1]


def test_scores_for_a_budget_and_pruning_to_it_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """By default both go site by site; scores without a budget are one-shot, and ``prune`` says so."""
    how = ["--method", "taylor", "--data", "builtin:digits/train", "--samples", "50"]
    run("score", "base.st", *how, "--keep", "1", "-o", "s.json")
    run("prune", "base.st", "--scores", "s.json", "--keep", "1", "-o", "two.st")
    assert not capsys.readouterr().err.count("scored")
    run("prune", "base.st", *how, "--keep", "1", "-o", "one.st")
    masks = [read_json(f"{name}.mask.json")["sites"] for name in ("one", "two")]
    assert masks[0] == masks[1]
    run("prune", "base.st", "--scores", "s.json", "--keep", "2", "-o", "other.st")
    assert "s.json was scored site by site for another budget: '--keep 1'" in capsys.readouterr().err
    run("prune", "base.st", "--scores", "s.json", "--scope", "global", "--keep", "1", "-o", "global.st", code=2)
    assert "heads of different sites cannot be compared" in capsys.readouterr().err
    run("score", "base.st", *how, "-o", "free.json")
    run("prune", "base.st", "--scores", "free.json", "--keep", "1", "-o", "free.st")
    assert "free.json is one-shot" in capsys.readouterr().err


def test_circuit_budgets_are_nested_and_sampling_follows_the_seed() -> None:
    def removed(*options: str) -> set[tuple[str, int]]:
        run("prune", "base.st", "--circuit", "c.avg.json", *options, "-o", "p.st", "--force", "-q")
        sites = read_json("p.mask.json")["sites"]
        return set(removed_heads({path: site["kept"] for path, site in sites.items()}))

    assert removed("--remove", "1") < removed("--remove", "2") < removed("--remove", "3")
    assert removed("--keep", "2") == removed("--remove", "3") == removed()
    draws = [removed("--remove", "2", "--sample-from", "3", "--seed", str(seed)) for seed in range(4)]
    assert all(len(draw) == 2 and draw <= removed() for draw in draws)
    assert len({frozenset(draw) for draw in draws}) > 1


def test_lines_of_data_with_and_without_labels() -> None:
    import numpy as np

    run("eval", "hydra.st", *TEST, "-o", "e.json")
    run("predict", "hydra.st", *TEST[1:], "-o", "p.csv")
    lines = [line.split(",") for line in Path("p.csv").read_text().splitlines()[1:]]
    right = sum(label == predicted for _, label, predicted, *_ in lines) / len(lines)
    assert right == read_json("e.json")["models"][0]["id"]["accuracy"]
    np.savez("plain.npz", x=np.zeros((3, 8, 8), dtype=np.uint8))
    run("eval", "hydra.st", "--test", "plain.npz", "-o", "plain.json")
    run("predict", "hydra.st", "plain.npz", "-o", "p.jsonl")
    assert read_json("plain.json")["models"][0]["id"] == {"n": 3}
    first = json.loads(Path("p.jsonl").read_text().splitlines()[0])
    assert list(first) == ["id", "label", "predicted", "confidence", "entropy", "mi", "ood_score"]
    assert first["id"] == "plain.npz#0" and first["label"] is None
    assert first["ood_score"] == pytest.approx(-first["confidence"])


def test_prune_says_how_many_heads_went(capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", "base.st", "--method", "magnitude", "--keep", "2", "-o", "m.st")
    out, err = capsys.readouterr()
    assert out == "m.st\nm.mask.json\n"
    assert "3 of 9 heads removed: parameters -" in err and "%, mult-adds -" in err


def test_what_tells_little_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    def warned(*command: str, code: int = 0) -> str:
        capsys.readouterr()
        run(*command, code=code)
        return capsys.readouterr().err

    from hydractl.data import open_data

    digits = open_data("builtin:digits/val")
    assert digits.labels is not None
    model = hydractl.load("base.st", device="cpu")
    answers = model(model.preprocess([digits[i] for i in range(300)])).argmax(1).numpy()
    zeros = np.flatnonzero((digits.labels == 0) & (answers == 0))[:8]
    np.savez("zeros.npz", x=np.stack([np.asarray(digits[i]) for i in zeros]), y=np.zeros(8, dtype=np.int64))
    few = ["--val", "zeros.npz", "--objective", "acc", "--budget", "2"]
    found = warned("extract-circuit", "base.st", *few, "-o", "z.json")
    assert "all 8 samples are of one class, 0" in found
    assert "acc: the score is at its maximum, 1, in the first" in found and "--objective nll" in found
    seen = ["eval", "base.st", "--test", "zeros.npz", "--allow-seen", "-o", "z.eval.json"]
    assert "all 8 samples are of one class, 0" in warned(*seen)
    np.savez("plain.npz", x=np.zeros((3, 8, 8), dtype=np.uint8))
    plain = ["eval", "base.st", "--test", "plain.npz", "-o", "p.eval.json"]
    assert "plain.npz has no labels: accuracy and calibration are not measured" in warned(*plain)
    assert "unknown key 'id.accuracy'" in warned(*plain, "--require", "id.accuracy>=0", code=2)
    assert "has no labels" not in warned(*plain, "--force", "--predictions", "p.pred.st")
    pruned = warned("prune", "base.st", "--method", "magnitude", "--keep", "3", "-o", "all.st")
    assert "no head is removed: every head that base has is kept" in pruned
    drawn = warned("prune", BASE, "--method", "magnitude", "--keep", "2", "--seed", "1", "-o", "r.st")
    assert "random weights drawn by --seed 1; another seed is another model" in drawn


def test_runs_that_differ_by_their_seed_alone_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("0", "1"):
        run("prune", "base.st", "--method", "random", "--keep", "2", "--seed", seed)
        run("score", "base.st", "--method", "random", "--seed", seed)
    for name in ("base.random-2", "base.random-2.seed1"):
        assert Path(f"{name}.st").is_file() and Path(f"{name}.mask.json").is_file()
    assert Path("base.random.scores.json").is_file() and Path("base.random.seed1.scores.json").is_file()
    capsys.readouterr()
    run("finetune", "t0.st", "--train", "builtin:digits/train", "--limit", "9", "--seed", "2", "--dry-run", "--json")
    assert document(capsys)["output"] == "t0.tuned.seed2.st"
