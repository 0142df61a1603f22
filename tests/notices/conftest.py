"""People, machines and a run for the tests of this room; a place that webhooks are posted to."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notices.webhook_double import WebhookDouble
from tests.runs.factories import *  # noqa: F403  (the list is there, once)


@pytest.fixture
def sends_mail(settings: Any) -> None:
    """The operator has set up a mail server; Django keeps what is sent in memory."""
    settings.SENDS_MAIL = True
    settings.DEFAULT_FROM_EMAIL = "hands@example.org"
    settings.PUBLIC_URL = "https://hands.example"


@pytest.fixture
def double(settings: Any) -> Iterator[WebhookDouble]:
    """Somebody's server on this machine, which webhooks reach in debug mode alone."""
    settings.DEBUG = True
    with WebhookDouble() as found:
        yield found
