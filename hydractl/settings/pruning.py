"""The options of head selection: ``score``, ``extract-circuit`` and ``prune``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from hydractl.criteria import (
    CRITERIA,
    AnyCriterion,
    Criterion,
    Decider,
    any_criterion_names,
    arguments_help,
    read_any_criterion,
    read_criterion,
)
from hydractl.criteria.weights import WEIGHT_CRITERIA
from hydractl.expressions.data_sets import AUTO
from hydractl.options.option import option
from hydractl.settings.common import Batched, Rule, run_option
from hydractl.settings.rules import at_most_one, exactly_one, needs, one_from_stdin, required, together

score_option = partial(option, "Scoring")
search_option = partial(option, "Search")
expert_option = partial(option, "Expert")
source_option = partial(option, "Head selection (give one)")
amount_option = partial(option, "How much")
form_option = partial(option, "Sharing and form")

OF_WEIGHTS = tuple(WEIGHT_CRITERIA)
"""Names of the criteria of ``--weights``; some of these names are also criteria of heads."""
OBJECTIVES = ("acc", "ood", "avg", "nll", "brier")

_CRITERION = "The importance criterion; higher scores are kept"
_SAMPLES = "Calibration samples, drawn by --seed without replacement"
_KEEP = "Heads to keep"
_REMOVE = "Heads to remove"
_MAX_DROP = 0.01
_COUNT = f"N|{AUTO}"
_AUTO = f"{AUTO}: as many as --max-drop allows, {_MAX_DROP:g} where that is not given"
_OTHER_BASE = "Take a mask, scores or a circuit of a checkpoint with other weights"

_OF_HEADS = (
    "scores",
    "circuit",
    "mask",
    "allow_other_base",
    "keep",
    "remove",
    "max_drop",
    "val",
    "scope",
    "order",
    "sample_from",
    "share_sites",
    "with_mask",
    "layout",
)
"""Options of ``prune`` without effect if single weights are pruned."""

_DECIDED_BY_A_MASK = (
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
"""Options of ``prune`` without effect if a mask says which heads stay."""

_DROP = "Remove heads one budget after another until one takes accuracy further than this below that of the model, on"


def rows_of_arguments() -> list[tuple[str, str]]:
    """Return what the help says of the arguments of criteria, below ``--method``."""
    return [(f"      {form}", text) for form, text in arguments_help()]


def _data_for_the_criterion(settings: ScoreSettings | PruneSettings) -> list[str]:
    """Return a problem if the criterion reads samples, and there are none."""
    if settings.method is None or not settings.method.needs_data:
        return []
    return settings.needs("data", f"--method {settings.method}")


def _one_count_in_sequence(settings: ScoreSettings) -> list[str]:
    """Return a problem if the order is sequential and not exactly one of ``--keep`` and ``--remove`` is given."""
    if settings.order != "sequential" or isinstance(settings.method, Decider):
        return []
    return settings.exactly_one("keep", "remove")


@dataclass(kw_only=True)
class ScoreSettings(Batched):
    """Options of ``score``."""

    verb: ClassVar[str] = "score"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("keep", "remove"),)
    rules: ClassVar[tuple[Rule, ...]] = (
        required("method"),
        _data_for_the_criterion,
        _one_count_in_sequence,
    )

    method: Criterion | None = score_option(
        _CRITERION, choices=CRITERIA.names, reads=read_criterion, example="taylor", often=True
    )
    samples: int = score_option(f"{_SAMPLES} [samples]", 512, at_least=1, often=True)
    order: str | None = score_option(
        "Score site by site on the model as pruned so far, which takes --keep or --remove, or all at once on the full "
        "model [default: sequential with --keep or --remove, else one-shot]",
        choices=("sequential", "one-shot"),
    )
    keep: int | None = score_option(f"{_KEEP} per site [heads]", at_least=0, often=True)
    remove: int | None = score_option(f"{_REMOVE} per site [heads]", at_least=0)

    @classmethod
    def further_help(cls) -> dict[str, list[tuple[str, str]]]:
        """Return the arguments of criteria, for the help."""
        return {"Scoring": rows_of_arguments()}

    def settle(self) -> None:
        """Fill in the order: sequential if a number of heads is given, else one-shot.

        The scores are then those of ``prune --method`` at this number.
        """
        if self.order:
            return
        self.order = "one-shot"
        if self.given("keep") or self.given("remove"):
            self.order = "sequential"

    def inapplicable(self) -> dict[str, str]:
        """Return the options without effect, each with the option that makes it so.

        They are numbers of heads if the order is not sequential or no data are read.
        """
        unused = dict.fromkeys(_without_effect(self.method), "method")
        counts = ("keep", "remove")
        if isinstance(self.method, Decider):
            return dict.fromkeys(("order", *counts), "method") | unused
        # Scores without data do not depend on the heads that were removed before, so a number of heads has no effect.
        reads_no_data = self.method is not None and not self.method.needs_data
        if self.order == "one-shot":
            unused |= dict.fromkeys(counts, "order")
        elif self.order is None and reads_no_data:
            unused |= dict.fromkeys(counts, "method")
        return unused


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


def _how_many_heads(settings: PruneSettings) -> list[str]:
    """Return a problem if it is not said, in exactly one way, how many heads go.

    A criterion that decides itself needs no number. A circuit says itself how many heads go, except with
    ``--sample-from``, which draws some of its first removals.
    """
    # Scores from a file or a method: how many heads go must be said in one way.
    has_method_that_ranks = settings.given("method") and not isinstance(settings.method, Decider)
    if settings.given("scores") or has_method_that_ranks:
        return settings.exactly_one("keep", "remove", "max_drop")
    if not settings.given("circuit"):
        return []

    # A circuit.
    problems = settings.at_most_one("keep", "remove", "max_drop")
    has_count = settings.given("keep") or settings.given("remove")
    if settings.given("sample_from") and not has_count:
        where = settings.where("sample_from")
        problems.append(f"--sample-from{where} needs one of --keep, --remove")
    return problems


def _accuracy_for_max_drop(settings: PruneSettings) -> list[str]:
    """Return the problems of ``--max-drop``: no data to measure accuracy on, or heads shared between sites.

    Accuracy is measured on the samples that chose the heads, if there are any, else on ``--val``.
    """
    if not settings.given("max_drop"):
        return []
    problems = []
    if settings.given("share_sites"):
        share_sites_label = settings.called("share_sites")
        problems.append(f"--max-drop cannot be given with {share_sites_label}")

    # A method that reads data is measured on these, and a circuit holds its accuracies. Otherwise --val is needed.
    has_method_without_data = settings.method is not None and not settings.method.needs_data
    if settings.given("scores") or has_method_without_data:
        chosen_by = f"--method {settings.method}"
        if settings.scores:
            chosen_by = "--scores"
        problems += settings.needs("val", f"--max-drop with {chosen_by}")

    # The accuracies in a circuit of another base are those of other weights.
    if settings.given("circuit") and settings.allow_other_base:
        problems += settings.needs("val", "--max-drop with --allow-other-base")
    return problems


def _of_heads(rule: Rule) -> Rule:
    """Return a rule that is checked only if heads are pruned, and not single weights."""

    def if_heads(settings: PruneSettings) -> list[str]:
        """Return the problems that the rule finds; none if single weights are pruned."""
        if settings.prunes_weights or settings.scores_weights_alone:
            return []
        return rule(settings)

    return if_heads


def _a_criterion_of_weights(settings: PruneSettings) -> list[str]:
    """Return the problems of ``--method``, which names a pruning criterion, together with ``--weights``.

    With ``--weights``, which prunes single weights, the criterion must be one that scores single weights and have the
    data it needs. Without it, heads are pruned, and the criterion must not be one that scores only single weights.

    A problem is a sentence for the user, such as "--method oba needs --weights"; no problem is an empty list.
    """
    # Heads are pruned. A criterion that scores only single weights would need --weights: goes_with() says so.
    if not settings.prunes_weights:
        if settings.scores_weights_alone:
            return settings.goes_with("method", "weights")
        return []

    # Single weights are pruned. needs() says that --method is missing.
    if settings.method is None:
        return settings.needs("method", "--weights")
    criterion = WEIGHT_CRITERIA.get(settings.method.name)
    if criterion is None:
        of_weights = ", ".join(OF_WEIGHTS)
        source_of_value = settings.where("method")  # e.g. " (hydra.yaml:prune.method)"
        return [f"--method {settings.method} scores heads, --weights takes {of_weights}{source_of_value}"]
    if not criterion.needs_data:
        return []

    # "oba" is the only criterion of single weights that reads data. Its gradients need 32 bits or more.
    problems = []
    if settings.dtype not in ("float32", "float64"):
        problems.append("--method oba needs --dtype float32 or float64")
    return problems + settings.needs("data", f"--method {settings.method}")


@dataclass(kw_only=True)
class PruneSettings(Dropping):
    """Options of ``prune``. The model settles ``scope`` and ``order`` if they are not given."""

    verb: ClassVar[str] = "prune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("method", "scores", "circuit", "mask"),
        ("keep", "remove", "max_drop", "weights"),
    )
    needs_output_file: ClassVar[bool] = True
    counted: ClassVar[str] = "remove"
    rules: ClassVar[tuple[Rule, ...]] = (
        _a_criterion_of_weights,
        _of_heads(exactly_one("method", "scores", "circuit", "mask")),
        _of_heads(_how_many_heads),
        _of_heads(_data_for_the_criterion),
        _of_heads(_accuracy_for_max_drop),
        _of_heads(together("share_sites", "with_mask")),
        _of_heads(needs("val", "max_drop")),
        needs("weight_steps", "weights"),
        _of_heads(one_from_stdin("scores", "circuit", "mask", "with_mask")),
    )

    method: AnyCriterion | None = source_option(
        f"{_CRITERION}; oba is for --weights",
        choices=any_criterion_names(),
        reads=read_any_criterion,
        example="taylor",
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
    weight_steps: int | None = amount_option(
        "Remove the weights of --weights in N steps, each scored anew on what the steps before have left, and each to "
        f"the same share of it [steps; default: {WEIGHT_CRITERIA['oba'].steps} with --method oba, as its authors do]",
        at_least=1,
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

    @classmethod
    def further_help(cls) -> dict[str, list[tuple[str, str]]]:
        """Return the arguments of criteria, for the help."""
        return {"Head selection (give one)": rows_of_arguments()}

    @property
    def prunes_weights(self) -> bool:
        """Whether single weights are set to zero and no head is removed."""
        return self.given("weights")

    @property
    def scores_weights_alone(self) -> bool:
        """Whether the criterion can score only single weights, and no heads."""
        return self.method is not None and not isinstance(self.method, Criterion)

    def inapplicable(self) -> dict[str, str]:
        """Return the options without effect, each with the option that makes it so, e.g. ``keep`` with ``mask``."""
        # Single weights are pruned: options of heads have no effect.
        if self.given("weights"):
            unused = dict.fromkeys(_OF_HEADS, "weights")
            if self.method is not None and not self.method.needs_data:
                unused["weight_steps"] = "method"  # without data the scores are the same in every step
            return unused

        # A file decides: a mask says everything, a circuit the order of the heads, scores their importance.
        if self.given("mask"):
            return dict.fromkeys(_DECIDED_BY_A_MASK, "mask")
        if self.given("circuit"):
            scoring_options = ("scope", "order", "samples", "max_length")
            return dict.fromkeys(scoring_options, "circuit")
        if self.given("scores"):
            measuring_options = ("order", "samples", "sample_from", "max_length")
            return dict.fromkeys(measuring_options, "scores")

        # A criterion decides: options of files that are not read have no effect.
        without_effect = _without_effect(self.method)
        if not self.given("with_mask"):  # no file is read that could be of another base
            without_effect.append("allow_other_base")
        if isinstance(self.method, Decider):  # it also decides how many heads are kept, and where
            without_effect += ["keep", "remove", "max_drop", "val", "scope", "order", "sample_from"]
            return dict.fromkeys(without_effect, "method")
        unused = dict.fromkeys(("sample_from", *without_effect), "method")
        if self.scope == "global" and self.order == "sequential":
            unused["order"] = "scope"
        return unused


def _without_effect(method: AnyCriterion | None) -> list[str]:
    """Return the options without effect for a criterion: ``max_length`` if it reads no data."""
    if method is not None and not method.needs_data:
        return ["max_length"]
    return []
