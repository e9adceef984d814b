"""Maps and tables of heads on a terminal: what they show, and that every line fits."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console, RenderableType

from hydractl.report.rich_parts import KeptMap
from hydractl.report.terminal import render
from hydractl.report.texts import short_names


def console(width: int = 80, colors: Any = None, encoding: str = "utf-8", **more: Any) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(file=file, width=width, color_system=colors, force_terminal=colors is not None, legacy_windows=False,
                   **{"no_color": False, **more})  # fmt: skip


def drawn(thing: RenderableType, screen: Console) -> list[str]:
    return ["".join(s.text for s in line).rstrip() for line in screen.render_lines(thing, pad=False)]


CLIP = [f"{tower}transformer.resblocks.{n}.attn" for tower in ("visual.", "") for n in range(24)]


def test_short_names_stay_different() -> None:
    assert short_names(CLIP, 36) == CLIP
    assert short_names(CLIP[:24], 20)[:2] == ["resblocks.0", "resblocks.1"]
    assert short_names(CLIP[:24], 9)[-1] == "23"
    assert short_names(CLIP, 31)[23:25] == ["visual.transformer.resblocks.23", "transformer.resblocks.0"]
    assert short_names(["some.long.one", "another.one.10"], 8) == ["…ong.one", "….one.10"]
    assert short_names(["left.long.one.x", "right.long.one.y"], 4) == ["…e.x", "…e.y"]
    assert short_names(["bright", "right", "x.right"], 5) == ["0 …ht", "1 …ht", "2 …ht"]
    for width in (12, 20, 31):
        short = short_names(CLIP, width)
        assert len(set(short)) == len(CLIP) and max(map(len, short)) <= width
    assert short_names([], 5) == []


def test_scores_show_numbers_where_they_fit_and_else_the_order() -> None:
    document = {"schema": "hydractl.scores/1", "method": "taylor", "sites": {"s.0": [0.25, None], "s.1": [1, 2]}}
    lines = drawn(render(document, 80), console())  # type: ignore[arg-type]
    assert lines[0] == "importance (taylor), higher = keep"
    assert [line.split() for line in lines[-2:]] == [["s.0", "0.250", "-"], ["s.1", "1.00", "2.00"]]
    wide = {**document, "sites": {f"blocks.{n}.attn": [n / 7 + h % 7 for h in range(12)] for n in range(12)}}
    narrow = drawn(render(wide, 80), console(80))  # type: ignore[arg-type]
    assert narrow[-3].split() == ["blocks.11.attn", *["0", "7", "1", "8", "2", "9", "3", "10", "4", "11", "5", "6"]]
    needed = int(re.findall(r"a terminal of (\d+) columns", narrow[-1])[0])
    shown = drawn(render(wide, needed), console(needed))  # type: ignore[arg-type]
    assert needed <= 120 and shown[-11].split()[1] == "0.143" and max(map(len, shown)) == needed


def test_a_circuit_lists_its_removals() -> None:
    after = {"correct": 1, "n_id": 2, "two_u": None, "n_ood": 0, "score": 0.5}
    removed = [("s.1", 2), ("s.0", 0), ("s.1", 0)]
    steps = [{"step": n, "site": s, "head": h, **after} for n, (s, h) in enumerate(removed, start=1)]
    document: dict[str, Any] = {"schema": "hydractl.circuit/1", "objective": "acc", "base": after, "removed": steps}
    both = {"schema": "hydractl.circuits/1", "circuits": [document, {**document, "objective": "avg"}]}
    lines = drawn(render(both, 80), console())  # type: ignore[arg-type]
    assert lines[0] == "circuit for acc" and "circuit for avg" in lines
    assert [line.split()[:3] for line in lines[-3:]] == [["1", "s.1", "2"], ["2", "s.0", "0"], ["3", "s.1", "0"]]


def test_kept_heads() -> None:
    entries = [{"site": "a", "heads": 3, "kept": [0, 2]}, {"site": "bb", "heads": None, "kept": [1]}]
    assert drawn(KeptMap(entries), console()) == ["a   ■·■  2/3", "bb    1/?"]
    assert drawn(KeptMap(entries), console(encoding="ascii")) == ["a   #.#  2/3", "bb    1/?"]
    assert drawn(KeptMap([]), console()) == []
