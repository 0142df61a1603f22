"""Fixtures: a test that uses `database` runs once on each engine."""

from tests.coordination.engines import database
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "database", "migrated_postgres"]
