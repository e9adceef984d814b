"""The options of the verbs that measure: ``eval`` and ``bench``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings.common import DTYPES, Batched, Common
from hydractl.settings.option import option
from hydractl.settings.require import OodSet, Requirement, parse_ood_set, parse_requirement


@dataclass(kw_only=True)
class EvalSettings(Batched):
    """Options of ``eval``."""

    verb: ClassVar[str] = "eval"
    many_models: ClassVar[bool] = True

    ood: list[str] = option(
        [],
        help="Out-of-distribution data, as NAME[:near|far]=SPEC; repeat it for more",
        metavar="NAME=SPEC",
        names=True,
        group="Evaluation",
    )
    ood_score: str = option(
        "msp",
        help="The score that tells the data sets apart",
        choices=("msp", "entropy", "energy", "maxlogit", "mi", "variance"),
        group="Evaluation",
    )
    label_map: str | None = option(
        None, help="JSON object from labels of the data to labels of the model", metavar="FILE", group="Evaluation"
    )
    predictions: str | None = option(
        None, help="Also write one line per sample: .jsonl, .csv or .st", metavar="FILE", group="Evaluation"
    )
    require: list[str] = option(
        [],
        help="Exit with 4 unless it holds in every row, as [NAME:]KEY>=NUMBER; repeat it for more",
        metavar="EXPR",
        group="Evaluation",
    )

    def ood_sets(self) -> list[OodSet]:
        """The data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]

    def requirements(self) -> list[Requirement]:
        """The ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def conflicts(self) -> list[str]:
        """Data, readable sets with names of their own, and a known format of predictions."""
        found = self.needs("data") + require_problems(self, self.require)
        names: list[str] = []
        for text in self.ood:
            try:
                name = parse_ood_set(text).name
            except ValueError as error:
                found.append(f"--ood {error}{self.where('ood')}")
                continue
            if name == "id":
                found.append(f"--ood cannot be named 'id', which is --data{self.where('ood')}")
            if name in names:
                found.append(f"--ood has the name {name!r} twice{self.where('ood')}")
            names.append(name)
        if self.predictions is not None and not self.predictions.endswith((".jsonl", ".csv", ".st")):
            where = self.where("predictions")
            found.append(f"--predictions must end in .jsonl, .csv or .st, not {self.predictions!r}{where}")
        return found


@dataclass(kw_only=True)
class BenchSettings(Common):
    """Options of ``bench``."""

    verb: ClassVar[str] = "bench"
    many_models: ClassVar[bool] = True

    batch_size: list[int] = option(
        [1, 8],
        help="Samples that are computed together; several are measured one after another",
        metavar="N,...",
        unit="samples",
        at_least=1,
        split=True,
        group="Measuring",
    )
    dtype: list[str] = option(
        ["float32"],
        help=f"Number formats of the computation: {', '.join(DTYPES)}",
        choices=DTYPES,
        metavar="NAME,...",
        split=True,
        group="Measuring",
    )
    compile: bool = option(False, help="Measure the models compiled by torch.compile", group="Measuring")
    rounds: int = option(
        20,
        help="Measured rounds; each round runs every model once, in turn",
        unit="rounds",
        at_least=1,
        group="Measuring",
    )
    warmup: int = option(3, help="Rounds before the measured ones", unit="rounds", at_least=0, group="Measuring")
    threads: int | None = option(
        None, help="CPU threads", unit="threads", at_least=1, default_text="what torch chooses", group="Measuring"
    )
    require: list[str] = option(
        [],
        help="Exit with 4 unless it holds in every row but the first, as [NAME:]KEY<=NUMBER; repeat it for more",
        metavar="EXPR",
        group="Measuring",
    )

    def requirements(self) -> list[Requirement]:
        """The ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]

    def conflicts(self) -> list[str]:
        """Requirements that can be read."""
        return require_problems(self, self.require)


def require_problems(settings: Common, expressions: list[str]) -> list[str]:
    """What cannot be read of the ``--require`` expressions."""
    found = []
    for text in expressions:
        try:
            parse_requirement(text)
        except ValueError as error:
            found.append(f"--require {error}{settings.where('require')}")
    return found
