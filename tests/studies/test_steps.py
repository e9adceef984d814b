"""The steps of a study: their order, when they are done, and the script that makes them again."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from hydractl.studies.rows import MAKERS, Scale, Workshop, smaller
from hydractl.studies.steps import Step, in_order, script


def step(name: str, *needs: Step, files: tuple[str, ...] = ()) -> Step:
    return Step("prune", ("vit.st",), {}, tuple(map(Path, files or (f"{name}.st",))), needs)


def test_a_step_comes_behind_all_that_it_needs_and_once() -> None:
    search = step("circuit")
    members = [step(name, search) for name in ("a", "b")]
    fused = step("fused", *members)
    assert in_order([fused, *members, search]) == [search, *members, fused]


def test_a_step_is_done_when_all_its_files_are_there(tmp_path: Path) -> None:
    files = (tmp_path / "a.mask.json", tmp_path / "a.st")
    prune = Step("prune", ("vit.st",), {}, files)
    for file in files:
        assert not prune.done
        file.touch()
    assert prune.done


@pytest.mark.fault(106)
@pytest.mark.parametrize("name", ["plain", "a $HOME of", 'a "quote" and a `tick`', "back\\slash", "it's", "a}b", "-p"])
def test_the_script_works_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    words = script([], [], folder, tmp_path)
    subprocess.run(["sh"], input=words, text=True, check=True, cwd=tmp_path)
    assert (folder / "choose").is_dir() and (folder / "test").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("part", "count"), [(1 / 3, 4), (1 / 100, 1), (1.0, 11)])
def test_a_share_of_the_heads_is_at_least_one_and_never_all(part: float, count: int) -> None:
    workshop = Workshop("vit.st", {0: 4, 1: 4, 2: 4}, [2], None, "val", "ood", Path("out"))
    assert workshop.share(part) == count


def trainings(row: str, seed: int, has_classifier: bool = True) -> list[Step]:
    """The trainings of one row of a study with that seed."""
    workshop = Workshop(
        *("vit.st", {0: 4}, [0], "train", "val", "ood", Path("out")), seed=seed, has_classifier=has_classifier
    )
    (made,) = MAKERS[row](workshop)
    return [step for step in in_order(made.steps) if step.verb in ("finetune", "prune")]


@pytest.mark.parametrize("row", ["deep", "deep-random", "lora", "taylor"])
def test_studies_of_two_seeds_have_no_member_in_common(row: str) -> None:
    seeds = [[step.options["seed"] for step in trainings(row, seed)] for seed in (0, 1, 2)]
    assert seeds == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"]]
    files = [[step.outputs for step in trainings(row, seed)] for seed in (0, 1)]
    assert files[0] == files[1]


def test_every_training_of_every_row_tries_the_same_learning_rates() -> None:
    training = {"epochs": "2", "lr": "0.001,0.01"}
    workshop = Workshop(*("vit.st", {0: 4}, [0], "train", "val", "ood", Path("out")), training=training)
    tried = []
    for make in MAKERS.values():
        for made in make(workshop):
            steps = [step for step in in_order(made.steps) if step.verb == "finetune"]
            tried += [step.options["lr"] for step in steps if step.options.get("ensemble") != "laplace"]
    assert len(tried) > 20 and set(tried) == {"0.001,0.01"}


def test_members_are_averaged_in_rows_of_pruned_members_alone() -> None:
    """Rivals are their members as they were trained: their authors average no weights."""
    workshop = Workshop(*("vit.st", {0: 4, 1: 4}, [0, 1], "train", "val", "ood", Path("out")))
    merges: dict[object, set[str]] = {}
    for name, make in MAKERS.items():
        for made in make(workshop):
            for fusion in (step for step in made.steps if step.verb == "fuse"):
                merges.setdefault(fusion.options.get("merge"), set()).add(name)
    pruned = {"whole-avg", "whole-auto", "whole-late", "whole-three"}
    pruned |= {"circuits", "taylor", "circuits-tuned", "taylor-tuned"}
    assert merges.keys() == {None, "none"}
    assert merges[None] == pruned
    assert {"deep", "deep-random", "batch-ensemble", "packed", "heads"} < merges["none"]


def test_a_deep_ensemble_starts_from_the_checkpoint_with_new_classifiers_where_there_are_any() -> None:
    def starts(row: str, has_classifier: bool) -> set[object]:
        return {step.options.get("init") for step in trainings(row, 0, has_classifier)}

    assert starts("deep", True) == {"head"}
    assert starts("deep", False) == {None}
    assert starts("deep-random", True) == starts("deep-random", False) == {"random"}


@pytest.mark.parametrize("asked", [None, 5000, 700, 150, 90])
def test_each_smaller_study_says_what_is_left_out_and_nothing_else(asked: int | None) -> None:
    scales = list(smaller(Scale(rows=["whole-avg"], approx=None, samples=asked)))
    for before, after in itertools.pairwise(scales):
        assert len(after.cut) == len(before.cut) + 1
        assert (before.rows, before.approx, before.samples) != (after.rows, after.approx, after.samples)
        if after.samples != before.samples:
            assert f"takes {after.samples} samples" in after.cut[-1]
    assert scales[-1].samples == min(asked or 150, 150)
