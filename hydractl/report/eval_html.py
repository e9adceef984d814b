"""The report of an eval: one HTML page without network or script, made from its answer alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hydractl.files.eval_answer import EvalAnswer, EvalRow
from hydractl.files.model_records import DataSetRecord
from hydractl.files.study_answer import StudyAnswer
from hydractl.report import eval_tables as tables
from hydractl.report.eval_pictures import comparison_pictures, model_pictures
from hydractl.report.pictures import Picture, inline_svgs
from hydractl.report.study_figures import StudyTable, study_tables
from hydractl.report.texts import number, shown_name, template, visible

if TYPE_CHECKING:
    from markupsafe import Markup

_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
_EXPLANATIONS = {
    "reliability": "Each point is a bin of samples by confidence. On the dashed line, confidence is what it says; "
    "below it the model is overconfident, above it underconfident. Whiskers are 95 % Wilson intervals of the accuracy: "
    "bins with few samples say little. The bars count the samples of each bin.",
    "scores": "How the OOD score is spread over ID samples (filled) and over each OOD set (outline). The less the two "
    "overlap, the better the score separates them. A dashed line is the threshold, where one is set.",
    "roc": "For every threshold: the share of OOD samples flagged (TPR) over the share of ID samples flagged (FPR). "
    "The area under the curve is the AUROC; the dashed line is guessing.",
    "risk-coverage": "The error rate when only the most confident samples are answered. Lower is better everywhere; "
    "the right end is the error rate on all samples.",
    "heads": "A filled square is a head that is kept, an empty one a head that is removed. Sites are in the order of "
    "the model; every member has its own map.",
    "training": "From fine-tuning: the loss of each epoch, the mean over its steps, and the accuracy on the validation "
    "set after it. The legend says the weights of which epoch were kept.",
    "cost": "Upper left is better: more for fewer mult-adds. Whiskers are confidence intervals, where there are some.",
    "diversity": "How much the members of one model differ. More on OOD data than on ID data helps OOD detection.",
    "corruptions": "What a model loses as images get worse; severity 0 is the uncorrupted ID data.",
}


@dataclass(frozen=True)
class _DrawnPicture:
    """A picture that is drawn, as SVG elements."""

    kind: str
    title: str
    svgs: Sequence[Markup]


Fact = tuple[str, Sequence[str]]
"""A term, and the lines that explain it."""


@dataclass(frozen=True)
class _Section:
    """A section of the page; it is left out if it has neither figures nor tables nor facts."""

    anchor: str
    title: str
    note: str = ""
    figures: Sequence[_DrawnPicture] = ()
    tables: Sequence[tables.Table] = ()
    facts: Sequence[Fact] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        if self.figures or self.tables:
            return False
        return not self.facts


def render(answer: EvalAnswer, study: StudyAnswer | None = None) -> bytes:
    """Return the page of an eval as UTF-8 bytes; the same answer gives the same bytes.

    Args:
        answer: the answer of the eval.
        study: the answer of the study that the eval belongs to, whose verdict and tables come first; None if there is
            none.
    """
    page = template("report.html.j2", visible, {"shown": shown_name, "ends": _interval_text}, autoescape=True)
    sections = [section for section in _sections(answer) if not section.is_empty]

    verdict: Sequence[str] = ()
    tables_of_study: Sequence[StudyTable] = ()
    footnote = ""
    if study is not None:
        verdict = study.verdict.lines
        tables_of_study = study_tables(study)
        footnote = study.verdict.footnote

    text = page.render(
        title=_title(answer, study),
        verdict=verdict,
        study_tables=tables_of_study,
        footnote=footnote,
        measured=measured(answer),
        best=best_lines(answer),
        sections=sections,
        arrows=_ARROWS,
    )
    return text.encode("utf-8")


def _title(answer: EvalAnswer, study: StudyAnswer | None) -> str:
    """Return the title of the page: it names the study, or the single model, or how many models there are."""
    if study is not None:
        name = shown_name(study.model.name)
        return f"Study of {name}"
    rows = answer.models
    if len(rows) != 1:
        return f"Evaluation of {len(rows)} models"
    name = shown_name(rows[0].name)
    return f"Evaluation of {name}"


def _interval_text(cell: tables.Cell) -> str:
    """Return the interval of a number as text: with a dash if its ends cannot be negative, else with "to"."""
    assert cell.ends is not None
    if cell.signed:
        low, high = map(tables.signed_number, cell.ends)
        return f"{low} to {high}"
    low, high = map(number, cell.ends)
    return f"{low}–{high}"


# --- sections ---------------------------------------------------------------------------------------------------------


def _sections(answer: EvalAnswer) -> Iterator[_Section]:
    """Yield every section of the page, in order; some of them may be empty."""
    rows = answer.models
    marked = ""
    if len(rows) > 1:
        marked = "Bold: best of the column, underlined: second best."
    first = shown_name(rows[0].name)

    pictures = _drawn_pictures(answer)
    part = partial(_section, pictures)
    yield part("results", "Results", tables.main_table(rows), note=marked)
    yield part("difference", f"Difference to {first}", tables.difference_table(rows))
    yield part("by-score", "OOD detection, score by score", tables.score_table(rows))
    yield part("errors", "Wrong answers, score by score", tables.error_table(rows))
    yield part("ood", "OOD detection, set by set", *tables.ood_tables(rows))
    yield part("roc", "ROC", kind="roc")
    yield part("scores", "OOD scores", kind="scores")
    yield part("reliability", "Calibration", kind="reliability")
    yield part("risk-coverage", "Risk and coverage", tables.selective_table(rows), kind="risk-coverage")
    yield part("cost", "Cost", tables.cost_table(rows), kind="cost")
    yield part("heads", "Heads", kind="heads")
    yield part("training", "Training", kind="training")
    yield part("members", "Members alone", tables.members_table(rows))
    yield part("diversity", "Diversity", tables.diversity_table(rows), kind="diversity")
    yield part("corruptions", "Corruptions", *tables.corruption_tables(rows), kind="corruptions")
    yield part("settings", "Calibration, conformal sets and thresholds", tables.settings_table(rows))
    yield _Section("conventions", "Conventions", facts=list(_convention_facts(answer)))
    yield _Section("provenance", "Provenance", facts=list(_provenance_facts(answer)))


def _section(
    pictures: Sequence[_DrawnPicture], anchor: str, title: str, *under: tables.Table, kind: str = "", note: str = ""
) -> _Section:
    """Return a section with the pictures of one kind, and with those of its tables that have rows.

    Args:
        pictures: all pictures of the page.
        anchor: the name of the section in links.
        title: its heading.
        under: its tables.
        kind: what the kinds of its pictures begin with; empty for a section without pictures.
        note: a sentence below the heading; if there are pictures, their explanation replaces it.
    """
    figures = []
    if kind:
        figures = [picture for picture in pictures if picture.kind.startswith(kind)]
    if figures:
        note = _EXPLANATIONS[kind]
    tables_with_rows = [table for table in under if table.rows]
    return _Section(anchor, title, note, figures, tables_with_rows)


def _drawn_pictures(answer: EvalAnswer) -> list[_DrawnPicture]:
    """Return all pictures, drawn: those of each row, then those that compare all rows."""
    from markupsafe import Markup

    pictures: list[Picture] = []
    for row in answer.models:
        pictures += model_pictures(answer, row)
    pictures += comparison_pictures(answer)
    drawn = []
    for index, picture in enumerate(pictures):
        # The salt makes the element ids of each SVG unique in the page.
        salt = f"{picture.kind}.{index}"
        svgs = [Markup(svg) for svg in inline_svgs(picture, salt)]
        drawn.append(_DrawnPicture(picture.kind, picture.title, svgs))
    return drawn


def _convention_facts(answer: EvalAnswer) -> Iterator[Fact]:
    """Yield each convention and its text; if it differs between rows, the text lists it row by row."""
    for key, convention in answer.conventions.items():
        text = convention
        if isinstance(convention, dict):
            sentences = [f"{name}: {said}" for name, said in convention.items()]
            text = "; ".join(sentences)
        yield key, [text]


def _provenance_facts(answer: EvalAnswer) -> Iterator[Fact]:
    """Yield what identifies the measurement: the files of the models, the data, the bootstrap, and the schema."""
    for row in answer.models:
        digests = row.files or ["no sha256"]
        yield f"model {row.name}", digests
    for name, data in answer.test.items():
        yield f"data {name}", _data_lines(data)
    if answer.bootstrap is not None:
        options = []
        for key, value in answer.bootstrap.to_dict().items():
            options.append(f"{key} {value}")
        line = ", ".join(options)
        yield "bootstrap", [line]
    yield "form", [answer.schema]


def _data_lines(data: DataSetRecord) -> list[str]:
    """Return the spec of a data set, and a line with its size, if known, and its fingerprint."""
    spec = data.spec or "-"
    fingerprint = data.fingerprint or "-"
    facts = f"fingerprint {fingerprint}"
    if data.n is not None:
        facts = f"n = {data.n}, {facts}"
    return [spec, facts]


# --- sentences --------------------------------------------------------------------------------------------------------


_SEVERAL = 3  # the most names that a sentence lists


def measured(answer: EvalAnswer) -> list[str]:
    """Return sentences on what was measured: models, data, intervals, and what to be careful about."""
    sentences = [_id_data_sentence(answer)]
    if tables.ood_names(answer.models):
        sentences += _ood_data_sentences(answer)
    else:
        sentences.append("No out-of-distribution data was given.")
    sentences.append(_interval_sentence(answer))
    sentences += _caution_sentences(answer.models)
    return sentences


def _id_data_sentence(answer: EvalAnswer) -> str:
    """Return the sentence that says which models were measured on which ID data."""
    rows = answer.models
    models = f"{len(rows)} models were"
    if len(rows) == 1:
        models = f"The model {shown_name(rows[0].name)} was"

    kind = "samples without labels"
    if any(tables.ACCURACY.value(row) is not None for row in rows):
        kind = "labelled samples"
    spec = ""
    data = answer.test.get("id")
    if data is not None and data.spec:
        spec = f" of {shown_name(data.spec)}"
    return f"{models} measured on {_id_size_words(answer)} {kind}{spec} (in distribution, ID)."


def _id_size_words(answer: EvalAnswer) -> str:
    """Return the number of ID samples in words: from the first row, else from the list of data sets."""
    size = answer.models[0].id.n
    data = answer.test.get("id")
    if size is None and data is not None:
        size = data.n
    if size is None:
        return "an unknown number of"
    return str(size)


def _ood_data_sentences(answer: EvalAnswer) -> list[str]:
    """Return the sentences that say which OOD sets were told from the ID data, and by which scores."""
    set_texts = [_set_text(name, answer) for name in tables.ood_names(answer.models)]
    sets = "; ".join(set_texts)
    sentences = [f"Out-of-distribution (OOD) data: {sets}."]

    # One sentence for the score if all rows have the same, else a list.
    scores: set[str] = set()
    scores_of_rows = []
    for row in answer.models:
        score = tables.score_name(answer, row)
        if score:
            scores.add(score)
            scores_of_rows.append(f"{shown_name(score)} of {shown_name(row.name)}")
    if len(scores) == 1:
        (score,) = scores
        sentences.append(f"The OOD score is {shown_name(score)}.")
    elif scores:
        sentences.append(f"The OOD scores are {', '.join(scores_of_rows)}.")
    return sentences


def _set_text(name: str, answer: EvalAnswer) -> str:
    """Return the name of an OOD set, with its group and its size if they are known."""
    facts = []
    group = tables.ood_group(answer.models, name)
    if group:
        facts.append(f"{group} OOD")
    size = _size_of_set(name, answer)
    if size is not None:
        facts.append(f"n = {size}")
    if not facts:
        return shown_name(name)
    return f"{shown_name(name)} ({', '.join(facts)})"


def _size_of_set(name: str, answer: EvalAnswer) -> int | None:
    """Return the size of an OOD set: from the first row that has the set, else from the list of data sets.

    None if neither has it.
    """
    for row in answer.models:
        if name in row.ood:
            size = row.ood[name].n
            if size is not None:
                return size
            break
    data = answer.test.get(name)
    if data is not None:
        return data.n
    return None


def _interval_sentence(answer: EvalAnswer) -> str:
    """Return the sentence that says what the numbers are means of, or what their intervals cover."""
    runs = tables.runs_text(answer)
    if runs:
        return f"Figures are {runs}."
    if answer.bootstrap is None:
        return "No confidence intervals were computed: small differences may be chance."
    text = f"Intervals cover {tables.level_text(answer) or 'an unstated share'}"
    if answer.bootstrap.rounds:
        text += f", from {answer.bootstrap.rounds} bootstrap resamples of the samples"
    return f"{text}; they do not cover training again with another seed."


def _caution_sentences(rows: Sequence[EvalRow]) -> list[str]:
    """Return sentences on what makes numbers look better than they are: models that have seen test samples before."""
    sentences = []
    for row in rows:
        seen = tables.seen_text(row)
        if seen:
            sentences.append(f"{shown_name(row.name)} was made with some of these samples: {seen}.")
    return sentences


# --- who is best ------------------------------------------------------------------------------------------------------


def best_lines(answer: EvalAnswer) -> list[tuple[str, str]]:
    """Return, for each number with a better direction, its name and a sentence on which row is best and by how much.

    Empty for a single row.
    """
    rows = answer.models
    lines = []
    for column in tables.main_columns(rows):
        values = [column.value(row) for row in rows]
        marks = tables.marks(values, column.metric)
        best = _rows_with_mark(tables.BEST, rows, marks)
        if not best:
            continue

        # The best rows, the second best, and whether the difference is significant.
        text = _names_with_value(column, best)
        second = _rows_with_mark(tables.SECOND, rows, marks)
        if second:
            text += f", then {_names_with_value(column, second)}"
        text += _significance_words(column, best, rows)
        name = f"{column.words} ({column.metric.direction} is better)"
        lines.append((name, f"{text}."))
    return lines


def _rows_with_mark(mark: str, rows: Sequence[EvalRow], marks: Sequence[str]) -> list[EvalRow]:
    """Return the rows whose mark is ``mark``; ``marks`` holds the mark of each row."""
    marked = []
    for row, mark_of_row in zip(rows, marks, strict=True):
        if mark_of_row == mark:
            marked.append(row)
    return marked


def _names_with_value(column: tables.Column, rows: Sequence[EvalRow]) -> str:
    """Return the names of rows that have the same number, and this number; a single row also has its interval."""
    first = rows[0]
    names = _names_in_words(rows)
    value = number(column.value(first))
    ends = column.interval(first)
    if len(rows) > 1 or ends is None:
        return f"{names} with {value}"
    low, high = map(number, ends)
    return f"{names} with {value} ({low} to {high})"


def _names_in_words(rows: Sequence[EvalRow]) -> str:
    """Return the names of rows in words; of many rows only the first: ``a, b, c and 2 more``."""
    listed = [shown_name(row.name) for row in rows[:_SEVERAL]]
    rest = len(rows) - len(listed)
    if not rest:
        return " and ".join(listed)
    first_ones = ", ".join(listed)
    return f"{first_ones} and {rest} more"


def _significance_words(column: tables.Column, best: Sequence[EvalRow], rows: Sequence[EvalRow]) -> str:
    """Return words on whether the best row differs significantly from the first row; empty if that is not known.

    All paired differences of an eval are to the first row. If the first row is itself the best, the words say from how
    many others it differs.

    Args:
        column: the number.
        best: the best rows.
        rows: all rows.
    """
    reference = rows[0]
    if any(row is reference for row in best):
        ids_of_best = {id(row) for row in best}
        others = [row for row in rows if id(row) not in ids_of_best]
        return _reference_significance_words(column, reference, others)
    if len(best) > 1:
        return ""  # each has its own difference to the first row, and these may disagree

    # A single best row: its difference to the first row, and whether the interval excludes 0.
    difference = column.difference(best[0])
    if difference is None:
        return ""
    value, ends = difference
    if ends is None:
        return ""
    low, high = map(tables.signed_number, ends)
    verdict = "not significantly different"
    if tables.excludes_zero(ends):
        verdict = "significantly different"
    paired = f"paired difference {tables.signed_number(value)}, {low} to {high}"
    return f"; {verdict} from {shown_name(reference.name)} ({paired})"


def _reference_significance_words(column: tables.Column, reference: EvalRow, others: Sequence[EvalRow]) -> str:
    """Return words on how many other rows the first row differs from; empty if an interval is not known."""
    significant = 0
    for row in others:
        difference = column.difference(row)
        if difference is None:
            return ""
        _, ends = difference
        if ends is None:
            return ""
        if tables.excludes_zero(ends):
            significant += 1
    name = shown_name(reference.name)
    return f"; paired differences to {name} are significant for {significant} of {len(others)} others"
