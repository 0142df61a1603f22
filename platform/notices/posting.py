"""One POST to an address chosen by a stranger, limited in time and bytes, with no redirects, proxies or cookies.

The site resolves the host name once and connects to one of the addresses that it has checked. The name's owner
therefore cannot redirect it in between. Only the head of the response is read.
"""

import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from notices.addresses import IP, Refused, Target, resolved

CONNECT_S = 4.0
TOTAL_S = 10.0  # counted from the first attempt to connect
HEAD_BYTES = 16_384
PIECE = 4_096
LONGEST_WAIT_S = 86_400  # the longest wait that a response may ask for
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
RETRY_AFTER = re.compile(rb"^retry-after:[ \t]*(\d{1,6})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Answer(NamedTuple):
    """A response's status, and the wait in seconds that the receiver requested, or 0."""

    status: int
    retry_after_s: int

    @property
    def is_good(self) -> bool:
        """True if the receiver accepted the message."""
        return 200 <= self.status < 300


class Unreached(Exception):
    """Raised if a post got no valid response. The message says why."""


def post(target: Target, body: bytes, headers: Mapping[str, str], *, total_s: float = TOTAL_S) -> Answer:
    """Post a body to the target and return the response.

    Raises Refused if an address of the target is not public, and Unreached if there is no valid response.
    """
    try:
        addresses = resolved(target)
    except OSError as error:
        raise Unreached("Its name was not found.") from error
    deadline = time.monotonic() + total_s
    try:
        with _connected(target, addresses, deadline) as link:
            link.settimeout(_left(deadline))
            link.sendall(_request(target, body, headers))
            return _answer(link, deadline)
    except TimeoutError as error:
        raise Unreached(f"It did not answer within {total_s:.0f} seconds.") from error
    except ssl.SSLCertVerificationError as error:
        raise Unreached("Its certificate is not valid.") from error
    except OSError as error:
        raise Unreached("The connection failed.") from error


def _left(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError if none are left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _connected(target: Target, addresses: Sequence[IP], deadline: float) -> socket.socket:
    """Connect to the first address that accepts the connection. Raises OSError if none does, or if TLS fails."""
    failed: OSError = OSError("no address")
    for address in addresses:
        # `create_connection` would try to resolve the address as a host name.
        link = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        try:
            link.settimeout(min(CONNECT_S, _left(deadline)))
            link.connect((str(address), target.port))
        except OSError as error:
            link.close()
            failed = error
            continue
        if not target.is_secure:
            return link
        try:
            link.settimeout(_left(deadline))
            return ssl.create_default_context().wrap_socket(link, server_hostname=target.host)
        except BaseException:
            link.close()
            raise
    raise failed


def _request(target: Target, body: bytes, headers: Mapping[str, str]) -> bytes:
    usual = target.port == (443 if target.is_secure else 80)
    host = f"[{target.host}]" if ":" in target.host else target.host
    told = {
        "Host": host if usual else f"{host}:{target.port}",
        "User-Agent": "Manyhands",
        "Accept": "*/*",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _answer(link: socket.socket, deadline: float) -> Answer:
    """Read the head of the response, skipping any with a 1xx status.

    Raises OSError if the connection fails or the time is up, and Unreached if the response is missing, too long or not
    HTTP.
    """
    read = b""
    while True:
        head, end, rest = read.partition(b"\r\n\r\n")
        if end:
            found = STATUS.match(head)
            if found is None:
                raise Unreached("It does not speak HTTP.")
            status = int(found[1])
            if not 100 <= status < 200:
                asked = RETRY_AFTER.search(head)
                return Answer(status, min(int(asked[1]), LONGEST_WAIT_S) if asked else 0)
            read = rest
            continue
        if len(read) > HEAD_BYTES:
            raise Unreached("Its answer is too long.")
        link.settimeout(_left(deadline))
        piece = link.recv(PIECE)
        if not piece:
            raise Unreached("It closed the connection without an answer.")
        read += piece


__all__ = ["Answer", "Refused", "Unreached", "post"]
