"""Rows of a Parquet file, some at a time. What its footer says of sizes is a claim."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet, types

from peer_agent.protocol.errors import Problem

AT_A_TIME = 256  # rows
GROUP_BYTES, GROUP_ROWS = 2 << 30, 10_000_000  # of a row group, at most: its largest column unpacked, rows and values
MOST_LISTED = 10_000  # of one row
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)


def rows_of(path: Path, field: str, *, lists: Collection[str], longest: int) -> Iterator[dict[str, Any] | None]:
    """The texts of each row by column: of one, or of all where `field` is empty; None for a row that is broken.

    Of columns that are called as `lists` also what they list, `MOST_LISTED` things at most. Raises Problem E381 where
    it is no Parquet file.
    """
    try:
        file = parquet.ParquetFile(path)
    except UNREADABLE as error:
        raise Problem.of("E381", reason=" ".join(str(error).split())[:200]) from error
    with file:
        names = [field] if field else _columns(file.schema_arrow, lists)
        for group in range(file.metadata.num_row_groups):
            yield from _row_group(file, group, names, longest)


def _columns(schema: pa.Schema, lists: Collection[str]) -> list[str]:
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    several = (types.is_list, types.is_large_list)
    named = [(column.name, (*texts, *several) if column.name in lists else texts) for column in schema]
    return [name for name, kinds in named if any(is_kind(schema.field(name).type) for is_kind in kinds)]


def _row_group(
    file: parquet.ParquetFile, group: int, names: list[str], longest: int
) -> Iterator[dict[str, Any] | None]:
    """What cannot be read is broken to the end of its row group."""
    about, read = file.metadata.row_group(group), 0
    columns = [about.column(at) for at in range(about.num_columns)]
    largest = max((column.total_uncompressed_size for column in columns), default=0)
    longest_column = max((column.num_values for column in columns), default=0)
    try:
        if largest <= GROUP_BYTES and max(about.num_rows, longest_column) <= GROUP_ROWS:
            for batch in file.iter_batches(AT_A_TIME, row_groups=[group], columns=names, use_threads=False):
                for row in _without_long_lists(batch).to_pylist():
                    read += 1
                    yield {name: text for name, text in row.items() if text is not None and len(text) <= longest}
    except UNREADABLE:
        pass
    for _ in range(min(about.num_rows, GROUP_ROWS) - read):
        yield None


def _without_long_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same, with nothing for a list that is too long: each thing in it would become an object."""
    for at, column in enumerate(batch.columns):
        if types.is_list(column.type) or types.is_large_list(column.type):
            is_long = compute.greater(compute.fill_null(compute.list_value_length(column), 0), MOST_LISTED)
            if compute.any(is_long).as_py():
                batch = batch.set_column(at, batch.schema.field(at), compute.if_else(is_long, None, column))
    return batch
