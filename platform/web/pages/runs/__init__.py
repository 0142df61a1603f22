"""Pages of a run: creating, watching and managing it, and downloading its model."""
