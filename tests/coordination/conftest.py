"""Fixtures: database engines, people, machines and a run. Fences count from 1, as on a site in 1970."""

import pytest

from coordination.hosts import claims
from tests.coordination.engines import database, layer
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "database", "layer", "migrated_postgres"]


@pytest.fixture(autouse=True)
def small_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "EPOCH", 2**40)
