"""Options of what is tested beyond one data set: suites of OOD sets, corruptions, and what to do with bad samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hydractl.settings.common import FILES, Common
from hydractl.settings.option import option

OOD_SUITES = ("openood-imagenet", "openood-cifar100", "openood-cifar10", "sst2-paper")
"""Names of ``--ood-suite``; ``hydractl.data.suites`` lists the contents of each."""

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""Names of ``--corruptions``, in the order of Hendrycks & Dietterich 2019; see ``hydractl.data.corruptions``."""

SEVERITIES = (1, 2, 3, 4, 5)

_ALL = "all"
_PARTIAL = "partial"
_EVALUATION = "Evaluation"


class SuiteChoice(NamedTuple):
    """One ``--ood-suite``.

    Attributes:
        name: one of :data:`OOD_SUITES`.
        sets: the sets asked for by name, in the order given; () for all of them.
        partial: whether to go on without the sets that are not there.
    """

    name: str
    sets: tuple[str, ...]
    partial: bool


def parse_ood_suite(text: str) -> SuiteChoice:
    """Read ``NAME``, ``NAME:partial`` or ``NAME:SET,SET,...``.

    Raises:
        ValueError: with the rest of a sentence that starts with ``--ood-suite``.
    """
    name, colon, rest = text.strip().partition(":")
    if name not in OOD_SUITES:
        raise ValueError(f"must be one of {', '.join(OOD_SUITES)}, not {name!r}")
    words = [word.strip() for word in rest.split(",")] if colon else []
    if not all(words):
        raise ValueError(f"has an empty name of a set in {text!r}")
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"names {twice[0]!r} twice in {text!r}")
    return SuiteChoice(name, tuple(word for word in words if word != _PARTIAL), _PARTIAL in words)


@dataclass(kw_only=True)
class OodSuite(Common):
    """A suite of OOD sets by its name."""

    ood_suite: str | None = option(
        None,
        help=f"A benchmark's OOD sets: {', '.join(OOD_SUITES)}; after a colon, names of some of its sets, or partial "
        "to continue without those that are missing",
        metavar="NAME[:SET,...]",
        group=_EVALUATION,
    )
    ood_root: str | None = option(
        None, help="The folder that holds the data of --ood-suite", metavar="FOLDER", group=_EVALUATION
    )

    def suite(self) -> SuiteChoice | None:
        """The parsed ``--ood-suite``."""
        return None if self.ood_suite is None else parse_ood_suite(self.ood_suite)

    def suite_problems(self) -> list[str]:
        """A suite that can be read, with a folder, and no folder without a suite; for ``conflicts()``."""
        if self.ood_suite is None:
            without = self.ood_root is not None and "ood_suite" not in self.unread
            return [f"--ood-root{self.where('ood_root')} needs --ood-suite"] if without else []
        found = []
        try:
            parse_ood_suite(self.ood_suite)
        except ValueError as error:
            found.append(f"--ood-suite {error}{self.where('ood_suite')}")
        if not self.given("ood_root"):
            found.append(f"--ood-suite {self.ood_suite} needs --ood-root, the folder of its data")
        return found


@dataclass(kw_only=True)
class Corruptions(Common):
    """Corrupted versions of the in-distribution images."""

    corruptions: list[str] = option(
        [],
        help=f"Also measure on corrupted images of --data: {_ALL}, or some of {', '.join(CORRUPTIONS)}",
        choices=(_ALL, *CORRUPTIONS),
        metavar="NAME,...",
        split=True,
        group=_EVALUATION,
    )
    severities: list[int] = option(
        list(SEVERITIES),
        help="How strong the corruptions are, 1 to 5",
        metavar="N,...",
        at_least=SEVERITIES[0],
        at_most=SEVERITIES[-1],
        split=True,
        group=_EVALUATION,
    )

    def corruption_names(self) -> list[str]:
        """The corruptions asked for, in the order of :data:`CORRUPTIONS`."""
        wanted = CORRUPTIONS if _ALL in self.corruptions else self.corruptions
        return [name for name in CORRUPTIONS if name in wanted]

    def corruption_problems(self) -> list[str]:
        """``all`` excludes other names, and severities need a corruption; for ``conflicts()``."""
        found = []
        if _ALL in self.corruptions and len(self.corruptions) > 1:
            found.append(
                f"--corruptions {_ALL} names every corruption: leave out the others{self.where('corruptions')}"
            )
        if self.sources.get("severities") == "flag" and not self.given("corruptions"):
            found.append(f"--severities{self.where('severities')} needs --corruptions")
        return found


@dataclass(kw_only=True)
class OnBad(Common):
    """The option for samples that cannot be read."""

    on_bad: str = option(
        "error",
        help="An image that cannot be read: error stops and names it; skip leaves it out, counts and lists it",
        choices=("error", "skip"),
        group=FILES,
    )
