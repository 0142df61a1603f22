"""Which of two versions is the newer one, and which line replaces this one."""

import sys
from pathlib import Path

import pytest

from peer_agent import __version__
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.site.agent_version import Offer, difference, numbers_of


@pytest.mark.parametrize(
    ("older", "newer"), [("0.1.0", "0.1.1"), ("0.9.1", "0.10.0"), ("0.1", "0.1.1"), ("0.9.9+local", "1.0")]
)
def test_versions_are_compared_by_their_numbers(older: str, newer: str) -> None:
    assert numbers_of(older) < numbers_of(newer)


def test_a_site_that_is_older_is_nothing_to_speak_of() -> None:
    assert difference(Offer("0.0.1", PROTOCOL)) is None
    assert difference(Offer(__version__, PROTOCOL)) is None


def test_the_line_is_for_the_tool_that_installed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Offer("9.0.0", PROTOCOL, "pip install it", "uv tool install --reinstall it")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert offer.line == f"{sys.executable} -m pip install it"
    (tmp_path / "uv-receipt.toml").touch()
    assert offer.line == "uv tool install --reinstall it"
