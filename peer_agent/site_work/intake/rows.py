"""Reads rows of JSON, CSV, Parquet and Arrow files. A row contains texts and conversations, by field.

A field inside an object is named by its path, such as `translation.en`. Strings in a list are joined by line breaks.
"""

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from io import StringIO, TextIOWrapper
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import compute, parquet, types

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.rows import AT_A_TIME, GROUP_ROWS, ROW_BYTES, UNREADABLE, is_bounded
from peer_agent.site_work.intake.chat import Message, NotText, conversation_of, letters_in
from peer_agent.site_work.intake.unpack import split_in
from peer_agent.site_work.intake.verdict import shown

Kind = Literal["text", "json", "csv", "parquet", "arrow"]

FIRST = 20  # lines read to detect JSON Lines; most of them must be objects
DEEPEST, MOST_FIELDS = 4, 200  # deepest nesting of objects, and most fields in a row
JSON_NAMES = (".json", ".jsonl", ".ndjson", ".jsonlines")
MARKS = ",;\t|"  # possible separators between a table's cells
CSV_NAMES, TABS = (".csv", ".tsv", ".tab"), (".tsv", ".tab")
ARROW_NAMES = (".arrow", ".ipc", ".feather")
PARQUET, ARROW = b"PAR1", b"ARROW1"
LOOKED_AT, MOST_WORDS = 30, 6  # lines that decide on a separator, and most words in a column's name
FEWEST_ROWS, ALIKE = 10, 0.9  # a text is a table if it has this many rows and this share of them is equally long
SNIFFED = 1 << 16  # characters from which a CSV file's separator is guessed
MOST_LISTED = 10_000  # most items read of a list, since a longer one would become too many objects
FEWEST_LISTED = 10  # an object listing this many rows is a whole table, not a row; two suffice in a .json file
HEADER = 60  # most characters in a column's name
LONGEST_VALUE = 4 * ROW_BYTES  # most characters in a value of an array or a sequence of JSON values
_decoder = json.JSONDecoder()
BETWEEN = re.compile(r"[ \t\r\n,]*")


class Broken(NamedTuple):
    """An unusable row or value: the reason, and an example."""

    reason: str
    example: str


Value = str | list[Message] | Broken  # one field's value may be unusable although the row's other fields are fine
Row = dict[str, Value] | Broken


def kind_of(path: Path, name: str) -> Kind:
    """Return a file's format, detected from its content and suffix. Text files must already be in UTF-8.

    Raises Problem E427 if the file's name says JSON but it contains no JSON objects.
    """
    suffix = PurePosixPath(name.lower()).suffix
    with path.open("rb") as file:
        begin = file.read(len(ARROW))
        if begin.startswith(PARQUET):
            return "parquet"
        if begin.startswith(ARROW) or suffix in ARROW_NAMES:
            return "arrow"
        if suffix in CSV_NAMES:
            return "csv"
        if _is_json(path, name):
            return "json"
    if suffix in JSON_NAMES:
        raise Problem.of("E427", name=shown(name))
    return "text"


def rows_in(path: Path, kind: Kind, name: str) -> Iterator[Row]:
    """Yield a file's rows in order.

    Raises Problem E381 if a Parquet or Arrow file is unreadable, E454 if a JSON file is cut short or broken, or E457 if
    it contains several tables.
    """
    match kind:
        case "json":
            yield from _json(path, name)
        case "csv":
            yield from _csv(path, name)
        case "parquet":
            yield from _parquet(path)
        case "arrow":
            yield from _arrow(path)
        case "text":
            raise AssertionError("a text has no rows")


# Values


def _row(values: Mapping[str, Any]) -> Row:
    found: dict[str, Value] = {}
    _gather(values, "", found, DEEPEST)
    if any(_length(value) > ROW_BYTES for value in found.values()):
        return Broken("too long", shown(str(next(iter(found.values())))))
    return found


def _length(value: Value) -> int:
    if isinstance(value, str):
        return len(value)
    return 0 if isinstance(value, Broken) else letters_in(value)


def _gather(values: Mapping[str, Any], prefix: str, found: dict[str, Value], levels: int) -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if len(found) >= MOST_FIELDS:
            return
        if isinstance(value, str) or value is None:
            found[name] = value or ""
        elif isinstance(value, bytes):
            found[name] = value.decode("utf-8", "replace") if b"\0" not in value else ""
        elif isinstance(value, dict) and levels:
            _gather(value, f"{name}.", found, levels - 1)
        elif isinstance(value, list) and value:
            _gather_list(value, name, found, levels)


def _gather_list(items: list[Any], name: str, found: dict[str, Value], levels: int) -> None:
    try:
        said = conversation_of(items)
    except NotText:
        found[name] = Broken("with parts that are not text", json.dumps(items, default=str)[:500])
        return
    if said is not None:
        found[name] = said
    elif all(item is None or isinstance(item, str) for item in items):
        found[name] = "\n".join(item for item in items if item)
    elif all(isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in items):
        _gather(dict(items), f"{name}.", found, levels - 1)  # a Parquet map
    elif levels and all(isinstance(item, list) for item in items):
        inside_lists: dict[str, Value] = {}
        for number, item in enumerate(items[:MOST_LISTED]):
            _gather({str(number): item}, "", inside_lists, levels - 1)
        found[name] = "\n".join(value for value in inside_lists.values() if isinstance(value, str) and value)
    elif levels and all(isinstance(item, dict) for item in items):
        parts: defaultdict[str, list[str]] = defaultdict(list)
        for item in items[:MOST_LISTED]:
            inside: dict[str, Value] = {}
            _gather(item, f"{name}.", inside, levels - 1)
            for key, value in inside.items():
                if isinstance(value, str):
                    parts[key].append(value)
        found |= {key: "\n".join(texts) for key, texts in parts.items()}


# JSON: one object per line, objects spanning several lines, or one array of objects


def _is_json(path: Path, name: str) -> bool:
    """Return True if a text contains JSON objects, either on most of its first lines or as a sequence from its start.

    If the file's name says JSON, one whole object is enough, whatever follows it.
    """
    if _has_lines(_first_objects(path), name):
        return True
    found: list[Any] = []
    try:
        found.extend(islice(_values(path, name), 2))
    except Problem:  # something else follows the first objects
        return name.lower().endswith(JSON_NAMES) or len(found) > 1
    return bool(found)


def _first_objects(path: Path) -> list[dict[str, Any] | None]:
    with path.open("rb") as file:
        return [_object(line) for line in islice((line for line in _lines(file) if line and line.strip()), FIRST)]


def _has_lines(first: list[dict[str, Any] | None], name: str) -> bool:
    """Return True if most of these lines are objects, each of them a row.

    A single line with an object that lists all rows does not count.
    """
    if len(first) == 1 and first[0] is not None and _list_in(first[0], name) is not None:
        return False
    return sum(values is not None for values in first) * 2 > len(first)


def _json(path: Path, name: str) -> Iterator[Row]:
    if not _has_lines(_first_objects(path), name):
        for values in _values(path, name):
            yield Broken("broken", shown(values)) if isinstance(values, str) else _row(values)
        return
    with path.open("rb") as file:
        for line in _lines(file):
            if line is None:
                yield Broken("too long", "a line")
            elif line.strip():
                found = _object(line)
                yield Broken("broken", line[:500].decode(errors="replace")) if found is None else _row(found)


def _lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield a file's lines. Yield None in place of a line that is too long to keep in memory."""
    while line := file.readline(ROW_BYTES + 1):
        if len(line) > ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(ROW_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line


def _object(line: bytes | None) -> dict[str, Any] | None:
    """Return the object in a line, or None if there is none.

    `NaN` and infinite numbers, which Python writes, are accepted.
    """
    if line is None:
        return None
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = json.loads(line) if b"NaN" in line or b"Infinity" in line or b"\\ud" in line.lower() else None
        except (ValueError, RecursionError):
            return None
    return _without_halves(found) if isinstance(found, dict) else None


def _without_halves(value: Any) -> Any:
    """Replace lone surrogates (halves of characters) with `?`. JSON escapes can express them, but UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_halves(key): _without_halves(inside) for key, inside in value.items()}
    return [_without_halves(inside) for inside in value] if isinstance(value, list) else value


def _values(path: Path, name: str) -> Iterator[dict[str, Any] | str]:
    """Yield the objects in an array, in a list inside an object, or in a sequence. Yield other values as text.

    Raises Problem E454 if the file cannot be read to its end.
    """
    number = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        buffer = file.read(SNIFFED).lstrip()
        is_array = buffer.startswith("[")
        if not is_array and not buffer.startswith("{"):
            return
        at = int(is_array)  # where the next value begins; the buffer is cut only when reading more
        while True:
            at = blank.end() if (blank := BETWEEN.match(buffer, at)) else at
            found, end = _value_at(buffer, at)
            if end:
                if not number and not isinstance(found, dict):
                    return
                if not number and not is_array and (inside := _list_in(found, name)) is not None:
                    yield from inside
                    return
                yield _without_halves(found) if isinstance(found, dict) else shown(json.dumps(found))
                number, at = number + 1, end
                continue
            if is_array and buffer.startswith("]", at):
                return
            buffer, at = buffer[at:], 0
            if more := file.read(min(max(SNIFFED, len(buffer)), LONGEST_VALUE - len(buffer))):
                buffer += more
            elif not number or not (buffer or is_array):
                return
            else:
                raise Problem.of("E454", name=shown(name), rows=f"{number:,}", text=shown(buffer, 60) or "the end")


def _value_at(buffer: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at position `at`, and the position of its end.

    The end is 0 if the value is incomplete.
    """
    try:
        found, end = _decoder.raw_decode(buffer, at)
    except (ValueError, RecursionError):
        return None, 0
    return found, end


def _list_in(values: Mapping[str, Any], name: str) -> list[dict[str, Any]] | None:
    """Return the rows of a JSON file that is a single object, or None if the object is itself a row.

    The rows are the object's longest list of objects, as in `{"data": [...]}`, or all of its values. Raises Problem
    E457 if several lists are named after splits, such as `train` and `test`.
    """
    lists = [value for value in values.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    named = [key for key, value in values.items() if value in lists and split_in(key)] if len(lists) > 1 else []
    if len(named) > 1:
        raise Problem.of("E457", name=shown(name), lists=", ".join(map(shown, named)))
    whole = [value for value in values.values() if isinstance(value, dict)]
    if len(whole) == len(values) >= FEWEST_LISTED:
        return whole  # an object that maps names to rows
    longest = max(lists, key=len, default=[])
    fewest = 2 if name.lower().endswith(".json") else FEWEST_LISTED
    if len(longest) < fewest or conversation_of(longest[:2]) is not None:
        return None
    return [each for each in longest if isinstance(each, dict)]


# CSV


def _csv(path: Path, name: str) -> Iterator[Row]:
    csv.field_size_limit(ROW_BYTES)
    with path.open("rb") as raw:
        file = TextIOWrapper(raw, "utf-8", "replace", newline="")
        begin = file.read(SNIFFED)
        file.seek(0)
        if begin[:4].lower() == "sep=":  # a line that tells Excel the separator
            file.readline()
            begin = begin.partition("\n")[2]
        separator = _separator(begin, name)
        is_quoted = separator != "\t" or not _swallows_rows(begin)
        reader = csv.reader(file, delimiter=separator, quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE)
        header = next(reader, [])
        names = [title.strip().removeprefix("\ufeff") for title in header]
        if not _is_header(names):
            names = [f"column {number + 1}" for number in range(len(header))]
            yield _csv_row(names, header)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Broken("broken", shown(str(error)))
                continue
            if cells:
                yield _csv_row(names, cells)


def _swallows_rows(begin: str) -> bool:
    """Return True if a reader that honors quotation marks would join rows of a tab-separated table."""
    rows = csv.reader(StringIO(begin, newline=""), delimiter="\t")
    swallows = any("\n" in cell and "\t" in cell for cells in rows for cell in cells)
    return swallows and len({line.count("\t") for line in begin.split("\n")[:-1]}) == 1


def _separator(begin: str, name: str) -> str:
    if PurePosixPath(name.lower()).suffix in TABS:
        return "\t"
    return max(MARKS, key=lambda mark: _regular(begin, mark))


def _regular(begin: str, mark: str) -> tuple[int, int, int]:
    """Count the initial rows that have the usual number of cells if `mark` separates cells.

    Return this count, the usual number of cells, and the number of all initial rows.
    """
    lines = begin.split("\n")[:LOOKED_AT]
    counts = Counter(len(cells) for cells in csv.reader(lines, delimiter=mark) if cells)
    cells, rows = counts.most_common(1)[0] if counts else (1, 0)
    return (rows, cells, counts.total()) if cells > 1 else (0, 0, 0)


def table_in(path: Path) -> tuple[int, int] | None:
    """If a text is a table, return how many of its initial rows have the same number of cells, and that number.

    Otherwise, return None.
    """
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        begin = file.read(SNIFFED)
    try:
        rows, cells, together = max(_regular(begin, mark) for mark in MARKS)
    except csv.Error:
        return None
    return (rows, cells) if rows >= max(FEWEST_ROWS, ALIKE * together) else None


def _is_header(names: list[str]) -> bool:
    if len(set(names)) < len(names) or not all(0 < len(name) <= HEADER for name in names[1:]):
        return False  # the first may be empty, as pandas leaves it above the row numbers
    if any(name.endswith((".", "!", "?")) or len(name.split()) > MOST_WORDS for name in names):
        return False
    return not any(name.replace(".", "", 1).lstrip("-").isdigit() for name in names)


def _csv_row(names: list[str], cells: list[str]) -> Row:
    if len(cells) > len(names):
        return Broken(
            "with more cells than the header",
            f"{len(cells)} cells where the header has {len(names)}: {','.join(cells)[:200]}",
        )
    return dict(zip(names, cells, strict=False))


# Parquet and Arrow

SKIPPED = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal, types.is_null)
LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        file = parquet.ParquetFile(path)
    except UNREADABLE as error:
        raise Problem.of("E381", reason=shown(str(error))) from error
    with file:
        names = _columns(file.schema_arrow)
        for group in range(file.metadata.num_row_groups):
            about, read = file.metadata.row_group(group), 0
            try:
                if is_bounded(about):
                    for batch in file.iter_batches(AT_A_TIME, row_groups=[group], columns=names, use_threads=False):
                        for row in _batch(batch):
                            read += 1
                            yield row
            except UNREADABLE:
                pass
            for _ in range(min(about.num_rows, GROUP_ROWS) - read):
                yield Broken("broken", f"a row of the row group {group + 1}, which cannot be read")


def _arrow(path: Path) -> Iterator[Row]:
    try:
        with pa.OSFile(str(path)) as file:
            with_footer = file.read(len(ARROW)) == ARROW
            file.seek(0)
            if with_footer:
                reader = pa.ipc.open_file(file)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            else:
                batches = iter(pa.ipc.open_stream(file))
            for batch in batches:
                chosen = [at for at, column in enumerate(batch.schema) if not _is_of_numbers(column.type)]
                for start in range(0, batch.num_rows, AT_A_TIME):
                    yield from _batch(batch.select(chosen).slice(start, AT_A_TIME))
    except UNREADABLE as error:
        raise Problem.of("E381", reason=shown(str(error))) from error


def _columns(schema: pa.Schema) -> list[str]:
    return [column.name for column in schema if not _is_of_numbers(column.type)]


def _is_of_numbers(kind: pa.DataType) -> bool:
    if any(is_list(kind) for is_list in LISTS):
        return _is_of_numbers(kind.value_type)
    return any(is_kind(kind) for is_kind in SKIPPED)


def _batch(batch: pa.RecordBatch) -> Iterator[Row]:
    for at, column in enumerate(batch.columns):
        if types.is_list(column.type) or types.is_large_list(column.type):
            is_long = compute.greater(compute.fill_null(compute.list_value_length(column), 0), MOST_LISTED)
            if compute.any(is_long).as_py():
                batch = batch.set_column(at, batch.schema.field(at), compute.if_else(is_long, None, column))
    columns = [_cells(column) for column in batch.columns]
    names = [
        name if batch.schema.names.index(name) == at else f"{name} {at}" for at, name in enumerate(batch.schema.names)
    ]
    for cells in zip(*columns, strict=True):
        yield _row(dict(zip(names, cells, strict=True)))


def _cells(column: pa.Array) -> list[Any]:
    """Return a column's values. If text is not valid UTF-8, replace the invalid bytes with U+FFFD.

    If the column cannot be read at all, return None for each of its rows.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, *UNREADABLE):
        pass
    else:
        return values
    try:
        return [None if raw is None else raw.decode("utf-8", "replace") for raw in column.cast(pa.binary()).to_pylist()]
    except (ValueError, *UNREADABLE):
        return [None] * len(column)
