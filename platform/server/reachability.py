"""Functions that check ports, and whether the site can be reached from this machine, a local network or the internet.

Some of them return warnings and hints for the operator.
"""

import contextlib
import errno
import ipaddress
import socket
from urllib.parse import urlsplit

import psutil

from config.environment import addresses_of, is_loopback
from peer_agent.protocol.errors import Problem

EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (what people write for every address of this machine)
IN_THE_CLEAR = (
    "It is not encrypted: good for a class or a home, where everybody may be trusted with everybody's passwords. "
    "For anything else put a TLS proxy in front."
)
UNREACHED = "Other computers do not reach it under this address. For them: --public-url http://{address}:{port}"


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port, where 0 means any free port.

    Raises Problem E401 if the port is taken or not permitted, or E405 if the host cannot be used.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Problem.of("E405", name="--host", reason=error.strerror or error) from error
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(1024)  # until it listens, another process could bind the same address
    except OSError as error:
        bound.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise Problem.of("E401", port=port, holder=holder_of(port)) from error
        raise Problem.of("E405", name="--host", reason=error.strerror or error) from error
    return bound


def check_port(host: str, port: int) -> None:
    """Raise Problem E401 if the port is taken, or E405 if the host cannot be used."""
    bound_socket(host, port).close()


def holder_of(port: int) -> str:
    """Return the name of the program listening on the port, if this user may see it."""
    with contextlib.suppress(psutil.Error, PermissionError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "the system" if port < 1024 else "another program"


def checked_public(url: str) -> str:
    """Return a warning if the public URL is plain http on a local network, otherwise "".

    Raises Problem E334 if it is plain http on the internet.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or is_loopback(host):
        return ""
    if any(not address.is_private for address in addresses_of(host)):
        raise Problem.of("E334", url=url)
    return IN_THE_CLEAR


def hint_for_neighbours(host: str, port: int, public: str) -> str:
    """Return a hint giving the site's address on the local network, or an empty string.

    The hint is needed if the site listens on all addresses but `public` can be reached only from this machine.
    """
    if host not in EVERYWHERE or not is_loopback(urlsplit(public).hostname or ""):
        return ""
    address = next(iter(own_addresses()), "")
    return UNREACHED.format(address=address, port=port) if address else ""


def own_addresses() -> list[str]:
    entries = [entry for found in psutil.net_if_addrs().values() for entry in found if entry.family == socket.AF_INET]
    return [entry.address for entry in entries if is_of_network(ipaddress.ip_address(entry.address))]


def is_of_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return True if the address is on a local network."""
    return address.is_private and not address.is_loopback and not address.is_link_local


def relay_port_for(public: str, host: str, asked: int) -> int:
    """Return the port for the relay. If `asked` is not 0, return it.

    Otherwise, return a free port if other machines must reach the relay, or 0 to let the relay choose.
    """
    if asked or is_loopback(urlsplit(public).hostname or ""):
        return asked
    with bound_socket(host, 0) as free:
        port: int = free.getsockname()[1]
        return port
