"""The options that ``eval`` and ``calibrate`` share: bad samples, and what is chosen on validation data.

Those that stand under a heading of the verb's own are completed by it: ``Annotated[int, KNN_K(group="Evaluation")]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

from hydractl.api.options import io
from hydractl.api.values import Data, NamedData
from hydractl.expressions.calibration import check_threshold
from hydractl.expressions.data_sets import AUTO, OodSet, ood_val_set
from hydractl.expressions.score_choice import ALL_SCORES
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.options.call import Call, Problems, current
from hydractl.options.option import ends_in
from hydractl.options.signature import opt

validating = partial(opt, group="Validation data")

OnBad: TypeAlias = Annotated[
    Literal["error", "skip"],
    io("A sample that cannot be read: error stops and names it; skip leaves it out, counts and lists it"),
]
Val: TypeAlias = Annotated[
    Data | None,
    validating("In-distribution validation data, on which something is chosen", metavar="SPEC", often=True),
]
OodVal: TypeAlias = Annotated[
    NamedData,
    validating(
        "Out-of-distribution validation data, never the same as a test set; repeat it for more; auto makes them of "
        "the samples of --val",
        metavar="NAME=SPEC|auto",
        names=True,
        reads=ood_val_set,
    ),
]
threshold_option = partial(
    validating,
    "OOD score from which a sample is flagged as OOD: ood:0.95 (flag 95 % of --ood-val), id:0.01 (flag 1 % of --val), "
    "or score:X (the score itself) [default: what the checkpoint has]",
    metavar="ood:P|id:P|score:X",
    check=check_threshold,
)
Threshold: TypeAlias = Annotated[str | None, threshold_option()]
Conformal: TypeAlias = Annotated[
    float | None,
    validating(
        "Prediction sets that miss the label in at most this share, by split conformal prediction on --val",
        metavar="ALPHA",
        above=0.0,
        below=1.0,
    ),
]
ConformalScore: TypeAlias = Annotated[
    Literal["lac", "aps"],
    validating(
        "How the classes of a prediction set are ranked: lac (by probability: the smallest sets) or aps (by "
        "cumulative probability: sets that adapt to the sample)"
    ),
]

KNN_K = partial(
    opt,
    "The neighbour whose distance --ood-score knn takes, and how many nnguide averages [neighbours]",
    at_least=1,
)
NEGATIVE_WORDS = partial(
    opt,
    "Words that name no class, one a line, such as the nouns of a dictionary, for --ood-score neglabel of zero-shot "
    "models",
    metavar="FILE",
)
LABEL_MAP = partial(opt, "JSON object from labels of the data to labels of the model", metavar="FILE")
REUSE = partial(
    opt,
    "Read the logits of data sets that these predictions of the same MODEL hold, instead of running it; repeat it for "
    "more",
    metavar="F.st",
)


def features_file(help: str, *, group: str) -> object:
    """Return the option ``--features`` of a verb, with the help and the heading that are the verb's own."""
    return opt(help, group=group, metavar="F.st", check=ends_in(".st", ".safetensors"), writes=True)


def temperature_of_all(temperature: Sequence[str]) -> str | None:
    """Return the value of ``--temperature`` that is for all rows, as ``ROW=T`` is not; None if there is none."""
    for text in temperature:
        if "=" not in text:
            return text
    return None


def scores_named(ood_score: Sequence[str]) -> list[str]:
    """Return the names of scores in the values of ``--ood-score``, in order; ``all`` stays as it is."""
    names: list[str] = []
    for text in ood_score:
        listed = text.rpartition("=")[2]  # of ROW=NAME what is after the row
        names += [name.strip() for name in listed.split(",")]
    return names


def fits_to_training_data(ood_score: Sequence[str]) -> bool:
    """Return whether ``--ood-score`` names a score that is fitted to ``--train``, or all."""
    return not {ALL_SCORES, *ON_FEATURES}.isdisjoint(scores_named(ood_score))


def drop_unused_training_data(call: Call) -> None:
    """Drop ``--train`` if it was set for all verbs at once, and nothing is fitted to it."""
    if not fits_to_training_data(call.values["ood_score"]):
        call.drop_shared("train")


def add_problems_of_validation(
    problems: Problems,
    *,
    val: object,
    ood_val: Sequence[OodSet],
    temperature: Sequence[str],
    threshold: str | None,
    conformal: float | None,
) -> None:
    """Add the problems between options that choose something on validation data; the arguments are theirs."""
    problems.twice_named("ood_val")

    # What is chosen needs data. Of several choices that lack --val only the first is reported.
    of_all = temperature_of_all(temperature)
    side_of_threshold = (threshold or "").partition(":")[0]
    chosen_on_val = None
    if of_all in ("fit", "vector"):
        chosen_on_val = f"--temperature {of_all}"
    elif side_of_threshold == "id":
        chosen_on_val = f"--threshold {threshold}"
    elif conformal is not None:
        chosen_on_val = "--conformal"
    if val is None and chosen_on_val is not None:
        problems.add(f"{chosen_on_val} needs --val, data to choose on that is not tested on")
    if side_of_threshold == "ood" and not ood_val:
        problems.add(f"--threshold {threshold} needs --ood-val, data to choose on that is not tested on")
    is_made = any(ood_set.spec.text == AUTO for ood_set in ood_val)
    if val is None and is_made:
        problems.add("--ood-val auto needs --val, of whose samples it is made")

    rows = [text.rpartition("=")[0] for text in temperature]  # empty for a temperature of all rows
    for row in sorted({row for row in rows if rows.count(row) > 1}):
        for_row = f" for {row}" if row else ""
        problems.add(f"--temperature is given twice{for_row}{current().where('temperature')}")


def add_problem_of_all_scores(problems: Problems, names: Sequence[str]) -> None:
    """Add a problem if ``all`` stands beside other names of scores."""
    if ALL_SCORES in names and len(set(names)) > 1:
        where = current().where("ood_score")
        problems.add(f"--ood-score {ALL_SCORES} names every score: leave out the others{where}")


def add_problems_of_words(problems: Problems, ood_score: Sequence[str]) -> None:
    """Add a problem if ``--negative-words`` is given and no OOD score uses it."""
    call = current()
    on_words = [name for name, needed in ON_FEATURES.items() if needed == "words"]
    if call.given("negative_words") and {ALL_SCORES, *on_words}.isdisjoint(scores_named(ood_score)):
        problems.add(f"--negative-words{call.where('negative_words')} needs --ood-score {' or '.join(on_words)}")
