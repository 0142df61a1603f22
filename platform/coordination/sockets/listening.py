"""The address at which a member of a run accepts connections. The site uses the IP address that it sees itself.

Other members connect to these addresses. If a member could name any address, it could direct all others at a victim.
These functions are pure.
"""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec.structs import replace

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import Hello

FINGERPRINT = re.compile(r"[0-9a-f]{64}")  # a certificate's fingerprint, as written by `network.certificate`
HTTPS = 443


def is_dialled(hello: Hello) -> bool:
    """Return True if the hello claims a role for which other peers must be able to connect to the member."""
    return bool(hello.url or hello.reduces or hello.keeps_log)


def placed(hello: Hello, seen: str) -> Hello:
    """Return the hello with its URL's host set to `seen`, the source address of the member's control link.

    Raises Problem E376 if the hello names no certificate, or if either address cannot be used.
    """
    if not hello.url:
        return silenced(hello)
    port = _port_of(hello.url)
    if not FINGERPRINT.fullmatch(hello.fingerprint):
        raise Problem.of("E376", reason="it names no certificate")
    return replace(hello, url=f"wss://{_host(seen)}:{port}/")


def silenced(hello: Hello) -> Hello:
    """Return the hello without an address. A member that cannot be reached can neither reduce nor serve a log."""
    return replace(hello, url="", fingerprint="", reduces=False, keeps_log=False)


def _port_of(url: str) -> int:
    """Return an address's port. Raises Problem E376 unless the address is wss:// with only a host and port."""
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
    """Return an IP address as written in URLs. Raises Problem E376 if it is unknown or local to one network card."""
    try:
        address = ip_address(seen)
    except ValueError as error:
        raise Problem.of("E376", reason="the site cannot see its source address") from error
    if "%" in seen:
        raise Problem.of("E376", reason="its address is local to one network card")
    return f"[{address}]" if address.version == 6 else str(address)
