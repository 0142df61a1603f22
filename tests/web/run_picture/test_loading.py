"""The queries that a site prepares when it starts."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.models import Run
from web.feed.live import look, prepare_looks

pytestmark = pytest.mark.django_db


def test_a_site_that_starts_has_made_every_query_of_a_look(run: Run) -> None:
    with CaptureQueriesContext(connection) as before:
        prepare_looks()
    with CaptureQueriesContext(connection) as then:
        look(run.pk)
    made = {_shape(query) for query in before.captured_queries}
    assert {_shape(query) for query in then.captured_queries} <= made


def test_a_site_without_a_run_starts(db: None) -> None:
    prepare_looks()


def _shape(query: Any) -> str:
    return str(query["sql"]).split(" WHERE ")[0]
