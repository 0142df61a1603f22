"""Whether the site is there, and what it says when something of its own breaks."""

import re
from typing import Any

import pytest
from django.test import Client

from tests.web.browsing import page


def test_it_is_alive_and_ready(client: Client, db: None) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_a_broken_page_says_that_work_is_safe(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("runs.selectors.found_runs", broken)
    monkeypatch.setattr("runs.selectors.run_lines", broken)
    client.raise_request_exception = False
    for path in ("/", "/api/v1/runs"):
        answer = client.get(path)
        assert answer.status_code == 500
        assert "unforeseen" not in page(answer)
        assert "safe" in page(answer)
        incident = re.search(r"500-([0-9a-f]{8})", page(answer))
        assert incident is not None
        (told,) = (record for record in caplog.records if incident[1] in record.getMessage())
        assert told.exc_info is not None
        assert str(told.exc_info[1]) == "unforeseen"
