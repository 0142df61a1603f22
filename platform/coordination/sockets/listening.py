"""The address where a member of a run listens: the one at which the site sees it, and no other. Pure.

Volunteers dial these addresses. A member free to name one could send all others to a victim's.
"""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec.structs import replace

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import Hello

FINGERPRINT = re.compile(r"[0-9a-f]{64}")  # of a certificate, as `network.certificate` writes it
HTTPS = 443


def is_dialled(hello: Hello) -> bool:
    """Return True if the hello claims anything that requires being dialled."""
    return bool(hello.url or hello.reduces or hello.keeps_log)


def placed(hello: Hello, seen: str) -> Hello:
    """Return the hello with the address `seen`, where its control link comes from. Raises Problem E376."""
    if not hello.url:
        return silenced(hello)
    port = _port_of(hello.url)
    if not FINGERPRINT.fullmatch(hello.fingerprint):
        raise Problem.of("E376", reason="it names no certificate")
    return replace(hello, url=f"wss://{_host(seen)}:{port}/")


def silenced(hello: Hello) -> Hello:
    """Return the hello of a member that cannot be dialled; it keeps no log, which no peer could fetch."""
    return replace(hello, url="", fingerprint="", reduces=False, keeps_log=False)


def _port_of(url: str) -> int:
    """Return the port of an address. Raises Problem E376 unless it is encrypted and has only a host and a port."""
    try:
        parts = urlsplit(url)
        port = HTTPS if parts.port is None else parts.port
    except ValueError as error:
        raise Problem.of("E376", reason=f"its address is none ({error})") from error
    if parts.scheme != "wss" or not parts.hostname:
        raise Problem.of("E376", reason="its address does not begin with wss://")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise Problem.of("E376", reason="its address contains more than a port")
    if not port:
        raise Problem.of("E376", reason="its port is 0")
    return port


def _host(seen: str) -> str:
    """Return an address in the form of a URL. Raises Problem E376 if the site cannot tell it."""
    try:
        address = ip_address(seen)
    except ValueError as error:
        raise Problem.of("E376", reason="the site cannot see its source address") from error
    if "%" in seen:
        raise Problem.of("E376", reason="its address is local to one network card")
    return f"[{address}]" if address.version == 6 else str(address)
