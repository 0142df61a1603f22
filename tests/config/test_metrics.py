"""Access to the figures of a process."""

from typing import Any

import pytest

from config import environment
from config.metrics import may_read

TOKEN = {"Authorization": "Bearer quiet otters"}
NOWHERE: dict[str, str] = {}


@pytest.mark.parametrize(
    ("peer", "headers", "may"),
    [
        ("127.0.0.1", NOWHERE, True),
        ("::1", NOWHERE, True),
        ("10.1.2.3", NOWHERE, True),
        ("::ffff:192.168.1.5", NOWHERE, True),
        ("93.184.216.34", NOWHERE, False),
        ("", NOWHERE, False),
        ("127.0.0.1", {"X-Forwarded-For": "93.184.216.34"}, False),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.1"}, False),
        ("10.9.0.5", NOWHERE, False),
        ("93.184.216.34", TOKEN, False),
    ],
)
def test_without_a_token_only_its_own_network_reads(
    settings: Any, peer: str, headers: dict[str, str], *, may: bool
) -> None:
    settings.TRUSTED_PROXIES = environment.networks("PROXIES", environ={"PROXIES": "10.9.0.5"})
    assert may_read(peer, headers) is may


@pytest.mark.parametrize("peer", ["127.0.0.1", "93.184.216.34"])
def test_with_a_token_nothing_else_counts(settings: Any, peer: str) -> None:
    settings.METRICS_TOKEN = "quiet otters"
    assert may_read(peer, TOKEN | {"X-Forwarded-For": "93.184.216.34"})
    for given in ("", "quiet otters", "Bearer quiet", "Bearer quiet ottersé"):
        assert not may_read(peer, {"Authorization": given})
