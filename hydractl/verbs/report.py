"""``hydractl report``: show, draw and check documents that ``eval``, ``bench`` and ``study`` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydractl.benchmark.figures import COMPARED, ROW_KEYS
from hydractl.errors import InputError, UsageError
from hydractl.files.atomic import Output, file_path, write_json
from hydractl.files.bench_answer import BenchAnswer
from hydractl.files.eval_answer import EvalAnswer
from hydractl.files.study_answer import StudyAnswer
from hydractl.jsonio import read_json_file, shown
from hydractl.log import Log
from hydractl.report.eval_files import ReportOptions, claimed_reports, write_reports
from hydractl.report.eval_runs import means
from hydractl.settings.reporting import ReportSettings
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.requirements import check_known, unmet_in, unmet_of_bench

_ONLY_FOR_EVALS = ("html", "card", "card_model", "note", "openood_csv", "over")
"""Options that are only for documents of ``eval``."""

Documents = Mapping[str, Any]
"""The documents as they were read, by path."""


def run(settings: ReportSettings, log: Log) -> Outcome:
    """Report on documents of one kind: a single one, or the means of several evals.

    Raises:
        UsageError: there are several documents that no report can show together.
        InputError: there are no reports on documents of this kind.
    """
    documents = {}
    schemas = set()
    for path in settings.model:
        documents[path] = read_json_file(path)
    for path, document in documents.items():
        schemas.add(_schema_of(document, path))
    has_several = len(documents) > 1

    # Several evals have a mean.
    if has_several and settings.over is None:
        raise UsageError("several documents need --over: means over seeds or over data sets")
    if schemas == {EvalAnswer.form()}:
        return _report_on_evals(documents, settings, log)

    # The others are shown one at a time.
    if has_several:
        raise UsageError("means are taken of documents of eval alone", hint="report on the others one at a time")
    ((path, document),) = documents.items()
    (schema,) = schemas
    report_on = _REPORTS_ON_OTHERS[schema]
    return report_on(document, path, settings)


def _schema_of(document: Any, path: str) -> str:
    """Return the schema of a document, if there are reports on documents of that kind.

    Raises:
        InputError: there are none; the message names the schema.
    """
    schema = None
    schema_shown = "none"
    if isinstance(document, dict):
        schema = document.get("schema")
        schema_shown = shown(schema)
    known = (EvalAnswer.form(), *_REPORTS_ON_OTHERS)
    if schema in known:
        return str(schema)
    raise InputError(
        f"{_origin(path)} is no document of eval, bench or study (schema {schema_shown})",
        hint=f"these have the schemas {', '.join(known)}",
    )


def _origin(path: str) -> str:
    """Return what messages call the file of a document."""
    if path == "-":
        return "standard input"
    return path


# --- evals ------------------------------------------------------------------------------------------------------------


def _report_on_evals(documents: Documents, settings: ReportSettings, log: Log) -> Outcome:
    """Show one eval, or the means of several, and write the reports that are asked for.

    Returns:
        The eval or the means, the files that were written, and the requirements that are not met.
    """
    answer = _one_eval(documents, settings, log)
    if settings.note is not None:  # a sentence of the user for the page
        answer = answer.model_copy(update={"note": settings.note})
    document = answer.to_dict()

    # Check the requirements against its rows.
    rows = [(row.name, row.to_dict()) for row in answer.models]
    unmet = unmet_in(rows, settings.requirements(), skip_first=False)
    names = [name for name, _ in rows]

    files = _write_eval(answer, document, names, settings)
    return Outcome(document, files=files, unmet=unmet, print_document=settings.output == "-")


def _write_eval(
    answer: EvalAnswer, document: dict[str, object], names: list[str], settings: ReportSettings
) -> list[Path]:
    """Write the document if ``--output`` names a file, and the reports that are asked for; return the files.

    Every file is claimed before the first is written. A dry run claims the files, and writes none.

    Args:
        answer: the eval, or the mean of several.
        document: the same as JSON.
        names: the names of its rows.
        settings: the options of the command.
    """
    files: list[Path] = []
    with ExitStack() as stack:
        output = None
        if settings.output is not None and not settings.to_stdout:
            path = file_path(settings.output)
            output = stack.enter_context(Output(path, force=settings.force))
        report_options = settings.fill(ReportOptions)
        reports = stack.enter_context(claimed_reports(report_options, names))
        if settings.dry_run:
            return []
        if output is not None:
            files.append(write_json(output, document))
        files += write_reports(answer, reports)
    return files


def _one_eval(documents: Documents, settings: ReportSettings, log: Log) -> EvalAnswer:
    """Return the answer of a single eval; with ``--over``, the means of all evals, whose warnings are logged."""
    answers = {}
    for path, document in documents.items():
        answers[path] = EvalAnswer.of(document, _origin(path))
    if settings.over is None:
        (answer,) = answers.values()  # several documents without --over were refused before
        return answer
    mean = means(answers, settings.over)
    for warning in mean.warnings or ():
        log.warn(warning)
    return mean


# --- benches and studies ----------------------------------------------------------------------------------------------


def _report_on_bench(document: Any, path: str, settings: ReportSettings) -> Outcome:
    """Show a bench, with the requirements that its rows do not meet."""
    BenchAnswer.of(document, _origin(path))
    _refuse_options("bench", path, settings, (*_ONLY_FOR_EVALS, "plots"), hint=None)

    # Check the requirements against its rows. Rows that --compare added need to meet only requirements that name them.
    rows = document["results"]
    names = list(dict.fromkeys(row["model"] for row in rows))
    compared = {row["model"] for row in rows if row.get("kind") in COMPARED}
    requirements = settings.requirements()
    check_known(requirements, names, ROW_KEYS, skip_first=True, named_only=compared)
    unmet = unmet_of_bench(rows, requirements, compared)
    return Outcome(document, unmet=unmet)


def _report_on_study(document: Any, path: str, settings: ReportSettings) -> Outcome:
    """Show a study: its rows and its verdict."""
    StudyAnswer.of(document, _origin(path))
    hint = "the folder of a study holds test.json, the eval of all its rows"
    _refuse_options("study", path, settings, (*_ONLY_FOR_EVALS, "plots"), hint)
    rows = [(row["name"], row) for row in document["rows"]]
    unmet = unmet_in(rows, settings.requirements(), skip_first=False)
    return Outcome(document, unmet=unmet)


def _refuse_options(verb: str, path: str, settings: ReportSettings, names: tuple[str, ...], hint: str | None) -> None:
    """Refuse options that do not apply to documents of this command.

    Args:
        verb: the command that wrote the document.
        path: the path of the document.
        settings: the options of the report.
        names: the options to refuse.
        hint: the hint of the error.

    Raises:
        UsageError: one of the options was given.
    """
    for name in names:
        if settings.given(name):
            flag = settings.called(name)
            raise UsageError(f"{flag} is of an eval, and {_origin(path)} is of {verb}", hint=hint)


_REPORTS_ON_OTHERS: Mapping[str, Callable[[Any, str, ReportSettings], Outcome]] = {
    BenchAnswer.form(): _report_on_bench,
    StudyAnswer.form(): _report_on_study,
}
"""By schema, the functions that report on a single document that is not an eval."""
