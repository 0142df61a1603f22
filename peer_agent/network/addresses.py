"""Classification of addresses: local (plaintext allowed), loopback (never proxied) and public."""

import ipaddress
import socket
from urllib.parse import urlsplit

from peer_agent.protocol.errors import Problem

ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 (every network interface; not an address to publish)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_encrypted(url: str, *, secure: str, plain: str) -> None:
    """Check that a URL is encrypted, or is plaintext within the local network. May query the resolver. Raises Problem
    E104 if the URL is invalid, E105 if a plaintext URL leads outside the local network.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Problem.of("E104", url=url, reason=error) from error
    if not host or parts.scheme not in (secure, plain):
        raise Problem.of("E104", url=url, reason=f"it is no {plain}:// or {secure}:// address")
    if parts.scheme == plain and not is_local(host):
        raise Problem.of("E105", url=url)


def is_loopback(host: str) -> bool:
    """Return True if this host name or address always refers to this machine. Does not query the resolver."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _literal(host)
    return address is not None and address.is_loopback


def is_local(host: str) -> bool:
    """Return True if the host is this machine or on its local network.

    A host name counts only if all its addresses are local.
    """
    if is_loopback(host):
        return True
    literal = _literal(host)
    addresses = [literal] if literal is not None else _resolve(host)
    return bool(addresses) and all(address.is_private for address in addresses)


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_public(host: str) -> bool:
    """Return True if the host is a public internet address. Names never count, because their addresses may change."""
    address = _literal(host)
    return address is not None and address.is_global and not address.is_multicast


def _resolve(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    literals = [_literal(str(address[0])) for *_, address in found]
    return [address for address in literals if address is not None]


def _literal(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    # For example, ::ffff:8.8.8.8 is 8.8.8.8 in IPv6 form.
    return getattr(address, "ipv4_mapped", None) or address
