"""Small inputs for tests of the intake: texts that do not repeat themselves, rows in several layouts, and archives."""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from peer_agent.site_work.intake.chat import Writer
from peer_agent.site_work.intake.texts import Source, open_texts
from peer_agent.site_work.intake.verdict import Verdict

SENTENCE = (
    "old river mill turns slowly while farmers bring grain before winter and children watch from a stone bridge they "
    "never count boats whose lanterns answer distant bells over quiet fields"
)
WORDS = SENTENCE.split()


def passage(seed: int, words: int = 40) -> str:
    """Return a sentence that differs from those of other seeds."""
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) for _ in range(words)).capitalize() + "."


def passages(count: int, begin: int = 0, words: int = 40) -> list[str]:
    return [passage(begin + number, words) for number in range(count)]


def put(folder: Path, name: str, content: bytes | str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def json_lines(*rows: Any) -> bytes:
    """Return JSON Lines. A row of bytes is written as it is."""
    lines = (row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows)
    return b"".join(line + b"\n" for line in lines)


def table(rows: Sequence[Mapping[str, Any]] | pa.Table, **options: Any) -> bytes:
    """Return a Parquet file."""
    file = io.BytesIO()
    parquet.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([*rows]), file, **options)
    return file.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def tarred(files: Mapping[str, bytes], mode: str = "w", **options: Any) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def read(path: Path, folder: Path, field: str = "", writer: Writer | None = None) -> tuple[list[str], Verdict]:
    """Return the documents of a source, and the verdict on it."""
    with open_texts(Source(path, path.name, field), folder / "rows", writer) as opened:
        return [opened.documents[number] for number in range(len(opened.documents))], opened.verdict


def codes_of(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.findings]
