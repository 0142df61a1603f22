"""Fixtures: database engines, people, machines and a run."""

from tests.coordination.engines import database, layer
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "database", "layer", "migrated_postgres"]
