"""A file on its way in: its length is known before it is read, a text is UTF-8, its sha256 is taken in passing."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.conf import settings

from peer_agent.protocol.errors import Fault, Problem
from runs.storage import MEGABYTE

FORM_ALLOWANCE = MEGABYTE  # the other fields of the form that carries the file


def length_fault(content_length: str | None, *, limit: int, allowance: int = 0) -> Fault | None:
    """Why a body of this length is not read at all: E311 (no length), E304 (too long). In bytes.

    `allowance` is for what comes beside the file that the limit is about.
    """
    if content_length is None or not content_length.isdecimal():
        return Fault.of("E311")
    if int(content_length) > limit + allowance:
        return too_long(int(content_length), limit)
    return None


def too_long(size: int, limit: int) -> Fault:
    """E304 in whole megabytes, rounded so that the first is the larger."""
    return Fault.of("E304", size=f"{-(-size // MEGABYTE):,}", limit=f"{limit // MEGABYTE:,}")


def upload_limit() -> int:
    """Bytes of one uploaded file."""
    return int(settings.UPLOAD_LIMIT_MB) * MEGABYTE


def write_file(chunks: Iterable[bytes], target: Path, *, size: int, is_text: bool) -> str:
    """Write a file of the announced size, in UTF-8 where it is a text; its sha256. Raises Problem E302, E304."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    written = 0
    with target.open("wb") as file:
        for chunk in utf8_checked(chunks) if is_text else chunks:
            written += len(chunk)
            if written > size:
                raise Problem(too_long(written, size))
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def utf8_checked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same chunks; a character may be cut between two of them. Raises Problem E302 with the byte that is wrong."""
    pending = b""
    start = 0  # of the next chunk
    for chunk in chunks:
        pending = utf8_piece(chunk, pending=pending, start=start)
        start += len(chunk)
        yield chunk
    utf8_piece(b"", pending=pending, start=start, is_last=True)


def utf8_piece(piece: bytes, *, pending: bytes, start: int, is_last: bool = False) -> bytes:
    """What of a piece belongs to a character that goes on in the next. `start`: its first byte's place in the text.

    Raises Problem E302 with the byte that is wrong.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoder.setstate((pending, 0))
    _decode(decoder, piece, start, final=is_last)
    return decoder.getstate()[0]


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, start: int, *, final: bool) -> None:
    pending, _ = decoder.getstate()
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        position = start - len(pending) + error.start
        raise Problem.of("E302", position=position, byte=f"{error.object[error.start]:02x}") from error
