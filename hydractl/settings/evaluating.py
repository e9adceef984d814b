"""The options of ``eval``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from hydractl.expressions.conditions import Requirement, parse_requirement
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
    parse_val_ood,
)
from hydractl.expressions.score_choice import ALL_SCORES, ScoreChoice, parse_ood_score
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.settings.common import Batched, file_option
from hydractl.settings.measuring import Measured, show_option
from hydractl.settings.option import ends_in, option

val_option = partial(option, "Validation data")
dropout_option = partial(option, "MC dropout")
eval_option = partial(option, "Evaluation")

_ALL = "all"
_PASSES = 10
_RULE = re.compile(r"(?P<side>ood|id):(?P<share>0?\.[0-9]+|[01](\.0*)?)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def _check_temperature(text: str) -> None:
    row, equals, value = text.rpartition("=")
    number = float(value) if _NUMBER.fullmatch(value) else -1.0
    named = bool(equals)
    if named and not (row and 1e-9 <= number <= 1e9):
        raise ValueError(f"must be ROW=T with a number above 0 (1e-9 to 1e9) for one row, not {text!r}")
    if not named and value not in ("fit", "vector", "none") and not 1e-9 <= number <= 1e9:
        raise ValueError(f"must be fit, vector, none or a number above 0 (1e-9 to 1e9), not {text!r}")


def _check_threshold(text: str) -> None:
    rule = _RULE.fullmatch(text)
    if rule is None:
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise ValueError(f"must be ood:SHARE, id:SHARE or a number, not {text!r}")
    elif rule["side"] == "ood" and not 0 < float(rule["share"]) <= 1:
        raise ValueError(f"ood:SHARE must be above 0 and at most 1, not {text!r}")
    elif rule["side"] == "id" and not 0 <= float(rule["share"]) < 1:
        raise ValueError(f"id:SHARE must be at least 0 and below 1, not {text!r}")


def _check_ood(text: str) -> None:
    name = parse_ood_set(text).name
    if name == "id":
        raise ValueError("cannot be named 'id', which is --data")
    if name == "edges":
        raise ValueError("cannot be named 'edges', which the answer has a use for")


@dataclass(kw_only=True)
class Validated(Measured, Batched):
    """Options of bad samples, and of what is chosen on validation data."""

    on_bad: str = file_option(
        "An image that cannot be read: error stops and names it; skip leaves it out, counts and lists it",
        "error",
        choices=("error", "skip"),
    )
    val: str | None = val_option(
        "In-distribution validation data, on which something is chosen", metavar="SPEC", often=True
    )
    val_ood: list[str] = val_option(
        "Out-of-distribution validation data, never the same as a test set; repeat it for more; auto makes them of "
        "the samples of --val",
        [],
        metavar="NAME=SPEC|auto",
        names=True,
        check=parse_val_ood,
    )
    temperature: list[str] = val_option(
        "Scale the log of the averaged prediction; fit (one temperature by the NLL of --val), vector (a scale and a "
        "bias per class), a number, or none to ignore that of the checkpoint; ROW=T for one row, repeated [default: "
        "what the checkpoint has]",
        [],
        metavar="fit|vector|none|T|ROW=T",
        check=_check_temperature,
        often=True,
    )
    threshold: str | None = val_option(
        "OOD score from which a sample is flagged as OOD: ood:0.95 (flag 95 % of --val-ood), id:0.01 (flag 1 % of "
        "--val), or a score [default: what the checkpoint has]",
        metavar="ood:P|id:P|SCORE",
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
    calibrated: str | None = val_option(
        "Also write the MODEL with its temperature and threshold",
        metavar="FILE.st",
        check=ends_in(".st", ".safetensors"),
        writes=True,
    )

    def val_ood_sets(self) -> list[OodSet]:
        """Return the data sets of ``--val-ood``, in order."""
        return [parse_val_ood(text) for text in self.val_ood]

    def temperature_of_all(self) -> str | None:
        """Return the ``--temperature`` that is not of one row."""
        return next((text for text in self.temperature if "=" not in text), None)

    def temperatures_of_rows(self) -> dict[str, str]:
        """Return the ``--temperature ROW=T`` by row."""
        parts = [text.rpartition("=") for text in self.temperature if "=" in text]
        return {row: value for row, _, value in parts}

    def _temperatures_given_twice(self) -> list[str]:
        rows = [text.rpartition("=")[0] for text in self.temperature]
        twice = sorted({row for row in rows if rows.count(row) > 1})
        return [
            f"--temperature is given twice{f' for {row}' if row else ''}{self.where('temperature')}" for row in twice
        ]

    def conflicts(self) -> list[str]:
        """List problems: whatever is chosen needs data to choose on."""
        side = (self.threshold or "").partition(":")[0]
        temperature = self.temperature_of_all()
        chosen = {
            f"--temperature {temperature}": temperature in ("fit", "vector"),
            f"--threshold {self.threshold}": side == "id",
            "--conformal": self.conformal is not None,
        }
        found = super().conflicts() + self.twice_named("val_ood")
        needing_val = [name for name, needs_val in chosen.items() if needs_val]
        if needing_val and self.val is None:
            found.append(f"{needing_val[0]} needs --val, data to choose on that is not tested on")
        if side == "ood" and not self.val_ood:
            found.append(f"--threshold {self.threshold} needs --val-ood, data to choose on that is not tested on")
        if self.val is None and AUTO in [text.partition("=")[2] or text for text in self.val_ood]:
            found.append("--val-ood auto needs --val, of whose samples it is made")
        found += self._temperatures_given_twice()
        kept = ("temperature", "threshold", "ood_score")
        if self.calibrated is not None and not any(getattr(self, name, None) for name in kept):
            found.append("--calibrated needs something to keep: --temperature, --threshold or --ood-score")
        if self.calibrated is not None and len(self.model) > 1:
            found.append(f"--calibrated writes one MODEL, not {len(self.model)}")
        return found


@dataclass(kw_only=True)
class Shown(Validated):
    """Options of MC dropout (``hydractl.evaluation.mc_dropout``), and of what is made from the answer of an eval."""

    of_showing: ClassVar[tuple[str, ...]] = (
        *(*Measured.of_showing, "report", "plots", "card", "card_model", "openood_csv", "over"),
    )

    mc_dropout: float | None = dropout_option(
        "Run every MODEL --samples times with dropout of rate P in the places of finetune --dropout, and measure the "
        "passes as an ensemble",
        metavar="P",
        at_least=0,
        below=1,
    )
    samples: int | None = dropout_option(f"Passes with --mc-dropout [passes; default: {_PASSES}]", at_least=2)
    report: str | None = show_option(
        "Also write a report as one .html file, with tables and plots",
        metavar="FILE",
        check=ends_in(".html", any_case=True),
        often=True,
        writes=True,
    )
    plots: str | None = show_option("Also write the plots of the report as .png files", metavar="DIR", writes=True)
    card: str | None = show_option(
        "Also write a model card: a .md file with the results of one row",
        metavar="FILE",
        check=ends_in(".md", any_case=True),
        writes=True,
    )
    card_model: str | None = show_option("The row that the card is about [default: the last one]", metavar="NAME")
    note: str | None = show_option(
        "A sentence about how this model was chosen, for the answer, the card and the provenance of --calibrated",
        metavar="TEXT",
    )
    openood_csv: str | None = show_option(
        "Also write the table of OpenOOD's evaluator, with near and far means, in percent; of several rows each has "
        "its name in the file's",
        metavar="FILE",
        check=ends_in(".csv", any_case=True),
        writes=True,
    )
    from_file: list[str] = show_option(
        "Measure nothing: show, draw or check an eval.json written before; several with --over",
        [],
        metavar="FILE",
        flag="--from",
    )
    over: str | None = show_option(
        "Show the means of the answers of --from, with sample standard deviations, over seeds (rows with the same name "
        "before #) or over data sets (rows with the same name)",
        choices=("seed", "data"),
    )

    def inapplicable(self) -> dict[str, str]:
        """Return options that mean nothing beside the others.

        With ``--over``, ``output`` is not among them: there is a new answer to write.
        """
        return {k: v for k, v in super().inapplicable().items() if k != "output" or not self.given("over")}

    def settle(self) -> None:
        """Fill in the default number of passes, if only the rate is given."""
        if self.mc_dropout is not None and self.samples is None:
            self.samples = _PASSES

    def passes(self) -> dict[str, Any] | None:
        """Return ``p``, ``samples`` and ``seed`` of MC dropout; None without."""
        if self.mc_dropout is None:
            return None
        return {"p": self.mc_dropout, "samples": self.samples, "seed": self.seed}

    def conflicts(self) -> list[str]:
        """List problems: passes are those of MC dropout, and a row for the card needs a card."""
        found = super().conflicts() + self.goes_with("samples", "mc_dropout") + self.goes_with("card_model", "card")
        found += self.goes_with("over", "from_file")
        if len(self.from_file) > 1 and self.over is None:
            found.append(f"--from is given {len(self.from_file)} times{self.where('from_file')} and needs --over")
        if self.calibrated is not None and self.mc_dropout is not None:
            found.append("--calibrated keeps what was chosen for a model that runs once, not for --mc-dropout")
        return found


@dataclass(kw_only=True)
class EvalSettings(Shown):
    """Options of ``eval``."""

    verb: ClassVar[str] = "eval"
    lacks: ClassVar[tuple[str, ...]] = ("tower",)

    ood: list[str] = eval_option(
        "Out-of-distribution data, as NAME[:near|far]=SPEC; repeat it for more",
        [],
        metavar="NAME=SPEC",
        names=True,
        check=_check_ood,
        often=True,
    )
    ood_score: list[str] = eval_option(
        f"The score that separates OOD from ID samples, on logits: {', '.join(SCORES)}; on features, with --fit: "
        f"{', '.join(ON_FEATURES)}; several, or {ALL_SCORES}, to compare them in every row; ROW=NAME for one row, "
        "repeated [default: what the checkpoint has, else msp]",
        [],
        metavar="NAME,...|ROW=NAME",
        check=parse_ood_score,
    )
    fit: str | None = eval_option(
        "Training data, which --ood-score on features and --probe are fitted to", metavar="SPEC"
    )
    probe: str | None = eval_option(
        "Measure a classifier of the features, fitted to --fit, instead of the model's own; a body has none: knn (20 "
        "neighbours) or linear (logistic regression, its penalty chosen on --val, if given)",
        choices=("knn", "linear"),
    )
    knn_k: int = eval_option("The neighbour whose distance --ood-score knn takes [neighbours]", 50, at_least=1)
    features: str | None = eval_option(
        "Keep what the MODEL makes of --fit in a file, or read it from the file that is there, instead of running the "
        "MODEL on --fit again",
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
        "Also write predictions: .jsonl or .csv, one line per sample of --data; .st, the logits of every member on "
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
        f"Also measure on corrupted images of --data: {_ALL}, or some of {', '.join(CORRUPTIONS)}",
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

    def ood_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def scores(self) -> list[ScoreChoice]:
        """Return every ``--ood-score``, in order."""
        return [parse_ood_score(text) for text in self.ood_score]

    def suite(self) -> SuiteChoice | None:
        """Return the parsed ``--ood-suite``."""
        return None if self.ood_suite is None else parse_ood_suite(self.ood_suite)

    def corruption_names(self) -> list[str]:
        """Return the corruptions asked for, in the order of Hendrycks & Dietterich."""
        every = [name for name in CORRUPTIONS if name != FROST or self.photographs is not None]
        return [name for name in every if _ALL in self.corruptions or name in self.corruptions]

    def requirements(self) -> list[Requirement]:
        """Return the ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def conflicts(self) -> list[str]:
        """List problems: what each option of the test data needs beside it."""
        found = super().conflicts() + self.twice_named("ood") + self.goes_with("ood_root", "ood_suite")
        found += self._scores_given_twice() + self._not_with_probe() + self.goes_with("features", "fit")
        if self.given("features") and self.mc_dropout is not None:
            found.append(f"--features{self.where('features')} is not for --mc-dropout, which has no scores on features")
        if self.ood_suite is not None and not self.given("ood_root"):
            found.append(f"--ood-suite {self.ood_suite} needs --ood-root, the folder of its data")
        if _ALL in self.corruptions and len(self.corruptions) > 1:
            where = self.where("corruptions")
            found.append(f"--corruptions {_ALL} names every corruption: leave out the others{where}")
        if FROST in self.corruptions and not self.given("photographs"):
            needed = PHOTOGRAPHS.format("the folder of photographs of frost")
            found.append(f"--corruptions {FROST}{self.where('corruptions')} needs --photographs, {needed}")
        if self.given("photographs") and not {_ALL, FROST} & {*self.corruptions}:
            found.append(f"--photographs{self.where('photographs')} needs --corruptions {FROST}, or {_ALL}")
        if self.sources.get("severities") == "flag" and not self.given("corruptions"):
            found.append(f"--severities{self.where('severities')} needs --corruptions")
        if self.resume and not (self.predictions or "").endswith(".st"):
            found.append("--resume needs --predictions F.st, which keeps what has been computed")
        if self.reuse and (self.predictions or "").endswith(".st"):
            found.append(f"--predictions F.st keeps what is computed, not what --reuse{self.where('reuse')} reads")
        return found + self._without_data()

    def _scores_given_twice(self) -> list[str]:
        """Return a problem for each name of all rows, and each row, that has been there before; `all` goes alone."""
        parts = [text.rpartition("=") for text in self.ood_score]
        names = [name.strip() for row, _, rest in parts if not row for name in rest.split(",")]
        said = names + [f"{row}=" for row, _, _ in parts if row]
        found = [f"--ood-score has {one} twice" for at, one in enumerate(said) if one in said[:at]]
        if ALL_SCORES in names and len({*names}) > 1:
            found.append(f"--ood-score {ALL_SCORES} names every score: leave out the others")
        if (
            self.given("fit")
            and not self.given("probe")
            and not {ALL_SCORES, *ON_FEATURES} & {part for *_, rest in parts for part in rest.split(",")}
        ):
            found.append(f"--fit needs --probe, or an --ood-score on features: {', '.join(ON_FEATURES)}")
        return [f"{problem}{self.where('ood_score')}" for problem in found]

    def _not_with_probe(self) -> list[str]:
        """A probe needs training data, and is no part of a checkpoint."""
        others = ("mc_dropout", "calibrated", "prompt", "features") if self.given("probe") else ()
        idle = [f"{self.called(name)} is not for --probe{self.where(name)}" for name in others if self.given(name)]
        return self.goes_with("probe", "fit") + idle

    def _without_data(self) -> list[str]:
        """List problems of options that would be ignored where the test sets are those of a predictions file."""
        if self.given("data") or self.from_file:
            return []
        unused = [name for name in ("ood", "ood_suite", "corruptions", "fit") if self.given(name)]
        if self.given("limit") and not self.given("val") and not self.given("val_ood"):
            unused.append("limit")
        return [f"{self.called(name)}{self.where(name)} needs --data" for name in unused]
