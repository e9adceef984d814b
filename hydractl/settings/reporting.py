"""The options of ``report``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.conditions import parse_requirement
from hydractl.options.option import ends_in, option
from hydractl.settings.common import Common, Requiring, Rule
from hydractl.settings.rules import needs

report_option = partial(option, "Reporting")


def _a_document_to_write(settings: ReportSettings) -> list[str]:
    """Return a problem if ``--output`` is given and no new document is made."""
    if settings.output is None or settings.over is not None:
        return []
    where = settings.where("output")
    return [f"--output{where} needs --over: only means are a new document"]


@dataclass(kw_only=True)
class ReportSettings(Requiring, Common):
    """Options of ``report``; ``model`` holds the documents."""

    verb: ClassVar[str] = "report"
    many_models: ClassVar[bool] = True
    models_help: ClassVar[str] = "A document that eval, bench or study wrote; several of eval with --over; - is stdin"
    lacks: ClassVar[tuple[str, ...]] = (
        *("data", "limit", "max_length", "labels", "prompt", "tower", "arch"),
        *("device", "workers", "seed"),
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        needs("card_model", "card"),
        _a_document_to_write,
    )

    html: str | None = report_option(
        "Write a report of an eval as one .html file, with tables and plots",
        metavar="FILE",
        check=ends_in(".html", any_case=True),
        often=True,
        writes=True,
    )
    plots: str | None = report_option(
        "Write the plots of that report as .png files into a folder",
        metavar="DIR",
        often=True,
        writes=True,
    )
    card: str | None = report_option(
        "Write a model card: a .md file with the results of one row of an eval",
        metavar="FILE",
        check=ends_in(".md", any_case=True),
        often=True,
        writes=True,
    )
    card_model: str | None = report_option("The row that the card is about [default: the last one]", metavar="NAME")
    note: str | None = report_option("A sentence about how this model was chosen, for the card", metavar="TEXT")
    openood_csv: str | None = report_option(
        "Write the table of OpenOOD's evaluator, with near and far means, in percent; of several rows each has its "
        "name in the file's",
        metavar="FILE",
        check=ends_in(".csv", any_case=True),
        writes=True,
    )
    over: str | None = report_option(
        "Show the means of several evals, with sample standard deviations, over seeds (rows with the same name before "
        "#) or over data sets (rows with the same name); -o keeps them",
        choices=("seed", "data"),
        often=True,
    )
    require: list[str] = report_option(
        "Exit with 4 unless it holds in every row, of a bench in every one but the first, as [NAME:]KEY>=NUMBER; "
        "repeat it for more",
        [],
        metavar="EXPR",
        check=parse_requirement,
        often=True,
    )

    def settle(self) -> None:
        """Drop a model that was set for all verbs at once: documents must be named for this verb."""
        if not self.of_this_verb("model"):
            self.model = []

    def _model_problems(self) -> list[str]:
        if not self.model and "model" not in self.unread:
            return ["report needs a document that eval, bench or study wrote"]
        return []
