"""The coordinator: a deterministic function of a run's state. It only decides; the host sends and stores data."""
