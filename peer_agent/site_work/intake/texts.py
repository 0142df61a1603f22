"""Opens a source of texts: unpacks it, recognizes its encoding and format, chooses the field, and cuts documents.

A source is a file, or a folder whose files are read in order of name. A verdict records how the source was interpreted.
"""

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from peer_agent.protocol.errors import Problem, codes
from peer_agent.publishing.documents import LONGEST_CONVERSATION, Documents, cut_documents
from peer_agent.site_work.intake.chat import Message, Writer, plainly
from peer_agent.site_work.intake.encoding import Look, as_utf8
from peer_agent.site_work.intake.overlap import digest_of
from peer_agent.site_work.intake.rows import MOST_FIELDS, Broken, Kind, Value, kind_of, rows_in, table_in
from peer_agent.site_work.intake.unpack import SPLITS, UNPACKED_LEAST, UNPACKED_TIMES, members_of, split_of
from peer_agent.site_work.intake.verdict import SHOWN, Field, Verdict, shown

USUAL = ("text", "content", "sentence")  # fields with these names are preferred to the field with the most text, ...
LEAST_USUAL = 0.1  # ... if they have at least this share of that field's characters
RIVAL = 0.1  # ask the organizer if another field has at least this share of the chosen field's characters
LEAST = 2  # texts with fewer characters count as empty
MANY_REPEATS, MANY_LEFT_OUT = 0.05, 0.2  # shares of rows above which the verdict mentions repeated or left-out rows
# Fields that belong together, so that the organizer may not want one alone
PAIRED = {"question", "answer", "prompt", "completion", "response", "instruction", "input", "output", "context"}
LEFT_IN_ARCHIVES = (codes.NOT_OPENED, codes.NOT_UTF8, codes.NOT_JSON)  # in an archive, such files are left out
REFUSED = "refused by the template"
FORMATS: dict[Kind, str] = {
    "text": "plain text",
    "json": "JSON",
    "csv": "CSV",
    "parquet": "Parquet",
    "arrow": "Arrow",
}
MOST_HELD_OUT = 16 << 20  # most bytes read from a held-out part provided by the organizer
BLOCK = 1 << 20


class Source(NamedTuple):
    """A source as provided. `name`: the name of its file. `field`: the field to read, or empty to choose one."""

    path: Path
    name: str = ""
    field: str = ""


class Opened(NamedTuple):
    """A source's documents. `heldout`: those that the organizer set aside as `val` or `test`, or None."""

    documents: Documents
    heldout: Documents | None
    verdict: Verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for documents in filter(None, (self.documents, self.heldout)):
            documents.close()


class _File(NamedTuple):
    """An unpacked file, in UTF-8 unless it is a Parquet or Arrow file."""

    path: Path
    name: str
    kind: Kind


def open_texts(source: Source, scratch: Path, writer: Writer | None = None, beside: Sequence[Source] = ()) -> Opened:
    """Read a source. `scratch`: a path next to which files are written. `writer`: renders conversations. `beside`:
    other sources, which are held out entirely.

    Raises Problem E303 if the source is empty, E382 if its rows contain no text, E395 if it contains too much text, or
    E430 if the field does not exist. Raises E302, E378, E381, E424, E425, E427, E454 or E457 if a file cannot be read.
    Raises E393 or E394 if the model's chat template cannot render conversations.
    """
    verdict = Verdict()
    folder = scratch.with_name(scratch.name + ".files")
    with ExitStack() as stack:
        stack.callback(_remove, folder)
        files = [*_files_of(source, folder, verdict)]
        if not files:
            raise Problem.of("E303")
        trained, aside = _parted(files, verdict)
        reader = _Reader(trained, source.field, writer, verdict)
        documents = reader.documents(trained, scratch)
        stack.callback(documents.close)
        heldout, own = None, Verdict()
        if name := beside[0].name if beside else aside[0].name if aside else "":
            further = (_files_of(each, folder / f"beside-{number}", own) for number, each in enumerate(beside))
            try:
                aside += chain.from_iterable(further)
                scratch = scratch.with_name(scratch.name + ".heldout")
                heldout = _Reader(aside, reader.field, writer, own).documents(aside, scratch, most=MOST_HELD_OUT)
            except Problem as problem:
                reason = f"{problem.fault.cause.rstrip('.')}; a part of the training data is held out in its place"
                verdict.ask("E462", name=shown(name), reason=reason)
            else:
                verdict.heldout = split_of(name)
                _tell_of_part(aside, own, verdict)
        stack.pop_all()
        _remove(folder)
    return Opened(documents, heldout, verdict)


def _tell_of_part(aside: Sequence["_File"], own: Verdict, verdict: Verdict) -> None:
    """Describe the part that the organizer set aside, in `verdict`.

    `own`: that part's own verdict. Ask the organizer to look if much of the part is left out.
    """
    verdict.note("E435", part=", ".join(dict.fromkeys(file.name for file in aside[:3])))
    for reason, count in own.left_out.items():
        verdict.leave_out(f"{reason} in the held-out part", own.examples[reason][0], count)
    if sum(own.left_out.values()) > MANY_LEFT_OUT * own.rows:
        verdict.ask("E462", name=shown(aside[0].name), reason=f"{sum(own.left_out.values()):,} rows are left out")
    verdict.findings += [each for each in own.findings if each.severity == "question"]


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


# Files


def _files_of(source: Source, folder: Path, verdict: Verdict) -> Iterator[_File]:
    packed = opened = 0
    refused: Problem | None = None
    folder.mkdir(parents=True, exist_ok=True)
    for number, member in enumerate(members_of(source.path, source.name, verdict, folder / "unpacking")):
        plain = folder / str(number) if member.is_packed else Path(member.file.name)
        packed += member.is_packed
        if member.is_packed:
            with plain.open("wb") as written:
                while block := member.file.read(BLOCK):
                    written.write(block)
        if not plain.stat().st_size:
            continue
        try:
            kind = _column_kind(plain, member.name)
            if kind is None:
                plain = as_utf8(plain, member.name, folder / f"{number}.utf8", verdict)
                kind = kind_of(plain, member.name)
                if kind == "text" and (found := table_in(plain)) is not None:
                    verdict.ask("E464", name=shown(member.name), rows=found[0], cells=found[1])
        except Problem as problem:
            if not member.is_packed or problem.fault.code not in LEFT_IN_ARCHIVES:
                raise
            refused = refused or problem
            verdict.leave_out("not opened", f"{member.name}: {problem.fault.cause}")
            continue
        opened += 1
        yield _File(plain, member.name, kind)
    verdict.format = "archive" if packed else ""
    if refused is not None and not opened:
        raise refused
    if (closed_files := verdict.examples.get("not opened")) and not opened:
        what = f"an archive of files in unsupported formats (the first is {closed_files[0]})"
        raise Problem.of("E424", name=shown(source.name), what=what, advice="Save them as plain text files")
    if (closed := verdict.left_out.get("not opened", 0)) > MANY_LEFT_OUT * (closed + opened):
        verdict.ask("E444", left=f"{closed:,}", reasons="not opened")


def _column_kind(path: Path, name: str) -> Kind | None:
    """Return "parquet" or "arrow" if that is the file's format, otherwise None."""
    with path.open("rb") as file:
        begin = file.read(6)
    if begin.startswith(b"PAR1"):
        return "parquet"
    return "arrow" if begin == b"ARROW1" or name.lower().endswith(".arrow") else None


def _parted(files: list[_File], verdict: Verdict) -> tuple[list[_File], list[_File]]:
    """Divide files into those to train on and those that the organizer set aside. Describe them in the verdict.

    If there are both `val` and `test`, `val` is held out, and `test` is not used.
    """
    by_split: defaultdict[str, list[_File]] = defaultdict(list)
    for file in files:
        by_split[split_of(file.name)].append(file)
    trained = [*by_split["train"], *by_split[""]] if by_split["train"] else files
    held_out = [*by_split["validation"], *by_split["test"]]
    if held_out and not by_split["train"]:
        verdict.ask("E446", name=shown(held_out[0].name))
    if len({file.kind == "text" for file in trained}) > 1:
        verdict.ask("E461")
    aside: list[_File] = []
    if by_split["train"]:
        aside = by_split["validation"] or by_split["test"]
        if by_split["validation"] and by_split["test"]:
            verdict.leave_out("set aside as a test", by_split["test"][0].name, len(by_split["test"]))
    kinds = dict.fromkeys(FORMATS[file.kind] for file in trained)
    name = " and ".join(kinds)
    packed = ", packed" if verdict.format == "archive" else ""
    verdict.format = f"{name}, {len(trained):,} files" if len(trained) > 1 else f"{name}{packed}"
    return trained, aside


# Rows


class _Reader:
    """Chooses which field of the rows to read, and reads its texts."""

    def __init__(self, files: Sequence[_File], field: str, writer: Writer | None, verdict: Verdict) -> None:
        self.writer, self.verdict, self.look = writer, verdict, Look()
        self.are_conversations = False
        self.has_rows = any(file.kind != "text" for file in files)
        self.field = self._choose(files, field) if self.has_rows else ""
        verdict.field = self.field
        self._digests = array("Q")
        self._absent = 0  # rows without the field, as opposed to rows in which its text is empty

    def documents(self, files: Sequence[_File], scratch: Path, *, most: int | None = None) -> Documents:
        """Write the files' texts to `scratch`, cut into documents. `most`: stop after this number of bytes."""
        limit = UNPACKED_LEAST + UNPACKED_TIMES * sum(file.path.stat().st_size for file in files)
        offsets, characters = array("q", [0]), 0
        scratch.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(scratch.unlink)
            written = stack.enter_context(scratch.open("w+b"))
            for document in self._documents(files):
                data = document.encode("utf-8", "replace")
                written.write(data)
                offsets.append(offsets[-1] + len(data))
                characters += len(document)
                if offsets[-1] > limit:
                    raise Problem.of("E395", most=f"{limit >> 20:,}")
                if most is not None and offsets[-1] >= most:
                    break
            written.flush()
            if not characters:
                self._nothing()
            self._tell(len(offsets) - 1)
            documents = Documents(
                written,
                np.array(offsets, dtype=np.int64),
                characters,
                field=self.field,
                are_conversations=self.are_conversations,
                scratch=scratch,
            )
            stack.pop_all()
            written.close()
            return documents

    def _documents(self, files: Sequence[_File]) -> Iterator[str]:
        for file in files:
            if file.kind == "text":
                yield from cut_documents(map(self.look.take, _blocks(file.path)))
                continue
            for text in self._texts(file):
                is_short = self.are_conversations and len(text) <= LONGEST_CONVERSATION
                yield from [text] if is_short else cut_documents([text])

    def _texts(self, file: _File) -> Iterator[str]:
        for number, row in enumerate(rows_in(file.path, file.kind, file.name), 1):
            self.verdict.rows += 1
            if isinstance(row, Broken):
                self.verdict.leave_out(row.reason, f"row {number:,}: {row.example}")
                continue
            value = row.get(self.field)
            if isinstance(value, Broken):
                self.verdict.leave_out(value.reason, f"row {number:,}: {value.example}")
                continue
            text = self._text_of(value)
            if text is None:
                self.verdict.leave_out(REFUSED, f"row {number:,}: {self.writer.refusal if self.writer else ''}")
                continue
            text = self.look.take(text)
            if len(text.strip()) < LEAST:
                self._absent += self.field not in row
                self.verdict.leave_out("without text", f"row {number:,}: {_told(row)}")
                continue
            self._digests.append(digest_of(text))
            yield text

    def _text_of(self, value: str | list[Message] | None) -> str | None:
        if not isinstance(value, list):
            return value if not self.are_conversations and value else ""
        if self.writer is None:
            return plainly(value)
        return self.writer.write(value)

    def _choose(self, files: Sequence[_File], wanted: str) -> str:
        """Return the field to read, and describe all fields in the verdict.

        Conversations are chosen if no field has text, or if most rows have them and there is a chat template. Raises
        Problem E382 if no row has text, or E430 if the field `wanted` does not exist.
        """
        texts, said, unusable, count = _fields_in(files)
        for name, rows in unusable.items():
            if rows > (said[name].rows if name in said else 0):
                self.verdict.ask("E458", field=shown(name, 60), rows=f"{rows:,}")
        for each in texts.values():
            if each.are_splits:
                self.verdict.ask("E456", field=each.name)
        fields = [*texts.values(), *said.values()]
        self.verdict.fields = [each.as_field() for each in sorted(fields, key=lambda each: -each.characters)]
        if wanted:
            if wanted not in texts and wanted not in said:
                raise Problem.of("E430", field=shown(wanted), fields=_names(fields))
            self.are_conversations = wanted not in texts
            return wanted
        talk = max(said.values(), key=lambda each: each.rows, default=None)
        has_text = any(each.characters for each in texts.values() if talk is None or _is_beside(each, talk))
        if talk is not None and (
            not has_text or (self.writer is not None and self.writer.has_template and 2 * talk.rows > count)
        ):
            self.are_conversations = True
            if self.writer is None:
                self.verdict.note("E436", field=talk.name)
            others = [each for each in said.values() if each is not talk]
            if others:
                chosen = min((talk, *others), key=lambda each: (each.name == "rejected", -each.rows))
                self.verdict.ask("E429", field=chosen.name, fields=_names([talk, *others]))
                return chosen.name
            return talk.name
        if not has_text:
            raise Problem.of("E382", rows=f"{count:,}", fields=_names(fields) or "no text")
        return self._text_field([each for each in texts.values() if each.characters])

    def _text_field(self, fields: list["_Counted"]) -> str:
        most = max(fields, key=lambda each: each.weight)
        usual = [each for name in USUAL for each in fields if each.name == name]
        chosen = next((each for each in usual if each.characters >= LEAST_USUAL * most.characters), most)
        least = 1.0 if chosen.name in USUAL else RIVAL
        rivals = [
            each
            for each in fields
            if each is not chosen
            and ((each.is_prose and each.weight >= least * chosen.weight) or {each.name, chosen.name} <= PAIRED)
        ]
        if rivals:
            self.verdict.ask("E429", field=chosen.name, fields=_names([chosen, *rivals]))
        if chosen.name not in USUAL and 2 * chosen.spaces < chosen.rows:
            self.verdict.ask("E459", field=chosen.name, example=shown(chosen.example, 60))
        return chosen.name

    def _nothing(self) -> None:
        if self.writer is not None and self.verdict.left_out.get(REFUSED):
            raise Problem.of("E394", reason=self.writer.refusal)
        if self.has_rows:
            raise Problem.of("E382", rows=f"{self.verdict.rows:,}", fields=self.field or "no text")
        raise Problem.of("E303")

    def _tell(self, documents: int) -> None:
        verdict = self.verdict
        self.look.tell(verdict)
        verdict.rows = verdict.rows or documents
        verdict.repeats = len(self._digests) - len(set(self._digests))
        left = sum(verdict.left_out.values())
        strange = left - verdict.left_out.get("without text", 0) + self._absent
        if verdict.repeats > MANY_REPEATS * max(len(self._digests), 1):
            verdict.note("E437", repeats=f"{verdict.repeats:,}", rows=f"{len(self._digests):,}")
        if self.has_rows and left > MANY_LEFT_OUT * verdict.rows:
            reason = max(verdict.left_out, key=verdict.left_out.__getitem__)
            find = verdict.ask if strange > MANY_LEFT_OUT * verdict.rows else verdict.note
            find("E438", left=f"{left:,}", rows=f"{verdict.rows:,}", reason=reason)


def _is_beside(field: "_Counted", talk: "_Counted") -> bool:
    """Return True if the organizer may want a field's texts even though the rows also have conversations."""
    return field.name in USUAL or (field.is_prose and field.characters > talk.characters)


class _Counted:
    """Counts one field's texts over all rows."""

    def __init__(self, name: str) -> None:
        self.name, self.rows, self.characters, self.spaces, self.example = name, 0, 0, 0, ""
        self._values: set[str] = set()  # the first few distinct values

    def take(self, text: str) -> None:
        if len(text.strip()) >= LEAST:
            self.rows += 1
            if len(self._values) <= len(SPLITS):
                self._values.add(text.strip().lower()[:SHOWN])
            self.characters += len(text)
            self.spaces += text.count(" ") + text.count("\n")
            self.example = self.example or text[: 4 * SHOWN]

    @property
    def are_splits(self) -> bool:
        """True if the values are names of splits, such as `train` and `test`."""
        return len(self._values) > 1 and self._values <= SPLITS.keys()

    @property
    def is_prose(self) -> bool:
        """True if the values consist of words, unlike numbers, addresses and labels."""
        return self.spaces > 2 * self.rows

    @property
    def weight(self) -> float:
        """The number of characters, divided by four for texts without spaces, such as addresses."""
        return self.characters if self.is_prose else self.characters / 4

    def as_field(self) -> Field:
        return Field(self.name, self.rows, self.characters, shown(self.example))


def _fields_in(files: Sequence[_File]) -> tuple[dict[str, _Counted], dict[str, _Counted], Counter[str], int]:
    """Return the fields with texts and those with conversations, by name.

    Also return, by name, the number of rows in which a field is unusable, and the total number of rows.
    """
    unusable: Counter[str] = Counter()
    texts: dict[str, _Counted] = {}
    said: dict[str, _Counted] = {}
    count = 0
    for file in files:
        for row in rows_in(file.path, file.kind, file.name) if file.kind != "text" else ():
            count += 1
            if isinstance(row, Broken):
                continue
            for name, value in row.items():
                kept = texts if isinstance(value, str) else said
                if isinstance(value, Broken):
                    unusable[name] += 1
                    continue
                if name not in kept and len(kept) >= MOST_FIELDS:
                    continue
                kept.setdefault(name, _Counted(name)).take(value if isinstance(value, str) else plainly(value))
    return texts, said, unusable, count


def _names(fields: Iterable[_Counted]) -> str:
    return ", ".join(shown(each.name, 60) for each in fields)


def _told(row: dict[str, Value]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str)


def _blocks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        while block := file.read(BLOCK):
            yield block
