"""``prune --weights``: which weights become zero, that training leaves them so, and what files and costs say of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hydractl.files.verb_answers import PrunedWeights
from hydractl.verbs.prune_weights import _counts
from tests.image_data import write_images
from tests.pico import published, shared_stock
from tests.running import answer, quiet, stopped_after, tensors
from tests.spread import marked_long

CONV_OR_LINEAR = (nn.Linear, nn.Conv2d)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model, data, and what ``--weights`` makes of the two."""
    path = tmp_path_factory.mktemp("weights")
    published("hf-vit", path / "vit")
    published("clip", path / "clip")
    with contextlib.chdir(path):
        write_images(train=20, val=10, test=15)
        quiet("prune", "vit", "--weights", "0.8", "--method", "magnitude", "-o", "vit.st")
        yield path


def gone(path: str) -> set[tuple[str, int]]:
    """The weights that are zero, by the names of their tensors and their positions."""
    zeros = {name: (tensor == 0).flatten().nonzero()[:, 0].tolist() for name, tensor in tensors(path).items()}
    return {(name, at) for name, own in zeros.items() for at in own}


def total() -> int:
    return sum(p.numel() for p in shared_stock("hf-vit").parameters())


def naive_magnitude(share: float) -> set[tuple[str, int]]:
    """The smallest of the weights of the library's layers, by a sort."""
    layers = [(name, m.weight) for name, m in shared_stock("hf-vit").named_modules() if isinstance(m, CONV_OR_LINEAR)]
    each = sorted((abs(v), f"{name}.weight", at) for name, w in layers for at, v in enumerate(w.flatten().tolist()))
    count = total() - round(share * total())
    assert each[count - 1][0] < each[count][0]  # no tie where it ends
    return {(name, at) for _, name, at in each[:count]}


def test_the_smallest_weights_go_and_all_else_stays() -> None:
    assert gone("vit.st") == naive_magnitude(0.8)
    found, stock = tensors("vit.st"), shared_stock("hf-vit").state_dict()
    assert all(torch.equal(t[t != 0], stock[name][t != 0]) for name, t in found.items())
    left = total() - len(gone("vit.st"))
    assert left == round(0.8 * total())
    info = answer("--info", "vit.st")
    assert (info["kind"], info["sparse"], info["parameters"]) == (
        "dense",
        {"share": 0.8, "params_nonzero": left},
        total(),
    )
    plan = answer("prune", "vit.st", "--weights", "0.7", "--method", "random", "--dry-run", "-o", "plan.st")
    assert plan["weights"]["removed"] == total() - round(0.7 * total())


@pytest.mark.long
def test_what_it_costs_is_what_the_dense_model_costs() -> None:
    rows = answer("eval", "dense=vit", "sparse=vit.st", "both=vit+vit.st", "--test", "test.npz")["models"]
    dense, sparse, both = (row["cost"] for row in rows)
    left = total() - len(gone("vit.st"))
    assert "params_nonzero" not in dense
    assert sparse == {**dense, "params_nonzero": left}
    assert both["params_nonzero"] == dense["params"] + left
    quiet("bench", "vit.st", "--rounds", "2", "--warmup", "1", "-o", "bench.json")
    assert f'"params_nonzero": {left}' in Path("bench.json").read_text()


def test_a_smaller_share_removes_more_of_what_is_left() -> None:
    quiet("prune", "vit.st", "--weights", "0.5", "--method", "random", "-o", "half.st")
    quiet("prune", "vit.st", "--weights", "0.5", "--method", "random", "-o", "again.st")
    quiet("prune", "vit.st", "--weights", "0.5", "--method", "random", "--seed", "1", "-o", "other.st")
    assert gone("vit.st") < gone("half.st")
    assert len(gone("half.st")) == len(gone("other.st")) == total() - round(0.5 * total())
    assert Path("half.st").read_bytes() == Path("again.st").read_bytes()
    assert gone("half.st") != gone("other.st")


def test_oba_of_one_tower_leaves_the_other_whole() -> None:
    options = ["--tower", "visual", "--data", "train.npz", "--batch-size", "8", "--weight-steps", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRACTL_LABELS", _labels())
        quiet("prune", "clip", "--weights", "0.995", "--method", "oba", *options, "-o", "clip.st")
    names = {name for name, _ in gone("clip.st")}
    assert names and all(name.startswith("visual.") for name in names)


def test_oba_takes_biases_too_which_stay_removed_in_a_training() -> None:
    oba = ["--method", "oba", "--data", "train.npz", "--weight-steps", "3"]
    quiet("prune", "vit", "--weights", "0.4", *oba, "-o", "oba.st")
    zeros = gone("oba.st")
    assert len(zeros) == total() - round(0.4 * total())
    removed_biases = {(name, place) for name, place in zeros if name.endswith("bias")}
    assert removed_biases and not any("norm" in name for name, _ in zeros)
    quiet("finetune", "oba.st", *TRAIN, "-o", "oba.tuned.st")
    assert gone("oba.tuned.st") == zeros


@pytest.mark.parametrize(
    ("zeros", "share", "steps", "left"),
    [(0, 0.5, 1, [500]), (0, 0.25, 2, [500, 250]), (0, 0.125, 3, [500, 250, 125]), (200, 0.2, 2, [400, 200])],
)
def test_each_step_keeps_the_same_share_of_what_is_left(zeros: int, share: float, steps: int, left: list[int]) -> None:
    counts = PrunedWeights(share=share, parameters=1000, removable=1000, removed=1000 - round(share * 1000))
    assert [1000 - count for count in _counts(counts, steps, zeros)] == left


def _labels() -> str:
    Path("names.txt").write_text("a\nb\nc\nd\ne\n")
    return "names.txt"


TRAIN = ["--train", "train.npz", "--batch-size", "4", "--epochs", "2", "--lr", "0.01", "--device", "cpu"]


@pytest.mark.parametrize("optimizer", ["adamw", *marked_long(["sgd"])])
def test_what_is_removed_stays_removed_also_where_a_training_is_resumed(optimizer: str) -> None:
    command = ["finetune", "vit.st", *TRAIN, "--optimizer", optimizer, "--weight-decay", "0.1"]
    quiet(*command, "-o", f"{optimizer}.st")
    assert gone(f"{optimizer}.st") == gone("vit.st")
    before, after = tensors("vit.st"), tensors(f"{optimizer}.st")
    assert all(not torch.equal(before[name], after[name]) for name in after if name.endswith("dense.weight"))
    with stopped_after(3):
        quiet(*command, "-o", "stopped.st", code=130)
    quiet(*command, "-o", "stopped.st", "--resume")
    assert Path("stopped.st").read_bytes() == Path(f"{optimizer}.st").read_bytes()
    Path("stopped.st").unlink()


def test_a_new_classifier_is_trained_and_random_weights_are_whole() -> None:
    quiet("finetune", "vit.st", *TRAIN, "--reset-head", "-o", "head.st")
    head: Tensor = tensors("head.st")["classifier.weight"]
    assert bool((head != 0).all())
    left = {(name, at) for name, at in gone("vit.st") if name != "classifier.weight"}
    assert gone("head.st") == left
    assert answer("--info", "head.st")["sparse"]["params_nonzero"] == total() - len(left)
    quiet("finetune", "vit.st", *TRAIN, "--init", "random", "-o", "drawn.st")
    assert "sparse" not in answer("--info", "drawn.st")


def test_what_would_fill_the_zeros_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    quiet("finetune", "vit.st", *TRAIN, "--ensemble", "lora:2,2", "-o", "lora.st", code=2)
    assert "pruned weights, which an adapter would fill" in capsys.readouterr().err


def test_a_folder_holds_the_zeros() -> None:
    quiet("prune", "vit", "--weights", "0.8", "--method", "magnitude", "-o", "sparse/")
    found = tensors("sparse/model.safetensors")
    assert sum(int((t == 0).sum()) for t in found.values()) == len(gone("vit.st"))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("prune vit --weights 0.8 --method taylor", "--method taylor scores heads, --weights takes"),
        ("prune vit --weights 0.8 --method oba", "prune --method oba needs --data"),
        ("prune vit --keep 2 --method oba", "--method (flag) needs --weights"),
        ("prune vit --weights 0.8 --keep 2 --method random", "--keep has no effect with --weights 0.8"),
        (
            "prune vit --weights 0.8 --method random --weight-steps 3",
            "--weight-steps has no effect with --method random",
        ),
        ("prune vit --keep 2 --method random --weight-steps 3", "--weight-steps (flag) needs --weights"),
        ("prune vit --weights 0.01 --method random", "--weights 0.01 is too small for vit"),
        ("prune vit.st --weights 0.9 --method random", "--weights 0.9 is more than vit has left, a share of 0.8"),
        ("finetune vit.st --train train.npz --ensemble lora:2,4", "vit has pruned weights, which an adapter would"),
    ],
)
def test_what_cannot_be_is_refused(command: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    quiet(*command.split(), "-o", "refused.st", code=3 if "classifier" in problem else 2)
    assert problem in capsys.readouterr().err
    assert not Path("refused.st").exists()
