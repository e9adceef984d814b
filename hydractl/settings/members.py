"""The options of the verbs that make members and join them: ``finetune`` and ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hydractl.settings.common import Batched
from hydractl.settings.option import option


@dataclass(kw_only=True)
class FinetuneSettings(Batched):
    """Options of ``finetune``. ``check()`` settles ``epochs``: 3 unless there are ``steps``."""

    verb: ClassVar[str] = "finetune"
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("epochs", "steps"),)
    needs_output_file: ClassVar[bool] = True

    val: str | None = option(
        None,
        help="Validation data, as a SPEC: the best epoch on it is kept",
        metavar="SPEC",
        default_text="none, the last epoch is kept",
        group="Length",
    )
    epochs: int | None = option(
        None,
        help="Passes over the data",
        unit="epochs",
        at_least=1,
        default_text="3, unless there are --steps",
        group="Length",
    )
    steps: int | None = option(
        None, help="Optimizer steps, instead of --epochs", unit="steps", at_least=1, group="Length"
    )
    patience: int | None = option(
        None,
        help="Stop after this many epochs without a better validation accuracy",
        unit="epochs",
        at_least=1,
        default_text="never",
        group="Length",
    )
    min_delta: float = option(
        0.0, help="What counts as better, a fraction of all samples", at_least=0, below=1, group="Length"
    )
    optimizer: str = option("adamw", help="The optimizer", choices=("adamw", "sgd"), group="Optimization")
    lr: float = option(1e-4, help="Learning rate at its peak", above=0, group="Optimization")
    weight_decay: float = option(0.01, help="Weight decay; none on biases and norms", at_least=0, group="Optimization")
    momentum: float = option(0.9, help="Momentum of sgd", at_least=0, below=1, group="Optimization")
    warmup: float = option(
        0.05,
        help="Linear warm-up: steps, or a fraction of all steps if less than 1",
        unit="steps or fraction",
        at_least=0,
        group="Optimization",
    )
    schedule: str = option(
        "cosine",
        help="The learning rate after the warm-up",
        choices=("cosine", "linear", "constant"),
        group="Optimization",
    )
    label_smoothing: float = option(0.0, help="Label smoothing", at_least=0, below=1, group="Optimization")
    clip: float = option(1.0, help="Largest gradient norm; 0 means no limit", at_least=0, group="Optimization")
    train_last: int | None = option(
        None,
        help="Train only the last N blocks and the classifier",
        unit="blocks",
        at_least=0,
        default_text="all blocks",
        group="Optimization",
    )

    def settle(self) -> None:
        """Three epochs unless said otherwise."""
        if not self.given("epochs") and not self.given("steps"):
            self.epochs = 3

    def inapplicable(self) -> dict[str, str]:
        """Momentum belongs to sgd."""
        return {} if self.optimizer == "sgd" else {"momentum": "optimizer"}

    def conflicts(self) -> list[str]:
        """Data, a length, and a warm-up in whole steps."""
        found = self.needs("data") + self.at_most_one("epochs", "steps")
        if self.given("patience") and not self.given("val"):
            found.append(f"--patience{self.where('patience')} needs --val")
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            found.append(f"--warmup must be whole steps or a fraction below 1, not {self.warmup}{self.where('warmup')}")
        return found


@dataclass(kw_only=True)
class FuseSettings(Batched):
    """Options of ``fuse``. ``check()`` turns ``merge`` into a list of what is averaged, empty for ``none``."""

    verb: ClassVar[str] = "fuse"
    many_models: ClassVar[bool] = True
    needs_output_file: ClassVar[bool] = True

    merge: list[str] = option(
        ["mlp", "norm", "embed"],
        help="What to average over the members; attention, LayerScale and classifiers never are",
        choices=("mlp", "norm", "embed", "none"),
        metavar="mlp,norm,embed|none",
        split=True,
        group="Fusing",
    )
    export: list[str] = option(
        [],
        help="Write the model in these formats as well, to run without hydractl; one MODEL is exported and not fused",
        choices=("onnx", "pt2"),
        metavar="onnx,pt2",
        split=True,
        default_text="none",
        group="Fusing",
    )

    @property
    def only_exports(self) -> bool:
        """Whether one model is exported, and nothing fused."""
        return bool(self.export) and len(self.model) == 1

    def inapplicable(self) -> dict[str, str]:
        """One model that is exported is joined with no other."""
        return {"merge": "export"} if self.only_exports else {}

    def conflicts(self) -> list[str]:
        """``none`` stands alone."""
        if self.merge == ["none"]:
            self.merge = []
        if "none" in self.merge:
            return [f"--merge none stands alone, not with the others: {','.join(self.merge)}{self.where('merge')}"]
        return []
