"""A member's address, and the certificate that identifies the member."""

from pathlib import Path

import pytest

from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem
from peer_agent.relay.place import LISTENER, Place, own_certificate


def test_its_certificate_stays_and_is_its_owners_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = own_certificate(home)
    assert own_certificate(home).fingerprint == first.fingerprint
    assert (tmp_path / LISTENER).stat().st_mode & 0o777 == 0o600
    (tmp_path / LISTENER).write_bytes(b"-----BEGIN NOTHING-----")
    with pytest.raises(Problem, match="E113"):
        own_certificate(home)


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (Place("192.0.2.1"), "wss://192.0.2.1:4000/"),
        (Place("::1", 4000), "wss://[::1]:4000/"),
        (Place("192.0.2.1", 4000, 443), "wss://192.0.2.1:443/"),
    ],
)
def test_its_address_names_the_port_that_others_dial(place: Place, url: str) -> None:
    assert place.url(4000) == url
