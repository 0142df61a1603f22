"""Reads texts from JSON lines and Parquet: one field of each row, with limits on its size. Rows that are broken, too
long or without text are counted and skipped. The choice depends only on the file.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, Self

import msgspec
import psutil
import pyarrow as pa
from msgspec import Struct
from pyarrow import compute, parquet, types

from peer_agent.protocol.errors import Problem

# Conversations are rendered as a model reads them, with the model's own chat template.
#
# A template is an untrusted program. transformers runs it in a sandbox without access to anything else. Here the
# sandbox also has its own process, which ends if the template takes too much time or memory.

RENDER_S, RENDER_BYTES = 5.0, 1 << 30  # limits for one conversation
# Limits in seconds for all conversations together: LONG_S, or MEAN_S per conversation if that is more.
LONG_S, MEAN_S = 60.0, 0.05
# Limit for a rendered conversation in bytes, and the most bytes that a character takes.
LONGEST, LETTER_BYTES = 16 << 20, 6
LOADED = b"loaded\n"
Message = Mapping[str, str]  # role and content


class ChatTemplate(Struct, frozen=True):
    """A chat template, and the model's special tokens by name. An empty source means that the model has no template."""

    source: str
    special: Mapping[str, str]


class Writer:
    """Renders conversations as text, in a process that starts with the first conversation."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.refusal = ""  # why the template last refused a conversation
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds, self._written = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def has_template(self) -> bool:
        return bool(self.template.source)

    def write(self, conversation: Sequence[Message]) -> str | None:
        """Render a conversation. Return None if the template refuses it.
        Raises Problem E393 if there is no template, E394 if the template is unusable.
        """
        answer = json.loads(self._asked(_line(conversation)))
        self.refusal = answer.get("refusal", self.refusal)
        text: str | None = answer.get("text")
        return text

    def _asked(self, question: bytes) -> bytes:
        process = self._process or self._begun()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(question)
            process.stdin.flush()
        began = time.monotonic()
        answer = process.stdout.readline()  # the child process limits the length of its answer
        self._seconds += time.monotonic() - began
        self._written += 1
        if self._seconds > max(LONG_S, MEAN_S * self._written):
            raise Problem.of("E394", reason=f"a conversation takes more than {1000 * MEAN_S:g} ms in the mean")
        if not answer:
            most = f"{RENDER_S:g} s" if process.wait() == -signal.SIGALRM else f"{RENDER_BYTES >> 20:,} MB"
            raise Problem.of("E394", reason=f"one conversation took more than {most}")
        return answer

    def _begun(self) -> "subprocess.Popen[bytes]":
        if not self.template.source:
            raise Problem.of("E393")
        command = [sys.executable, "-m", "peer_agent.publishing.rows"]
        self._process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(_line([self.template.source, dict(self.template.special)]))
            process.stdin.flush()
        if process.stdout.readline(len(LOADED)) != LOADED:
            raise Problem.of("E394", reason="the process that would run it does not start")
        return process


def _line(said: Any) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode(errors="replace") + b"\n"


# The child process


def main(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Render conversations in the child process of a `Writer`. The first line that it reads is the template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source, special = json.loads(questions.readline())
    _bound_memory()
    answers.write(LOADED)
    answers.flush()
    while question := questions.readline():
        signal.setitimer(signal.ITIMER_REAL, RENDER_S)  # this timer's signal ends the process
        answers.write(_line(_answer(render_jinja_template, json.loads(question), source, special)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.flush()


def _answer(render: Any, conversation: list[Message], source: str, special: Mapping[str, str]) -> dict[str, str]:
    try:
        (text,), _ = render([conversation], chat_template=source, **special)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a template may raise anything)
        return {"refusal": " ".join(str(error).split())[:200] or type(error).__name__}
    return {"text": text} if LETTER_BYTES * len(text) <= LONGEST else {"refusal": "it is too long"}


def _bound_memory() -> None:
    import resource  # Windows has no such module, and uses no template

    most = psutil.Process().memory_info().vms + RENDER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)


# Rows of a Parquet file are read in batches. The sizes in the file's footer may be false.

AT_A_TIME = 256  # rows in a batch
GROUP_BYTES, GROUP_ROWS = 2 << 30, 10_000_000  # limits of a row group: bytes of its largest column, and rows or values
MOST_LISTED = 10_000  # items in a list
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)


def rows_of(path: Path, field: str, *, lists: Collection[str], longest: int) -> Iterator[dict[str, Any] | None]:
    """Yield each row's texts and lists by column, or None for a broken row. Raises Problem E381 if not Parquet.
    `field`: the only column to read; "" means all text columns. `lists`: columns whose lists are also read, up to
    `MOST_LISTED` items. `longest`: longer texts are omitted.
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
    """Yield the rows of a row group. After an unreadable part, yield None for all remaining rows."""
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
    """Replace overlong lists with None, because each of their items would become a Python object."""
    for at, column in enumerate(batch.columns):
        if types.is_list(column.type) or types.is_large_list(column.type):
            is_long = compute.greater(compute.fill_null(compute.list_value_length(column), 0), MOST_LISTED)
            if compute.any(is_long).as_py():
                batch = batch.set_column(at, batch.schema.field(at), compute.if_else(is_long, None, column))
    return batch


Kind = Literal["text", "json", "parquet"]
Row = dict[str, Any] | None  # texts and conversations of a row by field; None for a broken row

ROW_BYTES = 16 << 20  # size limit of a row
LOOKED_AT = 1000  # rows from which the text field is detected
REFUSED = "refused by the template"
FIRST = 20  # lines read to detect the format: JSON lines if most are objects
USUAL = ("text", "content", "sentence")  # fields preferred to the field with the most text
LEAST = 2  # characters, without which a text counts as empty
LEFT_OUT = ("broken", "without text", REFUSED)  # reasons why rows are left out, as named in the counts
CONVERSATIONS = ("messages", "conversations")  # fields that may hold a list of messages with roles
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}  # older names of roles, and their present names
MOST_SAID = 10_000  # messages in a conversation
PARQUET, QUOTE, LIST = b"PAR1", ord('"'), ord("[")

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


class _Said(msgspec.Struct):
    """A message of a conversation. Its fields are named `role` and `content`, or `from` and `value`."""

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
    """The texts of a source's rows, and row counts that grow as the texts are read."""

    field: str
    taken: Iterator[str]
    counted: Counter[str]  # all rows, and rows left out by reason
    are_conversations: bool = False


def kind_of(path: Path) -> Kind:
    """Return a file's format, detected from its content."""
    with path.open("rb") as file:
        if file.read(len(PARQUET)) == PARQUET:
            return "parquet"
        file.seek(0)
        first = list(islice(_json_rows(file), FIRST))
    return "json" if sum(row is not None for row in first) * 2 > len(first) else "text"


def texts_of(files: Sequence[Path], writer: Writer | None = None, known: str = "") -> Texts:
    """Return the texts of all rows in order: from a text field, or from conversations that `writer` renders. `known`:
    the text field, if the caller knows it. Raises Problem E381 (not Parquet), E382 (no text), and the errors of
    `writer`.
    """
    rows, counted = partial(_rows, files), Counter[str]()
    field, conversations = (known, False) if known else _field_of(rows(lists=writer is not None), writer)
    if writer is None or not conversations:
        return Texts(field, _counted(rows(field), field, counted), counted)
    written = _written(rows(field, lists=True), field, writer, counted)
    return Texts(field, _counted(written, field, counted), counted, are_conversations=True)


def _written(rows: Iterable[Row], field: str, writer: Writer, counted: Counter[str]) -> Iterator[Row]:
    """Render each row's conversation as text. Count and skip conversations that the template refuses."""
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
    """Return the field to read, and True if the field holds conversations.
    Conversations are chosen if no field has text, or if most rows have them and a chat template exists.
    """
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
    """Return a sentence like `3 of 1,200 rows are left out: 2 broken, 1 without text.`, or "" if none are left out."""
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
                pass  # skip the rest of a line that is too long
            yield None
        elif line.strip():
            yield _json_row(line, field, lists=lists)


def _json_row(line: bytes, field: str, *, lists: bool) -> Row:
    """Return a line's texts, and its conversations if `lists` is set. Return None if the line is broken."""
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
    for row in rows_of(path, field, lists=CONVERSATIONS if lists else (), longest=ROW_BYTES):
        texts = {name: text for name, text in (row or {}).items() if isinstance(text, str)}
        yield None if row is None else texts | _conversations(row)


# Rows of either format


def _conversations(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name in CONVERSATIONS:
        with contextlib.suppress(msgspec.ValidationError):
            said = msgspec.convert(row.get(name), Conversation)
            letters = sum(len(each.content) + len(each.value) for each in said)
            if letters <= ROW_BYTES and all(each.message["role"] for each in said):
                found[name] = said
    return found
