"""What is told of a training afterwards: in the rows of ``eval``, by ``--info``, of an unfinished run too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import InputError
from hydractl.files.description import Description
from hydractl.files.header import read_header
from hydractl.files.training_history import UnfinishedRecord, training_text, trainings_of
from tests.image_data import write_images
from tests.running import answer, run, stopped_after

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz", "--val", "val.npz", "--device", "cpu", "-q", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(train=20, val=11, test=9)


@pytest.mark.long
def test_eval_and_info_tell_the_course_of_a_training() -> None:
    first = answer("finetune", MODEL, *DATA, "--epochs", "3", "-o", "a.st")
    second = answer("finetune", MODEL, *DATA, "--epochs", "1", "--seed", "1", "-o", "b.st")
    run("fuse", "a.st", "b.st", "-o", "ab.st", "-q", "--device", "cpu")
    run("prune", MODEL, "--method", "magnitude", "--keep", "2", "-o", "c.st", "-q")
    models = ["a.st", "ab.st", "c.st", "deep=c.st+b.st"]
    found = answer("eval", *models, "--test", "test.npz", "--device", "cpu", "-q", "-o", "eval.json")
    a, ab, c, deep = (row.get("training") for row in found["models"])
    about = {"n": 20, "n_val": 11}
    assert a == [{"member": 0, "steps": 9, "kept_epoch": first["kept_epoch"], **about, "epochs": first["epochs"]}]
    of_b = {"steps": 3, "kept_epoch": 1, **about, "epochs": second["epochs"]}
    assert (ab, c, deep) == ([*a, {"member": 1, **of_b}], None, [{"member": 1, **of_b}])
    # Predictions that were kept tell the same.
    run("eval", "ab.st", "--test", "test.npz", "--device", "cpu", "-q", "--predictions", "ab.kept.st")
    assert answer("eval", "ab.kept.st", "-q", "-o", "kept.json")["models"][0]["training"] == ab

    kept, last = first["epochs"][first["kept_epoch"] - 1], first["epochs"][-1]
    said = f"epoch {kept['epoch']} of 3 kept, 9 steps, last loss {last['loss']:.4f}, "
    said += f"validation accuracy {kept['val_accuracy']:.4f}"
    assert answer("--info", "a.st")["training"] == [said]
    assert answer("--info", "ab.st")["training"][0] == f"member 0: {said}"
    assert "training" not in answer("--info", "c.st")


def test_info_describes_an_unfinished_run(capsys: pytest.CaptureFixture[str]) -> None:
    with stopped_after(5):
        run("finetune", MODEL, *DATA, "--epochs", "3", "--lr", "0.003", "-o", "a.st", code=130)
    found = answer("--info", "a.st.state")
    assert (found["holds"], found["step"], found["of"]) == ("hydractl.training/1", 5, 9)
    progress = read_header("a.st.state").description["progress"]  # type: ignore[index]
    assert found["best_val_accuracy"] == progress["best"] and found["best_epoch"] == 1
    assert len(found["epochs"]) == 1 and found["epochs"][0].startswith("epoch 1, steps 3, loss ")
    assert (found["source"]["lr"], found["source"]["seed"], found["source"]["epochs"]) == (0.003, 0, 3)
    assert found["source"]["device"] == "cpu" and "steps" not in found["source"]
    run("--info", "a.st.state")
    out = capsys.readouterr().out
    assert "step" in out and "provenance" in out


HISTORY = [{"epoch": e, "steps": 2 * e, "loss": 1 / e, "val_accuracy": 0.5, "top5": 0.9} for e in range(1, 201)]


def described(settings: Any) -> Any:
    made = {"verb": "finetune", "settings": settings}
    return Description("dense", "f", "1", "a", {}, {}, None, masks=[None], provenance=made)  # type: ignore[list-item]


def test_the_epochs_of_a_training_are_told() -> None:
    (found,) = trainings_of([described({"history": HISTORY, "kept_epoch": 30})])
    assert [entry.epoch for entry in found.epochs] == list(range(1, 201))
    assert found.epochs[0].to_dict() == {"epoch": 1, "steps": 2, "loss": 1.0, "val_accuracy": 0.5}
    assert (found.steps, found.n, found.n_val) == (400, None, None)
    assert training_text(found) == "epoch 30 of 200 kept, 400 steps, last loss 0.0050, validation accuracy 0.5000"


def test_of_weights_that_belong_to_no_epoch_none_is_told() -> None:
    (found,) = trainings_of([described({"history": HISTORY[:7], "course": {"steps": 15}})])
    assert (found.kept_epoch, found.steps, len(found.epochs)) == (None, 14, 7)
    assert training_text(found).startswith("no epoch chosen, 14 steps, ")


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {},
        {"history": [], "kept_epoch": 1},
        {"history": HISTORY, "kept_epoch": "1"},
        {"history": [{"epoch": 1, "steps": 2}], "kept_epoch": 1},
        {"history": [{"epoch": 1, "steps": 2, "loss": float("nan")}], "kept_epoch": 1},
        {"history": [{"epoch": "1", "steps": 2, "loss": 1.0}], "kept_epoch": 1},
        {"history": {"epoch": 1}, "kept_epoch": 1},
    ],
)
def test_a_strangers_provenance_tells_nothing(settings: Any) -> None:
    assert trainings_of([described(settings)]) == []


@pytest.mark.parametrize(
    "header", [{}, {"progress": 3, "fingerprint": []}, {"progress": {"steps": "5", "epochs": [1]}}]
)
def test_a_strangers_state_is_refused(header: Any) -> None:
    with pytest.raises(InputError, match="a.state is no unfinished training"):
        UnfinishedRecord.checked(header, "a.state is no unfinished training")
