"""Where a member of a run listens, as the site tells the others: at the address it is seen at, and nowhere else. Pure.

Volunteers are told to dial these addresses: whoever could name any of them could send all members to a stranger's door.
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
    """Whether it says anything that only somebody who can be dialled may say."""
    return bool(hello.url or hello.reduces or hello.keeps_log)


def placed(hello: Hello, seen: str) -> Hello:
    """The hello with the address that its control link comes from, `seen`. Raises Problem E376 where it cannot be."""
    if not hello.url:
        return silenced(hello)
    port = _port_of(hello.url)
    if not FINGERPRINT.fullmatch(hello.fingerprint):
        raise Problem.of("E376", reason="it names no certificate")
    return replace(hello, url=f"wss://{_host(seen)}:{port}/")


def silenced(hello: Hello) -> Hello:
    """The hello of somebody who cannot be dialled: what nobody could fetch is not kept either."""
    return replace(hello, url="", fingerprint="", reduces=False, keeps_log=False)


def _port_of(url: str) -> int:
    """Raises Problem E376 where this is anything but an encrypted address with a port."""
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
    """As it stands in an address. Raises Problem E376 where the site cannot tell."""
    try:
        address = ip_address(seen)
    except ValueError as error:
        raise Problem.of("E376", reason="the site cannot see its source address") from error
    if "%" in seen:
        raise Problem.of("E376", reason="its address is local to one network card")
    return f"[{address}]" if address.version == 6 else str(address)
