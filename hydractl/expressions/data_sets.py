"""The names of data sets, suites and corruptions in the values of options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hydractl.jsonio import held_as

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

ALL_CORRUPTIONS = "all"
"""The word that stands for every corruption in ``--corruptions``."""

SEVERITIES = (1, 2, 3, 4, 5)

AUTO = "auto"
"""The word that replaces a SPEC of OOD validation data: OOD samples are made from the ID validation samples."""

_PARTIAL = "partial"
_OFFICIAL = "official"

FROST = "frost"
"""The corruption that needs photographs."""
PHOTOGRAPHS = "{}; those of ImageNet-C are ImageNet-C/create_c/frost*.* of https://github.com/hendrycks/robustness"
"""The hint where photographs come from; ``{}`` is replaced by how to name their folder."""


def setting_value(text: str) -> str:
    """Return a value for the query of a SPEC, with ``%`` and ``&`` escaped."""
    without_percent = text.replace("%", "%25")
    return without_percent.replace("&", "%26")


def with_setting(spec: str, setting: str) -> str:
    """Return a SPEC with one more ``key=value`` in its query."""
    mark = "?"
    if "?" in spec:  # it has a query already
        mark = "&"
    return held_as(spec, f"{spec}{mark}{setting}")


class OodSet(NamedTuple):
    """One data set of ``--ood``.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far`` or None.
        spec: the SPEC of its data.
    """

    name: str
    group: str | None
    spec: str


def parse_ood_set(text: str) -> OodSet:
    """Parse ``NAME[:near|far]=SPEC``.

    Raises:
        ValueError: the text does not have this form.
    """
    name_and_group, _, written_spec = text.partition("=")
    name, colon, written_group = name_and_group.partition(":")
    spec = written_spec.strip()
    group = None
    if colon:
        group = written_group
    has_name = _SET_NAME.fullmatch(name) is not None
    has_known_group = group in (None, "near", "far")
    if not has_name or not has_known_group or not spec:
        raise ValueError(f"must be NAME[:near|far]=SPEC, not {text!r}")
    return OodSet(name, group, held_as(text, spec))


def parse_ood_val(text: str) -> OodSet:
    """Parse ``NAME=SPEC``, or ``auto`` alone.

    Raises:
        ValueError: see :func:`parse_ood_set`.
    """
    if text == AUTO:
        return OodSet(AUTO, None, AUTO)
    return parse_ood_set(text)


class SuiteChoice(NamedTuple):
    """One ``--ood-suite``.

    Attributes:
        name: one of :data:`OOD_SUITES`.
        sets: the names of the sets to test, in the order written; () for all sets.
        partial: whether sets without data are skipped, rather than an error.
        official: whether to test every set that the benchmark itself tests.
    """

    name: str
    sets: tuple[str, ...]
    partial: bool
    official: bool = False


def parse_ood_suite(text: str) -> SuiteChoice:
    """Parse ``NAME``, ``NAME:partial``, ``NAME:official`` or ``NAME:SET,SET,...``.

    Raises:
        ValueError: the suite is unknown, or the words after its name contradict each other.
    """
    name, colon, listed_words = text.strip().partition(":")
    if name not in OOD_SUITES:
        known = ", ".join(OOD_SUITES)
        raise ValueError(f"must be one of {known}, not {name!r}")

    # Split the words after the name: names of sets, "partial" and "official".
    words = []
    if colon:
        words = [word.strip() for word in listed_words.split(",")]
    if "" in words:
        raise ValueError(f"has an empty name of a set in {text!r}")
    repeated = {word for word in words if words.count(word) > 1}
    if repeated:
        first_repeated = min(repeated)
        raise ValueError(f"names {first_repeated!r} twice in {text!r}")

    partial = _PARTIAL in words
    official = _OFFICIAL in words
    sets = [word for word in words if word not in (_PARTIAL, _OFFICIAL)]
    if sets and official:
        raise ValueError(f"has {_OFFICIAL}, which is all sets, beside names of sets in {text!r}")
    return SuiteChoice(name, tuple(sets), partial, official)


def corruptions_asked_for(names: Sequence[str], *, with_frost: bool) -> list[str]:
    """Return the corruptions that ``--corruptions`` names, in the order of Hendrycks & Dietterich.

    Args:
        names: the values of the option.
        with_frost: whether there are photographs for frost, which is left out without them.
    """
    asked_for = [name for name in CORRUPTIONS if name in names or ALL_CORRUPTIONS in names]
    if not with_frost and FROST in asked_for:
        asked_for.remove(FROST)
    return asked_for
