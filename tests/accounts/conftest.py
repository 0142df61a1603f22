"""The cast for the tests of this room."""

from tests.runs.cast import (
    any_database,
    data_folder,
    laptop,
    migrated_postgres,
    operator,
    organizer,
    run,
    stranger,
    volunteer,
)

__all__ = [
    "any_database",
    "data_folder",
    "laptop",
    "migrated_postgres",
    "operator",
    "organizer",
    "run",
    "stranger",
    "volunteer",
]
