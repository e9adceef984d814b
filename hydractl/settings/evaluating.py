"""The options of ``eval``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from hydractl.metrics.ood_scores import SCORES
from hydractl.settings.common import Batched
from hydractl.settings.measuring import LastBlock, require_problems
from hydractl.settings.option import option
from hydractl.settings.passes import Passes
from hydractl.settings.reporting import Reporting
from hydractl.settings.require import OodSet, Requirement, parse_ood_set, parse_requirement
from hydractl.settings.suites import Corruptions, OnBad, OodSuite

_VALIDATION = "Validation data"
_MATTERS = "Evaluation"
_RULE = re.compile(r"(?P<side>ood|id):(?P<share>0?\.[0-9]+|[01](\.0*)?)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


@dataclass(kw_only=True)
class Validated(Batched):
    """Options of what is chosen on validation data."""

    val: str | None = option(
        None, help="In-distribution validation data, on which something is chosen", metavar="SPEC", group=_VALIDATION
    )
    val_ood: list[str] = option(
        [],
        help="Out-of-distribution validation data, never the same as a test set; repeat it for more",
        metavar="NAME=SPEC",
        names=True,
        group=_VALIDATION,
    )
    temperature: str | None = option(
        None,
        help="Scale the log of the averaged prediction: fit (one temperature by the NLL of --val), vector (a scale and "
        "a bias per class), a number, or none to ignore that of the checkpoint",
        metavar="fit|vector|none|T",
        group=_VALIDATION,
        default_text="what the checkpoint has",
    )
    threshold: str | None = option(
        None,
        help="OOD score from which a sample is flagged as OOD: ood:0.95 (flag 95 % of --val-ood), id:0.01 (flag 1 % of "
        "--val), or a score",
        metavar="ood:P|id:P|SCORE",
        group=_VALIDATION,
        default_text="what the checkpoint has",
    )
    conformal: float | None = option(
        None,
        help="Prediction sets that miss the label in at most this share, by split conformal prediction on --val",
        metavar="ALPHA",
        above=0.0,
        below=1.0,
        group=_VALIDATION,
    )
    conformal_score: str = option(
        "lac",
        help="How the classes of a prediction set are ranked: lac (by probability: the smallest sets) or aps (by "
        "cumulative probability: sets that adapt to the sample)",
        choices=("lac", "aps"),
        group=_VALIDATION,
    )
    calibrated: str | None = option(
        None,
        help="Also write the MODEL with its temperature and threshold",
        metavar="FILE.st",
        group=_VALIDATION,
    )

    def val_ood_sets(self) -> list[OodSet]:
        """The data sets of ``--val-ood``, in order; without a name they are called after their place."""
        return [parse_ood_set(text) for text in self.val_ood]

    def conflicts(self) -> list[str]:
        """Whatever is chosen needs data to choose on."""
        found = super().conflicts()
        fitted = self.temperature in ("fit", "vector")
        if self.temperature is not None and not fitted and self.temperature != "none":
            number = float(self.temperature) if _NUMBER.fullmatch(self.temperature) else -1.0
            if not 1e-9 <= number <= 1e9:
                found.append(
                    "--temperature must be fit, vector, none or a number above 0 (1e-9 to 1e9), "
                    f"not {self.temperature!r}"
                    f"{self.where('temperature')}"
                )
        side = None
        if self.threshold is not None:
            side, problem = _threshold_side(self.threshold)
            if problem is not None:
                found.append(f"--threshold {problem}, not {self.threshold!r}{self.where('threshold')}")
        wanting = [
            name
            for name, needed in (
                ("--temperature " + str(self.temperature), fitted),
                ("--threshold " + str(self.threshold), side == "id"),
                ("--conformal", self.conformal is not None),
            )
            if needed
        ]
        if wanting and self.val is None:
            found.append(f"{wanting[0]} needs --val, data to choose on that is not tested on")
        if side == "ood" and not self.val_ood:
            found.append(f"--threshold {self.threshold} needs --val-ood, data to choose on that is not tested on")
        if self.calibrated is not None and not self.calibrated.endswith((".st", ".safetensors")):
            found.append(f"--calibrated must end in .st, not {self.calibrated!r}{self.where('calibrated')}")
        if self.calibrated is not None and self.temperature is None and self.threshold is None:
            found.append("--calibrated needs something to keep: --temperature or --threshold")
        if self.calibrated is not None and len(self.model) > 1:
            found.append(f"--calibrated writes one MODEL, not {len(self.model)}")
        return found + _set_problems(self, "val_ood", [])


@dataclass(kw_only=True)
class EvalSettings(Reporting, OodSuite, Corruptions, OnBad, LastBlock, Passes, Validated):
    """Options of ``eval``."""

    verb: ClassVar[str] = "eval"
    many_models: ClassVar[bool] = True

    ood: list[str] = option(
        [],
        help="Out-of-distribution data, as NAME[:near|far]=SPEC; repeat it for more",
        metavar="NAME=SPEC",
        names=True,
        group=_MATTERS,
    )
    ood_score: str = option(
        "msp",
        help="The score that separates OOD from ID samples",
        choices=tuple(SCORES),
        group=_MATTERS,
    )
    label_map: str | None = option(
        None, help="JSON object from labels of the data to labels of the model", metavar="FILE", group=_MATTERS
    )
    bootstrap: int = option(
        0,
        help="Resamples for 95 % intervals of every metric and of its difference to the first MODEL; 0: none",
        unit="resamples",
        at_least=0,
        group=_MATTERS,
    )
    predictions: str | None = option(
        None,
        help="Also write predictions: .jsonl or .csv, one line per sample of --data; .st, the logits of every member "
        "on all data, which eval takes as a MODEL",
        metavar="FILE",
        group=_MATTERS,
    )
    resume: bool = option(
        False, help="Resume the unfinished predictions of the same command (--predictions F.st)", group=_MATTERS
    )
    allow_seen: bool = option(
        False,
        help="Measure on samples that a circuit, a fine-tuning or a calibration has seen, and mark them",
        group=_MATTERS,
    )
    require: list[str] = option(
        [],
        help="Exit with 4 unless it holds in every row, as [NAME:]KEY>=NUMBER; repeat it for more",
        metavar="EXPR",
        group=_MATTERS,
    )

    def ood_sets(self) -> list[OodSet]:
        """The data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def requirements(self) -> list[Requirement]:
        """The ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def conflicts(self) -> list[str]:
        """Readable sets with names of their own, and a known format of predictions."""
        found = super().conflicts() + require_problems(self, self.require) + _set_problems(self, "ood", ["id"])
        found += self.suite_problems() + self.corruption_problems()
        if self.predictions is not None and not self.predictions.endswith((".jsonl", ".csv", ".st")):
            where = self.where("predictions")
            found.append(f"--predictions must end in .jsonl, .csv or .st, not {self.predictions!r}{where}")
        if self.resume and not (self.predictions or "").endswith(".st"):
            found.append("--resume needs --predictions F.st, which keeps what has been computed")
        if self.calibrated is not None and self.mc_dropout is not None:
            found.append("--calibrated keeps what was chosen for a model that runs once, not for --mc-dropout")
        return found + self._without_data()

    def _without_data(self) -> list[str]:
        """Problems of options that would be ignored where the test sets are those of a predictions file."""
        if self.given("data") or self.from_file is not None:
            return []
        unused = [name for name in ("ood", "ood_suite", "corruptions") if self.given(name)]
        if self.given("limit") and not self.given("val") and not self.given("val_ood"):
            unused.append("limit")
        return [f"{self.called(name)}{self.where(name)} needs --data" for name in unused]


def _threshold_side(text: str) -> tuple[str | None, str | None]:
    """The side (ID or OOD) that a threshold is chosen on, None for a number, and its problem."""
    rule = _RULE.fullmatch(text)
    if rule is None:
        finite = _NUMBER.fullmatch(text) and abs(float(text)) < float("inf")
        return None, None if finite else "must be ood:SHARE, id:SHARE or a number"
    share = float(rule["share"])
    if rule["side"] == "ood":
        return "ood", None if 0 < share <= 1 else "ood:SHARE must be above 0 and at most 1"
    return "id", None if 0 <= share < 1 else "id:SHARE must be at least 0 and below 1"


def _set_problems(settings: Batched, name: str, taken: list[str]) -> list[str]:
    """Problems of named data sets: unreadable ones and duplicate names."""
    found: list[str] = []
    names = list(taken)
    label = settings.called(name)
    for text in getattr(settings, name):
        try:
            one = parse_ood_set(text).name
        except ValueError as error:
            found.append(f"{label} {error}{settings.where(name)}")
            continue
        if one == "id" and name == "ood":
            found.append(f"--ood cannot be named 'id', which is --data{settings.where('ood')}")
        elif one == "edges" and name == "ood":
            found.append(f"--ood cannot be named 'edges', which the answer has a use for{settings.where('ood')}")
        elif one in names:
            found.append(f"{label} has the name {one!r} twice{settings.where(name)}")
        names.append(one)
    return found
