"""``prune --max-drop`` against every budget tried by hand on timm's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hydractl
from hydractl.model.source import open_source
from hydractl.verbs.max_drop import steps_within
from tests.pico import published, without_heads
from tests.running import link_files, read_json
from tests.running import quiet as run
from tests.spread import marked_release

MODEL = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
BASE = f"timm:vit_tiny_patch16_224?pretrained=0&{'&'.join(f'{key}={value}' for key, value in MODEL.items())}"


def removed(path: str) -> list[tuple[str, int]]:
    return [(p, h) for p, one in read_json(path)["sites"].items() for h in range(3) if h not in one["kept"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads decide what it says, and sets labelled by the whole model."""
    path: Path = tmp_path_factory.mktemp("drop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        run("prune", BASE, "--method", "random", "--remove", "0", "-o", "plain.st")
        from timm import create_model

        model = create_model("vit_tiny_patch16_224", **MODEL)
        model.load_state_dict(load_file("plain.st"))
        for block in model.blocks:
            block.attn.proj.weight.data *= 20
        torch.save(model, "timm.pt")
        tensors, loaded = load_file("plain.st"), hydractl.load("plain.st", device="cpu")
        from safetensors import safe_open
        from safetensors.torch import save_file

        with safe_open("plain.st", "pt") as file:
            save_file({name: model.state_dict()[name] for name in tensors}, "base.st", metadata=file.metadata())
        draw = np.random.default_rng(0)
        for name in ("cal", "val"):
            x = draw.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
            inputs = loaded.preprocess([_image(one) for one in x])
            np.savez(f"{name}.npz", x=x, y=model.eval()(inputs).argmax(-1).numpy())
    return path


def _image(pixels: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(pixels)


@pytest.fixture(autouse=True)
def inside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    link_files(folder, tmp_path)


def right(mask: str, name: str, used: list[int]) -> int:
    """How many samples timm's own model gets right without the heads that a mask removes."""
    model = torch.load("timm.pt", weights_only=False).eval()
    data = np.load(f"{name}.npz")
    inputs = hydractl.load("plain.st", device="cpu").preprocess([_image(data["x"][i]) for i in used])
    with torch.no_grad(), without_heads(model, removed(mask)):
        return int((model(inputs).argmax(-1).numpy() == data["y"][used]).sum())


WAYS = {
    "magnitude": ["--method", "magnitude"],
    "sequential": ["--method", "taylor", "--data", "cal.npz", "--samples", "40"],
    "global": ["--method", "taylor", "--scope", "global", "--data", "cal.npz", "--samples", "40"],
    "circuit": ["--circuit", "c.json"],
}


@pytest.mark.parametrize("way", ["sequential", "global", "circuit", *marked_release(["magnitude"])])
@pytest.mark.long
def test_the_last_budget_before_the_first_that_loses_too_much(way: str) -> None:
    used = sorted(np.random.default_rng(0).choice(60, 40, replace=False)) if way == "sequential" else list(range(60))
    name = "cal" if way == "sequential" else "val"
    correct, most = [], 8 if way in ("global", "circuit") else 3
    if way == "circuit":  # of other samples than those that decide here
        run("extract-circuit", "base.st", "--val", "cal.npz", "--objective", "acc", "--budget", "8", "-o", "c.json")
    for budget in range(most + 1):
        run("prune", "base.st", *WAYS[way], "--remove", str(budget), "-o", f"{budget}.st")
        correct.append(right(f"{budget}.mask.json", name, used))
    limit = (correct[0] - correct[-1]) / 2 / len(used)  # so that it ends somewhere in between
    val = ["--val", "val.npz"] if name == "val" else []
    run("prune", "base.st", *WAYS[way], *val, "--max-drop", f"{limit:.4f}", "-o", "p.st")
    count = next(i for i, one in enumerate(correct) if correct[0] - one > float(f"{limit:.4f}") * len(used)) - 1
    assert removed("p.mask.json") == removed(f"{count}.mask.json")
    said = read_json("p.mask.json")["source"]["settings"]
    assert said["measured"] == {"on": name.replace("cal", "data"), "n": len(used), "correct": correct[: count + 2]}
    assert said["remove"] == count and said["max_drop"] == float(f"{limit:.4f}")
    assert ("prune", "val") in [(one["by"], one["as"]) for one in read_json("p.mask.json")["seen"]]


def test_shares_are_exact_and_nothing_behind_the_end_is_asked_for() -> None:
    def correct() -> Any:
        yield from (100, 99, 100, 93, 92)
        raise AssertionError

    assert steps_within(correct(), 100, 0.07) == (3, [100, 99, 100, 93, 92])  # 0.07 * 100 is above 7 in floats
    assert steps_within([100, 101], 100, 0.0) == (1, [100, 101])
    assert steps_within([5, 4], 10, 0.0) == (0, [5, 4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magnitude"], "--max-drop with --method magnitude needs --val"),
        (["--scores", "s.json"], "--max-drop with --scores needs --val"),
        (["--method", "magnitude", "--val", "val.npz", "--keep", "2"], "give only one of --keep"),
        (["--method", "magnitude", "--remove", "auto"], "--remove must be a whole number, not 'auto'"),
        (["--method", "magnitude", "--val", "val.npz", "--share-sites", "1", "--with", "m.json"], "--share-sites"),
        (["--mask", "m.json"], "--max-drop has no effect with --mask"),
        (["--method", "cahp", "--data", "cal.npz"], "--max-drop has no effect with --method cahp"),
    ],
)
def test_refusals(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", "base.st", *options, "--max-drop", "0.1", "-o", "p.st", code=2)
    assert message in capsys.readouterr().err


def test_a_model_that_can_spare_no_head_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    run("score", "base.st", "--method", "magnitude", "-o", "s.json")
    run("prune", "base.st", "--scores", "s.json", "--val", "val.npz", "--max-drop", "0", "-o", "p.st")
    assert "no head is removed: every head that base has is kept" in capsys.readouterr().err
    run("score", "base.st", "--method", "taylor", "--data", "cal.npz", "--remove", "1", "-o", "q.json")
    run("prune", "base.st", "--scores", "q.json", "--val", "val.npz", "--max-drop", "0", "-o", "q.st", code=2)
    assert "was scored site by site for one budget" in capsys.readouterr().err


def test_a_logit_that_is_not_finite_ends_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hydractl.cli.app import main

    monkeypatch.setattr(
        "hydractl.model.loading.HydraModel.member_logits", lambda *_: torch.full((1, 60, 5), float("nan"))
    )
    words = ["prune", "base.st", "--method", "random", "--max-drop", "0.1", "--val", "val.npz", "-o", "a.st"]
    assert main(words) == 6
    assert "a logit is not finite while it runs without some heads" in capsys.readouterr().err


def test_heads_gone_in_the_other_tower_at_the_start_count_for_nothing(here: Path) -> None:
    clip = published("clip", here / "clip")
    sites = {site.path: site for site in open_source(str(clip)).sites}
    kept = {path: {"kept": [1, 2] if site.tower == "text" else [0, 1, 2]} for path, site in sites.items()}
    visual = next(path for path, site in sites.items() if site.tower == "visual")
    steps = [{"site": visual, "head": head, "correct": correct, "n_id": 10} for head, correct in ((0, 9), (1, 5))]
    circuit = {"schema": "hydractl.circuit/2", "tower": "visual", "start_mask": {"sites": kept}, "removed": steps}
    Path("c.json").write_text(json.dumps({**circuit, "base": {"correct": 10, "n_id": 10}}))
    run("prune", "clip", "--circuit", "c.json", "--max-drop", "0.1", "-o", "p.st")
    pruned = read_json("p.mask.json")["sites"]
    assert pruned[visual]["kept"] == [1, 2]  # the second step loses too much
    assert {path: pruned[path]["kept"] for path in kept if path != visual} == {
        path: one["kept"] for path, one in kept.items() if path != visual
    }
