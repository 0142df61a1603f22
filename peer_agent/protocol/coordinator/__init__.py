"""The coordinator: one deterministic function over a run's state. Decides; never moves, stores or measures anything."""
