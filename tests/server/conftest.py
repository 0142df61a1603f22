"""The cast for the tests of this room."""

from tests.runs.cast import *  # noqa: F403  (the list is there, once)
