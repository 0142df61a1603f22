"""What runs inside a peer's namespace."""
