"""The headers of tus 1.0.0 (tus.io/protocols/resumable-upload): the core protocol, creation and termination.

X-HTTP-Method-Override is left out: every method is checked as what it is.
"""

import base64
import binascii
from typing import Final

from django.http import HttpRequest

from peer_agent.protocol.errors import Problem

VERSION: Final = "1.0.0"
RESUMABLE, OFFSET, LENGTH, METADATA = "Tus-Resumable", "Upload-Offset", "Upload-Length", "Upload-Metadata"
KIND = "application/offset+octet-stream"  # of a piece
MOST_DIGITS = 18  # of a number of bytes; int() takes 4,300 at most
MOST_METADATA = 4096  # letters
SHOWN = 20  # letters of what somebody sent, in an error


def capabilities(max_size: int) -> dict[str, str]:
    """What OPTIONS answers. `max_size`: bytes of one upload."""
    return {"Tus-Version": VERSION, "Tus-Extension": "creation,termination", "Tus-Max-Size": str(max_size)}


def require_version(request: HttpRequest) -> None:
    """Raise Problem E368 unless the request is of this version."""
    given = request.headers.get(RESUMABLE, "")
    if given != VERSION:
        raise Problem.of("E368", given=given[:SHOWN] or "of no version", version=VERSION)


def require_piece(request: HttpRequest) -> None:
    """Raise Problem E369 unless the body is said to be a piece."""
    if request.content_type != KIND:
        raise Problem.of("E369", given=(request.content_type or "")[: 2 * SHOWN] or "nothing in particular", kind=KIND)


def byte_count(request: HttpRequest, header: str) -> int | None:
    """A number of bytes in a header, None where there is none."""
    given = request.headers.get(header, "")
    return int(given) if given.isdecimal() and len(given) <= MOST_DIGITS else None


def metadata(request: HttpRequest) -> dict[str, str]:
    """What is said of an upload: pairs of a name and its value in base64, between commas. Raises Problem E375."""
    given = request.headers.get(METADATA, "")
    if len(given) > MOST_METADATA:
        raise Problem.of("E375", reason=f"{METADATA} has more than {MOST_METADATA} letters")
    pairs = [pair.strip().partition(" ") for pair in given.split(",") if given]
    try:
        said = {name: base64.b64decode(value, validate=True).decode() for name, _, value in pairs}
    except (binascii.Error, ValueError) as error:
        raise Problem.of("E375", reason=f"{METADATA} has a value that is not UTF-8 in base64") from error
    if "" in said or len(said) < len(pairs):
        raise Problem.of("E375", reason=f"{METADATA} has a name twice, or a value without one")
    return said
