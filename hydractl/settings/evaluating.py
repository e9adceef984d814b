"""The options of ``eval``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.expressions.conditions import parse_requirement
from hydractl.expressions.data_sets import (
    AUTO,
    CORRUPTIONS,
    FROST,
    OOD_SUITES,
    PHOTOGRAPHS,
    SEVERITIES,
    OodSet,
    SuiteChoice,
    parse_ood_set,
    parse_ood_suite,
    parse_ood_val,
)
from hydractl.expressions.score_choice import ALL_SCORES, ScoreChoice, parse_ood_score
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.options.option import ends_in, option
from hydractl.settings.common import Batched, Requiring, Rule, file_option
from hydractl.settings.measuring import Measured
from hydractl.settings.rules import names_once, needs

if TYPE_CHECKING:
    from hydractl.files.model_records import DropoutRecord

val_option = partial(option, "Validation data")
dropout_option = partial(option, "MC dropout")
eval_option = partial(option, "Evaluation")

_ALL = "all"
_PASSES = 10
_RULE = re.compile(r"(?P<side>ood|id):(?P<share>0?\.[0-9]+|[01](\.0*)?)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def check_temperature(text: str) -> None:
    """Check the text of a temperature: ``fit``, ``vector``, ``none``, a number above 0, or ``ROW=T`` with a number.

    Raises:
        ValueError: the text is none of these; the message is the rest of a sentence that starts with the option's name.
    """
    row, equals, value = text.rpartition("=")
    is_number = False
    if _NUMBER.fullmatch(value):
        is_number = 1e-9 <= float(value) <= 1e9
    if equals:  # ROW=T, for one row
        if not row or not is_number:
            raise ValueError(f"must be ROW=T with a number above 0 (1e-9 to 1e9) for one row, not {text!r}")
        return
    if value not in ("fit", "vector", "none") and not is_number:
        raise ValueError(f"must be fit, vector, none or a number above 0 (1e-9 to 1e9), not {text!r}")


def _check_threshold(text: str) -> None:
    """Check the text of a threshold: ``ood:SHARE``, ``id:SHARE``, or ``score:X`` with a finite number.

    A number alone is refused: whoever writes 0.05 may mean a share of the samples, or a value of the score.

    Raises:
        ValueError: the text has none of these forms, or the share is out of its range.
    """
    if _is_number(text):
        meanings = f"score:{text} is a value of the OOD score"
        if 0 <= float(text) < 1:
            meanings = f"id:{text} flags that share of --val, {meanings}"
        raise ValueError(f"must say what {text} is: {meanings}")
    before, _, value = text.partition(":")
    if before == "score" and _is_number(value):
        return
    rule = _RULE.fullmatch(text)
    if rule is None:
        raise ValueError(f"must be ood:SHARE, id:SHARE or score:X, not {text!r}")

    side = rule["side"]
    share = float(rule["share"])
    if side == "ood" and not 0 < share <= 1:
        raise ValueError(f"ood:SHARE must be above 0 and at most 1, not {text!r}")
    if side == "id" and not 0 <= share < 1:
        raise ValueError(f"id:SHARE must be at least 0 and below 1, not {text!r}")


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _check_ood(text: str) -> None:
    """Check a data set of ``--ood``; ValueError for a name with another meaning in the answer."""
    name = parse_ood_set(text).name
    if name == "id":
        raise ValueError("cannot be named 'id', which is --test")
    if name == "edges":
        raise ValueError("cannot be named 'edges', which the answer has a use for")


def _val_for_what_is_chosen(settings: Validated) -> list[str]:
    """Return a problem if something is to be chosen on ``--val`` and it is not given; only the first is reported."""
    if settings.val is not None:
        return []
    temperature = settings.temperature_of_all()
    threshold = settings.threshold or ""
    side_of_threshold = threshold.partition(":")[0]
    if temperature in ("fit", "vector"):
        chosen = f"--temperature {temperature}"
    elif side_of_threshold == "id":
        chosen = f"--threshold {threshold}"
    elif settings.conformal is not None:
        chosen = "--conformal"
    else:
        return []
    return [f"{chosen} needs --val, data to choose on that is not tested on"]


def _ood_val_for_the_threshold(settings: Validated) -> list[str]:
    """Return a problem if the threshold is to be chosen on ``--ood-val``, and it is not given."""
    if settings.threshold is None or settings.ood_val:
        return []
    rule = settings.threshold.partition(":")[0]
    if rule != "ood":
        return []
    return [f"--threshold {settings.threshold} needs --ood-val, data to choose on that is not tested on"]


def _val_to_make_ood_samples_of(settings: Validated) -> list[str]:
    """Return a problem if OOD samples are to be made of ``--val`` (``--ood-val auto``), and it is not given."""
    if settings.val is not None:
        return []
    for text in settings.ood_val:
        spec = text.partition("=")[2] or text
        if spec == AUTO:
            return ["--ood-val auto needs --val, of whose samples it is made"]
    return []


def _one_temperature_a_row(settings: Validated) -> list[str]:
    """Return a problem for each row that has two temperatures, and if two are given for all rows."""
    where = settings.where("temperature")
    rows = [text.rpartition("=")[0] for text in settings.temperature]  # empty for a temperature of all rows
    repeated = {row for row in rows if rows.count(row) > 1}
    problems = []
    for row in sorted(repeated):
        for_row = ""
        if row:
            for_row = f" for {row}"
        problems.append(f"--temperature is given twice{for_row}{where}")
    return problems


@dataclass(kw_only=True)
class Validated(Measured, Batched):
    """Options for samples that cannot be read, and for everything that is chosen on validation data."""

    rules: ClassVar[tuple[Rule, ...]] = (
        names_once("ood_val"),
        _val_for_what_is_chosen,
        _ood_val_for_the_threshold,
        _val_to_make_ood_samples_of,
        _one_temperature_a_row,
    )

    on_bad: str = file_option(
        "An image that cannot be read: error stops and names it; skip leaves it out, counts and lists it",
        "error",
        choices=("error", "skip"),
    )
    val: str | None = val_option(
        "In-distribution validation data, on which something is chosen", metavar="SPEC", often=True
    )
    ood_val: list[str] = val_option(
        "Out-of-distribution validation data, never the same as a test set; repeat it for more; auto makes them of "
        "the samples of --val",
        [],
        metavar="NAME=SPEC|auto",
        names=True,
        check=parse_ood_val,
    )
    temperature: list[str] = val_option(
        "Scale the log of the averaged prediction; fit (one temperature by the NLL of --val), vector (a scale and a "
        "bias per class), a number, or none to ignore that of the checkpoint; ROW=T for one row, repeated [default: "
        "what the checkpoint has]",
        [],
        metavar="fit|vector|none|T|ROW=T",
        check=check_temperature,
        often=True,
    )
    threshold: str | None = val_option(
        "OOD score from which a sample is flagged as OOD: ood:0.95 (flag 95 % of --ood-val), id:0.01 (flag 1 % of "
        "--val), or score:X (the score itself) [default: what the checkpoint has]",
        metavar="ood:P|id:P|score:X",
        check=_check_threshold,
    )
    conformal: float | None = val_option(
        "Prediction sets that miss the label in at most this share, by split conformal prediction on --val",
        metavar="ALPHA",
        above=0.0,
        below=1.0,
    )
    conformal_score: str = val_option(
        "How the classes of a prediction set are ranked: lac (by probability: the smallest sets) or aps (by "
        "cumulative probability: sets that adapt to the sample)",
        "lac",
        choices=("lac", "aps"),
    )

    def ood_val_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood-val``, in order."""
        return [parse_ood_val(text) for text in self.ood_val]

    def temperature_of_all(self) -> str | None:
        """Return the ``--temperature`` that is for all rows; None if there is none."""
        for text in self.temperature:
            if "=" not in text:
                return text
        return None

    def temperatures_of_rows(self) -> dict[str, str]:
        """Return the temperature of each row that has its own (``--temperature ROW=T``), by the name of the row."""
        by_row = {}
        for text in self.temperature:
            row, equals, value = text.rpartition("=")
            if equals:
                by_row[row] = value
        return by_row


@dataclass(kw_only=True)
class WithDropout(Validated):
    """Options of MC dropout (``hydractl.evaluation.mc_dropout``)."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *Validated.rules,
        needs("passes", "mc_dropout"),
    )

    mc_dropout: float | None = dropout_option(
        "Run every MODEL --passes times with dropout of rate P in the places of finetune --dropout, and measure the "
        "passes as an ensemble",
        metavar="P",
        at_least=0,
        below=1,
    )
    passes: int | None = dropout_option(f"Passes with --mc-dropout [passes; default: {_PASSES}]", at_least=2)

    def settle(self) -> None:
        """Fill in the default number of passes, if only the rate is given."""
        if self.mc_dropout is None:
            return
        if self.passes is None:
            self.passes = _PASSES

    def dropout(self) -> DropoutRecord | None:
        """Return the rate, the number of passes and the seed of MC dropout; None if it is not asked for."""
        if self.mc_dropout is None:
            return None
        assert self.passes is not None  # settle() has filled it in
        from hydractl.files.model_records import DropoutRecord

        return DropoutRecord(p=self.mc_dropout, passes=self.passes, seed=self.seed)


def _one_score_for_each(settings: EvalSettings) -> list[str]:
    """Return the problems of ``--ood-score``: a score or a row given twice, and ``all`` beside names of scores."""
    # A value is ROW=SCORE for one row, or SCORE,SCORE for all rows. Collect the rows as "ROW=" and the scores.
    scores_of_all: list[str] = []
    rows: list[str] = []
    for text in settings.ood_score:
        row, _, scores = text.rpartition("=")
        if row:
            rows.append(f"{row}=")
        else:
            scores_of_all += [score.strip() for score in scores.split(",")]

    where = settings.where("ood_score")
    problems = []
    earlier: set[str] = set()
    for name in scores_of_all + rows:
        if name in earlier:
            problems.append(f"--ood-score has {name} twice{where}")
        earlier.add(name)

    has_others = len(set(scores_of_all)) > 1
    if ALL_SCORES in scores_of_all and has_others:
        problems.append(f"--ood-score {ALL_SCORES} names every score: leave out the others{where}")
    return problems


def _a_use_for_training_data(settings: EvalSettings) -> list[str]:
    """Return a problem if ``--train`` is given and nothing is fitted to it."""
    if not settings.given("train") or settings.fits_to_training_data():
        return []
    scores = ", ".join(ON_FEATURES)
    where = settings.where("ood_score")
    return [f"--train needs an --ood-score on features: {scores}{where}"]


def a_use_for_words(settings: Any) -> list[str]:
    """Return a problem if ``--negative-words`` is given and no OOD score uses it.

    Args:
        settings: the settings of ``eval`` or ``calibrate``.
    """
    if not settings.given("negative_words"):
        return []

    # A value of --ood-score is SCORE,SCORE or ROW=SCORE: take what is after "=".
    asked_for: set[str] = set()
    for text in settings.ood_score:
        asked_for.update(text.rpartition("=")[2].split(","))
    scores_on_words = [name for name, needed in ON_FEATURES.items() if needed == "words"]
    if not asked_for.isdisjoint([ALL_SCORES, *scores_on_words]):
        return []
    return [f"--negative-words{settings.where('negative_words')} needs --ood-score {' or '.join(scores_on_words)}"]


def _features_of_one_pass(settings: EvalSettings) -> list[str]:
    """Return a problem if ``--features`` is given with MC dropout, which has no scores on features."""
    if not settings.given("features") or settings.mc_dropout is None:
        return []
    where = settings.where("features")
    return [f"--features{where} is not for --mc-dropout, which has no scores on features"]


def _a_folder_for_the_suite(settings: EvalSettings) -> list[str]:
    """Return a problem if ``--ood-suite`` is given without ``--ood-root``, the folder of its data."""
    if settings.ood_suite is None or settings.given("ood_root"):
        return []
    return [f"--ood-suite {settings.ood_suite} needs --ood-root, the folder of its data"]


def _every_corruption_or_some(settings: EvalSettings) -> list[str]:
    """Return a problem if ``--corruptions`` has ``all`` beside names of corruptions."""
    names = settings.corruptions
    if _ALL not in names or len(names) < 2:
        return []
    where = settings.where("corruptions")
    return [f"--corruptions {_ALL} names every corruption: leave out the others{where}"]


def _photographs_for_frost(settings: EvalSettings) -> list[str]:
    """Return a problem if the corruption frost is named without its photographs, or the photographs without frost."""
    names_frost = FROST in settings.corruptions
    has_photographs = settings.given("photographs")
    if names_frost and not has_photographs:
        needed = PHOTOGRAPHS.format("the folder of photographs of frost")
        where = settings.where("corruptions")
        return [f"--corruptions {FROST}{where} needs --photographs, {needed}"]

    may_have_frost = names_frost or _ALL in settings.corruptions  # all includes frost if there are photographs
    if has_photographs and not may_have_frost:
        where = settings.where("photographs")
        return [f"--photographs{where} needs --corruptions {FROST}, or {_ALL}"]
    return []


def _corruptions_for_severities(settings: EvalSettings) -> list[str]:
    """Return a problem if the flag ``--severities`` is given without ``--corruptions``.

    Severities from a file are no problem: they may be meant for another command.
    """
    if settings.sources.get("severities") != "flag":
        return []
    if settings.given("corruptions"):
        return []
    where = settings.where("severities")
    return [f"--severities{where} needs --corruptions"]


def _predictions_to_resume(settings: EvalSettings) -> list[str]:
    """Return a problem if ``--resume`` has no ``--predictions F.st``, or ``--reuse`` is beside one.

    Only an ``.st`` file keeps logits, which a later command can resume.
    """
    keeps_logits = (settings.predictions or "").endswith(".st")
    problems = []
    if settings.resume and not keeps_logits:
        problems.append("--resume needs --predictions F.st, which keeps what has been computed")
    if settings.reuse and keeps_logits:
        where = settings.where("reuse")
        problems.append(f"--predictions F.st keeps what is computed, not what --reuse{where} reads")
    return problems


def _data_to_test_on(settings: EvalSettings) -> list[str]:
    """Return a problem for each option that has no effect without ``--test``.

    Without ``--test`` the test sets are those of a predictions file.
    """
    if settings.given("test"):
        return []
    unused = list(filter(settings.given, ("ood", "ood_suite", "corruptions", "train")))
    # --limit also applies to validation data.
    has_validation_data = settings.given("val") or settings.given("ood_val")
    if settings.given("limit") and not has_validation_data:
        unused.append("limit")

    problems = []
    for name in unused:
        where = settings.where(name)
        problems.append(f"{settings.called(name)}{where} needs --test")
    return problems


@dataclass(kw_only=True)
class EvalSettings(Requiring, WithDropout):
    """Options of ``eval``."""

    verb: ClassVar[str] = "eval"
    lacks: ClassVar[tuple[str, ...]] = ("tower", "data")
    rules: ClassVar[tuple[Rule, ...]] = (
        *WithDropout.rules,
        names_once("ood"),
        needs("ood_root", "ood_suite"),
        _one_score_for_each,
        _a_use_for_training_data,
        a_use_for_words,
        needs("features", "train"),
        _features_of_one_pass,
        _a_folder_for_the_suite,
        _every_corruption_or_some,
        _photographs_for_frost,
        _corruptions_for_severities,
        _predictions_to_resume,
        _data_to_test_on,
    )

    test: str | None = file_option(
        "The data set that is tested on: a folder of class folders, an .npz, an image list, texts (.csv, .tsv, .jsonl, "
        ".parquet), or NAME/SPLIT after a scheme",
        metavar="SPEC",
        often=True,
    )
    ood: list[str] = eval_option(
        "Out-of-distribution data, as NAME[:near|far]=SPEC; repeat it for more",
        [],
        metavar="NAME=SPEC",
        names=True,
        check=_check_ood,
        often=True,
    )
    ood_score: list[str] = eval_option(
        f"The score that separates OOD from ID samples, on logits: {', '.join(SCORES)}; on features, with --train: "
        f"{', '.join(ON_FEATURES)}; several, or {ALL_SCORES}, to compare them in every row; ROW=NAME for one row, "
        "repeated [default: what the checkpoint has, else msp]",
        [],
        metavar="NAME,...|ROW=NAME",
        check=parse_ood_score,
    )
    train: str | None = eval_option("Training data, which --ood-score on features are fitted to", metavar="SPEC")
    knn_k: int = eval_option(
        "The neighbour whose distance --ood-score knn takes, and how many nnguide averages [neighbours]", 50, at_least=1
    )
    negative_words: str | None = eval_option(
        "Words that name no class, one a line, such as the nouns of a dictionary, for --ood-score neglabel of "
        "zero-shot models",
        metavar="FILE",
    )
    features: str | None = eval_option(
        "Keep what the MODEL makes of --train in a file, or read it from the file that is there, instead of running "
        "the MODEL on --train again",
        metavar="F.st",
        check=ends_in(".st", ".safetensors"),
        writes=True,
    )
    label_map: str | None = eval_option("JSON object from labels of the data to labels of the model", metavar="FILE")
    bootstrap: int = eval_option(
        "Resamples for 95 % intervals of every metric and of its difference to the first MODEL; 0: none",
        0,
        at_least=0,
        often=True,
    )
    predictions: str | None = eval_option(
        "Also write predictions: .jsonl or .csv, one line per sample of --test; .st, the logits of every member on "
        "all data, which eval takes as a MODEL",
        metavar="FILE",
        check=ends_in(".jsonl", ".csv", ".st"),
        writes=True,
    )
    reuse: list[str] = eval_option(
        "Read the logits of data sets that these predictions of the same MODEL hold, instead of running it; repeat it "
        "for more",
        [],
        metavar="F.st",
    )
    resume: bool = eval_option("Resume the unfinished predictions of the same command (--predictions F.st)", False)
    allow_seen: bool = eval_option(
        "Measure on samples that scores, a circuit, a fine-tuning or a calibration have seen, and mark them", False
    )
    require: list[str] = eval_option(
        "Exit with 4 unless it holds in every row, as [NAME:]KEY>=NUMBER; repeat it for more",
        [],
        metavar="EXPR",
        check=parse_requirement,
        often=True,
    )
    corruptions: list[str] = eval_option(
        f"Also measure on corrupted images of --test: {_ALL}, or some of {', '.join(CORRUPTIONS)}",
        [],
        choices=(_ALL, *CORRUPTIONS),
        metavar="NAME,...",
        split=True,
    )
    photographs: str | None = eval_option(
        "The folder with photographs of frost, for --corruptions frost, which all has with it only", metavar="FOLDER"
    )
    severities: list[int] = eval_option(
        "How strong the corruptions are, 1 to 5",
        list(SEVERITIES),
        metavar="N,...",
        at_least=SEVERITIES[0],
        at_most=SEVERITIES[-1],
        split=True,
    )
    ood_suite: str | None = eval_option(
        f"A benchmark's OOD sets: {', '.join(OOD_SUITES)}; after a colon, names of some of its sets, partial to "
        "continue without those that are missing, or official for all that OpenOOD v1.5 tests",
        metavar="NAME[:SET,...]",
        check=parse_ood_suite,
    )
    ood_root: str | None = eval_option("The folder that holds the data of --ood-suite", metavar="FOLDER")

    def settle(self) -> None:
        """Fill in defaults; drop ``--train`` if it was set for all verbs at once and nothing is fitted to it."""
        super().settle()
        if not self.of_this_verb("train") and not self.fits_to_training_data():
            self.train = None

    def fits_to_training_data(self) -> bool:
        """Return whether something is fitted to ``--train``: an OOD score on features."""
        fitted_scores = {ALL_SCORES, *ON_FEATURES}
        for text in self.ood_score:
            names = text.rpartition("=")[2]
            if fitted_scores.intersection(names.split(",")):
                return True
        return False

    def ood_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def scores(self) -> list[ScoreChoice]:
        """Return every ``--ood-score`` parsed, in order."""
        return [parse_ood_score(text) for text in self.ood_score]

    def suite(self) -> SuiteChoice | None:
        """Return the parsed ``--ood-suite``; None if it is not given."""
        if self.ood_suite is None:
            return None
        return parse_ood_suite(self.ood_suite)

    def corruption_names(self) -> list[str]:
        """Return the corruptions asked for, in the order of Hendrycks & Dietterich; frost only with photographs."""
        if _ALL not in self.corruptions:
            names = [name for name in CORRUPTIONS if name in self.corruptions]
        else:
            names = list(CORRUPTIONS)
        if self.photographs is None and FROST in names:
            names.remove(FROST)
        return names
