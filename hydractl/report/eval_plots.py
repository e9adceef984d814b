"""The pictures of an eval as files: which there are, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from hydractl.report.chart import Figure
from hydractl.report.chart_png import draw
from hydractl.report.eval_comparisons import comparison_figures
from hydractl.report.eval_figures import model_figures
from hydractl.report.eval_names import file_names, shown_name

OF_MODEL = ("reliability", "scores", "roc", "heads", "training")
OF_ALL = ("risk-coverage", "cost-auroc", "cost-accuracy", "diversity", "corruptions")


def possible_files(names: Sequence[str]) -> list[str]:
    """Every file name that pictures of these rows can have; which of them are made depends on what was measured."""
    return [f"{kind}.{name}.png" for name in file_names(names) for kind in OF_MODEL] + [
        f"{kind}.png" for kind in OF_ALL
    ]


def pictures(document: Mapping[str, Any]) -> Iterator[tuple[str, Figure, str]]:
    """File name, picture and heading of each that this document has numbers for, those about all rows first."""
    rows = document["models"]
    for figure in comparison_figures(document):
        yield f"{figure.kind}.png", figure, ""
    for index, part in enumerate(file_names([row["name"] for row in rows])):
        for figure in model_figures(document, index):
            yield f"{figure.kind}.{part}.png", figure, figure.title or shown_name(rows[index]["name"])


def draw_picture(figure: Figure, heading: str, handle: IO[bytes]) -> None:
    """Draw one of :func:`pictures`."""
    draw(figure, handle, heading)
