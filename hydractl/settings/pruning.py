"""The options of head selection: ``extract-circuit``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from hydractl.expressions.data_sets import AUTO
from hydractl.options.option import option
from hydractl.settings.common import Batched, Rule, run_option
from hydractl.settings.rules import at_most_one, one_from_stdin, required, together

search_option = partial(option, "Search")
expert_option = partial(option, "Expert")

OBJECTIVES = ("acc", "ood", "avg", "nll", "brier")

_KEEP = "Heads to keep"
_REMOVE = "Heads to remove"
_MAX_DROP = 0.01
_COUNT = f"N|{AUTO}"
_AUTO = f"{AUTO}: as many as --max-drop allows, {_MAX_DROP:g} where that is not given"
_OTHER_BASE = "Take a mask, scores or a circuit of a checkpoint with other weights"

_DROP = "Remove heads one budget after another until one takes accuracy further than this below that of the model, on"


@dataclass(kw_only=True)
class Dropping(Batched):
    """Options of how many heads are removed: a number, or as many as ``--max-drop`` allows.

    Attributes:
        counted: the option of the number. Its value ``auto`` means ``--max-drop``, 0.01 if that is not given.
    """

    counted: ClassVar[str]
    if TYPE_CHECKING:  # each verb declares it among its own options
        max_drop: float | None

    def _set_aside(self) -> list[str]:
        """Replace a number that is ``auto`` by ``--max-drop``, and then set aside the options that do not apply."""
        if getattr(self, self.counted) == AUTO:
            if self.max_drop is None:
                self.max_drop = _MAX_DROP
                self.sources["max_drop"] = self.sources.get(self.counted, "default")
            # --max-drop takes the rank of the number, and the number counts as not given.
            if self.ranks is not None:
                self.ranks["max_drop"] = self.ranks.pop(self.counted)
            setattr(self, self.counted, None)
        return super()._set_aside()


def _pairs_of_sets(settings: CircuitSettings) -> list[str]:
    """Return a problem if data sets are measured in pairs and some set has no partner."""
    if not settings.paired:
        return []
    val_sets = len(settings.val)
    ood_sets = len(settings.ood_val)
    if 1 < val_sets == ood_sets:
        return []
    return [f"--paired needs as many --ood-val as --val, two or more, not {ood_sets} and {val_sets}"]


def _an_end(settings: CircuitSettings) -> list[str]:
    """Return a problem if nothing ends the search.

    A budget or a number of heads ends it. Accuracy can end it too, but not with ``--share-from``: accuracy counts only
    the removals of this search.
    """
    if settings.given("max_drop") and not settings.given("share_from"):
        return settings.at_most_one("budget", "keep")
    return settings.exactly_one("budget", "keep")


def _ood_data_for_auroc(settings: CircuitSettings) -> list[str]:
    """Return a problem if an objective needs OOD data, and there are none."""
    for objective in settings.objective:
        if objective in ("ood", "avg"):
            return settings.needs("ood_val", f"--objective {objective}")
    return []


def _one_circuit_on_stdout(settings: CircuitSettings) -> list[str]:
    """Return a problem if several objectives, which make several files, go to standard output."""
    circuits = len(settings.objective)
    if settings.output != "-" or circuits < 2:
        return []
    where = settings.where("objective")
    return [f"--output - takes one --objective, not {circuits}{where}"]


def _a_mask_of_another_base(settings: CircuitSettings) -> list[str]:
    """Return a problem if files of another base are allowed, and no such file is read."""
    if not settings.allow_other_base:
        return []
    if settings.given("start_mask") or settings.given("share_from"):
        return []
    where = settings.where("allow_other_base")
    return [f"--allow-other-base{where} needs --start-mask or --share-from"]


def _a_journal_to_resume(settings: CircuitSettings) -> list[str]:
    """Return a problem if a search is to be resumed that keeps no journal."""
    if not settings.resume or settings.output != "-":
        return []
    return ["--resume needs an output file: a search that goes to standard output keeps no journal"]


@dataclass(kw_only=True)
class CircuitSettings(Dropping):
    """Options of ``extract-circuit``."""

    verb: ClassVar[str] = "extract-circuit"
    lacks: ClassVar[tuple[str, ...]] = ("data",)
    counted: ClassVar[str] = "budget"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("budget", "keep"), ("start_mask", "share_from"))
    rules: ClassVar[tuple[Rule, ...]] = (
        required("val"),
        at_most_one("start_mask", "share_from"),
        _pairs_of_sets,
        _an_end,
        _ood_data_for_auroc,
        _one_circuit_on_stdout,
        together("share_from", "share_sites"),
        _a_mask_of_another_base,
        _a_journal_to_resume,
        one_from_stdin("start_mask", "share_from"),
    )

    val: list[str] = search_option(
        "Labelled validation data; several count in the mean over all of them, so repeat it for more",
        [],
        metavar="SPEC",
        often=True,
    )
    ood_val: list[str] = search_option(
        "Out-of-distribution validation data, as a SPEC; auto makes them of the samples of --val; repeat it for more",
        [],
        metavar="SPEC|auto",
        often=True,
    )
    objective: list[str] = search_option(
        "What to maximise: accuracy, AUROC against --ood-val, their mean, or minus a loss; several make one file each "
        "[default: avg; nll with --algorithm headmap]",
        ["avg"],
        choices=OBJECTIVES,
        metavar="acc|ood|avg|nll|brier,...",
        split=True,
        often=True,
    )
    ood_score: str = search_option(
        "The OOD score whose AUROC is measured", "msp", choices=("msp", "entropy", "energy", "maxlogit")
    )
    budget: int | None = search_option(f"{_REMOVE} in all; {_AUTO} [heads]", at_least=1, word=AUTO, metavar=_COUNT)
    keep: int | None = search_option(f"{_KEEP}, mean per site [heads]", at_least=0, often=True)
    max_drop: float | None = search_option(
        f"{_DROP} --val; --budget or --keep may end it before [fraction]", at_least=0, below=1
    )
    sites: str | None = search_option(
        "Where heads may be removed: numbers of sites from 0, such as 3-11 or 0,2,5-7 [default: everywhere]",
        metavar="LIST",
        pattern=r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*",
        example="0-3,7",
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
    paired: bool = expert_option(
        "Measure each --val against the --ood-val in the same place only, instead of against all of them", False
    )
    start_mask: str | None = expert_option(
        "Start from the heads that this mask keeps; those it removes count for the budget "
        "[default: all heads of the model]",
        metavar="MASK",
    )
    share_from: str | None = expert_option(
        "In the first --share-sites, remove what this circuit removes at the same budget [default: none]",
        metavar="CIRCUIT",
    )
    share_sites: int | None = expert_option(
        "Number of sites of each tower that --share-from decides; the rest of the budget goes to later ones "
        "[sites; default: none]",
        at_least=1,
    )
    allow_other_base: bool = expert_option(_OTHER_BASE, False)
    bounds: bool = expert_option(
        "Stop evaluating a candidate as soon as it can no longer win; the result is the same", True
    )
    memory: str | None = expert_option(
        "Memory limit for activations cached between evaluations, such as 8G [default: half of what is free]",
        metavar="SIZE",
        pattern=r"[0-9]{1,9}(\.[0-9]{1,3})?[KMGT]?",
        example="4G",
    )
    timeout: float = expert_option(
        "How long the processes of a distributed search wait for each other [seconds]", 1800.0, above=0, at_most=10**6
    )
    resume: bool = run_option("Resume the search recorded in the journal beside the output", False, often=True)

    def settle(self) -> None:
        """Fill in the objective of Headmap, whose score is the loss, if none is given."""
        if self.algorithm != "headmap":
            return
        is_default = self.objective == ["avg"] and not self._rank("objective")
        if is_default:
            self.objective = ["nll"]

    def inapplicable(self) -> dict[str, str]:
        """Return the options of a search in steps if the algorithm is Headmap, which is a single pass."""
        if self.algorithm == "greedy":
            return {}
        return dict.fromkeys(("approx", "bounds", "max_drop"), "algorithm")
