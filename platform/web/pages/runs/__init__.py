"""Pages of a run: making it, watching it, managing it, taking its model."""
