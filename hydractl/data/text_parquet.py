"""Rows of a ``.parquet`` file, by pyarrow, which is optional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydractl.data.spec import Spec
from hydractl.data.text_rows import Row
from hydractl.errors import InputError, UsageError

_ROWS_AT_A_TIME = 1024


class ParquetTable:
    """An opened Parquet file.

    Args:
        spec: the SPEC.

    Attributes:
        columns: the names of the columns in order.

    Raises:
        UsageError: where pyarrow is not installed.
        InputError: for a file that is no Parquet.
    """

    def __init__(self, spec: Spec) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise UsageError(
                f"{spec.where}: reading Parquet needs pyarrow, which is not installed",
                hint="pip install pyarrow",
            ) from error
        # pyarrow.lib.ArrowException is no base of all it raises: a missing file is an OSError, bad text a ValueError.
        self._errors = (pyarrow.lib.ArrowException, OSError, ValueError)
        self._spec = spec
        try:
            self._file: Any = pyarrow.parquet.ParquetFile(Path(spec.path).expanduser())
            self.columns: list[str] = list(self._file.schema_arrow.names)
        except self._errors as error:
            raise self._unreadable(error) from error

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows with only these columns; nothing else is read."""
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(columns)):
                values = {name: batch.column(name).to_pylist() for name in columns}
                for index in range(batch.num_rows):
                    number += 1
                    yield Row(f"row {number}", {name: values[name][index] for name in columns})
        except self._errors as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        if isinstance(error, UnicodeDecodeError):
            return InputError(f"{self._spec.where}: the file holds text that is not UTF-8: {error.reason}")
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return InputError(f"{self._spec.where}: cannot read the file: {reason}")
