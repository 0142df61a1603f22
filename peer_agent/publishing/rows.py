"""Reads one text column of a Parquet file, with limits on sizes, since those in the file's footer may be false."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from peer_agent.protocol.errors import Problem

AT_A_TIME = 256  # rows in a batch
GROUP_BYTES, GROUP_ROWS = 2 << 30, 10_000_000  # limits on a row group: bytes in its largest column, and rows or values
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
ROW_BYTES = 16 << 20  # size limit on a row
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]")  # control characters, which are removed
LEAST = 2  # texts with fewer characters count as empty
CONVERSATIONS = ("messages", "conversations")  # columns that may hold a list of messages with roles


def texts_of(path: Path, column: str) -> Iterator[str]:
    """Yield the column's texts in order. Skip rows that are empty, too long or unreadable. Raises Problem E381 if the
    file is not Parquet.
    """
    try:
        file = parquet.ParquetFile(path)
    except UNREADABLE as error:
        raise Problem.of("E381", reason=" ".join(str(error).split())[:200]) from error
    with file:
        for group in range(file.metadata.num_row_groups):
            for text in _column(file, group, column):
                plain = CONTROL.sub("", text) if text is not None and len(text) <= ROW_BYTES else ""
                if len(plain.strip()) >= LEAST:
                    yield plain


def is_bounded(about: parquet.RowGroupMetaData) -> bool:
    """Return True if the sizes stated in a row group's footer are small enough to read."""
    columns = [about.column(at) for at in range(about.num_columns)]
    largest = max((column.total_uncompressed_size for column in columns), default=0)
    values = max((column.num_values for column in columns), default=0)
    return bool(largest <= GROUP_BYTES and max(about.num_rows, values) <= GROUP_ROWS)


def _column(file: parquet.ParquetFile, group: int, column: str) -> Iterator[str | None]:
    if not is_bounded(file.metadata.row_group(group)):
        return
    try:
        for batch in file.iter_batches(AT_A_TIME, row_groups=[group], columns=[column], use_threads=False):
            yield from batch.column(0).to_pylist()
    except UNREADABLE:
        return
