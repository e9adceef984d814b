"""What a study shows at a glance: tables and sentences, described once for terminal and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hydractl.files.eval_answer import EvalRow
from hydractl.files.model_records import MeasuredThreshold
from hydractl.files.results import Record
from hydractl.files.study_answer import AnyRowRecord, Purpose, StudyAnswer, StudyRowRecord
from hydractl.report.eval_tables import (
    glance_table,
    metrics_at,
    signed_number,
    single_number,
)
from hydractl.report.tables import Cell, Table, text_table
from hydractl.report.texts import bytes_text, number, percent, program_words, ratio

DIGITS = 3
_AT_A_GLANCE = {"OOD AUROC": "ood_avg.auroc", "FPR95": "ood_avg.fpr95", "accuracy": "id.accuracy"}
_OF_ID = {"accuracy": "id.accuracy", "NLL": "id.nll", "ECE": "id.ece"}
_OF_OOD = {
    "near AUROC": "near_avg.auroc",
    "far AUROC": "far_avg.auroc",
    "AUROC": "ood_avg.auroc",
    "FPR95": "ood_avg.fpr95",
}
"""The dotted key of the metric of each column, by the title of the column."""

_NOW = "single, MSP (now)"
"""The name of the single model as it is, above the models of a study."""

_COPY = "a copy of it without the N attention heads that a search found to matter least"
_MADE_OF: Mapping[str, str] = {
    "single": "the model as it is, with a temperature fitted on validation data",
    "whole-avg": f"fused with {_COPY} for accuracy and OOD detection",
    "whole-auto": f"fused with {_COPY}, as many as --max-drop allows",
    "whole-late": "the same, the heads all of the last third of its layers",
    "whole-three": "fused with three such copies: for accuracy, for OOD detection, and for both",
    "circuits": "three such copies, each without a third of the heads, without the model itself",
    "circuits-tuned": "the models of circuits, each trained on after pruning",
    "taylor": "three copies pruned by Taylor scores of the training data",
    "trained": "the single model, trained on like one of a tuned ensemble",
}
"""What models are made of, by the part of their name before ``@N``; those of methods have the name of the method."""

_SCORES: Mapping[str, str] = {
    "energy": "minus the log of the sum of exp(logits)",
    "mahalanobis": "distance of the features to the nearest class mean",
    "mahalanobis-layers": "distances of what each block gives to the nearest class mean, summed",
    "rmd": "mahalanobis, minus the distance to the mean of all training samples",
    "knn": "distance of the features to the nearest training samples",
    "vim": "energy, and what of the features lies outside of the space of the training samples",
    "react": "energy, after features above a limit have been cut down to it",
    "gen": "how far the probabilities are from one class alone, by their generalised entropy",
    "hedge": "a sum of several scores, each standardised on training samples held out",
}
"""What the scores are that a study takes most often; ``docs/metrics.md`` has all."""

_FIGURES: Mapping[str, str] = {
    "MSP": "the usual OOD score: minus the highest probability",
    "ID": "in distribution: data of the kind that the model was trained on",
    "OOD": "out of distribution: data of another kind, which a model should flag",
    "AUROC": "how often an OOD sample has a higher score than an ID sample; near and far: over such OOD sets alone",
    "FPR95": "false alarms: share of ID samples flagged where 95 % of the OOD samples are",
    "NLL": "negative log likelihood: how little probability the true class gets; lower is better",
    "ECE": "how far confidence is from accuracy; lower is better",
    "mult-adds": "multiplications with additions of one sample in the model, without its OOD score; ratio: over the "
    "single model's",
}


def _cells(measured: Record, keys: Iterable[str]) -> list[str]:
    """Return the metrics with these keys, such as ``id.nll``, as text; a dash for what was not measured."""
    cells = []
    for key in keys:
        place, _, metric = key.partition(".")
        cells.append(number(single_number(metrics_at(measured, [place]).get(metric)), DIGITS))
    return cells


def glance(study: StudyAnswer) -> Table | None:
    """Return the table of what the model to use changes, beside the single model with MSP; None if it is that model.

    A line for each figure has it before and after, and the paired difference with a word for it, such as ``better``.
    """
    # The one row (model) to use, its figures before and after, and the differences by metric.
    (used,) = (row for row in study.rows if row.used)
    before, after = study.baseline, used.test
    findings = {finding.metric: finding for finding in study.verdict.against_baseline}
    is_single = used is study.rows[0]
    if is_single and used.score == before.ood_score:
        return None

    # A line for each figure: its title, the figure before and after, and the difference. Without a finding that is
    # empty, or "the same" for a model beside itself, which has the same accuracy under any score. A figure that was
    # measured of neither has no line.
    without_finding = Cell("the same" if is_single else "")
    lines = []
    for title, key in _AT_A_GLANCE.items():
        values = [*_cells(before, [key]), *_cells(after, [key])]
        change = without_finding
        if key in findings:
            low, high = findings[key].ci
            change = Cell(f"{findings[key].kind}, {signed_number(findings[key].value)}", ends=(low, high), signed=True)
        is_measured = values != ["-", "-"]
        if is_measured:
            lines.append([Cell(title), *map(Cell, values), change])
    titles = ["test data", "now (MSP)", f"{used.name}, {used.score}", "difference"]
    return Table("", [(title, "") for title in titles], [*lines, *_threshold_lines(study), *_cost_lines(study, used)])


def _threshold_lines(study: StudyAnswer) -> list[list[Cell]]:
    """Return lines on what a threshold flags: of ID samples, and of OOD samples as the mean over the test sets.

    Each has a title, the share with the single model as it is, that with ``best.st``, and an empty cell. Both have a
    threshold of their own, set by the same rule. Empty where none was measured.
    """
    shares_of_id = []
    shares_of_ood = []
    for threshold in (study.baseline_threshold, study.use.threshold):
        shares = list(_shares_flagged(threshold).values())
        if len(shares) < 2:
            return []
        of_id, *of_ood_sets = shares
        shares_of_id.append(of_id)
        shares_of_ood.append(sum(of_ood_sets) / len(of_ood_sets))
    lines = []
    for title, (before, after) in {"flagged of ID": shares_of_id, "flagged of OOD": shares_of_ood}.items():
        lines.append([Cell(title), Cell(number(before, DIGITS)), Cell(number(after, DIGITS)), Cell("")])
    return lines


def _cost_lines(study: StudyAnswer, used: StudyRowRecord) -> list[list[Cell]]:
    """Return lines on what the model to use costs beside the single model: mult-adds, time, memory and file size.

    Each has a title, the figure of the single model, that of the model to use, and an empty cell. Time and memory are
    left out where they were not measured.
    """
    # Ratios are over the single model, whose own are 1.
    lines = [("mult-adds ratio", "1.00", Cell(number(used.mac_ratio, 2)))]
    memory_of_single: dict[int, int | None] = {}
    for timed in study.timed:
        if timed.model == study.rows[0].name:  # the single model, which stands before the other one of its batch size
            memory_of_single[timed.batch_size] = timed.peak_memory_bytes
            continue
        low, high = timed.ratio_ci
        lines.append((f"time ratio, batch {timed.batch_size}", "1.00", Cell(number(timed.ratio, 2), ends=(low, high))))
        memory_ratio = ratio(timed.peak_memory_bytes, memory_of_single[timed.batch_size])
        if memory_ratio is not None:
            lines.append((f"memory ratio, batch {timed.batch_size}", "1.00", Cell(number(memory_ratio, 2))))
    if study.model.bytes is not None and study.use.bytes is not None:
        lines.append(("file", bytes_text(study.model.bytes), Cell(bytes_text(study.use.bytes))))
    return [[Cell(title), Cell(before), after, Cell("")] for title, before, after in lines]


def in_brief(study: StudyAnswer) -> list[str]:
    """Return the sentences beside the first one of the verdict: other models, doubts, what is flagged, how sure."""
    verdict = study.verdict
    return [*verdict.on_other_rows, *verdict.doubts, *_flagged(study), _how_sure(study)]


def _flagged(study: StudyAnswer) -> list[str]:
    """Return a list of one sentence: the share of each test set that the threshold of ``best.st`` flags as OOD.

    Empty if no threshold was measured.
    """
    threshold = study.use.threshold
    if threshold is None or threshold.id_flagged is None:
        return []
    shares = _shares_flagged(threshold)
    now = _shares_flagged(study.baseline_threshold)
    listed = []
    for name, share in shares.items():
        by_msp = f" ({percent(now[name])} by MSP)" if name in now else ""
        listed.append(f"{percent(share)} of {name}{by_msp}")
    count = "" if study.choice.n is None else f"{study.choice.n:,} "
    return [
        f"best.st, this model with its score and a threshold, flags {', '.join(listed)}. A threshold was set to "
        f"{threshold.rule}, a share of {count}ID samples of --val: the fewer they are, the more the share of other "
        "samples differs by chance. False alarms (FPR95) are those of other thresholds, which find 95 % of OOD."
    ]


def _shares_flagged(threshold: MeasuredThreshold | None) -> dict[str, float]:
    """Return the share of ID samples and of each OOD set that a threshold flags, as far as they were measured.

    By the name of the set, "ID samples" first; empty without a threshold.
    """
    if threshold is None:
        return {}
    shares = {"ID samples": threshold.id_flagged, **(threshold.ood_flagged or {})}
    return {name: share for name, share in shares.items() if share is not None}


def _how_sure(study: StudyAnswer) -> str:
    """Return the sentences on how many samples were tested on, and how often resampled data choose the same.

    The latter is left out if the verdict says it already (``uncertain``), or if no OOD validation set had a vote
    (``telling`` is empty), so that nothing was chosen.
    """
    test = study.baseline
    sets = [f"{data.n:,} of {name}" for name, data in {"ID": test.id, **test.ood}.items() if data.n is not None]
    tested = f"How sure: tested on {', '.join(sets)}."
    if study.verdict.uncertain is not None or not study.choice.telling:
        return f"{tested} {study.verdict.footnote}"
    same = study.choice.stability
    on_samples = "" if study.choice.n is None else f" ({study.choice.n:,} of ID)"
    return (
        f"{tested} Resampled validation data{on_samples} choose the same model in {100 * same.row:.0f} % of cases, the "
        f"same score in {100 * same.score:.0f} %. {study.verdict.footnote}"
    )


_PURPOSES: Mapping[Purpose, str] = {
    "predict": "answers and OOD flags of best.st; put your inputs in the place of the test data",
    "export": "best.st as a file that runs without hydractl",
    "recalibrate": "temperature and threshold anew, once there are other validation data",
    "free score": "the single model with the free score that did as well",
}
"""What the commands to go on with are for."""


def next_steps(study: StudyAnswer) -> dict[str, list[str]]:
    """Return the words of the commands to go on with, by what they are for."""
    program = program_words()
    return {f"{step.purpose}: {_PURPOSES[step.purpose]}": [*program, *step.command] for step in study.next or ()}


def results_table(study: StudyAnswer, rows: Sequence[EvalRow]) -> Table:
    """Return the table of a page: first the single model with MSP, as it is now, then every row (model).

    The one to use is called recommended.
    """
    # A copy of the first row, the single model, with the figures of MSP. It has the costs of that row, and its OOD
    # score, so that no note says that scores differ: the name says MSP.
    single = rows[0]
    figures = {**dict(study.baseline), "ci": study.baseline_ci, "ood_score": single.ood_score}
    now = single.model_copy(update={**figures, "name": _NOW})
    shown = [now]
    for row in rows:
        remark = " (recommended)" if row.name == study.use.row else ""
        shown.append(row.model_copy(update={"name": f"{row.name}{remark}"}))
    return glance_table(shown)


def study_table(study: StudyAnswer) -> Table:
    """Return the table of the single model with MSP, and of every model under one OOD score, on the test data.

    Figures of OOD detection are dashes for a model that does not have this score.
    """
    on_id, on_ood = _OF_ID.values(), _OF_OOD.values()
    rows = [[_NOW, *_cells(study.baseline, [*on_ood, *on_id]), "1.00", "-"]]
    for row in study.rows:
        detection = row.common or Record()  # nothing, shown as dashes, if the row does not have the common score
        figures = [*_cells(detection, on_ood), *_cells(row.test, on_id)]
        rows.append([_marked_name(row), *figures, number(row.mac_ratio, 2), _learning_rates_text(row.lr)])
    title = f"Now, and every model with the score {study.common_score}, on the test data (* is best.st)"
    return text_table(title, ["model", *_OF_OOD, *_OF_ID, "mult-adds ratio", "learning rate"], rows)


def own_scores_table(study: StudyAnswer) -> Table:
    """Return the table of the models to which validation data gave another score than that of the single model."""
    rows = []
    for row in study.rows:
        if row.score != study.common_score:
            rows.append([_marked_name(row), row.score, *_cells(row.test, _OF_OOD.values())])
    return text_table("On the test data with the score of its own", ["model", "score", *_OF_OOD], rows, left=2)


def ruled_out_table(study: StudyAnswer) -> Table:
    """Return the table of the models that did not run on the test data, with figures on validation data."""
    keys = _AT_A_GLANCE.values()
    rows = []
    for row in study.ruled_out:
        rows.append([row.name, row.reason, *_cells(row.validation, keys), number(row.mac_ratio, 2)])
    titles = ["model", "why", *(f"validation {title}" for title in _AT_A_GLANCE), "mult-adds ratio"]
    return text_table("Ruled out on validation data, and not run on the test data", titles, rows, left=2)


def legend(study: StudyAnswer, rows: Iterable[AnyRowRecord]) -> dict[str, str]:
    """Return what the names of these models, the score and the figures of a study mean, by name.

    Models of one kind, such as whole-avg@12 and whole-avg@24, have one entry: whole-avg@N.
    """
    name_of_kind = {}
    for row in rows:
        kind, at, _ = row.name.partition("@")
        name_of_kind[kind] = f"{kind}@N" if at else kind
    # In the order of the explanations, as some speak of the one before.
    terms = {name_of_kind[kind]: words for kind, words in _MADE_OF.items() if kind in name_of_kind}
    if study.common_score in _SCORES:
        terms[study.common_score] = _SCORES[study.common_score]
    terms |= _FIGURES
    if _cells(study.baseline, ["id.nll"]) == ["-"]:  # test data without labels
        del terms["NLL"], terms["ECE"]
    return terms


def _learning_rates_text(rates: Sequence[float] | None) -> str:
    """Return the learning rates of the trainings of a row, one where all are the same; a dash without trainings."""
    if not rates:
        return "-"
    texts = [f"{rate:g}" for rate in rates]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def _marked_name(row: StudyRowRecord) -> str:
    """Return the name of a row; the row to use has a mark after it."""
    return f"{row.name} *" if row.used else row.name
