"""Texts out of JSON lines and Parquet: one field of each row, bounded as it is read.

A row that is broken, too long or without text is left out and counted. Which ones follows from the file alone. Where
somebody writes conversations out as texts, a field with conversations is taken before others.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

import msgspec

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text.chat import Writer

Kind = Literal["text", "json", "parquet"]
Row = dict[str, Any] | None  # its texts and conversations by field; None: it is broken

ROW_BYTES = 16 << 20  # of one row, at most
LOOKED_AT = 1000  # rows of which the field is found
REFUSED = "refused by the template"
FIRST = 20  # lines of which most are objects where a file is of JSON lines
USUAL = ("text", "content", "sentence")  # fields that are taken before the one with most letters
LEAST = 2  # characters of a text
LEFT_OUT = ("broken", "without text", REFUSED)  # as rows are counted
CONVERSATIONS = ("messages", "conversations")  # fields that hold a list of what was said, and by whom
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # usual names of old
MOST_SAID = 10_000  # messages of a conversation
PARQUET, QUOTE, LIST = b"PAR1", ord('"'), ord("[")

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


class _Said(msgspec.Struct):
    """A message, by either pair of names."""

    role: str = ""
    content: str = ""
    source: str = msgspec.field(default="", name="from")
    value: str = ""

    @property
    def message(self) -> dict[str, str]:
        role = self.role or self.source
        return {"role": ROLES.get(role, role), "content": self.content or self.value}


Conversation = Annotated[list[_Said], msgspec.Meta(min_length=1, max_length=MOST_SAID)]


class Texts(NamedTuple):
    """The texts of a file's rows, and what is counted while they are taken."""

    field: str
    taken: Iterator[str]
    counted: Counter[str]  # "rows", and those left out
    are_conversations: bool = False


def kind_of(path: Path) -> Kind:
    """What a file is, by its content."""
    with path.open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return "parquet"
        file.seek(0)
        first = list(islice(_json_rows(file), FIRST))
    return "json" if sum(row is not None for row in first) * 2 > len(first) else "text"


def texts_of(files: Sequence[Path], writer: Writer | None = None, known: str = "") -> Texts:
    """All texts, in the order of files and rows, of what most rows have: texts, or conversations that `writer` writes.

    `known`: the field with texts, where nobody has to look for it. Raises Problem E381 for no Parquet file, E382 where
    no row has a text, and as `writer`.
    """
    rows, counted = partial(_rows, files), Counter[str]()
    field, conversations = (known, False) if known else _field_of(rows(lists=writer is not None), writer)
    if writer is None or not conversations:
        return Texts(field, _counted(rows(field), field, counted), counted)
    written = _written(rows(field, lists=True), field, writer, counted)
    return Texts(field, _counted(written, field, counted), counted, are_conversations=True)


def _written(rows: Iterable[Row], field: str, writer: Writer, counted: Counter[str]) -> Iterator[Row]:
    """The same with a text for each conversation. One that cannot be written is counted, and left out."""
    for row in rows:
        said = (row or {}).get(field)
        if not isinstance(said, list):
            yield row if row is None else {}
        elif (text := writer.write([each.message for each in said])) is not None:
            yield {field: text}
        else:
            counted["rows"] += 1
            counted[REFUSED] += 1


def _field_of(rows: Iterable[Row], writer: Writer | None) -> tuple[str, bool]:
    """The field, and whether it has conversations: where most rows do, and there is a template or nothing else."""
    letters, conversations, looked_at = Counter[str](), Counter[str](), 0
    for row in islice(rows, LOOKED_AT):
        looked_at += 1
        for name, text in (row or {}).items():
            if isinstance(text, str):
                letters[name] += len(text)
            else:
                conversations[name] += 1
    found = [name for name in (*USUAL, *(name for name, _ in letters.most_common(1))) if letters[name]]
    said = [name for name, count in conversations.most_common(1) if 2 * count > looked_at or not found]
    if writer is not None and said and (writer.has_template or not found):
        return said[0], True
    if not found:
        raise Problem.of("E382", rows=f"{looked_at:,}")
    return found[0], False


def _counted(rows: Iterable[Row], field: str, counted: Counter[str]) -> Iterator[str]:
    for row in rows:
        counted["rows"] += 1
        found = (row or {}).get(field)
        text = found if isinstance(found, str) else ""
        if row is None:
            counted["broken"] += 1
        elif len(text.strip()) < LEAST:
            counted["without text"] += 1
        else:
            yield text


def left_out(counted: Counter[str]) -> str:
    """As in `3 of 1,200 rows are left out: 2 broken, 1 without text.`; empty where none is."""
    reasons = [f"{counted[name]:,} {name}" for name in LEFT_OUT if counted[name]]
    number = sum(counted[name] for name in LEFT_OUT)
    return f" {number:,} of {counted['rows']:,} rows are left out: {', '.join(reasons)}." if reasons else ""


def _rows(files: Sequence[Path], field: str = "", *, lists: bool = False) -> Iterator[Row]:
    for path in files:
        yield from (_parquet if kind_of(path) == "parquet" else _json)(path, field, lists=lists)


# JSON lines


def _json(path: Path, field: str = "", *, lists: bool = False) -> Iterator[Row]:
    with path.open("rb") as file:
        yield from _json_rows(file, field, lists=lists)


def _json_rows(file: IO[bytes], field: str = "", *, lists: bool = False) -> Iterator[Row]:
    while line := file.readline(ROW_BYTES + 1):
        if len(line) > ROW_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(ROW_BYTES)) and not rest.endswith(b"\n"):
                pass  # of a line that is too long, nothing is kept
            yield None
        elif line.strip():
            yield _json_row(line, field, lists=lists)


def _json_row(line: bytes, field: str, *, lists: bool) -> Row:
    """Its texts, and conversations where `lists`: of one field, or of all."""
    try:
        values = _objects.decode(line)
        wanted = {field: values[field]} if field in values else {} if field else values
        texts: dict[str, Any] = {
            name: _string.decode(raw) for name, raw in wanted.items() if memoryview(raw)[0] == QUOTE
        }
        said = [name for name in CONVERSATIONS if lists and name in wanted and memoryview(wanted[name])[0] == LIST]
        return texts | _conversations({name: msgspec.json.decode(wanted[name]) for name in said})
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _parquet(path: Path, field: str = "", *, lists: bool = False) -> Iterator[Row]:
    from peer_agent.publishing.text import parquet  # which takes a while, and few files need it

    for row in parquet.rows_of(path, field, lists=CONVERSATIONS if lists else (), longest=ROW_BYTES):
        texts = {name: text for name, text in (row or {}).items() if isinstance(text, str)}
        yield None if row is None else texts | _conversations(row)


# Both


def _conversations(row: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a row; what is a list of something else is none."""
    found = {}
    for name in CONVERSATIONS:
        with contextlib.suppress(msgspec.ValidationError):
            said = msgspec.convert(row.get(name), Conversation)
            letters = sum(len(each.content) + len(each.value) for each in said)
            if letters <= ROW_BYTES and all(each.message["role"] for each in said):
                found[name] = said
    return found
