"""Tables and maps of a terminal, by hand, and that every line fits."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from hydractl.files.verb_answers import FinetuneAnswer, RecipeSetting
from hydractl.report.tables import plain_table
from hydractl.report.terminal import render
from hydractl.report.texts import drawn_names
from tests.answers import result_of


def console(width: int = 80, colors: Any = None, encoding: str = "utf-8", **more: Any) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, color_system=colors, force_terminal=colors is not None, legacy_windows=False,
                   **{"no_color": False, **more})  # fmt: skip


def drawn(thing: RenderableType, screen: Console) -> list[str]:
    return ["".join(s.text for s in line).rstrip() for line in screen.render_lines(thing, pad=False)]


CLIP = [f"{tower}transformer.resblocks.{n}.attn" for tower in ("visual.", "") for n in range(24)]


def test_short_names_stay_different() -> None:
    assert drawn_names(CLIP, 36) == CLIP
    assert drawn_names(CLIP[:24], 10)[-1] == "…s.23.attn"
    assert drawn_names(["some.long.one", "another.one.10"], 8) == ["…ong.one", "….one.10"]
    assert drawn_names(["bright", "right", "x.right"], 4) == ["0 …t", "1 …t", "2 …t"]
    for width in (12, 20, 31):
        short = drawn_names(CLIP, width)
        assert len(set(short)) == len(CLIP) and max(map(len, short)) <= width
    assert drawn_names([], 5) == []


def test_scores_are_a_table_of_heads_in_as_many_parts_as_the_width_needs() -> None:
    document = {"schema": "hydractl.scores/1", "method": "taylor", "sites": {"s.0": [0.25, None, 3], "s.1": [1, 2]}}
    lines = drawn(render(result_of(document), 80), console())  # type: ignore[arg-type]
    assert lines[0] == "importance (taylor), higher = keep"
    assert [line.split() for line in lines[1:]] == [
        ["site", "0", "1", "2"],
        ["s.0", "0.250", "-", "3.00"],
        ["s.1", "1.00", "2.00"],
    ]
    wide = {**document, "sites": {f"blocks.{n}.attn": [n / 7 + h for h in range(12)] for n in range(12)}}
    for width, parts in ((160, 1), (80, 2)):
        shown = drawn(render(result_of(wide), width), console(width))  # type: ignore[arg-type]
        assert max(map(len, shown)) <= width and len(shown) == 1 + parts * 13
        assert shown[-1].split()[0] == "blocks.11.attn" and shown[-1].split()[-1] == "12.6"


def test_a_circuit_shows_when_each_head_went() -> None:
    after = {"correct": 1, "n_id": 2, "two_u": None, "n_ood": 0, "score": 0.5}
    removed = [("s.1", 2), ("s.0", 0), ("s.1", 0)]
    document: dict[str, Any] = {
        "schema": "hydractl.circuit/2",
        "objective": "acc",
        "sites": {"s.0": 2, "s.1": 3},
        "base": after,
        "removed": [{"step": n, "site": s, "head": h, **after} for n, (s, h) in enumerate(removed, start=1)],
        "start_mask": {"sites": {"s.1": {"heads": 3, "kept": [0, 2]}}},
    }
    both = {"schema": "hydractl.circuits/1", "circuits": [document, {**document, "objective": "avg"}]}
    lines = drawn(render(result_of(both), 80), console())  # type: ignore[arg-type]
    title = "circuit for acc: the step at which each head was removed (■ kept, - before)"
    table = [["site", "0", "1", "2"], ["s.0", "2", "■"], ["s.1", "3", "-", "1"]]
    assert lines[0] == title and [line.split() for line in lines[1:4]] == table
    second = lines.index(title.replace("acc", "avg"))
    assert [line.split() for line in lines[second + 1 : second + 4]] == table
    assert [line.split()[:3] for line in lines[-3:]] == [["1", "s.1", "2"], ["2", "s.0", "0"], ["3", "s.1", "0"]]


def test_kept_heads() -> None:
    sites = [{"site": "a", "heads": 3, "kept": [0, 2]}, {"site": "bb", "kept": [1]}]
    document = {"schema": "hydractl.info/2", "file": "a.mask.json", "holds": "hydractl.mask/2", "head_maps": [sites]}
    lines = drawn(render(result_of(document), 80), console())  # type: ignore[arg-type]
    assert lines[-2:] == ["a   ■·■  2/3", "bb    1/?"]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_column_that_no_row_knows_is_left_out() -> None:
    shown = drawn(
        plain_table("what it is", ("name", "a", "b", "c"), [["x", "-", "1", "-"], ["y", "-", "-", "2"]]), console()
    )
    assert [line.split() for line in shown] == [
        ["what", "it", "is"],
        ["name", "b", "c"],
        ["x", "1", "-"],
        ["y", "-", "2"],
    ]
    assert [line.split() for line in drawn(plain_table("", ("a", "b"), []), console())] == [["a", "b"]]


@pytest.mark.fault(73)
def test_a_training_without_validation_data_shows_no_dashes() -> None:
    epoch = {"steps": 1, "loss": 2.3, "val_accuracy": None, "val_nll": None}
    training = {"schema": "hydractl.finetune/2", "output": "a.st", "model": "a", "samples": 3, "steps": 2, "cost": {}}
    course = {"epochs": [epoch | {"epoch": n} for n in (1, 2)], "kept_epoch": 2, "stopped_early": False, "lr": 0.1}
    document = {**training, **course, "sha256": "ab"}
    shown = "\n".join(drawn(render(result_of(document), 80), console()))
    assert "loss" in shown and "2.3000" in shown
    assert "val" not in shown and "-" not in shown.split()

    recipe = {"lr": {"value": 0.1, "source": "flag"}, "ensemble": {"value": None, "source": "default"}}
    settings = {name: RecipeSetting.model_validate(setting) for name, setting in recipe.items()}
    plan = FinetuneAnswer.planned(**training, files_=None, recipe=settings)
    shown = "\n".join(drawn(render(plan, 80), console()))
    assert "lr" in shown.split() and "ensemble" not in shown


@pytest.mark.fault(73)
def test_an_eval_of_unlabelled_data_shows_no_dashes() -> None:
    row = {"name": "vit", "id": {"n": 20, "accuracy": None, "ece": None}, "diversity": {"id": {"mi": 0.25}}}
    shown = drawn(render(result_of({"schema": "hydractl.eval/2", "models": [row]}), 80), console())
    assert shown[:3] == ["in distribution (n = 20)", f"model{'mi':>19}", f"vit{'0.2500':>21}"]


def test_a_file_is_described_without_nulls_and_with_what_is_nested_in_parentheses() -> None:
    document = {
        "schema": "hydractl.info/2",
        "file": "vit.st",
        "holds": "hydractl.checkpoint/1",
        "calibration": {"bias": None, "fitted_on": {"n": 24, "spec": "val.npz"}, "temperature": 1.5},
        "stored": {"n": 300, "scores": "A" * 500},
        "source": {"verb": "finetune", "parent": {}, "history": [{"epoch": 1, "loss": 0.5}, None]},
    }
    page = io.StringIO()
    Console(file=page, width=120).print(render(result_of(document), 120))
    lines = [re.sub(" +", " ", line.strip()) for line in page.getvalue().splitlines()]
    assert "calibration fitted_on=(n=24, spec=val.npz), temperature=1.5" in lines
    assert "stored n=300, scores=(500 characters)" in lines
    assert "provenance" in lines
    assert "parent -" in lines and "history (epoch=1, loss=0.5), -" in lines
