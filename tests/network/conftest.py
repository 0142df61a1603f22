"""Fixtures for every test of the network."""

import pytest


@pytest.fixture(autouse=True)
def no_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is what is tested; a test of a proxy sets its own."""
    for name in ("http_proxy", "https_proxy", "ws_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
