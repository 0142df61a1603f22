"""Pages of a run: creating, watching and managing it, and taking its model."""
