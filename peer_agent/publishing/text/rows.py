"""Texts out of JSON lines and Parquet: one field of each row, bounded as it is read.

A row that is broken, too long or without text is left out and counted. Which ones follows from the file alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec

from peer_agent.protocol.errors import Problem

Kind = Literal["text", "json", "parquet"]
Row = dict[str, Any] | None  # its texts by field; None: it is broken

ROW_BYTES = 16 << 20  # of one row, at most
LOOKED_AT = 1000  # rows of which the field is found
FIRST = 20  # lines of which most are objects where a file is of JSON lines
USUAL = ("text", "content", "sentence")  # fields that are taken before the one with most letters
LEAST = 2  # characters of a text
PARQUET, QUOTE = b"PAR1", ord('"')

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


class Texts(NamedTuple):
    """The texts of a file's rows, and what is counted while they are taken."""

    field: str
    taken: Iterator[str]
    counted: Counter[str]  # "rows", and those left out


def kind_of(path: Path) -> Kind:
    """What a file is, by its content."""
    with path.open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return "parquet"
        file.seek(0)
        first = list(islice(_json_rows(file), FIRST))
    return "json" if sum(row is not None for row in first) * 2 > len(first) else "text"


def texts_of(path: Path) -> Texts:
    """All texts, in the order of rows. Raises Problem E381 for no Parquet file, E382 where no row has a text."""
    rows = _parquet if kind_of(path) == "parquet" else _json
    field, counted = _field_of(rows(path)), Counter[str]()
    return Texts(field, _counted(rows(path, field), field, counted), counted)


def _field_of(rows: Iterable[Row]) -> str:
    letters, looked_at = Counter[str](), 0
    for row in islice(rows, LOOKED_AT):
        looked_at += 1
        for name, text in (row or {}).items():
            letters[name] += len(text)
    found = [name for name in (*USUAL, *(name for name, _ in letters.most_common(1))) if letters[name]]
    if not found:
        raise Problem.of("E382", rows=f"{looked_at:,}")
    return found[0]


def _counted(rows: Iterable[Row], field: str, counted: Counter[str]) -> Iterator[str]:
    for row in rows:
        counted["rows"] += 1
        text = row.get(field, "") if row is not None else ""
        if row is None:
            counted["broken"] += 1
        elif len(text.strip()) < LEAST:
            counted["without text"] += 1
        else:
            yield text


def left_out(counted: Counter[str]) -> str:
    """As in `3 of 1,200 rows are left out: 2 broken, 1 without text.`; empty where none is."""
    reasons = [f"{counted[name]:,} {name}" for name in ("broken", "without text") if counted[name]]
    number = counted["broken"] + counted["without text"]
    return f" {number:,} of {counted['rows']:,} rows are left out: {', '.join(reasons)}." if reasons else ""


# JSON lines


def _json(path: Path, field: str = "") -> Iterator[Row]:
    with path.open("rb") as file:
        yield from _json_rows(file, field)


def _json_rows(file: IO[bytes], field: str = "") -> Iterator[Row]:
    while line := file.readline(ROW_BYTES + 1):
        if len(line) > ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(ROW_BYTES)) and not rest.endswith(b"\n"):
                pass  # of a line that is too long, nothing is kept
            yield None
        elif line.strip():
            yield _json_row(line, field)


def _json_row(line: bytes, field: str) -> Row:
    """Its texts: of one field, or of all."""
    try:
        values = _objects.decode(line)
        wanted = {field: values[field]} if field in values else {} if field else values
        return {name: _string.decode(raw) for name, raw in wanted.items() if memoryview(raw)[0] == QUOTE}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _parquet(path: Path, field: str = "") -> Iterator[Row]:
    from peer_agent.publishing.text import parquet  # which takes a while, and few files need it

    yield from parquet.rows_of(path, field, longest=ROW_BYTES)
