"""Fixtures: channel layers, people, machines and a run."""

from tests.coordination.engines import layer
from tests.runs.factories import data_folder, laptop, organizer, run, stranger, volunteer

__all__ = ["data_folder", "laptop", "layer", "organizer", "run", "stranger", "volunteer"]
