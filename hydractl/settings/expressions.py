"""Words and expressions of ``eval`` and ``bench``: ``--require``, ``--ood``, ``--ood-score`` and so on.

What reads an expression raises ValueError with the rest of a sentence that starts with the name of the option.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import NamedTuple

from hydractl.errors import did_you_mean
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
_REQUIREMENT = re.compile(
    r"(?:(?P<row>.+):)?(?P<key>[^\s:<>=!]+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)",
    re.IGNORECASE,
)
_CONSTRAINT = re.compile(r"([a-z]+)\s*>=\s*(?:(-?[\d.]+)|(base)(?:\s*-\s*([\d.]+))?)")
_SET_NAME = re.compile(r"[\w.+-]+")

OOD_SUITES = ("openood-imagenet", "openood-imagenet200", "openood-cifar100", "openood-cifar10", "sst2-paper")
"""Names of ``--ood-suite``; ``hydractl.data.suites`` lists the contents of each."""

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""Names of ``--corruptions``, in the order of Hendrycks & Dietterich 2019; see ``hydractl.data.corruptions``."""

SEVERITIES = (1, 2, 3, 4, 5)

ALL_SCORES = "all"
"""The word of ``--ood-score`` for every score there is."""

AUTO = "auto"
"""In place of a SPEC of OOD validation data: OOD samples made of the ID validation samples."""

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Names of ``--track``; see ``hydractl.training.trackers``."""

_PARTIAL, _OFFICIAL = "partial", "official"


FROST = "frost"
"""The corruption that needs photographs."""
PHOTOGRAPHS = "{}; those of ImageNet-C are ImageNet-C/create_c/frost*.* of https://github.com/hendrycks/robustness"
"""A hint where they come from, with what names their folder."""


def setting_value(text: str) -> str:
    """A value as it stands in the query of a SPEC."""
    return text.replace("%", "%25").replace("&", "%26")


def with_setting(spec: str, setting: str) -> str:
    """A SPEC of data with one more ``key=value`` in its query."""
    return f"{spec}{'&' if '?' in spec else '?'}{setting}"


class Requirement(NamedTuple):
    """One ``--require``.

    Attributes:
        text: as it was given.
        row: the name of the one row it is about, or None for every row.
        key: the dotted path of the value in a row, for example ``ood_avg.auroc``.
        sign: one of ``>= <= > < ==``.
        value: the number to compare with.
    """

    text: str
    row: str | None
    key: str
    sign: str
    value: float

    def holds(self, measured: float) -> bool:
        """Whether a measured value meets the requirement."""
        return bool(_COMPARE[self.sign](measured, self.value))


def parse_requirement(text: str) -> Requirement:
    """Read ``[NAME:]key>=number``."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be [NAME:]KEY>=NUMBER (or <=, >, <, ==), not {text!r}")
    return Requirement(text.strip(), match["row"], match["key"], match["sign"], float(match["value"]))


class Constraint(NamedTuple):
    """One ``--subject-to`` of a search: a score that no removal may go below.

    Attributes:
        key: an objective.
        number: the lowest score that is allowed, or how far it may be below the base.
        below_base: which of the two.
    """

    key: str
    number: Fraction
    below_base: bool


def parse_constraint(text: str) -> Constraint:
    """Read ``KEY>=NUMBER`` or ``KEY>=base-NUMBER``."""
    try:
        key, number, base, below = _CONSTRAINT.fullmatch(text.strip()).groups()  # type: ignore[union-attr]
        return Constraint(key, Fraction((below or "0") if base else number), base is not None)
    except (AttributeError, ValueError):
        raise ValueError(f"must be KEY>=NUMBER or KEY>=base-NUMBER, not {text!r}") from None


class OodSet(NamedTuple):
    """One data set of ``--ood``.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far`` or None.
        spec: where the data are.
    """

    name: str
    group: str | None
    spec: str


def parse_ood_set(text: str) -> OodSet:
    """Read ``NAME[:near|far]=SPEC``."""
    left, equals, spec = text.partition("=")
    name, colon, group = left.partition(":")
    named = _SET_NAME.fullmatch(name) and (not colon or group in ("near", "far"))
    if not equals or not spec.strip() or not named:
        raise ValueError(f"must be NAME[:near|far]=SPEC, not {text!r}")
    return OodSet(name, group or None, spec.strip())


def parse_tracker(text: str) -> tuple[str, str | None]:
    """Read ``NAME[:WHERE]``."""
    name, _, where = text.partition(":")
    if name not in TRACKERS:
        raise ValueError(f"must be one of {', '.join(TRACKERS)}, not {name!r}{did_you_mean(name, TRACKERS)}")
    return name, where or None


class ScoreChoice(NamedTuple):
    """One ``--ood-score``.

    Attributes:
        row: the name of the one row it is about, or None for every row.
        names: of scores; one of a row, or ``all`` alone.
    """

    row: str | None
    names: tuple[str, ...]


def parse_ood_score(text: str) -> ScoreChoice:
    """Read ``NAME,...``, ``all`` or ``ROW=NAME``."""
    row, equals, rest = text.rpartition("=")
    names = tuple(name.strip() for name in rest.split(","))
    known = (*SCORES, *ON_FEATURES, *(() if equals else (ALL_SCORES,)))
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise ValueError(f"must be one of {', '.join(known)}, not {wrong!r}{did_you_mean(wrong, known)}")
    if equals and (not row or len(names) > 1):
        raise ValueError(f"must be NAME,... or ROW=NAME, not {text!r}")
    return ScoreChoice(row if equals else None, names)


def parse_val_ood(text: str) -> OodSet:
    """Read ``NAME=SPEC``, or ``auto`` alone."""
    return OodSet(AUTO, None, AUTO) if text == AUTO else parse_ood_set(text)


class SuiteChoice(NamedTuple):
    """One ``--ood-suite``.

    Attributes:
        name: one of :data:`OOD_SUITES`.
        sets: the sets asked for by name, in the order given; () for all of them.
        partial: whether to go on without the sets that are not there.
        official: whether to test all that the benchmark itself tests.
    """

    name: str
    sets: tuple[str, ...]
    partial: bool
    official: bool = False


def parse_ood_suite(text: str) -> SuiteChoice:
    """Read ``NAME``, ``NAME:partial``, ``NAME:official`` or ``NAME:SET,SET,...``."""
    name, colon, rest = text.strip().partition(":")
    if name not in OOD_SUITES:
        raise ValueError(f"must be one of {', '.join(OOD_SUITES)}, not {name!r}")
    words = [word.strip() for word in rest.split(",")] if colon else []
    if not all(words):
        raise ValueError(f"has an empty name of a set in {text!r}")
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"names {twice[0]!r} twice in {text!r}")
    sets = tuple(word for word in words if word not in (_PARTIAL, _OFFICIAL))
    if sets and _OFFICIAL in words:
        raise ValueError(f"has {_OFFICIAL}, which is all sets, beside names of sets in {text!r}")
    return SuiteChoice(name, sets, _PARTIAL in words, _OFFICIAL in words)
