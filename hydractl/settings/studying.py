"""The options of ``study``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.data_sets import AUTO, OodSet, parse_ood_set, with_setting
from hydractl.methods import rows_of_methods
from hydractl.metrics.ood_scores import OF_STUDY, ON_FEATURES
from hydractl.options.option import Option, option
from hydractl.settings.common import Batched, Rule, run_option
from hydractl.settings.rules import names_once, needs, required

study_option = partial(option, "Study")
data_option = partial(option, "Data of the study")

_OF_CIRCUITS = ("single", "whole-avg", "whole-auto", "whole-late", "whole-three", "circuits", "taylor")
_TRAINED = ("circuits-tuned", "taylor-tuned", "trained")
_OF_WEIGHTS = ("oba", "magnitude", "random-weights")
ROWS = ("default", *_OF_CIRCUITS, *_TRAINED, *(row.name for row in rows_of_methods()), *_OF_WEIGHTS)
"""Names of ``--rows``; ``hydractl.studies.rows`` makes them."""

_FURTHER_SCORES = tuple(name for name in ON_FEATURES if name not in OF_STUDY)

_UNITS = {"s": 1, "m": 60, "h": 3600}
_NAMED = re.compile(r"[\w.+-]+(:(near|far))?=")


def _unnamed(text: str) -> str:
    """Return ``SPEC`` as ``oodval=SPEC``; a text that has a name already is returned as it is."""
    if _NAMED.match(text):
        return text
    return f"oodval={text}"


def _words_for_their_score(settings: StudySettings) -> list[str]:
    """Return a problem for each score that needs ``--negative-words``, if they are not given."""
    problems = []
    for name in settings.ood_score:
        if ON_FEATURES.get(name) == "words" and not settings.given("negative_words"):
            problems.append(f"--ood-score {name}{settings.where('ood_score')} needs --negative-words FILE")
    return problems


@dataclass(kw_only=True)
class StudySettings(Batched):
    """Options of ``study``."""

    verb: ClassVar[str] = "study"
    needs_output_file: ClassVar[bool] = True
    lacks: ClassVar[tuple[str, ...]] = ("data",)
    rules: ClassVar[tuple[Rule, ...]] = (
        required("val"),
        required("test"),
        required("ood_val"),
        names_once("ood_val", _unnamed),
        required("ood"),
        names_once("ood", _unnamed),
        needs("negative_words", "ood_score"),
        _words_for_their_score,
    )

    train: str | None = data_option(
        "Training data, for rows that are trained or pruned with them and for OOD scores on features [default: none; "
        "rows that need them are left out]",
        metavar="SPEC",
        often=True,
    )
    val: str | None = data_option(
        "In-distribution validation data; one half is for the search, the other one to choose by",
        metavar="SPEC",
        often=True,
    )
    ood_val: list[str] = data_option(
        "Out-of-distribution validation data, never the same as a test set, divided likewise; repeat it for more: the "
        "search takes the first one; auto makes them of the samples of --val",
        [],
        metavar="[NAME=]SPEC|auto",
        names=True,
        check=lambda text: parse_ood_set(_unnamed(text)),
        often=True,
    )
    test: str | None = data_option(
        "In-distribution test data, which no model runs on before everything is chosen", metavar="SPEC", often=True
    )
    ood: list[str] = data_option(
        "Out-of-distribution test data, as NAME[:near|far]=SPEC; repeat it for more",
        [],
        metavar="NAME=SPEC",
        names=True,
        check=parse_ood_set,
        often=True,
    )
    rows: list[str] = study_option(
        f"Rows to make beside the single model: {', '.join(ROWS)}; default stands for those that need no training",
        ["default"],
        choices=ROWS,
        metavar="NAME,...",
        split=True,
    )
    max_drop: float = study_option("Accuracy that may be lost on validation data", 0.01, at_least=0, at_most=1)
    time: str | None = study_option(
        "Time that the study may take, such as 10m, 1h or 8h; where an estimate is longer, the search is approximated, "
        "takes fewer samples, and rows are left out; the plan says what [default: no limit]",
        metavar="TIME",
        pattern=r"[0-9]{1,6}[smh]",
        example="90s, 10m or 8h",
        often=True,
    )
    search_samples: int | None = study_option(
        "Samples of each set in the search [samples; default: half of the validation data]", at_least=2
    )
    approx: str | None = study_option(
        "Approximate the search, as in extract-circuit [default: exact]",
        metavar="lazy:N",
        pattern=r"lazy:[1-9][0-9]{0,8}",
        example="lazy:4",
    )
    fit_samples: int = study_option(
        "Samples of --train that OOD scores on features are fitted to, every Nth; 0 leaves these scores out [samples]",
        5000,
        at_least=0,
    )
    ood_score: list[str] = study_option(
        f"Further OOD scores to choose from: {', '.join(_FURTHER_SCORES)} [default: all on logits, and of those on "
        f"features {', '.join(OF_STUDY)}]",
        [],
        choices=_FURTHER_SCORES,
        metavar="NAME,...",
        split=True,
    )
    negative_words: str | None = study_option(
        "Words that name no class, one a line, for --ood-score neglabel of zero-shot models", metavar="FILE"
    )
    epochs: int = study_option("Epochs of rows that are trained [epochs]", 3, at_least=1)
    lr: list[float] = study_option(
        "Learning rate of rows that are trained; of several, each training is made with each and the best on the first "
        "half of --val is kept",
        [1e-4],
        metavar="X[,X...]",
        above=0,
        split=True,
    )
    threshold: str = study_option(
        "Share of in-distribution samples that best.st flags as OOD",
        "id:0.05",
        metavar="id:P",
        pattern=r"id:0?\.[0-9]+",
        example="id:0.05",
    )
    bootstrap: int = study_option("Resamples for 95 % intervals [resamples]", 1000, at_least=100)
    timed: bool = run_option("Measure the latency of best.st with bench at the end", True)

    def ood_val_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood-val``, in order."""
        sets = []
        for text in self.ood_val:
            ood_set = parse_ood_set(_unnamed(text))
            if ood_set.spec == AUTO:
                ood_set = ood_set._replace(spec=self._made)
            sets.append(ood_set)
        return sets

    def choosing_sets(self) -> list[OodSet]:
        """Return the OOD validation sets by which a model is chosen.

        If there is only one set, a second one is made of the samples of ``--val``, to have OOD samples of another kind.
        """
        sets = self.ood_val_sets()
        if len(sets) != 1:
            return sets
        (only,) = sets
        if only.spec != self._made:
            sets.append(OodSet(AUTO, None, self._made))
        return sets

    def chooses_by_made_samples_alone(self) -> bool:
        """Return whether all OOD validation samples are made of the samples of ``--val``."""
        specs = [ood_set.spec for ood_set in self.ood_val_sets()]
        return all(spec == self._made for spec in specs)

    @property
    def _made(self) -> str:
        """The SPEC of OOD samples made of the samples of ``--val``."""
        validation = str(self.val)
        return with_setting(validation, f"ood={AUTO}")

    def seconds(self) -> float | None:
        """Return the ``--time`` in seconds; None if it is not given."""
        if self.time is None:
            return None
        number = float(self.time[:-1])
        unit = self.time[-1]
        return number * _UNITS[unit]

    def common(self, options: Iterable[Option], names: Collection[str]) -> dict[str, str | list[str]]:
        """Return the texts, as flags take them, of the options that somebody gave and that another verb has, too.

        Args:
            options: the options of the other verb.
            names: those to consider.

        Returns:
            A text by the name of the option; a list of texts for a list.
        """
        texts: dict[str, str | list[str]] = {}
        for option_of_both in options:
            name = option_of_both.name
            if name not in names or not self._rank(name):  # rank 0: nobody gave it
                continue
            value = getattr(self, name)
            if isinstance(value, list):
                texts[name] = [str(part) for part in value]
            else:
                texts[name] = str(value)
        return texts
