"""The report of an eval: one HTML page without network or script, made from its answer alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.study_answer import StudyAnswer
from hydractl.jsonio import clean
from hydractl.report import eval_tables as tables
from hydractl.report.eval_pictures import pictures, rows_looked_at
from hydractl.report.pictures import Picture, page_images
from hydractl.report.study_figures import (
    glance,
    in_brief,
    legend,
    next_steps,
    own_scores_table,
    results_table,
    ruled_out_table,
)
from hydractl.report.tables import Cell, Table
from hydractl.report.texts import number, shown_name

if TYPE_CHECKING:
    from jinja2 import Template
_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}

Fact = tuple[str, Sequence[str]]
"""A term, and the lines that explain it."""


@dataclass(frozen=True)
class _Section:
    """A section of the page; it is left out if it has nothing but a heading and a note."""

    anchor: str
    title: str
    note: str = ""
    picture: Picture | None = None
    tables: Sequence[Table] = ()
    facts: Sequence[Fact] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return self.picture is None and not self.facts and not any(table.rows for table in self.tables)

    @property
    def images(self) -> list[tuple[str, str]]:
        """The address of each panel of the picture, and words that say what it shows."""
        return [] if self.picture is None else page_images(self.picture)


def render(answer: EvalAnswer, study: StudyAnswer | None = None) -> bytes:
    """Return the page of an eval as UTF-8 bytes; the same answer gives the same bytes.

    Args:
        answer: the answer of the eval.
        study: the answer of the study that the eval belongs to, whose verdict comes first; None if there is none.
    """
    # What stands above the sections, of a study alone.
    of_study: dict[str, object] = {"verdict": (), "glance": None, "brief": (), "next_steps": ()}
    if study is not None:
        of_study = {
            "verdict": study.verdict.lines,
            "glance": glance(study),
            "brief": in_brief(study),
            "next_steps": {purpose: shlex.join(words) for purpose, words in next_steps(study).items()},
        }

    # The sections that are open, and those that a reader opens; empty ones are left out.
    anchors = _OPEN if study is not None else _OPEN_WITHOUT_VERDICT
    sections = [section for section in _sections(answer, study) if not section.is_empty]
    text = _page().render(
        title=_title(answer, study),
        **of_study,
        sections=[section for section in sections if section.anchor in anchors],
        details=[section for section in sections if section.anchor not in anchors],
        arrows=_ARROWS,
    )
    return text.encode("utf-8")


@cache
def _page() -> Template:
    """Return the template of the page, which escapes every value, so that no text of a document becomes markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def written(value: object) -> object:
        return value if isinstance(value, Markup) else clean(str(value))

    folder = Path(__file__).with_name("templates")
    environment = Environment(
        loader=FileSystemLoader(folder), finalize=written, undefined=StrictUndefined, autoescape=True
    )
    environment.filters.update({"shown": shown_name, "ends": _interval_text})
    return environment.get_template("report.html.j2")


def _title(answer: EvalAnswer, study: StudyAnswer | None) -> str:
    """Return the title of the page: it names the study, or the single model, or how many models there are."""
    rows = answer.models
    if study is not None:
        return f"Study of {shown_name(study.model.name)}"
    if len(rows) != 1:
        return f"Evaluation of {len(rows)} models"
    return f"Evaluation of {shown_name(rows[0].name)}"


def _interval_text(cell: Cell) -> str:
    """Return the interval of a number as text: with a dash if its ends cannot be negative, else with "to"."""
    assert cell.ends is not None
    if cell.signed:
        return tables.signed_range(*cell.ends)
    low, high = map(number, cell.ends)
    return f"{low}–{high}"


# --- sections ---------------------------------------------------------------------------------------------------------

_OPEN = ("overview", "results", "summary")
_OPEN_WITHOUT_VERDICT = (*_OPEN, "reliability", "scores")
"""The sections that are open; all others are closed until a reader opens them. A study opens with its verdict."""


def _sections(answer: EvalAnswer, study: StudyAnswer | None) -> Iterator[_Section]:
    """Yield the sections of the page in their order, one for each question; some of them may be empty.

    First those with pictures and the main results, then details. If the eval belongs to a study, some have other
    tables.
    """
    # The pictures by name, and the names of the rows (models) that they show; the OOD scores are of the last alone.
    rows = answer.models
    picture_of = pictures(answer, study)
    names = [shown_name(row.name) for row in rows_looked_at(answer, study)]
    all_names, last_name = " and ".join(names), names[-1]
    # Words that only some pages have: on marks with several rows, on lines and a ring with a study.
    on_marks = ["Bold: best of the column."] if len(rows) > 1 else []
    on_lines = ""
    if study is not None:
        on_lines = " Dashed lines are the single model with two scores, the ring is the model to use."

    # The overview, and the main results.
    yield _Section(
        "overview",
        "What does it detect, and at which cost?",
        "Upper left is better in the first picture, lower left in the second. Whiskers are confidence intervals."
        f"{on_lines}",
        picture_of.get("overview"),
    )
    if study is None:
        explained = " ".join([*on_marks, *_score_sentences(answer)])
        yield _Section("results", "Results on the test data", explained, tables=[tables.glance_table(rows)])
    else:
        explained = (
            f"All with the score {shown_name(study.common_score)}, the first line with MSP. Members that are pruned "
            "and not trained have the same weights, which count once as parameters."
        )
        yield _Section("results", "Results on the test data", explained, tables=[results_table(study, rows)])
        names_explained = [(term, [words]) for term, words in legend(study, study.rows).items()]
        yield _Section("names", "What the names mean", facts=names_explained)

    # Pictures of calibration and of OOD scores, a map of heads, and the data.
    yield _Section(
        "reliability",
        "Can its confidence be trusted?",
        f"Of {all_names}: each point is a bin of samples by confidence. On the dashed line, confidence is what it "
        "says; below it the model is overconfident, above it underconfident.",
        picture_of.get("reliability"),
    )
    yield _Section(
        "scores",
        "Which OOD samples does it find?",
        f"Of {last_name}: how the OOD score is spread over ID samples (filled) and over each OOD set (outline). The "
        "less the two overlap, the better. The outer bins hold what lies further out. A dashed line is the threshold, "
        "where one is set.",
        picture_of.get("scores"),
    )
    yield _Section(
        "heads",
        "Which heads are removed?",
        "■ is a head that is kept, · one that is removed, of every attention module and every member that was pruned.",
        tables=[tables.heads_table(rows)],
    )
    cautions = " ".join(_cautions(answer))
    yield _Section("summary", "What was it measured on?", cautions, tables=[tables.data_table(answer)])

    # Details.
    first = shown_name(rows[0].name)
    if study is not None:
        yield _Section("own", "Models with another score", tables=[own_scores_table(study)])
        yield _Section("ruled-out", "Models that were not tested", tables=[ruled_out_table(study)])
    yield _Section("further", "Further metrics", tables=[tables.further_table(rows)])
    yield _Section("difference", f"Differences to {first}", tables=[tables.difference_table(rows)])
    yield _Section(
        "ood", "OOD detection, set by set", tables=[tables.every_set_table(rows), tables.averages_table(rows)]
    )
    yield _Section("by-score", "OOD detection, score by score", tables=[tables.score_table(rows)])
    yield _Section("errors", "Wrong answers, score by score", tables=[tables.error_table(rows)])
    yield _Section("members", "Members alone", tables=[tables.members_table(rows)])
    corrupted = [tables.corrupted_accuracy(rows), tables.corruption_means(rows)]
    yield _Section("corruptions", "Corruptions", tables=corrupted)
    yield _Section("settings", "Calibration, conformal sets and thresholds", tables=[tables.settings_table(rows)])
    yield _Section("conventions", "Conventions", facts=list(_convention_facts(answer)))
    yield _Section("provenance", "Provenance", facts=list(_provenance_facts(answer)))


def _score_sentences(answer: EvalAnswer) -> list[str]:
    """Return a sentence for each OOD score of the rows: what it is, if the document explains it, else its name."""
    explained = answer.conventions.get("ood_scores")
    sentences = []
    scores = dict.fromkeys(row.ood_score for row in answer.models)  # without repetition
    for score in scores:
        explanation = explained.get(score, "") if isinstance(explained, Mapping) else ""
        if score:
            words = str(explanation).removeprefix("OOD score: ").rstrip(".")
            sentence = f"OOD score {shown_name(score)}: {words}."
            sentences.append(sentence.replace(": .", "."))  # no colon where nothing is explained
    return sentences


def _convention_facts(answer: EvalAnswer) -> Iterator[Fact]:
    """Yield each convention and its text; if it differs between rows, the text lists it row by row."""
    for key, convention in answer.conventions.items():
        text = convention
        if isinstance(convention, dict):
            text = "; ".join(f"{name}: {said}" for name, said in convention.items())
        yield key, [text]


def _provenance_facts(answer: EvalAnswer) -> Iterator[Fact]:
    """Yield what identifies the measurement: the files of the models, the data, the bootstrap, and the schema."""
    for row in answer.models:
        yield f"model {row.name}", row.files or ["no sha256"]
    for name, data in answer.test.items():
        yield f"data {name}", [f"fingerprint {data.fingerprint or '-'}"]
    if answer.bootstrap is not None:
        options = answer.bootstrap.to_dict()
        yield "bootstrap", [", ".join(f"{key} {value}" for key, value in options.items())]
    yield "form", [answer.schema]


# --- sentences --------------------------------------------------------------------------------------------------------


def _cautions(answer: EvalAnswer) -> Iterator[str]:
    """Yield a sentence on what intervals cover, and one for each model that was made with some of the test samples."""
    yield tables.interval_sentence(answer)
    for row in answer.models:
        counts = tables.seen_text(row)
        if counts:
            yield f"{shown_name(row.name)} was made with some of these samples: {counts}."
