"""The options of ``export``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.expressions.data_sets import OodSet, parse_ood_set
from hydractl.settings.common import EXPORTED, Batched, Rule
from hydractl.settings.option import option
from hydractl.settings.rules import names_once, needs

export_option = partial(option, "Exporting")


def _rounded_weights_for_data(settings: ExportSettings) -> list[str]:
    """Return a problem for data if no weights are rounded: data are only for measuring what rounding changes."""
    if settings.rounds_weights:
        return []
    problems = []
    for name in ("test", "ood"):
        if settings.given(name):
            problems.append(f"{settings.called(name)}{settings.where(name)} needs --format onnx-int8")
    return problems


def _samples_to_limit(settings: ExportSettings) -> list[str]:
    """Return a problem if ``--limit`` was given to this verb, and it reads no samples."""
    if not settings.of_this_verb("limit"):
        return []
    return settings.goes_with("limit", "test")


@dataclass(kw_only=True)
class ExportSettings(Batched):
    """Options of ``export``. ``check()`` fills in the format that the ending of ``output`` names, else ``onnx``.

    ``test`` and ``ood`` count only if they were given to ``export`` itself: a value for all verbs is meant for others.
    """

    verb: ClassVar[str] = "export"
    lacks: ClassVar[tuple[str, ...]] = ("data", "tower", "device", "dtype")  # a file is written and checked on the CPU
    needs_output_file: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        names_once("ood"),
        needs("ood", "test"),
        _rounded_weights_for_data,
        _samples_to_limit,
    )

    format: list[str] = export_option(
        "The formats to write, each a file or a folder; the weights of onnx-int8 are rounded to 8 bits, and --test "
        "measures what that does to the answers; mlflow is a folder for mlflow models serve, triton one for Triton "
        "[default: by the ending of --output, else onnx]",
        [],
        choices=("onnx", "onnx-int8", "pt2", "mlflow", "triton"),
        metavar="onnx,onnx-int8,pt2,mlflow,triton",
        split=True,
        often=True,
    )
    input: str = export_option(
        "What the graph of an image model takes: pixels preprocessed to float32, or images at the model's size in "
        "uint8, which it normalises itself",
        "float32",
        choices=("float32", "uint8"),
        often=True,
    )
    test: str | None = export_option(
        "Labelled test data, on which the rounding of onnx-int8 is measured", metavar="SPEC", often=True
    )
    ood: list[str] = export_option(
        "Out-of-distribution test data, as NAME[:near|far]=SPEC, that it is measured on beside --test; repeat it for "
        "more",
        [],
        metavar="NAME=SPEC",
        names=True,
        check=parse_ood_set,
        often=True,
    )

    def names_export(self) -> bool:
        """Return True: ``--output`` may have the ending of an exported file."""
        return True

    @property
    def rounds_weights(self) -> bool:
        """Whether weights are rounded in one of the files, so that its answers differ from the model's."""
        return "onnx-int8" in self.format

    def settle(self) -> None:
        """Fill in the format, and drop data that were set for all verbs at once."""
        if not self.given("format"):
            self.format = [self._format_of_output()]
        if not self.of_this_verb("test"):
            self.test = None
        if not self.of_this_verb("ood"):
            self.ood = []

    def _format_of_output(self) -> str:
        """Return the format that the ending of ``--output`` names, else ``onnx``."""
        name = (self.output or "").lower()
        for ending, kind in EXPORTED.items():
            if name.endswith(ending):
                return kind
        return "onnx"

    def ood_sets(self) -> list[OodSet]:
        """Return the data sets of ``--ood``, in order."""
        return [parse_ood_set(text) for text in self.ood]
