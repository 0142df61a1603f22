"""The client's address is that of the last hop that is not a trusted proxy."""

import ipaddress
from typing import Any

import pytest

from config.proxies import visitor_in


@pytest.mark.parametrize(
    ("client", "forwarded", "seen"),
    [
        (("203.0.113.7", 50000), [], "203.0.113.7"),
        (("203.0.113.7", 50000), ["10.9.9.9"], "203.0.113.7"),  # the client itself claims the first address
        (("127.0.0.1", 50000), ["10.9.9.9, 203.0.113.7"], "203.0.113.7"),
        (("127.0.0.1", 50000), ["10.9.9.9", "203.0.113.7"], "203.0.113.7"),  # the header comes in two lines
        (("127.0.0.1", 50000), ["203.0.113.7, 192.0.2.1"], "203.0.113.7"),
        (("::ffff:203.0.113.7", 50000), [], "203.0.113.7"),
        (None, ["203.0.113.7"], ""),
    ],
)
def test_a_socket_is_seen_where_the_last_untrusted_hop_is(
    client: tuple[str, int] | None, forwarded: list[str], seen: str, settings: Any
) -> None:
    settings.TRUSTED_PROXIES = (ipaddress.ip_network("192.0.2.0/24"),)
    headers = [(b"host", b"here"), *((b"x-forwarded-for", line.encode()) for line in forwarded)]
    assert visitor_in({"client": client, "headers": headers}) == seen
