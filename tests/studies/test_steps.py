"""The steps of a study: when they are done, which of them a file needs, and the script that makes them again."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hydractl.studies.plan import Plan
from hydractl.studies.rows import KINDS
from hydractl.studies.scale import Scale, smaller
from hydractl.studies.steps import Step, script
from tests.calls import study_request

DATA: dict[str, Any] = {
    "train": "train.npz",
    "val": "val.npz",
    "ood_val": ["ood.npz"],
    "test": "test.npz",
    "ood": ["noise=noise.npz"],
}


def planned(heads: dict[int, int], *rows: str, has_classifier: bool = True, **asked: Any) -> Plan:
    """A plan with these rows, of a model with so many heads by site."""
    scale = Scale(rows, approx=None, samples=None)
    plan = Plan(study_request(**DATA, **asked), scale, Path("out"), heads, [max(heads)], has_classifier)
    for name in rows:
        KINDS[name].make(plan)
    return plan


def test_every_step_stands_behind_those_whose_files_it_reads() -> None:
    plan = planned({0: 4, 1: 4, 2: 4}, *KINDS)
    assert [row.name.partition("@")[0] for row in plan.rows if "avg" not in row.name] == [
        name for name in KINDS if name != "whole-avg"
    ]
    written: set[str] = set()
    for one in plan.steps:
        files = {word.rpartition("=")[2] for word in one.words()}
        read = {file for file in files if file.startswith("out/")}
        written |= {str(path) for path in one.outputs}
        last_output = str(one.arguments["output"])
        assert read <= {*written, last_output}
    for row in plan.rows:
        assert row.model.text in {"model.st", *written}


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
    words = script([], Path(name), tmp_path)
    subprocess.run(["sh"], input=words, text=True, check=True, cwd="/")
    assert (folder / "choose").is_dir() and (folder / "test").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("part", "count"), [(1 / 3, 4), (1 / 100, 1), (1.0, 11)])
def test_a_share_of_the_heads_is_at_least_one_and_never_all(part: float, count: int) -> None:
    plan = planned({0: 4, 1: 4, 2: 4})
    assert plan.share(part) == count


def trainings(row: str, seed: int, has_classifier: bool = True) -> list[Step]:
    """The steps that make the members of one row of a study with that seed."""
    plan = planned({0: 4}, row, has_classifier=has_classifier, seed=str(seed))
    return [step for step in plan.steps if step.verb in ("finetune", "prune")]


def values(steps: Sequence[Step], name: str) -> list[object]:
    return [step.arguments.get(name) for step in steps]


@pytest.mark.parametrize("row", ["deep", "deep-random", "lora", "taylor"])
def test_studies_of_two_seeds_have_no_member_in_common(row: str) -> None:
    seeds = [values(trainings(row, seed), "seed") for seed in (0, 1, 2)]
    assert seeds == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    files = [[step.outputs for step in trainings(row, seed)] for seed in (0, 1)]
    assert files[0] == files[1]


def test_every_training_of_every_row_tries_the_same_learning_rates() -> None:
    plan = planned({0: 4}, *KINDS, lr="0.001,0.01")
    finetuned = [step for step in plan.steps if step.verb == "finetune"]
    tried = [step.arguments["lr"] for step in finetuned if "epochs" in step.arguments]
    assert len(tried) > 20 and all(rates == [0.001, 0.01] for rates in tried)
    assert len(finetuned) == len(tried) + 1  # that of laplace fits a posterior


def test_members_are_averaged_in_rows_of_pruned_members_alone() -> None:
    """Rivals are their members as they were trained: their authors average no weights."""
    merges: dict[object, set[str]] = {}
    for name in KINDS:
        plan = planned({0: 4, 1: 4}, name)
        for fusion in (step for step in plan.steps if step.verb == "fuse"):
            merges.setdefault(fusion.arguments.get("merge"), set()).add(name)
    pruned = {"whole-avg", "whole-auto", "whole-late", "whole-three"}
    pruned |= {"circuits", "taylor", "circuits-tuned", "taylor-tuned"}
    assert merges.keys() == {None, "none"}
    assert merges[None] == pruned
    assert {"deep", "deep-random", "batch-ensemble", "packed", "heads"} < merges["none"]


def test_a_deep_ensemble_starts_from_the_checkpoint_with_new_classifiers_where_there_are_any() -> None:
    def starts(row: str, has_classifier: bool) -> set[object]:
        return set(values(trainings(row, 0, has_classifier), "init"))

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
