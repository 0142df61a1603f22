"""The coordinator: a deterministic function over a run's state. It decides, but moves, stores and measures nothing."""
