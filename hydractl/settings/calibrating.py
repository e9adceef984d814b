"""The options of ``calibrate``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.score_choice import ALL_SCORES, ScoreChoice, parse_ood_score
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES, needs_training_data
from hydractl.options.option import ends_in, option
from hydractl.settings.common import Rule
from hydractl.settings.evaluating import Validated, a_use_for_words, check_temperature
from hydractl.settings.rules import needs

calibrate_option = partial(option, "Calibrating")


def _something_to_choose(settings: CalibrateSettings) -> list[str]:
    """Return a problem if the command asks for nothing to be chosen."""
    if any(settings.given(name) for name in ("temperature", "threshold", "ood_score", "conformal")):
        return []
    return ["calibrate needs something to choose: --temperature, --threshold, --conformal or --ood-score"]


def _nothing_of_rows(settings: CalibrateSettings) -> list[str]:
    """Return a problem for each value ``ROW=...``: only ``eval`` has several rows, and here there is one model."""
    problems = []
    for name in ("temperature", "ood_score"):
        for text in getattr(settings, name):
            if "=" in text:
                problems.append(f"{settings.called(name)} {text}{settings.where(name)} is for the rows of eval")
    return problems


def _samples_to_compare_scores_on(settings: CalibrateSettings) -> list[str]:
    """Return a problem if several scores have no validation samples to choose one on, and if a score is named twice.

    If several scores are named, ``calibrate`` chooses one of them by the data of ``--val`` and ``--ood-val``.
    """
    problems = []
    names = settings.score_names()
    if len(names) > 1:
        scores_as_written = ",".join(names)
        if ALL_SCORES in settings.ood_score:
            scores_as_written = ALL_SCORES
        for needed in ("val", "ood_val"):
            if not settings.given(needed):
                needed_label = settings.called(needed)
                problems.append(f"--ood-score {scores_as_written} needs {needed_label}, to choose one of them on")
    if len(set(names)) < len(names):
        where = settings.where("ood_score")
        problems.append(f"--ood-score has a name twice{where}")
    return problems


@dataclass(kw_only=True)
class CalibrateSettings(Validated):
    """Options of ``calibrate``."""

    verb: ClassVar[str] = "calibrate"
    many_models: ClassVar[bool] = False
    models_help: ClassVar[str] = "The checkpoint to calibrate"
    needs_output_file: ClassVar[bool] = True
    lacks: ClassVar[tuple[str, ...]] = ("tower", "data")
    rules: ClassVar[tuple[Rule, ...]] = (
        *Validated.rules,
        _something_to_choose,
        _nothing_of_rows,
        _samples_to_compare_scores_on,
        a_use_for_words,
        needs("features", "train"),
    )

    temperature: list[str] = calibrate_option(
        "Scale the log of the averaged prediction; fit (one temperature by the NLL of --val), vector (a scale and a "
        "bias per class), a number, or none to drop that of the checkpoint [default: what the checkpoint has]",
        [],
        metavar="fit|vector|none|T",
        check=check_temperature,
        often=True,
    )
    ood_score: list[str] = calibrate_option(
        "The score that separates OOD from ID samples; of several, or all, the one with the highest mean AUROC of "
        "--ood-val against --val, of near ties the one that is named first [default: what the checkpoint has, else "
        "msp]",
        [],
        metavar="NAME,...",
        check=parse_ood_score,
        often=True,
    )
    train: str | None = calibrate_option(
        f"Training data, which scores on features are fitted to: {', '.join(filter(needs_training_data, ON_FEATURES))}",
        metavar="SPEC",
        often=True,
    )
    knn_k: int = calibrate_option(
        "The neighbour whose distance --ood-score knn takes, and how many nnguide averages [neighbours]", 50, at_least=1
    )
    negative_words: str | None = calibrate_option(
        "Words that name no class, one a line, such as the nouns of a dictionary, for --ood-score neglabel of "
        "zero-shot models",
        metavar="FILE",
    )
    knn_bank: int | None = calibrate_option(
        "Keep only N of the training samples for --ood-score knn or nnguide, evenly spaced, as for an exported file "
        "[samples, default: all]",
        at_least=1,
    )
    features: str | None = calibrate_option(
        "Keep what the MODEL makes of --train in a file, or read it from the file that is there",
        metavar="F.st",
        check=ends_in(".st", ".safetensors"),
        writes=True,
    )
    label_map: str | None = calibrate_option(
        "JSON object from labels of the data to labels of the model", metavar="FILE"
    )
    reuse: list[str] = calibrate_option(
        "Read the logits of data sets that these predictions of the same MODEL hold, instead of running it; repeat it "
        "for more",
        [],
        metavar="F.st",
    )
    note: str | None = calibrate_option(
        "A sentence about how this model was chosen, for the provenance of the checkpoint", metavar="TEXT"
    )

    def settle(self) -> None:
        """Drop ``--train`` if it was set for all verbs at once, and no score is fitted to it."""
        if self.of_this_verb("train"):
            return
        asked_for = set(self.score_names())
        if asked_for.isdisjoint(ON_FEATURES):
            self.train = None

    def scores(self) -> list[ScoreChoice]:
        """Return every ``--ood-score`` parsed, in order."""
        return [parse_ood_score(text) for text in self.ood_score]

    def score_names(self) -> list[str]:
        """Return the names of the scores, in the order given; ``all`` stands for every score."""
        if self.ood_score == [ALL_SCORES]:
            return [*SCORES, *ON_FEATURES]
        names: list[str] = []
        for text in self.ood_score:
            _, _, listed = text.rpartition("=")
            names += [name.strip() for name in listed.split(",")]
        return names
