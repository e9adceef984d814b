"""What somebody asks of a study: its data, its rows and how they are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydractl.expressions.data_sets import AUTO, DataSpec, OodSet
from hydractl.expressions.models import ModelRef
from hydractl.metrics.requested import Threshold
from hydractl.options.signature import OF_A_TERMINAL

Options = Mapping[str, object]
"""The values of options of a verb, by the names of its parameters."""

_UNITS = {"s": 1, "m": 60, "h": 3600}
_NAMED = re.compile(r"[\w.+-]+(:(near|far))?=")


def ood_val_of_study(option: str, text: str, held: object = None) -> OodSet:
    """Return the OOD validation set of ``NAME=SPEC``, or of a SPEC alone, whose name is then ``oodval``.

    Raises:
        ValueError, UsageError: see :meth:`OodSet.of_option`.
    """
    named = text if _NAMED.match(text) else f"oodval={text}"
    return replace(OodSet.of_option(option, named, held), text=text)


_OF_A_RUN = {"model", "output", "force", "device", "workers", "batch_size", "timed", "dry_run", "config"}
"""The options that do not change what a study finds, or that the plan keeps in another way."""


def decisive_settings(values: Options) -> dict[str, str | list[str]]:
    """Return, by name, the options that decide what a study finds, as one writes them.

    They are kept with its plan, so that a study goes on only where they are the same. Options that say how it runs,
    such as ``device``, are missing, and those without a value.

    Args:
        values: the values of all its options, by name.
    """
    decisive: dict[str, str | list[str]] = {}
    for name, value in values.items():
        if value is None or name in _OF_A_RUN or name in OF_A_TERMINAL:
            continue
        decisive[name] = [str(item) for item in value] if isinstance(value, list | tuple) else str(value)
    return decisive


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """What is asked of a study, and how its commands run.

    Attributes:
        model: the MODEL.
        train, val, test: the data; training data may be None.
        ood_val, ood: the OOD validation sets, and the OOD test sets.
        rows: names of rows; ``default`` stands for several.
        max_drop: accuracy that may be lost on the validation data.
        time: how long it may take, such as ``8m``; None for no limit.
        search_samples: samples of each set in the search; None for half of the validation data.
        approx: the approximation of the search; None for an exact one.
        fit_samples: training samples that OOD scores on features are fitted to.
        epochs, lr: of rows that are trained.
        threshold: of ``best.st``, by a share of ID samples.
        bootstrap: resamples for intervals.
        limit, tower, seed: as every verb has them.
        on_bad: whether a sample that cannot be read is an ``error``, or is left out: ``skip``.
        timed: whether the latency of ``best.st`` is measured.
        has_ood_val, has_ood: whether somebody gave these; else they are made, and nothing is chosen by them.
        given: the options that somebody gave, of those that its steps share with a study, by name.
    """

    model: ModelRef
    train: DataSpec | None
    val: DataSpec
    ood_val: Sequence[OodSet]
    test: DataSpec
    ood: Sequence[OodSet]
    rows: Sequence[str]
    max_drop: float
    time: str | None
    search_samples: int | None
    approx: str | None
    fit_samples: int
    epochs: int
    lr: Sequence[float]
    threshold: Threshold
    bootstrap: int
    limit: int | None
    tower: str | None
    on_bad: str
    seed: int
    timed: bool
    has_ood_val: bool
    has_ood: bool
    given: Options

    def in_memory(self) -> list[str]:
        """Return the names of the model and the data that a Python program passed as objects; empty without any."""
        objects = [self.model, self.train, self.val, self.test, *(one.spec for one in [*self.ood_val, *self.ood])]
        return [one.text for one in objects if one is not None and one.held is not None]

    def ood_val_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood-val``, in order; ``auto`` becomes the set that is made of ``--val``."""
        sets = []
        for ood_set in self.ood_val:
            if ood_set.spec.text == AUTO:
                made_of_val = self.made_of_val.under(ood_set.spec.option)
                ood_set = ood_set.with_spec(made_of_val)
            sets.append(ood_set)
        return sets

    def choosing_sets(self) -> list[OodSet]:
        """Return the OOD validation sets by which a model is chosen.

        If there is only one set, a second one is made of the samples of ``--val``, to have OOD samples of another kind.
        """
        sets = self.ood_val_sets()
        is_single_given_set = len(sets) == 1 and not self.chooses_by_made_samples_alone()
        if is_single_given_set:
            sets.append(OodSet(f"{AUTO}={self.made_of_val}", AUTO, None, self.made_of_val))
        return sets

    def chooses_by_made_samples_alone(self) -> bool:
        """Return whether all OOD validation samples are made of the samples of ``--val``."""
        return all(ood_set.spec.text == self.made_of_val.text for ood_set in self.ood_val_sets())

    @property
    def made_of_val(self) -> DataSpec:
        """The OOD samples that are made of the samples of ``--val``."""
        return self.val.with_setting(f"ood={AUTO}")

    def seconds(self) -> float | None:
        """Return the ``--time`` in seconds; None if it is not given."""
        if self.time is None:
            return None
        return float(self.time[:-1]) * _UNITS[self.time[-1]]
