"""Pieces of HTML. Every text goes through :func:`words` or :func:`name`, so nothing in a document can become markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hydractl.report.chart import Figure
from hydractl.report.chart_svg import left_room, svg, swatch
from hydractl.report.eval_columns import SECOND
from hydractl.report.eval_names import shown_name, visible


def words(text: object) -> str:
    """A text of any origin."""
    return escape(visible(text))


def name(text: str) -> str:
    """A name: cut where it is very long, and apart from the direction of the text around it."""
    return f"<bdi>{escape(shown_name(text))}</bdi>"


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: HTML.
        mark: a class such as ``best``.
        small: a second line, plain text.
    """

    text: str
    mark: str = ""
    small: str = ""

    def html(self) -> str:
        mark = f' class="{self.mark}"' if self.mark else ""
        small = f"<small>{words(self.small)}</small>" if self.small else ""
        text = f"<span>{self.text}</span>" if self.mark == SECOND else self.text
        return f"<td{mark}>{text}{small}</td>"


def table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell | str]]]) -> str:
    """A table in a box that scrolls by itself where it is wider than the page.

    Args:
        caption: plain text; it stands above the box, so that it wraps while the table scrolls.
        heads: plain text, the first for the column of names.
        rows: the name of each as HTML, and its cells (a text is HTML).
    """
    top = "".join(f'<th scope="col">{words(head)}</th>' for head in heads)
    body = []
    for title, cells in rows:
        inner = "".join((cell if isinstance(cell, Cell) else Cell(cell)).html() for cell in cells)
        body.append(f'<tr><th scope="row">{title}</th>{inner}</tr>')
    return (
        f'{note(caption)}<div class="scroll" tabindex="0" role="region" aria-label="{words(caption)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table></div>\n"
    )


def figure(drawn: Figure) -> str:
    """A picture with its legend; several panels stand side by side where there is room."""
    several = not drawn.stacked and (len(drawn.panels) > 1 or drawn.kind in ("heads", "scores"))
    heading = f"{drawn.title or drawn.kind}: "
    # Panels one above the other share their x axis, so their left ends must be at one place.
    left = max(map(left_room, drawn.panels)) if drawn.stacked else None
    pictures = "\n".join(svg(panel, heading + _axes(panel), left) for panel in drawn.panels)
    caption = f"<figcaption><bdi>{words(drawn.title)}</bdi></figcaption>" if drawn.title else ""
    legend = "".join(f"<li>{swatch(series)}<bdi>{words(series.label)}</bdi></li>" for series in drawn.legend())
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    kind = f'class="{drawn.kind}{" wide" if several else ""}"'
    return (
        f'<figure {kind}>{caption}{legend}<div class="{"panels" if several else "stacked"}">{pictures}</div></figure>\n'
    )


def _axes(panel: object) -> str:
    """What the axes are, in words."""
    x, y = getattr(panel, "x", None), getattr(panel, "y", None)
    if x is None or y is None:
        return str(getattr(panel, "title", ""))
    return f"{y.title} over {x.title}".replace("\n", " ")


def section(anchor: str, title: str, *body: str) -> str:
    """A part of the page with a heading; empty where it has no body."""
    inner = "".join(body)
    return f'<section id="{anchor}"><h2>{words(title)}</h2>\n{inner}</section>\n' if inner.strip() else ""


def note(text: str) -> str:
    """A remark on how to read what follows."""
    return f'<p class="note">{words(text)}</p>\n'
