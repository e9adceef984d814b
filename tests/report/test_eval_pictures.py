"""The pictures of an eval: that they show the numbers of the document, and that bytes repeat."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from hydractl.files.eval_answer import OodDetection
from hydractl.report.eval_pictures import Reached, drawn_overview, pictures
from hydractl.report.pictures import Panel, figure_of, page_images, styled
from tests.report.examples import (
    HOSTILE,
    SETS,
    answer_of,
    everything,
    sample,
    study_of,
    without_values,
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return everything()


def on_axes(panel: Panel) -> Axes:
    """What a panel draws, to be read back."""
    with styled():
        axes = Figure().subplots()
        panel.draw(axes)
    return axes


def points(axes: Axes) -> list[list[float]]:
    return [line.get_xydata().tolist()[0] for line in axes.lines if is_point(line)]


def is_point(line: Line2D) -> bool:
    return line.get_marker() == "o" and line.get_markersize() < 10


def measured(auroc: float, fpr95: float | None = None) -> OodDetection:
    """Means over OOD sets, equal ones unless two are named."""
    means = {"auroc": float(auroc), "fpr95": float(auroc if fpr95 is None else fpr95)}
    return OodDetection.model_validate({"ood_avg": means})


# --- what they show ---------------------------------------------------------------------------------------------------


def test_the_overview_has_a_named_point_and_a_whisker_for_each_row(document: dict[str, Any]) -> None:
    for panel, key in zip(pictures(answer_of(document))["overview"].panels, ("auroc", "fpr95"), strict=True):
        axes = on_axes(panel)
        rows = document["models"]
        ratios = [row["cost"]["macs"] / row["cost"]["single_macs"] for row in rows]
        assert points(axes) == [[ratio, row["ood_avg"][key]] for ratio, row in zip(ratios, rows, strict=True)]
        assert [text.get_text() for text in axes.texts] == [row["name"] for row in rows]
        wanted = [row["ci"][f"ood_avg.{key}"] for row in rows if f"ood_avg.{key}" in row["ci"]]
        assert [ends.get_segments()[0][:, 1].tolist() for ends in axes.collections] == wanted


def test_the_model_of_a_study_to_use_has_a_ring(document: dict[str, Any]) -> None:
    study = study_of(document, used="taylor")
    axes = on_axes(pictures(answer_of(document), study)["overview"].panels[0])
    (ring,) = [line for line in axes.lines if line.get_marker() == "o" and not is_point(line)]
    assert ring.get_ydata() == [document["models"][1]["ood_avg"]["auroc"]]
    assert [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"] == ["taylor"]


def test_lines_are_the_single_model_with_both_scores(document: dict[str, Any]) -> None:
    axes = on_axes(pictures(answer_of(document), study_of(document, used="hydra"))["overview"].panels[1])
    assert [y for _, y in points(axes)] == [row["ood_avg"]["fpr95"] for row in document["models"]]
    assert {"base, MSP", "base, msp"} < {text.get_text() for text in axes.texts}


@pytest.mark.fault(103)
def test_every_one_of_twenty_models_is_named_beside_its_point() -> None:
    draw = np.random.default_rng(0)
    models = [Reached(f"model-{n}", 1 + draw.random(), measured(*draw.random(2))) for n in range(20)]
    picture = drawn_overview(models, {}, "")
    assert picture is not None
    for panel in picture.panels:
        names = [text.get_text() for text in on_axes(panel).texts]
        assert sorted(names) == sorted(model.name for model in models)


@pytest.mark.parametrize("value", [0.9, 0.99])
def test_no_name_covers_another_one_or_anything_drawn(value: float) -> None:
    """Four models beside each other, on a line, and twenty more in a corner."""
    models = [Reached(f"model-{n}", 1 + n / 100, measured(value + n / 1000)) for n in range(4)]
    models += [Reached(f"other-{n}", 3.0, measured(1.0)) for n in range(16)]
    picture = drawn_overview(models, {"model-0, vim": measured(value)}, "")
    assert picture is not None
    with styled():
        figure = figure_of(picture.panels[0])
        figure.draw_without_rendering()
        renderer = FigureCanvasAgg(figure).get_renderer()
        axes = figure.axes[0]
        boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]  # without the line to its point
    boxes.sort(key=lambda box: box.y0)
    for index, box in enumerate(boxes):
        assert box.x0 > axes.bbox.x1 and box.y0 > 0
        assert all(box.y0 >= other.y0 + 0.6 * other.height for other in boxes[:index])


@pytest.mark.parametrize("seed", range(3))
def test_no_two_lines_to_names_cross(seed: int) -> None:
    draw = np.random.default_rng(seed)
    models = [Reached(f"model-{n}", 1 + 2 * draw.random(), measured(0.98 + draw.random() / 1000)) for n in range(9)]
    picture = drawn_overview(models, {"one, MSP": measured(0.8)}, "")
    assert picture is not None
    axes = on_axes(picture.panels[0])
    to_fractions = axes.transData + axes.transAxes.inverted()
    lines = [(to_fractions.transform(text.xy), np.array(text.xyann)) for text in axes.texts]
    for index, one in enumerate(lines):
        for other in lines[:index]:
            apart = on_one_side(one, *other) or on_one_side(other, *one)
            assert apart


def on_one_side(line: Any, start: Any, end: Any) -> bool:
    """Whether two points lie on the same side of a line, or on it."""
    (x, y), (x_end, y_end) = line
    sides = [(x_end - x) * (point[1] - y) - (y_end - y) * (point[0] - x) for point in (start, end)]
    return bool(np.prod(sides) >= -1e-12)


def test_reliability_is_drawn_from_the_bins_of_the_first_and_the_last_row(document: dict[str, Any]) -> None:
    panels = pictures(answer_of(document))["reliability"].panels
    for panel, row in zip(panels, (document["models"][0], document["models"][-1]), strict=True):
        diagram = on_axes(panel)
        curve = row["curves"]["reliability"]
        filled = [i for i, n in enumerate(curve["n"]) if n]
        assert points(diagram) == [[curve["confidence"][i], curve["accuracy"][i]] for i in filled]
        assert diagram.lines[0].get_xydata().tolist() == [[0, 0], [1, 1]]
        ends = [whisker.get_segments()[0].tolist() for whisker in diagram.collections]
        assert ends == [[[curve["confidence"][i], curve[key][i]] for key in ("low", "high")] for i in filled]
        assert diagram.get_title() == f"{row['name']}: ECE {row['id']['ece']:.3f}"


def test_scores_are_shares_of_each_set(document: dict[str, Any]) -> None:
    row = document["models"][2]
    panels = pictures(answer_of(document))["scores"].panels
    for panel, name in zip(panels, SETS, strict=True):
        axes = on_axes(panel)
        for patch, counts in zip(
            axes.patches, (row["curves"]["scores"]["id"], row["curves"]["scores"][name]), strict=True
        ):
            values, edges, _ = patch.get_data()
            assert values == pytest.approx(np.array(counts) / sum(counts))
            assert list(edges) == row["curves"]["scores"]["edges"]
        assert axes.lines[0].get_xdata() == [-0.6, -0.6]  # the threshold, which is one on this score
        assert axes.get_title() == f"{name} (n = {row['ood'][name]['n']}): AUROC {row['ood'][name]['auroc']:.3f}"
    del document["models"][2]["threshold"]
    assert not on_axes(pictures(answer_of(document))["scores"].panels[0]).lines


def long_names() -> dict[str, Any]:
    """Long names everywhere, and many samples."""
    sets = {f"a-set-of-data-with-a-long-name-{n}": None for n in range(7)}
    found = sample({f"a-model-with-a-long-name-{n}": 3 for n in range(3)}, sets=sets, rounds=0)
    for row in found["models"]:
        row["id"]["n"] = 100_000
        row["curves"]["reliability"]["n"] = [10_000 * n for n in row["curves"]["reliability"]["n"]]
        for entry in row["ood"].values():
            entry["n"] = 50_000
    return found


@pytest.mark.long
@pytest.mark.parametrize("make", [everything, long_names])
def test_texts_stay_inside_their_picture(make: Any) -> None:
    for kind, one in pictures(answer_of(make())).items():
        for panel in one.panels:
            with styled():
                figure = figure_of(panel)
                figure.draw_without_rendering()
                drawn = figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
            wide, tall = figure.get_size_inches()
            assert min(drawn.x0, drawn.y0, wide - drawn.x1, tall - drawn.y1) > -0.01, kind


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_date_and_the_same_bytes_again() -> None:
    once, again = (page_images(pictures(answer_of(everything()))["overview"]) for _ in range(2))
    assert len(again) == 2 and once == again
    for address, _ in once:
        assert b"dc:date" not in base64.b64decode(address.partition(",")[2])


def test_null_and_bare_rows_leave_out_what_they_have_no_numbers_for() -> None:
    assert not pictures(answer_of(without_values(everything())))
    assert list(pictures(answer_of(sample({"one": 1}, sets={}, rounds=0)))) == ["reliability"]


@pytest.mark.long
@pytest.mark.fault(40, 57)
def test_hostile_names_are_drawn() -> None:
    found = pictures(answer_of(sample(dict.fromkeys(HOSTILE, 1), n=60, rounds=0)))
    assert len(found) == 3 and all(map(page_images, found.values()))  # names with dollar signs are no formulas
