"""Fixtures: people, machines and a run."""

from tests.runs.factories import *  # noqa: F403  (`__all__` there is the list)
