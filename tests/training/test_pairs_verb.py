"""``finetune --loss contrastive`` as a command: what is learnt, what stays, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.files.header import read_header
from tests.pico_clip import pico_clip, publish_clip
from tests.running import answer, json_lines, run, stopped_after, tensors
from tests.spread import marked_long

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "yellow": (220, 210, 30)}
TEMPLATES = ["a photo of something {}", "{}", "the colour {}", "a {} thing, seen from near"]
VIT = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=3"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, pairs of coloured images with captions, and held-out images in class folders."""
    path = tmp_path_factory.mktemp("pairs")
    (path / "clip").mkdir()
    publish_clip(pico_clip("clip"), "clip", path / "clip")
    draw = np.random.default_rng(0)
    rows = []
    for i in range(144):
        name = list(COLOURS)[i % 4]
        pixels = np.clip(np.array(COLOURS[name]) + draw.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
        file = f"pairs/{i}.png" if i < 96 else f"val/{name}/{i}.png"
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path / file)
        if i < 96:
            rows.append({"image": file, "caption": TEMPLATES[i // 4 % 4].format(name)})
    (path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


TRAIN = ["finetune", "--train", "captions:pairs.jsonl", "--loss", "contrastive", "--device", "cpu", "-q", "--force"]


@pytest.mark.long
def test_it_learns_from_captions_alone() -> None:
    """The names of the classes are in no option: the captions hold them, and the folders of --val ask for them."""
    found = answer(*TRAIN, "clip", "--init", "random", "--val", "val", "--epochs", "10", "--batch-size", "16",
                   "--lr", "0.003", "--prompt", "the colour {}", "-o", "learnt.st")  # fmt: skip
    accuracies = [epoch["val_accuracy"] for epoch in found["epochs"]]
    assert max(accuracies) >= 0.9 and found["epochs"][-1]["loss"] < 0.7 * found["epochs"][0]["loss"]
    assert found["steps"] == 10 * 6
    description = read_header("learnt.st").description
    assert description["labels"] == sorted(COLOURS)  # type: ignore[index]
    # What eval says of it is what the validation said.
    said = answer("eval", "learnt.st", "--test", "val", "--device", "cpu", "-q", "--allow-seen")
    assert said["models"][0]["id"]["accuracy"] == pytest.approx(max(accuracies))


@pytest.mark.long
def test_the_recipe_locks_the_image_tower_of_a_pruned_model(capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", "clip", "--method", "magnitude", "--scope", "global", "--remove", "5", "-o", "cut.st", "-q")
    recipe = ["finetune", "cut.st", "--recipe", "clip-locked-image", "--train", "captions:pairs.jsonl", "-q",
              "--device", "cpu", "--batch-size", "8", "--accumulate", "3", "--config", "{warmup: 2}"]  # fmt: skip
    found = answer(*recipe, "-o", "tuned.st")
    assert found["steps"] == 4 and found["kept_epoch"] == 1
    before, after = tensors("cut.st"), tensors("tuned.st")
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("visual."))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"logit_scale", "text_projection", "token_embedding.weight", "ln_final.weight"} < changed
    cut, tuned = (read_header(path).description for path in ("cut.st", "tuned.st"))
    assert cut["members"] == tuned["members"]  # type: ignore[index]
    made = tuned["provenance"]["settings"]  # type: ignore[index]
    assert (made["loss"], made["tower"], made["augment"]) == ("contrastive", "text", ["crop:0.9"])
    # Without --labels it has no classes, and eval takes those of its data.
    assert tuned.get("labels") is None  # type: ignore[union-attr]
    run("eval", "tuned.st", "--test", "val", "--device", "cpu", "-q")
    model = hydractl.load("tuned.st", device="cpu").zero_shot(list(COLOURS))
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 4)
    # Its images are no test data any more, in whatever folder.
    run("eval", "tuned.st", "--labels", "names.txt", "--test", "seen", "--device", "cpu", "-q", code=3)
    assert "1 by finetune (train)" in capsys.readouterr().err


@pytest.fixture(autouse=True, scope="module")
def seen(root: Path) -> None:
    (root / "seen/red").mkdir(parents=True)
    (root / "seen/red/a.png").write_bytes((root / "pairs/0.png").read_bytes())
    (root / "names.txt").write_text("red\nblue\n")


@pytest.mark.parametrize("step", [5, *marked_long([4])])
@pytest.mark.long
def test_stopped_after_any_step_it_goes_on_with_the_same_bits(step: int) -> None:
    """96 pairs in steps of 20: four steps are an epoch, and 16 pairs are left out of each."""
    command = [*TRAIN, "clip", "--epochs", "2", "--batch-size", "10", "--accumulate", "2", "--augment", "crop:0.5",
               "--lr", "0.001"]  # fmt: skip
    if not Path("whole.st").exists():
        run(*command, "-o", "whole.st")
    with stopped_after(step):
        run(*command, "-o", f"part{step}.st", code=130)
    run(*command, "-o", f"part{step}.st", "--resume")
    assert Path(f"part{step}.st").read_bytes() == Path("whole.st").read_bytes()


@pytest.mark.fault(34)
def test_workers_and_memory_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*TRAIN, "clip", "--steps", "3", "--batch-size", "16", "--augment", "crop:0.9,flip"]
    run(*command, "-o", "kept.st")
    monkeypatch.setattr("hydractl.training.data.CACHE_BYTES", 0)
    run(*command, "-o", "none.st")
    run(*command, "-o", "two.st", "--workers", "2")
    assert Path("kept.st").read_bytes() == Path("none.st").read_bytes() == Path("two.st").read_bytes()


def test_captions_that_are_cut_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json_lines("pairs.jsonl")
    rows[3]["caption"] = (
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"  # and marks: 16
    )
    rows[5]["caption"] = f"{rows[3]['caption']} fifteen"
    Path("long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["captions:long.jsonl" if one.startswith("captions:") else one for one in TRAIN]
    run(*command, "clip", "--steps", "1", "-o", "long.st")
    assert "1 of 96 captions is longer than 16 tokens" in capsys.readouterr().err


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "one tower": ([*TRAIN, VIT], 2, "has a classifier and does not compare images with texts"),
    "images": (["finetune", "clip", "--train", "val", "--loss", "contrastive"], 2, "needs pairs of images"),
    "no loss": (["finetune", "clip", "--train", "captions:pairs.jsonl"], 2, "captions need --loss contrastive"),
    "a head to draw": ([*TRAIN, "clip", "--init", "head"], 2, "--init head: CLIP has no classifier"),
    "a head of zeros": (
        ["finetune", "clip", "--train", "val", "--reset-head"],
        2,
        "--reset-head: clip compares images with texts",
    ),
    "too few": ([*TRAIN, "clip", "--batch-size", "97"], 3, "has 96 pairs, and a step compares 97"),
    "captions to validate": (
        [*TRAIN, "clip", "--val", "captions:pairs.jsonl"],
        2,
        "--val captions:pairs.jsonl (flag): validation is by zero-shot accuracy",
    ),
    "captions to evaluate": (["eval", "clip", "--test", "captions:pairs.jsonl"], 3, "holds image-caption pairs"),
    "the recipe on labelled images": (
        ["finetune", "clip", "--recipe", "clip-locked-image", "--train", "val"],
        2,
        "--loss contrastive (recipe clip-locked-image) needs pairs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code, complaint = REFUSED[case]
    run(*arguments, "--device", "cpu", *(["-o", "refused.st"] if arguments[0] == "finetune" else []), code=code)
    assert complaint in capsys.readouterr().err
    assert not Path("refused.st").exists()
