"""The pictures of an eval: that they show the numbers of the document, which files there are, and that bytes repeat."""

from __future__ import annotations

import copy
import io
import struct
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from hydractl.report.eval_pictures import comparison_pictures, model_pictures, picture_files, possible_files
from hydractl.report.pictures import COLOURS, Panel, Picture, compose, point_look, save_png, styled
from tests.report.examples import HOSTILE, SETS, SITES, answer_of, everything, sample, without_values


def drawn(document: dict[str, Any], *kinds: str) -> dict[str, bytes]:
    found = {}
    for name, picture in picture_files(answer_of(document)):
        if not kinds or picture.kind in kinds:
            handle = io.BytesIO()
            save_png(picture, handle)
            found[name] = handle.getvalue()
    return found


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return everything()


def picture(document: dict[str, Any], kind: str, model: int | None = None) -> Picture:
    answer = answer_of(document)
    pictures = comparison_pictures(answer)
    if model is not None:
        pictures = list(model_pictures(answer, answer.models[model]))
    return next(shown for shown in pictures if shown.kind == kind)


def on_axes(panel: Panel) -> Axes:
    """What a panel draws, to be read back."""
    with styled():
        axes = Figure().subplots()
        panel.draw(axes)
    return axes


def lines(axes: Axes) -> list[Line2D]:
    """The lines that are in the legend."""
    return [line for line in axes.lines if not str(line.get_label()).startswith("_")]


# --- what they show ---------------------------------------------------------------------------------------------------


def test_reliability_is_drawn_from_the_bins(document: dict[str, Any]) -> None:
    diagram, counts = map(on_axes, picture(document, "reliability", 0).panels)
    curve = document["models"][0]["curves"]["reliability"]
    filled = [i for i, n in enumerate(curve["n"]) if n]
    wanted = [[curve["confidence"][i], curve["accuracy"][i]] for i in filled]
    assert diagram.lines[-1].get_xydata().tolist() == wanted
    assert diagram.lines[0].get_xydata().tolist() == [[0, 0], [1, 1]]
    ends = [segment.tolist() for segment in diagram.collections[0].get_segments()]
    assert ends == [[[curve["confidence"][i], curve[key][i]] for key in ("low", "high")] for i in filled]
    assert [bar.get_height() for bar in counts.patches] == curve["n"]
    assert [bar.get_x() for bar in counts.patches] == pytest.approx(curve["edges"][:-1])
    assert [text.get_text() for text in counts.texts] == [str(n) if n else "" for n in curve["n"]]


def test_roc_and_risk_coverage_curves_are_drawn_from_their_points(document: dict[str, Any]) -> None:
    row = document["models"][2]
    drawn = lines(on_axes(picture(document, "roc", 2).panels[0]))
    for line, (name, curve) in zip(drawn, row["curves"]["roc"].items(), strict=True):
        assert line.get_xydata().tolist() == [list(point) for point in zip(curve["fpr"], curve["tpr"], strict=True)]
        n, area = row["ood"][name]["n"], row["ood"][name]["auroc"]
        assert line.get_label() == f"{name} (n = {n}), AUROC {area:.3f}"
    drawn = lines(on_axes(picture(document, "risk-coverage").panels[0]))
    for line, row in zip(drawn, document["models"], strict=True):
        assert line.get_ydata().tolist() == row["curves"]["risk_coverage"]["risk"] and line.get_label() == row["name"]


def test_scores_are_shares_of_each_set(document: dict[str, Any]) -> None:
    row = document["models"][2]
    panels = picture(document, "scores", 2).panels
    for panel, name in zip(panels, SETS, strict=True):
        axes = on_axes(panel)
        for patch, counts in zip(
            axes.patches, (row["curves"]["scores"]["id"], row["curves"]["scores"][name]), strict=True
        ):
            values, edges, _ = patch.get_data()
            assert values == pytest.approx(np.array(counts) / sum(counts))
            assert list(edges) == row["curves"]["scores"]["edges"]
        assert axes.lines[0].get_xdata() == [-0.6, -0.6]  # the threshold, which is one on this score
    assert not on_axes(picture(document, "scores", 0).panels[0]).lines


def test_training_is_drawn_from_its_epochs(document: dict[str, Any]) -> None:
    told = document["models"][-1]["training"]
    loss, accuracy = map(on_axes, picture(document, "training", 2).panels)
    assert loss.get_xlabel() == "epoch (n = 80 to 120 steps)" and loss.get_ylabel() == "training loss, nats\n(n = 320)"
    assert accuracy.get_ylabel() == "validation accuracy\n(n = 50)"
    assert [line.get_label() for line in loss.lines] == [
        f"member {member}: epoch {n} of {n} kept" for member, n in enumerate((2, 2, 3))
    ]
    for axes, key in ((loss, "loss"), (accuracy, "val_accuracy")):
        for line, one in zip(axes.lines, told, strict=True):
            assert line.get_xydata().tolist() == [[entry["epoch"], entry[key]] for entry in one["epochs"]]
    single = on_axes(picture(document, "training", 0).panels[0])
    assert single.lines[0].get_label() == "epoch 1 of 1 kept" and single.get_xlabel() == "epoch (n = 40 steps)"


def test_heads_are_drawn_one_by_one(document: dict[str, Any]) -> None:
    axes = on_axes(picture(document, "heads", 2).panels[1])
    sites = document["models"][2]["heads"]
    kept = [(head, line) for line, site in enumerate(sites) for head in site["kept"][1]]
    removed = [(head, line) for line in range(len(SITES)) for head in range(8) if (head, line) not in kept]
    for patch, cells in zip(axes.patches, (kept, removed), strict=True):
        corners = patch.get_path().vertices.reshape(-1, 5, 2)[:, :4]
        assert corners.mean(axis=1) == pytest.approx(np.array(cells, dtype=float))
    assert axes.get_title(loc="left") == f"member 1: {len(kept)} of 48 heads kept"
    assert [text.get_text() for text in axes.texts] == [f"{len(site['kept'][1])}/8" for site in sites]


def test_sites_of_two_towers_are_named_apart(document: dict[str, Any]) -> None:
    found = copy.deepcopy(document)
    clip = [("visual.transformer.resblocks", "visual"), ("transformer.resblocks", "text")]
    found["models"][0]["heads"] = [
        {"site": f"{path}.{n}.attn", "tower": tower, "heads": 4, "kept": [[0, n]]}
        for path, tower in clip
        for n in (1, 2)
    ]
    axes = on_axes(picture(found, "heads", 0).panels[0])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["visual 1", "visual 2", "text 1", "text 2"]


def test_cost_has_a_point_and_a_whisker_for_each_row(document: dict[str, Any]) -> None:
    axes = on_axes(picture(document, "cost-accuracy").panels[0])
    for line, ends, row in zip(lines(axes), axes.collections, document["models"], strict=True):
        ratio = row["cost"]["macs"] / row["cost"]["single_macs"]
        assert line.get_xydata().tolist() == [[ratio, row["id"]["accuracy"]]]
        assert ends.get_segments()[0][:, 1].tolist() == row["ci"]["id.accuracy"]


def test_corruptions_begin_with_what_is_not_corrupted(document: dict[str, Any]) -> None:
    axes = on_axes(picture(document, "corruptions").panels[0])
    for line, row in zip(lines(axes), document["models"], strict=True):
        levels = [row["corruption_avg"][str(severity)]["accuracy"] for severity in range(1, 6)]
        assert line.get_ydata().tolist() == [row["id"]["accuracy"], *levels]


def test_twenty_series_differ_without_colour() -> None:
    found = sample({f"model-{n}": 1 for n in range(20)}, n=60, rounds=0)
    drawn = lines(on_axes(picture(found, "risk-coverage").panels[0]))
    assert len({(line.get_marker(), str(line._unscaled_dash_pattern)) for line in drawn}) == 20  # type: ignore[attr-defined]
    assert len({line.get_color() for line in drawn}) == len(COLOURS)


@pytest.mark.fault(103)
def test_points_of_twenty_rows_have_no_colour_and_marker_in_common() -> None:
    looks = [point_look(index) for index in range(20)]
    assert len({(look["color"], look["marker"]) for look in looks}) == 20


def long_names() -> dict[str, Any]:
    """Long names everywhere, and many samples."""
    sets = {f"a-set-of-data-with-a-long-name-{n}": None for n in range(7)}
    found = sample({f"a-model-with-a-long-name-{n}": 3 for n in range(3)}, sets=sets, rounds=0)
    for row in found["models"]:
        row["id"]["n"] = 100_000
        row["curves"]["reliability"]["n"] = [10_000 * n for n in row["curves"]["reliability"]["n"]]
        row["heads"] = [{**site, "site": f"visual.transformer.{site['site']}"} for site in row["heads"]]
        for entry in row["ood"].values():
            entry["n"] = 50_000
    return found


@pytest.mark.long
@pytest.mark.parametrize("make", [everything, long_names])
def test_texts_stay_inside_their_picture(make: Any) -> None:
    answer = answer_of(make())
    for one in [*comparison_pictures(answer), *model_pictures(answer, answer.models[2])]:
        for panels in [one.panels] if one.stacked else [(panel,) for panel in one.panels]:
            with styled():
                figure = compose(panels, 1)
                drawn = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
            wide, tall = figure.get_size_inches()
            assert min(drawn.x0, drawn.y0, wide - drawn.x1, tall - drawn.y1) > -0.01, one.kind


# --- files ------------------------------------------------------------------------------------------------------------


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def test_names_are_fixed_and_known_beforehand(document: dict[str, Any]) -> None:
    names = [name for name, _ in picture_files(answer_of(document))]
    of_all = ["risk-coverage.png", "cost-auroc.png", "cost-accuracy.png", "diversity.png", "corruptions.png"]
    kinds = ("reliability", "scores", "roc", "heads")
    of_models = [f"{kind}.{name}.png" for name in ("base", "taylor", "hydra") for kind in kinds]
    of_models.insert(of_models.index("heads.base.png") + 1, "training.base.png")
    assert names == [*of_all, *of_models, "training.hydra.png"]
    assert set(names) <= set(possible_files(["base", "taylor", "hydra"]))


@pytest.mark.long
def test_every_file_shows_a_picture(document: dict[str, Any]) -> None:
    """Every kind of picture, of a single model and of one of several members."""
    two = {**document, "models": [document["models"][0], document["models"][-1]]}
    for name, picture in drawn(two).items():
        seen = pixels(picture)
        assert seen.shape[0] > 150 and seen.shape[1] > 350, name
        assert (seen.sum(axis=2) < 3 * 255).mean() > 0.01 and len(np.unique(seen @ [1, 256, 65536])) > 20, name
        for edge in (seen[0], seen[-1], seen[:, 0], seen[:, -1]):  # nothing is cut off
            assert (edge == 255).all(), name


def test_no_date_and_the_same_bytes_again() -> None:
    once, again = (drawn(everything(), "risk-coverage", "heads") for _ in range(2))
    assert len(again) == 4 and once == again
    for picture in once.values():
        kinds, at = [], 8
        while at < len(picture):
            length, kind = struct.unpack(">I4s", picture[at : at + 8])
            kinds.append(kind.decode())
            at += length + 12
        assert set(kinds) <= {"IHDR", "pHYs", "IDAT", "IEND"}


def test_null_and_bare_rows_leave_out_what_they_have_no_numbers_for() -> None:
    assert not list(picture_files(answer_of(without_values(everything()))))
    names = [name for name, _ in picture_files(answer_of(sample({"one": 1}, sets={}, rounds=0)))]
    assert names == ["risk-coverage.png", "cost-accuracy.png", "reliability.one.png", "heads.one.png"]


@pytest.mark.fault(40, 57)
def test_hostile_names_make_safe_files_of_their_own() -> None:
    names = [*HOSTILE, "a/b", "a-b", "A-B", "", "...", "CON", "é"]
    found = possible_files(names)
    assert len({name.lower() for name in found}) == len(found)
    for name in found:
        assert "/" not in name and not name.startswith(".") and len(name.encode()) < 120 and name.isascii()


@pytest.mark.long
@pytest.mark.fault(40, 57)
def test_hostile_names_are_drawn() -> None:
    pictures_of = drawn(sample(dict.fromkeys(HOSTILE, 1), n=60, rounds=0), "roc", "risk-coverage")
    assert len(pictures_of) == 1 + len(HOSTILE)  # names with dollar signs are no formulas
