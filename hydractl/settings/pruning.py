"""The options of head selection: ``score``, ``extract-circuit`` and ``prune``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from hydractl.criteria import CRITERIA, Decider
from hydractl.criteria.weights import WEIGHT_CRITERIA
from hydractl.errors import InputError
from hydractl.expressions.conditions import parse_constraint
from hydractl.expressions.data_sets import AUTO
from hydractl.settings.common import Batched, run_option
from hydractl.settings.option import option

score_option = partial(option, "Scoring")
search_option = partial(option, "Search")
which_option = partial(option, "Which heads")
source_option = partial(option, "Head selection (give one)")
amount_option = partial(option, "How much")
form_option = partial(option, "Sharing and form")

NEED_DATA = (
    *(criterion.name for criterion in CRITERIA.all() if criterion.needs_data),
    *(criterion.name for criterion in WEIGHT_CRITERIA.values() if criterion.needs_data),
)
OF_WEIGHTS = tuple(WEIGHT_CRITERIA)
"""The criteria of ``--weights``; some have the name of one of heads."""
DECIDE = tuple(criterion.name for criterion in CRITERIA.all() if isinstance(criterion, Decider))
"""The criteria that decide by themselves how many heads are kept."""

OWN_OPTIONS = {one.name: criterion.name for criterion in CRITERIA.all() for one in criterion.options}
"""The options that are for one criterion alone, each with its criterion."""

OBJECTIVES = ("acc", "ood", "avg", "nll", "brier")

_CRITERION = "The importance criterion; higher scores are kept"
_SAMPLES = "Calibration samples, drawn by --seed without replacement"
_KEEP = "Heads to keep"
_REMOVE = "Heads to remove"
_MAX_DROP = 0.01
_COUNT = f"N|{AUTO}"
_AUTO = f"{AUTO}: as many as --max-drop allows, {_MAX_DROP:g} where that is not given"
_OTHER_BASE = "Take a mask, scores or a circuit of a checkpoint with other weights"

_DROP = "Remove heads one budget after another until one takes accuracy further than this below that of the model, on"


def _check_constraint(text: str) -> None:
    key = parse_constraint(text).key
    if key not in OBJECTIVES:
        raise ValueError(f"must be about one of {', '.join(OBJECTIVES)}, not {key!r}")


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
                facts = {fact: getattr(one, fact) for fact in ("unit", "choices", "at_least", "at_most")}
                settings.__annotations__[one.name] = type(one.default)
                setattr(settings, one.name, option(group, one.help, one.default, **facts))
        return settings

    return add


@dataclass(kw_only=True)
@with_own_options("Scoring")
class ScoreSettings(Batched):
    """Options of ``score``."""

    verb: ClassVar[str] = "score"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("keep", "remove"),)

    method: str | None = score_option(_CRITERION, choices=CRITERIA.names, often=True)
    samples: int = score_option(f"{_SAMPLES} [samples]", 512, at_least=1, often=True)
    order: str | None = score_option(
        "Score site by site on the model as pruned so far, which takes --keep or --remove, or all at once on the full "
        "model [default: sequential with --keep or --remove, else one-shot]",
        choices=("sequential", "one-shot"),
    )
    keep: int | None = score_option(f"{_KEEP} per site [heads]", at_least=0, often=True)
    remove: int | None = score_option(f"{_REMOVE} per site [heads]", at_least=0)

    def settle(self) -> None:
        """A head count makes the scores those of ``prune --method`` at this count."""
        self.order = self.order or ("sequential" if self.given("keep") or self.given("remove") else "one-shot")

    def inapplicable(self) -> dict[str, str]:
        """A head count belongs to the sequential order and to data, and a criterion's own options to it."""
        others = _without_effect(self.method)
        if self.method in DECIDE:
            return dict.fromkeys(("order", "keep", "remove", *others), "method")
        found = dict.fromkeys(others, "method")
        if self.order == "one-shot":
            found |= dict.fromkeys(("keep", "remove"), "order")
        elif self.order is None and self.method is not None and self.method not in NEED_DATA:
            found |= dict.fromkeys(("keep", "remove"), "method")
        return found

    def conflicts(self) -> list[str]:
        """A criterion, its data, and a head count in the sequential order."""
        found = self.needs("method")
        if self.method in NEED_DATA:
            found += self.needs("data", f"--method {self.method}")
        if self.order == "sequential" and self.method not in DECIDE:
            found += self.exactly_one("keep", "remove")
        return found


@dataclass(kw_only=True)
class Dropping(Batched):
    """How many heads go, as a number or by ``--max-drop``.

    Attributes:
        counted: the option of the number; with ``auto`` it stands for ``--max-drop``, 0.01 where that is not given.
    """

    counted: ClassVar[str]
    if TYPE_CHECKING:  # each verb declares it among its own options
        max_drop: float | None

    def _set_aside(self) -> list[str]:
        if getattr(self, self.counted) == AUTO:
            if self.max_drop is None:
                self.max_drop = _MAX_DROP
                self.sources["max_drop"] = self.sources.get(self.counted, "default")
            if self.ranks is not None:
                self.ranks["max_drop"] = self.ranks.pop(self.counted)
            setattr(self, self.counted, None)
        return super()._set_aside()


@dataclass(kw_only=True)
class CircuitSettings(Dropping):
    """Options of ``extract-circuit``."""

    verb: ClassVar[str] = "extract-circuit"
    counted: ClassVar[str] = "budget"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("budget", "keep"), ("start_mask", "share_from"))

    data: list[str] = search_option(  # type: ignore[assignment]
        "Labelled validation data; several count in the mean over all of them, so repeat it for more",
        [],
        metavar="SPEC",
        often=True,
    )
    ood: list[str] = search_option(
        "The out-of-distribution data, as a SPEC; auto makes them of the samples of --data; repeat it for more",
        [],
        metavar="SPEC|auto",
        often=True,
    )
    weights: list[int] = search_option(
        "The weight of each --data in that mean [default: equal ones]",
        [],
        metavar="N,...",
        at_least=1,
        at_most=1000,
        split=True,
        repeats=True,
    )
    paired: bool = search_option(
        "Measure each --data against the --ood in the same place only, instead of against all of them", False
    )
    objective: list[str] = search_option(
        "What to maximise: accuracy, AUROC against --ood, their mean, or minus a loss; several make one file each "
        "[default: avg; nll with --algorithm headmap]",
        ["avg"],
        choices=OBJECTIVES,
        metavar="acc|ood|avg|nll|brier,...",
        split=True,
        often=True,
    )
    ensemble_with: list[str] = search_option(
        "Another member: the objective is that of the mean of its softmax and the circuit's; repeat it for more "
        "[default: the circuit alone]",
        [],
        metavar="MODEL",
    )
    ood_score: str = search_option(
        "The OOD score whose AUROC is measured", "msp", choices=("msp", "entropy", "energy", "maxlogit")
    )
    budget: int | None = search_option(f"{_REMOVE} in all; {_AUTO} [heads]", at_least=1, word=AUTO, metavar=_COUNT)
    keep: int | None = search_option(f"{_KEEP}, mean per site [heads]", at_least=0, often=True)
    max_drop: float | None = search_option(
        f"{_DROP} --data; --budget or --keep may end it before [fraction]", at_least=0, below=1
    )
    max_cost: float | None = search_option(
        "Remove only heads that keep the mult-adds of the fused ensemble within this multiple of the model's; while "
        "they are above it, only heads that do not raise them [ratio; default: any cost]",
        above=0,
    )
    subject_to: list[str] = search_option(
        "Remove only heads that keep this score, and end where none does; KEY is an objective, base its score before "
        "the first removal; repeat it for more",
        [],
        metavar="KEY>=[base-]NUMBER",
        check=_check_constraint,
    )
    algorithm: str = search_option(
        "Remove heads one by one (Algorithm 1 of the paper), or keep the best of each site in one pass",
        "greedy",
        choices=("greedy", "headmap"),
    )
    approx: str | None = search_option(
        "Approximate search, recorded in the file: each step evaluates at most N heads, those that a gradient suggests "
        "[default: exact]",
        metavar="lazy:N",
        pattern=r"lazy:[1-9][0-9]{0,8}",
        example="lazy:4",
        often=True,
    )
    check_against: str | None = search_option(
        "Report the agreement of the result with this exact circuit [default: no comparison]", metavar="CIRCUIT"
    )
    sites: str | None = which_option(
        "Where heads may be removed: numbers of sites from 0, such as 3-11 or 0,2,5-7 [default: everywhere]",
        metavar="LIST",
        pattern=r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*",
        example="0-3,7",
    )
    start_mask: str | None = which_option(
        "Start from the heads that this mask keeps; those it removes count for the budget "
        "[default: all heads of the model]",
        metavar="MASK",
    )
    share_from: str | None = which_option(
        "In the first --share-sites, remove what this circuit removes at the same budget [default: none]",
        metavar="CIRCUIT",
    )
    share_sites: int | None = which_option(
        "Number of sites of each tower that --share-from decides; the rest of the budget goes to later ones "
        "[sites; default: none]",
        at_least=1,
    )
    allow_other_base: bool = which_option(_OTHER_BASE, False)
    bounds: bool = run_option(
        "Stop evaluating a candidate as soon as it can no longer win; the result is the same", True
    )
    memory: str | None = run_option(
        "Memory limit for activations cached between evaluations, such as 8G [default: half of what is free]",
        metavar="SIZE",
        pattern=r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]?",
        example="4G",
    )
    resume: bool = run_option("Resume the search recorded in the journal beside the output", False, often=True)
    timeout: float = run_option(
        "How long the processes of a distributed search wait for each other [seconds]", 1800.0, above=0, at_most=10**6
    )

    def settle(self) -> None:
        """Headmap's own score is the loss."""
        if self.algorithm == "headmap" and self.objective == ["avg"] and not self._rank("objective"):
            self.objective = ["nll"]

    def inapplicable(self) -> dict[str, str]:
        """Headmap is one pass without steps."""
        steps = ("approx", "bounds", "max_drop", "max_cost", "subject_to")
        return {} if self.algorithm == "greedy" else dict.fromkeys(steps, "algorithm")

    def conflicts(self) -> list[str]:
        """Data of both kinds, how far to go, and what belongs together."""
        ends = (self.given("max_drop") or self.given("subject_to")) and not self.given("share_from")
        found = self.needs("data") + self.at_most_one("start_mask", "share_from")
        if self.weights and len(self.weights) != len(self.data):
            found.append(f"--weights{self.where('weights')} has {len(self.weights)} for {len(self.data)} --data")
        if self.paired and not 1 < len(self.data) == len(self.ood):
            counts = f"{len(self.ood)} and {len(self.data)}"
            found.append(f"--paired needs as many --ood as --data, two or more, not {counts}")
        found += self.at_most_one("budget", "keep") if ends else self.exactly_one("budget", "keep")
        wanting = [f"--objective {o}" for o in self.objective if o in ("ood", "avg")]
        wanting += [f"--subject-to {text}" for text in self.subject_to if text.startswith(("ood", "avg"))]
        if wanting:
            found += self.needs("ood", wanting[0])
        if self.approx and self.subject_to:
            found.append(f"--subject-to{self.where('subject_to')} needs an exact search, without --approx")
        if self.output == "-" and len(self.objective) > 1:
            found.append(f"--output - takes one --objective, not {len(self.objective)}{self.where('objective')}")
        found += self.goes_with("max_cost", "ensemble_with")
        found += self.goes_with("share_from", "share_sites") + self.goes_with("share_sites", "share_from")
        if self.allow_other_base and not (self.given("start_mask") or self.given("share_from")):
            found.append(f"--allow-other-base{self.where('allow_other_base')} needs --start-mask or --share-from")
        if self.resume and self.output == "-":
            found.append("--resume needs an output file: a search that goes to standard output keeps no journal")
        return found + self.one_from_stdin("start_mask", "share_from", "check_against")


@dataclass(kw_only=True)
@with_own_options("How much")
class PruneSettings(Dropping):
    """Options of ``prune``. The model settles ``scope`` and ``order`` where they are not given."""

    verb: ClassVar[str] = "prune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("method", "scores", "circuit", "mask"),
        ("keep", "remove", "max_drop", "weights"),
    )
    needs_output_file: ClassVar[bool] = True
    counted: ClassVar[str] = "remove"

    method: str | None = source_option(
        f"{_CRITERION}; oba is for --weights",
        choices=sorted({*CRITERIA.names, *OF_WEIGHTS}),
        often=True,
    )
    scores: str | None = source_option("Scores from the score verb; - is standard input", metavar="FILE", often=True)
    circuit: str | None = source_option(
        "A removal order from extract-circuit; - is standard input", metavar="FILE", often=True
    )
    mask: str | None = source_option("The heads to keep; - is standard input", metavar="FILE", often=True)
    allow_other_base: bool = source_option(_OTHER_BASE, False)
    keep: int | None = amount_option(
        f"{_KEEP} per site; mean per site with --scope global [heads]", at_least=0, often=True
    )
    remove: int | None = amount_option(
        f"{_REMOVE} per site; in all with --scope global; {_AUTO} [heads]",
        at_least=0,
        often=True,
        word=AUTO,
        metavar=_COUNT,
    )
    max_drop: float | None = amount_option(
        f"{_DROP} --val or else on the samples that chose the heads; the one before is taken [fraction]",
        at_least=0,
        below=1,
    )
    val: str | None = amount_option(
        "Labelled validation data for --max-drop, better not what the heads are chosen with", metavar="SPEC"
    )
    weights: float | None = amount_option(
        f"Remove no heads, set single weights to zero: the share of all parameters to keep, with --method "
        f"{', '.join(OF_WEIGHTS)} [fraction]",
        above=0,
        below=1,
    )
    scope: str | None = amount_option(
        "Compare heads within each site, or over all sites of the towers; a circuit is always global "
        "[default: site; global for a model of two towers]",
        choices=("site", "global"),
    )
    order: str | None = amount_option(
        "Score site by site on the model as pruned so far, or all at once on the full model "
        "[default: sequential; one-shot with --scope global]",
        choices=("sequential", "one-shot"),
    )
    samples: int = amount_option(f"{_SAMPLES} [samples]", 512, at_least=1)
    sample_from: int | None = amount_option(
        "Draw the heads to remove by --seed from the first N of the circuit [heads; default: take them in order]",
        at_least=1,
    )
    share_sites: int | None = form_option(
        "Keep the same heads as --with in the first N sites of each tower [sites; default: none]", at_least=1
    )
    with_mask: str | None = form_option("The mask for --share-sites", metavar="MASK", flag="--with")
    layout: str | None = form_option(
        "Cut the heads out of the weights, in a folder where its library can hold that (transformers' ViT, DeiT, "
        "DINOv2), or set their output columns to zero [default: sliced for a .st file, zeroed for a folder]",
        choices=("sliced", "zeroed"),
    )

    def inapplicable(self) -> dict[str, str]:
        """A mask says everything; scores and circuits have been ordered already; single weights are of no head."""
        if self.given("weights"):
            heads = ["scores", "circuit", "mask", "allow_other_base", "keep", "remove", "max_drop", "val", "scope"]
            heads += ["order", "sample_from", "share_sites", "with_mask", "layout", *OWN_OPTIONS]
            return dict.fromkeys(heads, "weights")
        if self.given("mask"):
            counts = (
                "keep",
                "remove",
                "max_drop",
                "val",
                "scope",
                "order",
                "samples",
                "sample_from",
                "tower",
                "max_length",
            )
            return dict.fromkeys((*counts, *OWN_OPTIONS), "mask")
        if self.given("circuit"):
            return dict.fromkeys(("scope", "order", "samples", "max_length", *OWN_OPTIONS), "circuit")
        if self.given("scores"):
            return dict.fromkeys(("order", "samples", "sample_from", "max_length", *OWN_OPTIONS), "scores")
        others = [*_without_effect(self.method), *([] if self.given("with_mask") else ["allow_other_base"])]
        if self.method in DECIDE:
            others += ["keep", "remove", "max_drop", "val", "scope", "order", "sample_from"]
            return dict.fromkeys(others, "method")
        found = dict.fromkeys(("sample_from", *others), "method")
        if self.scope == "global" and self.order == "sequential":
            found["order"] = "scope"
        return found

    def conflicts(self) -> list[str]:
        """One source of the decision, and what it needs."""
        if self.given("weights"):
            return self._weight_conflicts()
        if self.method in OF_WEIGHTS and self.method not in CRITERIA.names:
            return self.goes_with("method", "weights")
        found = self.exactly_one("method", "scores", "circuit", "mask")
        if self.given("scores") or (self.given("method") and self.method not in DECIDE):
            found += self.exactly_one("keep", "remove", "max_drop")
        elif self.given("circuit"):
            found += self.at_most_one("keep", "remove", "max_drop")
            if self.given("sample_from") and not (self.given("keep") or self.given("remove")):
                found.append(f"--sample-from{self.where('sample_from')} needs one of --keep, --remove")
        if self.method in NEED_DATA:
            found += self.needs("data", f"--method {self.method}")
        if self.given("max_drop"):
            found += self._drop_conflicts()
        found += self.goes_with("share_sites", "with_mask") + self.goes_with("with_mask", "share_sites")
        found += self.goes_with("val", "max_drop")
        return found + self.one_from_stdin("scores", "circuit", "mask", "with_mask")

    def _weight_conflicts(self) -> list[str]:
        """A criterion of single weights, and its data."""
        criterion = WEIGHT_CRITERIA.get(self.method or "")
        if criterion is None:
            return self.needs("method", "--weights") or [
                f"--method {self.method} scores heads, --weights takes {', '.join(OF_WEIGHTS)}{self.where('method')}"
            ]
        if not criterion.needs_data:
            return []
        found = [] if self.dtype in ("float32", "float64") else ["--method oba needs --dtype float32 or float64"]
        return found + self.needs("data", f"--method {self.method}")

    def _drop_conflicts(self) -> list[str]:
        """Accuracy is measured on ``--val``, or on what has chosen the heads of these very weights."""
        found = [f"--max-drop cannot be given with {self.called('share_sites')}"] if self.given("share_sites") else []
        if self.given("scores") or (self.given("method") and self.method not in NEED_DATA):
            found += self.needs("val", f"--max-drop with {'--scores' if self.scores else f'--method {self.method}'}")
        if self.given("circuit") and self.allow_other_base:
            found += self.needs("val", "--max-drop with --allow-other-base")
        return found


def _without_effect(method: str | None) -> list[str]:
    """The options that mean nothing for a criterion, because they are another's or about data that it does not read."""
    others = [name for name, criterion in OWN_OPTIONS.items() if method not in (None, criterion)]
    return others if method is None or method in NEED_DATA else [*others, "max_length"]
