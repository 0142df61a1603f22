"""The coordinator: a deterministic function of a run's state. It only decides; it transfers and stores nothing."""
