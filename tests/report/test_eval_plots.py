"""The pictures of an eval as files: which there are, that each shows something, and that bytes repeat."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.report.chart import COLOURS
from hydractl.report.eval_plots import draw_picture, pictures, possible_files
from tests.report.examples import HOSTILE, everything, sample, without_values

pytest.importorskip("matplotlib")


def drawn(document: dict[str, Any], *kinds: str) -> dict[str, bytes]:
    found = {}
    for name, figure, heading in pictures(document):
        if not kinds or figure.kind in kinds:
            handle = io.BytesIO()
            draw_picture(figure, heading, handle)
            found[name] = handle.getvalue()
    return found


@pytest.fixture(scope="module")
def everything_drawn() -> dict[str, bytes]:
    return drawn(everything())


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def count(picture: bytes, colour: str) -> int:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels(picture) - wanted).sum(axis=2) < 12).sum())


def test_names_are_fixed_and_known_beforehand(everything_drawn: dict[str, bytes]) -> None:
    of_all = ["risk-coverage.png", "cost-auroc.png", "cost-accuracy.png", "diversity.png", "corruptions.png"]
    kinds = ("reliability", "scores", "roc", "heads")
    of_models = [f"{kind}.{name}.png" for name in ("base", "taylor", "hydra") for kind in kinds]
    of_models.insert(of_models.index("heads.base.png") + 1, "training.base.png")
    assert list(everything_drawn) == [*of_all, *of_models, "training.hydra.png"]
    assert set(everything_drawn) <= set(possible_files(["base", "taylor", "hydra"]))


def test_every_file_shows_a_picture(everything_drawn: dict[str, bytes]) -> None:
    for name, picture in everything_drawn.items():
        seen = pixels(picture)
        assert seen.shape[0] > 150 and seen.shape[1] > 350, name
        assert (seen.sum(axis=2) < 3 * 255).mean() > 0.01 and len(np.unique(seen @ [1, 256, 65536])) > 20, name
        for edge in (seen[0], seen[-1], seen[:, 0], seen[:, -1]):  # nothing is cut off
            assert (edge == 255).all(), name


def test_series_have_their_colours(everything_drawn: dict[str, bytes]) -> None:
    for place in range(3):
        assert count(everything_drawn["risk-coverage.png"], COLOURS[place]) > 100
        assert count(everything_drawn["roc.hydra.png"], COLOURS[place + 1]) > 100
    assert count(everything_drawn["roc.hydra.png"], COLOURS[5]) == 0
    heads = everything()["models"]
    filled = [count(everything_drawn[f"heads.{name}.png"], COLOURS[0]) for name in ("base", "hydra")]
    kept = [sum(len(k) for site in heads[i]["heads"] for k in site["kept"]) for i in (0, 2)]
    assert filled[1] / filled[0] == pytest.approx(kept[1] / kept[0], rel=0.2)


def test_no_date_and_the_same_bytes_again(everything_drawn: dict[str, bytes]) -> None:
    again = drawn(everything(), "roc", "heads", "cost-auroc")
    assert again and all(everything_drawn[name] == picture for name, picture in again.items())
    for picture in everything_drawn.values():
        kinds, at = [], 8
        while at < len(picture):
            length, kind = struct.unpack(">I4s", picture[at : at + 8])
            kinds.append(kind.decode())
            at += length + 12
        assert set(kinds) <= {"IHDR", "pHYs", "IDAT", "IEND"}


def test_null_and_bare_rows_leave_out_what_they_have_no_numbers_for() -> None:
    assert drawn(without_values(everything())) == {}
    assert list(drawn(sample({"one": 1}, sets={}, rounds=0))) == [
        *("risk-coverage.png", "cost-accuracy.png", "reliability.one.png", "heads.one.png")
    ]


def test_hostile_names_make_safe_files_of_their_own() -> None:
    names = [*HOSTILE, "a/b", "a-b", "A-B", "", "...", "CON", "é"]
    found = possible_files(names)
    assert len({name.lower() for name in found}) == len(found)
    for name in found:
        assert "/" not in name and not name.startswith(".") and len(name.encode()) < 120 and name.isascii()
    pictures_of = drawn(sample(dict.fromkeys(HOSTILE, 1), n=60, rounds=0), "roc", "risk-coverage")
    assert len(pictures_of) == 1 + len(HOSTILE)  # names with dollar signs are no formulas


def test_twenty_models_in_one_picture() -> None:
    found = drawn(sample({f"model-{n}": 1 for n in range(20)}, n=60, rounds=0), "risk-coverage", "cost-auroc")
    for picture in found.values():
        assert all(count(picture, colour) > 20 for colour in COLOURS)
