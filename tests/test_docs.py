"""What README and docs show, run as a reader would run it."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import balanced_accuracy_score

import hydractl
from hydractl.cli.app import main
from tests.pico import publish, stock
from tests.pico_clip import pico_clip, publish_clip
from tests.running import json_lines, read_json, script

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BY_HAND = (DOCS / "by-hand.md").read_text(encoding="utf-8")
Shell = Callable[[str, Path], None]
BASE = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=24&depth=2&num_heads=12&num_classes=3"


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that README and guides speak of: vit.st and small data sets of three classes."""
    place = tmp_path_factory.mktemp("readme")
    random = np.random.default_rng(0)
    for folder in ("train", "val", "test"):
        for label in ("ant", "bee", "cat"):
            (place / folder / label).mkdir(parents=True)
            for number in range(12 if folder == "val" else 4):
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / folder / label / f"{number}.png")
    for folder in ("ood-val", "textures"):
        (place / folder).mkdir()
        for number in range(100 if folder == "ood-val" else 4):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / folder / f"{number}.png")
    pixels = random.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(place / "cal.npz", x=pixels, y=np.arange(12) % 3)
    train = ["--train", str(place / "train"), "--steps", "1", "-o", str(place / "vit.st"), "-q"]
    assert main(["finetune", BASE, *train]) == 0
    return place


@pytest.fixture
def workplace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with these files, the current one."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def shell(with_hydractl: dict[str, str]) -> Shell:
    """Runs shell lines in a folder, stopping at the first failure."""

    def call(commands: str, folder: Path) -> None:
        command = ["bash", "-e", "-c", commands]
        done = subprocess.run(command, cwd=folder, env=with_hydractl, capture_output=True, text=True)
        assert done.returncode == 0, f"{commands}\n{done.stderr}"

    return call


def test_the_first_command_of_the_readme(workplace: Path, shell: Shell) -> None:
    command = blocks(README, "console")[0].partition("\n$ ")[0].removeprefix("$ ").strip()
    assert command.startswith("hydractl study ")
    shell(f"{command} --dry-run", workplace)  # that such a study ends is tested elsewhere


@pytest.mark.long
def test_the_steps_of_the_guide(workplace: Path, shell: Shell) -> None:
    ours, paper = (block for block in blocks(BY_HAND, "sh") if "extract-circuit" in block)
    # Random weights pass no gates, which are tested elsewhere.
    for text, replacement in (
        ("auroc>=0.85", "auroc>=0"),
        ("--bootstrap 1000", "--bootstrap 20"),
        ("'ratio<=2'", "'ratio<=1000' --rounds 2"),
    ):
        ours = ours.replace(text, replacement)
    shell(ours, workplace)
    assert (workplace / "eval.json").is_file() and (workplace / "hydra.onnx").is_file()
    shell(paper.replace("--epochs 3", "--epochs 1").replace("--keep 8", "--keep 11"), workplace)
    assert (workplace / "paper.st").is_file()


def test_the_configuration_of_the_guide(workplace: Path) -> None:
    (workplace / "hydra.yaml").write_text(blocks(BY_HAND, "yaml")[0])
    assert "    hydractl prune --method taylor --keep 8\n" in BY_HAND
    assert main(["prune", "--method", "taylor", "--keep", "8"]) == 0
    assert (workplace / "vit.taylor-8.st").is_file()


def block_with(text: str) -> str:
    """The one shell block of the guide that holds a text."""
    (found,) = (block for block in blocks(BY_HAND, "sh") if text in block)
    return found


def test_the_text_commands_of_the_guide(tmp_path: Path, shell: Shell) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    publish(stock("bert"), "bert", folder)
    train = "".join(
        json.dumps({"text": text, "label": i}) + "\n" for i, text in enumerate(["film", "so dull", "a fine"])
    )
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(train.encode()))
    (tmp_path / "test.tsv").write_text("sentence\tlabel\nnot so fine\t2\ndull\t1\n")
    (tmp_path / "questions.csv").write_text("text\nso so ?\na\n")
    first, *rest = block_with("MY-BERT").splitlines()
    first = first.replace("hf:ORG/MY-BERT", "bert").replace("--keep 8", "--keep 2").partition("#")[0]
    others = [first.replace("--seed 0 ", f"--seed {seed} ").replace("a.st", f"{seed}.st") for seed in (1, 2)]
    commands = (
        "\n".join([first, *others, *rest])
        .replace("b.st c.st", "1.st 2.st")
        .replace("--max-length 128", "--max-length 8")
    )
    shell(commands, tmp_path)
    assert (tmp_path / "hydra.st").is_file()


def test_the_zero_shot_commands_of_the_guide(workplace: Path, shell: Shell) -> None:
    (workplace / "clip").mkdir()
    publish_clip(pico_clip(), "clip", workplace / "clip")
    (workplace / "names.txt").write_text("ant\nbee\ncat\n")
    commands = block_with("names.txt").replace("open_clip:ViT-B-32/laion2b_s34b_b79k", "clip")
    shell(commands.replace("--remove 24", "--remove 2"), workplace)
    assert (workplace / "a.st").is_file()


def test_parts_that_are_joined_have_the_rows_of_the_whole(workplace: Path, shell: Shell) -> None:
    page = (DOCS / "many-inputs.md").read_text(encoding="utf-8")
    (parts,) = (block for block in blocks(page, "sh") if "?part=" in block)
    (joining,) = blocks(page, "py")
    (workplace / "vit.st").rename(workplace / "best.st")
    (workplace / "ood-val").rename(workplace / "new")
    whole = "hydractl predict best.st new/ -o whole.jsonl"
    shell(f"{whole}\n{parts}", workplace)
    exec(joining, {})
    expected, found = (json_lines(workplace / file) for file in ("whole.jsonl", "new.jsonl"))
    assert [row["id"] for row in found] == sorted(row["id"] for row in expected)
    confidence = {row["id"]: row["confidence"] for row in expected}
    assert [row["confidence"] for row in found] == pytest.approx([confidence[row["id"]] for row in found], rel=1e-4)


def test_the_comparison_of_inputs_finds_those_that_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines are those of predict: a model of digits, on digits and on letters."""
    monkeypatch.chdir(tmp_path)
    base = BASE.replace("num_heads=12&num_classes=3", "num_heads=3&num_classes=10&in_chans=1")
    train = ["--train", "builtin:digits/train", "--lr", "3e-3", "--epochs", "4", "-o", "base.st", "-q"]
    assert main(["finetune", base, *train]) == 0
    assert main(["calibrate", "base.st", "--val", "builtin:digits/val", "--threshold", "id:0.05", "-o", "cal.st"]) == 0
    for name, data in {"known": "builtin:digits/test", "new": "builtin:letters"}.items():
        assert main(["predict", "cal.st", data, "-o", f"{name}.jsonl", "-q"]) == 0
    (comparison,) = (block for block in blocks((DOCS / "deploy.md").read_text(), "py") if "scipy" in block)
    capsys.readouterr()
    scope: dict[str, Any] = {}
    exec(comparison, scope)
    assert scope["scores"].pvalue < 1e-6
    known, new = ([row["is_ood"] for row in scope[name]] for name in ("known", "new"))
    said = capsys.readouterr().out
    assert f"flagged: {sum(known) / len(known):.1%}, now {sum(new) / len(new):.1%}, p = " in said
    # The same inputs again are no change.
    shutil.copy("known.jsonl", "new.jsonl")
    exec(comparison, scope)
    assert scope["scores"].pvalue == scope["shares"].pvalue == 1


def block_of(page: str, language: str, text: str) -> str:
    """The one block of a page that holds a text."""
    (found,) = (block for block in blocks((DOCS / page).read_text(encoding="utf-8"), language) if text in block)
    return found


def test_another_threshold_leaves_temperature_and_score(workplace: Path, shell: Shell) -> None:
    how = ["--temperature", "fit", "--ood-score", "energy", "--threshold", "id:0.5"]
    assert main(["calibrate", "vit.st", "--val", "val/", *how, "-o", "best.st", "-q"]) == 0
    (workplace / "val").rename(workplace / "recent")
    shell(block_of("deploy.md", "sh", "stricter.st"), workplace)
    before, after = (hydractl.open(name).description.extra for name in ("best.st", "stricter.st"))
    assert after["calibration"]["temperature"] == before["calibration"]["temperature"] != 1
    assert after["ood_score"] == before["ood_score"] == {"score": "energy"}
    assert after["threshold"]["rule"] == "id:0.01"
    assert after["threshold"]["value"] > before["threshold"]["value"]


def test_classes_are_looked_at_one_by_one(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "vit.st", "--val", "val/", "--threshold", "id:0.5", "-o", "best.st", "-q"]) == 0
    assert "`hydractl predict best.st test/ -o test.jsonl`" in (DOCS / "evaluating.md").read_text(encoding="utf-8")
    assert main(["predict", "best.st", "test/", "-o", "test.jsonl", "-q"]) == 0
    rows = json_lines(workplace / "test.jsonl")
    expected = balanced_accuracy_score([row["label"] for row in rows], [row["predicted"] for row in rows])
    capsys.readouterr()
    exec(block_of("evaluating.md", "py", "balanced accuracy"), {})
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["ant", "bee", "cat", "balanced accuracy"]
    assert said[-1] == f"balanced accuracy: {expected:.3f}"


def test_a_figure_is_found_again_from_single_samples(workplace: Path, shell: Shell) -> None:
    (workplace / "vit.st").rename(workplace / "best.st")
    shell(block_of("evaluating.md", "sh", "best.pred.st"), workplace)
    scope: dict[str, Any] = {}
    exec(block_of("evaluating.md", "py", "roc_auc_score"), scope)
    document = read_json(workplace / "eval.json")
    assert scope["auroc"] == pytest.approx(document["models"][0]["ood"]["textures"]["auroc"], abs=1e-12)


def test_one_table_becomes_three_parts(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "bert").mkdir()
    publish(stock("bert"), "bert", tmp_path / "bert")
    rows = [f"a film {number} so fine,{number % 3}\n" for number in range(60)]
    (tmp_path / "reviews.csv").write_text("body,stars\n" + "".join(rows))
    commands = block_of("data.md", "sh", "fraction=0.9:1").replace("hf:google-bert/bert-base-uncased", "bert")
    shell(commands.replace("--epochs 3", "--epochs 1"), tmp_path)
    seen = hydractl.open(str(tmp_path / "tuned.st")).description.seen
    assert [entry["n"] for entry in seen] == [48, 6]


def test_a_folder_of_images_becomes_a_model_and_its_study(tmp_path: Path, shell: Shell) -> None:
    random = np.random.default_rng(0)
    for label in ("ant", "bee", "cat"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(40):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    first, rest = block_of("finetuning.md", "sh", "photos/?fraction").split("hydractl study")
    first = first.replace("timm:vit_small_patch16_224.augreg_in21k", f"'{BASE}'").replace("--epochs 5", "--epochs 1")
    study, rest = rest.split("hydractl predict")
    # That such a study ends, and that its best.st has a threshold, is tested elsewhere.
    shell(f"{first}\nhydractl study {study.strip()} --dry-run", tmp_path)
    threshold = "--val 'photos/?fraction=0.6:0.8' --threshold id:0.05 -o best.st"
    predict = rest.replace("runs/vit/best.st new/", "best.st photos/ant/")
    shell(f"hydractl calibrate vit.st {threshold}\nhydractl predict {predict}", tmp_path)


def test_the_table_of_heads(workplace: Path, shell: Shell) -> None:
    shell(block_of("circuits.md", "sh", "scores.json").replace("--budget 24", "--budget 4"), workplace)
    exec(block_of("circuits.md", "py", "heads.csv"), {})
    lines = (workplace / "heads.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 12
    steps = [line.rpartition(",")[2] for line in lines[1:]]
    assert sorted(step for step in steps if step) == ["1", "2", "3", "4"]


SAMPLE = ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "eva02_base_patch16_clip_224", "cait_xxs24_224"]


def test_the_tables_of_models_are_true_of_a_sample() -> None:
    module = script(DOCS / "make_models.py")
    lines = (DOCS / "models.md").read_text(encoding="utf-8").splitlines()
    rows = module.timm_rows({name: [name] for name in SAMPLE})
    assert {(kind, bool(reason)) for kind, _, reason in rows} == {
        ("VisionTransformer", False),
        ("Eva", False),
        ("Eva", True),
        ("Cait", True),
    }
    for kind, _, reason in rows:
        shown = [line for line in lines if line.startswith(f"| {kind} |")]
        assert bool(shown) == any(other == kind and not refused for other, _, refused in rows), kind
        assert reason or shown[0].endswith(" as shapes |")


@pytest.mark.long
def test_the_table_of_transformers_is_current() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert script(DOCS / "make_models.py").transformers_text() in text, "run: python docs/make_models.py"


def test_the_command_reference_is_current() -> None:
    module = script(DOCS / "make_cli.py")
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == module.text(), "run: make docs"


def test_tables_of_studies_are_those_of_their_results() -> None:
    module = script(DOCS / "make_results.py")
    for page in module.PAGES:
        text = page.read_text(encoding="utf-8")
        assert module.filled(text) == text, f"{page.name} is not what python docs/make_results.py writes"
    tampered = README.replace("| 0.", "| 1.")
    assert tampered != README and module.filled(tampered) == README


FIGURES_OF_A_GPU = {
    "docs/numbers.md": "{eager 4 whole ratio} times the single ViT-B/16 for the whole model with a circuit, {eager 4 "
    "fused10 ratio} and {eager 4 fused0 ratio} for three members that share 10 of 12 sites or none; {graphs 4 whole "
    "ratio}, {graphs 4 fused10 ratio} and {graphs 4 fused0 ratio} in CUDA graphs",
    "docs/circuits.md": "[R = {float32 eager 128 single tera} in float32 and {eager 128 single tera} in bfloat16]",
    "docs/paper.md": "side by side, take [{eager 4 fused0 ratio} times]",
}
"""What pages other than that of the measurement say of it."""


@pytest.mark.parametrize("page", FIGURES_OF_A_GPU)
def test_figures_of_a_gpu_are_those_of_its_file(page: str) -> None:
    module = script(DOCS / "make_results.py")
    said = module.filled_sentence(FIGURES_OF_A_GPU[page], module.gpu_rows("gpu-cost"))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert " ".join(said.split()) in " ".join(text.split())


@pytest.mark.parametrize("name", ["fashion-mnist", "sst2", "clip", "digits"])
def test_gains_of_studies_are_those_of_their_results(name: str) -> None:
    """The pages of the studies are generated; the list of all pages has one figure of each."""
    findings = read_json(DOCS / "results" / f"{name}.json")["verdict"]["against_baseline"]
    (gain,) = (finding["value"] for finding in findings if finding["metric"] == "ood_avg.auroc")
    lines = (DOCS / "numbers.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if f"(numbers/study-{name}.md) |" in line)
    assert line.endswith(f"| {gain:+.3f} |")


def of_a_training(accuracy: float, **aurocs: float) -> dict[str, Any]:
    """A row of seeds.json."""
    by_score = {score: {"mean": auroc} for score, auroc in aurocs.items()}
    return {"mac_ratio": 2.0, "accuracy": accuracy, "nll": 0.5, "ece": 0.1, "auroc": by_score}


def test_figures_over_trainings_are_paired_by_training() -> None:
    module = script(DOCS / "make_results.py")
    trainings = [
        {"single": of_a_training(0.80, msp=0.70), "fused": of_a_training(0.79, msp=0.75, mi=0.6)},
        {"single": of_a_training(0.90, msp=0.50), "fused": of_a_training(0.92, msp=0.54, mi=0.8)},
        {"single": of_a_training(0.70, msp=0.60)},
    ]
    # The third training has no such row, so its single model does not count; mi is nothing of a single model.
    minus = module.differences_over_seeds(trainings, "single").splitlines()
    assert minus[2:] == ["| fused | 2.00 | +0.005 ± 0.021 (1/2) | +0.000 ± 0.000 (0/2) | +0.045 ± 0.007 (2/2) |"]
    ensemble = {**of_a_training(0.95, msp=0.80), "shared": True}
    with_ensemble = [{**rows, "deep": ensemble} for rows in trainings]
    assert (
        module.differences_over_seeds(with_ensemble, "single")
        .splitlines()[3]
        .startswith("| deep | 2.00 | +0.150 ± 0.100 (3/3) |")
    )
    module.SENTENCES = {"x": "{deep accuracy}, {deep accuracy - single accuracy}"}
    assert module.said_over_seeds(with_ensemble, "x") == "0.950, +0.150 ± 0.100"
    module.SENTENCES = {"x": "{trainings}: {single msp}, {fused msp - single msp}\n{fused accuracy - single accuracy}"}
    said = module.said_over_seeds(trainings, "x")
    assert said == "3: 0.600 ± 0.100, +0.045 ± 0.007 +0.005 ± 0.021 (positive in 1 of 2)"
