"""People, machines and a run for the tests of this room."""

from tests.runs.factories import *  # noqa: F403  (the list is there, once)
