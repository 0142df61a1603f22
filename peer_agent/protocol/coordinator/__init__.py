"""The coordinator: a deterministic function over a run's state. It only decides; it transfers and stores nothing."""
