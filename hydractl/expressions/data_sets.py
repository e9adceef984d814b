"""The names of data sets, suites and corruptions, as they are written after an option."""

from __future__ import annotations

import re
from typing import NamedTuple

_SET_NAME = re.compile(r"[\w.+-]+")

OOD_SUITES = ("openood-imagenet", "openood-imagenet200", "openood-cifar100", "openood-cifar10", "sst2-paper")
"""Names of ``--ood-suite``; ``hydractl.data.suites`` lists the contents of each."""

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""Names of ``--corruptions``, in the order of Hendrycks & Dietterich 2019; see ``hydractl.data.corruptions``."""

SEVERITIES = (1, 2, 3, 4, 5)

AUTO = "auto"
"""In place of a SPEC of OOD validation data: OOD samples made of the ID validation samples."""

_PARTIAL = "partial"
_OFFICIAL = "official"

FROST = "frost"
"""The corruption that needs photographs."""
PHOTOGRAPHS = "{}; those of ImageNet-C are ImageNet-C/create_c/frost*.* of https://github.com/hendrycks/robustness"
"""A hint where they come from, with what names their folder."""


def setting_value(text: str) -> str:
    """Return a value as it stands in the query of a SPEC."""
    return text.replace("%", "%25").replace("&", "%26")


def with_setting(spec: str, setting: str) -> str:
    """Return a SPEC of data with one more ``key=value`` in its query."""
    separator = "&" if "?" in spec else "?"
    return f"{spec}{separator}{setting}"


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
    left, _, right = text.partition("=")
    name, colon, group = left.partition(":")
    spec = right.strip()
    has_name = _SET_NAME.fullmatch(name) is not None
    has_wrong_group = bool(colon) and group not in ("near", "far")
    if not has_name or not spec or has_wrong_group:
        raise ValueError(f"must be NAME[:near|far]=SPEC, not {text!r}")
    return OodSet(name, group or None, spec)


def parse_ood_val(text: str) -> OodSet:
    """Read ``NAME=SPEC``, or ``auto`` alone."""
    if text == AUTO:
        return OodSet(AUTO, None, AUTO)
    return parse_ood_set(text)


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
    words = []
    if colon:
        words = [word.strip() for word in rest.split(",")]
    if not all(words):
        raise ValueError(f"has an empty name of a set in {text!r}")
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"names {twice[0]!r} twice in {text!r}")
    sets = tuple(word for word in words if word not in (_PARTIAL, _OFFICIAL))
    if sets and _OFFICIAL in words:
        raise ValueError(f"has {_OFFICIAL}, which is all sets, beside names of sets in {text!r}")
    return SuiteChoice(name, sets, _PARTIAL in words, _OFFICIAL in words)
