"""Fixtures: people, machines and a run. The site's health checks run in the test's own thread."""

import pytest

from tests.runs.factories import *  # noqa: F403  (`__all__` there is the list)
from web import health


@pytest.fixture(autouse=True)
def _checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the site's health checks in the calling thread, because other threads do not see a test's transaction."""
    monkeypatch.setattr(health, "start", lambda work: work())
    for check in health.CHECKS:
        check.forget()
