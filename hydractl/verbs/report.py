"""``hydractl report``: show, draw and check documents that ``eval``, ``bench`` and ``study`` wrote."""

from __future__ import annotations

from pathlib import Path

from hydractl.errors import InputError, UsageError
from hydractl.evaluation.means import means
from hydractl.files.atomic import claimed, file_path, json_path, write_bytes, write_json
from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.study_answer import StudyAnswer
from hydractl.jsonio import Document, shown
from hydractl.options.call import Call
from hydractl.report.eval_html import render
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import unmet_in


def run(call: Call) -> Outcome:
    """Return a document of eval, bench or study to be shown, or the means of several evals.

    =====================================  ======================================================
    several documents without ``--over``   refused
    several evals with ``--over``          their means, shown as one eval
    one eval                               shown, with a page and requirements if they are asked for
    several others with ``--over``         refused
    one bench or study                     shown; ``--html``, ``--over`` and ``--require`` are refused
    =====================================  ======================================================

    Raises:
        UsageError: there are several documents that no report can show together, or an option is not for this kind.
        InputError: there are no reports on documents of this kind.
    """
    over = call.values["over"]
    answers = {file.text: _answer_of(file) for file in call.values["model"]}
    if len(answers) > 1 and over is None:
        raise UsageError("several documents need --over: means over seeds or over data sets")

    # Evals, of which several have a mean.
    path, answer = next(iter(answers.items()))
    evals = {path: answer for path, answer in answers.items() if isinstance(answer, EvalAnswer)}
    if len(evals) == len(answers):
        if over is None:
            return _report_on_eval(evals[path], call)
        mean_answer = means(evals, over)
        call.log.warn_all(mean_answer.warnings)
        return _report_on_eval(mean_answer, call)

    # The others are shown one at a time, and have no use for the options of evals.
    if len(answers) > 1:
        raise UsageError("means are taken of documents of eval alone", hint="report on the others one at a time")
    for name in ("html", "over", "require"):
        if call.given(name):
            hint = "report on an eval: the folder of a study holds one, test.json"
            raise UsageError(f"{call.label(name)} is of an eval, and {_origin(path)} is of another verb", hint=hint)
    return Outcome(answer)


def _answer_of(file: Document) -> EvalAnswer | BenchAnswer | StudyAnswer:
    """Return the answer of a command that a JSON document holds; its ``schema`` says of which command it is.

    Raises:
        InputError: it is not of eval, bench or study; the message names the schema.
    """
    document = file.content
    origin = _origin(file.text)  # where the document is from, for messages
    schema = document.get("schema") if isinstance(document, dict) else None
    kinds: tuple[type[EvalAnswer | BenchAnswer | StudyAnswer], ...] = (EvalAnswer, BenchAnswer, StudyAnswer)
    for kind in kinds:
        if kind.form() == schema:
            return kind.of(document, origin)
    schemas = ", ".join(kind.form() for kind in kinds)
    raise InputError(
        f"{origin} is no document of eval, bench or study (schema {shown(schema)})",
        hint=f"these have the schemas {schemas}",
    )


def _origin(path: str) -> str:
    """Return what messages call the file of a document."""
    return "standard input" if path == "-" else path


# --- evals ------------------------------------------------------------------------------------------------------------


def _report_on_eval(answer: EvalAnswer, call: Call) -> Outcome:
    """Return an eval, or the mean of several, with the files of its reports and the requirements that it does not meet.

    The files are the document (``--output``) and a page (``--html``), each only if its option is given. Both are
    claimed (checked to be writable, and reserved) before the first is written. A dry run claims them, and writes none.

    Args:
        answer: the eval.
        call: the options, of which ``output``, ``html``, ``force``, ``require`` and ``dry_run`` count.
    """
    values = call.values
    rows = [(row.name, row.to_dict()) for row in answer.models]
    unmet = unmet_in(rows, values["require"])

    files: list[Path] = []
    path = json_path(values["output"])  # None without --output
    path_of_page = None if values["html"] is None else file_path(values["html"])
    force = values["force"]
    with claimed(path, force=force) as document, claimed(path_of_page, force=force) as page:
        if not values["dry_run"]:
            if document is not None:
                files.append(write_json(document, answer.to_dict()))
            if page is not None:
                files.append(write_bytes(page, render(answer)))
    return Outcome(answer, files=files, unmet=unmet)
