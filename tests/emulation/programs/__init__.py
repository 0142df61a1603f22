"""Programs that run inside a peer's namespace."""
