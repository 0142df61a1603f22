"""Fixtures for all the network tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.site_double import Site, make_certificate, serving


@pytest.fixture(autouse=True)
def no_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset all proxies. The tests in this folder use loopback, and a test of a proxy sets its own."""
    for name in ("http_proxy", "https_proxy", "ws_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Run a site over TLS, with a certificate that this process trusts."""
    path = tmp_path / "trusted" / "certificate.pem"
    path.parent.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = make_certificate(path)
    with serving() as running:
        running.scheme = "https"
        running.socket = context.wrap_socket(running.socket, server_side=True, do_handshake_on_connect=False)
        yield running


@pytest.fixture
def a_proxy_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set proxies that do not work, so that every test also proves that loopback bypasses the proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
