"""Read the sizes of row groups in a Parquet file on the Hub, and copy some of the groups to a small local file. A
footer's sizes may be false, so the bytes written are counted, with the same limit on all machines.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from msgspec import Struct
from pyarrow import parquet, types

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.rows import CONVERSATIONS, GROUP_ROWS, UNREADABLE

GROUP_BYTES = 1 << 30  # limit on a row group's column, packed or unpacked, as stated in the footer
WRITTEN_BYTES = 1 << 30  # limit on unpacked bytes copied from one file
AT_A_TIME = 16  # rows read at a time, because each may be long
MOST_COLUMNS = 64  # most text columns considered, in the file's order
TEXTS = (types.is_string, types.is_large_string, types.is_string_view)
LISTS = (types.is_list, types.is_large_list)
# Errors of this machine, which say nothing about the file
OF_THIS_MACHINE = (pa.ArrowMemoryError, pa.ArrowNotImplementedError)


MEMORY_BYTES = 6 << 30  # limit on a process that unpacks untrusted rows


def limit_memory() -> None:
    """Limit this process's memory, if the system supports that."""
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, most))


@contextmanager
def faults_of_this_machine(repository: str, name: str) -> Iterator[None]:
    """Raise Problem E416 if this machine, not the file, causes an error by lacking memory or a feature."""
    try:
        yield
    except (*OF_THIS_MACHINE, MemoryError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise Problem.of("E416", repository=repository, name=name, reason=reason) from error


class Group(Struct, frozen=True, array_like=True):
    """A row group: its number of rows, and the unpacked bytes of each text column that is small enough to read."""

    rows: int
    sizes: dict[str, int]


class Groups:
    """The row groups in a Parquet file's footer. Raises Problem E381 if the file is not Parquet, and passes on errors
    from reading it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._file = parquet.ParquetFile(file)
        except OF_THIS_MACHINE:
            raise
        except UNREADABLE as error:
            raise Problem.of("E381", reason=" ".join(str(error).split())[:200]) from error

    @property
    def texts(self) -> list[str]:
        return self._columns(TEXTS)[:MOST_COLUMNS]

    @property
    def conversations(self) -> list[str]:
        """The columns whose names and types suggest conversations."""
        return [name for name in self._columns(LISTS) if name in CONVERSATIONS]

    def _columns(self, kinds: Sequence[Any]) -> list[str]:
        schema = self._file.schema_arrow
        return [column.name for column in schema if any(is_kind(column.type) for is_kind in kinds)]

    def all(self) -> list[Group]:
        wanted = set(self.texts)
        return [self._group(number, wanted) for number in range(self._file.metadata.num_row_groups)]

    def _group(self, number: int, wanted: set[str]) -> Group:
        about = self._file.metadata.row_group(number)
        columns = [about.column(at) for at in range(about.num_columns if about.num_rows <= GROUP_ROWS else 0)]
        sizes = {
            column.path_in_schema: column.total_uncompressed_size
            for column in columns
            if 0 <= column.total_uncompressed_size <= GROUP_BYTES and 0 <= column.total_compressed_size <= GROUP_BYTES
        }
        return Group(about.num_rows, {name: size for name, size in sizes.items() if name in wanted})

    def copy(self, numbers: Iterable[int], columns: Sequence[str], path: Path) -> None:
        """Copy columns of row groups to a new Parquet file, up to WRITTEN_BYTES. After an unreadable part, skip the
        rest of its row group. Raises OSError, MemoryError, the errors in OF_THIS_MACHINE, or errors from reading the
        file.
        """
        wanted = set(columns)
        schema = pa.schema([field for field in self._file.schema_arrow if field.name in wanted]).remove_metadata()
        written, read = 0, 0
        with parquet.ParquetWriter(path, schema) as writer:
            for number in numbers:
                read += self._packed_bytes(number, wanted)
                if read > GROUP_BYTES:
                    return
                for batch in self._batches(number, list(columns)):
                    written += batch.nbytes
                    if written > WRITTEN_BYTES:
                        return
                    writer.write_batch(batch.replace_schema_metadata(None))

    def _packed_bytes(self, number: int, wanted: set[str]) -> int:
        """Return the packed bytes of a row group's wanted columns, or more than the limit if there is no such group."""
        if number >= self._file.metadata.num_row_groups:
            return GROUP_BYTES + 1
        about = self._file.metadata.row_group(number)
        columns = [about.column(at) for at in range(about.num_columns)]
        sizes = [each.total_compressed_size for each in columns if each.path_in_schema.split(".")[0] in wanted]
        return sum(sizes) if all(size >= 0 for size in sizes) else GROUP_BYTES + 1

    def _batches(self, number: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(AT_A_TIME, row_groups=[number], columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except OF_THIS_MACHINE:
                raise
            except UNREADABLE:
                return
            if batch is None:
                return
            yield batch
