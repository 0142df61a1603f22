"""Fixtures: people, machines, a run, and a server that receives webhooks."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notices.webhook_double import WebhookDouble
from tests.runs.factories import *  # noqa: F403  (`__all__` there is the list)


@pytest.fixture
def sends_mail(settings: Any) -> None:
    """Configure a mail server. Django keeps the sent mail in memory."""
    settings.SENDS_MAIL = True
    settings.DEFAULT_FROM_EMAIL = "hands@example.org"
    settings.PUBLIC_URL = "https://hands.example"


@pytest.fixture
def double(settings: Any) -> Iterator[WebhookDouble]:
    """Yield a webhook server on loopback. The site may contact loopback in debug mode only."""
    settings.DEBUG = True
    with WebhookDouble() as found:
        yield found
