"""The options of reports: pages, pictures and cards made from the document of an eval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings.common import Common
from hydractl.settings.option import option, options_of

_SHOWING = "Showing"


@dataclass(kw_only=True)
class Reporting(Common):
    """Output formats of an eval, and showing an existing one again.

    A verb that mixes this in calls ``super().conflicts()``, asks for ``from_file`` before it needs data, and stands
    before its other bases.

    Attributes:
        of_showing: options that still mean something where nothing is measured.
    """

    of_showing: ClassVar[tuple[str, ...]] = (
        *("report", "plots", "card", "card_model", "from_file"),
        *("require", "json", "force", "dry_run", "config", "quiet", "verbose"),
    )

    report: str | None = option(
        None, help="Also write a report as one .html file, with tables and plots", metavar="FILE", group=_SHOWING
    )
    plots: str | None = option(
        None,
        help="Also write the plots of the report as .png files",
        metavar="DIR",
        group=_SHOWING,
    )
    card: str | None = option(
        None, help="Also write a model card: a .md file with the results of one row", metavar="FILE", group=_SHOWING
    )
    card_model: str | None = option(
        None, help="The row that the card is about", metavar="NAME", group=_SHOWING, default_text="the last one"
    )
    from_file: str | None = option(
        None,
        help="Measure nothing: show, draw or check an eval.json written before",
        metavar="FILE",
        flag="--from",
        group=_SHOWING,
    )

    def conflicts(self) -> list[str]:
        """Known formats of what is to be written, and a row for the card only where there is a card."""
        found = super().conflicts()
        for name, ending in (("report", ".html"), ("card", ".md")):
            value = getattr(self, name)
            if value is not None and not value.lower().endswith(ending):
                found.append(f"{self.called(name)} must end in {ending}, not {value!r}{self.where(name)}")
        if self.card_model is not None and self.card is None:
            found.append(f"--card-model{self.where('card_model')} needs --card")
        return found

    def inapplicable(self) -> dict[str, str]:
        """Options of measuring have no effect where nothing is measured."""
        found = super().inapplicable()
        if self.from_file is None:
            return found
        measuring = [one.name for one in options_of(type(self)) if one.name not in self.of_showing]
        return {**found, **dict.fromkeys(measuring, "from_file")}

    def _model_problems(self) -> list[str]:
        """No MODEL is needed where nothing is measured."""
        if self.from_file is not None:
            return []
        return [f"{one}, or --from FILE" if "needs" in one else one for one in super()._model_problems()]
