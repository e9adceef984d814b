"""The options of head selection: ``score``, ``extract-circuit`` and ``prune``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from hydractl.criteria import CRITERIA, Decider
from hydractl.errors import InputError
from hydractl.settings.common import Batched
from hydractl.settings.option import option

NEED_DATA = tuple(criterion.name for criterion in CRITERIA.all() if criterion.needs_data)
DECIDE = tuple(criterion.name for criterion in CRITERIA.all() if isinstance(criterion, Decider))
"""The criteria that decide by themselves how many heads are kept."""

OWN_OPTIONS = {one.name: criterion.name for criterion in CRITERIA.all() for one in criterion.options}
"""The options that are for one criterion alone, each with its criterion."""

OBJECTIVES = ("acc", "ood", "avg", "nll", "brier")

_CRITERION = "The importance criterion; higher scores are kept"
_SAMPLES = "Calibration samples, drawn by --seed without replacement"
_KEEP = "Heads to keep"
_REMOVE = "Heads to remove"

SettingsT = TypeVar("SettingsT", bound=type[Batched])


def with_own_options(group: str) -> Callable[[SettingsT], SettingsT]:
    """Add the options that criteria declare for themselves to a settings class that is no dataclass yet.

    Args:
        group: the heading of the help text that they stand under.

    Raises:
        InputError: for one that is an option already, of the verb or of another criterion.
    """

    def add(settings: SettingsT) -> SettingsT:
        for criterion in CRITERIA.all():
            for one in criterion.options:
                if hasattr(settings, one.name):
                    raise InputError(f"the criterion {criterion.name} declares the option {one.name!r}, which is taken")
                settings.__annotations__[one.name] = type(one.default)
                field = option(
                    one.default,
                    help=one.help,
                    group=group,
                    unit=one.unit,
                    choices=one.choices,
                    at_least=one.at_least,
                    at_most=one.at_most,
                )
                setattr(settings, one.name, field)
        return settings

    return add


@dataclass(kw_only=True)
@with_own_options("Scoring")
class ScoreSettings(Batched):
    """Options of ``score``."""

    verb: ClassVar[str] = "score"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("keep", "remove"),)

    method: str | None = option(None, help=_CRITERION, choices=CRITERIA.names, group="Scoring")
    samples: int = option(512, help=_SAMPLES, unit="samples", at_least=1, group="Scoring")
    order: str = option(
        "one-shot",
        help="All scores from the full model, or site by site on the model as pruned so far",
        choices=("one-shot", "sequential"),
        group="Scoring",
    )
    keep: int | None = option(
        None, help=f"{_KEEP} per site, with --order sequential", unit="heads", at_least=0, group="Scoring"
    )
    remove: int | None = option(
        None, help=f"{_REMOVE} per site, with --order sequential", unit="heads", at_least=0, group="Scoring"
    )

    def inapplicable(self) -> dict[str, str]:
        """A head count belongs to the sequential order, and a criterion's own options to it."""
        others = _options_of_others(self.method)
        if self.method in DECIDE:
            return dict.fromkeys(("order", "keep", "remove", *others), "method")
        counts = () if self.order == "sequential" else ("keep", "remove")
        return {**dict.fromkeys(counts, "order"), **dict.fromkeys(others, "method")}

    def conflicts(self) -> list[str]:
        """A criterion, its data, and a head count in the sequential order."""
        found = self.needs("method")
        if self.method in NEED_DATA:
            found += self.needs("data", f"--method {self.method}")
        if self.order == "sequential" and self.method not in DECIDE:
            found += self.exactly_one("keep", "remove")
        return found


@dataclass(kw_only=True)
class CircuitSettings(Batched):
    """Options of ``extract-circuit``."""

    verb: ClassVar[str] = "extract-circuit"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("budget", "keep"), ("start_mask", "share_from"))

    ood: str | None = option(None, help="The out-of-distribution data, as a SPEC", metavar="SPEC", group="Search")
    objective: list[str] = option(
        ["avg"],
        help="What to maximise: accuracy, AUROC against --ood, their mean, or minus a loss; several make one file each",
        choices=OBJECTIVES,
        metavar="acc|ood|avg|nll|brier,...",
        split=True,
        default_text="avg; nll with --algorithm headmap",
        group="Search",
    )
    ood_score: str = option(
        "msp",
        help="The OOD score whose AUROC is measured",
        choices=("msp", "entropy", "energy", "maxlogit"),
        group="Search",
    )
    budget: int | None = option(None, help=f"{_REMOVE} in all", unit="heads", at_least=1, group="Search")
    keep: int | None = option(None, help=f"{_KEEP}, mean per site", unit="heads", at_least=0, group="Search")
    algorithm: str = option(
        "greedy",
        help="Remove heads one by one (Algorithm 1 of the paper), or keep the best of each site in one pass",
        choices=("greedy", "headmap"),
        group="Search",
    )
    approx: str | None = option(
        None,
        help="Approximate search, recorded in the file: each step evaluates only the N heads that a gradient suggests",
        metavar="shortlist:N",
        pattern=r"shortlist:[1-9][0-9]{0,8}",
        default_text="exact",
        group="Search",
    )
    check_against: str | None = option(
        None,
        help="Report the agreement of the result with this exact circuit",
        metavar="CIRCUIT",
        default_text="no comparison",
        group="Search",
    )
    sites: str | None = option(
        None,
        help="Where heads may be removed: numbers of sites from 0, such as 3-11 or 0,2,5-7",
        metavar="LIST",
        pattern=r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*",
        default_text="everywhere",
        group="Which heads",
    )
    start_mask: str | None = option(
        None,
        help="Start from the heads that this mask keeps; those it removes count for the budget",
        metavar="MASK",
        default_text="all heads of the model",
        group="Which heads",
    )
    share_from: str | None = option(
        None,
        help="In the first --share-sites, remove what this circuit removes at the same budget",
        metavar="CIRCUIT",
        default_text="none",
        group="Which heads",
    )
    share_sites: int | None = option(
        None,
        help="Number of sites of each tower that --share-from decides; the rest of the budget goes to later ones",
        unit="sites",
        at_least=1,
        default_text="none",
        group="Which heads",
    )
    bounds: bool = option(
        True,
        help="Stop evaluating a candidate as soon as it can no longer win; the result is the same",
        group="Running",
    )
    memory: str | None = option(
        None,
        help="Memory limit for activations cached between evaluations, such as 8G",
        metavar="SIZE",
        pattern=r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]?",
        default_text="half of what is free",
        group="Running",
    )
    resume: bool = option(False, help="Resume the search recorded in the journal beside the output", group="Running")
    timeout: float = option(
        1800.0,
        help="How long the processes of a distributed search wait for each other",
        unit="seconds",
        above=0,
        at_most=10**6,
        group="Running",
    )

    def settle(self) -> None:
        """Headmap's own score is the loss."""
        if self.algorithm == "headmap" and self.objective == ["avg"] and not self._rank("objective"):
            self.objective = ["nll"]

    def inapplicable(self) -> dict[str, str]:
        """Headmap is one pass without steps."""
        return {} if self.algorithm == "greedy" else dict.fromkeys(("approx", "bounds"), "algorithm")

    def conflicts(self) -> list[str]:
        """Data of both kinds, how far to go, and what belongs together."""
        found = self.needs("data") + self.exactly_one("budget", "keep") + self.at_most_one("start_mask", "share_from")
        wanting = [o for o in self.objective if o in ("ood", "avg")]
        if wanting:
            found += self.needs("ood", f"--objective {wanting[0]}")
        if self.output == "-" and len(self.objective) > 1:
            found.append(f"--output - takes one --objective, not {len(self.objective)}{self.where('objective')}")
        for name, other in (("share_from", "share_sites"), ("share_sites", "share_from")):
            if self.given(name) and not self.given(other):
                found.append(f"{self.called(name)}{self.where(name)} needs {self.called(other)}")
        if self.resume and self.output == "-":
            found.append("--resume needs an output file: a search that goes to standard output keeps no journal")
        read = [n for n in ("start_mask", "share_from", "check_against") if getattr(self, n) == "-"]
        if len(read) > 1:
            found.append("standard input can be read once, not for " + " and ".join(self.called(n) for n in read))
        return found


@dataclass(kw_only=True)
@with_own_options("How much")
class PruneSettings(Batched):
    """Options of ``prune``. The model settles ``scope`` and ``order`` where they are not given."""

    verb: ClassVar[str] = "prune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("method", "scores", "circuit", "mask"), ("keep", "remove"))
    needs_output_file: ClassVar[bool] = True

    method: str | None = option(None, help=_CRITERION, choices=CRITERIA.names, group="Head selection (give one)")
    scores: str | None = option(
        None, help="Scores from the score verb; - is standard input", metavar="FILE", group="Head selection (give one)"
    )
    circuit: str | None = option(
        None,
        help="A removal order from extract-circuit; - is standard input",
        metavar="FILE",
        group="Head selection (give one)",
    )
    mask: str | None = option(
        None, help="The heads to keep; - is standard input", metavar="FILE", group="Head selection (give one)"
    )
    keep: int | None = option(
        None, help=f"{_KEEP} per site; mean per site with --scope global", unit="heads", at_least=0, group="How much"
    )
    remove: int | None = option(
        None, help=f"{_REMOVE} per site; in all with --scope global", unit="heads", at_least=0, group="How much"
    )
    scope: str | None = option(
        None,
        help="Compare heads within each site, or over all sites of the towers; a circuit is always global",
        choices=("site", "global"),
        default_text="site; global for a model of two towers",
        group="How much",
    )
    order: str | None = option(
        None,
        help="Score site by site on the model as pruned so far, or all at once on the full model",
        choices=("sequential", "one-shot"),
        default_text="sequential; one-shot with --scope global",
        group="How much",
    )
    samples: int = option(512, help=_SAMPLES, unit="samples", at_least=1, group="How much")
    sample_from: int | None = option(
        None,
        help="Draw the heads to remove by --seed from the first N of the circuit",
        unit="heads",
        at_least=1,
        default_text="take them in order",
        group="How much",
    )
    share_sites: int | None = option(
        None,
        help="Keep the same heads as --with in the first N sites of each tower",
        unit="sites",
        at_least=1,
        default_text="none",
        group="Sharing and form",
    )
    with_mask: str | None = option(
        None, help="The mask for --share-sites", metavar="MASK", flag="--with", group="Sharing and form"
    )
    layout: str | None = option(
        None,
        help="Cut the heads out of the weights, or set their output columns to zero",
        choices=("sliced", "zeroed"),
        default_text="sliced for a .st file, zeroed for a folder",
        group="Sharing and form",
    )

    def inapplicable(self) -> dict[str, str]:
        """A mask says everything; scores and circuits have been ordered already."""
        if self.given("mask"):
            counts = ("keep", "remove", "scope", "order", "samples", "sample_from", "tower")
            return dict.fromkeys((*counts, *OWN_OPTIONS), "mask")
        if self.given("circuit"):
            return dict.fromkeys(("scope", "order", "samples", *OWN_OPTIONS), "circuit")
        if self.given("scores"):
            return dict.fromkeys(("order", "samples", "sample_from", *OWN_OPTIONS), "scores")
        others = _options_of_others(self.method)
        if self.method in DECIDE:
            return dict.fromkeys(("keep", "remove", "scope", "order", "sample_from", *others), "method")
        found = dict.fromkeys(("sample_from", *others), "method")
        if self.scope == "global" and self.order == "sequential":
            found["order"] = "scope"
        return found

    def conflicts(self) -> list[str]:
        """One source of the decision, and what it needs."""
        found = self.exactly_one("method", "scores", "circuit", "mask")
        if self.given("scores") or (self.given("method") and self.method not in DECIDE):
            found += self.exactly_one("keep", "remove")
        elif self.given("circuit"):
            found += self.at_most_one("keep", "remove")
            if self.given("sample_from") and not (self.given("keep") or self.given("remove")):
                found.append(f"--sample-from{self.where('sample_from')} needs one of --keep, --remove")
        if self.method in NEED_DATA:
            found += self.needs("data", f"--method {self.method}")
        for name, other in (("share_sites", "with_mask"), ("with_mask", "share_sites")):
            if self.given(name) and not self.given(other):
                found.append(f"{self.called(name)}{self.where(name)} needs {self.called(other)}")
        read = [n for n in ("scores", "circuit", "mask", "with_mask") if getattr(self, n) == "-"]
        if len(read) > 1:
            found.append("standard input can be read once, not for " + " and ".join(self.called(n) for n in read))
        return found


def _options_of_others(method: str | None) -> list[str]:
    """The options that mean nothing for a criterion, because they are another's."""
    return [name for name, criterion in OWN_OPTIONS.items() if method not in (None, criterion)]
