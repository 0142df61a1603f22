"""Row groups of a Parquet file that lies elsewhere: how large each is, and some of them as a small file here."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet, types

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text.parquet import AT_A_TIME, GROUP_ROWS, UNREADABLE

GROUP_BYTES = 1 << 29  # of a row group's column, unpacked: what a volunteer's machine has in memory at once
MOST_COLUMNS = 64  # of texts, in the order of the file
TEXTS = (types.is_string, types.is_large_string, types.is_string_view)


class Group(Struct, frozen=True, array_like=True):
    """Rows, and bytes of each column of texts as they are unpacked; no columns where it is too large to be read."""

    rows: int
    sizes: dict[str, int]


def groups_in(file: IO[bytes]) -> list[Group]:
    """Those of a file, by its footer. Raises Problem E381 where it is no Parquet file, and what `file` raises."""
    with _opened(file) as found:
        names = [column.name for column in found.schema_arrow if any(is_text(column.type) for is_text in TEXTS)]
        wanted = set(names[:MOST_COLUMNS])
        return [_group(found.metadata.row_group(number), wanted) for number in range(found.metadata.num_row_groups)]


def _group(about: Any, wanted: set[str]) -> Group:
    columns = [about.column(at) for at in range(about.num_columns)]
    sizes = {column.path_in_schema: column.total_uncompressed_size for column in columns}
    fits = about.num_rows <= GROUP_ROWS and all(0 <= sizes[name] <= GROUP_BYTES for name in wanted & sizes.keys())
    return Group(about.num_rows, {name: size for name, size in sizes.items() if name in wanted} if fits else {})


def copy_groups(file: IO[bytes], groups: Iterable[int], columns: Iterable[str], path: Path) -> None:
    """These columns of these row groups as a Parquet file, which is written anew.

    What cannot be read is left out to the end of its row group. Raises Problem E381, OSError, and what `file` raises.
    """
    with _opened(file) as found:
        names, wanted = list(columns), set(columns)
        schema = pa.schema([field for field in found.schema_arrow if field.name in wanted]).remove_metadata()
        with parquet.ParquetWriter(path, schema) as writer:
            for number in groups:
                if number < found.metadata.num_row_groups and _group(found.metadata.row_group(number), wanted).sizes:
                    for batch in _batches(found, number, names):
                        writer.write_batch(batch.replace_schema_metadata(None))


def _batches(file: parquet.ParquetFile, number: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    batches = file.iter_batches(AT_A_TIME, row_groups=[number], columns=names, use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except UNREADABLE:
            return
        if batch is None:
            return
        yield batch


def _opened(file: IO[bytes]) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(file)
    except UNREADABLE as error:
        raise Problem.of("E381", reason=" ".join(str(error).split())[:200]) from error
