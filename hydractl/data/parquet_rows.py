"""Write predictions as the rows of a Parquet file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

_ROWS_OF_A_GROUP = 10_000
"""How many rows are written together, and therefore held in memory."""


def write_predictions_parquet(
    handle: IO[bytes], rows: Iterable[Mapping[str, object]], fields: Sequence[str], *, named_classes: bool
) -> None:
    """Write predictions to a Parquet file. The types of the columns are fixed and do not depend on the values.

    Args:
        handle: the file, open for writing.
        rows: one mapping for each sample, with a value for every field.
        fields: the names of the fields, in the order of the columns.
        named_classes: whether classes are names; otherwise they are numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The types of all known fields; any other field is a number.
    number = pa.float64()
    label = pa.string() if named_classes else pa.int64()
    likely_class = pa.struct([("label", label), ("p", number)])
    answer_of_member = pa.struct([("predicted", label), ("confidence", number)])
    types = {
        "id": pa.string(),
        "label": label,
        "predicted": label,
        "is_ood": pa.bool_(),
        "cut": pa.bool_(),
        "set": pa.list_(label),
        "top": pa.list_(likely_class),
        "members": pa.list_(answer_of_member),
    }

    # Write in groups of rows, so that not all predictions are in memory as a table.
    columns = [(field, types.get(field, number)) for field in fields]
    schema = pa.schema(columns)
    remaining_rows = iter(rows)
    with pq.ParquetWriter(handle, schema) as writer:
        while group := list(itertools.islice(remaining_rows, _ROWS_OF_A_GROUP)):
            table = pa.Table.from_pylist(group, schema=schema)
            writer.write_table(table)
