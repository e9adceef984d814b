"""The options of ``export``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import EXPORTED, Common
from hydractl.settings.option import option

export_option = partial(option, "Exporting")


@dataclass(kw_only=True)
class ExportSettings(Common):
    """Options of ``export``. ``check()`` fills in the format that the ending of ``output`` names, else ``onnx``."""

    verb: ClassVar[str] = "export"
    # No data are read, and a file is written and checked on the CPU.
    lacks: ClassVar[tuple[str, ...]] = ("data", "limit", "tower", "device", "workers")
    needs_output_file: ClassVar[bool] = True

    format: list[str] = export_option(
        "The formats to write, each a file [default: by the ending of --output, else onnx]",
        [],
        choices=("onnx", "pt2"),
        metavar="onnx,pt2",
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

    def names_export(self) -> bool:
        """Return True: ``--output`` may have the ending of an exported file."""
        return True

    def settle(self) -> None:
        """Fill in the format."""
        if not self.given("format"):
            self.format = [self._format_of_output()]

    def _format_of_output(self) -> str:
        """Return the format that the ending of ``--output`` names, else ``onnx``."""
        name = (self.output or "").lower()
        for ending, kind in EXPORTED.items():
            if name.endswith(ending):
                return kind
        return "onnx"
