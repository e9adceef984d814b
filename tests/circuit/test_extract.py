"""``extract-circuit`` as a command: kill and resume, several processes, where heads may go, and what the file says."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.circuit.advice import gain_text
from hydractl.cli.app import main
from hydractl.files.circuit_answer import SearchedGain
from tests.circuit import searching
from tests.forked import team
from tests.running import quiet as run
from tests.running import read_json
from tests.spread import marked_long

BASE = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"
ID, OOD = 24, 16
"""Samples: three batches and two."""
SITES = [f"blocks.{i}.attn" for i in range(3)]
SEARCH = ["extract-circuit", "base.st", "--val", "id.npz", "--ood-val", "ood.npz", "--batch-size", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("circuit")
    before = os.getcwd()
    os.chdir(root)
    try:
        draw = np.random.default_rng(0)
        np.savez("id.npz", x=draw.integers(0, 256, (ID, 16, 16, 3), dtype=np.uint8), y=draw.integers(0, 5, ID))
        np.savez("ood.npz", x=draw.integers(0, 120, (OOD, 16, 16, 3), dtype=np.uint8))
        run("prune", BASE, "--method", "random", "--remove", "0", "-o", "base.st")
        # A limit of its own: without one, what is kept would depend on the memory that is free now.
        run(*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "--memory", "1G", "-o", "full.json")
    finally:
        os.chdir(before)
    return root


@pytest.fixture(autouse=True)
def inside(folder: Path, here: Path) -> None:
    for file in folder.iterdir():
        (here / file.name).symlink_to(file)


def removed(path: str) -> list[tuple[str, int]]:
    return [(step["site"], step["head"]) for step in read_json(path)["removed"]]


def same(name: str) -> None:
    for objective in ("acc", "ood", "avg"):
        assert Path(f"{name}.{objective}.json").read_bytes() == Path(f"full.{objective}.json").read_bytes()


def records(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines(keepends=True)[1:] if line.endswith("\n")]


def evaluated(*paths: str) -> Counter[tuple[str, int, int, int]]:
    return searching.evaluated([record for path in paths for record in records(path)])


# --- kill and resume --------------------------------------------------------------------------------------------------


@pytest.mark.fault(1, 2)
@pytest.mark.parametrize("lines_lost", [1, *marked_long([200])])
def test_every_line_of_a_journal_is_a_place_to_go_on_from(lines_lost: int) -> None:
    whole = Path("full.json.journal").read_bytes().splitlines(keepends=True)
    command = [*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "-o", "k.json", "--resume"]
    cut = len(whole) - min(lines_lost, len(whole) * 2 // 3)
    Path("k.json.journal").write_bytes(b"".join(whole[:cut]) + whole[cut][:10])
    run(*command)
    same("k")
    assert evaluated("k.json.journal") == evaluated("full.json.journal")


@pytest.mark.fault(4)
def test_a_larger_budget_goes_on_and_a_smaller_one_is_a_prefix() -> None:
    one = [*SEARCH, "--objective", "avg", "-o", "g.json"]
    run(*one, "--budget", "2")
    assert removed("g.json") == removed("full.avg.json")[:2]
    before = evaluated("g.json.journal")
    run(*one, "--budget", "6", "--resume")
    assert removed("g.json") == removed("full.avg.json")
    assert all(evaluated("g.json.journal")[key] == 1 for key in before)
    run(*one, "--budget", "3", "--resume")
    assert removed("g.json") == removed("full.avg.json")[:3]


@pytest.mark.fault(3)
@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["--batch-size", "16"], ["batch_size: 8 in the journal, 16 now"]),
        (["--limit", "10"], ["id: ", "ood: "]),
        (["--objective", "acc"], ["objective: "]),
        (["--dtype", "float64"], ["dtype: 'float32' in the journal, 'float64' now"]),
        (["--ood-score", "energy"], ["ood_score: "]),
        (["--sites", "1-2"], ["candidates: "]),
    ],
)
def test_another_search_is_refused(more: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("f.json.journal").write_bytes(Path("full.json.journal").read_bytes())
    command = dict(zip(SEARCH[2::2], SEARCH[3::2], strict=True)) | {"--objective": "acc,ood,avg", "--budget": "6"}
    command |= dict(zip(more[::2], more[1::2], strict=True))
    capsys.readouterr()
    flags = [part for pair in command.items() for part in pair]
    run("extract-circuit", "base.st", *flags, "-o", "f.json", "--resume", code=3)
    said = capsys.readouterr().err
    assert all(name in said for name in names) and said.count("  - ") in (0, len(names))


def test_what_is_there_is_not_overwritten_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    run(*SEARCH, "--budget", "1", "-o", "o.json")
    run(*SEARCH, "--budget", "1", "-o", "o.json", code=5)
    run(*SEARCH, "--budget", "1", "-o", "o.json", "--dry-run", code=5)
    os.unlink("o.json")
    capsys.readouterr()
    run(*SEARCH, "--budget", "1", "-o", "o.json", code=5)
    assert "hint: add --resume to go on with it, or --force to start over" in capsys.readouterr().err
    run(*SEARCH, "--budget", "1", "-o", "o.json", "--force")
    Path("p.json").write_text("mine")
    run(*SEARCH, "--budget", "1", "-o", "p.json", "--resume", code=5)  # there is nothing to resume
    assert Path("p.json").read_text() == "mine"


@pytest.mark.fault(5)
def test_an_interruption_says_how_to_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from hydractl.circuit.search import GreedySearch

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GreedySearch, "_with_counts_over_all_data", interrupt)
        assert main([*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "-o", "i.json", "-q"]) == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2] == "error: interrupted"
    assert said[-1].startswith("hint: add --resume to the same command") and "i.json.journal" in said[-1]
    run(*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "-o", "i.json", "--resume")
    same("i")


@pytest.mark.fault(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"correct": ', '"correct": 100000'),
        ('"id": [', f'"id": [{ID}, '),
    ],
)
def test_a_damaged_figure_of_a_journal_is_refused(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("full.json.journal").read_text().splitlines(keepends=True)
    damaged = next(i for i, line in enumerate(lines) if old in line and i > 0)
    lines[damaged] = lines[damaged].replace(old, new, 1)
    Path("k.json.journal").write_text("".join(lines[:-2]))
    run(*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "-o", "k.json", "--resume", code=3)
    assert "k.json.journal is broken" in capsys.readouterr().err
    assert not Path("k.acc.json").exists()


def test_ood_samples_are_made_of_the_id_samples_where_there_are_no_others() -> None:
    command = ["extract-circuit", "base.st", "--val", "id.npz", "--objective", "avg", "--budget", "1"]
    run(*command, "--ood-val", "auto", "-o", "auto.json")
    run(*command, "--ood-val", "id.npz?ood=auto", "-o", "suffix.json")
    assert Path("auto.json").read_bytes() == Path("suffix.json").read_bytes()
    np.savez("other.npz", x=255 - np.load("id.npz")["x"])
    run(*command, "--ood-val", "other.npz?ood=jigsaw", "-o", "other.json")
    seen = [(one["as"], one["n"]) for one in read_json("other.json")["seen"]]
    assert seen == [("id", ID), ("ood", ID), ("ood", ID)]  # the jigsaws, and the images they were made of
    run("prune", "base.st", "--circuit", "other.json", "-o", "p.st")
    run("eval", "p.st", "--test", "id.npz?ood=noise", "-o", "e.json")  # other images than those it was chosen with
    run("eval", "p.st", "--test", "other.npz", "-o", "f.json", code=3)


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.fault(37, 38)
def test_two_processes_give_the_bytes_of_one_and_one_goes_on_where_two_were_killed() -> None:
    command = [*SEARCH, "--objective", "acc,ood,avg", "--budget", "6", "-o", "two.json"]
    ranks = team(2, [*command, "-q"])
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0][0].split() == ["two.acc.json", "two.ood.json", "two.avg.json"] and said[1] == ("", "")
    same("two")
    # The first process alone keeps a journal: of its own candidates, and of every removal.
    assert sorted(str(path) for path in Path().glob("two.*")) == [
        "two.acc.json", "two.avg.json", "two.json.journal", "two.ood.json",
    ]  # fmt: skip
    assert set(evaluated("two.json.journal")) < set(evaluated("full.json.journal"))
    whole = Path("two.json.journal").read_bytes().splitlines(keepends=True)
    Path("two.json.journal").write_bytes(b"".join(whole[:40]) + b'{"of"')
    for objective in ("acc", "ood", "avg"):
        os.unlink(f"two.{objective}.json")
    run(*command, "--resume")
    same("two")
    assert set(evaluated("two.json.journal").values()) == {1}


# --- where heads may go -----------------------------------------------------------------------------------------------


def test_heads_of_some_sites_only() -> None:
    run(*SEARCH, "--sites", "0,2", "--budget", "3", "-o", "s.json")
    assert {site for site, _ in removed("s.json")} <= {SITES[0], SITES[2]}
    assert "start_mask" not in read_json("s.json")


def test_a_start_mask_counts_for_the_budget() -> None:
    mask = {"schema": "hydractl.mask/1", "sites": {path: {"heads": 3, "kept": [0, 2]} for path in SITES}}
    Path("m.json").write_text(json.dumps(mask))
    run(*SEARCH, "--start-mask", "m.json", "--budget", "5", "-o", "s.json")
    document = read_json("s.json")
    assert document["budget"] == 5 and len(document["removed"]) == 2
    assert document["start_mask"]["sites"] == mask["sites"]
    assert all(head != 1 for _, head in removed("s.json"))
    run("prune", "base.st", "--mask", "m.json", "-o", "m.st")
    run("extract-circuit", "m.st", *SEARCH[2:], "--budget", "2", "-o", "again.json")
    assert removed("again.json") == removed("s.json")
    run("prune", "base.st", "--circuit", "s.json", "-o", "s.st")
    kept = [len(entry["kept"]) for entry in read_json("s.mask.json")["sites"].values()]
    assert sum(kept) == 9 - 5


@pytest.mark.fault(24)
def test_a_budget_below_the_heads_that_a_circuit_begins_without(capsys: pytest.CaptureFixture[str]) -> None:
    mask = {"schema": "hydractl.mask/1", "sites": {path: {"heads": 3, "kept": [0, 2]} for path in SITES}}
    Path("m.json").write_text(json.dumps(mask))
    run(*SEARCH, "--start-mask", "m.json", "--budget", "5", "-o", "s.json")
    prune = ["prune", "base.st", "--circuit", "s.json"]
    for budget in (["--remove", "2"], ["--remove", "2", "--sample-from", "2"], ["--keep", "3"]):
        run(*prune, *budget, "-o", "n.st", code=2)
        removes = 0 if "--keep" in budget else 2
        said = capsys.readouterr().err
        assert f"error: s.json begins with 3 heads gone, more than the {removes} to be removed" in said
        assert not Path("n.st").exists()
    run(*prune, "--remove", "3", "-o", "p.st")
    assert read_json("p.mask.json")["sites"] == mask["sites"]
    shared = ["--share-from", "s.json", "--share-sites", "1"]
    run(*SEARCH, *shared, "--budget", "2", "-o", "n.json", code=3)
    assert "error: s.json begins with 3 heads gone, more than the 2 of this search" in capsys.readouterr().err
    run(*SEARCH, *shared, "--budget", "4", "-o", "t.json")
    gone = {tuple(head) for head in [*removed("s.json")[:1], *((path, 1) for path in SITES)] if head[0] == SITES[0]}
    start = read_json("t.json")["start_mask"]["sites"]
    assert gone == {(path, head) for path in SITES for head in range(3) if head not in start[path]["kept"]}


def test_leading_sites_shared_with_a_circuit() -> None:
    run(*SEARCH, "--share-from", "full.avg.json", "--share-sites", "1", "--budget", "5", "--objective", "acc",
        "-o", "s.json")  # fmt: skip
    leading = {head for head in removed("full.avg.json")[:5] if head[0] == SITES[0]}
    document = read_json("s.json")
    gone = {(p, h) for p, e in document.get("start_mask", {"sites": {}})["sites"].items() for h in range(3)
            if h not in e["kept"]}  # fmt: skip
    assert gone == leading
    assert all(site != SITES[0] for site, _ in removed("s.json"))
    assert len(removed("s.json")) + len(gone) == 5


@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "9"], "--budget removes all 9 heads: at least one must be left, so 8 can go at most"),
        (["--budget", "10"], "--budget 10 is outside 0..9, the heads present in the model"),
        (["--keep", "3"], "--keep removes no head"),
        (["--budget", "2", "--sites", "1-3"], "--sites 1-3: 1-3 is outside 0..2, the sites of the model"),
        (["--budget", "5", "--sites", "1"], "--budget asks for 5 more heads, and the sites that are meant have 3"),
        (
            ["--budget", "5", "--share-from", "full.acc.json", "--share-sites", "3"],
            "--share-sites 3 leaves no later site: the range is 1..2",
        ),
        (["--budget", "5", "--share-from", "full.acc.json"], "--share-from (flag) needs --share-sites"),
        (["--budget", "1", "--paired"], "--paired needs as many --ood-val as --val, two or more, not 1 and 1"),
        (
            ["--algorithm", "headmap", "--keep", "2", "--approx", "lazy:2"],
            "--approx has no effect with --algorithm headmap (flag)",
        ),
        (
            ["--algorithm", "headmap", "--budget", "3", "--keep", "2"],
            "--budget has no effect with --algorithm headmap (flag)",
        ),
        (["--algorithm", "headmap"], "extract-circuit --algorithm headmap needs --keep"),
        (
            ["--max-drop", "0.1", "--algorithm", "headmap", "--keep", "2"],
            "--max-drop has no effect with --algorithm headmap (flag)",
        ),
        (["--max-drop", "1"], "--max-drop must be less than 1, not 1.0 (flag)"),
        (
            ["--max-drop", "0.1", "--share-from", "full.acc.json", "--share-sites", "1"],
            "extract-circuit needs one of --budget, --keep",
        ),
    ],
)
def test_a_search_that_cannot_be(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*SEARCH, *more, "-o", "n.json", code=2)
    assert capsys.readouterr().err.splitlines()[0] == f"error: {message}"
    assert not Path("n.json").exists() and not Path("n.json.journal").exists()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_search_says_what_its_samples_gained(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gain" not in read_json("full.acc.json")
    gain, steps, base = (read_json("full.ood.json")[key] for key in ("gain", "removed", "base"))
    before, after = (one["two_u"] / (2 * ID * OOD) for one in (base, steps[-1]))
    assert (gain["before"], gain["after"]) == (before, after)
    assert gain["corrected"] == pytest.approx(1 - (1 - after) / (1 - before)) and gain["low"] == (
        gain["corrected"] < 0.2
    )
    run(*SEARCH, "--objective", "ood,avg", "--sites", "2", "--budget", "1", "-o", "low.json")
    low = read_json("low.ood.json")["gain"]
    assert low["low"]  # one head of one site of a model with random weights
    told = f"ood: validation AUROC {low['before']:.3f} -> {low['after']:.3f}, {low['corrected']:.0%} of the wrongly"
    said = capsys.readouterr().err
    assert f"warning: {told}" in said and "compare them on a set of its own" in said
    same = removed("low.ood.json") == removed("low.avg.json")
    assert ("the same heads are removed: ood and avg" in said) == same


def test_a_search_that_lost_says_so() -> None:
    told = gain_text("avg", SearchedGain(before=0.705, after=0.695, corrected=-0.03, low=True))
    assert told.startswith("avg: validation AUROC 0.705 -> 0.695, more pairs wrongly ordered than before; where less")


def test_the_loss_and_its_unit_in_the_file() -> None:
    run(*SEARCH, "--objective", "nll", "--budget", "1", "-o", "l.json")
    document = read_json("l.json")
    step = document["removed"][0]
    assert step["score"] == -step["nll"] * document["loss_unit"] / step["n_id"]
    assert step["two_u"] is not None and step["n_ood"] == OOD


def test_the_plan_of_a_dry_run_is_that_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*SEARCH, "--objective", "acc,avg", "--budget", "4"]
    assert main([*command, "-o", "d.json", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["evaluations_per_objective"] == 9 + 8 + 7 + 6
    assert plan["seconds"] > 0 and plan["memory_bytes"] > 0
    assert not list(Path().glob("d.*"))
    assert main([*command, "-o", "d.json"]) == 0
    said = capsys.readouterr().err
    assert " before bounds; " in said
    # 30 evaluations of 3 blocks, the ID samples for acc and the OOD ones as well for avg
    assert f"of the naive {30 * 3 * (ID + ID + OOD):,}" in said


@pytest.mark.long
def test_a_search_within_a_drop_ends_before_it() -> None:
    drop = [*SEARCH, "--objective", "acc,ood,avg", "--max-drop", "0.08", "-o", "m.json"]
    run(*SEARCH, "--objective", "acc,ood,avg", "--budget", "8", "-o", "all.json")
    run(*drop)
    for objective in ("acc", "ood", "avg"):
        document, plain = read_json(f"m.{objective}.json"), read_json(f"all.{objective}.json")
        most = document["base"]["correct"] - Fraction("0.08") * ID
        within = list(itertools.takewhile(lambda step, most=most: step["correct"] >= most, plain["removed"]))  # type: ignore[misc]
        assert document["removed"] == within and document["max_drop"] == 0.08
        assert document.get("ended") == ("max_drop" if len(within) < 8 else None)


@pytest.mark.fault(32)
def test_memory_that_does_not_suffice_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(*SEARCH, "--objective", "avg", "--budget", "2", "--memory", "50K", "-o", "small.json")
    assert "the data do not fit into --memory" in capsys.readouterr().err
    assert removed("small.json") == removed("full.avg.json")[:2]


# --- other ways to search ---------------------------------------------------------------------------------------------


def test_an_approximation_says_so_and_is_a_search_of_its_own() -> None:
    approx = "lazy:3"
    command = [*SEARCH, "--objective", "acc,avg", "--budget", "3", "--approx", approx, "-o", "a.json"]
    run(*command)
    document = read_json("a.avg.json")
    assert document["approx"] == approx and document["algorithm"] == "greedy"
    assert document["source"]["settings"]["approx"] == approx
    # The counts are those of all the data, whatever chose the head.
    assert all((step["n_id"], step["n_ood"]) == (ID, OOD) for step in document["removed"])
    run(*["lazy:2" if word == approx else word for word in command], "--resume", code=3)


def test_headmap_is_an_algorithm_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run(*SEARCH, "--algorithm", "headmap", "--keep", "2", "-o", "h.json", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["evaluations_per_objective"] == 9  # each head once
    run(*SEARCH, "--algorithm", "headmap", "--keep", "2", "-o", "h.json")
    document = read_json("h.json")
    assert document["algorithm"] == "headmap" and document["objective"] == "nll"
    assert sorted(site for site, _ in removed("h.json")) == SITES  # one head of each site
    scores = [step["score"] for step in document["removed"]]
    assert scores == sorted(scores, reverse=True)
    run("prune", "base.st", "--circuit", "h.json", "-o", "h.st")
    assert [len(entry["kept"]) for entry in read_json("h.mask.json")["sites"].values()] == [2, 2, 2]
    capsys.readouterr()
    for part in (["--remove", "2"], ["--remove", "1", "--sample-from", "2"]):  # it ranks no head against another site's
        run("prune", "base.st", "--circuit", "h.json", *part, "-o", "part.st", code=2)
        assert "circuit of headmap, which removes its 3 heads together: " in capsys.readouterr().err
    run(*SEARCH, "--budget", "2", "--share-from", "h.json", "--share-sites", "1", "-o", "part.json", code=2)
    assert "1 of them would stay" in capsys.readouterr().err
    run(*SEARCH, "--algorithm", "headmap", "--keep", "2", "--sites", "0-1", "-o", "p.json")  # of two sites of three
    assert read_json("p.json")["budget"] == len(removed("p.json")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--val", "id.npz"], "are the same samples"),
        (["--ood-val", "id.npz"], "--ood-val id.npz and --val id.npz are the same samples"),
    ],
)
def test_sets_that_do_not_fit_each_other_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SEARCH, "--budget", "1", "-o", "x.json", *options]) in (2, 3)
    assert message in capsys.readouterr().err
