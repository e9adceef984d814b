"""The options that ``eval`` and ``calibrate`` share: what is chosen on validation data.

Those that stand under a heading of the verb's own are completed by it: ``Annotated[int, KNN_K(group="Evaluation")]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

from hydractl.api.values import Data, NamedData, Path
from hydractl.expressions.data_sets import AUTO, OodSet, ood_val_set
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.requested import ALL_SCORES, Temperature, Threshold
from hydractl.options.call import Call
from hydractl.options.signature import opt

VALIDATION = "Validation data"
validating = partial(opt, group=VALIDATION)

Val: TypeAlias = Annotated[
    Data | None,
    validating("In-distribution validation data, on which something is chosen", often=True),
]
OodVal: TypeAlias = Annotated[
    NamedData,
    validating(
        "Out-of-distribution validation data, never the same as a test set; repeat it for more; auto makes them of "
        "the samples of --val",
        metavar="NAME=SPEC|auto",
        reads=ood_val_set,
    ),
]
temperature_option = partial(opt, metavar="fit|vector|none|T", type=Temperature, reads=Temperature.read, often=True)
threshold_option = partial(
    validating,
    "OOD score from which a sample is flagged as OOD: ood:0.95 (flag 95 % of --ood-val), id:0.01 (flag 1 % of --val), "
    "or score:X (the score itself) [default: what the checkpoint has]",
    metavar="ood:P|id:P|score:X",
    type=Threshold,
    reads=Threshold.read,
)
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
    "The neighbour whose distance --ood-score knn takes [neighbours]",
    at_least=1,
)
NEGATIVE_WORDS = partial(
    opt,
    "Words that name no class, one a line, such as the nouns of a dictionary, for --ood-score neglabel of zero-shot "
    "models",
    metavar="FILE",
)
LABEL_MAP = partial(opt, "JSON object from labels of the data to labels of the model")
Calibrations: TypeAlias = Annotated[
    Path | Sequence[Path],
    validating(
        "What calibrate has chosen for a MODEL, as it wrote it to this file, such as for members A+B+C; repeat it for "
        "more MODELs",
        metavar="F.json",
    ),
]


def fits_to_training_data(ood_score: Sequence[str]) -> bool:
    """Return whether ``--ood-score`` names a score that is fitted to ``--train``, or all."""
    return not {ALL_SCORES, *ON_FEATURES}.isdisjoint(ood_score)


def drop_unused_training_data(call: Call) -> None:
    """Drop ``--train`` if it was set for all verbs at once, and nothing is fitted to it."""
    if not fits_to_training_data(call.values["ood_score"]):
        call.drop_shared("train")


def add_problems_of_validation(call: Call) -> None:
    """Add a problem to the call for each choice on validation data whose data set is missing.

    - a fitted temperature, the threshold ``id:P`` and conformal sets need ``--val``, in-distribution (ID) data;
    - the threshold ``ood:P`` needs ``--ood-val``, out-of-distribution (OOD) data;
    - ``--ood-val auto`` needs ``--val``, because it makes OOD samples of the ID ones.
    """
    values = call.values
    temperature: Temperature | None = values["temperature"]
    threshold: Threshold | None = values["threshold"]
    ood_val: Sequence[OodSet] = values["ood_val"]
    lacks_val = values["val"] is None

    # The first option that chooses something on --val; one problem is enough for all that lack it.
    chosen_on_val = None
    if temperature is not None and temperature.is_fitted:
        chosen_on_val = f"--temperature {temperature}"
    elif threshold is not None and threshold.side == "id":
        chosen_on_val = f"--threshold {threshold}"
    elif values["conformal"] is not None:
        chosen_on_val = "--conformal"
    if lacks_val and chosen_on_val is not None:
        call.add(f"{chosen_on_val} needs --val, data to choose on that is not tested on")

    # What needs OOD samples, or ID samples to make them of.
    if threshold is not None and threshold.side == "ood" and not call.given("ood_val"):
        call.add(f"--threshold {threshold} needs --ood-val, data to choose on that is not tested on")
    is_made = any(ood_set.spec.text == AUTO for ood_set in ood_val)
    if lacks_val and is_made:
        call.add("--ood-val auto needs --val, of whose samples it is made")


def add_problems_of_scores(call: Call, ood_score: Sequence[str]) -> None:
    """Add the problems of ``--ood-score``, the scores by which OOD samples are told from ID ones.

    - ``all`` beside other names;
    - ``--negative-words`` without a score that uses them.
    """
    if ALL_SCORES in ood_score and len(set(ood_score)) > 1:
        call.add(f"--ood-score {ALL_SCORES} names every score: leave out the others", "ood_score")
    on_words = [name for name, needed in ON_FEATURES.items() if needed == "words"]
    if call.given("negative_words") and {ALL_SCORES, *on_words}.isdisjoint(ood_score):
        call.of("negative_words", f"needs --ood-score {' or '.join(on_words)}")
